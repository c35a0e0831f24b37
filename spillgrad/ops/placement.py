"""Compute operations on the device of all operands, or on the host if the device has no kernel."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from spillgrad.device.device import CPU, CUDA, Device, moved
from spillgrad.errors import DeviceError, GraphError, HostComputeWarning
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import ARRAYS, DeviceArray, NotOnDevice

Function = TypeVar("Function", bound=Callable[..., Any])


def require_one_device(name: str, arguments: Iterable[Any]) -> None:
    """Raise DeviceError if tensors are on different devices.

    0-d tensors on the host fit any device: they count as Python numbers. Arrays that are not tensors may be on
    any device: they are settings of the operation.
    """
    found: dict[Device, Any] = {}
    for argument in arguments:
        if not isinstance(argument, Tensor):
            continue
        array: Any = argument._array
        if type(array) is DeviceArray:
            found.setdefault(CUDA, array)
        elif array.ndim:
            found.setdefault(CPU, array)
    if len(found) > 1:
        got = " and ".join(f"one of shape {array.shape} on '{device}'" for device, array in found.items())
        raise DeviceError(f"{name}: got tensors on different devices, {got}; move one with .to(device)")


def compute_on_host(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on copies of its arrays and tensors on the host; return its results, copied to the device.

    Gradients of tensors are copied the same way. The first call for an operation warns.
    Raises DeviceError if the function changes an argument: the change of the copy would be lost.
    """
    require_one_device(name, arguments)
    return _computed_on_host(name, function, arguments, {})


def _computed_on_host(
    name: str, function: Callable[..., Any], arguments: Iterable[Any], options: dict[str, Any]
) -> Any:
    warn_of_host(name)
    given = [_moved(argument, CPU) for argument in arguments]
    try:
        found = function(*given, **{option: _moved(value, CPU) for option, value in options.items()})
    except (ValueError, GraphError) as error:
        if "read-only" not in str(error):
            raise
        raise DeviceError(
            f"{name}: on {CUDA} this changes a tensor in place, of which the host has a copy; use tensors moved with "
            ".cpu()"
        ) from error
    return _moved(found, CUDA)


def computed_anywhere(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that has no gradient; if the device has no kernel for it, call it on copies on the host."""
    try:
        return function(*arguments)
    except NotOnDevice:
        return compute_on_host(name, function, *arguments)


def by_host(function: Function) -> Function:
    """Decorate a function that has no kernel for the device: the host computes it; results and gradients are copied."""

    @functools.wraps(function)
    def computed(*arguments: Any, **options: Any) -> Any:
        if not _any_on_device(function, arguments, options):
            return function(*arguments, **options)
        return _computed_on_host(function.__name__, function, arguments, options)

    return computed  # type: ignore[return-value]


def or_by_host(function: Function) -> Function:
    """Decorate like `by_host`, but use the host only if a device has no kernel. `function` must change no argument."""
    on_host = by_host(function)

    @functools.wraps(function)
    def computed(*arguments: Any, **options: Any) -> Any:
        _any_on_device(function, arguments, options)
        try:
            return function(*arguments, **options)
        except NotOnDevice:
            return on_host(*arguments, **options)

    return computed  # type: ignore[return-value]


def _any_on_device(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> bool:
    """Return whether a tensor is on a device. Raises DeviceError if tensors are on different devices."""
    given = (*arguments, *options.values())
    if not any([isinstance(x, Tensor) and x.is_cuda for x in given]):
        return False
    require_one_device(function.__name__, given)
    return True


def refuse_view(name: str, reason: NotOnDevice, *arguments: Any) -> NoReturn:
    """Raise DeviceError for a view that a device cannot make; a copy made by the host would be no view."""
    raise DeviceError(f"{name}: {reason}; a tensor on {CUDA} has no such view: use cpu() first") from reason


_warned: set[str] = set()


def warn_of_host(name: str) -> None:
    """Warn, once for each operation, that the host computes it."""
    if name not in _warned:
        _warned.add(name)
        warnings.warn(
            f"{name}: {CUDA} has no kernel for it: the host computes it, between copies there and back",
            HostComputeWarning,
            stacklevel=2,
        )


def _moved(value: Any, device: Device) -> Any:
    """Return a value with its arrays and tensors, also those in lists, moved to `device`; host copies are read-only."""
    if isinstance(value, Tensor):
        copied = value.to(device)
        if device is CPU and copied is not value:
            copied._array.flags.writeable = False
        return copied
    if isinstance(value, ARRAYS):
        array = moved(value, device)
        if device is CPU and array is not value:
            array.flags.writeable = False
        return array
    if isinstance(value, tuple | list):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
