"""Kernels for NVIDIA GPUs, made of the same rows, rules and formulas as those for the CPU.

In `driver/`, `availability`, `failures` and `memory` import no package of CUDA; `nvidia` imports the bindings of the
driver of NVIDIA. `precision` imports none either. All other modules import numba-cuda.
"""
