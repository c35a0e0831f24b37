"""Whatever a dataset's attribute says, it is understood as a store means it, or called damaged."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillgrad.errors import SpillFormatError
from spillgrad.inspection import arrays

SOUND: dict[str, Any] = {
    "format": 1, "sequence": 7, "op": "mul", "slot": None, "module": "net.0", "step": 3, "dtype": "float32",
    "shape": [3, 4], "xxh3_64": "0123456789abcdef", "codec": "bf16+aes256gcm",
    "views": [{"op": None, "slot": "self", "dtype": "float32", "shape": [4], "strides": [-4], "offset": 12}],
}  # fmt: skip

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([1, 2**70, "0" * 16]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*SOUND, "strides", "offset"]), inner),
    max_leaves=10,
)
FUZZ = settings(max_examples=500, derandomize=True, database=None, deadline=None)


def about(text: str) -> Any:
    try:
        return arrays._about(Path("file.h5"), text)
    except (arrays.Unreadable, SpillFormatError) as error:
        return str(error)


def test_a_sound_attribute_is_understood():
    assert about(json.dumps(SOUND)) == arrays._About(
        7, (arrays._View("float32", (4,), (-4,), 12, slot="self"),), "float32", (3, 4),
        "mul", None, "net.0", 3, "0123456789abcdef", "bf16+aes256gcm",
    )  # fmt: skip


@FUZZ
@given(changes=st.dictionaries(st.sampled_from([*SOUND, "more"]), ANYTHING, max_size=3))
def test_an_attribute_with_other_values_is_understood_or_called_damaged(changes: dict[str, Any]):
    found = about(json.dumps({**SOUND, **changes}))
    if isinstance(found, str):
        assert "attribute is damaged" in found or "has format" in found
    else:
        assert type(found.sequence) is int
        assert found.step is None or type(found.step) is int
        assert all(type(length) is int and length >= 0 for length in found.shape)
        assert all(isinstance(name, str | None) for name in (found.op, found.slot, found.module, found.codec))


@FUZZ
@given(text=st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_any_text_is_no_attribute(text: str):
    assert isinstance(about(text), str)


@FUZZ
@given(data=st.data())
def test_an_attribute_with_characters_changed_raises_nothing_else(data: st.DataObject):
    text = json.dumps(SOUND)
    place = data.draw(st.integers(0, len(text) - 1))
    about(text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 5)) :])


HARM = {
    "lists": "[" * 100_000,
    "objects": '{"a":' * 50_000,
    "digits": '{"format": 1' + "0" * 5000 + "}",
    "infinity": '{"format": 1e999}',
    "a list": "[1]",
    "null": "null",
    "nothing": "",
    "a number": "1" * 10_000,
}


@pytest.mark.parametrize("text", HARM.values(), ids=list(HARM))
def test_text_that_is_made_to_do_harm_is_called_damaged(text: str):
    assert "attribute is damaged" in about(text)


NAMES = [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4, np.bool_, np.complex128, np.longdouble,
         "M8[us]", "m8[D]", "M8", "S7", "U3", "V5", "i4,f8"]  # fmt: skip


@pytest.mark.parametrize("dtype", NAMES, ids=[str(np.dtype(one)) for one in NAMES])
def test_a_name_that_a_store_writes_is_a_dtype_of_as_many_bytes(dtype: Any):
    dtype = np.dtype(dtype)
    found = arrays.dtype_named(dtype.name, dtype.itemsize)
    assert found is not None
    assert found.name == dtype.name


NO_NAMES = ["object", "O", "i4,i4", "(99999999,)f4", "float9", "finfo", "bfloat16 ", "U", "M8[x]", "str", "np.float32"]


@pytest.mark.parametrize("name", [*NO_NAMES, "f4\n"])
def test_a_name_that_no_store_writes_is_none(name: str):
    assert arrays.dtype_named(name, None) is None


@FUZZ
@given(name=st.text(max_size=20), itemsize=st.none() | st.integers(0, 100))
def test_any_name_is_a_dtype_or_none(name: str, itemsize: int | None):
    found = arrays.dtype_named(name, itemsize)
    assert found is None or itemsize in (None, found.itemsize)
