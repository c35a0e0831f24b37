"""Rounding at random: to a neighbour, right on average, and by seed, stream, step and place alone."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu.stochastic_rounding import round_stochastically
from spillgrad_kernels.tables.random import philox4x32

COUNT = 5000


def rounded(values: np.ndarray, first: int = 0, seed: int = 1, stream: int = 2, step: int = 3) -> np.ndarray:
    found = np.empty(values.shape, ml_dtypes.bfloat16)
    round_stochastically(values, found, first, seed, stream, step)
    return found


def test_each_number_goes_to_a_neighbour_and_the_mean_is_the_number():
    value = np.float32(1 + 0.3 / 128)  # three tenths of the way between two bfloat16 numbers
    found = rounded(np.full(COUNT, value)).astype(np.float64)
    assert set(found) == {1.0, 1 + 1 / 128}
    assert abs(found.mean() - float(value)) < 4 / 128 * np.sqrt(0.3 * 0.7 / COUNT)


def test_the_halves_of_random_words_decide():
    values = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    words = [philox4x32(*map(np.uint64, (i, 0, 2, 3)), np.uint64(1), np.uint64(0)) for i in range(-(-COUNT // 8))]
    halves = np.array(words, np.uint32).reshape(-1).view(np.uint16)[:COUNT]
    wanted = ((values.view(np.uint32).astype(np.uint64) + halves) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(rounded(values).view(np.uint16), wanted)


@pytest.mark.parametrize("other", [{"seed": 2}, {"stream": 3}, {"step": 4}], ids=str)
def test_other_numbers_round_otherwise(other: dict[str, int]):
    values = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    assert (rounded(values) != rounded(values, **other)).any()


@pytest.mark.parametrize("cut", [8, 1024, 4096])
def test_pieces_are_rounded_as_the_whole(cut: int):
    values = np.random.default_rng(0).standard_normal(COUNT).astype(np.float32)
    pieces = [rounded(values[at : at + cut], first=at) for at in range(0, COUNT, cut)]
    np.testing.assert_array_equal(np.concatenate(pieces), rounded(values))


def test_bfloat16_numbers_stay_and_special_numbers_are_what_they_were():
    values = np.arange(1 << 16, dtype=np.uint32).view(np.uint16)[::2].view(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounded(values).astype(np.float32), values)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4028235e38], np.float32)
    found = rounded(special).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(special))
    np.testing.assert_array_equal(found[1:5].view(np.uint32), special[1:5].view(np.uint32))
    assert 0 <= found[5] <= 1e-40
    assert found[6] in (np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max), np.inf)
