"""Attention from a first key up to each position, against NumPy, central differences and the same mask."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn.functional import causal_attention, scaled_dot_product_attention
from spillgrad_kernels.memory import buffers
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(3)
Q, K, V = RNG.normal(size=(2, 4, 5, 4)), RNG.normal(size=(2, 2, 6, 4)), RNG.normal(size=(2, 2, 6, 3))
STARTS = np.array([[0, 0, 2, 2, 4], [0, 0, 0, 1, 2]])  # of documents, and of a window


def seen(first_keys, queries, keys):
    positions = np.arange(keys - queries, keys)[:, None]
    return (np.arange(keys) <= positions) & (np.arange(keys) >= np.asarray(first_keys)[..., None])


def oracle(q, k, v, first_keys=0, scale=None, softcap=None):
    k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scores = q @ k.swapaxes(-2, -1) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    visible = seen(np.broadcast_to(first_keys, (*q.shape[:-3], q.shape[-2])), *scores.shape[-2:])
    weights = np.where(visible[..., None, :, :], np.exp(scores), 0)
    return weights / weights.sum(-1, keepdims=True) @ v


CASES = {
    "all former keys": {},
    "documents": {"first_keys": STARTS},
    "the same for each sequence": {"first_keys": STARTS[0]},
    "itself alone": {"first_keys": np.arange(1, 6)},
    "capped": {"softcap": 0.7, "scale": 0.9},
    "capped documents": {"softcap": 0.7, "first_keys": STARTS},
}


@pytest.mark.parametrize("keys", [5, 6])
@pytest.mark.parametrize("name", CASES)
def test_it_agrees_with_numpy_and_with_differences_also_twice(name, keys):
    options, k, v = CASES[name], K[:, :, :keys], V[:, :, :keys]
    if name == "itself alone" and keys == 5:
        options = {"first_keys": np.arange(5)}
    got = causal_attention(*map(sg.tensor, (Q, k, v)), **options)
    np.testing.assert_allclose(got.numpy(), oracle(Q, k, v, **options), 1e-10)
    batch = {name: value[:1] if np.ndim(value) == 2 else value for name, value in options.items()}
    check_gradients(lambda q, k, v: causal_attention(q, k, v, **batch), Q[:1], k[:1], v[:1])


def test_dropout_drops_the_weights_that_a_mask_would_leave():
    results = []
    for attend in (
        lambda q, k, v: causal_attention(q, k, v, STARTS, dropout_p=0.4),
        lambda q, k, v: scaled_dot_product_attention(
            q, k, v, sg.tensor(seen(STARTS, 5, 6)[:, None]), dropout_p=0.4, enable_gqa=True
        ),
    ):
        sg.manual_seed(7)
        operands = [leaf(x) for x in (Q, K, V)]
        result = attend(*operands)
        result.square().sum().backward()
        results.append([result.detach().numpy(), *(x.grad.numpy() for x in operands)])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_dropout_and_a_cap_have_gradients_of_every_order():
    def function(q, k, v):
        sg.manual_seed(7)
        return causal_attention(q, k, v, STARTS[:1], dropout_p=0.4, softcap=0.8)

    check_gradients(function, Q[:1], K[:1], V[:1])


def test_half_precision_and_heads_inside_positions_are_taken():
    def function(x):
        q, k, v = x.reshape(1, 5, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        return causal_attention(q, k, v, STARTS[:1], softcap=2.0).transpose(1, 2).reshape(1, 5, 4)

    check_gradients(function, RNG.normal(size=(1, 5, 12)), second=False)
    check_half_precision(function, RNG.normal(size=(1, 5, 12)), tolerance=5e-2)


def test_neither_a_pass_nor_what_it_saves_has_a_number_for_each_query_and_key(monkeypatch):
    length, sizes, saved = 1500, [], []

    def counted(shape, dtype, empty=buffers.empty):
        sizes.append(math.prod(shape))
        return empty(shape, dtype)

    monkeypatch.setattr(buffers, "empty", counted)
    q, k, v = (leaf(RNG.normal(size=(1, 1, length, 2))) for _ in range(3))
    first_keys = sg.maximum(sg.arange(length) - 99, sg.tensor(0)).to("int32")
    with sg.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        result = causal_attention(q, k, v, first_keys, dropout_p=0.1, softcap=50.0)
    result.sum().backward()
    assert sorted(saved) == [length, length, *[2 * length] * 4]  # first keys and lse; q, k, v and the result
    assert max(sizes) <= 2 * length


def test_a_query_whose_first_key_is_later_than_itself_gives_zero_and_no_nan():
    q, k, v = leaf(Q), leaf(K), leaf(V)
    result = causal_attention(q, k, v, np.full(5, np.iinfo(np.int64).max))
    assert not result.numpy().any()
    result.sum().backward()
    assert not any(x.grad.numpy().any() for x in (q, k, v))


def test_one_query_sees_all_keys_and_no_query_none():
    got = causal_attention(sg.tensor(Q[:, :, :1]), sg.tensor(K), sg.tensor(V))
    np.testing.assert_allclose(got.numpy(), oracle(Q[:, :, :1], K, V), 1e-10)
    assert causal_attention(sg.ones(1, 1, 0, 4), sg.ones(1, 1, 2, 4), sg.ones(1, 1, 2, 3)).shape == (1, 1, 0, 3)


OPERANDS = ((2, 4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 3))


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        (((5, 4), (6, 4), (6, 3)), {}, ShapeError, "at least three dimensions: heads, positions"),
        (((1, 6, 4), (1, 5, 4), (1, 5, 3)), {}, ShapeError, "got 6 queries for 5 keys"),
        (((3, 5, 4), (2, 6, 4), (2, 6, 3)), {}, ShapeError, r"causal_attention: got query \(3, 5, 4\).*divide"),
        (((1, 5, 4), (1, 6, 3), (1, 6, 3)), {}, ShapeError, "causal_attention: .* same last dimension"),
        (OPERANDS, {"first_keys": np.zeros((3, 5), int)}, ShapeError, r"shape \(3, 5\); .* broadcasts to \(2, 5\)"),
        (OPERANDS, {"first_keys": np.zeros(5)}, DtypeError, "first keys of float64; wanted integers"),
        (OPERANDS, {"softcap": 0.0}, ArgumentError, "softcap=0.0"),
        (OPERANDS, {"dropout_p": 1.5}, ArgumentError, "causal_attention: got dropout_p=1.5"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(shapes, options, error, message):
    with pytest.raises(error, match=message):
        causal_attention(*map(sg.ones, shapes), **options)
