"""Share memory with other libraries, without copies: DLPack and `__cuda_array_interface__`.

NumPy makes the capsules. A device array has the layout of a NumPy array, so only two fields of the capsule are then
overwritten: the device, and the dtype if it is bfloat16, which NumPy lacks. In a capsule of another library, the same
fields are replaced by a device and a dtype that NumPy accepts, while NumPy reads the capsule.

Sharing follows the order of streams, as the standards require: the consumer's stream, not the host, waits until the
memory is computed.
Source: https://dmlc.github.io/dlpack/latest/python_spec.html and
https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html
"""

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from spillgrad import dtypes
from spillgrad.device.device import CPU, CUDA, Array, as_device, moved
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, ExportError
from spillgrad_kernels.device_array import DeviceArray, address_of
from spillgrad_kernels.layout import Layout

HOST, DEVICE = (1, 0), (2, 0)  # (device type, number): the types are kDLCPU and kDLCUDA
# CUDA's own default streams, which always exist.
LEGACY_STREAM, THREAD_STREAM = 1, 2
_IS_COPIED = 2  # DLPACK_FLAG_BITMASK_IS_COPIED
_BFLOAT, _INT = 4, 0  # kDLBfloat, kDLInt
_INT16 = np.dtype(np.int16).str


class _DType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    """The first fields of a DLTensor; the later fields (`shape`, `strides`, `byte_offset`) are not declared."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("dtype", _DType),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    """The fields of a versioned capsule that precede its DLTensor."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64),
    )  # fmt: skip


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Content(NamedTuple):
    """The content of an unused capsule; `versioned` is None in capsules older than DLPack 1.0."""

    tensor: _Tensor
    versioned: _Versioned | None

    @classmethod
    def of(cls, capsule: Any) -> "Content":
        """Return a capsule's content. Raises ArgumentError if it is not a capsule or was already used."""
        if _is_valid(capsule, b"dltensor_versioned"):
            address = _pointer_of(capsule, b"dltensor_versioned")
            versioned = _Versioned.from_address(address)
            return cls(_Tensor.from_address(address + ctypes.sizeof(_Versioned)), versioned)
        if _is_valid(capsule, b"dltensor"):
            return cls(_Tensor.from_address(_pointer_of(capsule, b"dltensor")), None)
        raise ArgumentError(f"dlpack: got {capsule!r}; wanted an unused DLPack capsule")


class _Stream(NamedTuple):
    """A stream of another library, with the attributes that the events of the CUDA driver read."""

    handle: int
    computes: bool = False


class _Lent:
    """Memory at an address, for NumPy; keeps the memory's owner alive. `strides` are bytes; None means contiguous."""

    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, typestr: str,
        writeable: bool,
    ) -> None:  # fmt: skip
        self.owner = owner
        self.__array_interface__ = {
            "version": 3, "shape": shape, "strides": strides, "typestr": typestr, "data": (address, not writeable),
        }  # fmt: skip


def _driver() -> Any:
    """Return the module of the CUDA driver. Raises DeviceError if there is no CUDA device."""
    as_device(CUDA.type)
    from spillgrad_kernels.cuda.driver import driver

    return driver


def _let_wait(waiting: Any, awaited: Any) -> None:
    """Make the stream `waiting` wait for the work that is now queued on the stream `awaited`."""
    _driver().Event().record(awaited).wait(waiting)


def export_from_host(array: Array, **options: Any) -> Any:
    """Return a DLPack capsule of an array in host memory; `options` are the arguments of `__dlpack__`."""
    if array.dtype != dtypes.bfloat16:
        return array.__dlpack__(**options)
    capsule = array.view(np.int16).__dlpack__(**options)
    Content.of(capsule).tensor.dtype.code = _BFLOAT
    return capsule


