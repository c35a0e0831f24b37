"""Dtypes: their names, limits, and how they mix. The expected tables are PyTorch's."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import dtypes
from spillgrad.errors import DtypeError

NAMES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
# Row and column in the order of NAMES.
PROMOTED = [
    "bool     uint8    int8     int16    int32    int64    float16  bfloat16 float32  float64",
    "uint8    uint8    int16    int16    int32    int64    float16  bfloat16 float32  float64",
    "int8     int16    int8     int16    int32    int64    float16  bfloat16 float32  float64",
    "int16    int16    int16    int16    int32    int64    float16  bfloat16 float32  float64",
    "int32    int32    int32    int32    int32    int64    float16  bfloat16 float32  float64",
    "int64    int64    int64    int64    int64    int64    float16  bfloat16 float32  float64",
    "float16  float16  float16  float16  float16  float16  float16  float32  float32  float64",
    "bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 bfloat16 float32  bfloat16 float32  float64",
    "float32  float32  float32  float32  float32  float32  float32  float32  float32  float64",
    "float64  float64  float64  float64  float64  float64  float64  float64  float64  float64",
]
PAIRS = [(a, b, PROMOTED[i].split()[j]) for i, a in enumerate(NAMES) for j, b in enumerate(NAMES)]


def ones(dtype, *shape):
    return sg.ones(*shape, dtype=dtype)


@pytest.mark.parametrize(("first", "second", "wanted"), PAIRS)
def test_two_dtypes_mix_as_in_pytorch(first, second, wanted):
    assert str(sg.promote_types(first, second)) == wanted
    a, b = ones(first, 2), ones(second, 2)
    for result in (sg.add(a, b), sg.mul(a, b), sg.maximum(a, b), sg.where(a == b, a, b), sg.cat([a, b])):
        assert str(result.dtype) == wanted
    assert str(sg.result_type(a, b)) == wanted
    category = dtypes.category(sg.promote_types(first, second))
    assert str(sg.div(a, b).dtype) == (wanted if category == 2 else "float32")
    assert sg.eq(a, b).dtype == sg.bool


@pytest.mark.parametrize(("first", "second", "wanted"), PAIRS)
def test_a_0d_tensor_widens_only_where_its_kind_is_higher(first, second, wanted):
    """Kinds: bool, integers, floats."""
    kind = [dtypes.category(dtypes.as_dtype(name)) for name in (first, second)]
    expected = second if kind[1] > kind[0] else first
    assert str((ones(first, 2) + ones(second)).dtype) == expected
    assert str((ones(first) + ones(second)).dtype) == wanted


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("number", "kind", "default"), [(True, 0, "bool"), (2, 1, "int64"), (2.5, 2, "float32")])
def test_a_python_number_never_widens(name, number, kind, default):
    expected = default if kind > dtypes.category(dtypes.as_dtype(name)) else name
    for shape in [(2,), ()]:
        for result in (ones(name, *shape) * number, number * ones(name, *shape)):
            assert str(result.dtype) == expected


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("uint64", "int8", "int64"), ("uint64", "int64", "int64"), ("uint16", "int16", "int32"),
        ("complex64", "float32", "complex64"), ("complex64", "float64", "complex128"),
        ("complex64", "int64", "complex64"), ("complex64", "complex128", "complex128"),
        (np.float32, float, "float32"), (int, sg.uint8, "int64"),
    ],
)  # fmt: skip
def test_the_other_dtypes_mix_too(first, second, wanted):
    assert sg.promote_types(first, second) == sg.promote_types(second, first) == wanted


@pytest.mark.parametrize(
    ("spelling", "wanted"),
    [
        ("float32", "float32"), ("float", "float32"), ("double", "float64"), ("half", "float16"), ("long", "int64"),
        ("torch.int32", "int32"), ("paddle.bfloat16", "bfloat16"), ("short", "int16"), ("int", "int32"),
        ("f8", "float64"),
        (np.float16, "float16"), (np.dtype(">i4"), "int32"), (float, "float32"), (int, "int64"), (bool, "bool"),
        (complex, "complex128"), (sg.bfloat16, "bfloat16"), (sg.float, "float32"), (sg.long, "int64"),
    ],
)  # fmt: skip
def test_a_dtype_may_be_a_name_a_numpy_type_or_a_python_type(spelling, wanted):
    assert sg.zeros(2, dtype=spelling).dtype == wanted


@pytest.mark.parametrize("bad", ["float12", object, "U4", 3, [("a", int)], {"a": 1}])
def test_what_is_no_dtype_is_refused_with_the_list_of_those_that_are(bad):
    with pytest.raises(DtypeError, match=r"dtype: got .*; wanted one of bfloat16, bool, complex128"):
        sg.zeros(2, dtype=bad)
    with pytest.raises(DtypeError):
        dtypes.as_dtype(None)


def test_kinds():
    assert [n for n in NAMES if sg.zeros(1, dtype=n).is_floating_point()] == NAMES[6:]
    assert [n for n in NAMES if not sg.zeros(1, dtype=n).is_signed()] == ["bool", "uint8"]
    assert sg.is_complex(sg.zeros(1, dtype="complex64"))
    assert not sg.is_floating_point(sg.zeros(1, dtype="complex64"))


def test_limits_are_python_numbers():
    assert sg.finfo("bfloat16").eps == 0.0078125
    assert sg.finfo(sg.float32).max == float(np.finfo(np.float32).max)
    assert sg.finfo().min == -sg.finfo().max
    assert sg.finfo("float16").bits == 16
    assert (sg.iinfo("uint8").min, sg.iinfo(sg.int64).max) == (0, 2**63 - 1)
    assert type(sg.finfo("float64").tiny) is float
    with pytest.raises(DtypeError, match=r"finfo: got int32; .*use iinfo"):
        sg.finfo("int32")
    with pytest.raises(DtypeError, match="iinfo: got bool"):
        sg.iinfo("bool")
