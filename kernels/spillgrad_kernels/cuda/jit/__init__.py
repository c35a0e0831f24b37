"""Compiling and launching kernels for a device, and the cache of their machine code on disk."""
