"""Kernels for NVIDIA GPUs, made of the same rows, rules and formulas as those for the CPU.

`availability`, `failures`, `memory` and `pinned` import nothing of CUDA's, `driver` only NVIDIA's driver; the others
import numba-cuda.
"""
