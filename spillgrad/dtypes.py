"""Data types inside the library: NumPy's dtype objects under PyTorch's names, and PyTorch's rules for promoting them.

There are two kinds of dtype objects. Arrays, kernels, storage and files know NumPy's, which this module has. Users get
`spillgrad.data_type.dtype`, which also has PyTorch's attributes: `sg.float32`, `x.dtype`, and what public functions
such as `result_type` return. The two are equal, and have the same hash.
Users' dtypes, their names ("float32") and NumPy's types come in through `as_dtype`, which gives NumPy's dtype. Code of
the library reads `x.numpy_dtype` where it keeps a dtype or hands it to a kernel, and where time counts: `x.dtype` looks
the user's object up, and NumPy converts it each time.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.errors import DtypeError

DType = np.dtype[Any]

float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
bool_: DType = np.dtype(np.bool_)
complex64: DType = np.dtype(np.complex64)
complex128: DType = np.dtype(np.complex128)

# All dtypes that a tensor can have.
KNOWN = frozenset({
    float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_, complex64,
    complex128,
})  # fmt: skip
_BY_NAME: dict[str, DType] = {
    **{str(dtype): dtype for dtype in KNOWN},
    "half": float16, "float": float32, "double": float64, "short": int16, "int": int32, "long": int64,
    "cfloat": complex64, "cdouble": complex128,
}  # fmt: skip
_FLOATING = frozenset({float16, bfloat16, float32, float64})
HALF = frozenset({float16, bfloat16})
_REAL_PARTS = {complex64: float32, complex128: float64}
_CATEGORIES = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}  # by NumPy's kind, which is "V" for bfloat16

_default_float: DType = float32


def get_default_dtype() -> DType:
    """Return the dtype of floating-point tensors that are made without a dtype."""
    return _default_float


def set_default_dtype(dtype: Any) -> None:
    """Set the dtype of floating-point tensors that are made without a dtype.

    Parameters
    ----------
    dtype : dtype
        A floating-point dtype; at first, it is float32.

    Raises
    ------
    DtypeError
        For other dtypes.
    """
    global _default_float
    chosen = as_dtype(dtype)
    if chosen not in _FLOATING:
        raise DtypeError(f"set_default_dtype: got {chosen}; wanted one of {', '.join(sorted(map(str, _FLOATING)))}")
    _default_float = chosen


def as_dtype(dtype: Any) -> DType:
    """Convert a dtype, NumPy or Python type, or name to a native-endian dtype. Raises DtypeError for other values."""
    dtype = getattr(dtype, "__numpy_dtype__", dtype)  # NumPy's protocol for other classes of dtypes, and for ours
    if isinstance(dtype, np.dtype):
        found = dtype if dtype.isnative else dtype.newbyteorder("=")
    elif isinstance(dtype, str) and dtype.rpartition(".")[2] in _BY_NAME:
        return _BY_NAME[dtype.rpartition(".")[2]]
    elif dtype is float:
        return _default_float
    elif dtype is int:
        return int64
    else:
        try:
            found = None if dtype is None else np.dtype(dtype)  # type: ignore[assignment]  # NumPy's None is float64
        except (TypeError, ValueError):
            found = None
    if found not in KNOWN:
        raise DtypeError(f"dtype: got {dtype!r}; wanted one of {', '.join(sorted(map(str, KNOWN)))}")
    return found


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point dtype, as Python numbers."""

    bits: int
    eps: float
    max: float
    min: float
    tiny: float
    smallest_normal: float
    resolution: float
    dtype: str


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: str


def finfo(dtype: Any = None) -> FloatInfo:
    """Return the limits of a floating-point dtype, or of the parts of a complex dtype.

    Parameters
    ----------
    dtype : dtype, optional
        A floating-point or complex dtype; by default, the default dtype.

    Returns
    -------
    FloatInfo
        Python numbers as attributes: `bits`, `eps`, `max`, `min`, `tiny`, `smallest_normal` and `resolution`; and the
        name, `dtype`.

    Raises
    ------
    DtypeError
        For other dtypes.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.finfo(sg.bfloat16).eps
    0.0078125
    """
    wanted = _default_float if dtype is None else as_dtype(dtype)
    wanted = {complex64: float32, complex128: float64}.get(wanted, wanted)
    if wanted not in _FLOATING:
        raise DtypeError(f"finfo: got {wanted}; wanted a floating-point dtype, or use iinfo")
    limits: Any = ml_dtypes.finfo(wanted)  # type: ignore[no-untyped-call]
    eps, largest, smallest, tiny, normal, resolution = map(
        float, (limits.eps, limits.max, limits.min, limits.tiny, limits.smallest_normal, f"1e-{limits.precision}")
    )
    return FloatInfo(int(limits.bits), eps, largest, smallest, tiny, normal, resolution, str(wanted))


