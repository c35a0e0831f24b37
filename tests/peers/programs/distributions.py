"""`torch.distributions`: moments, densities, entropies, divergences and their gradients, shapes, what is refused."""

import importlib
import math
from typing import ClassVar

import numpy as np


def _distributions(torch):
    return importlib.import_module(f"{torch.__name__}.distributions")


def _tensor(torch, values, grad=True):
    tensor = torch.tensor(np.asarray(values, np.float64))
    return tensor.requires_grad_() if grad else tensor


# Class -> its parameters, and values of the support. `+` before a parameter's name marks one that is no tensor.
CASES = {
    "Normal": ({"loc": [0.3, -1.2], "scale": [0.7, 2.5]}, [-1.5, 0.4]),
    "LogNormal": ({"loc": [0.3, -1.2], "scale": [0.7, 1.5]}, [0.5, 2.4]),
    "HalfNormal": ({"scale": [0.7, 2.5]}, [0.5, 2.4]),
    "Laplace": ({"loc": [0.3, -1.2], "scale": [0.7, 2.5]}, [-1.5, 0.4]),
    "Cauchy": ({"loc": [0.3, -1.2], "scale": [0.7, 2.5]}, [-1.5, 0.4]),
    "Gumbel": ({"loc": [0.3, -1.2], "scale": [0.7, 2.5]}, [-1.5, 0.4]),
    "Uniform": ({"low": [0.3, -1.2], "high": [0.7, 2.5]}, [0.4, 2.0]),
    "Exponential": ({"rate": [0.3, 2.5]}, [1.5, 0.4]),
    "Gamma": ({"concentration": [0.3, 4.5], "rate": [0.7, 2.5]}, [1.5, 0.4]),
    "Chi2": ({"df": [1.3, 4.5]}, [1.5, 0.4]),
    "StudentT": ({"df": [1.5, 4.5], "loc": [0.3, 1.0], "scale": [2.0, 0.5]}, [1.5, -0.4]),
    "Beta": ({"concentration1": [0.3, 4.5], "concentration0": [1.7, 2.5]}, [0.5, 0.9]),
    "Dirichlet": ({"concentration": [[0.3, 1.5, 2.0], [4.0, 3.0, 2.0]]}, [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]),
    "Poisson": ({"rate": [0.3, 4.5]}, [0.0, 3.0]),
    "Bernoulli by probs": ({"probs": [0.3, 0.8]}, [0.0, 1.0]),
    "Bernoulli by logits": ({"logits": [-0.3, 1.8]}, [0.0, 1.0]),
    "Geometric by probs": ({"probs": [0.3, 0.8]}, [0.0, 3.0]),
    "Geometric by logits": ({"logits": [-0.3, 1.8]}, [0.0, 3.0]),
    "Binomial by probs": ({"+total_count": 5, "probs": [0.3, 0.8]}, [0.0, 4.0]),
    "Binomial by logits": ({"+total_count": 5, "logits": [-0.3, 1.8]}, [0.0, 4.0]),
    "Categorical by probs": ({"probs": [[0.3, 0.8, 1.2], [1.0, 2.0, 3.0]]}, [0, 2]),
    "Categorical by logits": ({"logits": [[-0.3, 0.8, 1.2], [1.0, 2.0, 3.0]]}, [0, 2]),
    "OneHotCategorical by probs": ({"probs": [[0.3, 0.8, 1.2], [1.0, 2.0, 3.0]]}, [[0, 1, 0], [0, 0, 1]]),
    "Multinomial by probs": ({"+total_count": 4, "probs": [[0.3, 0.8, 1.2], [1.0, 2.0, 3.0]]}, [[1, 3, 0], [0, 2, 2]]),
    "Multinomial by logits": ({"+total_count": 4, "logits": [[0.3, 0.8], [1.0, 2.0]]}, [[1, 3], [2, 2]]),
    "MultivariateNormal by scale_tril": (
        {"loc": [[0.3, 1.0], [2.0, -1.0]], "scale_tril": [[1.5, 0.0], [0.4, 0.7]]}, [[0.5, 0.2], [1.0, 1.0]],
    ),
    "MultivariateNormal by covariance_matrix": (
        {"loc": [0.3, 1.0], "covariance_matrix": [[1.5, 0.3], [0.3, 0.7]]}, [[0.5, 0.2], [1.0, 1.0]],
    ),
    "MultivariateNormal by precision_matrix": (
        {"loc": [0.3, 1.0], "precision_matrix": [[[1.5, 0.3], [0.3, 0.7]], [[1.0, 0.0], [0.0, 2.0]]]},
        [[0.5, 0.2], [1.0, 1.0]],
    ),
    "RelaxedOneHotCategorical": (
        {"temperature": 0.7, "probs": [[0.3, 0.8, 1.2], [1.0, 2.0, 3.0]]}, [[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]],
    ),
    "RelaxedBernoulli": ({"temperature": 0.7, "logits": [0.3, -0.8]}, [0.2, 0.6]),
}  # fmt: skip
PROPERTIES = ("mean", "mode", "variance", "stddev")


