"""Complex numbers made of their parts, and views of the parts.

As in PyTorch, a complex tensor's gradient is the gradient by its real part plus i times that by its imaginary part.
"""

import math
from collections.abc import Callable

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops import arithmetic, clamp_where, complex_views, trigonometry
from spillgrad.ops.broadcast import common_shape, expand_to
from spillgrad.ops.complex_views import COMPLEX_OF, conjugate, imag, real
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.creation import ones_like
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.ops.shape import transpose
from spillgrad.tensor import Tensor

__all__ = [
    "adjoint", "angle", "complex", "conj", "conj_physical", "is_conj", "is_neg", "isreal", "polar", "resolve_conj",
    "resolve_neg",
]  # fmt: skip


def _joined(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    out = np.empty(real.shape, COMPLEX_OF[real.dtype])
    out.real, out.imag = real, imag
    return out


_complex: Callable[..., Tensor] = operation(
    "complex", _joined, real=lambda g: complex_views.real(g), imag=lambda g: complex_views.imag(g)
)


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Return the complex numbers with these real and imaginary parts.

    Parameters
    ----------
    real, imag : Tensor
        Both of float32 or both of float64; the shapes broadcast.

    Returns
    -------
    Tensor
        Of complex64 or complex128, of the shape that the parts broadcast to.

    Raises
    ------
    DtypeError
        If the dtypes differ, or are others.
    ShapeError
        If the shapes do not broadcast.
    """
    if real.dtype != imag.dtype or real.numpy_dtype not in (dtypes.float32, dtypes.float64):
        raise DtypeError(f"complex: got {real.dtype} and {imag.dtype}; wanted float32 twice, or float64")
    if real.shape != imag.shape:
        shape = common_shape("complex", (real.shape, imag.shape))
        real, imag = expand_to(real, shape), expand_to(imag, shape)
    return _complex(real, imag)


@declare(method=True, numpy="conjugate", standard=True)
def conj(input: Tensor) -> Tensor:
    """Return the complex conjugates as a copy (in PyTorch, a view); return a real tensor itself.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return conjugate(input)


@declare(in_place=True)
def conj_physical(input: Tensor) -> Tensor:
    """Return the complex conjugates as a copy; return a real tensor itself.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return conjugate(input)


@declare(method=True)
def is_conj(input: Tensor) -> bool:
    """Return False: `conj` conjugates at once (PyTorch's `conj` only marks the tensor).

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        False.
    """
    return False


@declare(method=True)
def is_neg(input: Tensor) -> bool:
    """Return False: no tensor is only marked as negated.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    bool
        False.
    """
    return False


@declare(method=True, numpy=True)
def isreal(input: Tensor) -> Tensor:
    """Return whether elements have no imaginary part.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of bool, of the shape of `input`.
    """
    if input.is_complex():
        return imag(input.detach()) == 0
    return ones_like(input, dtype=dtypes.bool_)


@declare(method=True)
def resolve_neg(input: Tensor) -> Tensor:
    """Return the tensor itself: no tensor is only marked as negated.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        `input` itself.
    """
    return input


@declare(method=True)
def resolve_conj(input: Tensor) -> Tensor:
    """Return the tensor itself: `conj` conjugates at once (PyTorch's `conj` only marks the tensor).

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        `input` itself.
    """
    return input


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Return the complex numbers with these absolute values and angles.

    Parameters
    ----------
    abs : Tensor
        Absolute values, of float32 or float64.
    angle : Tensor
        Angles in radians, of the same dtype.

    Returns
    -------
    Tensor
        Of complex64 or complex128.

    Raises
    ------
    DtypeError
        If the dtypes differ, or are others.
    ShapeError
        If the shapes do not broadcast.
    """
    return complex(arithmetic.mul(abs, trigonometry.cos(angle)), arithmetic.mul(abs, trigonometry.sin(angle)))


@declare(method=True, numpy=True)
def angle(input: Tensor) -> Tensor:
    """Return the angle of each element in radians; a real element has the angle π if negative, else 0.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Real, of the shape of `input`.
    """
    if input.is_complex():
        return trigonometry.atan2(imag(input), real(input))
    if dtypes.category(input.dtype) < 2:
        input = to_dtype(input, dtypes.get_default_dtype())
    zero = arithmetic.floor(clamp_where.clamp(input, 0, 0))  # NaN for NaN, and without a slope
    return clamp_where.where(input < 0, math.pi, zero)  # type: ignore[no-any-return]


@declare(method=True)
def adjoint(input: Tensor) -> Tensor:
    """Return the conjugate transpose of the last two dimensions.

    Parameters
    ----------
    input : Tensor
        Of shape (..., m, n).

    Returns
    -------
    Tensor
        Of shape (..., n, m).

    Raises
    ------
    ShapeError
        If `input` has fewer than two dimensions.
    """
    if input.ndim < 2:
        raise ShapeError(f"adjoint: got a tensor of shape {input.shape}; tensor.adjoint() is only for matrices")
    return conj(transpose(input, -2, -1))
