"""Kernels for the CPU: serial loops over ranges, which `threads` shares out."""
