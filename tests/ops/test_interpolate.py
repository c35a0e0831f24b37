"""Resampling against its definition, element by element, its gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 2, 4, 5))


def cubic(t, a=-0.75):
    t = abs(t)
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def resampled(line, count, mode, align_corners=False, scale=None):
    """One dimension by the definition; `line` has it last."""
    size = line.shape[-1]
    step = size / count if scale is None else 1 / scale
    out = np.empty((*line.shape[:-1], count))
    for i in range(count):
        if mode == "nearest":
            out[..., i] = line[..., min(math.floor(i * step), size - 1)]
        elif mode == "nearest-exact":
            out[..., i] = line[..., min(math.floor((i + 0.5) * step), size - 1)]
        elif mode == "area":
            out[..., i] = line[..., math.floor(i * size / count) : math.ceil((i + 1) * size / count)].mean(-1)
        else:
            place = i * (size - 1) / max(count - 1, 1) if align_corners else (i + 0.5) * step - 0.5
            if mode == "bicubic":
                first = math.floor(place)
                taps = [(k, cubic(place - k)) for k in range(first - 1, first + 3)]
            else:
                place = max(place, 0)
                first = math.floor(place)
                taps = [(first, 1 - (place - first)), (first + 1, place - first)]
            out[..., i] = sum(line[..., min(max(k, 0), size - 1)] * weight for k, weight in taps)
    return out


def expected(x, counts, mode, align_corners=False, scales=None):
    scales = scales or [None] * len(counts)
    for d, (count, scale) in enumerate(zip(counts, scales, strict=True), start=2):
        x = np.moveaxis(resampled(np.moveaxis(x, d, -1), count, mode, align_corners, scale), -1, d)
    return x


MODES = ["nearest", "nearest-exact", "bilinear", "bicubic", "area"]
CORNERS = [(mode, {}) for mode in MODES] + [(mode, {"align_corners": True}) for mode in ("bilinear", "bicubic")]


@pytest.mark.parametrize("size", [(7, 3), (2, 11), (1, 1), (4, 5), (8, 10)], ids=str)
@pytest.mark.parametrize(("mode", "options"), CORNERS, ids=str)
def test_images_of_another_size_agree_with_the_definition(mode, options, size):
    got = F.interpolate(sg.tensor(X), size, mode=mode, **options)
    np.testing.assert_allclose(got.numpy(), expected(X, size, mode, **options), 1e-6, 1e-12)
    check_gradients(lambda x: F.interpolate(x, size, mode=mode, **options), X[:1])


@pytest.mark.parametrize("factor", [2, 0.6, (1.5, 0.7)], ids=str)
@pytest.mark.parametrize(("mode", "options"), CORNERS, ids=str)
def test_a_factor_is_that_of_the_places_unless_recomputed(mode, options, factor):
    factors = factor if isinstance(factor, tuple) else (factor, factor)
    counts = [math.floor(n * f) for n, f in zip(X.shape[2:], factors, strict=True)]
    got = F.interpolate(sg.tensor(X), scale_factor=factor, mode=mode, **options)
    np.testing.assert_allclose(got.numpy(), expected(X, counts, mode, scales=factors, **options), 1e-6, 1e-12)
    got = F.interpolate(sg.tensor(X), scale_factor=factor, mode=mode, recompute_scale_factor=True, **options)
    np.testing.assert_allclose(got.numpy(), expected(X, counts, mode, **options), 1e-6, 1e-12)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "linear", "area"])
def test_signals_have_one_dimension(mode):
    got = F.interpolate(sg.tensor(X[0]), 7, mode=mode)
    np.testing.assert_allclose(got.numpy(), expected(X[0], [7], mode), 1e-6, 1e-12)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "trilinear"])
def test_volumes_have_three_dimensions(mode):
    volume = RNG.normal(size=(1, 2, 3, 2, 4))
    got = F.interpolate(sg.tensor(volume), (2, 3, 6), mode=mode)
    np.testing.assert_allclose(got.numpy(), expected(volume, (2, 3, 6), mode), 1e-6, 1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_half_precision_empty_batches_and_any_strides(mode):
    check_half_precision(lambda x: F.interpolate(x, (3, 8), mode=mode), X)
    assert F.interpolate(sg.zeros(0, 2, 4, 5), (3, 8), mode=mode).shape == (0, 2, 3, 8)
    got = F.interpolate(sg.tensor(X).transpose(2, 3), (3, 8), mode=mode)
    np.testing.assert_allclose(got.numpy(), expected(X.swapaxes(2, 3), (3, 8), mode), 1e-6, 1e-12)


def test_the_size_of_the_input_gives_a_copy():
    x = leaf(X)
    y = F.interpolate(x, (4, 5))
    assert y.storage is not x.storage
    y.sum().backward()
    assert x.grad.tolist() == np.ones(X.shape).tolist()


def test_resampling_saves_nothing():
    saved = []
    with sg.autograd.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        F.interpolate(leaf(X), scale_factor=2, mode="bilinear")
    assert saved == []


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.interpolate(x), ArgumentError, "only one of size or scale_factor"),
        (lambda x: F.interpolate(x, 3, 2), ArgumentError, "only one of size or scale_factor"),
        (lambda x: F.interpolate(x, 3, mode="linear"), ShapeError, "Got 4D input, but linear mode needs 3D input"),
        (lambda x: F.interpolate(x, 3, mode="cubic"), ArgumentError, "got mode 'cubic'; accepted are nearest"),
        (lambda x: F.interpolate(x, 3, align_corners=True), ArgumentError, "align_corners option can only be set"),
        (lambda x: F.interpolate(x, (1, 2, 3)), ArgumentError, "got size .* one for each of 2 spatial dimensions"),
        (lambda x: F.interpolate(x, 0), ShapeError, "should be greater than 0"),
        (lambda x: F.interpolate(x, 3, antialias=True), ArgumentError, "only supported for bilinear and bicubic"),
        (lambda x: F.interpolate(x, 3, recompute_scale_factor=True), ArgumentError, "with an explicit size"),
        (lambda x: F.interpolate(x.long(), 3), DtypeError, "floating-point"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.ones(1, 1, 4, 5))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_reach_all_results_that_an_element_is_a_term_of(value: float):
    """As in PyTorch: 0 times NaN is NaN, but an element that is no term adds nothing, forward and backward."""
    x = sg.tensor([[[1.0, value]]], requires_grad=True)
    y = F.interpolate(x, size=3, mode="linear", align_corners=True)
    assert not np.isfinite(y.numpy(force=True)).any()
    x = sg.tensor([[[1.0, 2.0, 3.0]]], requires_grad=True)
    y = F.interpolate(x, size=5, mode="nearest")
    y.backward(sg.tensor([[[value, 1.0, 1.0, 1.0, 1.0]]]))
    assert np.isfinite(x.grad.numpy()[0, 0, 1:]).all()
    x = sg.ones(1, 1, 9, 9)
    x[0, 0, 0, 0] = value
    y = F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True)
    assert (~np.isfinite(y.numpy())).sum() == 1
