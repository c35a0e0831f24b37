"""Attention against NumPy, its gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops.attention import scaled_dot_product_attention as attention
from spillgrad_kernels.memory import buffers
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(3)
Q, K, V = RNG.normal(size=(2, 2, 5, 4)), RNG.normal(size=(2, 2, 6, 4)), RNG.normal(size=(2, 2, 6, 3))
MASK = RNG.random((2, 1, 5, 6)) > 0.4
MASK[..., 0] = True


def oracle(q, k, v, scale=None, visible=True, bias=0.0):
    scores = q @ k.swapaxes(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + bias
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


CASES = {
    "plain": ({}, {}),
    "causal": ({"is_causal": True}, {"visible": np.tri(5, 6, dtype=bool)}),
    "scaled": ({"scale": 0.3}, {"scale": 0.3}),
    "choice": ({"attn_mask": sg.tensor(MASK)}, {"visible": MASK}),
    "bias": ({"attn_mask": sg.tensor(V[0, 0, :5, :1])}, {"bias": V[0, 0, :5, :1]}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_with_numpy_and_differences(name):
    options, wanted = CASES[name]
    got = attention(*map(sg.tensor, (Q, K, V)), **options)
    np.testing.assert_allclose(got.numpy(), oracle(Q, K, V, **wanted), 1e-10)
    check_gradients(lambda q, k, v: attention(q, k, v, **options), Q[:, :1], K[:, :1], V[:, :1])


def repeat_heads(x, times):
    return np.repeat(x, times, -3)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": sg.tensor(MASK)}], ids=str)
def test_grouped_queries_share_heads_of_key_and_value(options):
    q = RNG.normal(size=(2, 4, 5, 4))
    visible = MASK if "attn_mask" in options else np.tri(5, 6, dtype=bool) if options else True
    got = attention(sg.tensor(q), sg.tensor(K), sg.tensor(V), enable_gqa=True, **options)
    want = oracle(q, repeat_heads(K, 2), repeat_heads(V, 2), visible=visible)
    np.testing.assert_allclose(got.numpy(), want, 1e-10)
    check_gradients(lambda q, k, v: attention(q, k, v, enable_gqa=True, **options), q, K, V, second=False)


def test_a_mask_for_each_head_of_grouped_queries():
    q, mask = RNG.normal(size=(2, 4, 5, 4)), RNG.normal(size=(4, 5, 6))
    got = attention(sg.tensor(q), sg.tensor(K), sg.tensor(V), sg.tensor(mask), enable_gqa=True)
    np.testing.assert_allclose(got.numpy(), oracle(q, repeat_heads(K, 2), repeat_heads(V, 2), bias=mask), 1e-10)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": sg.tensor(MASK[:1, :, :4])}], ids=str)
def test_dropout_has_gradients_and_draws_its_mask_again(options):
    def function(q, k, v):
        sg.manual_seed(7)
        return attention(q, k, v, dropout_p=0.4, **options)

    check_gradients(function, Q[:1, :, :4], K[:1], V[:1])


def test_neither_a_mask_nor_dropout_makes_the_matrix_of_weights(monkeypatch):
    length, sizes = 1500, []

    def counted(shape, dtype, empty=buffers.empty):
        sizes.append(math.prod(shape))
        return empty(shape, dtype)

    monkeypatch.setattr(buffers, "empty", counted)
    q, k, v = (leaf(RNG.normal(size=(1, 1, length, 2))) for _ in range(3))
    with sg.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        result = attention(q, k, v, sg.tensor(RNG.random(length) > 0.1), dropout_p=0.1)
    result.sum().backward()
    assert 2 * length in sizes
    assert max(sizes) <= 2 * length


def test_a_mask_of_numbers_has_a_gradient():
    q, k, v = sg.tensor(Q[0, 0]), sg.tensor(K[0, 0]), sg.tensor(V[0, 0])
    check_gradients(lambda mask: attention(q, k, v, mask), RNG.normal(size=(5, 6)))


@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 2)], ids=str)
def test_attention_takes_any_leading_dimensions(lead):
    q, k, v = RNG.normal(size=(*lead, 5, 4)), RNG.normal(size=(*lead, 6, 4)), RNG.normal(size=(*lead, 6, 3))
    got = attention(*map(sg.tensor, (q, k, v)), is_causal=True)
    np.testing.assert_allclose(got.numpy(), oracle(q, k, v, visible=np.tri(5, 6, dtype=bool)), 1e-10)


def test_leading_dimensions_broadcast():
    got = attention(sg.tensor(Q), sg.tensor(K[:1]), sg.tensor(V[:, :1]))
    np.testing.assert_allclose(got.numpy(), oracle(Q, K[:1], V[:, :1]), 1e-10)
    check_gradients(attention, Q[:, :1, :2], K[:1, :1, :2], V[:1, :1, :2])


def test_attention_takes_heads_inside_positions():
    def function(x):
        q, k, v = x.reshape(1, 4, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        return attention(q, k, v, is_causal=True).transpose(1, 2).reshape(1, 4, 4)

    check_gradients(function, RNG.normal(size=(1, 4, 12)), second=False)
    check_half_precision(function, RNG.normal(size=(1, 4, 12)), tolerance=5e-2)


def test_plain_attention_saves_its_operands_its_result_and_one_number_a_query():
    node = attention(leaf(Q), leaf(K), leaf(V)).grad_fn
    while not node.name().startswith("Scaled"):
        node = node.next_functions[0][0]
    assert {name: getattr(node, f"_saved_{name}").shape for name in ("query", "key", "value", "result", "lse")} == {
        "query": Q.shape, "key": K.shape, "value": V.shape, "result": (2, 2, 5, 3), "lse": (2, 2, 5),
    }  # fmt: skip


@pytest.mark.parametrize("numbers", [False, True])
def test_a_query_that_sees_no_key_gives_zero_and_no_nan(numbers):
    hidden = np.ones((5, 6), bool)
    hidden[2] = False
    mask = sg.tensor(np.where(hidden, 0.0, -np.inf)) if numbers else sg.tensor(hidden)
    q, k, v = leaf(Q), leaf(K), leaf(V)
    result = attention(q, k, v, mask)
    assert not result.numpy()[:, :, 2].any()
    result.sum().backward()
    assert np.isfinite(q.grad.numpy()).all()
    assert np.isfinite(k.grad.numpy()).all()


def test_no_keys_and_no_queries_are_fine():
    assert not attention(sg.ones(1, 1, 2, 4), sg.ones(1, 1, 0, 4), sg.ones(1, 1, 0, 3)).numpy().any()
    assert attention(sg.ones(1, 1, 0, 4), sg.ones(1, 1, 2, 4), sg.ones(1, 1, 2, 3)).shape == (1, 1, 0, 3)


def test_dropout_zeroes_weights_and_keeps_the_expectation():
    sg.manual_seed(0)
    q, k, v = sg.zeros(1, 1, 1, 4), sg.zeros(1, 1, 4000, 4), sg.ones(1, 1, 4000, 1)
    assert attention(q, k, v, dropout_p=0.5).item() == pytest.approx(1.0, abs=0.1)
    assert attention(q, k, v, dropout_p=1.0).item() == 0


def test_half_precision_takes_masks_and_dropout():
    sg.manual_seed(3)
    mask = sg.tensor(RNG.normal(size=(5, 6))).to("bfloat16")
    q, k, v = (sg.tensor(x).to("bfloat16") for x in (Q, K, V))
    got = attention(q, k, v, mask, dropout_p=0.5)
    sg.manual_seed(3)
    want = attention(q.to("float32"), k.to("float32"), v.to("float32"), mask.to("float32"), dropout_p=0.5)
    assert got.dtype == sg.bfloat16
    np.testing.assert_allclose(got.to("float32").numpy(), want.numpy(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        (((5, 4), (6, 3), (6, 3)), {}, ShapeError, r"got query \(5, 4\), key \(6, 3\) .* same last dimension"),
        (((5, 4), (6, 4), (5, 3)), {}, ShapeError, "same number of positions"),
        (((2, 5, 4), (3, 6, 4), (3, 6, 4)), {}, ShapeError, "leading dimensions must broadcast"),
        (((4,), (6, 4), (6, 4)), {}, ShapeError, "at least two dimensions"),
        (((5, 4), (6, 4), (6, 4)), {"attn_mask": sg.ones(5, 5).bool()}, ShapeError, r"mask of \(5, 5\); .* \(5, 6\)"),
        (((5, 4), (6, 4), (6, 4)), {"attn_mask": sg.ones(5, 6, dtype="float64")}, DtypeError, "a mask of float64"),
        (
            ((5, 4), (6, 4), (6, 4)), {"attn_mask": sg.ones(5, 6), "is_causal": True}, ArgumentError,
            "both attn_mask and is_causal",
        ),
        (((5, 4), (6, 4), (6, 4)), {"dropout_p": 1.5}, ArgumentError, "dropout_p=1.5"),
        (((5, 4), (6, 4), (6, 4)), {"enable_gqa": True}, ShapeError, "enable_gqa"),
        (((3, 5, 4), (2, 6, 4), (2, 6, 4)), {"enable_gqa": True}, ShapeError, "divide the query's"),
        (
            ((4, 5, 4), (2, 6, 4), (2, 6, 4)), {"enable_gqa": True, "attn_mask": sg.ones(2, 5, 6)}, ShapeError,
            r"mask of \(2, 5, 6\); wanted 1 or 4 heads",
        ),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_wanted(shapes, options, error, message):
    with pytest.raises(error, match=message):
        attention(*map(sg.ones, shapes), **options)


def test_dtypes_must_agree():
    with pytest.raises(DtypeError, match="got query float32, key float64 and value float32"):
        attention(sg.ones(5, 4), sg.ones(6, 4, dtype="float64"), sg.ones(6, 4))
