"""Kernels for the CPU: serial loops over ranges, which `threads` divides among threads."""
