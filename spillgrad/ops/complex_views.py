"""Complex numbers as pairs of real ones and back, over the same memory; and conjugates.

Other families need these: derivatives conjugate, and graphs of views lead from real to complex tensors.
"""

from collections.abc import Callable

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError, ShapeError
from spillgrad.ops.declaration import declare
from spillgrad.ops.operation import operation
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.device_array import zeros_beside
from spillgrad_kernels.tables.complex_derivatives import COMPLEX_ROWS

__all__ = ["imag", "real", "view_as_complex", "view_as_real"]

COMPLEX_OF = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}
REALS = {kind: real for real, kind in COMPLEX_OF.items()}


def as_pairs(self: np.ndarray) -> np.ndarray:
    """Return a view of an array of complex numbers: their real and imaginary parts along a new last dimension."""
    return self[..., None].view(REALS[self.dtype])


def _as_numbers(self: np.ndarray) -> np.ndarray:
    return self.view(COMPLEX_OF[self.dtype])[..., 0]


_view_as_real: Callable[..., Tensor] = operation(
    "view_as_real", as_pairs, view=True, self=lambda g: as_numbers(g)
)  # fmt: skip
_view_as_complex: Callable[..., Tensor] = operation(
    "view_as_complex", _as_numbers, view=True, self=lambda g: _view_as_real(g)
)


def as_numbers(pairs: Tensor) -> Tensor:
    """Return the complex numbers whose parts lie along the last dimension, as a view if the strides allow one."""
    strides = pairs._array.strides
    is_dense = strides[-1] == pairs.itemsize and all([stride % (2 * pairs.itemsize) == 0 for stride in strides[:-1]])
    return _view_as_complex(pairs if is_dense else _copied(pairs))


_copied: Callable[..., Tensor] = operation("clone", lambda self: self.copy(), self=lambda g: g)


def view_as_real(input: Tensor) -> Tensor:
    """Return a view of the real and imaginary parts along a new last dimension.

    Parameters
    ----------
    input : Tensor
        Complex, of shape (...).

    Returns
    -------
    Tensor
        Of shape (..., 2).

    Raises
    ------
    DtypeError
        If `input` is real.
    """
    if not input.is_complex():
        raise DtypeError(f"view_as_real: got {input.dtype}; it is only supported for complex tensors")
    return _view_as_real(input)


def view_as_complex(input: Tensor) -> Tensor:
    """Return a view of the pairs (real, imag) in the last dimension as complex numbers.

    Parameters
    ----------
    input : Tensor
        Of float32 or float64, of shape (..., 2).

    Returns
    -------
    Tensor
        Of shape (...).

    Raises
    ------
    DtypeError
        If `input` has another dtype.
    ShapeError
        If the last dimension has another size or stride, or the pairs do not lie at multiples of their size.
    """
    if input.dtype not in COMPLEX_OF:
        raise DtypeError(f"view_as_complex: got {input.dtype}; it is only supported for float32 and float64 tensors")
    shape, name = input.shape, "view_as_complex: Tensor must have"
    if not shape or shape[-1] != 2:
        what = f"a last dimension of size 2, but got {shape}" if shape else "one or more dimensions"
        raise ShapeError(f"{name} {what}")
    *steps, last = input.stride()
    if last != 1:
        raise ShapeError(f"{name} a last dimension with stride 1, but got {last}; use contiguous()")
    if any(step % 2 for step in steps):
        raise ShapeError(f"{name} a stride divisible by 2 for all but last dimension; use contiguous()")
    if input.storage_offset() % 2:
        raise ShapeError(f"{name} a storage_offset divisible by 2; use clone()")
    return _view_as_complex(input)


_conj: Callable[..., Tensor] = operation(
    "conj", lambda self: elementwise(COMPLEX_ROWS["conj"].forward, "conj", [self], self.dtype), self=lambda g: _conj(g)
)


def conjugate(tensor: Tensor) -> Tensor:
    """Return the conjugates of complex numbers as a copy; return a real tensor itself."""
    return _conj(tensor) if tensor._array.dtype.kind == "c" else tensor


def _part(index: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda self: as_pairs(self)[..., index]


def _widened(part: np.ndarray, index: int) -> np.ndarray:
    out = zeros_beside(part, part.shape, COMPLEX_OF[part.dtype])
    as_pairs(out)[..., index] = part
    return out


_real: Callable[..., Tensor] = operation("real", _part(0), view=True, self=lambda g: from_part(g, 0))
_imag: Callable[..., Tensor] = operation("imag", _part(1), view=True, self=lambda g: from_part(g, 1))
_real.node_name = _imag.node_name = "SelectBackward0"  # type: ignore[attr-defined]  # as PyTorch: of `view_as_real`
_from_part: Callable[..., Tensor] = operation("from_part", _widened, part=lambda g, index: (_real, _imag)[index](g))


def from_part(part: Tensor, index: int) -> Tensor:
    """Return complex numbers with `part` as their real (index 0) or imaginary (1) parts, and zeros as the others."""
    return _from_part(part, index)


@declare(numpy=True, standard=True)
def real(input: Tensor) -> Tensor:
    """Return a view of the real parts; return a real tensor itself.

    Parameters
    ----------
    input : Tensor
        Of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    return _real(input) if input.is_complex() else input


@declare(numpy=True, standard=True)
def imag(input: Tensor) -> Tensor:
    """Return a view of the imaginary parts.

    Parameters
    ----------
    input : Tensor
        Complex, of any shape.

    Returns
    -------
    Tensor
        Of the shape of `input`.

    Raises
    ------
    DtypeError
        If `input` is real.
    """
    if not input.is_complex():
        raise DtypeError(f"imag: got {input.dtype}; it is not implemented for tensors with non-complex dtypes")
    return _imag(input)
