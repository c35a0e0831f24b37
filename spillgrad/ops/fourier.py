"""Discrete Fourier transforms, computed by NumPy. Each is linear, and its derivative is another transform."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops import docstrings
from spillgrad.ops.arithmetic import mul
from spillgrad.ops.complex_views import COMPLEX_OF, conjugate, real
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.join_split import narrow
from spillgrad.ops.operation import operation
from spillgrad.ops.padding import pad
from spillgrad.ops.rearrange import roll
from spillgrad.ops.shape import as_tuple, normalize_dims
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import beside

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Shape = tuple[int, ...]
Dims = int | Sequence[int] | None
# The `norm` of the adjoint of a transform: the adjoint is a transform in the other direction.
_ADJOINT = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _as_transformed(array: np.ndarray, like: np.ndarray, is_real: bool) -> np.ndarray:
    """Return the transform `array`, real or complex, in the precision of the array `like` that was transformed."""
    double = like.dtype in (np.float64, np.complex128)
    kinds = (np.float32, np.float64) if is_real else (np.complex64, np.complex128)
    return np.ascontiguousarray(array, kinds[double])


def _complex_forward(self: np.ndarray, dims: Shape, norm: str, inverse: bool) -> np.ndarray:
    function = np.fft.ifftn if inverse else np.fft.fftn
    return _as_transformed(function(self, axes=dims, norm=norm), self, False)  # type: ignore[arg-type]


def _half_forward(self: np.ndarray, dims: Shape, norm: str) -> np.ndarray:
    return _as_transformed(np.fft.rfftn(self, axes=dims, norm=norm), self, False)  # type: ignore[arg-type]


def _real_forward(self: np.ndarray, dims: Shape, norm: str, size: int) -> np.ndarray:
    sizes = [*(self.shape[d] for d in dims[:-1]), size]
    return _as_transformed(np.fft.irfftn(self, sizes, dims, norm), self, True)  # type: ignore[arg-type]


_fft_c2c: Callable[..., Tensor] = operation(
    "fft_c2c", _complex_forward,
    self=lambda g, dims, norm, inverse: _fft_c2c(g, dims, _ADJOINT[norm], not inverse),
)  # fmt: skip


def _by_half(g: Tensor, dims: Shape, norm: str, self_shape: Shape) -> Tensor:
    size = self_shape[dims[-1]]
    full = _resized(g, dims[-1], size)
    return real(_fft_c2c(full, dims, _ADJOINT[norm], True))


def _by_real(g: Tensor, dims: Shape, norm: str, self_shape: Shape, size: int) -> Tensor:
    """Return the gradient of the real inverse transform; a value that stands for two of the spectrum counts twice."""
    along = dims[-1]
    half = _fft_r2c(g, dims, _ADJOINT[norm])
    twice = np.full(half.shape[along], 2.0, g.numpy_dtype)
    twice[0] = 1
    if size % 2 == 0:
        twice[-1] = 1
    weights = twice.reshape(-1, *(1,) * (half.ndim - along - 1))
    return _resized(mul(half, Tensor.wrap(beside(half.array, weights))), along, self_shape[along])


_fft_r2c: Callable[..., Tensor] = operation("fft_r2c", _half_forward, self=_by_half)
_fft_c2r: Callable[..., Tensor] = operation("fft_c2r", _real_forward, self=_by_real)


def _resized(x: Tensor, dim: int, size: int) -> Tensor:
    """Return a tensor trimmed or zero-padded to `size` along one dimension."""
    missing = size - x.shape[dim]
    if missing < 0:
        return narrow(x, dim, 0, size)
    return pad(x, (0, 0) * (x.ndim - dim - 1) + (0, missing)) if missing else x


def _known_norm(name: str, norm: str | None) -> str:
    norm = "backward" if norm is None else norm
    if norm not in _ADJOINT:
        raise ArgumentError(f'{name}: got norm {norm!r}; accepted are "backward", "forward" and "ortho"')
    return norm


def _checked(
    name: str, input: Tensor, s: Any, dim: Dims, norm: str | None, by_default: Shape | None
) -> tuple[Tensor, Shape, tuple[int, ...] | None, str]:  # fmt: skip
    """Check the arguments; return (operand in a dtype that has transforms, dimensions, sizes or None, norm)."""
    norm = _known_norm(name, norm)
    if not input.is_complex() and input.dtype != dtypes.float64:
        input = to_dtype(input, dtypes.float32)
    if not input.ndim:
        raise ShapeError(f"{name}: got a 0-d tensor; it has no dimension to transform")
    sizes = None if s is None else as_tuple(s)
    if dim is None:
        dim = by_default
        if dim is None:
            dim = tuple(range(input.ndim)) if sizes is None else tuple(range(-len(sizes), 0))
    dims = normalize_dims(name, dim, input.ndim)
    if sizes is not None and len(sizes) != len(dims):
        raise ArgumentError(f"{name}: got sizes {s} for dimensions {dim}; give one for each")
    if min([input.shape[d] for d in dims] if sizes is None else sizes, default=0) < 1:
        raise ShapeError(f"{name}: got input {input.shape} and sizes {s}; there must be data points in each dimension")
    return input, dims, sizes, norm


def _transform(name: str, input: Tensor, s: Any, dim: Dims, norm: Any, default: Any, inverse: bool = False) -> Tensor:
    x, dims, sizes, norm = _checked(name, input, s, dim, norm, default)
    for d, size in zip(dims, sizes or (), strict=False):
        x = _resized(x, d, size)
    x = to_dtype(x, COMPLEX_OF.get(x.dtype, x.dtype))
    return _fft_c2c(x, dims, norm, inverse)


_inverse = functools.partial(_transform, inverse=True)


def _half(name: str, input: Tensor, s: Any, dim: Dims, norm: Any, default: Any) -> Tensor:
    if input.is_complex():
        raise DtypeError(f"{name}: expects a real input tensor, but got {input.dtype}")
    x, dims, sizes, norm = _checked(name, input, s, dim, norm, default)
    for d, size in zip(dims, sizes or (), strict=False):
        x = _resized(x, d, size)
    return _fft_r2c(x, dims, norm)


def _real(name: str, input: Tensor, s: Any, dim: Dims, norm: Any, default: Any) -> Tensor:
    x, dims, sizes, norm = _checked(name, input, s, dim, norm, default)
    x = to_dtype(x, COMPLEX_OF.get(x.dtype, x.dtype))
    for d, size in zip(dims[:-1], sizes or (), strict=False):
        x = _resized(x, d, size)
    size = 2 * (x.shape[dims[-1]] - 1) if sizes is None else sizes[-1]
    if size < 1:
        raise ShapeError(f"{name}: got input {input.shape}, which stands for {size} data points; give their number")
    return _fft_c2r(_resized(x, dims[-1], size // 2 + 1), dims, norm, size)


def _other_way(name: str, norm: str | None) -> str:
    return _ADJOINT[_known_norm(name, norm)]


def _hermitian(name: str, input: Tensor, s: Any, dim: Dims, norm: Any, default: Any) -> Tensor:
    """Return `hfft` of half a sequence: the real inverse transform of its conjugate, with `norm` for the other way."""
    return _real(name, conjugate(input), s, dim, _other_way(name, norm), default)


def _inverse_hermitian(name: str, input: Tensor, s: Any, dim: Dims, norm: Any, default: Any) -> Tensor:
    return conjugate(_half(name, input, s, dim, _other_way(name, norm), default))


class _Kind(NamedTuple):
    """What the docstrings of transforms say of the input, of the numbers of elements and of the result."""

    input: str
    size: str
    sizes: str
    returns: str


_SIZE = "Number of elements to transform: further ones are dropped, missing ones are 0. By default, all."
_SIZES = "Numbers of elements to transform along each dimension: further ones are dropped, missing ones are 0."
_KINDS = {
    _transform: _Kind("Of real or complex numbers.", _SIZE, _SIZES, "Complex, of the shape of the data transformed."),
    _half: _Kind("Of real numbers.", _SIZE, _SIZES, "Complex; the last dimension transformed has n // 2 + 1 elements."),
    _real: _Kind(
        "Half a spectrum, of complex numbers.",
        "Number of elements of the result; by default, ``2 * (size - 1)``.",
        "Sizes of the result; by default, the last is ``2 * (size - 1)``, and the others are those of the input.",
        "Real, of these sizes along the dimensions transformed.",
    ),
}
_KINDS |= {_inverse: _KINDS[_transform], _hermitian: _KINDS[_real], _inverse_hermitian: _KINDS[_half]}
_NORM = """norm : {"backward", "forward", "ortho"}, optional
    Which transform is divided by the number of elements: "backward", the default, the inverse one; "forward" the
    forward one; "ortho" both by its square root."""
_RAISES = """ShapeError
    If there is no dimension, or no element to transform.
