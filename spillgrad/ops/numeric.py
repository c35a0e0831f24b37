"""Between dtypes and kernels: half-precision arrays are computed in float32."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.errors import DtypeError
from spillgrad_kernels.cpu import elementwise
from spillgrad_kernels.formula import Formula

_HALF = frozenset({dtypes.float16, dtypes.bfloat16})


def compute_dtype(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype in which kernels compute values of `dtype`. Raises DtypeError for complex numbers."""
    if dtype in _HALF:
        return dtypes.float32
    if dtypes.is_complex(dtype):
        raise DtypeError(
            f"got {dtype}; complex tensors can be stored and moved, not computed with: use their real and "
            f"imaginary parts"
        )
    return dtype


def on_floats(kernel: Callable[..., Any], *arrays: Any, exact_aux: bool = False) -> Any:
    """Call a kernel for float32 and float64 on arrays of one floating dtype; results of half-precision ones are rounded
    back.

    Arguments that are not floating arrays pass through. Integer results stay integers. With `exact_aux` only the first
    result is rounded: statistics that backward needs, such as a mean or the logarithm of a sum, stay float32.
    """
    dtype = next(a.dtype for a in arrays if isinstance(a, np.ndarray) and dtypes.is_floating_point(a.dtype))
    if dtype not in _HALF:
        return kernel(*arrays)
    widened = [a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype in _HALF else a for a in arrays]
    results = kernel(*widened)

    def narrowed(result: Any) -> Any:
        return result.astype(dtype) if isinstance(result, np.ndarray) and result.dtype == np.float32 else result

    if not isinstance(results, tuple):
        return narrowed(results)
    return (narrowed(results[0]), *results[1:]) if exact_aux else tuple(map(narrowed, results))


def run_formula(
    formula: Formula, name: str, operands: Sequence[Any], dtype: dtypes.DType, result_dtype: dtypes.DType,
    out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Compute an elementwise formula on arrays and Python numbers: kernels for floating dtypes, NumPy for the
    others.
    """
    computed = compute_dtype(dtype)
    arrays = [_operand(value, computed) for value in operands]
    if not dtypes.is_floating_point(computed):
        with np.errstate(all="ignore"):
            return np.asarray(formula(*arrays)).astype(result_dtype, copy=False)
    direct = out is not None and out.dtype == computed and out.flags.c_contiguous
    result = elementwise(
        formula, name, arrays, computed if result_dtype != dtypes.bool_ else np.bool_, out if direct else None
    )
    return result if result.dtype == result_dtype else result.astype(result_dtype)


def _operand(value: Any, dtype: dtypes.DType) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        return np.array(value, dtype)
    return value if value.dtype in (dtype, dtypes.bool_) else value.astype(dtype)
