"""PyTorch's module `torch.testing`: comparison of nested values in tests, and random tensors for them."""

from spillgrad.testing.comparison import assert_allclose, assert_close
from spillgrad.testing.make_tensor import make_tensor

__all__ = ["assert_allclose", "assert_close", "make_tensor"]
