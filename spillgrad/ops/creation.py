"""Functions that make tensors from nothing or from data."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.device import as_device
from spillgrad.errors import ArgumentError, OperandError
from spillgrad.generator import Generator, default_generator
from spillgrad.ops.shape import shape_arguments
from spillgrad.tensor import Tensor
from spillgrad_kernels import memory
from spillgrad_kernels import random as kernels


def _finish(array: np.ndarray, requires_grad: bool, device: Any) -> Tensor:
    as_device(device)
    result = Tensor.wrap(array)
    if requires_grad:
        result.requires_grad = True
    return result


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a new tensor with a copy of `data`: nested lists, numbers, a NumPy array or a tensor.

    Python floats become the default float dtype, Python integers int64; arrays keep their dtype. Raises OperandError
    for data that is not numeric or not rectangular.
    """
    if isinstance(data, Tensor):
        array = data.array
    elif isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
    else:
        array = _from_python(data)
    wanted = dtypes.as_dtype(array.dtype if dtype is None else dtype)
    out = memory.empty(array.shape, wanted)
    np.copyto(out, array, casting="unsafe")
    return _finish(out, requires_grad, device)


def _from_python(data: Any) -> np.ndarray:
    try:
        if isinstance(data, list | tuple) and any(isinstance(item, Tensor) for item in data):
            data = [item.array if isinstance(item, Tensor) else item for item in data]
        array = np.asarray(data)
    except (ValueError, TypeError) as error:
        raise OperandError(f"tensor: got nested data that is not rectangular or not numeric ({error})") from error
    if array.dtype.kind not in "biufc" and array.dtype != dtypes.bfloat16:
        raise OperandError(f"tensor: got {type(data).__name__} data of {array.dtype}; wanted numbers")
    if array.dtype == np.float64 and not _holds_numpy(data):
        return array.astype(dtypes.get_default_dtype())
    return array.astype(dtypes.complex64) if array.dtype == np.complex128 and not _holds_numpy(data) else array


def _holds_numpy(data: Any) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, np.ndarray | np.generic)


def to_tensor(data: Any, dtype: Any = None, place: Any = None, stop_gradient: bool = True) -> Tensor:
    """Return a new tensor with a copy of `data` (Paddle's name)."""
    return tensor(data, dtype, place, not stop_gradient)


def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """Return `data` as a tensor, over the same memory where it is a tensor or array of that dtype."""
    wanted = None if dtype is None else dtypes.as_dtype(dtype)
    if isinstance(data, Tensor) and wanted in (None, data.dtype):
        return data
    if isinstance(data, np.ndarray) and wanted in (None, data.dtype):
        return from_numpy(data)
    return tensor(data, dtype, device)


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a tensor over a NumPy array's memory; writes through the array cannot be tracked."""
    if not isinstance(array, np.ndarray):
        raise OperandError(f"from_numpy: got {type(array).__name__}; wanted a NumPy array")
    dtypes.as_dtype(array.dtype)
    return Tensor.wrap(array).mark_shared()


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor over the memory of any object with `__dlpack__` (PyTorch, NumPy, …); its writes cannot be
    tracked.
    """
    return from_numpy(np.from_dlpack(source))


def empty(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of uninitialised memory."""
    return _finish(
        memory.empty(shape_arguments(size), dtypes.as_dtype(dtype or dtypes.get_default_dtype())), requires_grad, device
    )


