"""NumPy's functions of tensors: `np.exp(x)`, `np.concatenate([x, y])`, `np.linalg.norm(x)` are differentiated.

Each calls the function of its meaning: that of the array API standard where it has NumPy's name, that of `sg` where it
has, or one of those below. Arguments go over by name; one that there is no equal for is refused, as is a function: a
tensor is never taken for its values silently. (A list of tensors may be: NumPy makes an array of some before it asks.)
Dtypes promote as everywhere in `sg`. NumPy alone computes what gives no array (`np.save`, `np.array2string` …).

`out=` may be a tensor, or an array where nothing is to be differentiated.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import numpy as np

from spillgrad import array_api, array_api_fft, array_api_linalg
from spillgrad import special as special_names
from spillgrad.errors import ArgumentError, OperandError
from spillgrad.ops import (
    arithmetic,
    bessel,
    choice,
    comparison,
    complex_numbers,
    convert,
    counting,
    creation,
    decompositions,
    einsum,
    elementwise,
    exponential,
    fourier,
    indexing,
    linalg,
    logic,
    norms,
    order,
    padding,
    promotion,
    rearrange,
    reduce,
    rounding,
    scan,
    shape,
    solving,
    special,
    statistics,
    trigonometry,
)
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native

# --- Functions that `sg` has with another meaning, or not, under NumPy's names and parameters ------------------------


def _append(arr: Tensor, values: Tensor, axis: int | None = None) -> Tensor:
    return array_api.concat((arr, values), axis=axis)


def _array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    return list(rearrange.tensor_split(ary, indices_or_sections, axis))


def _split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
    if isinstance(indices_or_sections, int) and ary.shape[axis] % indices_or_sections:
        raise ArgumentError(
            f"np.split: got {indices_or_sections} sections of {ary.shape[axis]}; array_split takes any number"
        )
    return _array_split(ary, indices_or_sections, axis)


def _average(a: Tensor, axis: Any = None, weights: Tensor | None = None, keepdims: bool = False) -> Tensor:
    if weights is None:
        return reduce.mean(a, axis, keepdims)
    if weights.shape != a.shape:
        if not isinstance(axis, int) or weights.ndim != 1:
            raise ArgumentError(f"np.average: got weights of {weights.shape} for {a.shape}; wanted that, or one axis")
        last = shape.normalize_dim("np.average", axis, a.ndim) - a.ndim
        weights = shape.reshape(weights, (-1, *(1,) * (-1 - last)))
    total = reduce.sum(shape.expand(weights, a.shape), axis, keepdims)
    return arithmetic.div(reduce.sum(arithmetic.mul(a, weights), axis, keepdims), total)


def _cross(a: Tensor, b: Tensor, axis: int = -1) -> Tensor:
    return einsum.cross(a, b, axis)


def _cumulative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def running(a: Tensor, axis: int | None = None, dtype: Any = None) -> Tensor:
        return function(shape.reshape(a, -1) if axis is None else a, axis=0 if axis is None else axis, dtype=dtype)

    return running


def _diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    return indexing.diagonal(a, offset, axis1, axis2)


def _trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    return array_api.sum(_diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def _dot(a: Any, b: Any) -> Tensor:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.ndim or not b.ndim:
        return arithmetic.mul(a, b)
    return linalg.matmul(a, b) if b.ndim <= 2 else einsum.tensordot(a, b, ((a.ndim - 1,), (b.ndim - 2,)))


def _vdot(a: Tensor, b: Tensor) -> Tensor:
    return einsum.vdot(shape.reshape(a, -1), shape.reshape(b, -1))


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return linalg.outer(shape.reshape(a, -1), shape.reshape(b, -1))


def _einsum(*operands: Any, optimize: Any = None) -> Tensor:
    return einsum.einsum(*operands)


def _percentile(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def percentile(
        a: Tensor, q: Any, axis: int | None = None, method: str = "linear", keepdims: bool = False
    ) -> Tensor:
        parts = np.asarray(q, np.float64) / 100
        return function(a, Tensor.wrap(parts), axis, keepdims, interpolation=method)

    return percentile


def _median(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def median(a: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return function(a, 0.5, axis, keepdims)

    return median


_PAD_MODES = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}


def _pad(array: Tensor, pad_width: Any, mode: str = "constant", constant_values: float = 0) -> Tensor:
    if mode not in _PAD_MODES:
        raise ArgumentError(f"np.pad: got mode={mode!r}; accepted are {', '.join(_PAD_MODES)}")
    widths = np.broadcast_to(np.asarray(pad_width, np.intp), (array.ndim, 2))
    by_last = [int(width) for pair in reversed(widths.tolist()) for width in pair]
    return padding.pad(array, by_last, _PAD_MODES[mode], constant_values)


def _ptp(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return arithmetic.sub(*(f(a, axis=axis, keepdims=keepdims) for f in (array_api.max, array_api.min)))


def _round(a: Tensor, decimals: int = 0) -> Tensor:
    if decimals < 0 and not a.is_floating_point():
        raise OperandError(f"np.round: got decimals={decimals} for {a.dtype}; convert with .to(float64)")
    return rounding.round(a, decimals)


def _in_order(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def ordered(a: Tensor, axis: int | None = -1, stable: bool | None = None) -> Tensor:
        return function(shape.reshape(a, -1) if axis is None else a, axis=-1 if axis is None else axis)

    return ordered


def _squeeze(a: Tensor, axis: Any = None) -> Tensor:
    return shape.squeeze(a) if axis is None else array_api.squeeze(a, axis)


def _swapaxes(a: Tensor, axis1: int, axis2: int) -> Tensor:
    return shape.transpose(a, axis1, axis2)


def _transpose(a: Tensor, axes: Any = None) -> Tensor:
    return shape.permute(a, tuple(reversed(range(a.ndim))) if axes is None else tuple(axes))


def _take(a: Tensor, indices: Any, axis: int | None = None) -> Tensor:
    places = indices if isinstance(indices, Tensor) else creation.tensor(indices)
    return array_api.take(shape.reshape(a, -1) if axis is None else a, places, axis=0 if axis is None else axis)


def _vander(x: Tensor, N: int | None = None, increasing: bool = False) -> Tensor:
    powers = norms.vander(x, N=N)
    return powers if increasing else shape.flip(powers, -1)


def _where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return indexing.nonzero(condition, as_tuple=True)
    return choice.where(condition, x, y)


def _qr(a: Tensor, mode: str = "reduced") -> Any:
    return decompositions.qr(a, mode).R if mode == "r" else decompositions.qr(a, mode)


def _svd(a: Tensor, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    return decompositions.svd(a, full_matrices) if compute_uv else decompositions.svdvals(a)


_OWN: dict[str, dict[str, Callable[..., Any]]] = {
    "numpy": {
        "amax": array_api.max, "amin": array_api.min, "append": _append, "argsort": _in_order(array_api.argsort),
        "around": _round, "array_split": _array_split, "average": _average, "concatenate": array_api.concat,
        "copy": convert.clone, "cross": _cross, "cumprod": _cumulative(scan.cumprod),
        "cumsum": _cumulative(scan.cumsum), "diagonal": _diagonal, "dot": _dot, "einsum": _einsum,
        "median": _median(order.quantile), "nanmedian": _median(order.nanquantile),
        "nanpercentile": _percentile(order.nanquantile), "outer": _outer, "pad": _pad,
        "percentile": _percentile(order.quantile), "permute_dims": _transpose, "ptp": _ptp, "round": _round,
        "sort": _in_order(array_api.sort), "split": _split, "squeeze": _squeeze, "swapaxes": _swapaxes, "take": _take,
        "trace": _trace, "transpose": _transpose, "vander": _vander, "vdot": _vdot, "where": _where,
    },
    "numpy.linalg": {"qr": _qr, "svd": _svd},
    "numpy.fft": {},
}  # fmt: skip

# Functions of `sg` that mean the same; their parameters may be called otherwise.
_SAME: dict[str, dict[ModuleType, str]] = {
    "numpy": {
        bessel: "i0",
        choice: "nan_to_num",
        comparison: "isclose isneginf isposinf",
        complex_numbers: "angle",
        counting: "bincount isin",
        einsum: "inner kron",
        indexing: "argwhere diag unravel_index",
        order: "nanquantile quantile",
        rearrange: """
            atleast_1d atleast_2d atleast_3d column_stack diagflat dsplit dstack fliplr flipud hsplit rot90 vsplit
        """,
        reduce: "mean nanmean nansum",
        rounding: "fix",
        scan: "trapezoid",
        shape: "hstack ravel vstack",
        special: "sinc",
        statistics: "corrcoef cov",
    },
    "numpy.linalg": {
        decompositions: "eigh eigvalsh",
        norms: "cond multi_dot norm",
        solving: "matrix_rank pinv tensorinv tensorsolve",
    },
    "numpy.fft": {fourier: "fft2 ifft2 irfft2 rfft2"},
}
# The standard's, as far as NumPy's differ in nothing but parameters that are refused.
_STANDARD: dict[str, tuple[ModuleType, str]] = {
    "numpy": (
        array_api,
        """
        all any arange argmax argmin astype broadcast_arrays broadcast_to clip count_nonzero cumulative_prod
        cumulative_sum diff empty empty_like expand_dims eye flip full full_like imag matrix_transpose max meshgrid min
        moveaxis nonzero ones ones_like prod real repeat reshape result_type roll searchsorted stack std sum
        take_along_axis tensordot tile tril triu unique_all unique_counts unique_inverse unique_values unstack var zeros
        zeros_like
        """,
    ),
    "numpy.linalg": (array_api_linalg, " ".join(array_api_linalg.__all__)),
    "numpy.fft": (array_api_fft, " ".join(array_api_fft.__all__)),
}
# What a parameter of NumPy's is called otherwise.
_RENAMED = {
    "a_max": ("max",), "a_min": ("min",), "axes": ("dims", "dim"), "axis": ("dim",), "ddof": ("correction",),
    "k": ("diagonal", "offset"), "keepdims": ("keepdim",), "method": ("interpolation",), "rcond": ("rtol",),
}  # fmt: skip
# They give no array: there is nothing to differentiate.
_BY_NUMPY = (
    "allclose", "array2string", "array_equal", "array_equiv", "array_repr", "array_str", "can_cast", "common_type",
    "einsum_path", "iscomplexobj", "isrealobj", "may_share_memory", "min_scalar_type", "ndim", "save", "savetxt",
    "savez", "savez_compressed", "shape", "shares_memory", "size",
)  # fmt: skip
_INSTEAD = {
    "choose": "sg.gather", "compress": "sg.masked_select", "copyto": "x.copy_", "digitize": "sg.bucketize",
    "extract": "sg.masked_select", "histogram": "sg.histogram", "lstsq": "sg.linalg.lstsq", "nanmax": "sg.amax",
    "nanmin": "sg.amin", "partition": "sg.sort", "argpartition": "sg.argsort", "put": "x.put_",
    "put_along_axis": "x.scatter_", "putmask": "x.masked_fill_", "select": "sg.where", "unique": "sg.unique",
    "cbrt": "sg.pow", "vecmat": "sg.matmul", "matvec": "sg.matmul",
}  # fmt: skip


def _refusal(name: str) -> OperandError:
    instead = f"call {_INSTEAD[name]}, or " if name in _INSTEAD else ""
    return OperandError(
        f"np.{name}: got a tensor; no function of tensors has this meaning: {instead}give it x.numpy(), which is not "
        "differentiated"
    )


@functools.cache
def _function_for(room: str, name: str) -> Callable[..., Any] | None:
    if room not in _OWN:
        return None
    if name in _OWN[room]:
        return _OWN[room][name]
    for module, names in (*_SAME[room].items(), _STANDARD[room]):
        if name in names.split():
            return getattr(module, name)  # type: ignore[no-any-return]
    return None


# --- Arguments -------------------------------------------------------------------------------------------------------

_signature = functools.cache(inspect.signature)


def _as_tensors(value: Any) -> Any:
    """Return an argument with tensors in place of arrays, in lists and tuples too."""
    if isinstance(value, np.ndarray):
        return creation.as_tensor(value)
    if type(value) in (list, tuple) and any(isinstance(part, Tensor | np.ndarray | list | tuple) for part in value):
        return type(value)(_as_tensors(part) for part in value)
    return value


def _as_arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.numpy(force=True)
    if type(value) in (list, tuple):
        return type(value)(_as_arrays(part) for part in value)
    return value


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) in (bool, int, float, str) and value == default)


def _arguments(
    function: Any, ours: Callable[..., Any], given: inspect.BoundArguments
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of a NumPy function as those of ours. Raises OperandError for one that ours has not."""
    theirs, parameters = given.signature.parameters, _signature(ours).parameters
    operands = sum(
        p.kind is p.POSITIONAL_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty)
        for p in parameters.values()
    )
    by_position: list[Any] = []
    by_name: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for place, (name, parameter) in enumerate(theirs.items()):
        if name not in given.arguments:
            continue
        value = given.arguments[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_position.extend(map(_as_tensors, value))
        elif parameter.kind is parameter.VAR_KEYWORD:
            options |= value
        elif place < operands:
            by_position.append(_as_tensors(value))
        elif name != "out" and not _is_default(value, parameter.default):
            options[name] = value
    for name, value in options.items():
        same = next((n for n in (name, *_RENAMED.get(name, ())) if n in parameters), None)
        if same is None:
            raise OperandError(f"np.{function.__name__}: got {name}={value!r}, which it does not take of tensors")
        by_name[same] = _as_tensors(value)
    return by_position, by_name


def _delivered(name: str, result: Any, out: Any) -> Any:
    """Return a result, or `out` after copying it there. Raises OperandError for what could not be differentiated."""
    if out is None:
        return result
    if not isinstance(result, Tensor) or not isinstance(out, Tensor | np.ndarray):
        raise OperandError(f"np.{name}: got out of {type(out).__name__} for {type(result).__name__}; leave it away")
    if isinstance(out, Tensor):
        return elementwise.deliver(f"np.{name}", result, out)
    if result.requires_grad:
        raise OperandError(
            f"np.{name}: got an array as out for a tensor that requires a gradient, which no array can have; leave it "
            "away, or detach() the tensors"
        )
    np.copyto(out, result.numpy(force=True), casting="same_kind")
    return out


def call_function(function: Any, types: Iterable[type], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what a function of NumPy's means for tensors. Raises OperandError, a TypeError, for what has no equal."""
    if not all(issubclass(kind, Tensor | np.ndarray) for kind in types):
        return NotImplemented
    room, name = function.__module__, function.__name__
    if name in _BY_NUMPY and room == "numpy":
        return function(*map(_as_arrays, arguments), **{key: _as_arrays(value) for key, value in options.items()})
    ours = _function_for(room, name)
    if ours is None:
        raise _refusal(name)
    given = _signature(function).bind(*arguments, **options)
    by_position, by_name = _arguments(function, ours, given)
    return _delivered(name, ours(*by_position, **by_name), given.arguments.get("out"))


# --- Functions of elements -------------------------------------------------------------------------------------------

_ELEMENTWISE = (
    arithmetic, exponential, trigonometry, rounding, comparison, choice, logic, special, complex_numbers, linalg,
)  # fmt: skip
_UFUNCS: dict[str, Callable[..., Any]] = {
    "conjugate": complex_numbers.conj, "degrees": trigonometry.rad2deg,
    "divmod": lambda x, y: (arithmetic.floor_divide(x, y), arithmetic.remainder(x, y)), "equal": comparison.eq,
    "fabs": arithmetic.abs, "invert": logic.bitwise_not, "left_shift": logic.bitwise_left_shift,
    "modf": lambda x: (rounding.frac(x), rounding.trunc(x)), "power": arithmetic.pow,
    "radians": trigonometry.deg2rad, "right_shift": logic.bitwise_right_shift, "rint": rounding.round,
    "sign": array_api.sign, "vecdot": array_api.vecdot,
}  # fmt: skip
_REDUCED = {
    "add": array_api.sum, "multiply": array_api.prod, "maximum": array_api.max, "minimum": array_api.min,
    "logical_and": array_api.all, "logical_or": array_api.any,
}  # fmt: skip
_ACCUMULATED: dict[str, Callable[..., Any]] = {
    "add": scan.cumsum, "multiply": scan.cumprod, "maximum": lambda x, axis: scan.cummax(x, axis).values,
    "minimum": lambda x, axis: scan.cummin(x, axis).values,
}  # fmt: skip
# What NumPy's own defaults of these mean here, too.
_WITHOUT_EFFECT = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "keepdims": False, "dtype": None}


@functools.cache
def _elementwise_for(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """Return the function that means what a ufunc of NumPy's or of scipy.special's does."""
    name = ufunc.__name__
    if getattr(np, name, None) is ufunc:
        found = (getattr(module, name) for module in _ELEMENTWISE if hasattr(module, name))
        return _UFUNCS.get(name) or next(found, None)
    if getattr(sys.modules.get("scipy.special"), name, None) is ufunc and name in special_names.__all__:
        return getattr(special_names, name)  # type: ignore[no-any-return]
    return None


def _outer_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def outer(x: Any, y: Any) -> Any:
        first, second = (v if isinstance(v, Tensor) else creation.tensor(v) for v in (x, y))
        return function(shape.reshape(first, (*first.shape, *(1,) * second.ndim)), second)

    return outer


_SEQUENCES = (list, tuple)
_NUMBERS = (*promotion.OPERANDS, complex)


def _operands(inputs: tuple[Any, ...]) -> list[Any] | None:
    """Return operands with tensors in place of arrays and lists; None where one is of another library."""
    operands = []
    for x in inputs:
        if isinstance(x, np.ndarray):
            x = Tensor.wrap(native(x))
        elif isinstance(x, _SEQUENCES):
            x = creation.tensor(x)
        elif not isinstance(x, _NUMBERS):
            return None
        operands.append(x)
    return operands


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return what a ufunc, or a method of one, means for tensors; NotImplemented where another operand may know.

    Raises OperandError, a TypeError, for what has no equal.
    """
    operands, function = _operands(inputs), _elementwise_for(ufunc)
    if operands is None:
        return NotImplemented
    if method == "__call__" and not options and function is not None:  # most calls, such as those of array * x
        return function(*operands)
    out, *others = options.pop("out", (None,))
    name = ufunc.__name__
    if method != "__call__" and function is not None:
        name = f"{name}.{method}"
        if method == "outer":
            function = _outer_of(function)
        else:
            function = {"reduce": _REDUCED, "accumulate": _ACCUMULATED}.get(method, {}).get(ufunc.__name__)
            options.setdefault("axis", 0)
    if function is None:
        raise _refusal(name)
    parameters = _signature(function).parameters
    taken = {}
    for key, value in options.items():
        if key == "dtype" and value is not None and key not in parameters:
            operands = _in_dtype(name, ufunc, operands, value)
        elif key in parameters or key == "axis":
            taken[key] = value
        elif key not in _WITHOUT_EFFECT or not _is_default(value, _WITHOUT_EFFECT[key]):
            raise OperandError(f"np.{name}: got {key}={value!r}, which it does not take of tensors")
    result = function(*operands, **taken)
    if any(x is not None for x in others):
        raise OperandError(f"np.{name}: got several outs; leave them away")
    return _delivered(name, result, out)


def _in_dtype(name: str, ufunc: np.ufunc, operands: list[Any], dtype: Any) -> list[Any]:
    """Return operands in the dtype to compute in. Raises OperandError where that is not the result's."""
    gives_bool = all(types.endswith("?") or types.endswith("O") for types in ufunc.types)
    if gives_bool and np.dtype(dtype) == np.bool_:
        return operands
    if gives_bool or ufunc.nout > 1:
        raise OperandError(f"np.{name}: got dtype={dtype!r}, which it does not take of tensors; use .to(dtype)")
    return [convert.to_dtype(x, dtype) if isinstance(x, Tensor) else x for x in operands]
