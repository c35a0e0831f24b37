"""Mixed precision: in an `autocast` region, products compute in half precision, and some functions in float32.

Entering a region puts a check before every product, by an `Interception`. While no thread is in a region, operations
cost nothing extra. Functions that must compute in float32 are made of several operations; the decorator
`float32_in_autocast` marks them. Derivatives never convert: each runs in the dtypes of its forward operation.
"""

import functools
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from spillgrad import data_type, dtypes
from spillgrad.autograd.core import hooks
from spillgrad.autograd.core.grad_mode import decorated, is_recording, no_grad, state
from spillgrad.autograd.core.node import Edge
from spillgrad.errors import ArgumentError, DtypeError, SavedTensorError
from spillgrad.ops.convert import edge_as, to_dtype
from spillgrad.ops.intercept import Interception, without_handler
from spillgrad.ops.operation import Operation
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.cuda.driver.availability import missing
from spillgrad_kernels.device_array import address_of, strided_view

__all__ = [
    "autocast", "clear_autocast_cache", "get_autocast_cpu_dtype", "get_autocast_dtype", "get_autocast_gpu_dtype",
    "is_autocast_cache_enabled", "is_autocast_cpu_enabled", "is_autocast_enabled",
]  # fmt: skip

_Function = TypeVar("_Function", bound=Callable[..., Any])

_PRODUCTS = frozenset(
    ("mm", "bmm", "mv", "dot", "matmul", "linear", "convolution", "conv_transpose", "scaled_dot_product_attention")
)
# float64 stays, as in PyTorch.
_CONVERTED = dtypes.HALF | {dtypes.float32}


class _Origin(NamedTuple):
    """The parameter that was converted, without the parameter's graph. An offloaded parameter is not held in RAM."""

    storage: Storage
    version: int
    look: Any

    def tensor(self, operation: str, slot: str) -> Tensor:
        """Return the parameter whose conversion `operation` saved as `slot`.

        Raises SavedTensorError if the parameter has changed since.
        """
        tensor: Tensor = self.look if isinstance(self.look, Tensor) else self.look.tensor()
        if self.storage.version != self.version:
            raise SavedTensorError(
                f"one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{operation} saved a parameter of {tensor.shape} as '{slot}', which is at version "
                f"{self.storage.version}; expected version {self.version} instead: go backward before it changes"
            )
        return tensor


class CastOf(Storage):
    """The storage of a parameter's converted copy, which can be made again unless copy or parameter have changed."""

    def __init__(self, array: np.ndarray, parameter: Tensor) -> None:
        super().__init__(array)
        storage = parameter._storage
        look = storage.view_of(parameter) if storage.offloaded else Tensor.wrap(parameter._array, storage)
        self.origin = _Origin(storage, storage.version, look)

    @property
    def offloaded(self) -> bool:  # type: ignore[override]
        """Whether a graph need not hold this storage, because the parameter is offloaded and can be converted again."""
        return self.origin.storage.offloaded and not self.version

    def view_of(self, tensor: Tensor) -> "Conversion":
        """Return the `Conversion` that a graph saves in place of `tensor`, a tensor over this storage."""
        return Conversion(self, tensor._array)


class Conversion:
    """What a graph saves for a tensor over a `CastOf` storage: the parameter and the tensor's layout in the storage."""

    __slots__ = ("_array", "_dtype", "_label", "_offset", "_origin")

    def __init__(self, storage: CastOf, array: np.ndarray) -> None:
        self._origin = storage.origin
        self._label = hooks.packing()
        self._dtype = storage.array.dtype
        self._array = array.dtype, array.shape, array.strides
        self._offset = address_of(array) - address_of(storage.array) if array.size else 0

    def tensor(self) -> Tensor:
        """Convert the parameter again and return the tensor. Raises SavedTensorError if the parameter has changed."""
        dtype, shape, strides = self._array
        converted = to_dtype(self._origin.tensor(*self._label), self._dtype)
        return Tensor.wrap(strided_view(converted.array, self._offset, shape, dtype, strides), converted.storage)


class _Known(NamedTuple):
    """A cached conversion of a parameter, and the memory and version that the parameter had at the conversion."""

    parameter: weakref.ref[Tensor]
    memory: np.ndarray | Storage
    version: int
    is_recorded: bool
    edge: Edge
    converted: Callable[[], Tensor | None]

    def is_for(self, parameter: Tensor) -> bool:
        return (
            self.parameter() is parameter
            and self.memory is _memory_of(parameter)
            and self.version == parameter._storage.version
            and (self.is_recorded or not is_recording())
        )


