"""Kernels for NVIDIA GPUs, built from the same tables of rows, rules and formulas as the kernels for the CPU.

For device arrays, a function of this package replaces the function of the same name in the module of the same name in
`cpu/`, if there is such a function. Both have the same parameters, shapes, results and errors, which are documented in
`cpu/`. A docstring in this package says what differs.

Four modules import no CUDA package: `precision`, `driver/availability`, `driver/failures` and `driver/memory`.
`driver/nvidia` imports the bindings of NVIDIA's driver. All other modules import numba-cuda.
"""