def iinfo(dtype: Any) -> IntegerInfo:
    """Return the limits of an integer dtype.

    Parameters
    ----------
    dtype : dtype
        An integer dtype.

    Returns
    -------
    IntegerInfo
        Python numbers as attributes: `bits`, `max` and `min`; and the name, `dtype`.

    Raises
    ------
    DtypeError
        For other dtypes.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.iinfo(sg.int8).max
    127
    """
    wanted = as_dtype(dtype)
    if category(wanted) != 1:
        raise DtypeError(f"iinfo: got {wanted}; wanted an integer dtype, or use finfo")
    limits = np.iinfo(wanted)
    return IntegerInfo(limits.bits, int(limits.max), int(limits.min), str(wanted))


def is_floating_point(dtype: Any) -> bool:
    """Return whether values of `dtype` are real floating-point numbers."""
    kind = dtype.kind  # an attribute of both kinds of dtype objects, where a set would compare them
    return kind == "f" or (kind == "V" and bool(dtype == bfloat16))


def is_differentiable(dtype: Any) -> bool:
    """Return whether values of `dtype` can have gradients: floating-point and complex numbers."""
    return is_floating_point(dtype) or is_complex(dtype)


def is_complex(dtype: Any) -> bool:
    """Return whether `dtype` is complex."""
    return dtype.kind == "c"  # type: ignore[no-any-return]


def category(dtype: DType) -> int:
    """Return 0 for bool, 1 for integers, 2 for floating-point, 3 for complex; promotion gives the higher category."""
    return _CATEGORIES[dtype.kind]


def promote(first: DType, second: DType) -> DType:
    """Return the dtype that two dtypes promote to, as PyTorch's `promote_types` does."""
    first, second = as_dtype(first), as_dtype(second)
    if first == second:
        return first
    if {first, second} == {float16, bfloat16}:
        return float32
    if {first, second} == {complex64, float64}:
        return complex128
    if category(first) != category(second):
        return first if category(first) > category(second) else second
    if category(first) != 1:
        return first if first.itemsize > second.itemsize else second
    common = np.promote_types(first, second)
    return common if category(common) == 1 else int64  # NumPy makes float64 of uint64 and a signed type


def of_scalar(value: Any) -> DType:
    """Return the dtype of a tensor made from one Python number: bool, int64, or the default float or complex dtype."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return int64
    if isinstance(value, complex):
        return complex128 if _default_float == float64 else complex64
    return _default_float


def result_type(dtypes: list[tuple[DType, bool]], scalars: list[Any]) -> DType:
    """Return the dtype that tensors and Python numbers promote to.

    Tensors with dimensions count first, then 0-d tensors, then Python numbers. A later kind of operand counts only if
    its `category` is higher (a float with an integer tensor), so Python numbers never widen a result: complex numbers
    and a float64 tensor give complex128, and with any other floating-point tensor complex64.
    `dtypes` holds (dtype, is 0-d) for each tensor. Source: PyTorch's `torch.result_type`.
    """
    result: DType | None = None
    for wanted_0d in (False, True):
        kind: DType | None = None
        for dtype, is_0d in dtypes:
            if is_0d == wanted_0d:
                kind = dtype if kind is None else promote(kind, dtype)
        if kind is not None and (result is None or category(kind) > category(result)):
            result = _as_wide(kind, result)
    for scalar in scalars:
        dtype = of_scalar(scalar)
        if result is None or category(dtype) > category(result):
            result = _as_wide(dtype, result)
    return _default_float if result is None else result


def _as_wide(dtype: DType, floating: DType | None) -> DType:
    """Return `dtype`; if it is complex, with parts as wide as a floating-point dtype that is promoted to it."""
    if is_complex(dtype) and floating in _FLOATING:
        return complex128 if floating == float64 else complex64
    return dtype


def real_part(dtype: DType) -> DType:
    """Return the dtype of the real and imaginary parts of a complex dtype; return a real dtype itself."""
    return _REAL_PARTS.get(dtype, dtype)
