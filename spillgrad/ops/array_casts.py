"""Conversion of arrays between dtypes, and calls of float32 kernels on half-precision arrays."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, ComplexDtypeError, DtypeError
from spillgrad_kernels.cpu.copying import copy
from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.device_array import ARRAYS, NotOnDevice, is_on_device
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.memory.buffers import empty
from spillgrad_kernels.tables.formula import Formula

# An array or a tuple of arrays.
Result = TypeVar("Result")

# From this many bytes on, several threads copy faster than one (one copies 512 KiB in the 20 us of waking another).
_SHARED_MIN_BYTES = 1 << 21
# From this many numbers on, a kernel converts half precision faster than NumPy, which takes 2 ns for each float16.
_HALF_MIN_NUMBERS = 1 << 12
_READ_AS_FLOAT32 = dtypes.HALF | {dtypes.float32}
_FLOATING = dtypes.HALF | FLOATS


def cast(array: np.ndarray, dtype: dtypes.DType) -> np.ndarray:
    """Return a copy as `dtype`. Values out of range silently become infinite or wrap around, as in PyTorch."""
    if is_on_device(array):
        return array.astype(dtype)
    out = empty(array.shape, dtype)
    assign(out, array)
    return out


def assign(target: np.ndarray, source: np.ndarray) -> None:
    """Overwrite `target` with the values of `source`, broadcast and converted as by `cast`; the two may overlap.

    A real target gets the real parts of complex numbers.
    `target` must be writeable, and no two of its elements may share memory. Raises ValueError if `source` does not
    broadcast to the shape of `target`.
    """
    if is_on_device(target):
        target[...] = source
        return
    if source.dtype.kind == "c" and target.dtype.kind not in "cb":
        source = source.real  # NumPy would warn that it takes the real part
    is_native = target.dtype.isnative and source.dtype.isnative
    of_half = source.dtype != target.dtype and not dtypes.HALF.isdisjoint((source.dtype, target.dtype))
    large = target.size >= _HALF_MIN_NUMBERS if of_half else target.nbytes >= _SHARED_MIN_BYTES
    if large and is_native and not np.may_share_memory(target, source):
        if source.dtype == target.dtype:
            copy(np.broadcast_to(source, target.shape), target)
            return
        # Only values that kernels read as float32 are rounded to half precision here; others would be rounded twice.
        sources = _READ_AS_FLOAT32 if target.dtype in dtypes.HALF else _FLOATING
        if target.dtype in _FLOATING and (source.dtype in sources or (not of_half and source.dtype.kind in "biu")):
            elementwise(_itself, "convert", [np.broadcast_to(source, target.shape)], target.dtype, target)
            return
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")


def _itself(self: Any) -> Any:
    return self


def contiguous(array: np.ndarray) -> np.ndarray:
    """Return the array itself if it is in row-major memory without gaps, else a copy in such memory."""
    return array if array.flags.c_contiguous else cast(array, array.dtype)


def as_own(value: Any) -> np.ndarray:
    """Return the result of a NumPy function as an array: NumPy returns scalars instead of 0-d arrays."""
    return value if isinstance(value, ARRAYS) else np.asarray(value)


def compute_dtype(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype in which kernels compute values of `dtype`. Raises DtypeError for complex numbers."""
    if dtype in dtypes.HALF:
        return dtypes.float32
    if dtypes.is_complex(dtype):
        raise DtypeError(
            f"got {dtype}; complex tensors can be stored and moved, not computed with: use their real and "
            f"imaginary parts"
        )
    return dtype


def require_floats(name: str, dtype: dtypes.DType) -> None:
    """Raise DtypeError, for the operation `name`, unless tensors of `dtype` hold real floating-point numbers."""
    if dtype.kind != "f" and not dtypes.is_floating_point(dtype):
        error = ComplexDtypeError if dtypes.is_complex(dtype) else DtypeError
        raise error(f"{name}: got a tensor of {dtype}; wanted floating-point numbers: convert it with .to(float32)")


