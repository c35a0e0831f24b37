"""Arrays on a device, and the choice of the device kernel for a function of arrays.

A device array holds the address of its elements, and never reads the elements on the host. NumPy finds the layout of a
view: it makes the view once, of an array at a stand-in address, whose elements are never read. The kernels are in
`spillgrad_kernels.cuda`. That package needs numba-cuda, and is imported when the first device array is made.
"""

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from spillgrad_kernels.layout import STAND_IN_ADDRESS, Layout, Shape
from spillgrad_kernels.layout import address_of as host_address_of
from spillgrad_kernels.memory import buffers

Function = TypeVar("Function", bound=Callable[..., Any])

# The most bytes that a thread of a device moves in one access. An aligned array has an address that is a multiple of
# this number.
ACCESS_BYTES = 16


class NotOnDevice(TypeError):
    """Raised for an operation without a device kernel. The host can compute the operation from copies of the arrays."""


class NoSuchAttribute(NotOnDevice, AttributeError):
    """Raised for an attribute that device arrays lack, such as a method of NumPy's arrays without a device kernel."""


def _cuda(module: str) -> Any:
    return importlib.import_module(f"spillgrad_kernels.cuda.{module}")


class Flags:
    """The flags of a device array, with the names that NumPy gives them. `writeable` can be set."""

    __slots__ = ("_array",)

    def __init__(self, array: "DeviceArray") -> None:
        self._array = array

    @property
    def c_contiguous(self) -> bool:
        """Whether the elements are in C order, without gaps."""
        return self._array.layout.dense

    @property
    def writeable(self) -> bool:
        """Whether elements may be overwritten."""
        return self._array.layout.writeable

    @writeable.setter
    def writeable(self, value: bool) -> None:
        layout = self._array.layout
        if layout.writeable is not value:
            self._array.layout = Layout.made(layout.shape, layout.strides, layout.dtype, value)

    @property
    def carray(self) -> bool:
        """Whether the elements are in C order, without gaps, and may be overwritten."""
        return self.c_contiguous and self.writeable


