"""Comparison of tensors, arrays, numbers and nested containers of them, within tolerances that follow the dtype."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, NotCloseError, OperandError
from spillgrad.ops.creation import as_tensor
from spillgrad.tensor import Tensor

__all__ = ["assert_allclose", "assert_close"]

Path = tuple[Any, ...]  # the keys and indices that lead to an item

# dtype: (rtol, atol), as in PyTorch; the others are compared exactly.
_TOLERANCES = {
    dtypes.float16: (1e-3, 1e-5), dtypes.bfloat16: (1.6e-2, 1e-5), dtypes.float32: (1.3e-6, 1e-5),
    dtypes.float64: (1e-7, 1e-7), dtypes.complex64: (1.3e-6, 1e-5), dtypes.complex128: (1e-7, 1e-7),
}  # fmt: skip
_OF_NUMBERS: dict[type, Any] = {
    bool: dtypes.bool_,
    int: dtypes.int64,
    float: dtypes.float64,
    complex: dtypes.complex128,
}


@dataclasses.dataclass(frozen=True)
class _Checks:
    """What `assert_close` was asked to compare."""

    allow_subclasses: bool
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_device: bool
    check_dtype: bool
    check_layout: bool
    check_stride: bool

    def tolerances(self, *found: Any) -> "_Tolerances":
        """Return the tolerances for values of these dtypes: by default those of the less exact one."""
        if self.rtol is not None and self.atol is not None:
            return _Tolerances(self.rtol, self.atol)
        pairs = [_TOLERANCES.get(dtypes.as_dtype(dtype), (0.0, 0.0)) for dtype in found]
        return _Tolerances(*map(max, zip(*pairs, strict=True)))


class _Tolerances(NamedTuple):
    relative: float
    absolute: float

    def message(self, what: str, statistics: str, differences: Sequence[tuple[str, Any, str]]) -> str:
        """Return what differs: `differences` are ("absolute" or "relative", the greatest one, where)."""
        exact = self.relative == self.absolute == 0
        lines = [f"{what} are not {'equal' if exact else 'close'}!", "", statistics]
        for kind, size, where in differences:
            name = (
                f"Greatest {kind} difference: {size} at index {where}"
                if where
                else f"{kind.title()} difference: {size}"
            )
            tolerance = self.absolute if kind == "absolute" else self.relative
            lines.append(name if exact else f"{name} (up to {tolerance} allowed)")
        return "\n".join(lines)


class _Difference(Exception):
    """A difference that was found, or an error in what to compare."""

    def __init__(self, kind: type[Exception], says: str, path: Path = ()) -> None:
        super().__init__(says)
        self.kind, self.says, self.path = kind, says, path

    def error(self, said: str | Callable[[str], str] | None) -> Exception:
        """Return the error to raise; `said` replaces the message, or makes another of it."""
        says = self.says
        if self.path:
            says += f"\n\nThe failure occurred for item {''.join(f'[{key!r}]' for key in self.path)}"
        if said is None:
            return self.kind(says)
        return self.kind(said(says) if callable(said) else said)


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True,
    check_stride: bool = False, msg: str | Callable[[str], str] | None = None,
) -> None:  # fmt: skip
    """Raise an error unless ``|actual - expected| <= atol + rtol * |expected|`` everywhere.

    Shapes, lengths of sequences, keys of mappings, and types of items must agree, too.

    Parameters
    ----------
    actual, expected : Any
        Tensors, NumPy arrays, numbers or None, or sequences and mappings of them.
    allow_subclasses : bool, default True
        Whether one value may be of a subclass of the other's type.
    rtol, atol : float, optional
        Relative and absolute tolerance; give both or none. By default, they follow the dtype: for float32 1.3e-6 and
        1e-5, for float64 1e-7 and 1e-7, for float16 1e-3 and 1e-5, for bfloat16 1.6e-2 and 1e-5; complex numbers as
        their parts; other dtypes must be equal. Of two dtypes, the larger tolerances count.
    equal_nan : bool, default False
        Whether NaN equals NaN.
    check_device : bool, default True
        Whether tensors must be on the same device.
    check_dtype : bool, default True
        Whether dtypes of tensors, and types of numbers, must be the same.
    check_layout : bool, default True
        Whether layouts must be the same.
    check_stride : bool, default False
        Whether strides must be the same.
    msg : str or callable, optional
        Replaces the message of the error; a function is given the message and returns another.

    Raises
    ------
    NotCloseError
        If values differ; it is an AssertionError.
    OperandError
        For what cannot be compared; it is a TypeError.
    ArgumentError
        For one tolerance alone; it is a ValueError.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.testing.assert_close(sg.tensor([1.0, 2.0]), sg.tensor([1.0, 2.000001]))
    >>> sg.testing.assert_close({"loss": 0.5}, {"loss": 0.51}, rtol=0, atol=0.1)
    """
    checks = _Checks(
        allow_subclasses, rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride
    )  # fmt: skip
    __tracebackhide__ = True  # pytest then shows the line that called
    try:
        found = list(_pairs(actual, expected, checks, ()))
    except _Difference as difference:
        raise difference.error(None) from None
    for compare in found:
        try:
            compare()
        except _Difference as difference:
            raise difference.error(msg) from None


def assert_allclose(
    actual: Any, expected: Any, rtol: float | None = None, atol: float | None = None, equal_nan: bool = True,
    msg: str = "",
) -> None:  # fmt: skip
    """Compare as `assert_close` does, but neither dtypes nor NaN count as differences.

    Parameters
    ----------
    actual, expected : Tensor, ndarray, number or sequence of numbers
        Values to compare, each as one tensor.
    rtol, atol : float, optional
        Relative and absolute tolerance, as of `assert_close`.
    equal_nan : bool, default True
        Whether NaN equals NaN.
    msg : str, default ""
        Replaces the message of the error, unless it is empty.

    Raises
    ------
    NotCloseError
        If values differ.
    ArgumentError
        For one tolerance alone.

    Warns
    -----
    FutureWarning
        Always, as PyTorch does: `assert_close` replaces it.
    """
    warnings.warn(
        "`torch.testing.assert_allclose()` is deprecated since 1.12 and will be removed in a future release. Please "
        "use `torch.testing.assert_close()` instead.",
        FutureWarning,
        stacklevel=2,
    )
    actual, expected = as_tensor(actual), as_tensor(expected)
    assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None,
    )  # fmt: skip


def _pairs(actual: Any, expected: Any, checks: _Checks, path: Path) -> Iterator[Callable[[], None]]:
    """Yield a function for each pair of values to compare. Raises _Difference where the containers differ."""
    if all(isinstance(value, Sequence) and not isinstance(value, str) for value in (actual, expected)):
        if len(actual) != len(expected):
            raise _Difference(
                NotCloseError, f"The length of the sequences mismatch: {len(actual)} != {len(expected)}", path
            )
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            yield from _pairs(a, b, checks, (*path, i))
    elif isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            raise _Difference(
                NotCloseError,
                "The keys of the mappings do not match:\n"
                f"Missing keys in the actual mapping: {sorted(expected.keys() - actual.keys())}\n"
                f"Additional keys in the actual mapping: {sorted(actual.keys() - expected.keys())}",
                path,
            )
        for key in actual:
            yield from _pairs(actual[key], expected[key], checks, (*path, key))
    else:
        yield _pair(actual, expected, checks, path)


def _pair(actual: Any, expected: Any, checks: _Checks, path: Path) -> Callable[[], None]:
    """Return the function that compares two values."""

    def fail(says: str, kind: type[Exception] = NotCloseError) -> NoReturn:
        raise _Difference(kind, says, path)

    if actual is None or expected is None:
        return lambda: None if actual is expected else fail(f"None mismatch: {actual} is not {expected}")
    if all(isinstance(value, bool | np.bool_) for value in (actual, expected)):
        return lambda: None if actual == expected else fail(f"Booleans mismatch: {actual} is not {expected}")
    if (checks.rtol is None) != (checks.atol is None):
        fail(
            "Both 'rtol' and 'atol' must be either specified or omitted, but got no "
            f"{'rtol' if checks.rtol is None else 'atol'}.",
            ArgumentError,
        )
    if all(isinstance(value, int | float | complex | np.number) for value in (actual, expected)):
        return lambda: _compare_numbers(actual, expected, checks, fail)
    related = isinstance(actual, type(expected)) or isinstance(expected, type(actual))
    alike = related and (checks.allow_subclasses or type(actual) is type(expected))
    if alike and isinstance(actual, Tensor | np.ndarray | np.generic):
        return lambda: _compare_tensors(as_tensor(actual), as_tensor(expected), checks, fail)
    fail(
        f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}.", OperandError
    )  # fmt: skip


def _compare_numbers(actual: Any, expected: Any, checks: _Checks, fail: Callable[[str], NoReturn]) -> None:
    kinds = type(actual), type(expected)
    if checks.check_dtype and kinds[0] is not kinds[1]:
        fail(f"The (d)types do not match: {kinds[0]} != {kinds[1]}.")
    actual, expected = (x.item() if isinstance(x, np.generic) else x for x in (actual, expected))
    tolerances = checks.tolerances(*(_OF_NUMBERS[type(x)] for x in (actual, expected)))
    close = actual == expected or (checks.equal_nan and actual != actual and expected != expected)
    size = abs(actual - expected)
    if not close and math.isfinite(size):
        close = size <= tolerances.absolute + tolerances.relative * abs(expected)
    if not close:
        fail(_of_numbers(actual, expected, tolerances))


def _of_numbers(actual: Any, expected: Any, tolerances: _Tolerances) -> str:
    size = abs(actual - expected)
    differences = [("absolute", size, ""), ("relative", math.inf if expected == 0 else size / abs(expected), "")]
    return tolerances.message("Scalars", f"Expected {expected} but got {actual}.", differences)


def _compare_tensors(actual: Tensor, expected: Tensor, checks: _Checks, fail: Callable[[str], NoReturn]) -> None:
    attributes: dict[str, Callable[[Tensor], Any]] = {
        "shape": lambda x: x.shape,
        "layout": lambda x: x.layout if checks.check_layout else None,
        "stride()": lambda x: x.stride() if checks.check_stride else None,
        "device": lambda x: x.device if checks.check_device else None,
        "dtype": lambda x: x.dtype if checks.check_dtype else None,
    }
    for name, attribute in attributes.items():
        if attribute(actual) != attribute(expected):
            fail(f"The values for attribute '{name}' do not match: {attribute(actual)} != {attribute(expected)}.")
    tolerances = checks.tolerances(actual.numpy_dtype, expected.numpy_dtype)
    a, b = (_comparable(x.detach().host_array()) for x in (actual, expected))
    if a.dtype != b.dtype:
        a, b = (x.astype(np.result_type(a, b)) for x in (a, b))
    with np.errstate(all="ignore"):
        if tolerances == (0, 0):
            matches = a == b
            if checks.equal_nan and a.dtype.kind in "fc":
                matches |= np.isnan(a) & np.isnan(b)
        else:
            matches = np.isclose(a, b, *tolerances, equal_nan=checks.equal_nan)
        if matches.all():
            return
        size = np.where(matches, 0, abs(a - b))
        divisor = abs(b).astype(np.float32 if b.dtype.kind in "iu" else b.real.dtype)
        share = np.where(matches, 0, size.astype(divisor.dtype) / divisor)
    if not matches.ndim:
        fail(_of_numbers(a.item(), b.item(), tolerances))
    wrong = matches.size - int(matches.sum())
    differences = []
    for kind, values in (("absolute", size), ("relative", share)):
        place = np.unravel_index(np.argmax(values), values.shape)
        differences.append((kind, values[place].item(), str(tuple(map(int, place)))))
    statistics = f"Mismatched elements: {wrong} / {matches.size} ({wrong / matches.size:.1%})"
    fail(tolerances.message("Tensor-likes", statistics, differences))


def _comparable(array: np.ndarray) -> np.ndarray:
    """Return an array in a dtype whose differences NumPy computes without overflow."""
    if array.dtype in dtypes.HALF:
        return array.astype(np.float32)
    return array.astype(np.int64) if array.dtype.kind in "iub" and array.dtype != np.uint64 else array
