import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError
from spillgrad.nn import functional as F

X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis):
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


ERF = np.vectorize(math.erf)
# Layer, what it computes in NumPy, its representation.
LAYERS = [
    (lambda: nn.Identity(7, key=8), lambda x: x, "Identity()"),
    (nn.GELU, lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2, "GELU(approximate='none')"),
    (
        lambda: nn.GELU(approximate="tanh"),
        lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        "GELU(approximate='tanh')",
    ),
    (nn.ReLU, lambda x: np.maximum(x, 0), "ReLU()"),
    (nn.SiLU, lambda x: x * sigmoid(x), "SiLU()"),
    (nn.Tanh, np.tanh, "Tanh()"),
    (nn.Sigmoid, sigmoid, "Sigmoid()"),
    (lambda: nn.Softmax(dim=0), lambda x: softmax(x, 0), "Softmax(dim=0)"),
    (lambda: nn.Softmax(dim=-1), lambda x: softmax(x, -1), "Softmax(dim=-1)"),
    (lambda: nn.Flatten(0), lambda x: x.reshape(-1), "Flatten(start_dim=0, end_dim=-1)"),
    (lambda: nn.LayerNorm(4), layer_norm, "LayerNorm((4,), eps=1e-05, elementwise_affine=True, bias=True)"),
    (
        lambda: nn.LayerNorm([3, 4], elementwise_affine=False),
        lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5),
        "LayerNorm((3, 4), eps=1e-05, elementwise_affine=False, bias=False)",
    ),
    (
        lambda: nn.RMSNorm(4, eps=1e-6),
        lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6),
        "RMSNorm((4,), eps=1e-06, elementwise_affine=True)",
    ),
]


@pytest.mark.parametrize(("make", "oracle", "shown"), LAYERS, ids=[shown for _, _, shown in LAYERS])
def test_a_layer_computes_its_formula_and_shows_its_options(make, oracle, shown):
    layer = make()
    assert repr(layer) == shown
    np.testing.assert_allclose(layer(sg.tensor(X)).numpy(), oracle(X.astype(np.float64)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_linear_multiplies_by_its_transposed_weight(bias, leading):
    layer = nn.Linear(4, 5, bias=bias)
    x = np.ones((*leading, 4), np.float32)
    expected = x @ layer.weight.numpy().T + (layer.bias.numpy() if bias else 0)
    np.testing.assert_allclose(layer(sg.tensor(x)).numpy(), expected, rtol=1e-5)
    assert [name for name, _ in layer.named_parameters()] == (["weight", "bias"] if bias else ["weight"])


def test_affine_parameters_scale_and_shift():
    layer = nn.LayerNorm(4)
    with sg.no_grad():
        layer.weight.copy_(sg.tensor([1.0, 2.0, 3.0, 4.0]))
        layer.bias.copy_(sg.tensor([0.0, 1.0, 2.0, 3.0]))
    expected = layer_norm(X) * [1, 2, 3, 4] + [0, 1, 2, 3]
    np.testing.assert_allclose(layer(sg.tensor(X)).numpy(), expected, rtol=1e-5, atol=1e-5)
    assert nn.LayerNorm(4, bias=False).bias is None
    assert nn.RMSNorm(4, elementwise_affine=False).weight is None


def test_an_embedding_looks_up_rows_and_its_padding_row_is_zero():
    layer = nn.Embedding(5, 3, padding_idx=-1)
    index = np.array([[0, 4], [2, 2]])
    np.testing.assert_array_equal(layer(sg.tensor(index)).numpy(), layer.weight.numpy()[index])
    assert layer.weight[4].tolist() == [0.0] * 3
    assert repr(layer) == "Embedding(5, 3, padding_idx=4)"


def test_dropout_drops_in_training_only():
    layer = nn.Dropout(0.25)
    x = sg.ones(100, 100)
    sg.manual_seed(0)
    dropped = layer(x).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((dropped == 0).mean() - 0.25) < 0.02
    assert layer.eval()(x).tolist() == x.tolist()
    in_place = nn.Dropout(0.25, inplace=True)
    assert in_place(x) is x
    assert (x == 0).any()


def test_the_losses_are_those_of_their_formulas():
    target = np.array([1, 0, -100])
    log_p = np.log(softmax(X.astype(np.float64), -1))
    expected = -(log_p[0, 1] + log_p[1, 0]) / 2
    assert nn.CrossEntropyLoss()(sg.tensor(X), sg.tensor(target)).item() == pytest.approx(expected, rel=1e-5)
    assert nn.CrossEntropyLoss(reduction="sum")(sg.tensor(X), sg.tensor(target)).item() == pytest.approx(
        2 * expected, rel=1e-5
    )
    weighted = nn.CrossEntropyLoss(weight=sg.tensor([1.0, 3.0, 1.0, 1.0]))
    assert weighted(sg.tensor(X), sg.tensor(target)).item() == pytest.approx(
        -(3 * log_p[0, 1] + log_p[1, 0]) / 4, rel=1e-5
    )
    smoothed = -(0.6 * (log_p[0, 1] + log_p[1, 0]) + 0.1 * log_p[:2].sum()) / 2
    assert nn.CrossEntropyLoss(label_smoothing=0.4)(sg.tensor(X), sg.tensor(target)).item() == pytest.approx(
        smoothed, rel=1e-5
    )
    assert nn.MSELoss()(sg.tensor(X), sg.zeros(3, 4)).item() == pytest.approx((X**2).mean(), rel=1e-5)


def test_every_parameter_of_a_stack_gets_a_gradient():
    model = nn.Sequential(
        nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.RMSNorm(8), nn.Linear(8, 2), nn.Flatten()
    )
    model(sg.tensor(np.array([[0, 1, 2], [3, 4, 5]]))).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.shape == parameter.shape, name


@pytest.mark.parametrize("make", [lambda: nn.Dropout(1.5), lambda: nn.Embedding(5, 3, padding_idx=5)])
def test_options_out_of_range_are_refused(make):
    with pytest.raises(ArgumentError, match=r"1\.5|padding_idx 5"):
        make()


def test_functional_names_exist():
    assert all(callable(getattr(F, name)) for name in F.__all__)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Dropout1d", (4, 5, 3)),
        ("Dropout2d", (4, 5, 3, 2)),
        ("Dropout3d", (4, 5, 3, 2, 2)),
        ("AlphaDropout", (4, 5)),
        ("FeatureAlphaDropout", (4, 5, 3)),
    ],
)
def test_other_dropouts_are_their_functions_in_training_only(name, shape):
    function = {"AlphaDropout": "alpha_dropout", "FeatureAlphaDropout": "feature_alpha_dropout"}.get(name, name.lower())
    layer, x = getattr(nn, name)(0.4), sg.randn(*shape)
    assert repr(layer) == f"{name}(p=0.4, inplace=False)"
    sg.manual_seed(1)
    got = layer(x)
    sg.manual_seed(1)
    assert got.tolist() == getattr(F, function)(x, 0.4, True).tolist()
    assert (got != x).any()
    assert layer.eval()(x).tolist() == x.tolist()
    with pytest.raises(ArgumentError, match=f"{name}: got p 2"):
        getattr(nn, name)(2)
