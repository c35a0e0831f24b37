"""Discrete Fourier transforms under PyTorch's names, in the precision of their input.

Between real and complex tensors go `sg.complex real imag view_as_real view_as_complex`; complex arithmetic is not
provided: compute with the parts. Gradients, second ones too, are those of PyTorch.
"""

from spillgrad.ops.fourier import *

__all__ = [name for name in dir() if not name.startswith("_")]
