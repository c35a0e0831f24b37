"""The Fourier transforms of the array API standard, 2024.12; gradients are those of `spillgrad.fft`.

Source: https://data-apis.org/array-api/2024.12/extensions/fourier_transform_functions.html
"""

from collections.abc import Callable
from typing import Any

from spillgrad.array_api.wrapping import called
from spillgrad.ops import convert, docstrings, fourier
from spillgrad.tensor import Tensor

_X = "x : Tensor\n    Of at least one dimension."
_NORM = """norm : {"backward", "forward", "ortho"}, default "backward"
    Which transform is divided by the number of elements, or both by its square root."""
_NAMES = {"input": "x", "dim": "axis"}


def _along_one(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def transform(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        return function(x, n, axis, norm)

    n = "n : int, optional\n    Number of elements, as in `sg.fft`."
    axis = "axis : int, default -1\n    Dimension to transform."
    return called(transform, function, _X, n, axis, _NORM, returns=docstrings.returns_of(function, _NAMES))


def _along_several(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def transform(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return function(x, s, axes, norm)

    s = "s : tuple of int, optional\n    Number of elements along each dimension, as in `sg.fft`."
    axes = (
        "axes : tuple of int, optional\n    Dimensions to transform; by default, the last, one for each of `s`, or all."
    )
    return called(transform, function, _X, s, axes, _NORM, returns=docstrings.returns_of(function, _NAMES))


fft, ifft = _along_one(fourier.fft), _along_one(fourier.ifft)
rfft, irfft = _along_one(fourier.rfft), _along_one(fourier.irfft)
hfft, ihfft = _along_one(fourier.hfft), _along_one(fourier.ihfft)
fftn, ifftn = _along_several(fourier.fftn), _along_several(fourier.ifftn)
rfftn, irfftn = _along_several(fourier.rfftn), _along_several(fourier.irfftn)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
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
    return convert.to(fourier.fftfreq(n, d, dtype=dtype), device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
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
    return convert.to(fourier.rfftfreq(n, d, dtype=dtype), device=device)


def fftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """Return the elements with frequency zero moved to the middle.

    Parameters
    ----------
    x : Tensor
        Result of a transform such as `fft`.
    axes : int or tuple of int, optional
        Dimensions to shift; by default, all.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return fourier.fftshift(x, axes)


def ifftshift(x: Tensor, /, *, axes: Any = None) -> Tensor:
    """Undo `fftshift`.

    Parameters
    ----------
    x : Tensor
        Result of `fftshift`.
    axes : int or tuple of int, optional
        Dimensions to shift; by default, all.

    Returns
    -------
    Tensor
        Of the shape of `x`.
    """
    return fourier.ifftshift(x, axes)


__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip
