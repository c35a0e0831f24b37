"""Philox against its published vectors; draws against their distributions."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import random
from spillgrad_kernels.tables.random import counters_needed, philox4x32

ONES = 0xFFFFFFFF
# Counter, key, result: the known-answer vectors of Random123 (Salmon et al. 2011) for philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ONES] * 4, [ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
# Each draw of 10,000 elements: a function of (seed, offset).
DRAWS = {
    "uniform32": lambda seed, offset, n=10_000: random.uniform((n,), np.float32, seed, offset),
    "uniform64": lambda seed, offset, n=10_000: random.uniform((n,), np.float64, seed, offset),
    "normal32": lambda seed, offset, n=10_000: random.normal((n,), np.float32, seed, offset),
    "normal64": lambda seed, offset, n=10_000: random.normal((n,), np.float64, seed, offset),
    "randint": lambda seed, offset, n=10_000: random.randint(-5, 1000, (n,), seed, offset),
    "dropout": lambda seed, offset, n=10_000: random.dropout(np.ones(n, np.float32), 0.3, seed, offset),
}


def philox(counter, key):
    return [int(word) for word in philox4x32(*map(np.uint64, counter), *map(np.uint64, key))]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_its_published_answers(counter, key, expected):
    assert philox(counter, key) == expected


def test_a_draw_is_made_of_the_words_of_its_counters():
    seed, offset = 0x0123456789ABCDEF, (7 << 32) - 1
    key = [seed & ONES, seed >> 32]
    counters = [(at & ONES, at >> 32) for at in (offset, offset + 1, offset + 2)]
    high, low = ([word for at in counters for word in philox([*at, stream, 0], key)] for stream in (0, 1))
    np.testing.assert_array_equal(
        random.words64((11,), seed, offset), [h << 32 | w for h, w in zip(high, low, strict=True)][:11]
    )
    np.testing.assert_array_equal(
        random.uniform((11,), np.float32, seed, offset), [(h >> 8) / 2**24 for h in high[:11]]
    )


@pytest.mark.parametrize("name", DRAWS)
def test_an_element_depends_only_on_seed_offset_and_position(name):
    draw = DRAWS[name]
    all_at_once = draw(5, 100)
    skipped = 4 * 613
    assert counters_needed(skipped) == 613
    np.testing.assert_array_equal(
        draw(5, 100 + 613), np.concatenate([all_at_once[skipped:], draw(5, 100 + 2500)])[:10_000]
    )
    np.testing.assert_array_equal(draw(5, 100, 1027), all_at_once[:1027])
    assert (draw(6, 100) != all_at_once).mean() > 0.3
    assert (draw(5 + (1 << 40), 100) != all_at_once).mean() > 0.3


@pytest.mark.parametrize("name", DRAWS)
def test_threads_change_no_bit(name, assert_same_on_any_number_of_threads):
    assert_same_on_any_number_of_threads(lambda: DRAWS[name](-3, 1 << 33, 100_001))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_uniform_numbers_fill_their_interval_evenly(dtype):
    draw = random.uniform((1000, 1000), dtype, 0, 0)
    assert draw.shape == (1000, 1000) and draw.dtype == dtype and draw.min() >= 0 and draw.max() < 1
    counts, _ = np.histogram(draw, 100, (0, 1))
    assert abs(counts - 10_000).max() < 500  # five standard deviations
    assert abs(np.corrcoef(draw.ravel()[:-1], draw.ravel()[1:])[0, 1]) < 0.005


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_numbers_have_the_moments_and_tails_of_their_distribution(dtype):
    draw = random.normal((1_000_001,), dtype, 0, 0).astype(np.float64)
    for power, expected, deviation in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
        assert abs((draw**power).mean() - expected) < 5 * deviation / 1000
    for bound, share in ((1, 0.317311), (2, 0.045500), (3, 0.0026998)):
        assert abs((abs(draw) > bound).mean() - share) < 5 * (share / 1e6) ** 0.5
    assert abs(np.corrcoef(draw[0:-1:2], draw[1::2])[0, 1]) < 0.008


def test_float32_and_float64_normals_are_the_same_numbers():
    # In the tails the 24 bits of float32's uniform numbers show.
    np.testing.assert_allclose(
        random.normal((100_000,), np.float32, 1, 2), random.normal((100_000,), np.float64, 1, 2), atol=0.01
    )


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3, 5)])
def test_any_shape_is_filled(shape):
    assert random.uniform(shape, np.float32, 0, 0).shape == shape
    assert random.normal(shape, np.float64, 0, 0).shape == shape
    assert random.dropout(np.ones(shape), 0.5, 0, 0).shape == shape


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 4), (-(1 << 63), (1 << 63) - 1), (5, 1 << 62)])
def test_integers_stay_in_their_range(low, high):
    draw = random.randint(low, high, (2000,), 0, 0)
    assert draw.dtype == np.int64 and draw.min() >= low and draw.max() < high
    if high - low < 10:
        assert set(draw) == set(range(low, high))
    else:
        assert abs(draw.astype(np.float64).mean() / 2 - (low + high) / 4) < (high - low) / 40


def test_an_empty_range_of_integers_is_refused():
    with pytest.raises(ValueError, match="randint: got low=3 and high=3"):
        random.randint(3, 3, (2,), 0, 0)


def test_a_permutation_holds_each_number_once():
    draw = random.permutation(1000, 1, 0)
    np.testing.assert_array_equal(np.sort(draw), np.arange(1000))
    assert (draw != np.arange(1000)).mean() > 0.9 and (draw != random.permutation(1000, 2, 0)).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_zeroes_its_share_and_scales_the_rest(p, dtype):
    a = np.random.default_rng(0).standard_normal((400, 501)).astype(dtype)
    out = random.dropout(a, p, 3, 4)
    kept = out != 0
    assert abs((~kept).mean() - p) < 0.01
    np.testing.assert_allclose(out[kept], a[kept] / (1 - p), rtol=1e-6)
    np.testing.assert_array_equal(random.dropout(np.ones_like(a), p, 3, 4) != 0, kept)


def test_dropout_of_nothing_and_of_everything():
    a = np.array([1.0, np.nan, np.inf])
    np.testing.assert_array_equal(random.dropout(a, 0.0, 0, 0), a)
    np.testing.assert_array_equal(random.dropout(a, 1.0, 0, 0), np.zeros(3))


def test_a_residual_is_added_in_the_same_pass():
    rng = np.random.default_rng(0)
    a, residual = rng.standard_normal((30, 50)), rng.standard_normal((50, 30)).T
    for p in (0.0, 0.4, 1.0):
        wanted = random.dropout(a, p, 5, 6) + residual
        np.testing.assert_allclose(random.dropout(a, p, 5, 6, residual), wanted, rtol=1e-15, atol=1e-15)


def test_dropout_takes_any_strides():
    a = np.random.default_rng(0).standard_normal((30, 40))
    np.testing.assert_array_equal(random.dropout(a.T, 0.5, 1, 0), random.dropout(a.T.copy(), 0.5, 1, 0))


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_dropout_probability_outside_zero_to_one_is_refused(p):
    with pytest.raises(ValueError, match="dropout: got p="):
        random.dropout(np.ones(3), p, 0, 0)
