"""The array API standard's queries of the namespace: its capabilities, devices and dtypes."""

from typing import Any

from spillgrad import dtypes
from spillgrad.data_type import dtype
from spillgrad.device.device import CPU, CUDA, Device, as_device
from spillgrad.ops.array_api_names import isdtype
from spillgrad_kernels.cuda.driver.availability import missing

__all__ = ["__array_namespace_info__"]

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128"
_STANDARD_DTYPES = tuple([dtype(name) for name in _NAMES.split()])


class __array_namespace_info__:
    """The capabilities, devices and dtypes of this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features are supported, and the largest number of dimensions.

        Returns
        -------
        dict
            By the standard's names.
        """
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Return the device on which tensors are made by default.

        Returns
        -------
        Device
            The host.
        """
        return CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, dtype]:
        """Return the dtypes of tensors that are made without a dtype.

        Parameters
        ----------
        device : Device or str, optional
            Has no effect: all devices have the same.

        Returns
        -------
        dict
            By kind, such as "real floating".
        """
        as_device(device)
        return {
            "real floating": dtype(dtypes.get_default_dtype()), "complex floating": dtype(dtypes.of_scalar(0j)),
            "integral": dtype("int64"), "indexing": dtype("int64"),
        }  # fmt: skip

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, dtype]:
        """Return the standard's dtypes.

        Parameters
        ----------
        device : Device or str, optional
            Has no effect: all devices have the same.
        kind : str or tuple of str, optional
            Wanted kind or kinds, as in `isdtype`; by default, all.

        Returns
        -------
        dict
            By name.
        """
        as_device(device)
        return {str(d): d for d in _STANDARD_DTYPES if kind is None or isdtype(d, kind)}

    def devices(self) -> list[Device]:
        """Return the devices on which tensors can be made.

        Returns
        -------
        list of Device
            The host, and the CUDA device if there is one.
        """
        return [CPU] if missing() else [CPU, CUDA]
