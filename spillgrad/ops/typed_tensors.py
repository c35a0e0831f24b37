"""PyTorch's names for tensors of one dtype: `FloatTensor(2, 3)`, `isinstance(x, LongTensor)`, `x.type(HalfTensor)`.

They are no classes of tensors, which are all `Tensor`: a call makes a tensor, `isinstance` looks at dtype and device.
"""

from typing import Any

from spillgrad import dtypes
from spillgrad.constructor_arguments import array_of
from spillgrad.device.device import CPU, Device, as_device, moved
from spillgrad.errors import ArgumentError, DeviceError, DtypeError
from spillgrad.tensor import Tensor

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CharTensor", "DoubleTensor", "FloatTensor", "HalfTensor",
    "IntTensor", "LongTensor", "ShortTensor", "set_default_tensor_type",
]  # fmt: skip

# PyTorch's word for each dtype; `type()` gives it for those without a constructor, too.
_WORDS = {
    dtypes.float32: "Float", dtypes.float64: "Double", dtypes.float16: "Half", dtypes.bfloat16: "BFloat16",
    dtypes.uint8: "Byte", dtypes.int8: "Char", dtypes.int16: "Short", dtypes.int32: "Int", dtypes.int64: "Long",
    dtypes.bool_: "Bool", dtypes.uint16: "UInt16", dtypes.uint32: "UInt32", dtypes.uint64: "UInt64",
    dtypes.complex64: "ComplexFloat", dtypes.complex128: "ComplexDouble",
}  # fmt: skip

# What the docstring of each type says behind its first line.
_OF_ALL = """

Parameters
----------
*data : int, list, ndarray or Tensor
    Sizes of an uninitialised tensor, or the values; a tensor of this type shares its memory.
device : device or str, optional
    Must be the device of the type.

Raises
------
DeviceError
    If `device` is another one.
DtypeError
    For a tensor of another dtype.
"""


class TensorType(type):
    """The class of `FloatTensor` and the others: each has a `dtype`, and is of the host or of the CUDA device."""

    dtype: dtypes.DType
    is_cuda: bool

    def __call__(cls, *data: Any, device: Any = None) -> Tensor:
        """Return a tensor of sizes, uninitialised, or with the values of a list or array, or of a tensor's memory."""
        return made(cls.__name__, data, cls.dtype, _place(cls), device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Tensor) and instance.dtype == cls.dtype and instance.is_cuda == cls.is_cuda


def _place(kind: TensorType) -> Device:
    return as_device("cuda") if kind.is_cuda else CPU


def made(who: str, data: tuple[Any, ...], dtype: dtypes.DType, place: Device, device: Any = None) -> Tensor:
    """Return the tensor that a constructor makes on a device. Raises DeviceError if `device` is another one."""
    if device is not None and as_device(device) is not place:
        raise DeviceError(
            f"{who}: legacy constructor expects device type: {place} but device type: {device} was passed"
        )
    array = array_of(who, data, dtype)
    if len(data) == 1 and isinstance(data[0], Tensor) and data[0].device is place:
        return data[0].detach()
    tensor = Tensor.wrap(moved(array, place))
    return tensor.mark_shared() if data and array is data[0] else tensor


def _kinds(is_cuda: bool) -> dict[str, Any]:
    made_on = "spillgrad.cuda" if is_cuda else "spillgrad"
    return {
        f"{word}Tensor": TensorType(
            f"{word}Tensor", (), {"dtype": dtype, "is_cuda": is_cuda, "__module__": made_on,
                                  "__doc__": f"Tensors of {dtype}{' on a CUDA device' if is_cuda else ''}.{_OF_ALL}"},
        )
        for dtype, word in _WORDS.items()
    }  # fmt: skip


_on_host, on_cuda = _kinds(False), _kinds(True)
FloatTensor, DoubleTensor, HalfTensor = (_on_host[f"{word}Tensor"] for word in ("Float", "Double", "Half"))
BFloat16Tensor, BoolTensor, ByteTensor = (_on_host[f"{word}Tensor"] for word in ("BFloat16", "Bool", "Byte"))
CharTensor, ShortTensor, IntTensor, LongTensor = (
    _on_host[f"{word}Tensor"] for word in ("Char", "Short", "Int", "Long")
)


def type_name(tensor: Tensor) -> str:
    """Return PyTorch's name of the tensor's type, with which its programs compare: "torch.FloatTensor"."""
    return f"torch.{'cuda.' if tensor.is_cuda else ''}{_WORDS[tensor.dtype]}Tensor"


def named_type(name: str) -> TensorType:
    """Return the type of a name such as "torch.FloatTensor". Raises ArgumentError for other names."""
    library, _, word = name.rpartition(".")
    kinds = {"torch": _on_host, "spillgrad": _on_host, "torch.cuda": on_cuda, "spillgrad.cuda": on_cuda}.get(library)
    if kinds is None or word not in kinds:
        raise ArgumentError(f"invalid type: {name!r}; wanted a name such as 'torch.FloatTensor', or a dtype")
    return kinds[word]  # type: ignore[no-any-return]


def dtype_and_device(kind: Any, default: Device) -> tuple[dtypes.DType, Device]:
    """Return what `x.type(kind)` converts to; `kind` is a tensor type, its name, a dtype, or `Tensor`."""
    if isinstance(kind, str) and kind.endswith("Tensor"):
        kind = named_type(kind)
    if kind is Tensor:
        return dtypes.get_default_dtype(), CPU
    if isinstance(kind, TensorType):
        return kind.dtype, _place(kind)
    return dtypes.as_dtype(kind), default


def set_default_tensor_type(t: Any) -> None:
    """Set the default floating-point dtype by a type.

    Parameters
    ----------
    t : type or str
        A type such as `DoubleTensor`, or its name.

    Raises
    ------
    DtypeError
        For other types.
    DeviceError
        For types of CUDA: there is no default device.
    """
    kind = named_type(t) if isinstance(t, str) else t
    if not isinstance(kind, TensorType):
        raise DtypeError("set_default_tensor_type: invalid type object: only floating-point types are supported as the "
                         "default type; set_default_dtype takes dtypes")  # fmt: skip
    if not dtypes.is_floating_point(kind.dtype):
        raise DtypeError("set_default_tensor_type: only floating-point types are supported as the default type")
    if kind.is_cuda:
        raise DeviceError("set_default_tensor_type: got a type of CUDA; give device='cuda' where tensors are made")
    dtypes.set_default_dtype(kind.dtype)
