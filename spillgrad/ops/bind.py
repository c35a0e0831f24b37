"""Operations become methods and operators of `Tensor`, here and nowhere else, once at import."""

from collections.abc import Callable
from typing import Any

from spillgrad import dtypes
from spillgrad.autograd import differentiate
from spillgrad.autograd.core import node as graph
from spillgrad.errors import ArgumentError
from spillgrad.ops import (
    activations,
    arithmetic,
    bessel,
    choice,
    comparison,
    complex_numbers,
    convert,
    counting,
    creation,
    decompositions,
    distance,
    einsum,
    exponential,
    incomplete_gamma,
    index_writes,
    indexing,
    inplace,
    linalg,
    logic,
    normalization,
    norms,
    order,
    promotion,
    rearrange,
    reduce,
    rounding,
    sampling,
    scan,
    shape,
    sliding,
    solving,
    special,
    statistics,
    strided,
    subscript,
    trigonometry,
)
from spillgrad.tensor import Tensor

# Functions whose first argument is the tensor: a method of the same name each.
_METHODS: dict[Any, str] = {
    arithmetic: "mod positive",
    exponential: "logaddexp logaddexp2",
    comparison: "allclose equal isclose isfinite isinf isnan isneginf isposinf signbit",
    choice: "fmax fmin",
    shape: """
        broadcast_to chunk expand expand_as flatten flip moveaxis movedim narrow permute ravel repeat
        repeat_interleave reshape reshape_as roll select split split_with_sizes squeeze swapaxes swapdims t
        tile transpose unbind unflatten unsqueeze view view_as
    """,
    reduce: """
        all amax amin aminmax any argmax argmin count_nonzero logsumexp max mean min nanmean nansum norm
        prod std sum var
    """,
    order: "argsort kthvalue median mode msort nanmedian nanquantile quantile sort topk",
    scan: "cummax cummin diff logcumsumexp",
    complex_numbers: "adjoint angle conj resolve_conj",
    linalg: "bmm dot ger matmul mm mv outer",
    solving: "det logdet matrix_exp matrix_power slogdet",
    decompositions: "cholesky qr",
    normalization: "log_softmax softmax",
    indexing: "argwhere diag diagonal gather index_select masked_select nonzero take take_along_dim",
    index_writes: "diagonal_scatter fill_diagonal_ select_scatter slice_scatter",
    counting: "bincount histc isin unique unique_consecutive",
    statistics: "corrcoef cov histogram",
    strided: "as_strided squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_",
    distance: "cdist dist",
    einsum: "cross inner kron tensordot vdot",
    rearrange: """
        diag_embed diagflat dsplit fliplr flipud hsplit rot90 sum_to_size tensor_split trace vsplit
    """,
    sampling: "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial random_",
    sliding: "unfold",
    convert: "clone contiguous to",
    activations: "hardshrink prelu",
}
# Those that exist in place too, under the name with an underscore.
_IN_PLACE_TOO: dict[Any, str] = {
    arithmetic: """
        abs absolute add addcdiv addcmul div divide float_power floor_divide fmod gcd hypot lcm lerp mul
        multiply neg negative pow reciprocal remainder rsqrt sgn sign sqrt square sub subtract true_divide
    """,
    exponential: "exp exp2 expm1 ldexp log log10 log1p log2",
    trigonometry: """
        acos acosh arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh atan atan2 atanh cos cosh
        deg2rad rad2deg sin sinh tan tanh
    """,
    rounding: "ceil fix floor frac round trunc",
    comparison: "eq ge greater greater_equal gt le less less_equal lt ne not_equal",
    choice: "clamp clamp_max clamp_min clip maximum minimum nan_to_num",
    logic: """
        bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor logical_and
        logical_not logical_or logical_xor
    """,
    special: "copysign digamma erf erfc erfinv heaviside lgamma logit mvlgamma nextafter sinc xlogy",
    activations: "relu sigmoid",
    scan: "cumprod cumsum",
    shape: "tril triu",
    linalg: "addbmm addmm addmv addr baddbmm",
    norms: "renorm",
    bessel: "i0",
    incomplete_gamma: "igamma igammac",
    indexing: "index_add masked_fill scatter scatter_add",
    index_writes: "index_copy index_fill index_put index_reduce masked_scatter put scatter_reduce",
}

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
    """What is no operand is left to the other side's operator, as everywhere in Python."""

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
        "matmul": linalg.matmul,
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
    operators["__getitem__"] = subscript.getitem
    operators["__setitem__"] = subscript.setitem
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
    return choice.where(condition, self, other)


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


def _array_namespace(self: Tensor, /, *, api_version: str | None = None) -> Any:
    """Return the module with the array API standard's functions. Raises ArgumentError for another version."""
    from spillgrad import array_api

    if api_version not in (None, "2021.12", "2022.12", "2023.12", array_api.__array_api_version__):
        raise ArgumentError(
            f"__array_namespace__: got api_version={api_version!r}; wanted {array_api.__array_api_version__!r} or older"
        )
    return array_api


def _array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Do what NumPy's function of elements does, differentiably."""
    from spillgrad import numpy_functions

    return numpy_functions.call_ufunc(ufunc, method, inputs, options)


def _array_function(self: Tensor, function: Any, types: Any, arguments: Any, options: Any) -> Any:
    """Do what NumPy's function does, differentiably."""
    from spillgrad import numpy_functions

    return numpy_functions.call_function(function, types, arguments, options)


def bind() -> None:
    """Put every operation onto `Tensor` and tell the autograd core about it."""
    methods: dict[str, Any] = {}
    for module, names in _METHODS.items():
        methods |= {name: getattr(module, name) for name in names.split()}
    for module, names in _IN_PLACE_TOO.items():
        for name in names.split():
            methods[name] = getattr(module, name)
            methods[f"{name}_"] = _in_place(f"{name}_", methods[name])
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
        "__array_namespace__": _array_namespace,
        "__array_ufunc__": _array_ufunc,
        "__array_function__": _array_function,
        "inverse": solving.inv,
        "pinverse": solving.pinv,
        "type_as": _type_as,
        "astype": convert.to,
        "cast": convert.to,
        "where": _where,
        "polygamma": _polygamma,
        "backward": differentiate.tensor_backward,
        "copy_": inplace.copy_,
        "fill_": inplace.fill_,
        "zero_": inplace.zero_,
        "uniform_": creation.uniform_,
        "normal_": creation.normal_,
    }
    methods |= _operators(methods)
    for name, method in methods.items():
        setattr(Tensor, name, method)
    graph.register_tensor(Tensor, complex_numbers.add_gradients, complex_numbers.accumulate)


bind()
