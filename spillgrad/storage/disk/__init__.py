"""The files: segments of arrays, and how their bytes move."""
