"""Pooling against loops in NumPy, its gradients against central differences."""

import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 7, 6))
# Options of both kinds of pooling, and of one kind only.
BOTH = [
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": (1, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 3, "padding": (0, 1), "ceil_mode": True},
    {"kernel_size": 2, "stride": 5, "ceil_mode": True},
]
MAX = [*BOTH, {"kernel_size": 2, "dilation": (2, 3)}, {"kernel_size": 3, "stride": 2, "padding": 1, "dilation": 2}]
AVG = [*BOTH, {**BOTH[3], "count_include_pad": False}, {**BOTH[2], "divisor_override": 5}]


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def windows(shape, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, **_):
    """For each dimension and window: the places inside the image, and how many lie inside image and padding."""
    found = []
    for n, k, s, p, d in zip(shape, *map(pair, (kernel_size, stride or kernel_size, padding, dilation)), strict=True):
        count = (math.ceil if ceil_mode else math.floor)((n + 2 * p - d * (k - 1) - 1) / s) + 1
        begins = [i * s - p for i in range(count) if not ceil_mode or i * s - p < n]
        places = [[begin + t * d for t in range(k)] for begin in begins]
        found.append([([y for y in ys if 0 <= y < n], sum(y < n + p for y in ys)) for ys in places])
    return found


def adaptive(shape, grid):
    return [
        [(list(range(math.floor(i * n / m), math.ceil((i + 1) * n / m))), 0) for i in range(m)]
        for n, m in zip(shape, grid, strict=True)
    ]


def pooled(x, found, fold):
    """Apply `fold(elements, places, padded)` to every window."""
    down, across = found
    out = np.empty((*x.shape[:2], len(down), len(across)))
    for n, c, i, j in np.ndindex(out.shape):
        places = [y * x.shape[3] + z for y in down[i][0] for z in across[j][0]]
        out[n, c, i, j] = fold(x[n, c].reshape(-1)[places], places, down[i][1] * across[j][1])
    return out


def largest(values, places, padded):
    return values.max()


def place_of_largest(values, places, padded):
    return places[int(np.argmax(values))]


def mean(values, places, padded):
    return values.mean()


@pytest.mark.parametrize("options", MAX, ids=str)
def test_max_pool2d_takes_the_largest_of_each_window(options):
    found = windows(X.shape[2:], **options)
    values, indices = F.max_pool2d(sg.tensor(X), **options, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), pooled(X, found, largest))
    np.testing.assert_array_equal(indices.numpy(), pooled(X, found, place_of_largest))
    assert indices.dtype == sg.int64
    check_gradients(lambda x: F.max_pool2d(x, **options), X[:1, :2])


@pytest.mark.parametrize("options", AVG, ids=str)
def test_avg_pool2d_takes_the_mean_of_each_window(options):
    def divided(values, places, padded):
        if "divisor_override" in options:
            return values.sum() / options["divisor_override"]
        return values.sum() / (padded if options.get("count_include_pad", True) else len(places))

    expected = pooled(X, windows(X.shape[2:], **options), divided)
    np.testing.assert_allclose(F.avg_pool2d(sg.tensor(X), **options).numpy(), expected, 1e-12)
    check_gradients(lambda x: F.avg_pool2d(x, **options), X[:1, :2])


@pytest.mark.parametrize("grid", [(3, 2), (1, 1), (7, 6), (9, 4)], ids=str)
def test_adaptive_pooling_shares_the_image_out(grid):
    found = adaptive(X.shape[2:], grid)
    means = F.adaptive_avg_pool2d(sg.tensor(X), grid)
    np.testing.assert_allclose(means.numpy(), pooled(X, found, mean), 1e-12)
    values, indices = F.adaptive_max_pool2d(sg.tensor(X), grid, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), pooled(X, found, largest))
    np.testing.assert_array_equal(indices.numpy(), pooled(X, found, place_of_largest))
    check_gradients(lambda x: F.adaptive_avg_pool2d(x, grid), X[:1, :2])
    check_gradients(lambda x: F.adaptive_max_pool2d(x, grid), X[:1, :2])


