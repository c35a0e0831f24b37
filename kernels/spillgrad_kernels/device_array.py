"""Arrays on a device, and how functions of arrays find their device's twins.

A device array knows where its elements are and reads none: how it lies in memory is a NumPy array over the device's
addresses, of which views are made and no element is read. What computes is in `spillgrad_kernels.cuda`, which is
imported when the first such array is made: it needs numba-cuda.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from spillgrad_kernels import memory
from spillgrad_kernels.pointers import address_of as host_address_of

Shape = tuple[int, ...]
Function = TypeVar("Function", bound=Callable[..., Any])


class NotOnDevice(TypeError):
    """No kernel of the device does this; the host could, with copies of the arrays."""


def _cuda(module: str) -> Any:
    return importlib.import_module(f"spillgrad_kernels.cuda.{module}")


class DeviceArray(NDArrayOperatorsMixin):
    """An array in device memory; shape, strides, dtype, flags and views are NumPy's.

    NumPy's functions take it where the device has a kernel for them. Those that would read its elements on the host,
    and `np.asarray`, raise NotOnDevice: `to_host` copies them there.
    """

    __slots__ = ("__weakref__", "_lying", "base")
    __hash__ = object.__hash__

    def __init__(self, lying: np.ndarray, base: "DeviceArray | None" = None) -> None:
        self._lying = lying
        self.base = base  # the array that this is a view of; as with NumPy's, who holds the view holds it

    def __repr__(self) -> str:
        return f"<{self.dtype} array of shape {self.shape} on a device>"

    @property
    def address(self) -> int:
        """The address of the first element."""
        return int(self._lying.__array_interface__["data"][0])

    @property
    def shape(self) -> Shape:
        """The size of each dimension."""
        return self._lying.shape

    @property
    def strides(self) -> Shape:
        """The bytes from one element to the next in each dimension."""
        return self._lying.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of the elements."""
        return self._lying.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._lying.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._lying.size

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self._lying.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._lying.nbytes

    @property
    def flags(self) -> Any:
        """NumPy's flags: whether the elements are in order without gaps, and may be written."""
        return self._lying.flags

    # Views

    def view_of(self, lying: np.ndarray) -> "DeviceArray":
        """Return the view of this array that lies in memory as a view of how this one does."""
        return DeviceArray(lying, self if self.base is None else self.base)

    @property
    def T(self) -> "DeviceArray":
        """A view with the dimensions in reverse order."""
        return self.view_of(self._lying.T)

    def __getitem__(self, key: Any) -> "DeviceArray":
        """Return a view; for an index with arrays a copy."""
        if _has_arrays(key):
            return _cuda("advanced_indexing").pick(self, key)  # type: ignore[no-any-return]
        return self.view_of(self._lying[_viewing(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        """Overwrite a part with a broadcast value. Raises NotOnDevice for an index with arrays."""
        _cuda("elementwise").assign(self.view_of(self._lying[_viewing(key)]), value)

    def __len__(self) -> int:
        return len(self._lying)

    def view(self, dtype: Any = None) -> "DeviceArray":
        """Return a view, of the same bytes as another dtype if one is given. Raises ValueError as NumPy does."""
        return self.view_of(self._lying.view() if dtype is None else self._lying.view(dtype))

    def transpose(self, *axes: Any) -> "DeviceArray":
        """Return a view with the dimensions in another order."""
        return self.view_of(self._lying.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> "DeviceArray":
        """Return a view with two dimensions exchanged."""
        return self.view_of(self._lying.swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> "DeviceArray":
        """Return a view without dimensions of size 1."""
        return self.view_of(self._lying.squeeze(axis))

    def broadcast_to(self, shape: Shape) -> "DeviceArray":
        """Return a view in which sizes of 1 are repeated."""
        return self.view_of(np.broadcast_to(self._lying, shape))

    def reshape(self, *shape: Any, copy: bool | None = None) -> "DeviceArray":
        """Return a view of another shape, or a copy where that takes one; then `copy=False` raises ValueError."""
        sizes = shape[0] if len(shape) == 1 else shape
        try:
            return self.view_of(np.reshape(self._lying, sizes, copy=False))
        except ValueError:
            if copy is False or self.flags.c_contiguous:  # of what is dense, sizes that do not multiply to it
                raise
        return self.copy().reshape(sizes)

    # Elements

    def copy(self) -> "DeviceArray":
        """Return a copy without gaps."""
        return _cuda("elementwise").copy(self)  # type: ignore[no-any-return]

    def astype(self, dtype: Any, order: str = "C", copy: bool = True) -> "DeviceArray":
        """Return a copy without gaps in another dtype; with `copy=False` the array itself where it has that."""
        if not copy and self.dtype == dtype:
            return self
        return _cuda("elementwise").copy(self, np.dtype(dtype))  # type: ignore[no-any-return]

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> "DeviceArray":
        """Return sums over dimensions, of all without `axis`; computed in `dtype`."""
        return np.sum(self, axis, dtype, keepdims=keepdims)  # type: ignore[no-any-return]

    def any(self, axis: Any = None, keepdims: bool = False) -> "DeviceArray":
        """Return whether elements are true, over dimensions, or over all without `axis`."""
        return np.any(self, axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.to_host())

    def __int__(self) -> int:
        return int(self.to_host())

    def fill(self, value: Any) -> None:
        """Set all elements to a number."""
        _cuda("elementwise").assign(self, value)

    def to_host(self) -> np.ndarray:
        """Return a copy in the host's memory, once all that computes it is done."""
        return _cuda("array").to_host(self)  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise NotOnDevice("NumPy reads the host's memory: to_host() copies an array there")

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        twins: dict[Any, Callable[..., Any]] = _cuda("numpy_functions").FUNCTIONS
        if function not in twins:
            raise NotOnDevice(f"numpy.{function.__name__}: no kernel of the device does this")
        return twins[function](*arguments, **options)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        if method != "__call__":
            raise NotOnDevice(f"numpy.{ufunc.__name__}.{method}: no kernel of the device does this")
        return _cuda("numpy_functions").call_ufunc(ufunc, *operands, **options)


# What an operation's forward function takes for a tensor. For type checkers all of them are NumPy's.
ARRAYS: tuple[Any, ...] = (np.ndarray, DeviceArray)


def is_on_device(array: object) -> bool:
    """Return whether something is an array of the device."""
    return type(array) is DeviceArray


def address_of(array: Any) -> int:
    """Return the address of the first element of an array, of the host or of the device."""
    return array.address if type(array) is DeviceArray else host_address_of(array)


def _has_arrays(key: Any) -> bool:
    return any([isinstance(part, ARRAYS) for part in (key if isinstance(key, tuple) else (key,))])


def _viewing(key: Any) -> Any:
    """Return the index of a view, whatever its dimensions. Raises NotOnDevice for one that NumPy would copy for."""
    parts = key if isinstance(key, tuple) else (key,)
    for part in parts:
        if not (part is None or part is ... or isinstance(part, slice | int | np.integer)) or isinstance(part, bool):
            raise NotOnDevice(
                f"index: got {type(part).__name__}; a device array's view takes numbers, slices, None, ..."
            )
    return parts if any(part is ... for part in parts) else (*parts, ...)  # without it, NumPy would read an element


def arange_beside(array: Any, count: int) -> np.ndarray:
    """Return the integers from 0 up to a count, on the device of an array."""
    return _cuda("indexing").arange(count) if type(array) is DeviceArray else np.arange(count)


def placed(memory: np.ndarray, offset: int, shape: Shape, dtype: Any, strides: Shape) -> np.ndarray:
    """Return what lies so many bytes into dense memory, of the host or of the device; strides are in bytes too."""
    if is_on_device(memory):
        array: Any = memory
        lying: np.ndarray = np.ndarray(shape, dtype, array._lying.reshape(-1).view(np.uint8).data, offset, strides)
        return array.view_of(lying)  # type: ignore[no-any-return]
    return np.ndarray(shape, dtype, memory, offset, strides)


def byte_bounds(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses of an array's first byte, and behind its last one."""
    array = getattr(array, "_lying", array)
    return np.lib.array_utils.byte_bounds(array)


def to_device(array: np.ndarray) -> np.ndarray:
    """Return a copy on the device, without gaps."""
    return _cuda("array").to_device(array)  # type: ignore[no-any-return]


def empty_on_device(shape: Shape, dtype: Any) -> np.ndarray:
    """Return an uninitialised array on the device, without gaps."""
    return _cuda("array").empty(shape, np.dtype(dtype))  # type: ignore[no-any-return]


def empty_beside(array: Any, shape: Shape, dtype: Any) -> np.ndarray:
    """Return an uninitialised array without gaps, on the device of another."""
    return empty_on_device(shape, dtype) if type(array) is DeviceArray else memory.empty(shape, dtype)


def zeros_beside(array: Any, shape: Shape, dtype: Any) -> np.ndarray:
    """Return an array of zeros without gaps, on the device of another."""
    return _cuda("array").zeros(shape, dtype) if type(array) is DeviceArray else memory.zeros(shape, dtype)


def beside(array: Any, other: np.ndarray) -> np.ndarray:
    """Return an array of the host, or a copy of it on the device of `array`."""
    return to_device(other) if type(array) is DeviceArray else other


def on_device(module: str) -> Callable[[Function], Function]:
    """Let a function of the CPU's kernels take device arrays too.

    The function of the same name and parameters in that module of `spillgrad_kernels.cuda` then computes. Raises
    NotOnDevice where there is none.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def choose(*arguments: Any, **options: Any) -> Any:
            for argument in arguments:
                if type(argument) is DeviceArray or (type(argument) in (list, tuple) and _has_device_array(argument)):
                    _require_device(choose, arguments)
                    return twin(choose)(*arguments, **options)
            return function(*arguments, **options)

        choose.device_module = module  # type: ignore[attr-defined]
        return choose  # type: ignore[return-value]

    return decorate


def _has_device_array(arguments: Sequence[Any]) -> bool:
    return any([type(argument) is DeviceArray for argument in arguments])


def _require_device(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    """Raise NotOnDevice for arrays of the host, but those without dimensions: they are numbers."""
    for argument in arguments:
        if type(argument) in (list, tuple):
            _require_device(function, argument)
        elif isinstance(argument, np.ndarray) and argument.ndim:
            raise NotOnDevice(
                f"{function.__name__}: got arrays of the host and of the device; they must be in one place"
            )


@functools.cache
def twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for a function of the CPU's kernels on a device. Raises NotOnDevice where nothing does."""
    name = function.__name__
    found = getattr(_cuda(function.device_module), name, None)  # type: ignore[attr-defined]
    if found is None:
        raise NotOnDevice(f"{name}: no kernel of the device does this")
    return found  # type: ignore[no-any-return]
