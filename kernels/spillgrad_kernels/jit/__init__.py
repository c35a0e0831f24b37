"""Compiling kernels with Numba, their machine code on disk, and forks while another thread compiles."""