def test_none_keeps_a_dimension_as_it_is():
    assert F.adaptive_avg_pool2d(sg.tensor(X), (None, 2)).shape == (2, 3, 7, 2)
    assert F.adaptive_max_pool2d(sg.tensor(X), 2).shape == (2, 3, 2, 2)


@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_signals_are_images_of_one_row(options):
    plane = {key: (0 if key == "padding" else 1, value) for key, value in options.items()}
    signal = X[:, :, 0]
    found = windows((1, 6), **plane)
    expected = pooled(X[:, :, :1], found, largest)[:, :, 0]
    np.testing.assert_array_equal(F.max_pool1d(sg.tensor(signal), **options).numpy(), expected)
    got = F.avg_pool1d(sg.tensor(signal), **options, count_include_pad=False)
    np.testing.assert_allclose(got.numpy(), pooled(X[:, :, :1], found, mean)[:, :, 0], 1e-12)
    assert F.max_pool1d(sg.tensor(signal[0]), 2).shape == (3, 3)


@pytest.mark.parametrize("length", [1, 3, 6, 9])
def test_adaptive_pooling_of_signals_is_that_of_images_of_one_row(length):
    signal = X[:, :, 0]
    found = adaptive((1, 6), (1, length))
    expected = pooled(X[:, :, :1], found, mean)[:, :, 0]
    np.testing.assert_allclose(F.adaptive_avg_pool1d(sg.tensor(signal), length).numpy(), expected, 1e-12)
    values, indices = F.adaptive_max_pool1d(sg.tensor(signal), length, return_indices=True)
    np.testing.assert_array_equal(values.numpy(), pooled(X[:, :, :1], found, largest)[:, :, 0])
    np.testing.assert_array_equal(indices.numpy(), pooled(X[:, :, :1], found, place_of_largest)[:, :, 0])
    assert F.adaptive_avg_pool1d(sg.tensor(signal[0]), (None,)).shape == (3, 6)
    check_gradients(lambda x: F.adaptive_avg_pool1d(x, length), signal[:1])
    check_gradients(lambda x: F.adaptive_max_pool1d(x, length), signal[:1])


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5, math.inf])
@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"stride": 2, "ceil_mode": True}], ids=str)
def test_power_pooling_takes_the_root_of_the_sum_of_powers(power, options):
    x = np.abs(X)
    found = windows(x.shape[2:], 2, **options)
    if power == math.inf:
        expected = pooled(x, found, largest)
    else:
        # A window of ceil_mode that reaches beyond the image counts as if it went on alike, as in PyTorch.
        expected = pooled(x, found, lambda v, p, n: ((v**power).sum() * 4 / (len(v) if n < 4 else 4)) ** (1 / power))
    np.testing.assert_allclose(F.lp_pool2d(sg.tensor(x), power, 2, **options).numpy(), expected, 1e-10)
    check_gradients(lambda x: F.lp_pool2d(x, power, 2, **options), x[:1, :2])
    rows = np.repeat(x[:, :, :1], 2, 2)  # two equal rows double every sum
    doubled = F.lp_pool2d(sg.tensor(rows), power, 2, **options).numpy()[:, :, 0]
    single = F.lp_pool1d(sg.tensor(x[:, :, 0]), power, 2, **options).numpy()
    np.testing.assert_allclose(doubled, single * 2 ** (0 if power == math.inf else 1 / power), 1e-10)


def test_power_pooling_of_zeros_is_zero_and_so_is_its_gradient():
    x = leaf(np.zeros((1, 1, 2, 2)))
    y = F.lp_pool2d(x, 2.0, 2)
    y.sum().backward()
    assert y.item() == 0
    assert x.grad.tolist() == [[[[0, 0], [0, 0]]]]