def export(
    array: Array, stream: int | None, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None,
    copy: bool | None,
) -> Any:  # fmt: skip
    """Return a DLPack capsule of a device array; the arguments are those of `__dlpack__`.

    The capsule holds a copy if `copy` is true or `dl_device` is the host. The consumer's `stream` waits until the array
    is computed. Raises ExportError for an array that DLPack cannot describe, and for a `dl_device` other than the host
    and the first CUDA device. Raises ArgumentError for an invalid stream.
    """
    if dl_device is not None and tuple(dl_device) == HOST:
        if copy is False:
            raise ExportError(
                "dlpack: got copy=False for the host's memory; a tensor on a device only goes there by one"
            )
        return _marked_as_copy(_capsule(moved(array, CPU), max_version))
    if dl_device is not None and tuple(dl_device) != DEVICE:
        raise ExportError(
            f"dlpack: got dl_device={tuple(dl_device)}; wanted {DEVICE}, CUDA's first, or {HOST}, the host"
        )
    if stream is not None and (type(stream) is not int or stream == 0 or stream < -1):
        raise ArgumentError(
            f"dlpack: got stream={stream!r}; wanted None or 1 for the legacy default stream, 2 for the thread's, "
            "the handle of another, or -1 to wait for nothing (0 may mean either default stream)"
        )
    if copy:
        array = array.copy()
    is_bfloat16 = array.dtype == dtypes.bfloat16
    typestr = _INT16 if is_bfloat16 else array.dtype.str
    lent = _Lent(array, address_of(array), array.shape, array.strides, typestr, array.flags.writeable)
    if stream != -1:
        taker = _Stream(LEGACY_STREAM if stream is None else stream)
        compute = _driver().compute()
        _let_wait(taker, compute)
        if taker.handle in (LEGACY_STREAM, THREAD_STREAM):
            # When the consumer releases the memory, our stream waits for the consumer's, because the memory may be
            # reused at once. This holds for the default streams alone; others may no longer exist by then. Their
            # consumer must keep the memory until its stream has finished with it, as with every library.
            weakref.finalize(lent, _let_wait, compute, taker).atexit = False
    capsule = _capsule(np.asarray(lent), max_version)
    content = Content.of(capsule)
    content.tensor.device_type, content.tensor.device_id = DEVICE
    if is_bfloat16:
        content.tensor.dtype.code = _BFLOAT
    return _marked_as_copy(capsule) if copy else capsule


def _capsule(view: np.ndarray, max_version: tuple[int, int] | None) -> Any:
    if any(stride % view.itemsize for stride in view.strides):
        raise ExportError("dlpack: got strides that are no multiples of the elements; use contiguous()")
    try:
        return view.__dlpack__(max_version=max_version)
    except BufferError as error:
        raise ExportError(f"dlpack: {error}") from error


def _marked_as_copy(capsule: Any) -> Any:
    versioned = Content.of(capsule).versioned
    if versioned is not None:
        versioned.flags |= _IS_COPIED
    return capsule


