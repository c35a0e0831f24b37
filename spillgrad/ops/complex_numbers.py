"""Conversions between real and complex tensors; complex arithmetic itself is not provided.

As in PyTorch, a complex tensor's gradient is the gradient by its real part plus i times that by its imaginary part.
"""

import math
from collections.abc import Callable

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops import arithmetic, clamp_where, elementwise, inplace, trigonometry
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.creation import zeros_like
from spillgrad.ops.declaration import declare
from spillgrad.ops.join_split import select, stack
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import transpose
from spillgrad.tensor import Tensor

__all__ = [
    "adjoint", "angle", "complex", "conj", "imag", "polar", "real", "resolve_conj", "view_as_complex", "view_as_real",
]  # fmt: skip


def _joined(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    out = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imag
    return out


_complex: Callable[..., Tensor] = operation("complex", _joined, real=lambda g: _real(g), imag=lambda g: _imag(g))
_real: Callable[..., Tensor] = operation(
    "real", lambda self: np.ascontiguousarray(self.real), self=lambda g: _complex(g, zeros_like(g))
)
_imag: Callable[..., Tensor] = operation(
    "imag", lambda self: np.ascontiguousarray(self.imag), self=lambda g: _complex(zeros_like(g), g)
)
_add: Callable[..., Tensor] = operation(
    "add", lambda self, other: np.asarray(self + other), self=lambda g: g, other=lambda g: g
)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Return real + i imag.

    Raises DtypeError unless both are float32 or both are float64, ShapeError for different shapes.
    """
    if real.dtype != imag.dtype or real.numpy_dtype not in (dtypes.float32, dtypes.float64):
        raise DtypeError(f"complex: got {real.dtype} and {imag.dtype}; wanted float32 twice, or float64")
    if real.shape != imag.shape:
        raise ShapeError(f"complex: got {real.shape} and {imag.shape}; the shapes must be equal: expand one of them")
    return _complex(real, imag)


@declare(numpy=True, standard=True)
def real(input: Tensor) -> Tensor:
    """Return the real parts as a copy; return a real tensor itself."""
    return _real(input) if input.is_complex() else input


@declare(numpy=True, standard=True)
def imag(input: Tensor) -> Tensor:
    """Return the imaginary parts as a copy. Raises DtypeError for a real tensor."""
    _require_complex("imag", input)
    return _imag(input)


@declare(method=True, numpy="conjugate", standard=True)
def conj(input: Tensor) -> Tensor:
    """Return the complex conjugates as a copy; return a real tensor itself."""
    return _complex(_real(input), arithmetic.neg(_imag(input))) if input.is_complex() else input


@declare(method=True)
def resolve_conj(input: Tensor) -> Tensor:
    """Return the tensor itself: `conj` conjugates at once (PyTorch's `conj` only marks the tensor)."""
    return input


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Return the complex numbers with these absolute values and angles. Raises as `complex` does."""
    return complex(arithmetic.mul(abs, trigonometry.cos(angle)), arithmetic.mul(abs, trigonometry.sin(angle)))


@declare(method=True, numpy=True)
def angle(input: Tensor) -> Tensor:
    """Return the angle of each element in radians; a real element has the angle π if negative, else 0."""
    if input.is_complex():
        return trigonometry.atan2(_imag(input), _real(input))
    if dtypes.category(input.dtype) < 2:
        input = to_dtype(input, dtypes.get_default_dtype())
    zero = arithmetic.floor(clamp_where.clamp(input, 0, 0))  # NaN for NaN, and without a slope
    return clamp_where.where(input < 0, math.pi, zero)  # type: ignore[no-any-return]


@declare(method=True)
def adjoint(input: Tensor) -> Tensor:
    """Return the conjugate transpose of the last two dimensions. Raises ShapeError for fewer than two dimensions."""
    if input.ndim < 2:
        raise ShapeError(f"adjoint: got a tensor of shape {input.shape}; tensor.adjoint() is only for matrices")
    return conj(transpose(input, -2, -1))


def view_as_real(input: Tensor) -> Tensor:
    """Return the real and imaginary parts along a new last dimension, as a copy (PyTorch returns a view)."""
    _require_complex("view_as_real", input)
    return stack([_real(input), _imag(input)], -1)


@float32_in_autocast
def view_as_complex(input: Tensor) -> Tensor:
    """Return complex numbers made of the pairs (real, imag) in the last dimension, as a copy (PyTorch: a view)."""
    if not input.ndim or input.shape[-1] != 2:
        raise ShapeError(f"view_as_complex: got {input.shape}; Tensor must have a last dimension of size 2")
    return complex(select(input, -1, 0), select(input, -1, 1))


def _require_complex(name: str, input: Tensor) -> None:
    if not input.is_complex():
        raise DtypeError(f"{name}: got {input.dtype}; it is only implemented for tensors with complex dtypes")


def add_gradients(first: Tensor, second: Tensor) -> Tensor:
    """Return the sum of two gradients, which may be complex."""
    return _add(first, second) if first.is_complex() else arithmetic.add(first, second)


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """Add `gradient` to `total` in place, without recording this in the graph; both may be complex."""
    if total.is_complex():
        inplace.write(total, "add_", total.array + gradient.array)
    else:
        elementwise.accumulate(total, gradient)
