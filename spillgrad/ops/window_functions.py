"""Window functions for spectra: the weight of each of some evenly spaced points.

A periodic window, the default, is a symmetric window of one more point, without its last point: it continues at its
beginning.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import as_device, moved
from spillgrad.errors import ArgumentError, DtypeError
from spillgrad.tensor import Tensor

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


def _window(
    name: str, length: int, periodic: bool, values: Callable[[np.ndarray], np.ndarray], dtype: Any, device: Any,
    requires_grad: bool,
) -> Tensor:  # fmt: skip
    """Return the window `values(x)` for `length` points x from 0 to 1; a periodic window ends before 1."""
    place = as_device(device)
    wanted = dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)
    if not dtypes.is_floating_point(wanted):
        raise DtypeError(f"{name}: got dtype {wanted}; windows are of floating-point numbers")
    if length < 0:
        raise ArgumentError(f"{name}: requires non-negative window_length, got window_length={length}")
    places = np.arange(length) / max(length if periodic else length - 1, 1)
    found = (values(places) if length > 1 else np.ones(length)).astype(wanted)
    result = Tensor.wrap(moved(found, place))
    return result.requires_grad_() if requires_grad else result


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Any = None,
    device: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return alpha - beta cos(2πx) for points x from 0 to 1.

    Parameters
    ----------
    window_length : int
        Number of points.
    periodic : bool, default True
        Whether x ends before 1, so that the window continues at its beginning.
    alpha : float, default 0.54
        The mean of the window.
    beta : float, default 0.46
        The factor of the cosine.
    dtype : dtype, optional
        Data type of the result, of floating-point numbers; by default, the default dtype.
    device : device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Of shape (window_length,).

    Raises
    ------
    ArgumentError
        If `window_length` is negative.
    DtypeError
        If `dtype` is not of floating-point numbers.
    """
    return _window(
        "hamming_window", window_length, periodic, lambda x: alpha - beta * np.cos(2 * np.pi * x), dtype, device,
        requires_grad,
    )  # fmt: skip


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return (1 - cos(2πx)) / 2 for points x from 0 to 1.

    Parameters
    ----------
    window_length : int
        Number of points.
    periodic : bool, default True
        Whether x ends before 1, so that the window continues at its beginning.
    dtype : dtype, optional
        Data type of the result, of floating-point numbers; by default, the default dtype.
    device : device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Of shape (window_length,).

    Raises
    ------
    ArgumentError
        If `window_length` is negative.
    DtypeError
        If `dtype` is not of floating-point numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> [round(w, 4) for w in sg.hann_window(4).tolist()]
    [0.0, 0.5, 1.0, 0.5]
    """
    return _window(
        "hann_window", window_length, periodic, lambda x: 0.5 - 0.5 * np.cos(2 * np.pi * x), dtype, device,
        requires_grad,
    )  # fmt: skip


def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return 0.42 - 0.5 cos(2πx) + 0.08 cos(4πx) for points x from 0 to 1.

    Parameters
    ----------
    window_length : int
        Number of points.
    periodic : bool, default True
        Whether x ends before 1, so that the window continues at its beginning.
    dtype : dtype, optional
        Data type of the result, of floating-point numbers; by default, the default dtype.
    device : device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Of shape (window_length,).

    Raises
    ------
    ArgumentError
        If `window_length` is negative.
    DtypeError
        If `dtype` is not of floating-point numbers.
    """
    return _window(
        "blackman_window", window_length, periodic,
        lambda x: 0.42 - 0.5 * np.cos(2 * np.pi * x) + 0.08 * np.cos(4 * np.pi * x), dtype, device, requires_grad,
    )  # fmt: skip


def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return ``1 - |2x - 1|`` for points x from 0 to 1.

    Parameters
    ----------
    window_length : int
        Number of points.
    periodic : bool, default True
        Whether x ends before 1, so that the window continues at its beginning.
    dtype : dtype, optional
        Data type of the result, of floating-point numbers; by default, the default dtype.
    device : device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Of shape (window_length,).

    Raises
    ------
    ArgumentError
        If `window_length` is negative.
    DtypeError
        If `dtype` is not of floating-point numbers.
    """
    return _window(
        "bartlett_window", window_length, periodic, lambda x: 1 - np.abs(2 * x - 1), dtype, device, requires_grad
    )


def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Any = None, device: Any = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Return I0(beta sqrt(1 - (2x - 1)²)) / I0(beta) for points x from 0 to 1.

    Parameters
    ----------
    window_length : int
        Number of points.
    periodic : bool, default True
        Whether x ends before 1, so that the window continues at its beginning.
    beta : float, default 12.0
        Shape of the window; larger numbers make it narrower.
    dtype : dtype, optional
        Data type of the result, of floating-point numbers; by default, the default dtype.
    device : device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Of shape (window_length,).

    Raises
    ------
    ArgumentError
        If `window_length` is negative.
    DtypeError
        If `dtype` is not of floating-point numbers.
    """
    return _window(
        "kaiser_window", window_length, periodic,
        lambda x: np.i0(beta * np.sqrt(np.maximum(1 - (2 * x - 1) ** 2, 0))) / np.i0(beta), dtype, device,
        requires_grad,
    )  # fmt: skip
