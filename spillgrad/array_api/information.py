"""What the namespace has and does, as the array API standard lets programs ask."""

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
    """What this namespace has and does."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional behaviours there are."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return where tensors are made."""
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """Return the dtypes of tensors made without one."""
        as_device(device)
        return {
            "real floating": dtypes.get_default_dtype(), "complex floating": dtypes.of_scalar(0j),
            "integral": dtypes.int64, "indexing": dtypes.int64,
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Return the standard's dtypes by name, or those of a kind, or of several."""
        as_device(device)
        return {str(d): d for d in _STANDARD_DTYPES if kind is None or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """Return where tensors can be."""
        return [CPU] if missing() else [CPU, CUDA]
