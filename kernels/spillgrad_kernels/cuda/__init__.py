"""Kernels for NVIDIA GPUs, made of the same rows and formulas as those for the CPU. Importing it imports numba-cuda."""
