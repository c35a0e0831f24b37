"""Where operations compute: all operands on one device, and on the host what a device has no kernel for."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from spillgrad.device import CPU, CUDA, Device, moved
from spillgrad.errors import DeviceError, HostComputeWarning
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import ARRAYS, DeviceArray, NotOnDevice

Function = TypeVar("Function", bound=Callable[..., Any])


def require_one_device(name: str, arguments: Iterable[Any]) -> None:
    """Raise DeviceError when tensors are on different devices; those of the host without dimensions may be.

    They are numbers like Python's own. Arrays that are no tensors are settings of an operation, wherever they are.
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


def compute_on_host(name: str, reason: NotOnDevice, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of arrays or tensors gives for copies of them in the host's memory, copied back.

    Gradients of tensors go the same way. It warns the first time.
    """
    require_one_device(name, arguments)
    warn_of_host(name)
    return _moved(function(*[_moved(argument, CPU) for argument in arguments]), CUDA)


def computed_anywhere(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of arrays or tensors that has no gradient gives: by the host where the device cannot."""
    try:
        return function(*arguments)
    except NotOnDevice as reason:
        return compute_on_host(name, reason, function, *arguments)


def by_host(function: Function) -> Function:
    """Let the host compute a function of tensors that has no kernel of a device, copied back there as gradients are."""

    @functools.wraps(function)
    def computed(*arguments: Any, **options: Any) -> Any:
        if not _any_on_device(function, arguments, options):
            return function(*arguments, **options)
        warn_of_host(function.__name__)
        found = function(*_moved(arguments, CPU), **{name: _moved(x, CPU) for name, x in options.items()})
        return _moved(found, CUDA)

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
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, ARRAYS):
        return moved(value, device)
    if isinstance(value, tuple | list):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
