"""`sg.float32` and `x.dtype` beside NumPy's dtypes. `tests/peers/programs/dtypes.py` compares them with PyTorch's."""

import copy
import io
import itertools
import pickle

import h5py
import ml_dtypes
import numpy as np
import pytest

import spillgrad as sg
from spillgrad import dtypes
from spillgrad.errors import DtypeError

NAMES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip
NUMPYS = {name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in NAMES}


@pytest.fixture(params=NAMES)
def pair(request):
    """A dtype and NumPy's."""
    return getattr(sg, request.param), NUMPYS[request.param]


def test_a_dtype_equals_numpys_and_no_other_whichever_side_it_is_on(pair):
    ours, numpys = pair
    for other in NUMPYS.values():
        assert (ours == other, other == ours, ours != other) == (other is numpys, other is numpys, other is not numpys)
    assert ours == numpys.type
    assert ours == str(numpys)
    assert not any(ours == other for other in (None, "no name", 3, (), object()))
    assert hash(ours) == hash(numpys)
    assert ({ours: 1}[numpys], {numpys: 1}[ours], len({ours, numpys})) == (1, 1, 1)


# What programs do with NumPy and a dtype.
TAKEN = [
    lambda d: np.zeros(3, d), lambda d: np.arange(3).astype(d), lambda d: np.array([0, 1], dtype=d),
    lambda d: np.zeros(16, np.uint8).view(d), lambda d: np.frombuffer(bytes(16), d), lambda d: np.ones((1, 2), d).T,
    lambda d: np.empty(0, np.dtype([("field", d)]))["field"], lambda d: np.full(2, 1, dtype=d),
    lambda d: np.array(np.ones(2), dtype=np.promote_types(d, d)), lambda d: np.empty(2, np.result_type(d, d)),
    lambda d: np.zeros_like(np.ones(2), dtype=d), lambda d: np.asarray([1], d),
    lambda d: np.concatenate([[1]], dtype=d, casting="unsafe"),
    lambda d: np.asarray(sg.ones(2), d), lambda d: sg.ones(2).numpy().astype(d),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("take", TAKEN)
def test_numpy_takes_a_dtype_where_it_takes_its_own(pair, take):
    ours, numpys = pair
    got, wanted = take(ours), take(numpys)
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()


def test_numpys_questions_about_a_dtype_have_numpys_answers(pair):
    ours, numpys = pair
    assert isinstance(ours, np.dtype)
    assert np.dtype(ours) is numpys
    for kind in ("bool", "signed integer", "unsigned integer", "real floating", "complex floating", "numeric"):
        if numpys.kind != "V":  # NumPy refuses bfloat16 here
            assert np.isdtype(ours, kind) == np.isdtype(numpys, kind)
    for kind in (np.floating, np.integer, np.complexfloating, np.number):
        assert np.issubdtype(ours, kind) == np.issubdtype(numpys, kind)
    assert np.can_cast(ours, np.float32) == np.can_cast(numpys, np.float32)
    if numpys.kind in "fc":
        assert np.finfo(ours).eps == np.finfo(numpys).eps
    if numpys.kind in "iu":
        assert np.iinfo(ours).max == np.iinfo(numpys).max


def test_a_dtype_has_the_attributes_of_numpys(pair):
    ours, numpys = pair
    names = "alignment base byteorder char isnative itemsize kind name num str type"
    for name in names.split():
        assert getattr(ours, name) == getattr(numpys, name)
    assert str(ours) == f"{ours}" == str(numpys)
    assert ours.newbyteorder(">") == numpys.newbyteorder(">")


def test_hdf5_and_numpys_files_take_a_dtype(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.ones(3), dtype=sg.float32)
        file["b"] = np.ones(3, sg.int16)
        assert (file["a"].dtype, file["b"].dtype) == (sg.float32, sg.int16)
        assert sg.from_numpy(file["a"][:]).dtype is sg.float32
    np.save(tmp_path / "a.npy", np.ones(3, sg.float16))
    assert np.load(tmp_path / "a.npy").dtype == sg.float16
    assert np.memmap(tmp_path / "a.bin", sg.int32, "w+", shape=(2,)).dtype == sg.int32


def test_there_is_one_object_for_each_dtype(pair):
    ours, numpys = pair
    x = sg.zeros(2, dtype=numpys)
    found = (
        x.dtype, sg.from_numpy(np.zeros(2, numpys)).dtype, sg.dtype(numpys), sg.dtype(numpys.type), sg.dtype(ours),
        sg.dtype(str(ours)), sg.dtype(f"torch.{ours}"), sg.promote_types(ours, ours), sg.result_type(x, x),
        copy.deepcopy(ours), *(pickle.loads(pickle.dumps(ours, protocol)) for protocol in range(6)),
        pickle.loads(pickle.dumps(x)).dtype,
    )  # fmt: skip
    assert [each is ours for each in found] == [True] * len(found)
    assert eval(repr(ours), {"spillgrad": sg}) is ours


def test_a_dtype_of_the_other_byte_order_is_that_of_this_machine():
    assert sg.dtype(np.dtype(">f4")) is sg.float32
    assert sg.from_numpy(np.ones(2, "<f4")).dtype is sg.float32
    assert sg.tensor(np.ones(2, ">i4")).dtype is sg.int32


def test_files_keep_dtypes():
    for value in (sg.bfloat16, NUMPYS["bfloat16"]):
        stream = io.BytesIO()
        sg.save({"dtype": value, sg.float32: 1}, stream)
        stream.seek(0)
        loaded = sg.load(stream)
        assert loaded["dtype"] is sg.bfloat16
        assert loaded[sg.float32] == 1


@pytest.mark.parametrize("bad", ["float12", object, None, sg.dtype, [("a", int)]])
def test_what_names_no_dtype_is_refused(bad):
    with pytest.raises(DtypeError, match=r"dtype: got .*; wanted one of bfloat16, bool"):
        sg.dtype(bad)


@pytest.mark.parametrize("name", ["float16", "int32", "bool"])
def test_a_dtype_that_has_no_complex_one_says_which_have(name):
    with pytest.raises(DtypeError, match=f"to_complex: got {name}; wanted bfloat16, float32, float64 or a complex"):
        getattr(sg, name).to_complex()


def test_a_dtype_cannot_be_changed():
    for change in (lambda: setattr(sg.float32, "kind", "i"), lambda: delattr(sg.float32, "kind")):
        with pytest.raises(AttributeError, match=r"attribute 'kind' of 'spillgrad.dtype' objects is not writable"):
            change()
    assert sg.float32.kind == "f"


def test_the_librarys_own_questions_take_both_kinds_of_dtypes():
    kinds = [dtypes.category(getattr(sg, name)) for name in NAMES]
    assert kinds == [dtypes.category(NUMPYS[name]) for name in NAMES] == [2] * 4 + [1] * 8 + [0] + [3] * 2
    for name, ask in itertools.product(NAMES, (dtypes.is_floating_point, dtypes.is_complex, dtypes.is_differentiable)):
        assert ask(getattr(sg, name)) == ask(NUMPYS[name])
    assert dtypes.as_dtype(sg.bfloat16) is NUMPYS["bfloat16"]


def test_the_argument_of_a_fused_function_has_such_a_dtype():
    seen = []

    @sg.fuse
    def fused(x):
        seen.append((x.dtype is sg.float32, x.dtype.is_floating_point, x.is_floating_point()))
        return x * 2 if x.dtype == sg.float32 else x

    assert fused(sg.ones(3)).tolist() == [2, 2, 2]
    assert seen == [(True, True, True)]


def test_an_offloaded_tensor_has_such_a_dtype(tmp_path):
    model = sg.nn.Linear(64, 64)
    sg.disk_offload(model, None, tmp_path, ram_budget="1MiB")
    assert model.weight.dtype is sg.float32
    assert model.weight.is_floating_point()


def test_functions_of_the_array_api_standard_return_these_dtypes():
    xp = sg.array_api
    found = xp.__array_namespace_info__().dtypes()
    assert all(dtype is getattr(xp, name) for name, dtype in found.items())
    assert xp.finfo(xp.complex64).dtype is xp.float32
    assert xp.iinfo("int8").dtype is xp.int8
    assert xp.result_type(sg.ones(2), xp.float64, 1) is xp.float64
    assert xp.__array_namespace_info__().default_dtypes()["integral"] is sg.int64
