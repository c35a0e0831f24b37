"""The code of CUDA kernels, made without a GPU."""

import re

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda import elementwise, random, reductions
from spillgrad_kernels.elementwise import ROWS
from spillgrad_kernels.formula import parameters

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
