"""The text of tensors: PyTorch's layout, four digits, long dimensions summarised.

Source: PyTorch's `torch/_tensor_str.py`, whose rules this file follows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError


@dataclass
class _Options:
    """What `set_printoptions` sets. `scientific` is None if the numbers decide."""

    precision: int = 4
    threshold: float = 1000
    edge_items: int = 3
    line_width: int = 80
    scientific: bool | None = None


_options = _Options()
_PROFILES = {
    "default": _Options(),
    "short": _Options(precision=2, edge_items=2),
    "full": _Options(threshold=math.inf),
}


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None,
    linewidth: int | None = None, profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors are printed.

    Parameters
    ----------
    precision : int, optional
        Number of digits behind the point, 4 at first. None leaves it as it is, here and below.
    threshold : float, optional
        Number of elements, 1000 at first, above which a tensor is summarised.
    edgeitems : int, optional
        Number of elements, 3 at first, that a summary shows at both ends of long dimensions.
    linewidth : int, optional
        Number of characters in a line, 80 at first.
    profile : {"default", "short", "full"}, optional
        Options to begin with: those of the start; 2 digits and 2 elements at both ends; or all elements.
    sci_mode : bool, optional
        Whether to write numbers with an exponent. None lets the numbers decide.

    Raises
    ------
    ArgumentError
        For another profile.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.set_printoptions(precision=2)
    >>> sg.tensor([0.12345])
    tensor([0.12])
    >>> sg.set_printoptions(profile="default")
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ArgumentError(f"set_printoptions: got profile {profile!r}; wanted {', '.join(_PROFILES)}")
        vars(_options).update(vars(_PROFILES[profile]))
    given = {"precision": precision, "threshold": threshold, "edge_items": edgeitems, "line_width": linewidth}
    vars(_options).update({name: value for name, value in given.items() if value is not None})
    _options.scientific = sci_mode


@dataclass(frozen=True)
class _Column:
    """The format of the numbers of a tensor: the text that `write` makes of each, right-aligned to `width`."""

    write: Callable[[Any], str]
    width: int = 1

    def __call__(self, value: Any) -> str:
        return self.write(value).rjust(self.width)


def format_tensor(array: np.ndarray, *further: str) -> str:
    """Return the text `tensor(...)` of an array; the suffixes `further`, such as `requires_grad=True`, are put last."""
    prefix = "tensor("
    default = dtypes.get_default_dtype()
    suffixes = []
    if array.size == 0:
        if array.ndim != 1:
            suffixes.append(f"size={array.shape}")
        inferable = {default}
        body = "[]"
    else:
        inferable = {default, dtypes.int64, dtypes.bool_, dtypes.of_scalar(1j)}
        body = _nested(array, len(prefix))
    if array.dtype not in inferable:
        suffixes.append(f"dtype={array.dtype}")
    return _with_suffixes(prefix + body, [*suffixes, *further], len(prefix)) + ")"


def _with_suffixes(text: str, suffixes: list[str], indent: int) -> str:
    position = len(text) - text.rfind("\n") + 1
    for suffix in suffixes:
        if position + len(suffix) + 2 > _options.line_width:
            text += ",\n" + " " * indent + suffix
            position = indent + len(suffix)
        else:
            text += ", " + suffix
            position += len(suffix) + 2
    return text


def _shown(array: np.ndarray) -> np.ndarray:
    """Return the values that will be printed: all values, or only the ends of long dimensions if the array is large."""
    if array.size <= _options.threshold:
        return array
    edges = [*range(_options.edge_items), *range(-_options.edge_items, 0)]
    return array[np.ix_(*(edges if size > 2 * _options.edge_items else range(size) for size in array.shape))]


def _column(values: np.ndarray) -> _Column:
    if dtypes.is_floating_point(values.dtype):
        return _float_column(values.astype(np.float64))
    if dtypes.is_complex(values.dtype):
        real, imaginary = _float_column(values.real.astype(np.float64)), _float_column(values.imag.astype(np.float64))

        def write(value: Any) -> str:
            part = imaginary(value.imag).lstrip()
            return real(value.real) + ("" if part[0] == "-" else "+") + part + "j"

        return _Column(write, real.width + imaginary.width + 1)
    return _Column(str, max(len(str(value)) for value in values))


def _float_column(values: np.ndarray) -> _Column:
    """Return the format of floats. Only finite nonzero numbers determine the width, so NaN and inf may be wider."""
    finite = values[np.isfinite(values) & (values != 0)]
    whole = bool(np.all(finite == np.ceil(finite)))
    sizes = np.abs(finite)
    largest, smallest = sizes.max(initial=0.0), sizes.min(initial=math.inf)
    scientific = finite.size and (largest / smallest > 1000 or largest > 1e8 or (not whole and smallest < 1e-4))
    if scientific if _options.scientific is None else _options.scientific:

        def write(value: Any) -> str:
            return f"{float(value):.{_options.precision}e}"
    elif whole:

        def write(value: Any) -> str:
            return f"{float(value):.0f}" + ("." if math.isfinite(value) else "")
    else:

        def write(value: Any) -> str:
            return f"{float(value):.{_options.precision}f}"

    return _Column(write, max((len(write(value)) for value in finite), default=1))


def _nested(array: np.ndarray, indent: int) -> str:
    column = _column(_shown(array).reshape(-1))
    if array.ndim == 0:
        return column(array[()])
    summarise = array.size > _options.threshold

    def level(part: np.ndarray, indent: int) -> str:
        count = part.shape[0]
        picked: list[int | None] = list(range(count))
        if summarise and count > 2 * _options.edge_items:
            picked[_options.edge_items : -_options.edge_items] = [None]
        if part.ndim == 1:
            cells = [" ..." if i is None else column(part[i]) for i in picked]
            per_line = max(1, (_options.line_width - indent) // (column.width + 2))
            lines = [", ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
            return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
        pieces = ["..." if i is None else level(part[i], indent + 1) for i in picked]
        return "[" + ("," + "\n" * (part.ndim - 1) + " " * (indent + 1)).join(pieces) + "]"

    return level(array, indent)
