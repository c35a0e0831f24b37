"""Transformer layers against their formula, written out with the layers they are made of."""

import functools

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.nn import functional as F

RNG = np.random.default_rng(1)
SRC, TGT = (sg.tensor(RNG.normal(size=(length, 2, 8)).astype(np.float32)) for length in (5, 3))


@functools.cache
def causal():
    return nn.Transformer.generate_square_subsequent_mask(3)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b.numpy(), 1e-5, 1e-5)


def feed_forward(layer, x):
    return layer.linear2(F.relu(layer.linear1(x)))


@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_layer_adds_attention_and_feed_forward(norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first).eval()
    if norm_first:
        y = layer.norm1(SRC)
        x = SRC + layer.self_attn(y, y, y)[0]
        expected = x + feed_forward(layer, layer.norm2(x))
    else:
        x = layer.norm1(SRC + layer.self_attn(SRC, SRC, SRC)[0])
        expected = layer.norm2(x + feed_forward(layer, x))
    close(layer(SRC), expected)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_layer_attends_to_itself_and_to_memory(norm_first):
    layer = nn.TransformerDecoderLayer(8, 2, 16, norm_first=norm_first).eval()
    if norm_first:
        y = layer.norm1(TGT)
        x = TGT + layer.self_attn(y, y, y, attn_mask=causal())[0]
        x = x + layer.multihead_attn(layer.norm2(x), SRC, SRC)[0]
        expected = x + feed_forward(layer, layer.norm3(x))
    else:
        x = layer.norm1(TGT + layer.self_attn(TGT, TGT, TGT, attn_mask=causal())[0])
        x = layer.norm2(x + layer.multihead_attn(x, SRC, SRC)[0])
        expected = layer.norm3(x + feed_forward(layer, x))
    close(layer(TGT, SRC, tgt_mask=causal()), expected)
    close(layer(TGT, SRC, tgt_is_causal=True), expected)


def test_a_stack_runs_independent_copies():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8)).eval()
    close(stack(SRC), stack.norm(stack.layers[1](stack.layers[0](SRC))))
    with sg.no_grad():
        stack.layers[0].linear1.weight.zero_()
    assert (stack.layers[1].linear1.weight == layer.linear1.weight).all()


def test_masks_hide_places_and_the_batch_may_come_first():
    model = nn.Transformer(8, 2, 1, 1, 16).eval()
    first = nn.Transformer(8, 2, 1, 1, 16, batch_first=True).eval()
    first.load_state_dict(model.state_dict())
    hidden = sg.tensor([[False] * 4 + [True]] * 2)
    got = model(SRC, TGT, tgt_mask=causal(), src_key_padding_mask=hidden, memory_key_padding_mask=hidden)
    assert got.shape == TGT.shape
    close(got, model(SRC[:4], TGT, tgt_mask=causal()))
    flipped = first(SRC.transpose(0, 1), TGT.transpose(0, 1), tgt_is_causal=True)
    close(flipped.transpose(0, 1), model(SRC, TGT, tgt_mask=causal()))


def test_dropout_acts_in_training_and_every_parameter_gets_a_gradient():
    model = nn.Transformer(8, 2, 1, 2, 16, dropout=0.5, activation="gelu")
    assert (model(SRC, TGT) != model(SRC, TGT)).any()
    (model(SRC, TGT) ** 2).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


def test_parameters_have_pytorchs_names():
    names = [name for name, _ in nn.TransformerDecoderLayer(8, 2, 16).named_parameters()]
    attention = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    layers = ["linear1", "linear2", "norm1", "norm2", "norm3"]
    assert names == [f"{a}.{n}" for a in ("self_attn", "multihead_attn") for n in attention] + [
        f"{layer}.{n}" for layer in layers for n in ("weight", "bias")
    ]
    with pytest.raises(ArgumentError, match="should be relu/gelu, not swish"):
        nn.TransformerEncoderLayer(8, 2, activation="swish")


def test_a_parameter_list_behaves_as_a_list():
    values = nn.ParameterList([nn.Parameter(sg.ones(2)), sg.zeros(3)]).append(sg.ones(1))
    values += [sg.ones(4)]
    assert [name for name, _ in values.named_parameters()] == ["0", "1", "2", "3"]
    assert [v.shape for v in values] == [(2,), (3,), (1,), (4,)]
    values[-1] = nn.Parameter(sg.ones(5))
    assert (len(values), values[3].shape, len(values[1:])) == (4, (5,), 3)
    assert "(0): Parameter of shape (2,), float32" in repr(values)
    values.append(3)  # no parameter, as in PyTorch
    assert (values[4], len(list(values.parameters()))) == (3, 4)


def test_a_parameter_dict_behaves_as_a_dict():
    values = nn.ParameterDict({"a": nn.Parameter(sg.ones(2))})
    values["b"] = sg.ones(3)
    values.update({"c": sg.ones(4)})
    assert ([*values], "b" in values, len(values)) == (["a", "b", "c"], True, 3)
    assert list(values.state_dict()) == list(values.keys())
    assert values.pop("a").shape == (2,)
    del values["c"]
    assert [(key, value.shape) for key, value in values.items()] == [("b", (3,))]
    assert values.get("z", 7) == 7
    assert [value.shape for value in values.values()] == [(3,)]
    assert "(b): Parameter of shape (3,), float32" in repr(values)