def _memory_of(parameter: Tensor) -> np.ndarray | Storage:
    return parameter._storage if parameter._storage.offloaded else parameter._array


class _Region(threading.local):
    """Per thread: the depth of nested `autocast` regions, and the conversions cached in the outermost region."""

    def __init__(self) -> None:
        self.depth = 0
        self.known: dict[tuple[int, dtypes.DType], _Known] = {}


_region = _Region()


class Casting(NamedTuple):
    """The dtype that products on a device convert their operands to, and whether converted parameters are cached."""

    device_type: str
    dtype: dtypes.DType
    cache_enabled: bool

    def is_for(self, argument: Any, sources: frozenset[dtypes.DType]) -> bool:
        """Return whether an argument is a tensor on the device, with one of the dtypes `sources`."""
        is_one = isinstance(argument, Tensor) and argument.numpy_dtype in sources
        return is_one and argument.device.type == self.device_type

    def operands(self, operation: Operation, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return an operation's arguments; a product's float32 and half-precision operands are converted to `dtype`."""
        if operation.name not in _PRODUCTS:
            return arguments
        with without_handler():
            return tuple([self._converted(argument) for argument in arguments])

    def _converted(self, argument: Any) -> Any:
        if not self.is_for(argument, _CONVERTED) or argument.numpy_dtype == self.dtype:
            return argument
        storage = argument._storage
        if not (storage.trainable or storage.offloaded) or storage.is_inference:
            return to_dtype(argument, self.dtype)
        if not self.cache_enabled or argument._base is not None or not argument.is_leaf:
            return _parameter_as(argument, self.dtype)
        key = id(argument), self.dtype
        known = _region.known.get(key)
        if known is not None and known.is_for(argument):
            converted = known.converted()
            if converted is None:  # it was freed: it is made again, at its old place in the graph
                with no_grad():
                    converted = _parameter_as(argument, self.dtype)
                node, output_nr = known.edge
                if node is not None:
                    converted.attach(node, output_nr)
        else:
            converted = _parameter_as(argument, self.dtype)
            # Hooks may move the graph's copy elsewhere, and an offloaded parameter leaves RAM: keep neither copy here.
            stays = not (hooks.depth() or storage.offloaded)
            _region.known[key] = _Known(
                weakref.ref(argument), _memory_of(argument), storage.version, converted.requires_grad,
                converted.gradient_edge(), (lambda: converted) if stays else weakref.ref(converted),
            )  # fmt: skip
        if storage.offloaded and isinstance(converted._storage, CastOf):
            storage.hold(converted)
        return converted


def _parameter_as(parameter: Tensor, dtype: dtypes.DType) -> Tensor:
    rounded = parameter._rounded_to(dtype)
    if rounded is not None:
        return rounded.alias(edge_as(parameter, dtype))  # type: ignore[no-any-return]
    converted = to_dtype(parameter, dtype)
    converted._storage = CastOf(converted._array, parameter)
    return converted


def product_dtype(dtype: dtypes.DType) -> dtypes.DType:
    """Return the dtype to which this thread's products convert operands of `dtype`; without `autocast`, `dtype`."""
    casting = state.autocast
    return casting.dtype if casting is not None and dtype in _CONVERTED else dtype


def as_operand(parameter: Tensor) -> Tensor:
    """Return a parameter in the dtype in which this thread's products take it."""
    casting = state.autocast
    if casting is None:
        return parameter
    with without_handler():
        return casting._converted(parameter)  # type: ignore[no-any-return]


def rounded_for_product(operand: Tensor, dtype: dtypes.DType) -> Tensor:
    """Return an operand that a product rounds to `dtype` itself; rounded, if a store has it so, with its gradient."""
    rounded = operand._rounded_to(dtype)
    return operand if rounded is None else rounded.alias(operand.gradient_edge())


def products_are_in(dtype: dtypes.DType, operand: Tensor) -> bool:
    """Return whether this thread is in a region whose products convert `operand` to `dtype`."""
    casting = state.autocast
    return casting is not None and casting.dtype == dtype and casting.is_for(operand, _CONVERTED)


def require_products_dtype(name: str, first: Tensor, **others: Tensor | None) -> None:
    """Raise DtypeError unless a product's operands have one dtype, or will have one after conversion by `autocast`."""
    for what, other in others.items():
        if other is None or other.dtype is first.dtype:
            continue
        if product_dtype(other.numpy_dtype) == product_dtype(first.numpy_dtype):
            continue
        raise DtypeError(f"{name}: got input {first.dtype} and {what} {other.dtype}; convert one with .to(dtype)")


class autocast:
    """Context manager and decorator: this thread computes products in half precision.

    Parameters and their gradients keep their dtype. Backward, inside or outside the region, computes in the dtypes of
    the forward. Use bfloat16 or scale the loss: gradients below 6e-8 are 0 in float16.

    Parameters
    ----------
    device_type : {"cpu", "cuda"}, default "cpu"
        Only tensors on this device are converted. With "cuda" on a machine without it, `autocast` warns and does
        nothing, as in PyTorch.
    dtype : dtype, optional
        Dtype of products, bfloat16 (the default) or float16; with another, `autocast` warns and does nothing.
    enabled : bool, default True
        Whether to convert; False switches an outer region off.
    cache_enabled : bool, optional
        Whether a parameter is converted only once in the outermost region; by default, as in the outer region, or True.

    Raises
    ------
    ArgumentError
        If `device_type` is another one.

    Notes
    -----
    `matmul`, `mm`, `bmm`, `linear`, `addmm`, `baddbmm`, `einsum`, convolutions and `scaled_dot_product_attention`
    convert floating-point operands (except float64) to `dtype`, sum in float32 and round once. Losses, `mv`, `dot`,
    `prod`, `trace`, `cdist`, quantiles, `sg.fft`, and the inverses, determinants and factorizations of `sg.linalg`
    convert half precision to float32. `linear_cross_entropy` does so too, but on the CPU its products round their
    operands to bfloat16, if that is the dtype. All other operations compute in the dtype they are given; normalizations
    take float32 parameters with an input of any dtype.

    If hooks on saved tensors are active, or the parameter is offloaded, the converted copy is freed when nothing uses
    it, and made again when needed. `save_on_disk` saves the parameter instead of the copy. A new copy is made after the
    parameter changed, and where gradients are recorded if the old copy is from `no_grad`. `checkpoint` restores the
    mode for its recomputations.

    Source: Micikevicius et al. 2018, "Mixed precision training"; torch.autocast.

    Examples
    --------
    >>> import spillgrad as sg
    >>> a, b = sg.ones(2, 3), sg.ones(3, 2)
    >>> with sg.autocast("cpu"):
    ...     (a @ b).dtype == sg.bfloat16
    True
    """

    def __init__(
        self, device_type: str = "cpu", dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if not isinstance(device_type, str) or device_type.split(":")[0] not in ("cpu", "cuda"):
            raise ArgumentError(f'autocast: got device_type={device_type!r}; wanted "cpu" or "cuda"')
        self.device = device_type.split(":")[0]
        self.fast_dtype = dtypes.bfloat16 if dtype is None else dtypes.as_dtype(dtype)
        if enabled and self.fast_dtype not in dtypes.HALF:
            warnings.warn(
                f"autocast: got dtype={self.fast_dtype}; products can be in bfloat16 or float16. Disabling autocast",
                stacklevel=2,
            )
            enabled = False
        lack = missing() if enabled and self.device == "cuda" else None
        if lack is not None:
            warnings.warn(f"autocast: got device_type={device_type!r}; {lack}. Disabling", stacklevel=2)
            enabled = False
        self._enabled = bool(enabled)
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else bool(cache_enabled)
        self._before: list[tuple[Casting | None, Interception | None]] = []

    def _again(self) -> "autocast":
        return autocast(self.device, self.fast_dtype, self._enabled, self._cache_enabled)

    def __enter__(self) -> "autocast":
        interception = Interception(_PRODUCTS) if self._enabled else None
        self._before.append((state.autocast, interception))
        _region.depth += 1
        state.autocast = Casting(self.device, self.fast_dtype, self._cache_enabled) if self._enabled else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        state.autocast, interception = self._before.pop()
        if interception is not None:
            interception.end()
        _region.depth -= 1
        if _region.depth == 0:
            clear_autocast_cache()

    def __call__(self, function: _Function) -> _Function:
        return decorated(function, self._again)  # type: ignore[return-value]


def present() -> autocast:
    """Return an `autocast` context manager that restores the mode that this thread has now."""
    casting: Casting | None = state.autocast
    if casting is None:
        return autocast(enabled=False)
    return autocast(casting.device_type, casting.dtype, True, casting.cache_enabled)


def is_autocast_enabled(device_type: str = "cpu") -> bool:
    """Return whether this thread computes products on devices of a type in half precision.

    Parameters
    ----------
    device_type : {"cpu", "cuda"}, default "cpu"
        Type of the devices.

    Returns
    -------
    bool
        Whether it does.
    """
    return state.autocast is not None and state.autocast.device_type == device_type


def get_autocast_dtype(device_type: str = "cpu") -> data_type.dtype:
    """Return the dtype of products in the current `autocast` region.

    Parameters
    ----------
    device_type : {"cpu", "cuda"}, default "cpu"
        Has no effect.

    Returns
    -------
    dtype
        The region's dtype; outside any region, the default bfloat16.
    """
    return data_type.bfloat16 if state.autocast is None else data_type.BY_NUMPY[state.autocast.dtype]


def _older(name: str, newer: str) -> None:
    warnings.warn(
        f"torch.{name}() is deprecated. Please use torch.{newer} instead.", DeprecationWarning, stacklevel=3
    )  # fmt: skip


def get_autocast_gpu_dtype() -> data_type.dtype:
    """Return ``get_autocast_dtype("cuda")``; it warns, as PyTorch does.

    Returns
    -------
    dtype
        The region's dtype; outside any region, bfloat16.

    Warns
    -----
    DeprecationWarning
        Always.
    """
    _older("get_autocast_gpu_dtype", "get_autocast_dtype('cuda')")
    return get_autocast_dtype("cuda")


def get_autocast_cpu_dtype() -> data_type.dtype:
    """Return ``get_autocast_dtype("cpu")``; it warns, as PyTorch does.

    Returns
    -------
    dtype
        The region's dtype; outside any region, bfloat16.

    Warns
    -----
    DeprecationWarning
        Always.
    """
    _older("get_autocast_cpu_dtype", "get_autocast_dtype('cpu')")
    return get_autocast_dtype("cpu")


def is_autocast_cpu_enabled() -> bool:
    """Return ``is_autocast_enabled("cpu")``; it warns, as PyTorch does.

    Returns
    -------
    bool
        Whether this thread computes products on the CPU in half precision.

    Warns
    -----
    DeprecationWarning
        Always.
    """
    _older("is_autocast_cpu_enabled", "is_autocast_enabled('cpu')")
    return is_autocast_enabled("cpu")


def is_autocast_cache_enabled() -> bool:
    """Return whether conversions of parameters are cached until the outermost region ends.

    Returns
    -------
    bool
        Whether they are; True outside any region.
    """
    return state.autocast is None or state.autocast.cache_enabled


def clear_autocast_cache() -> None:
    """Drop this thread's cached conversions of parameters."""
    _region.known.clear()


def float32_in_autocast(function: _Function) -> _Function:
    """Decorate a function: in a region, run it with `autocast` off and half-precision arguments as float32."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        casting = state.autocast
        if casting is None:
            return function(*arguments, **options)
        state.autocast = None
        try:
            return function(
                *[_as(argument, casting, dtypes.HALF, dtypes.float32) for argument in arguments],
                **{name: _as(option, casting, dtypes.HALF, dtypes.float32) for name, option in options.items()},
            )
        finally:
            state.autocast = casting

    return call  # type: ignore[return-value]


def half_in_autocast(function: _Function) -> _Function:
    """Decorate a function: convert positional float32 and half-precision arguments to the dtype of a region, if any.

    For functions that compute several products.
    """

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        casting = state.autocast
        if casting is not None:
            arguments = tuple([_as(argument, casting, _CONVERTED, casting.dtype) for argument in arguments])
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def _as(argument: Any, casting: Casting, sources: frozenset[dtypes.DType], dtype: dtypes.DType) -> Any:
    if not casting.is_for(argument, sources):
        return argument
    return to_dtype(argument, dtype) if argument._rounded_to(dtype) is None else _parameter_as(argument, dtype)