def _made(torch, name, grad=True, factor=1.0):
    """Return a distribution of the table, with its parameters times `factor`, and those that are tensors."""
    given, _ = CASES[name]
    parameters = {
        key: _tensor(torch, np.multiply(value, factor), grad) for key, value in given.items() if key[0] != "+"
    }
    plain = {key[1:]: value for key, value in given.items() if key[0] == "+"}
    return getattr(_distributions(torch), name.partition(" ")[0])(**plain, **parameters), parameters


def _value(torch, name):
    value = CASES[name][1]
    return torch.tensor(value) if name.startswith("Categorical") else _tensor(torch, value)


def _noted(torch, note, name, call, inputs):
    """Note a value and its gradients, or that there is none."""
    try:
        found = call()
    except NotImplementedError:
        note(name, "NotImplementedError")
        return
    gradients = None
    if found.requires_grad:
        weights = torch.tensor(np.cos(np.arange(found.numel()))).reshape(found.shape)
        gradients = torch.autograd.grad((found * weights).sum(), inputs, retain_graph=True, allow_unused=True)
    note(name, found.detach(), gradients)


def moments_and_shapes(torch, note):
    for name in CASES:
        distribution, parameters = _made(torch, name)
        note(name, list(distribution.batch_shape), list(distribution.event_shape))
        note(f"{name} has", distribution.has_rsample, distribution.has_enumerate_support)
        for attribute in PROPERTIES:
            inputs = list(parameters.values())
            _noted(torch, note, f"{name}.{attribute}", lambda d=distribution, a=attribute: getattr(d, a), inputs)


def densities(torch, note):
    for name in CASES:
        distribution, parameters = _made(torch, name)
        value = _value(torch, name)
        inputs = [*parameters.values(), *([value] if value.requires_grad else [])]
        _noted(torch, note, f"{name} log_prob", lambda d=distribution, v=value: d.log_prob(v), inputs)
        _noted(torch, note, f"{name} entropy", lambda d=distribution: d.entropy(), list(parameters.values()))
        if name not in ("Chi2", "Gamma"):  # no derivative by the concentration
            _noted(torch, note, f"{name} cdf", lambda d=distribution, v=value: d.cdf(v), inputs)
        else:
            note(f"{name} cdf", distribution.cdf(value).detach())


def quantiles(torch, note):
    for name in CASES:
        distribution, parameters = _made(torch, name)
        probability = _tensor(torch, [0.2, 0.7])
        inputs = [*parameters.values(), probability]
        _noted(torch, note, name, lambda d=distribution, p=probability: d.icdf(p), inputs)


def all_values_of_discrete_distributions(torch, note):
    for name in CASES:
        distribution, _ = _made(torch, name, grad=False)
        if distribution.has_enumerate_support:
            note(name, distribution.enumerate_support(), distribution.enumerate_support(expand=False))


def expanded_distributions(torch, note):
    for name in CASES:
        distribution, parameters = _made(torch, name)
        wide = distribution.expand((3, 2))
        note(name, type(wide) is type(distribution), list(wide.batch_shape), list(wide.sample((4,)).shape))
        value = _value(torch, name)
        _noted(torch, note, f"{name} log_prob", lambda d=wide, v=value: d.log_prob(v), list(parameters.values()))


def shapes_and_dtypes_of_draws(torch, note):
    for name in CASES:
        distribution, _ = _made(torch, name)
        drawn = distribution.sample((5,))
        note(name, list(drawn.shape), drawn.dtype, drawn.requires_grad, list(distribution.sample().shape))
        note(f"{name} inside", bool(distribution.support.check(drawn).all()))
        if distribution.has_rsample:
            note(f"{name} rsample", list(distribution.rsample((2, 3)).shape), distribution.rsample().requires_grad)


