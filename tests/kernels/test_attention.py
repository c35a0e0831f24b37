"""Tiled attention against plain softmax attention in float64."""

import os
import subprocess
import sys

import numpy as np
import pytest

from spillgrad_kernels import dispatch
from spillgrad_kernels.attention import attention_backward, attention_forward

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


def plain_attention(grad_out, q, k, v, scale, causal):
    """Return out, lse, dq, dk, dv in float64, by whole matrices."""
    grad_out, q, k, v = (x.astype(np.float64) for x in (grad_out, q, k, v))
    scores = np.einsum("bhtd,bhsd->bhts", q, k) * scale
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    lse = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    weights = np.exp(scores - lse[..., None])
    out = weights @ v
    grad_weights = np.einsum("bhte,bhse->bhts", grad_out, v)
    grad_scores = weights * (grad_weights - (grad_out * out).sum(-1, keepdims=True)) * scale
    return (
        out,
        lse,
        grad_scores @ k,
        np.einsum("bhts,bhtd->bhsd", grad_scores, q),
        np.einsum("bhts,bhte->bhse", weights, grad_out),
    )


def random_operands(size, dtype=np.float32, layout=heads_outside):
    b, h, t, s, d, e = size
    random = np.random.default_rng(3)
    shapes = ((b, h, t, e), (b, h, t, d), (b, h, s, d), (b, h, s, e))
    return [layout(random.standard_normal(shape).astype(dtype)) for shape in shapes]


def forward_and_backward(grad_out, q, k, v, scale, causal):
    out, lse = attention_forward(q, k, v, scale, causal)
    return out, lse, *attention_backward(grad_out, q, k, v, out, lse, scale, causal)


def assert_attention(got, want, tolerance):
    for name, x, y in zip(("out", "lse", "dq", "dk", "dv"), got, want, strict=True):
        assert x.shape == y.shape, name
        np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * max(1.0, abs(y).max()), err_msg=name)


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


@pytest.mark.parametrize("layout", [heads_inside, features_outside, reversed_positions])
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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 700, 600, 20, 20), (2, 3, 200, 300, 20, 24)], ids=str)
def test_the_number_of_threads_changes_no_bit(threads, size, causal):
    operands = random_operands(size)
    threads(1)
    alone = forward_and_backward(*operands, 0.2, causal)
    for count in (2, 5):
        threads(count)
        for got, want in zip(forward_and_backward(*operands, 0.2, causal), alone, strict=True):
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
    ((zeros(2, 3, 4), zeros(2, 3, 4), zeros(2, 3, 4)), ValueError, "four dimensions"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 3, 5), zeros(1, 2, 3, 4)), ValueError, r"\(1, 2, 3, 5\)"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 6, 4), zeros(1, 2, 3, 4)), ValueError, r"\(1, 2, 6, 4\)"),
    ((zeros(1, 2, 3, 4), zeros(1, 2, 3, 4), zeros(1, 2, 3, 4, dtype="f8")), TypeError, "float64"),
    ((zeros(1, 2, 3, 0), zeros(1, 2, 3, 0), zeros(1, 2, 3, 4)), ValueError, "D at least 1"),
]


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


def test_everything_holds_without_compilation():
    code = """
import numpy as np
from test_attention import assert_attention, forward_and_backward, plain_attention, random_operands
for causal in (False, True):
    operands = random_operands((1, 2, 9, 11, 5, 3))
    assert_attention(forward_and_backward(*operands, 0.3, causal), plain_attention(*operands, 0.3, causal), 1e-5)
"""
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
