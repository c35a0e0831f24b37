"""The device on which functions that make tensors put them if none is given.

Source: torch.set_default_device.
"""

from typing import Any

from spillgrad.device.device import Device, as_device, default


def set_default_device(device: Any) -> None:
    """Set the device of this thread's new tensors.

    Parameters
    ----------
    device : device or None
        Device, its name, or the number of a CUDA device; None means the CPU.

    Raises
    ------
    DeviceError
        For a device that cannot be used.

    Notes
    -----
    Source: torch.set_default_device.
    """
    default.device = as_device("cpu" if device is None else device)


def get_default_device() -> Device:
    """Return the device of this thread's new tensors.

    Returns
    -------
    device
        What `set_default_device` set, or a device entered as a context; at first, the CPU.
    """
    return default.device