def numbers_as_parameters(torch, note):
    distributions = _distributions(torch)
    for name, arguments in {
        "Normal": (0, 1), "Uniform": (0.0, 2.0), "Beta": (2, 3.0), "Gamma": (2.0, 1), "Exponential": (3,),
        "Bernoulli": (0.3,), "StudentT": (3.0,), "Poisson": (4,), "Laplace": (0, 1), "Cauchy": (0, 1), "Gumbel": (0, 1),
        "HalfNormal": (1,), "LogNormal": (0, 1), "Geometric": (0.5,),
    }.items():  # fmt: skip
        made = getattr(distributions, name)(*arguments)
        note(name, list(made.batch_shape), made.mean, made.sample().dtype, list(made.sample((2,)).shape))


DIVERGENCES = [
    *((name, name) for name in ("Normal", "LogNormal", "HalfNormal", "Laplace", "Cauchy", "Gumbel", "Exponential")),
    *((name, name) for name in ("Gamma", "Beta", "Dirichlet", "Poisson", "Bernoulli by probs", "Geometric by probs")),
    *((name, name) for name in ("Categorical by logits", "OneHotCategorical by probs", "Binomial by probs")),
    ("Uniform", "Uniform"), ("Categorical by probs", "Categorical by logits"), ("Bernoulli by logits", "Poisson"),
    ("Bernoulli by logits", "Bernoulli by probs"), ("Geometric by logits", "Geometric by probs"), ("Chi2", "Chi2"),
    ("MultivariateNormal by scale_tril", "MultivariateNormal by covariance_matrix"),
    ("MultivariateNormal by covariance_matrix", "MultivariateNormal by precision_matrix"), ("Normal", "Laplace"),
    ("Beta", "Exponential"), ("Gamma", "Exponential"), ("Uniform", "Exponential"), ("Beta", "Gamma"),
    ("Exponential", "Gamma"), ("Beta", "Uniform"), ("Uniform", "Beta"), ("Poisson", "Bernoulli by probs"),
    *((name, "Normal") for name in ("Beta", "Exponential", "Gamma", "Gumbel", "Laplace", "Uniform")),
    *(("Normal", name) for name in ("Beta", "Exponential", "Gamma", "Uniform")),
    *((name, "Gumbel") for name in ("Exponential", "Gamma", "Normal", "Uniform")),
]  # fmt: skip


def divergences(torch, note):
    kl = _distributions(torch).kl_divergence
    for first, second in DIVERGENCES:
        another = 1.2 if first == second and first != "Uniform" else 1.0
        (p, some), (q, others) = _made(torch, first), _made(torch, second, factor=another)
        inputs = [*some.values(), *others.values()]
        _noted(torch, note, f"{first} from {second}", lambda p=p, q=q: kl(p, q), inputs)


def divergences_at_the_edge(torch, note):
    distributions, infinite = _distributions(torch), []
    bernoulli, categorical = distributions.Bernoulli, distributions.Categorical
    for p, q in ((0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, 1.0)):
        infinite.append(distributions.kl_divergence(bernoulli(_tensor(torch, p)), bernoulli(_tensor(torch, q))).item())
    note("Bernoulli", [str(value) if math.isinf(value) else value for value in infinite])
    p, q = categorical(_tensor(torch, [0.5, 0.5, 0.0])), categorical(_tensor(torch, [0.0, 0.5, 0.5]))
    note("Categorical", str(distributions.kl_divergence(p, q).item()), str(distributions.kl_divergence(p, p).item()))
    note("both", distributions.Uniform(0.0, 1.0).log_prob(torch.tensor(0.5)).item())


