"""Draws follow their distribution, and their gradients are those of the quantile at a fixed probability."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributions.gamma_draws import log_gradient

D = sg.distributions
COUNT = 20_000


def _float64(*values):
    return [sg.tensor(value, dtype="float64") for value in values]


# Name -> (the distribution, its distribution function where `cdf` is not defined).
CONTINUOUS = {
    "Normal": (lambda: D.Normal(*_float64(0.3, 2.0)), None),
    "LogNormal": (lambda: D.LogNormal(*_float64(0.3, 0.5)), None),
    "HalfNormal": (lambda: D.HalfNormal(*_float64(1.5)), None),
    "Laplace": (lambda: D.Laplace(*_float64(0.3, 2.0)), None),
    "Cauchy": (lambda: D.Cauchy(*_float64(0.3, 2.0)), None),
    "Gumbel": (lambda: D.Gumbel(*_float64(0.3, 2.0)), None),
    "Uniform": (lambda: D.Uniform(*_float64(-1.0, 2.0)), None),
    "Exponential": (lambda: D.Exponential(*_float64(1.7)), None),
    "Gamma of a small concentration": (lambda: D.Gamma(*_float64(0.05, 2.0)), None),
    "Gamma": (lambda: D.Gamma(*_float64(3.5, 2.0)), None),
    "Chi2": (lambda: D.Chi2(*_float64(5.0)), None),
    "StudentT of 2": (lambda: D.StudentT(*_float64(2.0)), lambda x: 0.5 + x / (2 * np.sqrt(2 + x * x))),
    "Beta of 2 and 1": (lambda: D.Beta(*_float64(2.0, 1.0)), lambda x: x * x),
    "Beta of 0.01 and 1": (lambda: D.Beta(*_float64(0.01, 1.0)), lambda x: x**0.01),
    "RelaxedBernoulli": (
        lambda: D.RelaxedBernoulli(*_float64(1.0, 0.5)), lambda x: x,  # of log-odds 0 at temperature 1: uniform
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_draws_follow_the_distribution_function(name):
    make, function = CONTINUOUS[name]
    distribution = make()
    sg.manual_seed(3)
    draws = np.sort(distribution.sample((COUNT,)).numpy())
    expected = distribution.cdf(sg.tensor(draws)).numpy() if function is None else function(draws)
    distance = np.abs(expected - (np.arange(COUNT) + 0.5) / COUNT).max()
    assert distance < 1.7 / math.sqrt(COUNT)  # Kolmogorov-Smirnov, exceeded once in 150 seeds


DISCRETE = {
    "Bernoulli": lambda: D.Bernoulli(*_float64(0.3)),
    "Binomial": lambda: D.Binomial(7, *_float64(0.3)),
    "Geometric": lambda: D.Geometric(*_float64(0.3)),
    "Poisson": lambda: D.Poisson(*_float64(2.5)),
    "Categorical": lambda: D.Categorical(*_float64([0.2, 0.5, 0.0, 1.3])),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_values_are_drawn_as_often_as_their_probabilities_say(name):
    distribution = DISCRETE[name]()
    sg.manual_seed(3)
    counts = np.bincount(distribution.sample((COUNT,)).numpy().astype(int), minlength=4)
    values = sg.arange(len(counts)).to("float64") if name != "Categorical" else sg.arange(len(counts))
    if name == "Bernoulli":
        counts, values = counts[:2], values[:2]
    expected = COUNT * distribution.log_prob(values).exp().numpy()
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected) + 4e-6 * COUNT).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: D.Dirichlet(*_float64([0.3, 1.0, 4.0])),
        lambda: D.Multinomial(5, *_float64([0.3, 0.1, 0.6])),
        lambda: D.OneHotCategorical(*_float64([0.3, 0.1, 0.6])),
        lambda: D.MultivariateNormal(*_float64([0.5, -1.0], [[2.0, 0.6], [0.6, 0.5]])),
        lambda: D.MixtureSameFamily(D.Categorical(*_float64([0.3, 0.7])), D.Normal(*_float64([0.0, 4.0], [1.0, 0.5]))),
        lambda: D.Independent(D.Normal(*_float64([0.0, 4.0], [1.0, 0.5])), 1),
    ],
)
def test_draws_of_vectors_and_mixtures_have_the_mean_and_variance_of_the_distribution(make):
    distribution = make()
    sg.manual_seed(3)
    draws = distribution.sample((COUNT,)).numpy()
    mean, variance = distribution.mean.numpy(), distribution.variance.numpy()
    assert (np.abs(draws.mean(0) - mean) < 4 * np.sqrt(variance / COUNT)).all()
    assert np.allclose(draws.var(0), variance, rtol=0.08)


def test_draws_of_a_multivariate_normal_have_its_covariance():
    covariance = np.array([[2.0, 0.6], [0.6, 0.5]])
    for parameter, matrix in (("covariance_matrix", covariance), ("precision_matrix", np.linalg.inv(covariance))):
        distribution = D.MultivariateNormal(sg.zeros(2, dtype="float64"), **{parameter: sg.tensor(matrix)})
        sg.manual_seed(3)
        assert np.allclose(np.cov(distribution.sample((COUNT,)).numpy().T), covariance, atol=0.06)


def test_a_seed_repeats_the_draws_of_every_distribution():
    for make in (*(make for make, _ in CONTINUOUS.values()), *DISCRETE.values()):
        first, second = (make().sample((3,)) for _ in range(2) if sg.manual_seed(5))
        assert (first == second).all()
        assert not (make().sample((3,)) == second).all() or make in DISCRETE.values()


@pytest.mark.parametrize("concentration", [0.01, 0.3, 1.0, 2.5, 30.0, 200.0])
@pytest.mark.parametrize("probability", [0.01, 0.3, 0.6, 0.99])
def test_the_gradient_of_a_gamma_draw_is_that_of_the_quantile(concentration, probability):
    def log_quantile(a):
        low, high = -800.0 if a < 0.1 else -60.0, math.log(a + 50 * math.sqrt(a) + 50)
        for _ in range(70):
            middle = (low + high) / 2
            found = sg.igamma(*_float64(a, math.exp(middle))).item()
            low, high = (middle, high) if found < probability else (low, middle)
        return (low + high) / 2

    step = 1e-4 * concentration
    expected = (log_quantile(concentration + step) - log_quantile(concentration - step)) / (2 * step)
    found = log_gradient(np.array(concentration), np.array(log_quantile(concentration)))
    assert found == pytest.approx(expected, rel=2e-6)


def test_the_gradients_of_large_concentrations_join_those_of_smaller_ones():
    for z in (-3.0, -0.5, 0.0, 1.0, 3.0):
        log_x = np.log(1e6 + z * 1e3)
        below, above = log_gradient(np.array([1e6 - 1e-3, 1e6]), np.array([log_x, log_x]))
        assert below == pytest.approx(above, rel=1e-8)


# Name -> (the distribution of parameters, parameters, the mean of the square of a draw).
SQUARES = {
    "Gamma": (D.Gamma, [1.5, 2.0], lambda a, b: a * (a + 1) / b**2),
    "Gamma of a small concentration": (D.Gamma, [0.2, 2.0], lambda a, b: a * (a + 1) / b**2),
    "Beta": (D.Beta, [0.5, 2.0], lambda a, b: a * (a + 1) / ((a + b) * (a + b + 1))),
    "Chi2": (D.Chi2, [3.0], lambda k: k * k + 2 * k),
    "StudentT": (D.StudentT, [40.0, 0.3, 1.5], lambda k, m, s: m**2 + s**2 * k / (k - 2)),
    "Laplace": (D.Laplace, [0.3, 1.5], lambda m, s: m**2 + 2 * s**2),
    "Gumbel": (D.Gumbel, [0.3, 1.5], lambda m, s: (m + s * np.euler_gamma) ** 2 + math.pi**2 / 6 * s**2),
    "Exponential": (D.Exponential, [1.5], lambda r: 2 / r**2),
    "Uniform": (D.Uniform, [0.3, 1.5], lambda a, b: (a * a + a * b + b * b) / 3),
    "LogNormal": (D.LogNormal, [0.3, 0.5], lambda m, s: (2 * m + 2 * s**2).exp()),
    "HalfNormal": (D.HalfNormal, [1.5], lambda s: s**2),
}


@pytest.mark.parametrize("name", SQUARES)
def test_the_gradients_of_draws_average_to_that_of_the_mean(name):
    kind, values, square = SQUARES[name]
    parameters = [p.requires_grad_() for p in _float64(*values)]
    sg.manual_seed(1)
    draws = kind(*parameters).rsample((60_000,))
    found = sg.grad((draws * draws).mean(), parameters)
    expected = sg.grad(square(*parameters), parameters, allow_unused=True)
    for got, wanted, value in zip(found, expected, values, strict=True):
        assert got.item() == pytest.approx(0.0 if wanted is None else wanted.item(), rel=0.06, abs=0.02 * value)


def test_the_gradients_of_dirichlet_draws_average_to_those_of_the_mean():
    (concentration,) = _float64([0.4, 1.0, 3.0])
    concentration.requires_grad = True
    sg.manual_seed(1)
    distribution, weights = D.Dirichlet(concentration), sg.tensor([1.0, -2.0, 0.5], dtype="float64")
    (found,) = sg.grad((distribution.rsample((60_000,)) * weights).sum(-1).mean(), concentration)
    (expected,) = sg.grad((distribution.mean * weights).sum(), concentration)
    assert np.allclose(found.numpy(), expected.numpy(), atol=0.01)


def test_relaxed_draws_of_a_low_temperature_have_the_gradient_of_the_probabilities():
    (logits,) = _float64([0.2, -0.5, 0.9])
    logits.requires_grad = True
    sg.manual_seed(1)
    draws = D.RelaxedOneHotCategorical(sg.tensor(0.1), logits=logits).rsample((100_000,))
    weights = sg.tensor([1.0, -2.0, 0.5], dtype="float64")
    (found,) = sg.grad((draws * weights).sum(-1).mean(), logits)
    (expected,) = sg.grad((logits.softmax(-1) * weights).sum(), logits)
    assert np.allclose(found.numpy(), expected.numpy(), atol=0.05)


def test_straight_through_draws_are_one_hot_and_have_the_gradient_of_the_probabilities():
    (probs,) = _float64([0.2, 0.3, 0.5])
    probs.requires_grad = True
    drawn = D.OneHotCategoricalStraightThrough(probs).rsample()
    assert sorted(drawn.tolist()) == pytest.approx([0, 0, 1])
    (found,) = sg.grad(drawn[0], probs)
    assert found.tolist() == pytest.approx([0.8, -0.2, -0.2])


def test_draws_of_tiny_concentrations_lie_in_the_support_and_have_finite_gradients():
    for dtype in ("float32", "float64"):
        a = sg.full((1000,), 1e-3, dtype=dtype, requires_grad=True)
        beta, gamma = D.Beta(a, a).rsample(), D.Gamma(a, 1.0).rsample()
        assert bool(((beta >= 0) & (beta <= 1)).all()) and bool((gamma > 0).all())
        assert bool(sg.grad(beta.sum(), a)[0].isfinite().all())
        assert bool(sg.grad(D.Dirichlet(sg.stack([a, a], -1)).rsample().sum(), a)[0].isfinite().all())


def test_the_second_derivative_of_a_gamma_draw_is_refused():
    a = sg.tensor(2.0, requires_grad=True)
    (first,) = sg.grad(D.Gamma(a, 1.0).rsample(), a, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivative of a draw"):
        first.backward()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_draws_have_the_dtype_of_the_parameters(dtype):
    one = sg.ones(3, dtype=dtype)
    for distribution in (
        D.Normal(0 * one, one), D.Uniform(0 * one, one), D.Gamma(one, one), D.Beta(one, one), D.Laplace(one, one),
        D.Exponential(one), D.Bernoulli(one / 2), D.Poisson(one), D.StudentT(one), D.Binomial(3, one / 2),
        D.Gumbel(one, one), D.Cauchy(one, one), D.Geometric(one / 2), D.HalfNormal(one),
    ):  # fmt: skip
        drawn = distribution.sample((50,))
        assert (drawn.dtype, drawn.shape) == (one.dtype, (50, 3))
        assert bool(drawn.isfinite().all())


def test_validation_is_on_by_default_and_can_be_turned_off_for_all():
    with pytest.raises(ValueError, match="Expected parameter scale"):
        D.Normal(0.0, -1.0)
    try:
        D.Distribution.set_default_validate_args(False)
        assert D.Normal(0.0, -1.0).mean.item() == 0
    finally:
        D.Distribution.set_default_validate_args(True)


def test_the_more_specific_divergence_is_taken_and_an_ambiguous_one_warns():
    class P(D.Normal):
        pass

    class Q(D.Normal):
        pass

    p, q = P(0.0, 1.0), Q(0.0, 1.0)
    D.register_kl(P, D.Normal)(lambda p, q: 1)
    assert D.kl_divergence(p, q) == 1
    D.register_kl(D.Normal, Q)(lambda p, q: 2)
    with pytest.warns(RuntimeWarning, match=r"Ambiguous kl_divergence\(P, Q\). Please register_kl\(P, Q\)"):
        D.kl_divergence(p, q)
    D.register_kl(P, Q)(lambda p, q: 3)
    assert D.kl_divergence(p, q) == 3
    with pytest.raises(TypeError, match="Expected type_p to be a Distribution subclass"):
        D.register_kl(int, D.Normal)


def test_the_module_of_a_distribution_has_pytorchs_name():
    from spillgrad.distributions.normal import Normal
    from spillgrad.distributions.studentT import StudentT

    assert (Normal, StudentT) == (D.Normal, D.StudentT)


def test_a_binomial_count_is_not_negative():
    with pytest.raises(ValueError, match="binomial: got a negative count"):
        sg.binomial(sg.tensor([-1.0]), sg.tensor([0.5]))
    with pytest.raises(ValueError, match=r"binomial: got numbers outside \[0, 1\]"):
        sg.binomial(sg.tensor([1.0]), sg.tensor([1.5]))
