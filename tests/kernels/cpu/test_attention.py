"""Tiled attention against plain softmax attention in float64."""

import os
import subprocess
import sys

import numpy as np
import pytest

from spillgrad_kernels.cpu import random as random_kernels
from spillgrad_kernels.cpu.attention import attention_forward, attention_of_next
from spillgrad_kernels.cpu.attention_backward import attention_backward
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.tables.attention import Dropout
from spillgrad_kernels.tables.random import counters_needed
from spillgrad_kernels.tables.scalar_math import normal_exp2
from spillgrad_kernels.threads import dispatch

# (B, H, T, S, D, E): less than a tile, odd, several tiles of queries and of keys, more or fewer keys than queries.
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 7, 7, 5, 5),
    (2, 2, 97, 97, 32, 32),
    (1, 2, 300, 300, 33, 17),
    (1, 1, 100, 600, 16, 48),
    (1, 2, 600, 100, 16, 16),
    (3, 1, 1, 300, 64, 64),
]
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}


def heads_outside(x):
    return x.copy()


def heads_inside(x):
    return x.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)


def features_outside(x):
    return x.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)


def reversed_positions(x):
    return x[:, :, ::-1].copy()[:, :, ::-1]


def fields_of_packed_records(x):
    records = np.zeros(x.shape, np.dtype([("flag", "u1"), ("number", x.dtype)]))
    records["number"] = x
    return records["number"]


def seen_from(first_keys, queries, keys):
    """Return which keys each of the last queries sees, if it sees them from its first one up to its own position."""
    positions = np.arange(keys - queries, keys)[:, None]
    return (np.arange(keys) <= positions) & (np.arange(keys) >= first_keys[..., None])


def plain_attention(grad_out, q, k, v, scale, causal, mask=None, factors=1.0, first_keys=None, softcap=None):
    """Return out, lse, dq, dk, dv in float64, by whole matrices; `factors` multiply the weights, as dropout does."""
    grad_out, q, k, v = (x.astype(np.float64) for x in (grad_out, q, k, v))
    scores = np.einsum("...td,...sd->...ts", q, k) * scale
    slopes = 1.0
    if softcap is not None:
        share = np.tanh(scores / softcap)
        scores, slopes = softcap * share, 1 - share**2
    if first_keys is not None:
        scores = np.where(seen_from(first_keys, *scores.shape[-2:]), scores, -np.inf)
    elif causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    largest = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = exponentials.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + largest)[..., 0]
    weights = exponentials / np.where(total == 0, 1, total)
    kept = weights * factors
    out = kept @ v
    grad_weights = np.einsum("...te,...se->...ts", grad_out, v) * factors
    grad_scores = weights * (grad_weights - (grad_out * out).sum(-1, keepdims=True)) * slopes * scale
    return (
        out,
        lse,
        grad_scores @ k,
        np.einsum("...ts,...td->...sd", grad_scores, q),
        np.einsum("...ts,...te->...se", kept, grad_out),
    )


def random_operands(size, dtype=np.float32, layout=heads_outside):
    b, h, t, s, d, e = size
    random = np.random.default_rng(3)
    shapes = ((b, h, t, e), (b, h, t, d), (b, h, s, d), (b, h, s, e))
    return [layout(random.standard_normal(shape).astype(dtype)) for shape in shapes]


def forward_and_backward(grad_out, q, k, v, scale, causal, mask=None, dropout=None, first_keys=None, softcap=None):
    options = mask, dropout, first_keys, softcap
    out, lse = attention_forward(q, k, v, scale, causal, *options)
    return out, lse, *attention_backward(grad_out, q, k, v, out, lse, scale, causal, *options)


def random_mask(kind, shape, dtype=np.float32):
    """Return a mask of a kind; some of its rows hide everything."""
    random = np.random.default_rng(5)
    hidden = (random.random(shape) < 0.3) | (random.random((*shape[:-1], 1)) < 0.1)
    return ~hidden if kind == "choice" else np.where(hidden, -np.inf, random.standard_normal(shape)).astype(dtype)


def dropout_factors(shape, dropout):
    """Return what weights are multiplied by; every row starts at a counter of its own."""
    row = 4 * counters_needed(shape[-1])
    return random_kernels.dropout(np.ones((*shape[:-1], row)), *dropout)[..., : shape[-1]]