def transforms_and_their_determinants(torch, note):
    d = _distributions(torch)
    scale = _tensor(torch, [0.5, -2.0, 1.5])
    for name, transform in {
        "exp": d.ExpTransform(), "affine": d.AffineTransform(1.0, scale), "affine number": d.AffineTransform(1.0, -3.0),
        "affine event": d.AffineTransform(1.0, scale, event_dim=1), "tanh": d.TanhTransform(),
        "sigmoid": d.SigmoidTransform(), "stick": d.StickBreakingTransform(), "softplus": d.SoftplusTransform(),
        "independent": d.IndependentTransform(d.TanhTransform(), 1),
        "composed": d.ComposeTransform([d.AffineTransform(0.1, 0.5), d.TanhTransform(), d.ExpTransform()]),
        "composed with events": d.ComposeTransform([d.TanhTransform(), d.StickBreakingTransform()]),
        "inverse": d.ExpTransform().inv.inv,
    }.items():  # fmt: skip
        x = _tensor(torch, [[0.3, -0.8, 0.1], [1.0, 0.5, -0.2]])
        _noted(torch, note, name, lambda t=transform, x=x: t(x), [x, scale])
        _noted(torch, note, f"{name} back", lambda t=transform, x=x: t.inv(t(x)), [x])
        _noted(torch, note, f"{name} det", lambda t=transform, x=x: t.log_abs_det_jacobian(x, t(x)), [x, scale])
        y = transform(x).detach()
        back = transform.inv.log_abs_det_jacobian(y, transform.inv(y))
        note(f"{name} back det", back.detach(), transform.domain.event_dim, transform.codomain.event_dim)
        note(f"{name} shapes", list(transform.forward_shape((2, 3))), list(transform.inverse_shape((2, 3))))
    note("softmax", d.SoftmaxTransform()(_tensor(torch, [0.1, 0.4])).detach(), d.SoftmaxTransform().bijective)
    note("power", d.PowerTransform(_tensor(torch, 2.5))(_tensor(torch, [0.1, 0.4])).detach())
    note("equal", d.ExpTransform() == d.ExpTransform(), d.ExpTransform() == d.TanhTransform())
    note("equal settings", *(d.AffineTransform(0, 1) == d.AffineTransform(0, scale) for scale in (1, 2)))
    cached = d.TanhTransform(cache_size=1)
    x = _tensor(torch, [30.0])
    note("cached", cached.inv(cached(x)) is x, d.TanhTransform().inv(d.TanhTransform()(x)) is x)


def transformed_distributions(torch, note):
    d = _distributions(torch)
    loc, scale = _tensor(torch, [0.3, -0.4]), _tensor(torch, [0.5, 1.5])
    base = d.Normal(loc, scale)
    for name, transforms, value in (
        ("squashed", [d.TanhTransform(cache_size=1)], [0.2, -0.7]),
        ("scaled", [d.TanhTransform(), d.AffineTransform(1.0, -2.0)], [0.2, 1.7]),
        ("stick", d.StickBreakingTransform(), [0.2, 0.3, 0.5]),
        ("none", [], [0.1, 0.2]),
    ):
        made = d.TransformedDistribution(base, transforms)
        note(name, list(made.batch_shape), list(made.event_shape), made.has_rsample, list(made.rsample((3,)).shape))
        value = _tensor(torch, value)
        _noted(torch, note, f"{name} log_prob", lambda m=made, v=value: m.log_prob(v), [loc, scale, value])
        if name != "stick":
            _noted(torch, note, f"{name} cdf", lambda m=made, v=value: m.cdf(v), [loc, scale, value])
        note(f"{name} wide", list(made.expand((3, *made.batch_shape)).sample().shape))
    logistic = d.TransformedDistribution(d.Uniform(0.0, 1.0), [d.SigmoidTransform().inv, d.AffineTransform(1.0, 2.0)])
    note(
        "logistic",
        logistic.log_prob(torch.tensor(0.5)),
        logistic.cdf(torch.tensor(0.5)),
        logistic.icdf(torch.tensor(0.3)),
    )


