"""The store for models of other frameworks: `spillgrad.interop.torch` for PyTorch, `spillgrad.interop.paddle`."""
