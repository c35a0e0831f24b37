import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ShapeError

BATCH, QUERIES, KEYS, WIDTH, HEADS = 2, 3, 5, 8, 2
RANDOM = np.random.default_rng(0)
QUERY = RANDOM.standard_normal((BATCH, QUERIES, WIDTH)).astype(np.float32)
KEY = RANDOM.standard_normal((BATCH, KEYS, WIDTH)).astype(np.float32)
VALUE = RANDOM.standard_normal((BATCH, KEYS, WIDTH)).astype(np.float32)


def oracle(layer, query, key, value, mask=0.0):
    """Return result and weights of each head, head by head; `mask` is added to the scores (N, heads, T, S)."""
    projections = (
        np.split(layer.in_proj_weight.numpy(), 3)
        if layer.in_proj_weight is not None
        else [weight.numpy() for weight in (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)]
    )
    biases = np.split(layer.in_proj_bias.numpy(), 3) if layer.in_proj_bias is not None else (0, 0, 0)
    q, k, v = (
        x.astype(np.float64) @ weight.T + bias
        for x, weight, bias in zip((query, key, value), projections, biases, strict=True)
    )
    outputs, weights = [], []
    mask = np.broadcast_to(mask, (len(query), layer.num_heads, query.shape[1], key.shape[1]))
    for head in range(layer.num_heads):
        part = slice(head * layer.head_dim, (head + 1) * layer.head_dim)
        scores = q[..., part] @ k[..., part].transpose(0, 2, 1) / math.sqrt(layer.head_dim) + mask[:, head]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        weights.append(p)
        outputs.append(p @ v[..., part])
    bias = layer.out_proj.bias.numpy() if layer.out_proj.bias is not None else 0
    return np.concatenate(outputs, -1) @ layer.out_proj.weight.numpy().T + bias, np.stack(weights, 1)


def make(**options):
    sg.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options)
    if layer.in_proj_bias is not None:
        nn.init.normal_(layer.in_proj_bias)
        nn.init.normal_(layer.out_proj.bias)
    return layer


def check(got, expected):
    np.testing.assert_allclose(got.numpy(), expected, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_cross_attention_is_softmax_of_the_scores_times_the_values(bias, need_weights):
    layer = make(bias=bias)
    result, weights = layer(*map(sg.tensor, (QUERY, KEY, VALUE)), need_weights=need_weights)
    expected, expected_weights = oracle(layer, QUERY, KEY, VALUE)
    check(result, expected)
    if need_weights:
        check(weights, expected_weights.mean(1))
    else:
        assert weights is None


def test_weights_of_each_head_are_given_on_request():
    layer = make()
    _, weights = layer(*map(sg.tensor, (QUERY, KEY, VALUE)), average_attn_weights=False)
    check(weights, oracle(layer, QUERY, KEY, VALUE)[1])


def test_self_attention_equals_cross_attention_with_itself():
    layer = make()
    x = sg.tensor(QUERY)
    check(layer(x, x, x)[0], oracle(layer, QUERY, QUERY, QUERY)[0])


def test_keys_and_values_may_have_widths_of_their_own():
    layer = make(kdim=4, vdim=6)
    key, value = KEY[..., :4], VALUE[..., :6]
    check(layer(*map(sg.tensor, (QUERY, key, value)))[0], oracle(layer, QUERY, key, value)[0])
    assert [name for name, _ in layer.named_parameters()] == [
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "in_proj_bias",
        "out_proj.weight",
        "out_proj.bias",
    ]


CAUSAL = np.triu(np.ones((QUERIES, KEYS), bool), 1)
PADDING = np.array([[False] * KEYS, [False, False, True, False, True]])
ADDED = RANDOM.standard_normal((BATCH * HEADS, QUERIES, KEYS)).astype(np.float32)
# Options, the same as numbers added to the scores.
MASKS = [
    ({"attn_mask": CAUSAL}, np.where(CAUSAL, -np.inf, 0)),
    ({"is_causal": True}, np.where(CAUSAL, -np.inf, 0)),
    ({"key_padding_mask": PADDING}, np.where(PADDING, -np.inf, 0)[:, None, None]),
    ({"attn_mask": ADDED}, ADDED.reshape(BATCH, HEADS, QUERIES, KEYS)),
    (
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
        np.where(CAUSAL, -np.inf, 0) + np.where(PADDING, -np.inf, 0)[:, None, None],
    ),
    (
        {"is_causal": True, "key_padding_mask": PADDING},
        np.where(CAUSAL, -np.inf, 0) + np.where(PADDING, -np.inf, 0)[:, None, None],
    ),
]


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("options", "mask"), MASKS, ids=["+".join(options) for options, _ in MASKS])
def test_masks_keep_scores_out(options, mask, need_weights):
    layer = make()
    options = {key: sg.tensor(value) if isinstance(value, np.ndarray) else value for key, value in options.items()}
    result, _ = layer(*map(sg.tensor, (QUERY, KEY, VALUE)), need_weights=need_weights, **options)
    check(result, oracle(layer, QUERY, KEY, VALUE, mask)[0])


def test_length_comes_first_by_default_and_the_batch_may_be_left_out():
    layer = make()
    expected, expected_weights = oracle(layer, QUERY, KEY, VALUE)
    layer.batch_first = False
    result, weights = layer(*(sg.tensor(np.ascontiguousarray(x.transpose(1, 0, 2))) for x in (QUERY, KEY, VALUE)))
    check(result, expected.transpose(1, 0, 2))
    check(weights, expected_weights.mean(1))
    result, weights = layer(*(sg.tensor(x[0]) for x in (QUERY, KEY, VALUE)))
    check(result, expected[0])
    check(weights, expected_weights[0].mean(0))


def test_both_paths_have_the_same_gradients():
    gradients = []
    for need_weights in (True, False):
        layer = make()
        result, _ = layer(*map(sg.tensor, (QUERY, KEY, VALUE)), need_weights=need_weights, is_causal=True)
        (result * result).sum().backward()
        gradients.append([parameter.grad.numpy() for parameter in layer.parameters()])
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-4)


def test_dropout_falls_on_the_weights_in_training():
    layer = make(dropout=0.5)
    x = sg.tensor(QUERY)
    _, weights = layer(x, x, x, average_attn_weights=False)
    assert weights.shape == (BATCH, HEADS, QUERIES, QUERIES)
    assert layer(x, x, x)[0].tolist() != layer(x, x, x)[0].tolist()
    layer.eval()
    check(layer(x, x, x)[0], oracle(layer, QUERY, QUERY, QUERY)[0])


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ArgumentError, match="embed_dim 8 and num_heads 3"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(ShapeError, match=r"key \(2, 5, 8\) and value \(2, 4, 8\)"):
        make()(*map(sg.tensor, (QUERY, KEY, VALUE[:, :4])))