def require_inexact(name: str, dtype: dtypes.DType) -> None:
    """Raise DtypeError, for the operation `name`, unless tensors of `dtype` hold floating-point or complex numbers."""
    if not dtypes.is_complex(dtype):
        require_floats(name, dtype)


def refuse_complex(name: str, dtype: dtypes.DType) -> None:
    """Raise DtypeError, for the operation `name`, if `dtype` is complex: complex numbers have no order."""
    if dtype.kind == "c":
        raise ComplexDtypeError(f"{name}: does not support complex input, got {dtype}; take real, imag or abs")


def of_number(name: str, value: Any, dtype: dtypes.DType) -> np.ndarray:
    """Return a number as a 0-d array of `dtype`. Raises ArgumentError for a complex number and a real `dtype`."""
    if isinstance(value, complex | np.complexfloating) and not dtypes.is_complex(dtype):
        if value.imag:
            raise ArgumentError(
                f"{name}: value {value} cannot be converted to {dtype} without overflow; take its real part, or a "
                "complex tensor"
            )
        value = value.real
    return np.asarray(value, dtype)


def require_one_dtype(name: str, **operands: Any) -> None:
    """Raise DtypeError, for the operation `name`, unless all operands that are not None have the same dtype."""
    (what, first), *others = operands.items()
    for other_name, other in others:
        if other is not None and other.dtype is not first.dtype:
            raise DtypeError(
                f"{name}: got {what} {first.dtype} and {other_name} {other.dtype}; convert one with .to(dtype)"
            )


def on_floats(
    kernel: Callable[..., Result], *arrays: Any, exact_aux: bool = False, device_takes_half: bool = False
) -> Result:  # fmt: skip
    """Return the results of a float32 and float64 kernel on arrays of one floating dtype.

    Half-precision arrays are converted to float32, and float32 results are then rounded to half precision; others stay.
    Other arguments pass unchanged. With `exact_aux`, only the first result is rounded. The others (statistics for
    backward, such as a mean or the logarithm of a sum) stay float32. With `device_takes_half`, arrays on the device are
    not converted: the device's kernel takes half precision and rounds its sums itself.
    """
    if isinstance(arrays[0], np.ndarray) and arrays[0].dtype in FLOATS:
        return kernel(*arrays)
    floating = (a.dtype for a in arrays if isinstance(a, ARRAYS) and dtypes.is_floating_point(a.dtype))
    dtype = next(floating, None)
    if dtype is None:
        found = ", ".join(str(a.dtype) for a in arrays if isinstance(a, ARRAYS))
        raise DtypeError(f"got {found}; wanted floating-point numbers: convert with .to(dtype)")
    if dtype not in dtypes.HALF or (device_takes_half and is_on_device(arrays[0])):
        return kernel(*arrays)
    widened = [cast(a, dtypes.float32) if isinstance(a, ARRAYS) and a.dtype in dtypes.HALF else a for a in arrays]
    results: Any = kernel(*widened)

    def narrowed(result: Any) -> Any:
        return cast(result, dtype) if isinstance(result, ARRAYS) and result.dtype == np.float32 else result

    if not isinstance(results, tuple):
        results = narrowed(results)
    else:
        results = (narrowed(results[0]), *results[1:]) if exact_aux else tuple(map(narrowed, results))
    return results  # type: ignore[no-any-return]


def by_parts(kernel: Callable[..., np.ndarray], *arrays: np.ndarray, **options: bool) -> np.ndarray:
    """Call a kernel that only moves and adds elements: by `on_floats`, for complex arrays once for each of the parts.

    Either all arrays are complex or none is. `options` are those of `on_floats`.
    """
    if arrays[0].dtype.kind != "c":
        return on_floats(kernel, *arrays, **options)
    parts = kernel(*[a.real for a in arrays]), kernel(*[a.imag for a in arrays])
    out = empty(parts[0].shape, arrays[0].dtype)
    out.real, out.imag = parts
    return out