class DeviceArray(NDArrayOperatorsMixin):
    """An array in device memory, with shape, strides, dtype, flags and views as in NumPy.

    A NumPy function takes device arrays if the device has a kernel for the function. A function that would read the
    elements on the host, such as `np.asarray`, raises NotOnDevice; `to_host` copies the elements to the host. `address`
    is the address of the first element. A view refers to its `base`, as in NumPy. An array keeps `owner`, the owner of
    its memory, alive.
    """

    __slots__ = ("__weakref__", "address", "base", "dtype", "layout", "owner", "shape", "strides")
    __hash__ = object.__hash__

    def __init__(self, address: int, layout: Layout, owner: Any = None, base: "DeviceArray | None" = None) -> None:
        self.address = address
        self.layout = layout
        self.shape, self.strides, self.dtype = layout.shape, layout.strides, layout.dtype
        self.owner = owner
        self.base = base

    def __getattr__(self, name: str) -> Any:
        raise NoSuchAttribute(f"{name}: no kernel of the device does this")

    def __repr__(self) -> str:
        return f"<{self.dtype} array of shape {self.shape} on a device>"

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def flags(self) -> Flags:
        """The array's flags."""
        return Flags(self)

    # Views

    def unread(self) -> np.ndarray:
        """Return a NumPy array with the address and layout of this array. Do not read the NumPy array's elements."""
        return self.layout.at(self.address)

    def view_of(self, view: np.ndarray) -> "DeviceArray":
        """Return the device array with the address and layout of `view`, a NumPy view of the result of `unread`."""
        base = self if self.base is None else self.base
        return DeviceArray(host_address_of(view), Layout.of(view), None, base)

    def view_by(self, function: Callable[..., np.ndarray], *arguments: Any, **options: Any) -> "DeviceArray":
        """Return the view that the NumPy function `function(array, *arguments, **options)` makes of this array."""
        try:
            offset, layout = _viewed(function, self.layout, arguments, tuple(options.items()) if options else ())
        except TypeError:  # an argument is not hashable, such as a list, or is wrong
            return self.view_of(function(self.unread(), *arguments, **options))
        return DeviceArray(self.address + offset, layout, None, self if self.base is None else self.base)

    @property
    def T(self) -> "DeviceArray":
        """A view with the dimensions in reverse order."""
        return self.view_by(np.transpose)

    def __getitem__(self, key: Any) -> "DeviceArray":
        """Return a view of the elements at the index `key`, or a copy of the elements if `key` contains arrays."""
        if _has_arrays(key):
            return _cuda("advanced_indexing").pick(self, key)  # type: ignore[no-any-return]
        return self.view_by(_part, _viewing(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set the elements at the index `key` to the broadcast `value`. The last value of a repeated element stays."""
        if _has_arrays(key):
            _cuda("advanced_indexing").put(self, key, value)
        else:
            _cuda("elementwise").assign(self.view_by(_part, _viewing(key)), value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: got an array without dimensions")
        return self.shape[0]

    def view(self, dtype: Any = None) -> "DeviceArray":
        """Return a view of the same bytes, as `dtype` if it is given. Raises ValueError if `dtype` does not fit."""
        return self.view_by(np.ndarray.view, self.dtype if dtype is None else dtype)

    def transpose(self, *axes: Any) -> "DeviceArray":
        """Return a view with the dimensions in the order `axes`, by default in reverse order."""
        return self.view_by(np.ndarray.transpose, *axes)

    def swapaxes(self, axis1: int, axis2: int) -> "DeviceArray":
        """Return a view with the dimensions `axis1` and `axis2` exchanged."""
        return self.view_by(np.swapaxes, axis1, axis2)

    def squeeze(self, axis: Any = None) -> "DeviceArray":
        """Return a view without the dimensions `axis`, each of size 1; by default, without all dimensions of size 1."""
        return self.view_by(np.squeeze, axis)

    def broadcast_to(self, shape: Shape) -> "DeviceArray":
        """Return a view of `shape`, in which dimensions of size 1 are repeated."""
        return self.view_by(np.broadcast_to, shape)

    def reshape(self, *shape: Any, copy: bool | None = None) -> "DeviceArray":
        """Return a view of another shape. If no view has that shape, copy or, with `copy=False`, raise ValueError."""
        sizes = shape[0] if len(shape) == 1 else shape
        if copy is False or self.layout.dense:  # a dense array has a view of every shape
            return self.view_by(_reshaped, sizes)
        try:
            return self.view_by(_reshaped, sizes)
        except ValueError:
            return self.copy().reshape(sizes)

    # Elements

    def copy(self) -> "DeviceArray":
        """Return a dense copy: in C order, without gaps."""
        return _cuda("elementwise").copy(self)  # type: ignore[no-any-return]

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeviceArray":
        return self.copy()

    def __reduce__(self) -> Any:
        return to_device, (self.to_host(),)

    def astype(self, dtype: Any, order: str = "C", copy: bool = True) -> "DeviceArray":
        """Return a dense copy, converted to `dtype`. With `copy=False`, return this array itself if it has `dtype`."""
        if not copy and self.dtype == dtype:
            return self
        return _cuda("elementwise").copy(self, np.dtype(dtype))  # type: ignore[no-any-return]

    def sum(self, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> "DeviceArray":
        """Return the sums over the dimensions `axis`, by default over all dimensions; converted to `dtype` if given."""
        return np.sum(self, axis, dtype, keepdims=keepdims)  # type: ignore[no-any-return]

    def any(self, axis: Any = None, keepdims: bool = False) -> "DeviceArray":
        """Return whether any element along the dimensions `axis` is true; by default, along all dimensions."""
        return np.any(self, axis, keepdims=keepdims)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return bool(self.to_host())

    def __int__(self) -> int:
        return int(self.to_host())

    def fill(self, value: Any) -> None:
        """Set all elements to the number `value`."""
        _cuda("elementwise").assign(self, value)

    def to_host(self) -> np.ndarray:
        """Wait until the elements are computed, then return a copy of the array in host memory."""
        return _cuda("array").to_host(self)  # type: ignore[no-any-return]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise NotOnDevice("NumPy reads the host's memory: to_host() copies an array there")

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        functions: dict[Any, Callable[..., Any]] = _cuda("numpy_functions").FUNCTIONS
        if function not in functions:
            raise NotOnDevice(f"numpy.{function.__name__}: no kernel of the device does this")
        return functions[function](*arguments, **options)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        return _cuda("numpy_functions").call_ufunc(ufunc, method, *operands, **options)


# The types of the arrays that an operation's forward function gets for tensors. For type checkers, every array is a
# NumPy array.
ARRAYS: tuple[Any, ...] = (np.ndarray, DeviceArray)


def is_on_device(array: object) -> bool:
    """Return whether an object is an array on a device."""
    return type(array) is DeviceArray


def address_of(array: Any) -> int:
    """Return the address of the first element of an array on the host or on a device."""
    return array.address if type(array) is DeviceArray else host_address_of(array)


def _has_arrays(key: Any) -> bool:
    return any([isinstance(part, ARRAYS) for part in (key if isinstance(key, tuple) else (key,))])


def _viewing(key: Any) -> tuple[Any, ...]:
    """Return the index `key` as a hashable tuple. Raises NotOnDevice for an index with which NumPy makes no view."""
    parts: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if part is None or part is ... or type(part) is int:
            parts.append(part)
        elif isinstance(part, slice):
            ends = (part.start, part.stop, part.step)
            parts.append(tuple([end if end is None or type(end) is int else index(end) for end in ends]))
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            parts.append(int(part))
        else:
            raise NotOnDevice(
                f"index: got {type(part).__name__}; a device array's view takes numbers, slices, None, ..."
            )
    return tuple(parts)


def _part(array: np.ndarray, key: tuple[Any, ...]) -> np.ndarray:
    """Return the view of `array` at an index `key` that `_viewing` returned."""
    parts = tuple([slice(*part) if type(part) is tuple else part for part in key])
    # Without an ellipsis, NumPy would return an element, not a view, if all parts are integers.
    found: np.ndarray = array[parts if ... in parts else (*parts, ...)]
    return found


def _reshaped(array: np.ndarray, sizes: Any) -> np.ndarray:
    return np.reshape(array, sizes, copy=False)


@functools.lru_cache(maxsize=1 << 14)
def _viewed(
    function: Callable[..., np.ndarray],
    layout: Layout,
    arguments: tuple[Any, ...],
    options: tuple[tuple[str, Any], ...],
) -> tuple[int, Layout]:
    """Return the offset, in bytes, and the layout of the view that `function` makes of an array with `layout`."""
    found = function(layout.at(), *arguments, **dict(options))
    return host_address_of(found) - STAND_IN_ADDRESS, Layout.of(found)


def arange_beside(array: Any, count: int) -> np.ndarray:
    """Return the integers 0 to `count` - 1 as an array, on the device if `array` is on a device, else on the host."""
    return _cuda("indexing").arange(count) if type(array) is DeviceArray else np.arange(count)


def strided_view(memory: np.ndarray, offset: int, shape: Shape, dtype: Any, strides: Shape) -> np.ndarray:
    """Return a view of the dense array `memory`, on the host or a device, with the given shape, dtype and strides.

    The view begins at `offset` in `memory`. Units: `offset` and `strides` are in bytes.
    """
    if is_on_device(memory):
        array: Any = memory
        view: np.ndarray = np.ndarray(shape, dtype, array.unread().reshape(-1).view(np.uint8).data, offset, strides)
        return array.view_of(view)  # type: ignore[no-any-return]
    return np.ndarray(shape, dtype, memory, offset, strides)


def byte_bounds(array: np.ndarray) -> tuple[int, int]:
    """Return the lowest address of an array's bytes, and the address after its last byte."""
    looked_at: Any = array
    if type(looked_at) is DeviceArray:
        low, high = looked_at.layout.bounds
        return looked_at.address + low, looked_at.address + high
    return np.lib.array_utils.byte_bounds(array)


def may_share_memory(a: Any, b: Any) -> bool:
    """Return whether the address ranges of two arrays on the device overlap. False if an array is on the host."""
    if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
        return False
    (low, high), (other_low, other_high) = byte_bounds(a), byte_bounds(b)  # type: ignore[arg-type]
    return max(low, other_low) < min(high, other_high)


def to_device(array: np.ndarray) -> np.ndarray:
    """Return a dense copy of `array` on the device."""
    return _cuda("array").to_device(array)  # type: ignore[no-any-return]


def empty_on_device(shape: Shape, dtype: Any) -> np.ndarray:
    """Return an uninitialised dense array on the device."""
    return _cuda("array").empty(shape, np.dtype(dtype))  # type: ignore[no-any-return]


def empty_beside(array: Any, shape: Shape, dtype: Any) -> np.ndarray:
    """Return an uninitialised dense array, on the device if `array` is on a device, else on the host."""
    return empty_on_device(shape, dtype) if type(array) is DeviceArray else buffers.empty(shape, dtype)


def zeros_beside(array: Any, shape: Shape, dtype: Any) -> np.ndarray:
    """Return a dense array of zeros, on the device if `array` is on a device, else on the host."""
    return _cuda("array").zeros(shape, dtype) if type(array) is DeviceArray else buffers.zeros(shape, dtype)


def beside(array: Any, other: np.ndarray) -> np.ndarray:
    """Return the host array `other` or, if `array` is on a device, a copy of `other` on the device."""
    return to_device(other) if type(array) is DeviceArray else other


def prepare_on_device(*arguments: Any) -> Any:
    """Return the plan for an elementwise formula on the device (see `spillgrad_kernels.cuda.elementwise.prepare`)."""
    return _cuda("elementwise").prepare(*arguments)


def on_device(module: str) -> Callable[[Function], Function]:
    """Return a decorator that lets a function, which computes on the CPU, take device arrays too.

    Given device arrays, the decorated function calls the function of the same name and parameters in `module` of
    `spillgrad_kernels.cuda`. It raises NotOnDevice if `module` has no such function, and for complex numbers: on a
    device they are moved, which the module "indexing" does, but not computed with.
    """
    refuses_complex = module != "indexing"

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def choose(*arguments: Any, **options: Any) -> Any:
            for argument in arguments:
                kind = type(argument)
                if kind is DeviceArray or ((kind is list or kind is tuple) and _has_device_array(argument)):
                    _require_device(choose, arguments, refuses_complex)
                    return device_kernel(choose)(*arguments, **options)
            return function(*arguments, **options)

        choose.device_module = module  # type: ignore[attr-defined]
        return choose  # type: ignore[return-value]

    return decorate


def _has_device_array(arguments: Sequence[Any]) -> bool:
    return any([type(argument) is DeviceArray for argument in arguments])


def _require_device(function: Callable[..., Any], arguments: Sequence[Any], refuses_complex: bool) -> None:
    """Raise NotOnDevice if `arguments` contain an array on the host, except arrays without dimensions.

    With `refuses_complex`, raise it for complex arrays, too.
    """
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple:
            _require_device(function, argument, refuses_complex)
        elif kind is DeviceArray:
            if refuses_complex:
                refuse_complex(function.__name__, argument)
        elif isinstance(argument, np.ndarray) and argument.ndim:
            raise NotOnDevice(
                f"{function.__name__}: got arrays of the host and of the device; they must be in one place"
            )


def refuse_complex(name: str, array: DeviceArray) -> None:
    """Raise NotOnDevice if an array is complex."""
    if array.dtype.kind == "c":
        raise NotOnDevice(f"{name}: no kernel of the device computes with complex numbers")


@functools.cache
def device_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the device function for a function decorated by `on_device`. Raises NotOnDevice if there is none."""
    name = function.__name__
    module: str = function.device_module  # type: ignore[attr-defined]
    try:
        found = getattr(_cuda(module), name, None)
    except ModuleNotFoundError as error:
        if error.name != f"spillgrad_kernels.cuda.{module}":
            raise
        found = None
    if found is None:
        raise NotOnDevice(f"{name}: no kernel of the device does this")
    return found  # type: ignore[no-any-return]
