"""Device memory shared with other libraries, for which capsules and arrays made by the tests stand in."""

import ctypes
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DeviceError, DtypeError, ExportError, GraphError
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.jit.compile import SIMULATED

simulated_only = pytest.mark.skipif(not SIMULATED, reason="the test's own memory is the host's")

NEW, GET, NAME, RENAME = (
    getattr(ctypes.pythonapi, f"PyCapsule_{name}") for name in ("New", "GetPointer", "GetName", "SetName")
)
NEW.argtypes, NEW.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
GET.argtypes, GET.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
NAME.argtypes, NAME.restype = (ctypes.py_object,), ctypes.c_char_p
RENAME.argtypes = (ctypes.py_object, ctypes.c_char_p)

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Lying(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Managed(ctypes.Structure):
    name, used = b"dltensor", b"used_dltensor"
    _fields_ = (("lying", Lying), ("context", ctypes.c_void_p), ("deleter", DELETER))


class Versioned(ctypes.Structure):
    name, used = b"dltensor_versioned", b"used_dltensor_versioned"
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("lying", Lying),
    )  # fmt: skip


class Taken:
    """A consumer of a capsule: it takes the capsule, shows its contents, and releases it."""

    def __init__(self, capsule: Any) -> None:
        kind = {kind.name: kind for kind in (Managed, Versioned)}[NAME(capsule)]
        self.held = kind.from_address(GET(capsule, kind.name))
        RENAME(capsule, kind.used)
        lying = self.held.lying
        self.shape, self.strides = (
            tuple(sizes[: lying.ndim]) if sizes else () for sizes in (lying.shape, lying.strides)
        )
        self.address = (lying.data or 0) + lying.byte_offset
        self.device = (lying.device_type, lying.device_id)
        self.dtype = (lying.code, lying.bits, lying.lanes)

    def give_back(self) -> None:
        self.held.deleter(ctypes.addressof(self.held))


CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Given:
    """A producer of device memory with an array's elements; in the simulator, it is the array's own memory."""

    def __init__(self, array: np.ndarray, kind: Any = Versioned, device: tuple[int, int] = (2, 0), flags: int = 0):
        self.array, self.kind, self.device, self.flags = array, kind, device, flags
        self.deleted = 0
        self.streams: list[Any] = []

    def delete(self, address: int) -> None:
        assert address == ctypes.addressof(self.managed)
        assert (self.managed.lying.device_type, self.managed.lying.code) == (self.device[0], self.code)
        self.deleted += 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: Any, **options: Any) -> Any:
        if self.kind is Managed and options:
            raise TypeError("max_version came with DLPack 1.0")
        self.streams.append(stream)
        dtype, ndim = self.array.dtype, self.array.ndim
        self.code = 4 if dtype == ml_dtypes.bfloat16 else CODES.get(dtype.kind, 9)
        self.sizes = (ctypes.c_int64 * ndim)(*self.array.shape)
        self.steps = (ctypes.c_int64 * ndim)(*(s // dtype.itemsize for s in self.array.strides))
        self.managed = self.kind(deleter=DELETER(self.delete))
        if self.kind is Versioned:
            self.managed.major, self.managed.flags = 1, self.flags
        self.managed.lying = Lying(
            self.array.__array_interface__["data"][0], *self.device, ndim, self.code, 8 * dtype.itemsize, 1,
            self.sizes, self.steps, 0,
        )  # fmt: skip
        return NEW(ctypes.addressof(self.managed), self.kind.name, None)


class Interface:
    """An array of another library, with a `__cuda_array_interface__`."""

    def __init__(self, array: np.ndarray, **changed: Any) -> None:
        self.array = array
        described = array.__array_interface__
        self.__cuda_array_interface__ = {
            "version": 3, "shape": array.shape, "typestr": array.dtype.str, "data": described["data"],
            "strides": described["strides"], "stream": None, **changed,
        }  # fmt: skip


DTYPES = {
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64), "int8": (0, 8), "int64": (0, 64),
    "uint8": (1, 8), "uint32": (1, 32), "bool": (6, 8), "complex64": (5, 64),
}  # fmt: skip


def on_device(*shape: int, dtype: str = "float32") -> sg.Tensor:
    return sg.ones(shape, dtype=dtype).to("cuda")


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_capsule_says_where_the_memory_is_and_how_it_lies(dtype: str, max_version: Any):
    x = on_device(3, 4, dtype=dtype)
    taken = Taken(x.T[1:].__dlpack__(max_version=max_version))
    assert type(taken.held) is (Versioned if max_version and max_version[0] else Managed)
    assert (taken.shape, taken.strides, taken.device) == ((3, 3), (1, 4), (2, 0))
    assert taken.address == x.data_ptr() + x.itemsize
    assert taken.dtype == (*DTYPES[dtype], 1)
    assert x.__dlpack_device__() == (2, 0)
    if max_version and max_version[0]:
        assert (taken.held.major, taken.held.flags) == (1, 0)
    taken.give_back()


@pytest.mark.parametrize("max_version", [None, (1, 0)])
@pytest.mark.parametrize("takes", [True, False])
def test_memory_lives_until_a_capsule_is_given_back(max_version: Any, takes: bool):
    gc.collect()
    before = driver.allocator().stats().live_bytes
    x = on_device(1000)
    capsule = x.__dlpack__(max_version=max_version)
    del x
    assert driver.allocator().stats().live_bytes == before + 4096
    if takes:
        taken = Taken(capsule)
        del capsule
        assert driver.allocator().stats().live_bytes == before + 4096
        taken.give_back()
    else:
        del capsule
    assert driver.allocator().stats().live_bytes == before


def test_a_capsule_may_be_dropped_while_an_error_is_raised():
    gc.collect()
    before = driver.allocator().stats().live_bytes
    with pytest.raises(ValueError, match="incorrect name"):
        GET(on_device(1000).__dlpack__(), b"another name")
    gc.collect()
    assert driver.allocator().stats().live_bytes == before


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_scalars_and_empty_memory_are_exported(shape):
    taken = Taken(on_device(*shape).__dlpack__(max_version=(1, 0)))
    assert taken.shape == shape
    taken.give_back()


def test_a_copy_is_other_memory_and_says_so():
    x = on_device(3)
    taken = Taken(x.__dlpack__(max_version=(1, 0), copy=True))
    assert (taken.address != x.data_ptr(), taken.held.flags) == (True, 2)
    taken.give_back()
    taken = Taken(x.__dlpack__(max_version=(1, 0), copy=False))
    assert (taken.address == x.data_ptr(), taken.held.flags) == (True, 0)
    taken.give_back()


def test_the_host_gets_a_copy():
    x = on_device(3) * 2
    taken = Taken(x.__dlpack__(max_version=(1, 0), dl_device=(1, 0)))
    assert (taken.device, taken.held.flags) == ((1, 0), 2)
    assert (ctypes.c_float * 3).from_address(taken.address)[:] == [2, 2, 2]
    taken.give_back()
    with pytest.raises(ExportError, match="got copy=False for the host's memory"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with pytest.raises(ExportError, match=r"got dl_device=\(2, 1\); wanted \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 1))


@pytest.mark.parametrize("stream", [0, -2, "1", True])
def test_what_is_no_stream_is_refused(stream: Any):
    with pytest.raises(ArgumentError, match="dlpack: got stream="):
        on_device(3).__dlpack__(stream=stream)


@pytest.mark.parametrize("stream", [None, 1, 2, -1, 4711])
def test_who_takes_memory_waits_on_its_stream(monkeypatch: pytest.MonkeyPatch, stream: int | None):
    if not SIMULATED and stream == 4711:
        pytest.skip("a GPU has no such stream")
    x = on_device(3)
    waited: list[tuple[Any, Any]] = []
    record = driver.Event.record
    monkeypatch.setattr(
        driver.Event, "record", lambda self, awaited: setattr(self, "of", awaited) or record(self, awaited)
    )
    monkeypatch.setattr(
        driver.Event, "wait", lambda self, stream: waited.append((int(self.of.handle), int(stream.handle)))
    )
    taken = Taken(x.__dlpack__(stream=stream))
    compute, other = int(driver.compute().handle), 1 if stream is None else stream
    assert waited == ([] if stream == -1 else [(compute, other)])
    waited.clear()
    taken.give_back()
    assert waited == ([(other, compute)] if other in (1, 2) else [])


def test_negative_strides_are_refused():
    with pytest.raises(ExportError, match="negative strides"):
        sg.Tensor.wrap(on_device(3).array[::-1]).__dlpack__()


@simulated_only
@pytest.mark.parametrize("kind", [Managed, Versioned])
@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_of_others_becomes_a_tensor_without_a_copy(dtype: str, kind: Any):
    given = Given(np.arange(12).reshape(3, 4).astype(dtype).T, kind)
    x = sg.from_dlpack(given)
    assert (x.device, x.shape, x.stride(), str(x.dtype)) == ("cuda", (4, 3), (1, 4), dtype)
    assert x.data_ptr() == given.array.__array_interface__["data"][0]
    assert x.cpu().tolist() == sg.tensor(given.array).tolist()
    assert given.streams == [int(driver.compute().handle)]
    if dtype == "float32":
        x[0, 0] = 7
        assert given.array[0, 0] == 7
    view = x[1:]
    del x
    gc.collect()
    assert given.deleted == 0
    del view
    gc.collect()
    assert given.deleted == 1


@simulated_only
def test_gradients_flow_through_memory_of_others():
    given = Given(np.arange(6, dtype=np.float32).reshape(2, 3))
    x = sg.from_dlpack(given).requires_grad_()
    (x * x).sum().backward()
    assert x.grad.tolist() == (2 * given.array).tolist()
    del x
    gc.collect()
    assert given.deleted == 1


@simulated_only
def test_read_only_memory_is_not_written():
    given = Given(np.zeros(3, np.float32), flags=1)
    x = sg.from_dlpack(given)
    with pytest.raises(GraphError, match="read-only; clone"):
        x += 1
    taken = Taken(x.__dlpack__(max_version=(1, 0)))
    assert taken.held.flags == 1
    taken.give_back()
    with pytest.raises(ExportError, match="read"):
        x.__dlpack__()
    assert given.array.tolist() == [0, 0, 0]


@simulated_only
def test_a_dtype_that_numpy_lacks_is_refused_and_the_capsule_left_as_it_was():
    given = Given(np.zeros(3, np.complex128).view("V16"))
    with pytest.raises(DtypeError, match="does not take this"):
        sg.from_dlpack(given)
    assert (given.managed.lying.device_type, given.deleted) == (2, 0)


@simulated_only
def test_memory_of_another_device_is_refused():
    with pytest.raises(DeviceError, match="got memory of 'cuda:1'"):
        sg.from_dlpack(Given(np.zeros(3, np.float32), device=(2, 1)))


@simulated_only
def test_a_capsule_that_was_taken_is_refused():
    given = Given(np.zeros(3, np.float32))
    capsule = given.__dlpack__(stream=None)
    RENAME(capsule, Versioned.used)
    given.__dlpack__ = lambda **options: capsule  # type: ignore[method-assign]
    with pytest.raises(ArgumentError, match="wanted an unused DLPack capsule"):
        sg.from_dlpack(given)


def test_tensors_are_taken_from_each_other():
    x = on_device(2, 3)

    class Same:
        __dlpack__, __dlpack_device__ = x.__dlpack__, x.__dlpack_device__

    y = sg.from_dlpack(Same())
    assert (y.data_ptr(), y.tolist()) == (x.data_ptr(), x.tolist())


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - {"bfloat16", "complex64"}))
def test_the_cuda_array_interface_goes_both_ways(dtype: str):
    x = on_device(2, 3, dtype=dtype)
    said = x.__cuda_array_interface__
    assert said == {
        "version": 3, "shape": (2, 3), "typestr": np.dtype(dtype).str, "strides": None,
        "data": (x.data_ptr(), False), "stream": int(driver.compute().handle),
    }  # fmt: skip
    assert x.T.__cuda_array_interface__["strides"] == (x.itemsize, 3 * x.itemsize)

    class Other:
        __cuda_array_interface__ = x.T.__cuda_array_interface__

    shared, copied = sg.as_tensor(Other()), sg.tensor(Other())
    assert (shared.data_ptr(), shared.shape, shared.stride()) == (x.data_ptr(), (3, 2), (1, 3))
    assert (copied.data_ptr() != x.data_ptr(), copied.device) == (True, "cuda")
    assert shared.tolist() == copied.tolist() == x.T.tolist()
    assert sg.as_tensor(Other(), dtype="float64" if dtype == "float32" else None).shape == (3, 2)


def test_what_has_no_cuda_array_interface_says_so():
    assert not hasattr(sg.ones(3), "__cuda_array_interface__")
    with pytest.raises(ExportError, match="got bfloat16"):
        _ = on_device(3, dtype="bfloat16").__cuda_array_interface__


@simulated_only
def test_an_array_by_its_interface_is_held_as_long_as_it_is_seen():
    source = Interface(np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2], stream=1)
    lives = weakref.ref(source)
    x = sg.as_tensor(source)[1:]
    del source
    gc.collect()
    assert (x.tolist(), lives() is None) == ([[3, 5]], False)
    del x
    gc.collect()
    assert lives() is None
    assert sg.as_tensor(Interface(np.zeros(3, np.float32)), device="cpu").device == "cpu"


