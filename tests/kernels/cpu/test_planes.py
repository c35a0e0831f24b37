"""float32 numbers in two planes: the first is the conversion to bfloat16, and both together are exact."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import planes
from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.jit.compile import DISABLE_JIT

# Every sign, exponent and first digits; of these, a few if each takes long.
HIGH = np.arange(0, 1 << 16, 97 if DISABLE_JIT else 1, dtype=np.uint32)
LOW = [0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x5555]


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rounded, low = np.empty(values.size, ml_dtypes.bfloat16), np.empty(values.size, np.uint16)
    return rounded, low, planes.split(values, rounded, low)


def joined(rounded: np.ndarray, low: np.ndarray, places: np.ndarray) -> np.ndarray:
    values = np.empty(rounded.size, np.float32)
    planes.join(rounded, low, places, values)
    return values


@pytest.mark.parametrize("low", LOW, ids=hex)
def test_every_kind_of_number_is_joined_exactly_and_rounded_as_conversion_does(low: int):
    values = (HIGH << 16 | low).astype(np.uint32).view(np.float32)
    rounded, rest, places = split(values)
    np.testing.assert_array_equal(joined(rounded, rest, places).view(np.uint32), values.view(np.uint32))
    converted = elementwise(lambda self: self, "convert", [values], np.dtype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(rounded.view(np.uint16), converted.view(np.uint16))


def test_places_are_listed_for_few_random_numbers():
    count = 1 << (14 if DISABLE_JIT else 22)
    values = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    rounded, low, places = split(values)
    np.testing.assert_array_equal(joined(rounded, low, places), values)
    words = values.view(np.uint32)
    np.testing.assert_array_equal(places, np.flatnonzero((words & 0x1FFFF) == 0x7FFF))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_no_place_is_listed_for_numbers_of_few_digits(dtype: type):
    values = np.random.default_rng(0).standard_normal(1 << 14).astype(dtype).astype(np.float32)
    rounded, low, places = split(values)
    assert not places.size
    np.testing.assert_array_equal(joined(rounded, low, places), values)


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, 40_001])
def test_all_numbers_may_have_their_places_listed(size: int):
    values = np.full(size, 0x3F807FFF, np.uint32).view(np.float32)
    rounded, low, places = split(values)
    assert places.size == size
    np.testing.assert_array_equal(joined(rounded, low, places), values)