class _Capsule:
    """An object that `np.from_dlpack` accepts: its `__dlpack__` returns a given capsule."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST


@contextmanager
def _as_numpy_takes_it(tensor: _Tensor) -> Iterator[None]:
    """Context manager: replace the device and the dtype of a capsule by ones that NumPy accepts; restore both after."""
    device, code = (tensor.device_type, tensor.device_id), tensor.dtype.code
    if tensor.device_type == DEVICE[0]:
        tensor.device_type, tensor.device_id = HOST
    if code == _BFLOAT and tensor.dtype.bits == 16:
        tensor.dtype.code = _INT
    try:
        yield
    finally:
        (tensor.device_type, tensor.device_id), tensor.dtype.code = device, code


def _capsule_of(source: Any, **options: Any) -> Any:
    try:
        return source.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from before DLPack 1.0
        return source.__dlpack__(**options)


def _taken(capsule: Any) -> tuple[_Lent, bool]:
    """Take the memory of a capsule; return the memory, and whether its dtype is bfloat16.

    Raises DtypeError for any other dtype that NumPy lacks, and for memory that NumPy cannot read.
    """
    content = Content.of(capsule)
    is_bfloat16 = (content.tensor.dtype.code, content.tensor.dtype.bits) == (_BFLOAT, 16)
    with _as_numpy_takes_it(content.tensor):
        try:
            taken = np.from_dlpack(_Capsule(capsule))
        except (RuntimeError, BufferError) as error:
            raise DtypeError(
                f"from_dlpack: NumPy does not take this ({error}); pass integers and use view(dtype)"
            ) from error
    # Capsules older than DLPack 1.0 cannot tell whether memory is read-only, so NumPy's flag means nothing for them.
    writeable = content.versioned is None or taken.flags.writeable
    return _Lent(taken, address_of(taken), taken.shape, taken.strides, taken.dtype.str, writeable), is_bfloat16


def import_from_host(source: Any) -> Array:
    """Return an array that shares the memory of an object with `__dlpack__`; the array keeps the memory alive.

    Raises DtypeError for a dtype, except bfloat16, that NumPy lacks, and for memory that NumPy cannot read.
    """
    lent, is_bfloat16 = _taken(_capsule_of(source))
    array = np.asarray(lent)
    return array.view(dtypes.bfloat16) if is_bfloat16 else array


def import_from(source: Any) -> Array:
    """Return a device array that shares the memory of an object whose `__dlpack_device__` is a CUDA device.

    The memory lives as long as the last view of it. Raises DeviceError for a CUDA device other than the first.
    Raises DtypeError for a dtype, except bfloat16, that NumPy lacks.
    """
    _require_first(source.__dlpack_device__()[1])
    lent, is_bfloat16 = _taken(_capsule_of(source, stream=int(_driver().compute().handle)))
    view = _over(lent)
    return view.view(dtypes.bfloat16) if is_bfloat16 else view


def import_interface(source: Any) -> Array:
    """Return a device array that shares the memory of an object with `__cuda_array_interface__`.

    The array keeps the object alive. Raises ArgumentError for a masked array. Raises DtypeError for an unknown dtype,
    and for a byte order other than this machine's.
    """
    driver, said = _driver(), source.__cuda_array_interface__
    if said.get("mask") is not None:
        raise ArgumentError("cuda array: got a masked array; tensors have no masks")
    address, read_only = said["data"]
    dtype = np.dtype(said["typestr"])
    if dtypes.as_dtype(dtype) != dtype:
        raise DtypeError(f"cuda array: got {dtype.str}, another byte order than this machine's")
    # Only version 3 names the stream that computes the memory; older versions imply CUDA's default stream.
    stream = said.get("stream", LEGACY_STREAM)
    if stream is not None:
        _let_wait(driver.compute(), _Stream(int(stream)))
    return _over(_Lent(source, address or 0, said["shape"], said.get("strides"), dtype.str, not read_only))


def _over(lent: _Lent) -> Array:
    """Return a device array that shares another library's memory; releasing the memory waits for our kernels."""
    # The owner may reuse the memory, and does not know the stream on which our kernels read it.
    weakref.finalize(lent, _wait_for_kernels).atexit = False
    view = np.asarray(lent)
    return DeviceArray(address_of(view), Layout.of(view), lent)  # type: ignore[return-value]


def _wait_for_kernels() -> None:
    driver = _driver()
    driver.Event().record(driver.compute()).synchronize()


def _require_first(number: int) -> None:
    if number != 0:
        raise DeviceError(f"from_dlpack: got memory of 'cuda:{number}'; of several GPUs the first is used")


def interface(array: Array) -> dict[str, Any]:
    """Return `__cuda_array_interface__`, version 3, of a device array. Raises ExportError for bfloat16."""
    if array.dtype == dtypes.bfloat16:
        raise ExportError("__cuda_array_interface__: got bfloat16, which it cannot name; use DLPack, or view(int16)")
    return {
        "version": 3, "shape": array.shape, "typestr": array.dtype.str,
        "strides": None if array.flags.c_contiguous else array.strides,
        "data": (address_of(array), not array.flags.writeable),
        "stream": int(_driver().compute().handle),
    }  # fmt: skip