@simulated_only
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"mask": Interface(np.ones(3, np.bool_))}, ArgumentError, "masked"),
        ({"typestr": ">f4"}, DtypeError, "another byte order"),
        ({"typestr": "|V4"}, DtypeError, "V4"),
    ],
)
def test_an_interface_that_says_too_much_is_refused(changed: Any, error: Any, message: str):
    with pytest.raises(error, match=message):
        sg.as_tensor(Interface(np.zeros(3, np.float32), **changed))


@pytest.mark.skipif(SIMULATED, reason="PyTorch needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool"])
def test_pytorch_and_we_share_memory(dtype: str):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no CUDA")
    x = sg.ones(100, 50, dtype=dtype).to("cuda")
    theirs = torch.from_dlpack(x)
    assert (theirs.data_ptr(), str(theirs.dtype), theirs.device.type) == (x.data_ptr(), f"torch.{dtype}", "cuda")
    theirs.zero_()
    torch.cuda.synchronize()
    assert not x.cpu().to("bool").any()
    made = torch.ones(50, 20, dtype=getattr(torch, dtype), device="cuda").T
    ours = sg.from_dlpack(made)
    assert (ours.data_ptr(), ours.shape, ours.stride()) == (made.data_ptr(), (20, 50), (1, 20))
    del made
    torch.cuda.empty_cache()
    assert ours.cpu().to("bool").all()
    if dtype != "bfloat16":
        assert sg.as_tensor(torch.arange(6, device="cuda").reshape(2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.skipif(SIMULATED, reason="PyTorch needs a GPU")
def test_pytorch_waits_for_our_kernels_and_we_for_its():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no CUDA")
    for i in range(20):
        x = sg.ones(1 << 22).to("cuda") * i
        theirs = torch.from_dlpack(x) + 1
        del x
        back = sg.from_dlpack(theirs * 2) * 1
        del theirs
        assert (back.cpu() == 2 * (i + 1)).all()
