"""The class `Device`, and functions that make arrays on a device or move them to a device."""

import threading
from typing import Any

import numpy as np

from spillgrad.errors import DeviceError
from spillgrad_kernels.cuda.driver.availability import missing
from spillgrad_kernels.device_array import empty_on_device, is_on_device, to_device
from spillgrad_kernels.memory import buffers

# A tensor's memory, on the host or on a device; type checkers see a NumPy array.
Array = np.ndarray


class Device:
    """The name of a device, existing or missing.

    As a context manager, it is the device of this thread's new tensors within the block.

    Parameters
    ----------
    type : str
        Kind of the device, "cpu" or "cuda"; or a name with a number, such as "cuda:0".
    index : int, optional
        Number of the device, if the name has none.

    Notes
    -----
    It equals strings: ``x.device == "cuda"``, ``x.device == "cuda:0"``. The hash is that of the full name, "cpu" or
    "cuda:0". So in sets and dictionaries a CUDA device does not match "cuda", which has another hash.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.device("cuda", 0)
    device(type='cuda', index=0)
    >>> with sg.device("cpu"):
    ...     x = sg.ones(2)
    >>> x.device == "cpu"
    True
    """

    __slots__ = ("index", "type")

    def __init__(self, type: str, index: int | None = None) -> None:
        self.type, _, number = str(type).partition(":")
        self.index = int(number) if number.isdecimal() else index

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Device | str):
            return NotImplemented
        type_, _, number = str(other).partition(":")
        return type_ == self.type and (number or "0") == str(self.index or 0)

    def __enter__(self) -> "Device":
        default.before.append(default.device)
        default.device = as_device(self)
        return self

    def __exit__(self, *exception: object) -> None:
        default.device = default.before.pop()

    def __hash__(self) -> int:
        numbered = self.type != "cpu" or self.index
        return hash(f"{self.type}:{self.index or 0}" if numbered else self.type)


CPU = Device("cpu")
CUDA = Device("cuda", 0)


class _Default(threading.local):
    """Per thread: the device of new tensors, and those of the blocks around the innermost `with device:`."""

    device: Device = CPU

    def __init__(self) -> None:
        self.before: list[Device] = []


default = _Default()


def as_device(device: Any) -> Device:
    """Return the device for a name, a CUDA device's number or a device; for None, return the default device.

    Raises DeviceError for a device that cannot be used; the message says what is wrong or missing.
    """
    chosen = default.device if device is None else device
    if chosen is CPU:
        return CPU
    name = f"cuda:{chosen}" if type(chosen) is int else str(chosen)
    if name in ("cpu", "cpu:0"):
        return CPU
    kind, _, number = name.partition(":")
    if kind != "cuda":
        raise DeviceError(f"device: got {name!r}; wanted 'cpu' or 'cuda'")
    if number not in ("", "0"):
        raise DeviceError(f"device: got {name!r}; of several GPUs the first is used: wanted 'cuda' or 'cuda:0'")
    lack = missing()
    if lack is not None:
        raise DeviceError(f"device: got {name!r}; {lack}")
    return CUDA


def device_of(array: Array) -> Device:
    """Return the device that an array's memory is on."""
    return CUDA if is_on_device(array) else CPU


def moved(array: Array, device: Device) -> Array:
    """Return `array` itself if it is on `device`; otherwise, return a copy on `device`."""
    if device_of(array) is device:
        return array
    return array.to_host() if device is CPU else to_device(array)  # type: ignore[attr-defined]


def empty(device: Device, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an uninitialised, contiguous array on a device."""
    return buffers.empty(shape, dtype) if device is CPU else empty_on_device(shape, dtype)


def filled(device: Device, shape: tuple[int, ...], dtype: Any, value: Any) -> Array:
    """Return an array on a device with all elements equal to `value`."""
    array = empty(device, shape, dtype)
    array.fill(value)
    return array
