"""The store for models of other frameworks, `spillgrad.interop.torch` for PyTorch; and `spillgrad.interop.einops`."""