def assert_attention(got, want, tolerance):
    for name, x, y in zip(("out", "lse", "dq", "dk", "dv"), got, want, strict=True):
        assert x.shape == y.shape, name
        finite = np.isfinite(y)
        np.testing.assert_array_equal(x[~finite], y[~finite], err_msg=name)
        x, y = x[finite], y[finite]
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * abs(y).max(initial=1.0), err_msg=name)


@pytest.fixture
def threads():
    before = dispatch.get_num_threads()
    yield dispatch.set_num_threads
    dispatch.set_num_threads(before)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_attention_and_its_gradients_equal_plain_attention(size, dtype, causal):
    operands = random_operands(size, dtype)
    got = forward_and_backward(*operands, 0.3, causal)
    assert all(x.dtype == dtype for x in got)
    assert_attention(got, plain_attention(*operands, 0.3, causal), TOLERANCE[dtype])


# Whole, and with dimensions of size 1 that repeat: heads, batches, queries, keys.
MASK_SHAPES = [(2, 3, 130, 270), (1, 3, 130, 270), (130, 270), (2, 1, 1, 270), (3, 130, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["choice", "bias"])
@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
def test_a_mask_hides_scores_or_adds_to_them_and_a_query_without_keys_gives_zero(shape, kind, dtype):
    operands = random_operands((2, 3, 130, 270, 24, 40), dtype)
    mask = random_mask(kind, shape, dtype)
    want = plain_attention(*operands, 0.3, False, mask)
    assert np.isinf(want[1]).any()
    assert_attention(forward_and_backward(*operands, 0.3, False, mask), want, TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["choice", "bias"])
def test_a_mask_may_have_any_strides(kind):
    operands = random_operands((1, 2, 70, 200, 8, 8))
    mask = random_mask(kind, (1, 2, 200, 70)).swapaxes(-1, -2)[..., ::-1]
    want = plain_attention(*operands, 0.3, False, mask)
    assert_attention(forward_and_backward(*operands, 0.3, False, mask), want, 2e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(2, 2, 97, 97, 32, 32), (1, 1, 450, 601, 16, 48)], ids=str)
def test_dropout_zeroes_the_same_weights_in_forward_and_backward(size, causal):
    b, h, t, s, *_ = size
    operands = random_operands(size)
    dropout = Dropout(0.3, 11, 7)
    factors = dropout_factors((b, h, t, s), dropout)
    assert 0.65 < np.count_nonzero(factors) / factors.size < 0.75
    want = plain_attention(*operands, 0.2, causal, factors=factors)
    assert_attention(forward_and_backward(*operands, 0.2, causal, dropout=dropout), want, 3e-5)


