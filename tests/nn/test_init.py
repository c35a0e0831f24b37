import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, ComplexDtypeError, ShapeError
from spillgrad.nn import init

SHAPE = (300, 200)  # 200 in, 300 out
# Initialiser, the bounds of its values (None: normal), their standard deviation.
DISTRIBUTIONS = [
    (lambda t: init.uniform_(t, -2.0, 6.0), (-2.0, 6.0), 8 / math.sqrt(12)),
    (lambda t: init.normal_(t, std=3.0), None, 3.0),
    (init.xavier_uniform_, (-math.sqrt(6 / 500), math.sqrt(6 / 500)), math.sqrt(2 / 500)),
    (lambda t: init.xavier_normal_(t, gain=2.0), None, 2 * math.sqrt(2 / 500)),
    (init.kaiming_uniform_, (-math.sqrt(6 / 200), math.sqrt(6 / 200)), math.sqrt(2 / 200)),
    (lambda t: init.kaiming_normal_(t, mode="fan_out", nonlinearity="relu"), None, math.sqrt(2 / 300)),
    (lambda t: init.kaiming_normal_(t, a=1.0), None, math.sqrt(1 / 200)),
]


@pytest.mark.parametrize(("fill", "bounds", "std"), DISTRIBUTIONS)
def test_values_follow_the_distribution(fill, bounds, std):
    sg.manual_seed(0)
    tensor = sg.zeros(*SHAPE)
    assert fill(tensor) is tensor
    values = tensor.numpy().astype(np.float64)
    assert values.std() == pytest.approx(std, rel=0.02)
    assert values.mean() == pytest.approx(0 if bounds is None else sum(bounds) / 2, abs=0.03 * std)
    if bounds is not None:
        assert bounds[0] <= values.min() < values.max() <= bounds[1]
        assert values.max() - values.min() > 0.99 * (bounds[1] - bounds[0])


def test_constants_fill():
    tensor = sg.empty(2)
    assert [init.ones_(tensor).tolist(), init.zeros_(tensor).tolist(), init.constant_(tensor, 7).tolist()] == [
        [1.0, 1.0],
        [0.0, 0.0],
        [7.0, 7.0],
    ]


def test_parameters_stay_leaves_and_the_seed_decides():
    sg.manual_seed(5)
    first = nn.Linear(3, 3)
    sg.manual_seed(5)
    second = nn.Linear(3, 3)
    assert first.weight.is_leaf
    assert first.weight.requires_grad
    assert first.weight.tolist() == second.weight.tolist()
    assert nn.Linear(3, 3).weight.tolist() != first.weight.tolist()


def test_layers_begin_as_pytorchs_do():
    sg.manual_seed(0)
    linear, table = nn.Linear(100, 400), nn.Embedding(300, 100)
    for tensor in (linear.weight, linear.bias):
        assert np.abs(tensor.numpy()).max() == pytest.approx(0.1, rel=0.02)
        assert np.abs(tensor.numpy()).max() <= 0.1
    assert table.weight.numpy().std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("shape", [(3,), (), (0, 3)])
def test_fans_need_a_matrix(shape):
    with pytest.raises(ShapeError, match="two or more dimensions"):
        init.xavier_uniform_(sg.zeros(*shape) if shape else sg.tensor(0.0))


def test_unknown_options_are_refused():
    with pytest.raises(ArgumentError, match="sideways"):
        init.kaiming_normal_(sg.zeros(2, 2), mode="sideways")
    with pytest.raises(ArgumentError, match="cubic"):
        init.calculate_gain("cubic")


def test_a_truncated_normal_stays_within_its_bounds():
    sg.manual_seed(0)
    tensor = init.trunc_normal_(sg.zeros(*SHAPE), 1.0, 2.0, -1.0, 5.0)
    values = tensor.numpy().astype(np.float64)
    assert -1 <= values.min() < values.max() <= 5
    # Two standard deviations up, one down: mean and variance of the truncated distribution in closed form.
    below, above = -1.0, 2.0
    density = lambda z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    mass = (math.erf(above / math.sqrt(2)) - math.erf(below / math.sqrt(2))) / 2
    shift = (density(below) - density(above)) / mass
    assert values.mean() == pytest.approx(1 + 2 * shift, abs=0.02)
    spread = 1 + (below * density(below) - above * density(above)) / mass - shift**2
    assert values.std() == pytest.approx(2 * math.sqrt(spread), rel=0.01)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (6, 2, 2)], ids=str)
def test_an_orthogonal_matrix_is_one(shape):
    tensor = init.orthogonal_(sg.zeros(*shape), gain=2.0)
    matrix = tensor.numpy().astype(np.float64).reshape(shape[0], -1)
    product = matrix.T @ matrix if shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(product, 4 * np.eye(min(matrix.shape)), atol=1e-5)


def test_dirac_weights_keep_channels():
    weight = init.dirac_(sg.zeros(4, 2, 3, 3), groups=2)
    x = sg.randn(1, 4, 5, 5)
    np.testing.assert_array_equal(nn.functional.conv2d(x, weight, padding=1, groups=2).numpy(), x.numpy())
    assert init.dirac_(sg.zeros(2, 3, 4)).numpy()[:, :, 2].tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(ArgumentError, match="divisible by groups"):
        init.dirac_(sg.zeros(3, 1, 1), groups=2)
    with pytest.raises(ShapeError, match="3, 4, or 5 dimensions"):
        init.dirac_(sg.zeros(3, 3))


def test_identities_and_sparse_matrices():
    assert init.eye_(sg.zeros(2, 3)).tolist() == [[1, 0, 0], [0, 1, 0]]
    values = init.sparse_(sg.zeros(10, 6), 0.25, std=1.0).numpy()
    assert (values == 0).sum(0).tolist() == [3] * 6
    for fill in (init.eye_, lambda t: init.sparse_(t, 0.1)):
        with pytest.raises(ShapeError, match="Only tensors with 2 dimensions"):
            fill(sg.zeros(3))
    with pytest.raises(ShapeError, match="2 or more dimensions"):
        init.orthogonal_(sg.zeros(3))


def test_a_generator_of_its_own_repeats_draws():
    fills = [
        init.uniform_, init.normal_, init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_,
        init.kaiming_normal_, init.trunc_normal_, init.orthogonal_,
        lambda t, generator: init.sparse_(t, 0.5, 1.0, generator),
    ]  # fmt: skip
    for fill in fills:
        first, second = (fill(sg.zeros(3, 4), generator=sg.Generator().manual_seed(7)) for _ in range(2))
        assert first.tolist() == second.tolist()
    assert init.calculate_gain("conv_transpose2d") == 1


def test_weights_that_require_gradients_can_be_filled():
    weight = nn.Parameter(sg.zeros(4, 4))
    for fill in (init.trunc_normal_, init.orthogonal_, init.eye_, lambda w: init.sparse_(w, 0.5)):
        assert fill(weight) is weight
        assert weight.is_leaf


@pytest.mark.parametrize("name", ["trunc_normal_", "orthogonal_"])
def test_complex_tensors_are_refused_where_pytorch_refuses_them(name):
    tensor = sg.zeros(3, 2, dtype="complex64")
    with pytest.raises(ComplexDtypeError, match=f"^{name}: does not support complex input, got complex64"):
        getattr(init, name)(tensor)
    assert tensor.count_nonzero().item() == 0
