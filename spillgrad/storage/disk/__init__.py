"""Segments: the HDF5 files of arrays, and how the bytes of arrays move between memory and these files."""
