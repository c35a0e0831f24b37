"""Integers and truth values in CUDA kernels as they are compiled, and their order, against NumPy."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda import elementwise, index_sums, indexing, logic, reductions, sorting
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import parameters
from tests.kernels.cuda.integer_rows import FORMULAS, INTEGERS, as_by_numpy, operands_of
from tests.kernels.cuda.on_host import compiled, compute

HALF_AND_FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_row_of_integers_compiles_to_what_numpy_computes(name, dtype):
    operands = operands_of(name, np.dtype(dtype))
    wanted = as_by_numpy(name, operands, np.dtype(dtype))
    if wanted is not None:
        assert np.array_equal(compute(FORMULAS[name], name, operands, wanted.dtype), wanted)


@pytest.mark.parametrize("kind", [*INTEGERS, *HALF_AND_FLOATS])
def test_a_conversion_compiles_to_numpy_s(kind):
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.max, 0, 1, 100, limits.max - 1, limits.max // 2 + 1], dtype)
    else:
        values = np.array([0, -0.0, 1, 1.5, 2.5, 100.9, 1 + 2**-11 + 2**-30, np.nan, np.inf, 6e4]).astype(dtype)
    for other in map(np.dtype, [*INTEGERS, *HALF_AND_FLOATS]):
        given = values
        if dtype.kind not in "iub" and other.kind in "iu":  # what does not fit has no one value
            given = values[np.abs(values.astype(np.float64)) < min(2**24, np.iinfo(other).max)]
        with np.errstate(all="ignore"):
            wanted = given.astype(other)
        found = compute(elementwise._same, "copy", [given], other)
        assert np.array_equal(*[x.astype(np.float64) if x.dtype.kind not in "iub" else x for x in (found, wanted)],
                              equal_nan=other.kind not in "iub"), other  # fmt: skip


def test_a_float_outside_an_integer_s_range_becomes_what_x86_makes_of_it():
    values = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e19, -1.5, 300])
    found = {kind: compute(elementwise._same, "copy", [values], kind).tolist() for kind in ("int8", "int32", "uint64")}
    lowest = -(2**31)
    assert found["int32"] == [lowest] * 6 + [-1, 300]
    assert found["int8"] == [0] * 6 + [-1, 44]
    assert found["uint64"] == [2**63, 0, 2**63, 3 * 10**9, 2**64 - 3 * 10**9, 10**19, 2**64 - 1, 300]


@pytest.mark.parametrize("number", [np.int64(300), np.int64(-1), np.int64(7), np.uint64(2**63)])
@pytest.mark.parametrize("name", ["lt", "le", "eq", "gt"])
def test_a_number_is_compared_as_it_is(name, number):
    values = np.array([0, 255, 7], np.uint8)
    wanted = ROWS[name].forward(values, number)
    assert np.array_equal(compute(ROWS[name].forward, name, [values, number], bool), wanted)


@pytest.mark.parametrize("left, right", list(itertools.permutations(["int8", "uint64", "bool", "float32"], 2)))
@pytest.mark.parametrize("name", logic.LOGICAL)
def test_logic_takes_operands_of_any_dtypes(name, left, right):
    operands = [np.array([0, 1, 0, 2]).astype(left), np.array([0, 0, 3, 1]).astype(right)]
    operands = operands[: len(parameters(logic.LOGICAL[name]))]
    assert np.array_equal(compute(logic.LOGICAL[name], name, operands, bool), getattr(np, name)(*operands))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_a_fold_of_integers_compiles_to_what_numpy_computes(name, dtype):
    values = operands_of("neg", dtype)[0][::-1].copy()
    wanted = getattr(np, name)(values, **({"dtype": np.int64} if name in ("sum", "prod") else {}))
    result = np.empty((), wanted.dtype)
    fold = compiled(reductions.kernel(name, name, dtype, result.dtype))
    n = values.size
    fold(1, 1, n, 1, 1, n, n, 1, 1, 1, values.ctypes.data, 0, result.ctypes.data)
    assert result == wanted


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_running_sums_of_integers_compile_to_numpy_s(dtype):
    values = np.stack(operands_of("neg", dtype) * 2, 1)
    result = np.empty(values.shape, np.int64)
    run = compiled(reductions.scan("sum", dtype, False))
    run(2, 2, len(values), 1, len(values), values.ctypes.data, 0, result.ctypes.data)
    assert np.array_equal(result, np.cumsum(values, 0, np.int64))


def address(array):
    return array.ctypes.data


@pytest.mark.parametrize("dtype, descending", [
    ("int8", False), ("uint64", False), ("int64", True), ("float16", False), ("float32", True),
])  # fmt: skip
def test_a_sort_compiles_to_numpy_s(dtype, descending, monkeypatch):
    keys = sorting._THREAD_KEYS
    monkeypatch.setattr(sorting, "THREADS", 1)
    monkeypatch.setattr(sorting, "_TILE", keys)
    sort, merge = (make.__wrapped__(dtype, descending) for make in (sorting.sorting_tiles, sorting.merging_runs))
    values = np.random.default_rng(0).integers(-9, 9, (2, 2 * keys + 3)).astype(dtype)
    if values.dtype.kind == "f":
        values[:, ::5] = np.nan
        values[:, 1::7] = -0.0
    n = values.shape[1]
    found = [(np.empty_like(values), np.empty(values.shape, np.int64)) for _ in range(3)]
    addresses = [tuple(map(address, parts)) for parts in found]
    compiled(sort)(2 * 3, 2, n, 1, 3, keys, keys, n, 1, address(values), *addresses[0])
    compiled(merge)(2 * 2 * 2, n, keys, 2, n, 2 * keys, 1, *addresses[0], *addresses[1])
    compiled(merge)(2 * 1 * 4, n, 2 * keys, 1, n, 4 * keys, 1, *addresses[1], *addresses[2])
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    order = np.argsort(wide, 1, kind="stable")
    if descending:
        order = n - 1 - np.argsort(wide[:, ::-1], 1, kind="stable")[:, ::-1]
    assert np.array_equal(found[2][1], order)
    assert found[2][0].tobytes() == np.take_along_axis(values, order, 1).tobytes()


@pytest.mark.parametrize("dtype, after", [("int8", False), ("uint64", True), ("float16", False), ("float32", True)])
def test_a_search_compiles_to_numpy_s(dtype, after):
    keys, sought = (np.random.default_rng(i).integers(-9, 9, 20).astype(dtype) for i in (0, 1))
    if keys.dtype.kind == "f":
        keys[:3], sought[:2] = np.nan, (np.nan, np.inf)
    keys.sort()
    found = np.empty(20, np.int64)
    compiled(sorting.searching(dtype, after))(20, 20, 20, address(keys), address(sought), address(found))
    assert np.array_equal(found, np.searchsorted(keys, sought, "right" if after else "left"))


@pytest.mark.parametrize("index", ["int8", "uint64"])
def test_writes_and_sums_by_index_compile_to_numpy_s(index):
    chosen = np.sort(np.random.default_rng(0).integers(0, 7, 150)).astype(index)
    chosen[-3:] = np.array([7, 9, 100]).astype(index)  # outside
    places = np.random.default_rng(1).permutation(150)
    values = np.random.default_rng(2).integers(-99, 99, (150, 2)).astype(np.int16)
    inside = chosen < 7
    found, wanted = np.zeros((7, 2), np.int16), np.zeros((7, 2), np.int16)
    write = compiled(indexing.overwriting(4, index))
    write(150, 150, 7, 1, 1, address(chosen), address(places), address(values), address(found))
    for row, place in zip(chosen[inside], places[inside], strict=True):
        wanted[int(row)] = values[place]
    assert np.array_equal(found, wanted)
    partials = np.empty((3, 2), np.int16)
    add = compiled(index_sums.adding(np.dtype(np.int16), 2, index))
    add(150, 150, 7, 1, *map(address, (chosen, places, values, found, partials)))
    add = compiled(index_sums.adding_partials(np.dtype(np.int16), 2, index))
    add(3, 150, 7, 1, *map(address, (chosen, found, partials)))
    np.add.at(wanted, chosen[inside].astype(np.int64), values[places[inside]])
    assert np.array_equal(found, wanted)
