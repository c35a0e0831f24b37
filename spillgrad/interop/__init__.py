"""Other libraries: the store for models of `torch` and `paddle`, tensors in `numpy`'s functions and in `einops`."""
