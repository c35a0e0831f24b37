"""The device on which functions that make tensors put them if none is given.

Source: torch.set_default_device.
"""

from typing import Any

from spillgrad.device.device import Device, as_device, default


def set_default_device(device: Any) -> None:
    """Set the device of this thread's new tensors; None means the CPU. Raises DeviceError for one not usable."""
    default.device = as_device("cpu" if device is None else device)


def get_default_device() -> Device:
    """Return the device of this thread's new tensors."""
    return default.device