@pytest.mark.parametrize("options", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}], ids=str)
def test_unpooling_puts_the_largest_back_where_they_were(options):
    values, indices = F.max_pool2d(sg.tensor(X), **options, return_indices=True)
    expected = np.zeros((6, 42))
    np.put_along_axis(expected, indices.numpy().reshape(6, -1), values.numpy().reshape(6, -1), 1)
    got = F.max_unpool2d(values, indices, **options, output_size=X.shape)
    np.testing.assert_array_equal(got.numpy(), expected.reshape(X.shape))
    if options["kernel_size"] == 2:
        check_gradients(lambda x: F.max_unpool2d(x, indices, **options, output_size=(7, 6)), values.numpy())
    values, indices = F.max_pool1d(sg.tensor(X[0, :, 0]), 2, return_indices=True)
    line = F.max_unpool1d(values, indices, 2)
    assert line.shape == (3, 6)
    assert (line != 0).sum().item() == 9
    np.testing.assert_array_equal(line.numpy()[line.numpy() != 0], values.numpy().reshape(-1))


def test_of_equal_elements_the_first_counts_and_takes_the_gradient():
    x = leaf(np.ones((1, 1, 2, 4)))
    values, indices = F.max_pool2d(x, 2, return_indices=True)
    values.sum().backward()
    assert indices.tolist() == [[[[0, 2]]]]
    assert x.grad.tolist() == [[[[1, 0, 1, 0], [0, 0, 0, 0]]]]


def test_nan_is_larger_than_any_number():
    x = X.copy()
    x[0, 0, 1, 1] = np.nan
    values, indices = F.max_pool2d(sg.tensor(x), 2, return_indices=True)
    assert np.argwhere(np.isnan(values.numpy())).tolist() == [[0, 0, 0, 0]]
    assert indices[0, 0, 0, 0].item() == 7
    assert (F.max_pool2d(sg.full((1, 1, 2, 2), -math.inf), 2) == -math.inf).all()


def test_half_precision_batches_without_elements_and_images_without_batch():
    check_half_precision(lambda x: F.avg_pool2d(x, 2), X)
    check_half_precision(lambda x: F.max_pool2d(x, 2), np.round(X * 4))
    assert F.max_pool2d(sg.zeros(0, 3, 4, 4), 2).shape == (0, 3, 2, 2)
    assert F.avg_pool2d(sg.zeros(3, 4, 4), 2).shape == (3, 2, 2)
    transposed = sg.tensor(X).transpose(2, 3)
    np.testing.assert_allclose(F.avg_pool2d(transposed, 2).numpy(), F.avg_pool2d(transposed.contiguous(), 2).numpy())


def test_max_pooling_saves_indices_only():
    node = F.max_pool2d(leaf(X), 2, return_indices=True)[0].grad_fn
    assert node._saved_indices.shape == (2, 3, 3, 3)
    assert not hasattr(node, "_saved_self")
    assert not hasattr(node, "_saved_result")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: F.max_pool2d(x[0, 0], 2), ShapeError, "wanted 4 dimensions, or 3"),
        (lambda x: F.max_pool2d(x.to("int32"), 2), DtypeError, "floating-point"),
        (lambda x: F.max_pool2d(x, 0), ArgumentError, "got kernel_size 0"),
        (lambda x: F.max_pool2d(x, 9), ShapeError, "not one window fits"),
        (lambda x: F.avg_pool2d(x, 3, padding=2), ArgumentError, "at most half of it may be padding"),
        (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ArgumentError, "must not be zero"),
        (lambda x: F.max_pool2d(x[..., :1], (1, 2), padding=(0, 1), dilation=2), ShapeError, "nothing but padding"),
        (lambda x: F.adaptive_avg_pool1d(x[0], (1, 2)), ArgumentError, "wanted one integer"),
        (lambda x: F.lp_pool1d(x, 2.0, 2), ShapeError, "lp_pool1d: got input"),
        (lambda x: F.max_unpool2d(x, x[0].long(), 2), ShapeError, "Expected shape of indices to be that of the input"),
        (lambda x: F.max_unpool2d(x, x.long(), 2, output_size=(5, 5)), ArgumentError, "invalid output_size"),
        (lambda x: F.max_unpool2d(x, x.long() + 100, 2), ArgumentError, "indices outside an image"),
        (lambda x: F.adaptive_avg_pool2d(x, (1, 2, 3)), ArgumentError, "wanted one or two"),
        (lambda x: F.adaptive_avg_pool2d(x, (-1, 2)), ArgumentError, "from 0 on"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.zeros(2, 2, 5, 5))