def products_by_parts(
    kernel: Callable[..., np.ndarray], first: np.ndarray, second: np.ndarray, constant: np.ndarray | None = None,
    **options: bool,
) -> np.ndarray:  # fmt: skip
    """Call a kernel that is linear in each of two arrays and adds `constant`: by `on_floats`, or for complex arrays.

    For complex arrays it is called four times: for each product of the real and imaginary parts of the two. Either all
    arrays are complex or none is. `options` are those of `on_floats`.
    """
    if first.dtype.kind != "c":
        return on_floats(kernel, first, second, constant, **options)
    if is_on_device(first):
        raise NotOnDevice("no kernel of the device computes with complex numbers")
    (a, b), (c, d) = [[np.ascontiguousarray(part) for part in (x.real, x.imag)] for x in (first, second)]
    real, imag = (None, None) if constant is None else (constant.real, constant.imag)
    products = kernel(a, c, real), kernel(a, d, imag)
    out = empty(products[0].shape, first.dtype)
    with np.errstate(all="ignore"):
        np.subtract(products[0], kernel(b, d, None), out=out.real)
        np.add(products[1], kernel(b, c, None), out=out.imag)
    return out


def moved_by(kernel: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    """Call a kernel that only moves elements: directly on a device array of any dtype, by `by_parts` on the CPU."""
    return kernel(array) if is_on_device(array) else by_parts(kernel, array)


def run_formula(
    formula: Formula, name: str, operands: Sequence[Any], dtype: dtypes.DType, result_dtype: dtypes.DType,
    out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Compute an elementwise formula: by a kernel for floating, complex and device arrays, otherwise by NumPy."""
    computed = dtype if dtypes.is_complex(dtype) else compute_dtype(dtype)
    if any([is_on_device(v) for v in operands]):
        number = _compared if result_dtype == dtypes.bool_ and computed.kind in "iu" else as_array
        arrays = [
            v if is_on_device(v) and v.dtype == dtype else (number if type(v) is int else as_array)(v, computed)
            for v in operands
        ]
        return elementwise(formula, name, arrays, result_dtype, out)
    if computed.kind not in "fc":
        # Comparisons see Python numbers as they are: 300 is above every uint8.
        exact = result_dtype == dtypes.bool_
        values = [v if exact and isinstance(v, int) else as_array(v, computed) for v in operands]
        with np.errstate(all="ignore"):
            return np.asarray(formula(*values)).astype(result_dtype, copy=False)
    # Arrays of half precision are read and written as they are.
    kept = (dtype, dtypes.real_part(dtype))
    arrays = [v if isinstance(v, np.ndarray) and v.dtype in kept else as_array(v, computed) for v in operands]
    direct = out is not None and out.dtype == result_dtype and out.flags.c_contiguous
    return elementwise(formula, name, arrays, result_dtype, out if direct else None)


def _compared(value: int, dtype: dtypes.DType) -> np.ndarray:
    """Return `value` as an array to compare with integers of `dtype`: ±infinity if `dtype` cannot hold the value."""
    limits = np.iinfo(dtype)
    return np.asarray(value, dtype) if limits.min <= value <= limits.max else np.asarray(math.copysign(math.inf, value))


def as_array(value: Any, dtype: dtypes.DType) -> np.ndarray:
    """Return an array or Python number as an array of `dtype`; a bool array stays bool, as it may be a condition."""
    if not isinstance(value, ARRAYS):
        # 0 and -0 are equal, so a cache could not tell them apart.
        return _number(value, dtype) if type(value) in (int, float) and value != 0 else _new_number(value, dtype)
    return value if value.dtype is dtype or value.dtype in (dtype, dtypes.bool_) else cast(value, dtype)


def _new_number(value: Any, dtype: dtypes.DType) -> np.ndarray:
    array = np.asarray(value)
    return array if array.dtype in (dtype, dtypes.bool_) else cast(array, dtype)


# Most expressions contain the same few numbers; making an array of a number costs as much as several small additions.
_number = functools.lru_cache(maxsize=1024)(_new_number)
