"""Methods and operators of `Tensor`: declared operations, and those that differ from every function of `sg`."""

from collections.abc import Callable, Mapping
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd import differentiate
from spillgrad.autograd.core import node as graph
from spillgrad.errors import ArgumentError
from spillgrad.ops import (
    arithmetic,
    clamp_where,
    comparison,
    complex_numbers,
    convert,
    creation,
    getitem_setitem,
    inplace,
    logic,
    matrix_products,
    promotion,
    shape,
    special,
)
from spillgrad.ops.declaration import declarations
from spillgrad.tensor import Tensor

_DTYPE_METHODS = {
    "float": dtypes.float32,
    "double": dtypes.float64,
    "half": dtypes.float16,
    "bfloat16": dtypes.bfloat16,
    "byte": dtypes.uint8,
    "char": dtypes.int8,
    "short": dtypes.int16,
    "int": dtypes.int32,
    "long": dtypes.int64,
    "bool": dtypes.bool_,
}

_NEW = (creation.empty, creation.zeros, creation.ones, creation.full, creation.tensor)


def _in_place(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return inplace.change(self, name, function, *arguments, **options)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Do `{name.rstrip('_')}` in place; return the tensor."
    return method


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that leaves other types to the operator of the other side, as everywhere in Python."""

    def operate(self: Tensor, other: Any) -> Any:
        return function(self, other) if isinstance(other, promotion.OPERANDS) else NotImplemented

    return operate


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return _operator(lambda self, other: function(other, self))


def _operators(methods: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    operators: dict[str, Callable[..., Any]] = {}
    two_sided: dict[str, Callable[..., Any]] = {
        "add": arithmetic.add,
        "sub": arithmetic.sub,
        "mul": arithmetic.mul,
        "truediv": arithmetic.div,
        "pow": arithmetic.pow,
        "floordiv": arithmetic.floor_divide,
        "mod": arithmetic.remainder,
        "matmul": matrix_products.matmul,
        "and": logic.bitwise_and,
        "or": logic.bitwise_or,
        "xor": logic.bitwise_xor,
        "lshift": logic.bitwise_left_shift,
        "rshift": logic.bitwise_right_shift,
    }
    for symbol, function in two_sided.items():
        operators[f"__{symbol}__"] = _operator(function)
        operators[f"__r{symbol}__"] = _swapped(function)
        if in_place := methods.get(f"{function.__name__}_"):
            operators[f"__i{symbol}__"] = _operator(in_place)
    for symbol in ("eq", "ne", "lt", "le", "gt", "ge"):
        operators[f"__{symbol}__"] = _operator(getattr(comparison, symbol))
    operators["__neg__"] = arithmetic.neg
    operators["__pos__"] = lambda self: self
    operators["__abs__"] = arithmetic.abs
    operators["__invert__"] = logic.bitwise_not
    operators["__getitem__"] = getitem_setitem.getitem
    operators["__setitem__"] = getitem_setitem.setitem
    return operators


def _new(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def method(self: Tensor, *arguments: Any, dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
        dtype, device = self.dtype if dtype is None else dtype, self.device if device is None else device
        return function(*arguments, dtype=dtype, device=device, **options)

    method.__doc__ = f"Do `{function.__name__}`, in this tensor's dtype and on its device if none are given."
    return method


def _conversion(dtype: dtypes.DType) -> Callable[[Tensor], Tensor]:
    def method(self: Tensor) -> Tensor:
        return convert.to_dtype(self, dtype)

    method.__doc__ = f"Return the tensor as {dtype}; itself where it is."
    return method


def _cpu(self: Tensor) -> Tensor:
    """Return the tensor in the host's memory; itself where it is there."""
    return convert.to(self, device="cpu")


def _type_as(self: Tensor, other: Tensor) -> Tensor:
    """Return the tensor in the dtype of `other` and on its device; itself where it is."""
    return convert.to(self, other)


def _where(self: Tensor, condition: Tensor, other: Any) -> Any:
    """Return elements of the tensor where `condition` holds, else of `other`."""
    return clamp_where.where(condition, self, other)


def _polygamma(self: Tensor, n: int) -> Tensor:
    """Return the n-th derivative of digamma."""
    return special.polygamma(n, self)


def _reversed_dims(self: Tensor) -> Tensor:
    """The view with all dimensions in reverse order."""
    return shape.permute(self, tuple(reversed(range(self.ndim))))


def _real(self: Tensor) -> Tensor:
    """The real parts as a copy (PyTorch's are a view); a real tensor itself."""
    return complex_numbers.real(self)


def _imag(self: Tensor) -> Tensor:
    """The imaginary parts as a copy (PyTorch's are a view)."""
    return complex_numbers.imag(self)


def _hermitian(self: Tensor) -> Tensor:
    """The conjugate transpose of a matrix."""
    return complex_numbers.conj(shape.t(self))


def _on_cuda(self: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
    """Return the tensor on a CUDA device; itself where it is there. Raises DeviceError where there is none."""
    return convert.to(self, device="cuda" if device is None else device)


def _is_here(self: Tensor) -> bool:
    """Whether the memory is the host's."""
    return not self.is_cuda


def _pinned(self: Tensor) -> Tensor:
    """Return the tensor: it is in the host's memory, which there is no device to pin for."""
    return self


def _type(self: Tensor, dtype: Any = None) -> Any:
    """Return the tensor as a dtype, or without one the name of its own."""
    return str(self.dtype) if dtype is None else convert.to_dtype(self, dtype)


def _is_nonzero(self: Tensor) -> bool:
    """Return whether the only element is not zero. Raises ArgumentError for more or fewer elements."""
    return bool(self)


def _is_same_size(self: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same shape."""
    return self.shape == other.shape


def _matrix_transpose(self: Tensor) -> Tensor:
    """The view with the last two dimensions swapped."""
    return shape.transpose(self, -2, -1)


def _to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """Return the tensor on a device; itself where it is there. Copies are in the order of streams: `stream` is None."""
    if stream is not None:
        raise ArgumentError(f"to_device: got stream={stream!r}; wanted None: the copy is in order with what computes")
    return convert.to(self, device=device)


def bind(protocols: Mapping[str, Callable[..., Any]]) -> None:
    """Put every operation that is declared so far onto `Tensor`, and further methods; tell the autograd core about it.

    `protocols` are methods by which other libraries ask.
    """
    methods: dict[str, Any] = {}
    for declared in declarations:
        methods |= dict.fromkeys(declared.method_names(), declared.function)
        for name in declared.in_place_names():
            methods[f"{name}_"] = _in_place(f"{name}_", declared.function)
    methods |= {name: _conversion(dtype) for name, dtype in _DTYPE_METHODS.items()}
    methods |= {f"new_{function.__name__}": _new(function) for function in _NEW}
    methods |= {
        "T": property(_reversed_dims),
        "mT": property(_matrix_transpose),
        "mH": property(complex_numbers.adjoint),
        "H": property(_hermitian),
        "real": property(_real),
        "imag": property(_imag),
        "is_cpu": property(_is_here),
        "cuda": _on_cuda,
        "pin_memory": _pinned,
        "share_memory_": _pinned,
        "type": _type,
        "is_nonzero": _is_nonzero,
        "is_same_size": _is_same_size,
        "cpu": _cpu,
        "to_device": _to_device,
        "type_as": _type_as,
        "where": _where,
        "polygamma": _polygamma,
        "backward": differentiate.tensor_backward,
    }
    methods |= _operators(methods) | dict(protocols)
    for name, method in methods.items():
        setattr(Tensor, name, method)
    graph.register_tensor(Tensor, complex_numbers.add_gradients, complex_numbers.accumulate)