def independent_dimensions_and_mixtures(torch, note):
    d = _distributions(torch)
    loc, scale = _tensor(torch, [[0.3, -0.4, 1.0], [0.0, 1.0, 2.0]]), _tensor(torch, [0.5, 1.5, 0.7])
    joint = d.Independent(d.Normal(loc, scale), 1)
    value = _tensor(torch, [0.2, 0.3, 0.5])
    note("independent", list(joint.batch_shape), list(joint.event_shape), joint.mean.detach(), joint.variance.detach())
    _noted(torch, note, "log_prob", lambda: joint.log_prob(value), [loc, scale, value])
    _noted(torch, note, "entropy", joint.entropy, [loc, scale])
    other = d.Independent(d.Normal(0 * loc, 2 * scale), 1)
    _noted(torch, note, "divergence", lambda: d.kl_divergence(joint, other), [loc, scale])
    note("expanded", list(joint.expand((4, 2)).sample((3,)).shape), joint.support.event_dim)
    weights = _tensor(torch, [0.2, 0.3, 0.5])
    for name, mixed, components, value in (
        ("scalars", weights.expand((2, 3)), d.Normal(loc, scale), [0.3, 0.4]),
        ("vectors", weights, d.Independent(d.Normal(loc.t(), 1.0), 1), [0.3, 0.4]),
    ):
        mixture = d.MixtureSameFamily(d.Categorical(mixed), components)
        value = _tensor(torch, value)
        note(name, list(mixture.batch_shape), list(mixture.event_shape), list(mixture.sample((5, 4)).shape))
        _noted(torch, note, f"{name} log_prob", lambda m=mixture, v=value: m.log_prob(v), [weights, loc, value])
        _noted(torch, note, f"{name} mean", lambda m=mixture: m.mean, [weights, loc])
        _noted(torch, note, f"{name} variance", lambda m=mixture: m.variance, [weights, loc])
    note(
        "mixture cdf",
        d.MixtureSameFamily(d.Categorical(weights), d.Normal(loc, scale)).cdf(_tensor(torch, 0.1)).detach(),
    )


