"""Operations become methods and operators of `Tensor`, here and nowhere else, once at import."""

from collections.abc import Callable
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd import differentiate
from spillgrad.autograd import node as graph
from spillgrad.ops import (
    convert,
    creation,
    elementwise,
    indexing,
    inplace,
    linalg,
    normalization,
    reduce,
    shape,
    subscript,
)
from spillgrad.tensor import Tensor

# Functions whose first argument is the tensor: a method of the same name each.
_METHODS: dict[Any, tuple[str, ...]] = {
    elementwise: (
        "abs",
        "absolute",
        "acos",
        "add",
        "asin",
        "atan",
        "atan2",
        "bitwise_and",
        "bitwise_not",
        "bitwise_or",
        "bitwise_xor",
        "ceil",
        "clamp",
        "clip",
        "cos",
        "cosh",
        "div",
        "divide",
        "eq",
        "erf",
        "exp",
        "expm1",
        "floor",
        "floor_divide",
        "ge",
        "greater",
        "greater_equal",
        "gt",
        "isfinite",
        "isinf",
        "isnan",
        "le",
        "lerp",
        "less",
        "less_equal",
        "log",
        "log10",
        "log1p",
        "log2",
        "logical_and",
        "logical_not",
        "logical_or",
        "logical_xor",
        "lt",
        "maximum",
        "minimum",
        "mul",
        "multiply",
        "ne",
        "neg",
        "negative",
        "not_equal",
        "pow",
        "reciprocal",
        "relu",
        "remainder",
        "round",
        "rsqrt",
        "sigmoid",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "sub",
        "subtract",
        "tan",
        "tanh",
        "trunc",
    ),
    shape: (
        "broadcast_to",
        "chunk",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "movedim",
        "narrow",
        "permute",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "split",
        "squeeze",
        "swapaxes",
        "t",
        "tile",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
    ),
    reduce: (
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "argsort",
        "count_nonzero",
        "cumsum",
        "logsumexp",
        "max",
        "mean",
        "min",
        "norm",
        "prod",
        "sort",
        "std",
        "sum",
        "topk",
        "var",
    ),
    linalg: ("matmul", "mm", "bmm", "outer"),
    normalization: ("softmax", "log_softmax"),
    indexing: (
        "gather",
        "index_add",
        "index_select",
        "masked_fill",
        "masked_select",
        "nonzero",
        "scatter",
        "scatter_add",
        "take",
        "take_along_dim",
    ),
    convert: ("clone", "contiguous", "to"),
}

_DTYPE_METHODS = {
    "float": dtypes.float32,
    "double": dtypes.float64,
    "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "int": dtypes.int32,
    "long": dtypes.int64,
    "bool": dtypes.bool_,
}


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: function(other, self)


def _augmented(name: str) -> Callable[..., Any]:
    method = inplace.METHODS[name]
    return lambda self, other: method(self, other)


def _operators() -> dict[str, Callable[..., Any]]:
    operators: dict[str, Callable[..., Any]] = {}
    for symbol, function in {
        "add": elementwise.add,
        "sub": elementwise.sub,
        "mul": elementwise.mul,
        "truediv": elementwise.div,
        "pow": elementwise.pow,
        "floordiv": elementwise.floor_divide,
        "mod": elementwise.remainder,
        "matmul": linalg.matmul,
    }.items():
        operators[f"__{symbol}__"] = function
        operators[f"__r{symbol}__"] = _swapped(function)
    for symbol in ("and", "or", "xor"):
        function = getattr(elementwise, f"bitwise_{symbol}")
        operators[f"__{symbol}__"] = operators[f"__r{symbol}__"] = function
    for symbol in ("eq", "ne", "lt", "le", "gt", "ge"):
        operators[f"__{symbol}__"] = getattr(elementwise, symbol)
    for symbol, name in {
        "add": "add_",
        "sub": "sub_",
        "mul": "mul_",
        "truediv": "div_",
        "pow": "pow_",
        "floordiv": "floor_divide_",
        "mod": "remainder_",
    }.items():
        operators[f"__i{symbol}__"] = _augmented(name)
    operators["__neg__"] = elementwise.neg
    operators["__pos__"] = lambda self: self
    operators["__abs__"] = elementwise.abs
    operators["__invert__"] = elementwise.bitwise_not
    operators["__getitem__"] = subscript.getitem
    operators["__setitem__"] = subscript.setitem
    return operators


def _comparable(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`==` and `!=` with what is no operand at all are False and True, as everywhere in Python."""

    def compare(self: Tensor, other: Any) -> Any:
        if other is None or isinstance(other, str):
            return name == "__ne__"
        return function(self, other)

    return compare


def bind() -> None:
    """Put every operation onto `Tensor` and tell the autograd core about it."""
    for module, names in _METHODS.items():
        for name in names:
            setattr(Tensor, name, getattr(module, name))
    for name, method in inplace.METHODS.items():
        setattr(Tensor, name, method)
    for name, function in _operators().items():
        setattr(Tensor, name, _comparable(name, function) if name in ("__eq__", "__ne__") else function)
    for name, dtype in _DTYPE_METHODS.items():
        setattr(Tensor, name, lambda self, dtype=dtype: convert.to_dtype(self, dtype))
    properties: dict[str, Callable[[Tensor], Any]] = {
        "T": lambda self: shape.permute(self, tuple(reversed(range(self.ndim)))),
        "mT": lambda self: shape.transpose(self, -2, -1),
    }
    for name, getter in properties.items():
        setattr(Tensor, name, property(getter))
    methods: dict[str, Callable[..., Any]] = {
        "cpu": lambda self: self,
        "type_as": lambda self, other: convert.to_dtype(self, other.dtype),
        "astype": convert.to,
        "cast": convert.to,
        "dot": lambda self, other: linalg.matmul(self, other),
        "where": lambda self, condition, other: elementwise.where(condition, self, other),
        "backward": differentiate.backward,
        "new_zeros": lambda self, *size, dtype=None: creation.zeros(*size, dtype=dtype or self.dtype),
        "new_ones": lambda self, *size, dtype=None: creation.ones(*size, dtype=dtype or self.dtype),
        "new_tensor": lambda self, data, dtype=None: creation.tensor(data, dtype=dtype or self.dtype),
    }
    for name, method in methods.items():
        setattr(Tensor, name, method)
    Tensor.__hash__ = lambda self: id(self)  # type: ignore[method-assign]
    graph.register_tensor(Tensor, elementwise.add)


bind()
