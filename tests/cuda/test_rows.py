"""Loops over rows on a device: the values of formulas, and the reads and writes of memory."""

import math

import numpy as np
import pytest

from spillgrad_kernels.cuda import rows
from spillgrad_kernels.cuda.array import empty, to_device
from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.cuda.rows import Fold, RowLoop, Rows, run
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.scalar_math import where

# A loop with all features.
EVERYTHING = RowLoop(
    "everything", ["a"], columns={"weight": 2}, numbers=["place"], constants=["factor"],
    picked={"there": ("a", "place"), "weight_there": ("weight", "place"), "second": ("a", 1)},
    fold=Fold(
        {"largest": -math.inf, "total": 0}, lambda a, weight: (a, a * weight),
        lambda largest, other_largest: where(other_largest > largest, other_largest, largest),
    ),
    finish=lambda there, weight_there, second: (there * weight_there, second), finished=["picked", "next"],
    stored=["largest", "total", "picked", "next"],
    element=lambda a, weight, total, j, factor, n: a * weight + total + j + factor * n,
)  # fmt: skip
LAYOUTS = [Rows(1, 1), Rows(3, 5), Rows(2, 64), Rows(3, 66), Rows(1, 33), Rows(2, 7, 3), Rows(2, 40, 9), Rows(19, 2)]


def wanted(a, weight, place, factor):
    """Return the results of EVERYTHING for an (outer, n, inner) array."""
    outer, n, inner = a.shape
    each = a.transpose(0, 2, 1).reshape(-1, n)
    is_there, at = (place >= 0) & (place < n), np.clip(place, 0, n - 1)
    picked = np.where(is_there, (each * weight)[np.arange(len(each)), at], np.nan)
    total = (each * weight).sum(1)
    element = each * weight + total[:, None] + np.arange(n) + factor * n
    second = each[:, 1] if n > 1 else np.full(len(each), np.nan)
    return each.max(1), total, picked, second, element.reshape(outer, inner, n).transpose(0, 2, 1)


class Surrounded:
    """Return an array on the device, surrounded by memory that is full of another number."""

    def __init__(self, array: np.ndarray, surroundings: float, before: int) -> None:
        self.surroundings = surroundings
        self.place = slice(before, before + array.size)
        memory = np.full(array.size + 2 * before, surroundings, array.dtype)
        memory[self.place] = array.reshape(-1)
        self.memory = to_device(memory)
        self.array: DeviceArray = self.memory[self.place].reshape(*array.shape)

    def assert_left_alone(self) -> None:
        memory = self.memory.to_host()
        assert (np.delete(memory, self.place) == self.surroundings).all()


@pytest.mark.parametrize("before", [16, 17])  # the array begins at a multiple of 16 bytes, and not
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_formulas_take_what_they_name_and_nothing_beside_the_rows_is_touched(layout, has_weight, before):
    rng = np.random.default_rng(0)
    a, weight = rng.random((layout.outer, layout.n, layout.inner)), rng.random(layout.n)
    place = rng.integers(-1, layout.n + 1, layout.units)
    # The memory around the arrays has larger numbers than all results.
    given = [Surrounded(x, 1e6, before) for x in (a, weight, place)]
    kinds = [np.zeros(layout.units) for _ in range(4)] + [np.zeros(a.shape)]
    results = [Surrounded(x, -1.0, before) for x in kinds]
    operands = [given[0].array, given[1].array if has_weight else None, given[2].array, np.float64(0.5)]
    run(EVERYTHING, layout, operands, [result.array for result in results])
    for result, expected in zip(results, wanted(a, weight if has_weight else 2, place, 0.5), strict=True):
        np.testing.assert_allclose(result.array.to_host(), expected, rtol=1e-13)
        result.assert_left_alone()


@pytest.fixture
def _fresh_kernels():
    """Let the test make its kernels anew, and drop them afterwards."""
    caches = (rows._prepare, rows.kernel)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.skipif(not SIMULATED, reason="a device's reads cannot be watched")
@pytest.mark.usefixtures("_fresh_kernels")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_beside_the_arrays_is_read(layout, monkeypatch):
    given = [to_device(np.ones(layout.units * layout.n)), to_device(np.ones(layout.n))]
    given.append(to_device(np.arange(layout.units) - 1))

    def watched(load, nbytes):
        def checked(address):
            assert any(array.address <= address <= array.address + array.nbytes - nbytes for array in given)
            return load(address)

        return checked

    for (name, lanes), load in rows.loaders.items():
        monkeypatch.setitem(rows.loaders, (name, lanes), watched(load, lanes * 8))
    results = [empty((layout.units,), np.float64) for _ in range(4)] + [empty(given[0].shape, np.float64)]
    run(EVERYTHING, layout, [*given, np.float64(1)], results)


@pytest.mark.usefixtures("_fresh_kernels")
def test_results_are_the_same_bits_whatever_the_number_of_blocks(monkeypatch):
    rng = np.random.default_rng(1)
    a, place = to_device(rng.random((20, 33), np.float32)), to_device(rng.integers(0, 33, 20))
    found = []
    for blocks in (1, 2, 7):
        monkeypatch.setattr(rows, "blocks_for", lambda work, blocks=blocks: blocks)
        rows._prepare.cache_clear()  # its plans have the number of blocks
        results = [to_device(np.zeros(shape, np.float32)) for shape in [(20,)] * 4 + [(20, 33)]]
        run(EVERYTHING, Rows(20, 33), [a, None, place, np.float32(2)], results)
        found.append([result.to_host() for result in results])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("dtype", "layout", "is_aligned", "lanes"), [
    ("float32", Rows(5, 64), True, 4), ("float32", Rows(5, 66), True, 2), ("float32", Rows(5, 65), True, 1),
    ("float32", Rows(5, 64), False, 1), ("float32", Rows(5, 64, 2), True, 1), ("float64", Rows(5, 64), True, 2),
    ("float16", Rows(5, 64), True, 4), ("float32", Rows(5, 64, 1, 2), True, 1),
])  # fmt: skip
def test_neighbours_move_together_where_rows_are_dense_and_begin_on_a_boundary(dtype, layout, is_aligned, lanes):
    dtype, single, integer = np.dtype(dtype), np.dtype(np.float32), np.dtype(np.int64)
    dtypes = (dtype, single, integer, single, *[single] * 4, dtype)
    assert rows._prepare(EVERYTHING, layout, dtypes, is_aligned)[0] is rows.kernel(EVERYTHING, dtypes, lanes)