def documents(lengths, batch=1):
    """Return the first key of each query of documents in a row; in each batch, the row begins elsewhere."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.stack([np.maximum(starts - number, 0) for number in range(batch)])[:, None].astype(np.int32)


def window(queries, keys, width):
    return np.maximum(np.arange(keys - queries, keys) - width + 1, 0).astype(np.int32)


FIRST_KEYS = {
    "itself alone": ((1, 2, 130, 130, 8, 8), np.arange(130, dtype=np.int32)),
    "documents": ((2, 3, 900, 900, 24, 40), documents([1, 300, 5, 70, 384, 2, 138], 2)),
    "a window": ((1, 2, 1300, 1300, 16, 16), window(1300, 1300, 256)),
    "a narrow window of a long sequence": ((1, 1, 2500, 2500, 4, 4), window(2500, 2500, 3)),
    "the last queries": ((2, 2, 75, 900, 16, 8), window(75, 900, 200)),
    "the last query": ((2, 2, 1, 900, 16, 8), window(1, 900, 200)),
    "more queries than keys": ((1, 2, 300, 100, 8, 8), np.zeros(300, np.int32)),
    "any order, some see none": (
        (2, 2, 500, 800, 8, 8), np.random.default_rng(7).integers(-50, 900, (2, 2, 500)).astype(np.int32),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FIRST_KEYS)
def test_queries_see_the_keys_from_their_first_one_up_to_themselves(name, dtype):
    size, first_keys = FIRST_KEYS[name]
    operands = random_operands(size, dtype)
    got = forward_and_backward(*operands, 0.3, True, first_keys=first_keys)
    assert_attention(got, plain_attention(*operands, 0.3, True, first_keys=first_keys), TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["choice", "bias"])
def test_first_keys_a_cap_a_mask_and_dropout_work_together(kind):
    b, h, t, s, *_ = size = (2, 2, 450, 601, 16, 24)
    operands = random_operands(size)
    dropout = Dropout(0.3, 11, 7)
    options = {
        "mask": random_mask(kind, (t, s)), "first_keys": window(t, s, 150), "softcap": 1.5,
    }  # fmt: skip
    want = plain_attention(*operands, 0.4, True, factors=dropout_factors((b, h, t, s), dropout), **options)
    assert_attention(forward_and_backward(*operands, 0.4, True, dropout=dropout, **options), want, 3e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_a_cap_bounds_the_scores(softcap, dtype, causal):
    operands = random_operands((2, 2, 150, 450, 32, 16), dtype)
    got = forward_and_backward(*operands, 0.8, causal, softcap=softcap)
    assert_attention(got, plain_attention(*operands, 0.8, causal, softcap=softcap), TOLERANCE[dtype])


def test_a_mask_that_says_the_same_as_first_keys_gives_the_same():
    size, first_keys = FIRST_KEYS["documents"]
    operands = random_operands(size)
    mask = seen_from(first_keys, *size[2:4])
    got = forward_and_backward(*operands, 0.3, True, first_keys=first_keys)
    assert_attention(got, forward_and_backward(*operands, 0.3, False, mask), 1e-6)


def test_what_no_query_sees_is_not_read():
    grad_out, q, k, v = random_operands((1, 1, 600, 2000, 8, 8))
    k[:, :, :768], v[:, :, :768] = np.nan, np.nan
    first_keys = np.full(600, 1000, np.int32)
    _, _, *gradients = got = forward_and_backward(grad_out, q, k, v, 0.3, True, first_keys=first_keys)
    assert all(np.isfinite(x).all() for x in got)
    assert not any(x[:, :, :1000].any() for x in gradients[1:])


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2, 2)], ids=str)
def test_any_number_of_dimensions_may_come_before_positions(lead):
    random = np.random.default_rng(3)
    operands = [random.standard_normal((*lead, *last)) for last in ((9, 6), (9, 5), (11, 5), (11, 6))]
    assert_attention(forward_and_backward(*operands, 0.3, True), plain_attention(*operands, 0.3, True), 1e-12)


@pytest.mark.parametrize("layout", [heads_inside, features_outside, reversed_positions, fields_of_packed_records])
def test_every_layout_gives_the_same_bits(layout):
    size = (2, 3, 130, 270, 24, 40)
    for got, want in zip(
        forward_and_backward(*random_operands(size, layout=layout), 0.2, True),
        forward_and_backward(*random_operands(size), 0.2, True),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)


def test_results_keep_the_order_of_heads_and_positions():
    grad_out, q, k, v = random_operands((2, 3, 20, 20, 8, 8), layout=heads_inside)
    for result in (x for x in forward_and_backward(grad_out, q, k, v, 0.2, True) if x.ndim == 4):
        assert result.transpose(0, 2, 1, 3).flags.c_contiguous


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("starts", [None, [1], [0, 36], [-3, 700], [701, 900]], ids=str)
@pytest.mark.parametrize("keys", [37, 38, 40, 700])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_next_position_alone_gets_what_it_gets_among_others(threads, dtype, keys, starts, softcap):
    _, q, k, v = random_operands((2, 6, 1, keys, 24, 17), dtype)
    k, v = (np.repeat(each[:, ::3], 3, 1) for each in (k, v))  # three heads share one
    first_keys = None if starts is None else np.array(starts, np.int32).reshape(-1, 1)
    seen = None if first_keys is None else np.broadcast_to(first_keys, (2, 1))[:, None]
    room = [np.full((2, 2, 2 * keys, each.shape[-1]), np.nan, dtype) for each in (k, v)]
    for kept, each in zip(room, (k, v), strict=True):
        kept[:, :, :keys] = each[:, ::3]
    found = []
    for count in (1, 2, 5):
        threads(count)
        found.append(attention_of_next(q, *(kept[:, :, :keys] for kept in room), 0.3, first_keys, softcap))
        np.testing.assert_array_equal(found[-1], found[0])
    wanted = plain_attention(np.zeros((2, 6, 1, 17)), q, k, v, 0.3, False, first_keys=seen, softcap=softcap)[0]
    assert found[0].shape == wanted.shape
    np.testing.assert_allclose(found[0], wanted, rtol=0, atol=TOLERANCE[dtype])


def test_a_next_position_whose_scores_are_all_minus_infinity_gets_zeros():
    q, k, v = np.full((1, 1, 1, 4), 1.0), np.full((1, 1, 3, 4), -np.inf), np.ones((1, 1, 3, 2))
    assert (attention_of_next(q, k, v, 1.0) == attention_forward(q, k, v, 1.0, False)[0]).all()


# All variants at once, on few heads (whose keys are shared out) and on many.
VARIANTS = {
    "plain": {},
    "causal": {"causal": True},
    "capped, in windows": {"first_keys": window(700, 600, 90), "softcap": 3.0},
    "masked, with dropout": {"mask": random_mask("choice", (700, 600)), "dropout": Dropout(0.2, 1, 2)},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("size", [(1, 1, 700, 600, 20, 20), (7, 5, 700, 600, 4, 4)], ids=str)
def test_the_number_of_threads_changes_no_bit(threads, size, options):
    operands = random_operands(size)
    options = {"causal": False, **options}
    threads(1)
    alone = forward_and_backward(*operands, 0.2, **options)
    for count in (2, 5):
        threads(count)
        for got, want in zip(forward_and_backward(*operands, 0.2, **options), alone, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("scale", [100.0, -3.0, 0.0])
def test_large_negative_and_zero_scales_do_not_overflow(scale):
    operands = random_operands((1, 2, 40, 300, 8, 8), np.float64)
    assert_attention(
        forward_and_backward(*operands, scale, False), plain_attention(*operands, scale, False), 1e-9 * (1 + abs(scale))
    )


def test_a_nan_reaches_every_query_that_sees_it_and_no_other():
    _, q, k, v = random_operands((1, 1, 300, 300, 8, 8))
    k[0, 0, 280, 3] = np.nan
    out, lse = attention_forward(q, k, v, 0.3, causal=True)
    assert not np.isnan(out[0, 0, :280]).any() and not np.isnan(lse[0, 0, :280]).any()
    assert np.isnan(out[0, 0, 280:]).all() and np.isnan(lse[0, 0, 280:]).all()


def test_keys_of_minus_infinity_get_no_weight_even_if_they_fill_the_first_tile():
    _, q, k, v = random_operands((1, 1, 5, 600, 1, 8), np.float64)
    q = abs(q)
    k[:, :, :300] = -np.inf
    out, _ = attention_forward(q, k, v, 1.0, causal=False)
    want, *_ = plain_attention(out, q, k[:, :, 300:], v[:, :, 300:], 1.0, False)
    np.testing.assert_allclose(out, want, rtol=1e-12, atol=1e-12)


EMPTY_SIZES = [(0, 2, 3, 3, 4, 4), (2, 2, 0, 3, 4, 4), (1, 2, 3, 0, 4, 4), (1, 1, 3, 3, 4, 0)]


@pytest.mark.parametrize("size", EMPTY_SIZES, ids=str)
def test_zero_sizes_give_zeros_of_the_right_shapes(size):
    grad_out, q, k, v = operands = random_operands(size)
    out, lse, *gradients = forward_and_backward(*operands, 0.5, True)
    assert out.shape == grad_out.shape and lse.shape == q.shape[:3]
    assert [x.shape for x in gradients] == [x.shape for x in (q, k, v)]
    assert not out.any() and not any(x.any() for x in gradients)
    assert np.all(lse == -np.inf) if size[3] == 0 else np.all(np.isfinite(lse))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


BAD = [
    ((zeros(4), zeros(3, 4), zeros(3, 4)), ValueError, r"q \(4,\)"),
    ((zeros(2, 3, 4), zeros(1, 3, 4), zeros(1, 3, 4)), ValueError, "the same dimensions before positions"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 3, 5), zeros(1, 2, 3, 4)), ValueError, r"\(1, 2, 3, 5\)"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 6, 4), zeros(1, 2, 3, 4)), ValueError, r"\(1, 2, 6, 4\)"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 3, 4), zeros(1, 2, 3, 4, dtype="f8")), TypeError, "float64"),
    ((zeros(1, 2, 3, 0), zeros(1, 2, 3, 0), zeros(1, 2, 3, 4)), ValueError, "D at least 1"),
]


BAD_OPTIONS = [
    ({"mask": zeros(3, 3, dtype="f8")}, TypeError, "a mask of float64"),
    ({"mask": zeros(2, 3)}, ValueError, r"\(2, 3\)"),
    ({"dropout": Dropout(1.0, 0, 0)}, ValueError, "dropout p=1.0"),
    ({"first_keys": np.zeros(3, np.int64)}, TypeError, "first keys of int64; wanted int32"),
    ({"first_keys": np.zeros(4, np.int32)}, ValueError, r"first keys of \(4,\); .* broadcasts to \(1, 1, 3\)"),
    ({"softcap": 0.0}, ValueError, "softcap=0.0"),
]


@pytest.mark.parametrize(("options", "error", "message"), BAD_OPTIONS, ids=[message for *_, message in BAD_OPTIONS])
def test_options_that_do_not_fit_are_named(options, error, message):
    with pytest.raises(error, match=message):
        attention_forward(zeros(1, 1, 3, 4), zeros(1, 1, 3, 4), zeros(1, 1, 3, 4), 1.0, False, **options)


@pytest.mark.parametrize(("operands", "error", "message"), BAD, ids=[message for *_, message in BAD])
def test_operands_that_do_not_fit_are_named(operands, error, message):
    with pytest.raises(error, match=message):
        attention_forward(*operands, 1.0, False)


def test_a_gradient_that_does_not_fit_is_named():
    grad_out, q, k, v = random_operands((1, 2, 5, 5, 4, 4))
    out, lse = attention_forward(q, k, v, 0.5, True)
    with pytest.raises(ValueError, match=r"grad_out \(1, 2, 4, 4\)"):
        attention_backward(grad_out[:, :, 1:], q, k, v, out, lse, 0.5, True)
    with pytest.raises(TypeError, match="float64"):
        attention_backward(grad_out.astype("f8"), q, k, v, out, lse, 0.5, True)


@pytest.mark.parametrize(("dtype", "lowest"), [(np.float32, -126), (np.float64, -1022)])
def test_powers_of_two_are_exact_to_two_units_in_the_last_place(dtype, lowest):
    @jit(name=f"test_attention.exp2.{dtype.__name__}")
    def powers(x):
        for i in range(x.size):
            x[i] = normal_exp2(x[i])

    x = np.concatenate([np.linspace(lowest, 1, 100_001), -np.geomspace(1e-40, 1, 1001), np.arange(lowest, 1)])
    x = x.astype(dtype)
    want = np.exp2(x.astype(np.longdouble))
    got = x.copy()
    powers(got)
    assert np.max(abs(got - want) / np.spacing(want.astype(dtype))) <= 2
    ends = np.array([-np.inf, 10 * lowest, 0, -0.0, np.nan], dtype)
    powers(ends)
    np.testing.assert_array_equal(ends, [0, 0, 1, 1, np.nan])


def test_everything_holds_without_compilation():
    code = """
import numpy as np
from test_attention import *
operands = random_operands((1, 2, 9, 11, 5, 3))
dropout = Dropout(0.3, 1, 2)
factors = dropout_factors((1, 2, 9, 11), dropout)
choice, bias = random_mask("choice", (9, 11)), operands[1][..., :1]
for causal, mask in ((False, None), (True, None), (False, choice), (True, bias)):
    got = forward_and_backward(*operands, 0.3, causal, mask, dropout)
    assert_attention(got, plain_attention(*operands, 0.3, causal, mask, factors), 1e-5)
options = {"first_keys": window(9, 11, 4), "softcap": 2.0}
got = forward_and_backward(*operands, 0.3, True, **options)
assert_attention(got, plain_attention(*operands, 0.3, True, **options), 1e-5)
"""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
