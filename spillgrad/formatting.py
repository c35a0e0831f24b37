"""How tensors print: PyTorch's layout, four digits, long dimensions summarised."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes

_PRECISION = 4
_EDGE_ITEMS = 3
_THRESHOLD = 1000
_LINE_WIDTH = 80


def format_tensor(array: np.ndarray, suffixes: list[str]) -> str:
    """Return `tensor(...)` for an array, `suffixes` (such as `requires_grad=True`) behind the values."""
    prefix = "tensor("
    body = "[]" if array.size == 0 else _nested(array, len(prefix), _formatter(array))
    if array.size == 0 and array.shape != (0,):
        suffixes = [f"size={array.shape}", *suffixes]
    if array.dtype not in (dtypes.get_default_dtype(), dtypes.int64, dtypes.bool_) or (
        array.size == 0 and array.dtype != dtypes.get_default_dtype()
    ):
        suffixes = [*suffixes[:-1], f"dtype={array.dtype}", *suffixes[-1:]] if suffixes else [f"dtype={array.dtype}"]
    text = prefix + body
    position = len(text) - text.rfind("\n") - 1
    for suffix in suffixes:
        if position + len(suffix) + 2 > _LINE_WIDTH:
            text += ",\n" + " " * len(prefix) + suffix
            position = len(prefix) + len(suffix)
        else:
            text += ", " + suffix
            position += len(suffix) + 2
    return text + ")"


def _shown(array: np.ndarray) -> np.ndarray:
    """The values that will be printed: all, or the edges of long dimensions."""
    if array.size <= _THRESHOLD:
        return array
    for axis, size in enumerate(array.shape):
        if size > 2 * _EDGE_ITEMS:
            edges = [*range(_EDGE_ITEMS), *range(size - _EDGE_ITEMS, size)]
            array = np.take(array, edges, axis)
    return array


def _formatter(array: np.ndarray) -> Callable[[Any], str]:
    values = _shown(array).reshape(-1)
    if dtypes.is_floating_point(array.dtype):
        number = _float_format(values.astype(np.float64))
    elif dtypes.is_complex(array.dtype):
        real, imaginary = (
            _float_format(values.real.astype(np.float64)),
            _float_format(np.abs(values.imag).astype(np.float64)),
        )

        def number(value: Any) -> str:
            return real(value.real) + ("-" if value.imag < 0 else "+") + imaginary(abs(value.imag)) + "j"
    else:
        number = str
    width = max((len(number(v)) for v in values), default=0) if array.ndim else 0
    return lambda value: number(value).rjust(width)


def _float_format(values: np.ndarray) -> Callable[[Any], str]:
    finite = np.abs(values[np.isfinite(values) & (values != 0)])
    if finite.size == 0:
        return lambda value: f"{value:.0f}." if math.isfinite(value) else str(float(value))
    smallest, largest = finite.min(), finite.max()
    whole = bool(np.all(finite == np.ceil(finite)))
    scientific = largest / smallest > 1000 or largest > 1e8 or (not whole and smallest < 1e-4)
    if whole and not (largest / smallest > 1000 or largest > 1e8):
        return lambda value: f"{value:.0f}." if math.isfinite(value) else str(float(value))
    if scientific:
        return lambda value: f"{value:.{_PRECISION}e}"
    return lambda value: f"{value:.{_PRECISION}f}"


def _nested(array: np.ndarray, indent: int, number: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return number(array[()])
    summarise = array.size > _THRESHOLD

    def level(part: np.ndarray, indent: int, long: bool) -> str:
        count = part.shape[0]
        cut = long and count > 2 * _EDGE_ITEMS
        picked = [*range(_EDGE_ITEMS), None, *range(count - _EDGE_ITEMS, count)] if cut else range(count)
        if part.ndim == 1:
            cells = ["..." if i is None else number(part[i]) for i in picked]
            width = max((len(c) for c in cells), default=1) + 2
            per_line = max(1, (_LINE_WIDTH - indent) // width)
            lines = [", ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
            return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
        pieces = ["..." if i is None else level(part[i], indent + 1, long) for i in picked]
        return "[" + ("," + "\n" * (part.ndim - 1) + " " * (indent + 1)).join(pieces) + "]"

    return level(array, indent, summarise)
