"""Functions that make tensors from nothing or from data.

Their `options` are those of PyTorch that change nothing here: see `require_dense`.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device import dlpack
from spillgrad.device.device import CPU, CUDA, Array, as_device, filled, moved
from spillgrad.device.device import empty as empty_array
from spillgrad.device.memory_layout import require_dense
from spillgrad.errors import ArgumentError, OperandError, ShapeError
from spillgrad.generator import Generator, default_generator
from spillgrad.ops import docstrings, inplace
from spillgrad.ops.array_casts import cast, of_number
from spillgrad.ops.complex_views import REALS, real, view_as_real
from spillgrad.ops.convert import to
from spillgrad.ops.declaration import declare, named
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import native
from spillgrad_kernels.cpu import random as kernels
from spillgrad_kernels.device_array import device_kernel
from spillgrad_kernels.tables.random import counters_needed

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_dlpack", "from_numpy", "frombuffer", "full",
    "full_like", "linspace", "logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "scalar_tensor", "tensor", "to_tensor", "zeros", "zeros_like",
]  # fmt: skip


def _finish(array: Array, requires_grad: bool, device: Any) -> Tensor:
    result = Tensor.wrap(moved(array, as_device(device)))
    if requires_grad:
        result.requires_grad = True
    return result


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any) -> Tensor:
    """Return a new tensor with a copy of data.

    Parameters
    ----------
    data : Any
        Nested lists, numbers, a NumPy array, a tensor, or a CUDA array.
    dtype : dtype, optional
        Data type of the result; by default, that of an array, the default dtype for Python floats, int64 for integers.
    device : Device or str, optional
        Where the result is; by default, where a tensor is, or the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        With the values of `data`.

    Raises
    ------
    OperandError
        If the data is not numeric.
    ShapeError
        If nested data is not rectangular.
    ArgumentError
        If an integer dtype cannot hold the numbers.

    Examples
    --------
    >>> import spillgrad as sg
    >>> x = sg.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> tuple(x.shape)
    (2, 2)
    """
    if options:
        require_dense("tensor", options)
    if isinstance(data, Tensor):
        wanted = data.numpy_dtype if dtype is None else dtypes.as_dtype(dtype)
        return _finish(cast(data.array, wanted), requires_grad, data.device if device is None else device)
    if hasattr(data, "__cuda_array_interface__"):
        return tensor(Tensor.wrap(dlpack.import_interface(data)), dtype, device, requires_grad)
    is_array = hasattr(data, "__array__")
    array = np.asarray(data) if is_array else _from_python(data)
    wanted = dtypes.as_dtype(dtype if dtype is not None else array.dtype if is_array else _natural_dtype(data))
    if not is_array:
        _check_range(array, wanted)
    return _finish(cast(array, wanted), requires_grad, device)


def _from_python(data: Any) -> np.ndarray:
    try:
        if isinstance(data, list | tuple) and any(isinstance(item, Tensor) for item in data):
            data = [item.host_array() if isinstance(item, Tensor) else item for item in data]
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: got nested data that is not rectangular or not numeric ({error})") from error
    except TypeError as error:
        raise OperandError(f"tensor: got nested data that is not numeric ({error})") from error
    if array.dtype.kind not in "biufc" and array.dtype != dtypes.bfloat16:
        raise OperandError(f"tensor: got {type(data).__name__} data of {array.dtype}; wanted numbers")
    return array


def _natural_dtype(data: Any) -> dtypes.DType:
    """Return the common dtype of the numbers in nested data, or the default float dtype if there are none."""
    found = _dtypes_within(data)
    return functools.reduce(dtypes.promote, found) if found else dtypes.get_default_dtype()


def _dtypes_within(data: Any) -> set[dtypes.DType]:
    if isinstance(data, Tensor):
        return {data.numpy_dtype}
    if isinstance(data, np.ndarray | np.generic):
        return {data.dtype}
    if not isinstance(data, list | tuple | range):
        return {dtypes.of_scalar(data)}
    # By type, not by element: long lists of numbers take a millisecond per 100,000.
    found: set[dtypes.DType] = set()
    for kind in set(map(type, data)):
        if issubclass(kind, bool | int | float | complex) and not issubclass(kind, np.generic):
            found.add(dtypes.of_scalar(kind()))
        else:
            found.update(*(_dtypes_within(item) for item in data if type(item) is kind))
    return found


def _check_range(array: np.ndarray, dtype: dtypes.DType) -> None:
    """Raise ArgumentError if `dtype` is an integer dtype that cannot hold the numbers of the array."""
    if dtypes.category(dtype) != 1 or not array.size or array.dtype == dtypes.bool_ or dtypes.is_complex(array.dtype):
        return
    limits = dtypes.iinfo(dtype)
    fits = bool(np.all((array >= limits.min) & (array <= limits.max)))  # false for NaN too
    if not fits:
        raise ArgumentError(f"tensor: got numbers that {dtype} cannot hold; it takes {limits.min} to {limits.max}")


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Tensor:
    """Return a new tensor with a copy of data (Paddle's name of `tensor`).

    Parameters
    ----------
    data : Any
        As in `tensor`.
    dtype : dtype, optional
        Data type of the result; by default, as in `tensor`.
    place : Device or str, optional
        Where the result is; by default, where a tensor is, or the default device.
    stop_gradient : bool, default True
        Whether operations on the result are not recorded.

    Returns
    -------
    Tensor
        With the values of `data`.
    """
    return tensor(data, dtype, place, not stop_gradient)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return data as a tensor, without a copy if it is a tensor or array with the wanted dtype and device.

    The conversion of a tensor that requires a gradient is recorded.

    Parameters
    ----------
    data : Any
        As in `tensor`; an object with `__cuda_array_interface__` is an array on the CUDA device.
    dtype : dtype, optional
        Data type of the result; by default, as in `tensor`.
    device : Device or str, optional
        Where the result is; by default, where the data is.

    Returns
    -------
    Tensor
        With the values of `data`.
    """
    if not isinstance(data, Tensor) and hasattr(data, "__cuda_array_interface__"):
        data = Tensor.wrap(dlpack.import_interface(data)).mark_shared()
    if isinstance(data, Tensor):
        return to(data, dtype=dtype, device=device)
    # Not `in (None, …)`: to NumPy, float64 equals None.
    as_it_is = isinstance(data, np.ndarray) and (dtype is None or dtypes.as_dtype(dtype) == data.dtype)
    return from_numpy(data) if as_it_is and as_device(device) is CPU else tensor(data, dtype, device)


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor over a NumPy array's memory; autograd does not notice writes through the array.

    Parameters
    ----------
    array : ndarray
        Of a dtype that tensors have.

    Returns
    -------
    Tensor
        Over the memory of `array`.

    Raises
    ------
    OperandError
        If `array` is not an array.
    ArgumentError
        If its byte order is not this machine's.
    """
    if not isinstance(array, np.ndarray):
        raise OperandError(f"from_numpy: got {type(array).__name__}; wanted a NumPy array")
    if native(array) is not array:
        raise ArgumentError(
            f"from_numpy: got {array.dtype.str}, another byte order than this machine's; tensor() copies and converts"
        )
    return Tensor.wrap(array).mark_shared()


def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """Return a tensor over the memory of an object such as `bytearray`; autograd misses writes through the object.

    A tensor over read-only memory cannot be written.

    Parameters
    ----------
    buffer : Any
        Object that has a buffer of bytes.
    dtype : dtype
        Data type of the elements.
    count : int, default -1
        Number of elements; -1 takes all.
    offset : int, default 0
        Byte at which the elements begin.
    requires_grad : bool, default False
        Whether to record operations on the result.

    Returns
    -------
    Tensor
        Vector over the memory of the buffer.

    Raises
    ------
    ArgumentError
        If the buffer has too few bytes, or none.
    """
    try:
        array = np.frombuffer(buffer, dtypes.as_dtype(dtype), count, offset)
    except ValueError as error:
        raise ArgumentError(f"frombuffer: got dtype {dtype}, count {count} and offset {offset}: {error}") from error
    if not array.size:
        raise ArgumentError(f"frombuffer: both buffer length ({array.nbytes}) and count ({count}) must not be 0")
    return from_numpy(array).requires_grad_(requires_grad)


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor over the memory of any object with `__dlpack__`, on the host or on CUDA.

    Autograd misses writes through the object.

    Parameters
    ----------
    source : Any
        Such as a tensor of PyTorch, or an array of NumPy.

    Returns
    -------
    Tensor
        Over the memory of `source`.

    Raises
    ------
    DtypeError
        If NumPy lacks the dtype.
    DeviceError
        If the memory is on another device.
    OperandError
        If the object has no `__dlpack__`.
    """
    if isinstance(source, Tensor):
        return source.detach()
    if not hasattr(source, "__dlpack__"):
        raise OperandError(f"from_dlpack: got {type(source).__name__}; wanted an object with __dlpack__")
    if getattr(source, "__dlpack_device__", lambda: dlpack.HOST)()[0] == dlpack.DEVICE[0]:
        return Tensor.wrap(dlpack.import_from(source)).mark_shared()
    return from_numpy(dlpack.import_from_host(source))


def _sizes(name: str, positional: tuple[Any, ...], *named: Any) -> tuple[int, ...]:
    """Return a new tensor's shape, given by position or by keyword. Raises ShapeError for negative sizes."""
    sizes = shape_arguments(positional, next((n for n in named if n is not None), None))
    if any(size < 0 for size in sizes):
        raise ShapeError(f"{name}: got shape {sizes}; sizes are 0 or more")
    return sizes


def _dtype_or_default(dtype: Any) -> dtypes.DType:
    return dtypes.get_default_dtype() if dtype is None else dtypes.as_dtype(dtype)


def _with_positional_dtype(sizes: tuple[Any, ...], dtype: Any) -> tuple[tuple[Any, ...], Any]:
    """Return (sizes, dtype), with the dtype taken from `sizes` if that is (shape, dtype), as Paddle passes them."""
    if len(sizes) == 2 and isinstance(sizes[0], list | tuple):
        return sizes[:1], sizes[1]
    return sizes, dtype


def empty(
    *sizes: Any,
    size: Any = None,
    shape: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Return a tensor of uninitialised memory.

    Parameters
    ----------
    *sizes : int
        Shape, as separate sizes or one list.
    size : sequence of int, optional
        Shape, by name.
    shape : sequence of int, optional
        Paddle's name of `size`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ShapeError
        If a size is negative.
    """
    if options:
        require_dense("empty", options)
    sizes, dtype = _with_positional_dtype(sizes, dtype)
    array = empty_array(as_device(device), _sizes("empty", sizes, size, shape), _dtype_or_default(dtype))
    return _finish(array, requires_grad, device)


def full(
    size: Any = None, fill_value: Any = 0, dtype: Any = None, device: Any = None, requires_grad: bool = False, *,
    shape: Any = None, **options: Any
) -> Tensor:  # fmt: skip
    """Return a tensor filled with one value.

    Parameters
    ----------
    size : sequence of int, optional
        Shape of the result.
    fill_value : number, default 0
        Value of all elements.
    dtype : dtype, optional
        Data type of the result; by default, the value's own.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    shape : sequence of int, optional
        Paddle's name of `size`.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ArgumentError
        If an integer dtype cannot hold the value.
    ShapeError
        If a size is negative.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.full((2,), 7).tolist()
    [7, 7]
    """
    if options:
        require_dense("full", options)
    value = fill_value.item() if isinstance(fill_value, Tensor | np.generic) else fill_value
    wanted = dtypes.of_scalar(value) if dtype is None else dtypes.as_dtype(dtype)
    _check_range(np.asarray(value), wanted)
    value = of_number("full", value, wanted)[()] if isinstance(value, complex) else value
    sizes = _sizes("full", () if size is None else (size,), shape)
    with np.errstate(over="ignore"):
        array = filled(as_device(device), sizes, wanted, value)
    return _finish(array, requires_grad, device)


def _filled(
    name: str, value: int, sizes: Any, size: Any, shape: Any, dtype: Any, device: Any, requires_grad: bool
) -> Tensor:  # fmt: skip
    sizes, dtype = _with_positional_dtype(sizes, dtype)
    return full(_sizes(name, sizes, size, shape), value, _dtype_or_default(dtype), device, requires_grad)


def zeros(
    *sizes: Any,
    size: Any = None,
    shape: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Return a tensor of zeros.

    Parameters
    ----------
    *sizes : int
        Shape, as separate sizes or one list.
    size : sequence of int, optional
        Shape, by name.
    shape : sequence of int, optional
        Paddle's name of `size`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ShapeError
        If a size is negative.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.zeros(2, 3).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if options:
        require_dense("zeros", options)
    return _filled("zeros", 0, sizes, size, shape, dtype, device, requires_grad)


def ones(
    *sizes: Any,
    size: Any = None,
    shape: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Return a tensor of ones.

    Parameters
    ----------
    *sizes : int
        Shape, as separate sizes or one list.
    size : sequence of int, optional
        Shape, by name.
    shape : sequence of int, optional
        Paddle's name of `size`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ShapeError
        If a size is negative.
    """
    if options:
        require_dense("ones", options)
    return _filled("ones", 1, sizes, size, shape, dtype, device, requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Return the numbers from `start` up to but excluding `end`, `step` apart.

    Parameters
    ----------
    start : number
        First number; if it is the only bound, it is the end, and the numbers start at 0.
    end : number, optional
        Bound that is excluded.
    step : number, default 1
        Distance of neighbours; it leads towards the end.
    dtype : dtype, optional
        Data type of the result; by default, int64 for integers, otherwise the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Vector of the numbers.

    Raises
    ------
    ArgumentError
        If `step` is 0, or leads away from the end.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.arange(1, 10, 3).tolist()
    [1, 4, 7]
    """
    if options:
        require_dense("arange", options)
    start, end, step = (v.item() if isinstance(v, Tensor | np.generic) else v for v in (start, end, step))
    if end is None:
        start, end = 0, start
    if step == 0:
        raise ArgumentError("arange: got step 0; it must not be zero")
    if (end - start) * step < 0:
        raise ArgumentError(f"arange: got {start} to {end} in steps of {step}; the step must lead towards the end")
    whole = all(isinstance(v, int) for v in (start, end, step))
    wanted = dtypes.int64 if dtype is None and whole else _dtype_or_default(dtype)
    return _finish(cast(np.arange(start, end, step), wanted), requires_grad, device)


def _spaced(name: str, start: Any, end: Any, steps: int) -> np.ndarray:
    if steps < 0:
        raise ArgumentError(f"{name}: got {steps} steps; give 0 or more")
    number = complex if _are_complex(start, end) else float
    return np.linspace(number(start), number(end), steps)


def _are_complex(*numbers: Any) -> bool:
    return any(isinstance(n.item() if isinstance(n, Tensor | np.generic) else n, complex) for n in numbers)


def linspace(
    start: Any, end: Any, steps: int, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:
    """Return evenly spaced numbers from `start` to `end`, both included.

    Parameters
    ----------
    start, end : number
        First and last number.
    steps : int
        How many numbers.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype, or its complex form for complex bounds.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of shape (steps,).

    Raises
    ------
    ArgumentError
        If `steps` is negative.
    """
    if options:
        require_dense("linspace", options)
    values = _spaced("linspace", start, end, steps)
    return _finish(cast(values, _spaced_dtype(values, dtype)), requires_grad, device)


def _spaced_dtype(values: np.ndarray, dtype: Any) -> dtypes.DType:
    return dtypes.of_scalar(1j) if dtype is None and values.dtype.kind == "c" else _dtype_or_default(dtype)


def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None,
    requires_grad: bool = False, **options: Any
) -> Tensor:  # fmt: skip
    """Return `base` to the power of evenly spaced exponents from `start` to `end`, both included.

    Parameters
    ----------
    start, end : number
        First and last exponent.
    steps : int
        How many numbers.
    base : float, default 10.0
        Base of the powers.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype, or its complex form for complex bounds.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of shape (steps,).

    Raises
    ------
    ArgumentError
        If `steps` is negative.
    """
    if options:
        require_dense("logspace", options)
    powers = np.power(float(base), _spaced("logspace", start, end, steps))
    return _finish(cast(powers, _spaced_dtype(powers, dtype)), requires_grad, device)


def scalar_tensor(
    s: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:
    """Return a number as a 0-d tensor.

    Parameters
    ----------
    s : number
        The number.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of shape ().
    """
    if options:
        require_dense("scalar_tensor", options)
    return tensor(s, _dtype_or_default(dtype), device, requires_grad)


def eye(
    n: int, m: int | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:
    """Return a matrix with ones on the diagonal and zeros elsewhere.

    Parameters
    ----------
    n : int
        Number of rows.
    m : int, optional
        Number of columns; by default, `n`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of shape (n, m).

    Raises
    ------
    ShapeError
        If a size is negative.
    """
    if options:
        require_dense("eye", options)
    shape = _sizes("eye", (n, n if m is None else m))
    return _finish(np.eye(*shape, dtype=_dtype_or_default(dtype)), requires_grad, device)


def _like(make: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(
        input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **options: Any
    ) -> Tensor:
        wanted = input.numpy_dtype if dtype is None else dtype
        place = input.device if device is None else device
        return make(input.shape, dtype=wanted, device=place, requires_grad=requires_grad, **options)

    doc = docstrings.composed(
        doc, docstrings.INPUT,
        "dtype : dtype, optional\n    Data type of the result; by default, that of the input.",
        "device : Device or str, optional\n    Where the result is; by default, where the input is.",
        "requires_grad : bool, default False\n    Whether to record operations on the result.",
        docstrings.OPTIONS, returns="Tensor\n    Of the shape of `input`.",
    )  # fmt: skip
    return named(function, f"{make.__name__}_like", doc)


zeros_like = _like(zeros, "Return a tensor of zeros, in the shape and dtype of `input`.")
ones_like = _like(ones, "Return a tensor of ones, in the shape and dtype of `input`.")
empty_like = _like(empty, "Return a tensor of uninitialised memory, in the shape and dtype of `input`.")


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Tensor:
    """Return a tensor filled with one value, in the shape and dtype of `input`.

    Parameters
    ----------
    input : Tensor
        Of any shape.
    fill_value : number
        Value of all elements.
    dtype : dtype, optional
        Data type of the result; by default, that of the input.
    device : Device or str, optional
        Where the result is; by default, where the input is.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the shape of `input`.
    """
    if options:
        require_dense("full_like", options)
    place = input.device if device is None else device
    return full(input.shape, fill_value, input.numpy_dtype if dtype is None else dtype, place, requires_grad)


def _drawn(kernel: Callable[..., np.ndarray], count: int, generator: Any, device: Any, *arguments: Any) -> Array:
    """Run a random kernel on a device, with these arguments and the generator's next `count` numbers."""
    seed, offset = (generator or default_generator).take(counters_needed(count))
    return (device_kernel(kernel) if as_device(device) is CUDA else kernel)(*arguments, seed, offset)


def draw(
    name: str, kernel: Callable[..., np.ndarray], shape: Any, dtype: Any, generator: Generator | None,
    device: Any = None,
) -> Array:  # fmt: skip
    """Return random numbers drawn by a kernel, the same on all devices, in a floating dtype (None: the default).

    In a complex dtype, real and imaginary parts are drawn apart. Normal numbers then have the variance 1 in all, as
    PyTorch's have: each part has 1/2.
    """
    wanted = _dtype_or_default(dtype)
    if wanted in REALS:
        parts = Tensor.wrap(draw(name, kernel, (*shape, 2), REALS[wanted], generator, device))
        if kernel is kernels.normal:
            parts.mul_(math.sqrt(0.5))
        return parts.array.view(wanted)[..., 0]
    if not dtypes.is_floating_point(wanted):
        raise ArgumentError(f"{name}: got dtype {wanted}; random reals need a floating-point dtype")
    drawn = wanted if wanted == dtypes.float64 else dtypes.float32
    array = _drawn(kernel, math.prod(shape), generator, device, shape, drawn)
    return array if drawn == wanted else cast(array, wanted)


def _random(
    name: str, kernel: Callable[..., np.ndarray], sizes: Any, size: Any, shape: Any, dtype: Any,
    generator: Generator | None, device: Any, requires_grad: bool,
) -> Tensor:  # fmt: skip
    sizes, dtype = _with_positional_dtype(sizes, dtype)
    array = draw(name, kernel, _sizes(name, sizes, size, shape), dtype, generator, device)
    return _finish(array, requires_grad, device)


def rand(
    *sizes: Any, size: Any = None, shape: Any = None, dtype: Any = None, generator: Generator | None = None,
    device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:  # fmt: skip
    """Return numbers drawn uniformly from [0, 1).

    Parameters
    ----------
    *sizes : int
        Shape, as separate sizes or one list.
    size : sequence of int, optional
        Shape, by name.
    shape : sequence of int, optional
        Paddle's name of `size`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ArgumentError
        If the dtype is neither of floating-point nor of complex numbers.
    ShapeError
        If a size is negative.
    """
    if options:
        require_dense("rand", options)
    return _random("rand", kernels.uniform, sizes, size, shape, dtype, generator, device, requires_grad)


def randn(
    *sizes: Any, size: Any = None, shape: Any = None, dtype: Any = None, generator: Generator | None = None,
    device: Any = None, requires_grad: bool = False, **options: Any
) -> Tensor:  # fmt: skip
    """Return numbers drawn from the standard normal distribution.

    Parameters
    ----------
    *sizes : int
        Shape, as separate sizes or one list.
    size : sequence of int, optional
        Shape, by name.
    shape : sequence of int, optional
        Paddle's name of `size`.
    dtype : dtype, optional
        Data type of the result; by default, the default floating-point dtype.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    device : Device or str, optional
        Where the result is; by default, the default device.
    requires_grad : bool, default False
        Whether to record operations on the result.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape; of complex numbers, each part has the variance 1/2.

    Raises
    ------
    ArgumentError
        If the dtype is neither of floating-point nor of complex numbers.
    ShapeError
        If a size is negative.

    Examples
    --------
    >>> import spillgrad as sg
    >>> g = sg.Generator().manual_seed(0)
    >>> a, b = sg.randn(2, 3, generator=g), sg.randn(2, 3, generator=g.manual_seed(0))
    >>> a.equal(b)
    True
    """
    if options:
        require_dense("randn", options)
    return _random("randn", kernels.normal, sizes, size, shape, dtype, generator, device, requires_grad)


rand_like = _like(rand, "Return draws from [0, 1), in the shape and dtype of `input`.")
randn_like = _like(randn, "Return draws from the standard normal distribution, in the shape and dtype of `input`.")


@declare(method=True)
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with draws from U(a, b); return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of floating-point or complex numbers.
    a : float, default 0.0
        Lower bound.
    b : float, default 1.0
        Upper bound.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself, changed.
    """
    if tensor.is_complex():
        uniform_(view_as_real(tensor), a, b, generator=generator)
        return tensor
    draws = Tensor.wrap(draw("uniform_", kernels.uniform, tensor.shape, tensor.numpy_dtype, generator, tensor.device))
    return inplace.copy_(tensor, draws.mul_(b - a).add_(a))  # in place, for the largest tensors of a model


@declare(method=True)
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite the tensor with draws from N(mean, std²); return the tensor.

    Parameters
    ----------
    tensor : Tensor
        Of floating-point or complex numbers.
    mean : float, default 0.0
        Mean.
    std : float, default 1.0
        Standard deviation.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.

    Returns
    -------
    Tensor
        The tensor itself, changed.
    """
    if tensor.is_complex():
        normal_(view_as_real(tensor), 0.0, std * math.sqrt(0.5), generator=generator)
        if mean:
            real(tensor).add_(mean)
        return tensor
    draws = Tensor.wrap(draw("normal_", kernels.normal, tensor.shape, tensor.numpy_dtype, generator, tensor.device))
    return inplace.copy_(tensor, draws.mul_(std).add_(mean))


def randint(
    low: Any = 0, high: Any = None, size: Any = None, dtype: Any = None, generator: Generator | None = None,
    device: Any = None, *, shape: Any = (1,), **options: Any
) -> Tensor:  # fmt: skip
    """Return integers drawn uniformly from [low, high).

    Parameters
    ----------
    low : int, default 0
        Least integer; if it is the only bound, it is the upper one, and the least integer is 0.
    high : int, optional
        Bound that is excluded.
    size : sequence of int, optional
        Shape of the result.
    dtype : dtype, optional
        Data type of the result; by default, int64.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    device : Device or str, optional
        Where the result is; by default, the default device.
    shape : sequence of int, default (1,)
        Paddle's name of `size`.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of the given shape.

    Raises
    ------
    ArgumentError
        If the upper bound does not exceed the lower one.
    """
    if options:
        require_dense("randint", options)
    if isinstance(high, list | tuple):
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if high <= low:
        raise ArgumentError(f"randint: got [{low}, {high}); high must exceed low")
    sizes = _sizes("randint", (shape,) if size is None else (size,))
    wanted = dtypes.int64 if dtype is None else dtypes.as_dtype(dtype)
    array = _drawn(kernels.randint, math.prod(sizes), generator, device, low, high, sizes)
    return _finish(cast(array, wanted), False, device)


def randperm(n: int, generator: Generator | None = None, *, device: Any = None, **options: Any) -> Tensor:
    """Return the integers 0 to n - 1 in random order.

    Parameters
    ----------
    n : int
        How many integers.
    generator : Generator, optional
        Where draws come from; by default, the generator of `manual_seed`.
    device : Device or str, optional
        Where the result is; by default, the default device.
    **options : Any
        PyTorch's options that change nothing here, such as `layout` and `pin_memory`.

    Returns
    -------
    Tensor
        Of int64, of shape (n,).
    """
    if options:
        require_dense("randperm", options)
    (n,) = _sizes("randperm", (n,))
    return Tensor.wrap(_drawn(kernels.permutation, n, generator, device, n))
