"""The store for models of PyTorch and Paddle, `spillgrad.interop.torch` and `spillgrad.interop.paddle`; einops."""
