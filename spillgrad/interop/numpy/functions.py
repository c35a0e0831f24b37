"""Apply NumPy's functions to tensors, differentiably: `np.exp(x)`, `np.concatenate([x, y])`, `np.linalg.norm(x)`.

Each call goes to our function that declares NumPy's name: a function of `sg`, of the array API standard, or of the
module `meanings`. Arguments are passed by name. A NumPy function without an equivalent raises an error: NumPy never
computes with a tensor's values outside the graph. (A list of tensors is an exception: NumPy converts some lists to
arrays before it calls us.) Dtypes promote as everywhere in `sg`. NumPy itself runs functions that return no array
(`np.save`, `np.array2string` …).

`out=` may be a tensor, or an array if nothing is to be differentiated.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from spillgrad import special as special_names
from spillgrad.array_api import creation, fft, linalg, manipulation, reductions, searching  # noqa: F401
from spillgrad.array_api import elementwise as standard  # noqa: F401  # these declare names of NumPy's
from spillgrad.errors import OperandError
from spillgrad.interop.numpy import meanings  # noqa: F401  # so does this
from spillgrad.ops import convert, elementwise, promotion, scan, shape
from spillgrad.ops.creation import as_tensor, tensor
from spillgrad.ops.declaration import numpy_functions
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native

# Our names for NumPy's parameters, for those that differ.
_RENAMED = {
    "a_max": ("max",), "a_min": ("min",), "axes": ("dims", "dim"), "axis": ("dim",), "ddof": ("correction",),
    "k": ("diagonal", "offset"), "keepdims": ("keepdim",), "method": ("interpolation",), "rcond": ("rtol",),
}  # fmt: skip
# The functions that NumPy itself runs: they return no array, so there is nothing to differentiate.
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
def _functions() -> dict[str, Callable[..., Any]]:
    """Return a dict from NumPy's names, such as "sin" or "linalg.norm", to our functions."""
    extensions = {
        f"{prefix}.{name}": getattr(module, name)
        for prefix, module in (("linalg", linalg), ("fft", fft))
        for name in module.__all__
    }
    return extensions | dict(numpy_functions())


def _function_for(room: str, name: str) -> Callable[..., Any] | None:
    return _functions().get(f"{room}.{name}".removeprefix("numpy."))


# --- Arguments -------------------------------------------------------------------------------------------------------

# The parameters of compiled functions that NumPy before 2.4 does not tell.
_UNTOLD: dict[str, Callable[..., None]] = {
    "arange": lambda start_or_stop, /, stop=None, step=1, *, dtype=None, device=None, like=None: None,
    "bincount": lambda x, /, weights=None, minlength=0: None,
    "concatenate": lambda arrays, /, axis=0, out=None, *, dtype=None, casting="same_kind": None,
    "dot": lambda a, b, out=None: None,
    "empty": lambda shape, dtype=None, order="C", *, device=None, like=None: None,
    "empty_like": lambda prototype, /, dtype=None, order="K", subok=True, shape=None, *, device=None: None,
    "inner": lambda a, b, /: None,
    "result_type": lambda *arrays_and_dtypes: None,
    "unravel_index": lambda indices, shape, order="C": None,
    "vdot": lambda a, b, /: None,
    "where": lambda condition, x=None, y=None, /: None,
    "zeros": lambda shape, dtype=None, order="C", *, device=None, like=None: None,
}


@functools.cache
def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.signature(_UNTOLD[function.__name__])


def _as_tensors(value: Any) -> Any:
    """Return an argument with its arrays replaced by tensors, also in lists and tuples."""
    if isinstance(value, np.ndarray):
        return as_tensor(value)
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
    """Translate the arguments `given` to NumPy's `function` into positional and keyword arguments of `ours`.

    Raises OperandError if `ours` lacks a parameter that is given.
    """
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
    """Return `result`; if `out` is not None, copy `result` to `out` and return `out`.

    Raises OperandError if `out` has a wrong type, or is an array for a `result` that requires a gradient.
    """
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
    """Apply a NumPy function to tensors; return NotImplemented if `types` includes another library's type.

    Raises OperandError, a TypeError, if there is no equivalent function.
    """
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

_REDUCED = {
    "add": reductions.sum, "multiply": reductions.prod, "maximum": reductions.max, "minimum": reductions.min,
    "logical_and": reductions.all, "logical_or": reductions.any,
}  # fmt: skip
_ACCUMULATED: dict[str, Callable[..., Any]] = {
    "add": scan.cumsum, "multiply": scan.cumprod, "maximum": lambda x, axis: scan.cummax(x, axis).values,
    "minimum": lambda x, axis: scan.cummin(x, axis).values,
}  # fmt: skip
# Options of ufuncs that are accepted only with these values, NumPy's defaults, if our function lacks the option.
_WITHOUT_EFFECT = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "keepdims": False, "dtype": None}


@functools.cache
def _elementwise_for(ufunc: np.ufunc) -> Callable[..., Any] | None:
    """Return our function for a ufunc of NumPy or scipy.special; None if there is none."""
    name = ufunc.__name__
    if getattr(np, name, None) is ufunc:
        return _functions().get(name)
    if getattr(sys.modules.get("scipy.special"), name, None) is ufunc and name in special_names.__all__:
        return getattr(special_names, name)  # type: ignore[no-any-return]
    return None


def _outer_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def outer(x: Any, y: Any) -> Any:
        first, second = (v if isinstance(v, Tensor) else tensor(v) for v in (x, y))
        return function(shape.reshape(first, (*first.shape, *(1,) * second.ndim)), second)

    return outer


_SEQUENCES = (list, tuple)


def _operands(inputs: tuple[Any, ...]) -> list[Any] | None:
    """Return operands with arrays and lists replaced by tensors; None if an operand is another library's array."""
    operands = []
    for x in inputs:
        if isinstance(x, np.ndarray):
            x = Tensor.wrap(native(x))
        elif isinstance(x, _SEQUENCES):
            x = tensor(x)
        elif not isinstance(x, promotion.OPERANDS):
            return None
        operands.append(x)
    return operands


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Apply a ufunc's method to tensors: "__call__", or another method such as "reduce".

    Return NotImplemented if an operand is another library's array: that library may compute the ufunc. Raises
    OperandError, a TypeError, if there is no equivalent function.
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
    """Return operands converted to `dtype`, a ufunc's option. Raises OperandError if the result has another dtype."""
    gives_bool = all(types.endswith("?") or types.endswith("O") for types in ufunc.types)
    if gives_bool and np.dtype(dtype) == np.bool_:
        return operands
    if gives_bool or ufunc.nout > 1:
        raise OperandError(f"np.{name}: got dtype={dtype!r}, which it does not take with tensors; use .to(dtype)")
    return [convert.to_dtype(x, dtype) if isinstance(x, Tensor) else x for x in operands]
