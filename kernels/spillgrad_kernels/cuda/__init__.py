"""Kernels for NVIDIA GPUs, built from the same tables of rows, rules and formulas as those for the CPU.

A function here that has the name of a function in the CPU's module of the same name stands in for it on a device. It
has the same parameters, shapes, results and errors. They are documented there; the docstring here says what differs.

`precision`, and `availability`, `failures` and `memory` in `driver/`, import no CUDA package. `driver/nvidia` imports
the bindings of NVIDIA's driver. All other modules import numba-cuda.
"""