def what_is_refused(torch, note):
    d = _distributions(torch)
    one = torch.tensor([1.0, 1.0])
    for name, call, *phrases in (
        (
            "scale",
            lambda: d.Normal(one, -one),
            "Expected parameter scale",
            "to satisfy the constraint",
            "GreaterThan(lower_bound=0.0)",
            "but found invalid values",
        ),
        ("nan", lambda: d.Normal(one * float("nan"), one), "Expected parameter loc", "Real()"),
        (
            "probs",
            lambda: d.Bernoulli(one * 2),
            "Expected parameter probs",
            "Interval(lower_bound=0.0, upper_bound=1.0)",
        ),
        ("simplex", lambda: d.Categorical(-one), "Simplex()"),
        ("both", lambda: d.Bernoulli(one, one), "Either `probs` or `logits` must be specified, but not both."),
        ("neither", lambda: d.Categorical(), "Either `probs` or `logits` must be specified, but not both."),
        ("0-d", lambda: d.Categorical(torch.tensor(0.5)), "`probs` parameter must be at least one-dimensional."),
        ("bounds", lambda: d.Uniform(1.0, 0.0)),
        (
            "support",
            lambda: d.Bernoulli(one / 2).log_prob(one / 2),
            "Expected value argument",
            "to be within the support",
        ),
        (
            "shape",
            lambda: d.Normal(one, one).log_prob(torch.ones(3)),
            "Value is not broadcastable with batch_shape+event_shape",
        ),
        (
            "event",
            lambda: d.Dirichlet(one).log_prob(torch.ones(3)),
            "The right-most size of value must match event_shape",
        ),
        ("number", lambda: d.Normal(0.0, 1.0).log_prob(1.0), "The value argument to log_prob must be a Tensor"),
        ("no kl", lambda: d.kl_divergence(d.Cauchy(one, one), d.Normal(one, one)), "No KL(p || q) is implemented"),
        ("no rsample", lambda: d.Bernoulli(one / 2).rsample()),
        ("no cdf", lambda: d.Dirichlet(one).cdf(one / 2)),
        ("no mode", lambda: d.RelaxedBernoulli(one, one / 2).mode, "does not implement mode"),
        (
            "matrices",
            lambda: d.MultivariateNormal(one),
            "Exactly one of covariance_matrix or precision_matrix or scale_tril",
        ),
        (
            "not definite",
            lambda: d.MultivariateNormal(one, torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
            "PositiveDefinite()",
        ),
        (
            "dims",
            lambda: d.Independent(d.Normal(one, one), 2),
            "Expected reinterpreted_batch_ndims <= len(base_distribution.batch_shape)",
        ),
        (
            "transforms",
            lambda: d.TransformedDistribution(d.Normal(one, one), [1]),
            "transforms must be a Transform or a list",
        ),
        ("sample shape", lambda: d.Normal(0.0, 1.0).sample(3)),
    ):
        note.error(name, call, *phrases)
    note("unchecked", d.Normal(torch.tensor(0.0), torch.tensor(-1.0), validate_args=False).mean)


def a_distribution_of_ones_own(torch, note):
    d = _distributions(torch)

    class Shifted(d.Normal):
        """A subclass without an own `__init__`."""

    class Own(d.Distribution):
        arg_constraints: ClassVar = {"rate": d.constraints.positive}
        support = d.constraints.nonnegative

        def __init__(self, rate, validate_args=None):
            self.rate = rate
            super().__init__(rate.shape, validate_args=validate_args)

        def log_prob(self, value):
            if self._validate_args:
                self._validate_sample(value)
            return self.rate.log() - self.rate * value

        def rsample(self, sample_shape=()):
            return torch.ones(self._extended_shape(sample_shape)) / self.rate

    own = Own(_tensor(torch, [1.0, 2.0]))
    note("own", own.log_prob(_tensor(torch, [1.0, 3.0])).detach(), own.sample((2,)), own.sample().requires_grad)
    note("expanded", type(Shifted(torch.zeros(2), torch.ones(2)).expand((3, 2))) is Shifted)
    note.error("own expand", lambda: own.expand((3, 2)))
    note.error("own mean", lambda: own.mean)
    note.error("own check", lambda: Own(_tensor(torch, [-1.0])), "Expected parameter rate")

    @d.register_kl(Own, Own)
    def _own(p, q):
        return p.rate - q.rate

    note("kl", d.kl_divergence(own, Own(_tensor(torch, [1.0, 1.0]))).detach())
    note("normal's", d.kl_divergence(Shifted(torch.zeros(2), torch.ones(2)), d.Normal(torch.ones(2), torch.ones(2))))


def transforms_to_constraints(torch, note):
    d = _distributions(torch)
    c = d.constraints
    matrix = [[0.3, -0.8, 0.1], [1.0, 0.5, -0.2], [0.4, 0.2, 0.6]]
    for name, constraint in {
        "real": c.real, "real vector": c.real_vector, "positive": c.positive, "nonnegative": c.nonnegative,
        "above": c.greater_than(2.0), "from": c.greater_than_eq(-1.0), "below": c.less_than(1.0),
        "unit": c.unit_interval, "interval": c.interval(-1.0, 3.0), "half open": c.half_open_interval(0.0, 2.0),
        "simplex": c.simplex, "independent": c.independent(c.positive, 1), "cholesky": c.lower_cholesky,
        "definite": c.positive_definite, "semidefinite": c.positive_semidefinite, "boolean": c.boolean,
    }.items():  # fmt: skip
        for registry in (d.biject_to, d.transform_to):
            try:
                transform = registry(constraint)
            except NotImplementedError as error:
                note(name, str(error).partition(";")[0])
                continue
            x = _tensor(torch, matrix)
            _noted(torch, note, name, lambda t=transform, x=x: t(x), [x])
            y = transform(x).detach()
            note(f"{name} holds", constraint.check(y).all(), transform.bijective, transform.codomain.event_dim)
            if name != "simplex" or transform.bijective:
                note(f"{name} back", transform.inv(y))
            if transform.bijective:
                note(f"{name} det", transform.log_abs_det_jacobian(x, transform(x)).detach())

    class Even(c.Constraint):
        def check(self, value):
            return value % 2 == 0

    d.biject_to.register(Even, lambda constraint: d.AffineTransform(0.0, 2.0))
    note("own", d.biject_to(Even())(torch.ones(2)))
    note.error("not registered", lambda: d.transform_to(Even()), "Cannot transform Even constraints")
    note.error("no constraint", lambda: d.transform_to.register(int, None)(None), "Expected constraint to be either a")


def reshaped_values(torch, note):
    d = _distributions(torch)
    reshape = d.ReshapeTransform((2, 3), (6,))
    x = _tensor(torch, np.arange(12.0).reshape(2, 2, 3))
    note("there and back", reshape(x).detach(), reshape.inv(reshape(x)).detach(), reshape.log_abs_det_jacobian(x, x))
    note("shapes", list(reshape.forward_shape((4, 2, 3))), list(reshape.inverse_shape((4, 6))))
    note("dims", reshape.domain.event_dim, reshape.codomain.event_dim)
    note.error("numbers", lambda: d.ReshapeTransform((2,), (3,)), "have different numbers of elements")
    note.error("too few", lambda: reshape.forward_shape((3,)), "Too few dimensions on input")
    note.error("shape", lambda: reshape.forward_shape((3, 2)), "Shape mismatch")
    wide = d.TransformedDistribution(d.Normal(torch.zeros(6), torch.ones(6)), [d.ReshapeTransform((6,), (2, 3))])
    note("distribution", list(wide.event_shape), wide.log_prob(torch.ones(2, 3)))
