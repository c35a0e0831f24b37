"""The matrix product against NumPy in float64, over layouts, sizes, batches and threads."""

import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu.matmul import linear, matmul
from spillgrad_kernels.tables import scalar_math
from spillgrad_kernels.threads import dispatch

DTYPES = (np.float32, np.float64)
# (M, N, K): tiles and their edges, one row or column, depths beyond one block, widths beyond one block.
SIZES = [
    (1, 1, 1),
    (2, 3, 4),
    (12, 32, 16),
    (13, 33, 17),
    (64, 64, 64),
    (5, 1, 300),
    (1, 7, 300),
    (2500, 1, 3),
    (1, 2500, 2100),
    (145, 40, 257),
    (30, 2100, 20),
    (97, 131, 600),
    (97, 131, 1100),
    (9, 1300, 300),
    (1300, 9, 300),
    (12, 12, 700),
    (16, 20, 300),
    (20, 70, 33),
    (40, 600, 20),
    (40, 1024, 20),
]
LAYOUTS = {
    "rows": lambda x: x.copy(order="C"),
    "columns": lambda x: x.copy(order="F"),
    "strided": lambda x: np.repeat(np.repeat(x, 2, -1), 3, -2)[..., ::3, ::2],
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1],
}
BATCHES = [
    ((3,), (3,)),
    ((2, 3), (2, 3)),
    ((2, 1), (3,)),
    ((), (4,)),
    ((4,), ()),
    ((2, 3), ()),
    ((2, 1, 2), (1, 3, 2)),
    ((1,), (5,)),
    ((0,), ()),
]


@pytest.fixture
def random():
    return np.random.default_rng(7)


@pytest.fixture
def threads():
    before = dispatch.get_num_threads()
    yield dispatch.set_num_threads
    dispatch.set_num_threads(before)


def assert_product(got, a, b, added=0.0):
    a, b = a.astype(np.float64), b.astype(np.float64)
    want = np.matmul(a, b) + added
    # The error of a sum of K products is bounded by K eps times the sum of their magnitudes.
    bound = (a.shape[-1] + 2) * np.finfo(got.dtype).eps * (np.matmul(abs(a), abs(b)) + abs(added))
    assert got.shape == want.shape
    assert np.all(abs(got - want) <= bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_size_gives_the_product(random, dtype, size):
    m, n, k = size
    a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    got = matmul(a, b)
    assert got.dtype == dtype
    assert_product(got, a, b)


# The last two have so many rows that B is packed if its rows share few sets of the cache.
EVERY_LAYOUT = [(37, 45, 29), (1, 45, 29), (37, 1, 29), (9, 145, 290), (145, 9, 290), (160, 64, 128), (131, 128, 300)]


@pytest.mark.parametrize("size", EVERY_LAYOUT, ids=str)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_every_layout_gives_the_same_bits(random, layout_a, layout_b, size):
    m, n, k = size
    a, b = random.standard_normal((m, k)).astype("f4"), random.standard_normal((k, n)).astype("f4")
    got = matmul(LAYOUTS[layout_a](a), LAYOUTS[layout_b](b))
    assert_product(got, a, b)
    if min(m, n) > 1:  # a vector is multiplied by rows or by columns, whichever are contiguous
        np.testing.assert_array_equal(got, matmul(a, b))


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    "size", [(37, 45, 290), (1, 45, 290), (37, 1, 290), (37, 45, 0), (9, 45, 290), (45, 9, 290)], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_of_any_layout_is_set_or_added_to(random, layout, size, accumulate):
    m, n, k = size
    a, b = random.standard_normal((m, k)).astype("f4"), random.standard_normal((k, n)).astype("f4")
    before = random.standard_normal((m, n)).astype("f4")
    out = LAYOUTS[layout](before)
    assert matmul(a, b, out, accumulate=accumulate) is out
    assert_product(out, a, b, before.astype("f8") if accumulate else 0.0)


def test_fields_of_packed_records_are_multiplied(random):
    numbers = random.standard_normal((2, 40, 40)).astype("f4")
    records = np.zeros(numbers.shape, np.dtype([("flag", "u1"), ("number", "f4")]))
    records["number"] = numbers
    a, b = records["number"]
    assert not a.flags.aligned
    assert_product(matmul(a, b), a, b)
    assert_product(matmul(a, numbers[1].T), a, numbers[1].T)
    assert_product(linear(a, b), a, b.T)


def test_memory_around_out_is_left_alone(random):
    a, b = random.standard_normal((13, 40)).astype("f4"), random.standard_normal((40, 35)).astype("f4")
    surrounding = np.full((17, 39), 7, np.float32)
    matmul(a, b, surrounding[2:15, 2:37])
    assert_product(surrounding[2:15, 2:37].copy(), a, b)
    surrounding[2:15, 2:37] = 7
    assert np.all(surrounding == 7)


@pytest.mark.parametrize("size", [(5, 6, 7), (1, 6, 7), (5, 1, 7)], ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_batch_dimensions_broadcast(random, batch, size):
    m, n, k = size
    a = random.standard_normal((*batch[0], m, k)).astype("f4")
    b = random.standard_normal((*batch[1], k, n)).astype("f4")
    assert_product(matmul(a, b), a, b)


def test_a_batch_of_transposed_heads_is_multiplied_in_place(random):
    x = random.standard_normal((2, 20, 3, 8)).astype("f4")
    heads = x.transpose(0, 2, 1, 3)
    out = np.zeros((2, 20, 3, 20), np.float32).transpose(0, 2, 1, 3)
    matmul(heads, heads.swapaxes(-1, -2), out)
    assert_product(out, heads, heads.swapaxes(-1, -2))


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 3), (3, 0)), ((2, 0), (0, 4)), ((0, 2, 3), (3, 4))], ids=str)
def test_zero_sizes_give_empty_arrays_or_zeros(shapes):
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    np.testing.assert_array_equal(matmul(a, b), np.matmul(a, b))


