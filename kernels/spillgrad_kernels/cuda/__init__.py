"""Kernels for NVIDIA GPUs, built from the same tables of rows, rules and formulas as the kernels for the CPU.

If a function here has the name of a function in the module of the same name in `cpu/`, it replaces that function on a
device. It has the same parameters, shapes, results and errors, which are documented in `cpu/`. The docstring here says
what differs.

`precision`, and `availability`, `failures` and `memory` in `driver/`, import no CUDA package. `driver/nvidia` imports
the bindings of NVIDIA's driver. All other modules import numba-cuda.
"""