DtypeError
    If the dtype has no such transform.
ArgumentError
    If `norm` is another word, or the numbers of sizes and dimensions differ."""


def _docstring(summary: str, kind: _Kind, *parameters: str) -> str:
    return docstrings.composed(
        summary, f"input : Tensor\n    {kind.input}", *parameters, _NORM, returns=f"Tensor\n    {kind.returns}",
        raises=_RAISES,
    )  # fmt: skip


def _along_one(name: str, transform: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, n, dim, norm, None)

    kind = _KINDS[transform]
    size = f"n : int, optional\n    {kind.size}"
    dimension = "dim : int, default -1\n    Dimension to transform."
    return named(function, name, _docstring(doc, kind, size, dimension))


def _along_several(
    name: str, transform: Callable[..., Tensor], doc: str, default: Shape | None = None
) -> Callable[..., Tensor]:
    def function(input: Tensor, s: Any = None, dim: Dims = default, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, s, dim, norm, default)

    kind = _KINDS[transform]
    size = f"s : sequence of int, optional\n    {kind.sizes}"
    which = "default (-2, -1)" if default else "optional"
    more = "" if default else "; by default, the last ones, as many as `s` has, or all"
    dimensions = f"dim : int or sequence of int, {which}\n    Dimensions to transform{more}."
    return named(function, name, _docstring(doc, kind, size, dimensions))


def _along_two(name: str, transform: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    return _along_several(name, transform, doc, (-2, -1))


fft = _along_one("fft", _transform, "Return the Fourier transform along a dimension.")
ifft = _along_one("ifft", _inverse, "Return the inverse Fourier transform along a dimension.")
rfft = _along_one("rfft", _half, "Return the first half of the Fourier transform of real numbers.")
irfft = _along_one("irfft", _real, "Return the real numbers whose `rfft` this is.")
hfft = _along_one(
    "hfft", _hermitian,
    "Return the real Fourier transform of a sequence that is its own reversed conjugate, given half of it.",
)  # fmt: skip
ihfft = _along_one("ihfft", _inverse_hermitian, "Return half of the numbers whose `hfft` these real ones are.")
fft2 = _along_two("fft2", _transform, "Return the Fourier transform over two dimensions.")
ifft2 = _along_two("ifft2", _inverse, "Return the inverse Fourier transform over two dimensions.")
rfft2 = _along_two("rfft2", _half, "Return half the Fourier transform of real numbers over two dimensions.")
irfft2 = _along_two("irfft2", _real, "Return the real numbers whose `rfft2` this is.")
hfft2 = _along_two(
    "hfft2",
    _hermitian,
    "Return the real Fourier transform over two dimensions, given half a sequence (see `hfft`).",
)
ihfft2 = _along_two("ihfft2", _inverse_hermitian, "Return half of the numbers whose `hfft2` these real ones are.")
fftn = _along_several("fftn", _transform, "Return the Fourier transform over several dimensions.")
ifftn = _along_several("ifftn", _inverse, "Return the inverse Fourier transform over several dimensions.")
rfftn = _along_several("rfftn", _half, "Return half the Fourier transform of real numbers over several dimensions.")
irfftn = _along_several("irfftn", _real, "Return the real numbers whose `rfftn` this is.")
hfftn = _along_several(
    "hfftn", _hermitian,
    "Return the real Fourier transform over several dimensions, given half a sequence (see `hfft`).",
)  # fmt: skip
ihfftn = _along_several("ihfftn", _inverse_hermitian, "Return half of the numbers whose `hfftn` these real ones are.")
for _function in (fft2, ifft2, rfft2, irfft2):
    declare(numpy=f"fft.{_function.__name__}")(_function)


def _frequencies(values: np.ndarray, dtype: Any, device: Any) -> Tensor:
    wanted = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return Tensor.wrap(moved(values.astype(wanted), as_device(device)))


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies that the elements of `fft` stand for.

    Parameters
    ----------
    n : int
        Number of points.
    d : float, default 1.0
        Distance of neighbouring points.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape (n,).
    """
    return _frequencies(np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies that the elements of `rfft` stand for.

    Parameters
    ----------
    n : int
        Number of points.
    d : float, default 1.0
        Distance of neighbouring points.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.

    Returns
    -------
    Tensor
        Of shape (n // 2 + 1,).
    """
    return _frequencies(np.fft.rfftfreq(n, d), dtype, device)


def fftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """Return the elements with frequency zero moved to the middle.

    Parameters
    ----------
    input : Tensor
        Result of a transform such as `fft`.
    dim : int or sequence of int, optional
        Dimensions to shift; by default, all.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    dims = normalize_dims("fft.fftshift", tuple(range(input.ndim)) if dim is None else dim, input.ndim)
    return roll(input, [input.shape[d] // 2 for d in dims], dims)


def ifftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """Undo `fftshift`.

    Parameters
    ----------
    input : Tensor
        Result of `fftshift`.
    dim : int or sequence of int, optional
        Dimensions to shift; by default, all.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    dims = normalize_dims("fft.ifftshift", tuple(range(input.ndim)) if dim is None else dim, input.ndim)
    return roll(input, [-(input.shape[d] // 2) for d in dims], dims)