@pytest.mark.parametrize(
    "size",
    [
        (700, 300, 129),
        (300, 700, 600),
        (300, 600, 1100),
        (30, 3000, 40),
        (700, 600, 400),
        (5000, 1, 1000),
        (1, 5001, 1000),
        (9, 5000, 300),
    ],
    ids=str,
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_no_bit(random, threads, size, transposed, dtype):
    m, n, k = size
    a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
    if transposed:
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    threads(1)
    alone = matmul(a, b)
    for count in (2, 3):
        threads(count)
        np.testing.assert_array_equal(matmul(a, b), alone)


# Depths that parts do not divide evenly; parts of the least depth, and of the greatest; more sums than a part keeps.
@pytest.mark.parametrize("size", [(3000, 129), (1000, 700), (300, 4999), (70, 90_000), (9001, 150)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_a_vector_is_multiplied_in_parts_of_the_depth_by_a_matrix_whose_rows_are_long(random, layout, dtype, size):
    n, k = size
    x, b = random.standard_normal((1, k)), random.standard_normal((k, n))
    if dtype == "bfloat16":
        x, b = x.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)
        bits, matrix = x.view(np.uint16), LAYOUTS[layout](b.view(np.uint16))
    else:
        x, b = x.astype(dtype), b.astype(dtype)
        bits, matrix = x, LAYOUTS[layout](b)
    kind = np.float32 if dtype == "bfloat16" else dtype
    before = random.standard_normal((n, 1)).astype(kind)
    for alone in (matmul(bits, matrix).T, matmul(matrix.T, bits.T)):
        assert_product(alone, b.astype("f8").T, x.astype("f8").T)
    out = np.full((n, 3), 7, kind)
    out[:, 1:2] = before
    matmul(matrix.T, bits.T, out[:, 1:2], accumulate=True)
    assert_product(out[:, 1:2], b.astype("f8").T, x.astype("f8").T, before.astype("f8"))
    assert (out[:, ::2] == 7).all()


def test_a_split_batch_equals_its_products(random, threads):
    a, b = random.standard_normal((9, 100, 100)).astype("f4"), random.standard_normal((9, 100, 100)).astype("f4")
    threads(2)
    together = matmul(a, b)
    for i in range(9):
        np.testing.assert_array_equal(together[i], matmul(a[i], b[i]))


@pytest.mark.parametrize("size", [(20, 40, 30), (1, 40, 30), (20, 1, 30)], ids=str)
def test_nan_and_infinity_reach_only_their_row_and_column(random, size):
    m, n, k = size
    a, b = random.standard_normal((m, k)).astype("f4"), random.standard_normal((k, n)).astype("f4")
    a[m - 1, 3] = np.nan
    b[5, 0] = np.inf
    got = matmul(a, b)
    with np.errstate(invalid="ignore"):
        want = np.matmul(a.astype("f8"), b.astype("f8"))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


def bfloat16(random, *shape):
    """Return numbers that bfloat16 holds, and their bits."""
    numbers = random.standard_normal(shape).astype(ml_dtypes.bfloat16)
    return numbers.astype(np.float32), numbers.view(np.uint16)


@pytest.mark.parametrize("size", [*SIZES, (145, 40, 600), (40, 145, 1031)], ids=str)
def test_bfloat16_adds_up_in_float32(random, size):
    m, n, k = size
    (a, a_bits), (b, b_bits) = bfloat16(random, m, k), bfloat16(random, k, n)
    got = matmul(a_bits, b_bits)
    assert got.dtype == np.float32
    assert_product(got, a, b)


@pytest.mark.parametrize("size", [(37, 45, 28), (37, 45, 29), (1, 45, 29), (37, 1, 29)], ids=str)
@pytest.mark.parametrize("layout_b", LAYOUTS)
@pytest.mark.parametrize("layout_a", LAYOUTS)
def test_bfloat16_of_every_layout_gives_the_same_bits(random, layout_a, layout_b, size):
    m, n, k = size
    (a, a_bits), (b, b_bits) = bfloat16(random, m, k), bfloat16(random, k, n)
    got = matmul(LAYOUTS[layout_a](a_bits), LAYOUTS[layout_b](b_bits))
    assert_product(got, a, b)
    if min(m, n) > 1:
        np.testing.assert_array_equal(got, matmul(a_bits, b_bits))


def test_bfloat16_is_added_to_float32_and_comes_in_batches(random, threads):
    (a, a_bits), (b, b_bits) = bfloat16(random, 3, 150, 700), bfloat16(random, 700, 90)
    out = random.standard_normal((3, 150, 90)).astype("f4")
    before = out.astype("f8")
    threads(2)
    assert_product(matmul(a_bits, b_bits, out, accumulate=True), a, b, before)
    threads(1)
    np.testing.assert_array_equal(matmul(a_bits, b_bits, before.astype("f4"), accumulate=True), out)


def test_bfloat16_infinities_and_nan_propagate():
    a = np.array([[np.inf, 1], [np.nan, 1], [3e38, 3e38]], ml_dtypes.bfloat16)
    b = np.array([[1, -1], [2, 2]], ml_dtypes.bfloat16)
    got = matmul(a.view(np.uint16), b.view(np.uint16))
    np.testing.assert_array_equal(got[:2], [[np.inf, -np.inf], [np.nan, np.nan]])
    assert got[2, 0] == np.inf


LINEAR_SIZES = [
    (5, 7, 9),
    (90, 20, 300),
    (7, 500, 300),
    (64, 96, 32),
    (700, 300, 60),
    (700, 600, 400),
    (1, 40, 30),
    (40, 1, 30),
    (1, 1, 1),
    (3, 4, 0),
    (0, 4, 3),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("size", LINEAR_SIZES, ids=str)
def test_a_linear_layer_is_its_product_then_the_bias_then_the_formula(random, threads, size, with_bias, dtype):
    m, n, k = size
    rows, weight = random.standard_normal((m, k)).astype(dtype), random.standard_normal((n, k)).astype(dtype)
    bias = random.standard_normal(n).astype(dtype) if with_bias else None
    other = random.standard_normal((m, n)).astype(dtype)
    sums = matmul(rows, weight.T)
    if bias is not None:
        sums = np.broadcast_to(bias, (m, n)).copy()
        matmul(rows, weight.T, sums, accumulate=True)
    for count in (1, 2):
        threads(count)
        np.testing.assert_array_equal(linear(rows, weight, bias), sums)
        product = np.empty((m, n), dtype)
        got = linear(
            rows, weight, bias, other=other, formula=lambda product, other: other + tanh(product), name="tanh_add",
            product=product,
        )  # fmt: skip
        np.testing.assert_array_equal(product, sums)
        np.testing.assert_allclose(got, other + np.tanh(sums), rtol=4 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)
        product[...] = 7
        assert linear(rows, weight, bias, product=product) is product
        np.testing.assert_array_equal(product, sums)
        in_place = linear(rows, weight, bias, formula=lambda product: product * product, name="square")
        np.testing.assert_array_equal(in_place, sums * sums)


tanh = scalar_math.tanh


def test_a_linear_layer_of_bfloat16_adds_its_bias_in_float32(random):
    (rows, row_bits), (weight, weight_bits) = bfloat16(random, 40, 65), bfloat16(random, 33, 65)
    bias = random.standard_normal(33).astype("f4")
    assert_product(linear(row_bits, weight_bits, bias), rows, weight.T, bias.astype("f8"))


BAD = [
    (lambda: matmul(np.ones((3, 4), "f4"), np.ones((5, 6), "f4")), ValueError, r"\(3, 4\) and \(5, 6\)"),
    (lambda: matmul(np.ones(4, "f4"), np.ones((4, 6), "f4")), ValueError, r"\(4,\)"),
    (lambda: matmul(np.ones((2, 3, 4), "f4"), np.ones((5, 4, 6), "f4")), ValueError, r"\(2, 3, 4\) and \(5, 4, 6\)"),
    (lambda: matmul(np.ones((3, 4), "f4"), np.ones((4, 6), "f8")), TypeError, "float32 and float64"),
    (lambda: matmul(np.ones((3, 4), "i4"), np.ones((4, 6), "i4")), TypeError, "int32"),
    (lambda: matmul(np.ones((3, 4), "f4"), np.ones((4, 6), "f4"), np.ones((6, 3), "f4")), ValueError, r"\(6, 3\)"),
    (
        lambda: matmul(np.ones((3, 4), "f4"), np.ones((4, 6), "f4"), np.broadcast_to(np.float32(0), (3, 6))),
        ValueError,
        "read-only",
    ),
    (lambda: matmul(np.ones((3, 4), "f4"), np.ones((4, 6), "f4"), accumulate=True), ValueError, "without out"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[message for _, _, message in BAD])
def test_operands_that_do_not_fit_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


WITHOUT_COMPILATION = """
import llvmlite.binding, ml_dtypes, numpy as np
features = {features}
if features is not None:
    llvmlite.binding.get_host_cpu_features = lambda: features
from spillgrad_kernels.cpu.matmul import linear, matmul
random = np.random.default_rng(0)
for dtype in (np.float32, np.float64):
    for m, n, k in ((3, 4, 5), (13, 35, 18), (1, 5, 4), (5, 1, 4), (2, 3, 0)):
        for turned in (False, True):
            a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((k, n)).astype(dtype)
            a, b = (np.asfortranarray(a), np.asfortranarray(b)) if turned else (a, b)
            out = np.ones((m, n), dtype)
            np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(matmul(a, b, out, accumulate=True), 1 + a @ b, rtol=1e-4, atol=1e-4)
            halves = [x.astype(ml_dtypes.bfloat16) for x in (a, b)]
            want = halves[0].astype("f4") @ halves[1].astype("f4")
            np.testing.assert_allclose(matmul(*[x.view("u2") for x in halves]), want, rtol=1e-4, atol=1e-4)
            got = linear(a, b.T, np.ones(n, dtype), formula=lambda product: product * product, name="square")
            np.testing.assert_allclose(got, (1 + a @ b) ** 2, rtol=1e-4, atol=1e-4)
"""
HOSTS = {"this": None, "AVX2": {"avx2": True, "fma": True}, "NEON": {"neon": True}, "SSE": {}}


@pytest.mark.parametrize("host", HOSTS)
def test_everything_holds_without_compilation_and_with_the_tiles_of_any_host(host):
    code = WITHOUT_COMPILATION.format(features=HOSTS[host])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=600)


COMPILED_FOR_ANY_HOST = """
import ml_dtypes, numpy as np
from spillgrad_kernels.cpu.matmul import matmul
random = np.random.default_rng(0)
for m, n, k in ((3, 4, 5), (30, 35, 18), (130, 300, 270), (1, 5, 4)):
    a, b = random.standard_normal((m, k)).astype(ml_dtypes.bfloat16), random.standard_normal((k, n)).astype("f4")
    b = b.astype(ml_dtypes.bfloat16)
    want = a.astype("f4") @ b.astype("f4")
    np.testing.assert_allclose(matmul(a.view("u2"), b.view("u2")), want, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
@pytest.mark.exhaustive
def test_bfloat16_needs_no_instruction_of_its_own():
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", COMPILED_FOR_ANY_HOST], env=environment, check=True, timeout=600)


def test_many_threads_on_few_cores_make_the_same_bits(random, threads):
    # Many blocks and slabs of few tiles: threads that lose their core meet others two blocks ahead.
    a, b = random.standard_normal((40, 1100)).astype("f4"), random.standard_normal((1100, 6200)).astype("f4")
    threads(1)
    want = matmul(a, b)
    threads(7)
    for _ in range(40):
        np.testing.assert_array_equal(matmul(a, b), want)
