"""Discrete Fourier transforms under PyTorch's names, in the precision of their input.

First and second derivatives equal PyTorch's.
"""

from spillgrad.ops.fourier import *

__all__ = [name for name in dir() if not name.startswith("_")]
