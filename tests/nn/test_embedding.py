"""Tables of rows: options of the layers, and what they do in place."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import leaf

TABLE = np.random.default_rng(0).normal(size=(5, 3)) * 3


def test_rows_that_are_looked_up_are_shortened_in_place():
    weight = nn.Parameter(sg.tensor(TABLE))
    rows = F.embedding(sg.tensor([3, 1, 3]), weight, max_norm=1.0)
    lengths = np.linalg.norm(weight.detach().numpy(), axis=1)
    np.testing.assert_allclose(lengths[[1, 3]], 1.0, 1e-6)
    np.testing.assert_array_equal(weight.detach().numpy()[[0, 2, 4]], TABLE[[0, 2, 4]])
    np.testing.assert_array_equal(rows.detach().numpy(), weight.detach().numpy()[[3, 1, 3]])
    rows.sum().backward()
    np.testing.assert_array_equal(weight.grad.numpy()[:, 0], [0, 1, 0, 2, 0])


def test_gradients_are_divided_by_how_often_a_row_is_looked_up():
    weight = leaf(TABLE)
    F.embedding(sg.tensor([[3, 1], [3, 3]]), weight, scale_grad_by_freq=True).sum().backward()
    np.testing.assert_allclose(weight.grad.numpy()[:, 0], [0, 1, 0, 1, 0])


def test_a_layer_is_made_over_a_table():
    layer = nn.Embedding.from_pretrained(sg.tensor(TABLE), padding_idx=-1)
    assert not layer.weight.requires_grad
    assert layer.padding_idx == 4
    assert nn.EmbeddingBag.from_pretrained(sg.tensor(TABLE), freeze=False).weight.requires_grad
    with pytest.raises(ShapeError, match="expected to be 2-dimensional"):
        nn.Embedding.from_pretrained(sg.zeros(3))
    with pytest.raises(ShapeError, match="does not match num_embeddings"):
        nn.Embedding(4, 3, _weight=sg.tensor(TABLE))


def test_layers_call_their_functions_and_show_their_options():
    layer = nn.EmbeddingBag(5, 3, mode="sum", padding_idx=1)
    index, offsets, weights = sg.tensor([0, 1, 4, 2]), sg.tensor([0, 1]), sg.tensor([1.0, 2.0, 3.0, 4.0])
    wanted = F.embedding_bag(index, layer.weight, offsets, mode="sum", per_sample_weights=weights, padding_idx=1)
    assert layer(index, offsets, weights).tolist() == wanted.tolist()
    assert repr(layer) == "EmbeddingBag(5, 3, mode='sum', padding_idx=1)"
    assert repr(nn.Embedding(5, 3, 0, max_norm=2.0)) == "Embedding(5, 3, padding_idx=0, max_norm=2.0)"
    assert not nn.EmbeddingBag(5, 3, padding_idx=2).weight[2].any()


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((sg.tensor([0, 1]),), {}, ArgumentError, "offsets has to be a 1D Tensor but got None"),
        ((sg.tensor([[0]]),), {"offsets": sg.tensor([0])}, ArgumentError, "then offsets has to be None"),
        ((sg.tensor(0),), {}, ShapeError, "input has to be 1D or 2D"),
        ((sg.tensor([0]),), {"offsets": sg.tensor([1])}, ArgumentError, "offsets\\[0\\] has to be 0"),
        ((sg.tensor([0]),), {"offsets": sg.tensor([0, 2])}, ArgumentError, "nor exceed its length"),
        ((sg.tensor([0]),), {"offsets": sg.tensor([0.0])}, ShapeError, "1D Tensor of integers"),
        ((sg.tensor([[0]]),), {"mode": "prod"}, ArgumentError, "mode has to be one of sum, mean or max"),
        ((sg.tensor([[0]]),), {"per_sample_weights": sg.ones(1, 1)}, ArgumentError, "only supported for mode='sum'"),
        ((sg.tensor([[0]]),), {"mode": "sum", "per_sample_weights": sg.ones(1)}, ShapeError, "same shape as the input"),
        ((sg.tensor([[0]]),), {"mode": "max", "scale_grad_by_freq": True}, ArgumentError, "max mode does not support"),
        ((sg.tensor([[5]]),), {}, DimensionError, "embedding_bag: got index 5"),
        ((sg.tensor([[0.5]]),), {}, DtypeError, "wanted integers"),
    ],
)  # fmt: skip
def test_what_bags_do_not_take_is_named(arguments, options, error, message):
    with pytest.raises(error, match=message):
        F.embedding_bag(*arguments, sg.ones(5, 3), **options)


def test_bags_of_nothing_are_zeros_and_have_zero_gradients():
    for mode in ("sum", "mean", "max"):
        weight = leaf(TABLE)
        empty = sg.zeros(0, dtype="int64")
        result = F.embedding_bag(empty, weight, sg.tensor([0, 0]), mode=mode)
        assert result.tolist() == np.zeros((2, 3)).tolist()
        result.sum().backward()
        assert not weight.grad.numpy().any()
