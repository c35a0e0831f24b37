"""The code of CUDA kernels, made without a GPU."""

import re

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda import elementwise, indexing, optim, random, reductions, sorting
from spillgrad_kernels.elementwise import ROWS
from spillgrad_kernels.formula import parameters
from spillgrad_kernels.optim import ADAM, LION, SCALE, SGD, SGD_MOMENTUM

CAPABILITIES = [(7, 5), (8, 0), (9, 0)]


def layouts_of(formula, dtype):
    kinds = [np.dtype(bool) if name == "condition" else np.dtype(dtype) for name in parameters(formula)]
    return tuple([((1000,), (kind.itemsize,), kind) for kind in kinds])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROWS)
def test_every_row_compiles_for_every_generation(name, dtype):
    row = ROWS[name]
    for key, formula in {"": row.forward, **row.derivatives}.items():
        result = np.dtype(bool if row.result == "bool" and not key else dtype)
        kernel = elementwise.prepare(formula, f"{name}{key}", (result,), layouts_of(formula, dtype)).kernel
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert ".entry kernel(" in code


@pytest.mark.parametrize("dtype, access", [
    (np.float32, "v4.f32"), (np.float64, "v2.f64"), (np.float16, "v4.b32"), (ml_dtypes.bfloat16, "v4.b32"),
    (np.int64, "v2.u64"),
])  # fmt: skip
def test_neighbours_move_in_one_access_of_16_bytes(dtype, access):
    kind = np.dtype(dtype)
    layout = ((64, 1024), (1024 * kind.itemsize, kind.itemsize), kind)
    row = ((1024,), (kind.itemsize,), kind)
    code = elementwise.prepare(ROWS["add"].forward, "add", (kind,), (layout, row), (), True).kernel.ptx((8, 0))
    accesses = set(re.findall(r"(?:ld|st)\.global\.(\S+)", code))
    assert {a.split(".")[0] for a in accesses} == {access.split(".")[0]}, accesses


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
@pytest.mark.parametrize("name", reductions.RULES)
def test_every_fold_compiles_for_every_generation(name, dtype):
    kind = np.dtype(dtype)
    result = reductions._result_dtype(name, kind)
    for kernel in (reductions.kernel(name, name, kind, result), reductions.kernel(name, None, kind, np.dtype("f8"))):
        for major, minor in CAPABILITIES:
            assert f".target sm_{major}{minor}" in kernel.ptx((major, minor))


@pytest.mark.parametrize("name, dtype", [
    (name, dtype) for name in ("uniform", "normal") for dtype in ("float32", "float64", "float16", "bfloat16")
] + [("words64", "int64"), ("randint", "int64")])  # fmt: skip
def test_every_distribution_compiles_for_every_generation(name, dtype):
    for major, minor in CAPABILITIES:
        code = random.drawing(name, np.dtype(dtype)).ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert ".local" not in code  # the series' coefficients are in the code
        assert re.search(r"st\.global\.v[24]", code)


@pytest.mark.parametrize("lanes, adds", [(4, True), (2, False), (1, True)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_dropout_compiles_for_every_generation(dtype, lanes, adds):
    kind = np.dtype(dtype)
    if lanes * kind.itemsize <= 16:
        for major, minor in CAPABILITIES:
            assert f".target sm_{major}{minor}" in random.dropping(kind, lanes, adds).ptx((major, minor))


@pytest.mark.parametrize("kernel", [sorting.count_digits, sorting.sum_up, sorting.move_keys], ids=repr)
def test_the_sort_compiles_for_every_generation(kernel):
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert "atom." not in code and ".local" not in code


@pytest.mark.parametrize("index", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_choosing_by_index_compiles_for_every_generation(nbytes, index):
    for major, minor in CAPABILITIES:
        assert f".target sm_{major}{minor}" in indexing.choosing(nbytes, index).ptx((major, minor))


@pytest.mark.parametrize("dtype, lanes", [
    ("float32", 4), ("float32", 1), ("float64", 2), ("float16", 4), ("bfloat16", 4), ("bfloat16", 1), ("int64", 2),
])  # fmt: skip
def test_sums_by_index_compile_for_every_generation(dtype, lanes):
    kind = np.dtype(dtype)
    kernels = [indexing.adding(kind, lanes), indexing.adding_partials(kind, lanes), indexing.numbering("int32")]
    if kind == indexing._summed_in(kind):
        kernels.append(indexing.adding_columns(kind, "int64"))
    for kernel in kernels:
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert "atom." not in code and ".local" not in code


@pytest.mark.parametrize("dtype, access", [("float32", "v4.f32"), ("float64", "v2.f64")])
@pytest.mark.parametrize("rule, states", [(ADAM, 2), (LION, 1), (SGD, 0), (SGD_MOMENTUM, 1), (SCALE, 0)])
def test_every_update_moves_16_bytes_at_a_time_on_every_generation(rule, states, dtype, access):
    kind = np.dtype(dtype)
    array = ((1024,), (kind.itemsize,), kind)
    numbers = len(parameters(rule.formula)) - 2 - states
    operands, outs = (array,) * (2 + states) + (kind,) * numbers, (array,) * (1 + states)
    kernel = elementwise.prepare(rule.formula, "update", (kind,) * len(outs), operands, outs, True).kernel
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert set(re.findall(r"(?:ld|st)\.global\.(\S+)", code)) == {access}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sum_of_squares_compiles_for_every_generation(dtype):
    for major, minor in CAPABILITIES:
        assert f".target sm_{major}{minor}" in optim.squaring(np.dtype(dtype)).ptx((major, minor))
