"""Where operations compute: all operands on one device, and on the host what a device has no kernel for."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import numpy as np

from spillgrad.autograd.grad_mode import is_grad_enabled, no_grad
from spillgrad.device import CPU, CUDA, Device, moved
from spillgrad.errors import DeviceError, GraphError, HostComputeWarning
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import ARRAYS, DeviceArray, NotOnDevice

Function = TypeVar("Function", bound=Callable[..., Any])


def require_one_device(name: str, arguments: Iterable[Any]) -> None:
    """Raise DeviceError when arrays or tensors are on different devices; those of the host without dimensions may be.

    They are numbers like Python's own.
    """
    found: dict[Device, Any] = {}
    for argument in arguments:
        if isinstance(argument, Tensor):
            argument = argument._array
        kind = type(argument)
        if kind is DeviceArray:
            found.setdefault(CUDA, argument)
        elif kind is np.ndarray and argument.ndim:
            found.setdefault(CPU, argument)
    if len(found) > 1:
        got = " and ".join(f"one of shape {array.shape} on '{device}'" for device, array in found.items())
        raise DeviceError(f"{name}: got tensors on different devices, {got}; move one with .to(device)")


def compute_on_host(name: str, reason: NotOnDevice, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of arrays or tensors gives for copies of them in the host's memory, copied back.

    It warns the first time. Raises DeviceError for what is to be differentiated again, and for a function that changes
    its arguments: the copies, of which nobody would hear.
    """
    require_one_device(name, arguments)
    recorded = is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
    if recorded:
        raise DeviceError(
            f"{name}: on {CUDA} this has no second derivative ({reason}); compute it on tensors moved with .cpu()"
        ) from reason
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
    """Return what a function of arrays or tensors that has no gradient gives: by the host where the device cannot."""
    try:
        return function(*arguments)
    except NotOnDevice as reason:
        with no_grad():
            return compute_on_host(name, reason, function, *arguments)


def by_host(function: Function) -> Function:
    """Let the host compute a function of tensors that has no gradient and no kernel of a device, copied back there."""

    @functools.wraps(function)
    def computed(*arguments: Any, **options: Any) -> Any:
        if not _any_on_device(function, arguments, options):
            return function(*arguments, **options)
        with no_grad():
            return _computed_on_host(function.__name__, function, arguments, options)

    return computed  # type: ignore[return-value]


def or_by_host(function: Function) -> Function:
    """Let the host compute, as `by_host` does, what a device has no kernel for; the function changes nothing."""
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
    """Return whether a tensor is on a device. Raises DeviceError when others are not."""
    given = (*arguments, *options.values())
    if not any([isinstance(x, Tensor) and x.is_cuda for x in given]):
        return False
    require_one_device(function.__name__, given)
    return True


def refuse_view(name: str, reason: NotOnDevice, function: Any, *arguments: Any) -> NoReturn:
    """Raise DeviceError: a copy made by the host would be no view."""
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
    """Return a value with its arrays and tensors on a device; copies that the host gets are read-only."""
    if isinstance(value, Tensor):
        array = _moved(value._array, device)
        return value if array is value._array else Tensor.wrap(array)
    if isinstance(value, ARRAYS):
        array = moved(value, device)
        if device is CPU and array is not value:
            array.flags.writeable = False
        return array
    if type(value) in (tuple, list):
        return type(value)([_moved(part, device) for part in value])
    return value
