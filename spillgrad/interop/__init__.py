"""Other libraries: spilling for models of `torch` and `paddle`; our tensors in functions of `numpy` and `einops`."""
