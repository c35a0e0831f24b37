"""Compiling kernels for a device, their machine code on disk, and launching them."""