def full(size: Any, fill_value: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor filled with one value, of that value's own dtype if none is given."""
    shape = (size,) if isinstance(size, int) else tuple(size)
    value = fill_value.item() if isinstance(fill_value, Tensor) else fill_value
    array = memory.empty(shape, dtypes.of_scalar(value) if dtype is None else dtypes.as_dtype(dtype))
    array.fill(value)
    return _finish(array, requires_grad, device)


def zeros(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of zeros; the shape as separate sizes or one list."""
    size, dtype = _with_positional_dtype(size, dtype)
    return full(shape_arguments(size), 0, dtype or dtypes.get_default_dtype(), device, requires_grad)


def ones(*size: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of ones; the shape as separate sizes or one list."""
    size, dtype = _with_positional_dtype(size, dtype)
    return full(shape_arguments(size), 1, dtype or dtypes.get_default_dtype(), device, requires_grad)


def _with_positional_dtype(size: tuple[Any, ...], dtype: Any) -> tuple[tuple[Any, ...], Any]:
    """Paddle passes (shape, dtype) by position."""
    if len(size) == 2 and isinstance(size[0], list | tuple):
        return (size[0],), size[1]
    return size, dtype


def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return the values from `start` (0 if only one bound is given) up to but without `end`, `step` apart."""
    if end is None:
        start, end = 0, start
    if step == 0:
        raise ArgumentError("arange: got step 0; it must not be zero")
    whole = all(isinstance(v, int | np.integer) for v in (start, end, step))
    wanted = dtypes.as_dtype(dtype or (dtypes.int64 if whole else dtypes.get_default_dtype()))
    return _finish(np.arange(start, end, step).astype(wanted), requires_grad, device)


def linspace(
    start: float, end: float, steps: int, dtype: Any = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return `steps` evenly spaced values from `start` to `end`, both included."""
    wanted = dtypes.as_dtype(dtype or dtypes.get_default_dtype())
    return _finish(np.linspace(start, end, steps).astype(wanted), requires_grad, device)


def eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
    """Return an n × m matrix with ones on the diagonal."""
    return _finish(np.eye(n, m, dtype=dtypes.as_dtype(dtype or dtypes.get_default_dtype())), requires_grad, device)


def _like(make: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def function(input: Tensor, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> Tensor:
        return make(input.shape, dtype=dtype or input.dtype, device=device, requires_grad=requires_grad)

    function.__name__ = function.__qualname__ = f"{make.__name__}_like"
    function.__doc__ = doc
    return function


zeros_like = _like(zeros, "Return zeros in the shape and dtype of `input`.")
ones_like = _like(ones, "Return ones in the shape and dtype of `input`.")
empty_like = _like(empty, "Return uninitialised memory in the shape and dtype of `input`.")


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor in the shape and dtype of `input` filled with one value."""
    return full(input.shape, fill_value, dtype or input.dtype, None, requires_grad)


def _random(
    draw: Callable[..., np.ndarray],
    size: tuple[Any, ...],
    dtype: Any,
    generator: Generator | None,
    requires_grad: bool,
    device: Any,
) -> Tensor:
    shape = shape_arguments(size)
    wanted = dtypes.as_dtype(dtype or dtypes.get_default_dtype())
    if not dtypes.is_floating_point(wanted):
        raise ArgumentError(f"{draw.__name__}: got dtype {wanted}; random reals need a floating-point dtype")
    drawn = wanted if wanted in (dtypes.float32, dtypes.float64) else dtypes.float32
    seed, offset = (generator or default_generator).take(kernels.counters_needed(int(np.prod(shape))))
    array = draw(shape, drawn, seed, offset)
    return _finish(array if drawn == wanted else array.astype(wanted), requires_grad, device)


def rand(
    *size: Any, dtype: Any = None, generator: Generator | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return values drawn uniformly from [0, 1)."""
    return _random(kernels.uniform, size, dtype, generator, requires_grad, device)


def randn(
    *size: Any, dtype: Any = None, generator: Generator | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Return values drawn from the standard normal distribution."""
    return _random(kernels.normal, size, dtype, generator, requires_grad, device)


def rand_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """Return uniform random values in the shape and dtype of `input`."""
    return rand(input.shape, dtype=dtype or input.dtype)


def randn_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """Return normal random values in the shape and dtype of `input`."""
    return randn(input.shape, dtype=dtype or input.dtype)


def randint(
    low: int,
    high: int | None = None,
    size: Any = (1,),
    dtype: Any = None,
    generator: Generator | None = None,
    device: Any = None,
) -> Tensor:
    """Return integers drawn uniformly from [low, high), or from [0, low) with one bound."""
    if isinstance(high, list | tuple):
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    if high <= low:
        raise ArgumentError(f"randint: got [{low}, {high}); high must exceed low")
    shape = tuple(size)
    seed, offset = (generator or default_generator).take(kernels.counters_needed(int(np.prod(shape))))
    return _finish(
        kernels.randint(low, high, shape, seed, offset).astype(dtypes.as_dtype(dtype or dtypes.int64)), False, device
    )


def randperm(n: int, generator: Generator | None = None) -> Tensor:
    """Return the integers 0 to n - 1 in random order."""
    seed, offset = (generator or default_generator).take(kernels.counters_needed(n))
    return Tensor.wrap(kernels.permutation(n, seed, offset))
