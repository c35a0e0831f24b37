"""The array API standard's queries of the namespace: its capabilities, devices and dtypes."""

from typing import Any

from spillgrad import dtypes
from spillgrad.device.device import CPU, CUDA, Device, as_device
from spillgrad.dtypes import DType
from spillgrad.ops.array_api_names import isdtype
from spillgrad_kernels.cuda.driver.availability import missing

__all__ = ["__array_namespace_info__"]

_STANDARD_DTYPES = (
    dtypes.bool_, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64, dtypes.uint8, dtypes.uint16, dtypes.uint32,
    dtypes.uint64, dtypes.float32, dtypes.float64, dtypes.complex64, dtypes.complex128,
)  # fmt: skip


class __array_namespace_info__:
    """The capabilities, devices and dtypes of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features are supported, and the largest number of dimensions."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return the device on which tensors are made by default."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of tensors that are made without a dtype, by kind."""
        as_device(device)
        return {
            "real floating": dtypes.get_default_dtype(), "complex floating": dtypes.of_scalar(0j),
            "integral": dtypes.int64, "indexing": dtypes.int64,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name: all, or those of the given kind or kinds."""
        as_device(device)
        return {str(d): d for d in _STANDARD_DTYPES if kind is None or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """Return the devices on which tensors can be made."""
        return [CPU] if missing() else [CPU, CUDA]
