"""Where a tensor's memory is."""

from dataclasses import dataclass
from typing import Any

from spillgrad.errors import DeviceError


@dataclass(frozen=True, repr=False)
class Device:
    """A device, equal to its name: `x.device == "cpu"`."""

    type: str

    def __repr__(self) -> str:
        return f"device(type={self.type!r})"

    def __str__(self) -> str:
        return self.type

    def __eq__(self, other: object) -> bool:
        return str(other) == self.type

    def __hash__(self) -> int:
        return hash(self.type)


CPU = Device("cpu")


def as_device(device: Any) -> Device:
    """Return the device that a name or device means. Raises DeviceError for one that does not exist here."""
    if device is None or str(device) in ("cpu", "cpu:0"):
        return CPU
    raise DeviceError(f"device: got {str(device)!r}; this version computes on 'cpu' only")
