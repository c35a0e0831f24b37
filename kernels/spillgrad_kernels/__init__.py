"""Compiled arithmetic over NumPy arrays, and the aligned buffer pool. Knows nothing of tensors."""
