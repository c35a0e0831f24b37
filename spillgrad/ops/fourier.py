"""Discrete Fourier transforms, computed by NumPy. Each is linear, and its derivative is another transform."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
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


def _along_one(name: str, transform: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, n, dim, norm, None)

    return named(function, name, doc)


def _along_several(
    name: str, transform: Callable[..., Tensor], doc: str, default: Shape | None = None
) -> Callable[..., Tensor]:
    def function(input: Tensor, s: Any = None, dim: Dims = default, norm: str | None = None) -> Tensor:
        return transform(f"fft.{name}", input, s, dim, norm, default)

    return named(function, name, doc)


def _along_two(name: str, transform: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    return _along_several(name, transform, doc, (-2, -1))


_FFT = """Return the Fourier transform along a dimension, trimmed or filled up to `n` before.

    `norm` says which transform is divided by n: "backward" the inverse, "forward" this one, "ortho" both by its root.
    Shapes: a real or complex input gives a complex result of its shape, with n along `dim`.
    Raises ShapeError, DtypeError, ArgumentError.
    """
_HFFT = """Return the real Fourier transform of a sequence that is its own reversed conjugate, given half of it.

    It has n elements, by default 2 · (size - 1). See `fft`.
    """
fft = _along_one("fft", _transform, _FFT)
ifft = _along_one("ifft", _inverse, "Return the inverse Fourier transform along a dimension (see `fft`).")
rfft = _along_one(
    "rfft", _half, "Return the first n // 2 + 1 elements of the Fourier transform of real numbers (see `fft`)."
)
irfft = _along_one(
    "irfft", _real, "Return the real numbers whose `rfft` this is; n of them, by default 2 · (size - 1)."
)
hfft = _along_one("hfft", _hermitian, _HFFT)
ihfft = _along_one(
    "ihfft", _inverse_hermitian, "Return the numbers whose `hfft` these real ones are: the first n // 2 + 1 of them."
)
fft2 = _along_two("fft2", _transform, "Return the Fourier transform over two dimensions (see `fft`).")
ifft2 = _along_two("ifft2", _inverse, "Return the inverse Fourier transform over two dimensions (see `fft`).")
rfft2 = _along_two(
    "rfft2", _half, "Return half the Fourier transform of real numbers over two dimensions (see `rfft`)."
)
irfft2 = _along_two("irfft2", _real, "Return the real numbers whose `rfft2` this is (see `irfft`).")
hfft2 = _along_two(
    "hfft2", _hermitian, "Return the real Fourier transform over two dimensions of half a spectrum (see `hfft`)."
)
ihfft2 = _along_two("ihfft2", _inverse_hermitian, "Return the numbers whose `hfft2` these real ones are (see `ihfft`).")
fftn = _along_several(
    "fftn", _transform, "Return the Fourier transform over several dimensions, all by default (see `fft`)."
)
ifftn = _along_several(
    "ifftn", _inverse, "Return the inverse Fourier transform over several dimensions, all by default (see `fft`)."
)
rfftn = _along_several(
    "rfftn", _half, "Return half the Fourier transform of real numbers over several dimensions (see `rfft`)."
)
irfftn = _along_several("irfftn", _real, "Return the real numbers whose `rfftn` this is (see `irfft`).")
hfftn = _along_several(
    "hfftn", _hermitian,
    "Return the real Fourier transform over several dimensions, all by default, of half a spectrum (see `hfft`).",
)  # fmt: skip
ihfftn = _along_several(
    "ihfftn", _inverse_hermitian, "Return the numbers whose `hfftn` these real ones are (see `ihfft`)."
)
for _function in (fft2, ifft2, rfft2, irfft2):
    declare(numpy=f"fft.{_function.__name__}")(_function)


def _frequencies(values: np.ndarray, dtype: Any, device: Any) -> Tensor:
    wanted = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    return Tensor.wrap(moved(values.astype(wanted), as_device(device)))


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of `fft` for n points that are `d` apart."""
    return _frequencies(np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return the frequencies of `rfft` for n points that are `d` apart."""
    return _frequencies(np.fft.rfftfreq(n, d), dtype, device)


def fftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """Return the elements with frequency zero moved to the middle, along all dimensions by default."""
    dims = normalize_dims("fft.fftshift", tuple(range(input.ndim)) if dim is None else dim, input.ndim)
    return roll(input, [input.shape[d] // 2 for d in dims], dims)


def ifftshift(input: Tensor, dim: Dims = None) -> Tensor:
    """Undo `fftshift`."""
    dims = normalize_dims("fft.ifftshift", tuple(range(input.ndim)) if dim is None else dim, input.ndim)
    return roll(input, [-(input.shape[d] // 2) for d in dims], dims)
