"""Discrete Fourier transforms under PyTorch's names, in the precision of their input.

`sg.complex`, `sg.real`, `sg.imag`, `sg.view_as_real` and `sg.view_as_complex` convert between real and complex tensors.
Complex arithmetic is not provided: compute with the real and imaginary parts. First and second derivatives equal
PyTorch's.
"""

from spillgrad.ops.fourier import *

__all__ = [name for name in dir() if not name.startswith("_")]
