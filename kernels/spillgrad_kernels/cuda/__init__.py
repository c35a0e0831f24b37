"""Kernels for NVIDIA GPUs, made of the same rows, rules and formulas as those for the CPU.

Its modules, but for `memory`, import numba-cuda.
"""
