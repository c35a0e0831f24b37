"""Convolutions against loops in NumPy, their derivatives against central differences."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import gradcheck, gradgradcheck
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.nn import functional as F
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(0)
# Channels, output channels, image, kernel, and options: each alone, and together.
CASES = [
    (2, 3, (5, 6), (3, 3), {}),
    (2, 3, (5, 6), (3, 2), {"padding": 1}),
    (3, 2, (7, 6), (3, 3), {"stride": 2, "padding": (1, 2)}),
    (2, 2, (7, 8), (2, 3), {"dilation": (2, 3)}),
    (4, 6, (5, 5), (3, 3), {"groups": 2, "padding": 1}),
    (3, 3, (5, 7), (3, 3), {"groups": 3, "padding": 1}),
    (2, 6, (6, 5), (2, 3), {"groups": 2, "stride": (2, 1), "dilation": (1, 2), "padding": (0, 1)}),
    (3, 4, (4, 4), (1, 1), {}),
    (3, 4, (5, 4), (1, 1), {"stride": 2}),
    (2, 3, (5, 6), (2, 4), {"padding": "same", "dilation": 2}),
    (2, 3, (5, 6), (3, 3), {"padding": "valid"}),
    (2, 3, (2, 2), (2, 2), {"stride": 5, "padding": 3}),
]
IDS = [f"{c}to{m} {'x'.join(map(str, kernel))} {options}" for c, m, _, kernel, options in CASES]


def pair(value):
    return value if isinstance(value, tuple) else (value, value)


def convolved(x, weight, bias, stride=1, padding=0, dilation=1, groups=1):
    """The definition, window by window."""
    (sy, sx), (dy, dx), (kh, kw) = pair(stride), pair(dilation), weight.shape[2:]
    if padding == "same":
        totals = dy * (kh - 1), dx * (kw - 1)
        pads = [(t // 2, t - t // 2) for t in totals]
    else:
        pads = [(p, p) for p in pair(0 if padding == "valid" else padding)]
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    rows = (padded.shape[2] - dy * (kh - 1) - 1) // sy + 1
    columns = (padded.shape[3] - dx * (kw - 1) - 1) // sx + 1
    out = np.zeros((len(x), len(weight), rows, columns), x.dtype)
    per_group = weight.shape[1]
    for m in range(len(weight)):
        first = m // (len(weight) // groups) * per_group
        for i, j in np.ndindex(rows, columns):
            window = padded[:, first : first + per_group, i * sy :, j * sx :][..., ::dy, ::dx][..., :kh, :kw]
            out[:, m, i, j] = (window * weight[m]).sum((1, 2, 3)) + bias[m]
    return out


def operands(c, m, image, kernel, options):
    shape = (m, c // options.get("groups", 1), *kernel)
    return RNG.normal(size=(2, c, *image)), RNG.normal(size=shape), RNG.normal(size=m)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_conv2d_is_its_definition_and_its_gradients_are_differences(case):
    x, weight, bias = operands(*case)
    options = case[-1]
    got = F.conv2d(*map(sg.tensor, (x, weight, bias)), **options)
    np.testing.assert_allclose(got.numpy(), convolved(x, weight, bias, **options), 1e-10, 1e-10)
    without = F.conv2d(sg.tensor(x), sg.tensor(weight), **options)
    np.testing.assert_allclose(without.numpy(), convolved(x, weight, 0 * bias, **options), 1e-10, 1e-10)
    small = [part[:1] if part is x else part for part in (x, weight, bias)]
    check_gradients(lambda *tensors: F.conv2d(*tensors, **options), *small, second=case in (CASES[2], CASES[5]))


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_complex_images_are_convolved_by_the_definition_with_conjugate_gradients(case):
    x, weight, bias = [part + 1j * np.roll(part, 1, 0) for part in operands(*case)]
    options = case[-1]
    got = F.conv2d(*map(sg.tensor, (x, weight, bias)), **options)
    np.testing.assert_allclose(got.numpy(), convolved(x, weight, bias, **options), 1e-10, 1e-10)
    narrow = F.conv2d(*[sg.tensor(part, dtype="complex64") for part in (x, weight, bias)], **options)
    np.testing.assert_allclose(narrow.numpy(), got.numpy(), 1e-4, 1e-4)
    leaves = [sg.tensor(part, requires_grad=True) for part in (x[:1, :, :4, :4], weight, bias)]
    if "dilation" not in options:
        assert gradcheck(lambda *tensors: F.conv2d(*tensors, **options), leaves, fast_mode=True)
        assert gradgradcheck(lambda *tensors: F.conv2d(*tensors, **options), leaves, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2}], ids=str)
def test_the_complex_transposed_convolution_has_conjugate_gradients(options):
    shapes = (1, 4, 3, 3), (4, 2, 3, 2), (2 * options.get("groups", 1),)
    leaves = [sg.tensor(RNG.normal(size=s) + 1j * RNG.normal(size=s), requires_grad=True) for s in shapes]
    assert gradcheck(lambda *tensors: F.conv_transpose2d(*tensors, **options), leaves, fast_mode=True)
    assert gradgradcheck(lambda *tensors: F.conv_transpose2d(*tensors, **options), leaves, fast_mode=True)


@pytest.mark.parametrize("case", [case for case in CASES if case[-1].get("padding") not in ("same", "valid")], ids=str)
def test_conv_transpose2d_is_the_derivative_of_conv2d(case):
    x, weight, _ = operands(*case)
    options = case[-1]
    image = leaf(x)
    result = F.conv2d(image, sg.tensor(weight), **options)
    g = RNG.normal(size=result.shape)
    result.backward(sg.tensor(g))
    least = F.conv_transpose2d(sg.tensor(g), sg.tensor(weight), **options).shape[2:]
    extra = tuple(have - need for have, need in zip(x.shape[2:], least, strict=True))
    if max(extra) >= max(*pair(options.get("stride", 1)), *pair(options.get("dilation", 1))):
        pytest.skip("the image has more than one stride to spare")
    bias = RNG.normal(size=x.shape[1])
    got = F.conv_transpose2d(sg.tensor(g), sg.tensor(weight), sg.tensor(bias), output_padding=extra, **options)
    np.testing.assert_allclose(got.numpy(), image.grad.numpy() + bias[:, None, None], 1e-10, 1e-10)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2}], ids=str)
def test_the_gradients_of_conv_transpose2d_are_differences(options):
    x, bias = RNG.normal(size=(1, 4, 3, 3)), RNG.normal(size=2 * options.get("groups", 1))
    weight = RNG.normal(size=(4, 2, 3, 2))
    check_gradients(lambda *tensors: F.conv_transpose2d(*tensors, **options), x, weight, bias)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"padding": "same"}, {"groups": 2}], ids=str)
def test_conv1d_is_conv2d_of_one_row(options):
    groups = options.get("groups", 1)
    x, weight, bias = RNG.normal(size=(2, 4, 9)), RNG.normal(size=(6, 4 // groups, 3)), RNG.normal(size=6)
    plane = {
        key: (0 if key == "padding" else 1, value) if isinstance(value, int) else value
        for key, value in options.items()
    }
    plane.pop("groups", None)
    expected = convolved(x[:, :, None], weight[:, :, None], bias, groups=groups, **plane)[:, :, 0]
    got = F.conv1d(*map(sg.tensor, (x, weight, bias)), **options)
    np.testing.assert_allclose(got.numpy(), expected, 1e-10, 1e-10)
    check_gradients(lambda *tensors: F.conv1d(*tensors, **options), x[:1, :, :5], weight, bias, second=False)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2}, {"stride": 3, "dilation": 2}],
    ids=str,
)
def test_conv_transpose1d_is_conv_transpose2d_of_one_row(options):
    groups = options.get("groups", 1)
    x, weight, bias = RNG.normal(size=(2, 4, 5)), RNG.normal(size=(4, 3, 3)), RNG.normal(size=3 * groups)
    zero = {"padding", "output_padding"}
    plane = {key: (0 if key in zero else 1, value) for key, value in options.items() if key != "groups"}
    got = F.conv_transpose1d(*map(sg.tensor, (x, weight, bias)), **options)
    images = [sg.tensor(a) for a in (x[:, :, None], weight[:, :, None], bias)]
    expected = F.conv_transpose2d(*images, **plane, groups=groups)
    np.testing.assert_allclose(got.numpy(), expected.numpy()[:, :, 0], 1e-12)
    alone = F.conv_transpose1d(*map(sg.tensor, (x[0], weight, bias)), **options)
    np.testing.assert_allclose(alone.numpy(), got.numpy()[0], 1e-12)
    check_gradients(lambda *tensors: F.conv_transpose1d(*tensors, **options), x[:1, :, :3], weight, bias)


def test_a_transposed_convolution_of_volumes_may_end_beyond_its_last_window():
    x, weight = RNG.normal(size=(1, 1, 4, 2, 2)), RNG.normal(size=(1, 2, 2, 2, 1))
    options = {"stride": 1, "dilation": 2, "output_padding": 1}
    check_gradients(lambda *tensors: F.conv_transpose3d(*tensors, **options), x, weight)


def test_an_input_may_lack_a_batch_or_lie_in_any_order():
    x, weight, bias = operands(*CASES[2])
    expected = convolved(x, weight, bias, **CASES[2][-1])
    parameters = sg.tensor(weight), sg.tensor(bias)
    single = F.conv2d(sg.tensor(x[0]), *parameters, **CASES[2][-1])
    np.testing.assert_allclose(single.numpy(), expected[0], 1e-10)
    channels_last = sg.tensor(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).permute(0, 3, 1, 2)
    np.testing.assert_allclose(F.conv2d(channels_last, *parameters, **CASES[2][-1]).numpy(), expected, 1e-10)
    assert F.conv_transpose2d(sg.tensor(x[0]), sg.zeros(3, 1, 2, 2).double()).shape == (1, 8, 7)
    assert F.conv1d(sg.zeros(2, 5), sg.zeros(3, 2, 2)).shape == (3, 4)


def test_an_empty_batch_has_an_empty_result_and_zero_gradients():
    x, weight = sg.zeros(0, 2, 4, 4, requires_grad=True), sg.ones(3, 2, 3, 3, requires_grad=True)
    y = F.conv2d(x, weight, padding=1)
    y.sum().backward()
    assert y.shape == (0, 3, 4, 4)
    assert x.grad.shape == (0, 2, 4, 4)
    assert weight.grad.tolist() == np.zeros((3, 2, 3, 3)).tolist()


def test_half_precision_is_computed_in_float32():
    x, weight, bias = operands(*CASES[1])
    check_half_precision(lambda *tensors: F.conv2d(*tensors, padding=1), x, weight, bias, tolerance=5e-2)


def test_a_convolution_saves_input_and_weight_only():
    x, weight, bias = (leaf(part) for part in operands(*CASES[0]))
    node = F.conv2d(x, weight, bias).grad_fn
    assert node.name() == "ConvolutionBackward0"
    assert node._saved_input.shape == x.shape
    assert not hasattr(node, "_saved_bias")
    assert not hasattr(F.conv2d(x.detach(), weight).grad_fn, "_saved_weight")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x, w: F.conv2d(x[0, 0], w), ShapeError, "wanted 4 dimensions each"),
        (lambda x, w: F.conv2d(x, w, groups=2), ShapeError, "the input needs 4 channels"),
        (lambda x, w: F.conv2d(x, w, sg.zeros(2)), ShapeError, "one for each of 3 output channels"),
        (lambda x, w: F.conv2d(x, w.double()), DtypeError, "input float32 and weight float64"),
        (lambda x, w: F.conv2d(x.to("int64"), w.to("int64")), DtypeError, "floating-point"),
        (lambda x, w: F.conv2d(x, w, stride=0), ArgumentError, "got stride 0; wanted an integer from 1 on"),
        (lambda x, w: F.conv2d(x, w, padding=(1, 2, 3)), ArgumentError, "got padding"),
        (lambda x, w: F.conv2d(x, w, padding="full"), ArgumentError, '"same" and "valid"'),
        (lambda x, w: F.conv2d(x, w, padding="same", stride=2), ArgumentError, "it takes stride 1"),
        (lambda x, w: F.conv2d(x, w, dilation=1.5), TypeError, "got dilation 1.5"),
        (lambda x, w: F.conv2d(x, w, groups=0), ArgumentError, "got groups 0"),
        (lambda x, w: F.conv2d(x, w, dilation=4), ShapeError, "not one window fits"),
        (lambda x, w: F.conv_transpose1d(x, w), ShapeError, "conv_transpose1d: got input"),
        (lambda x, w: F.conv_transpose2d(x, w), ShapeError, "the weight's 3 channels"),
        (lambda x, w: F.conv_transpose2d(x, w[:2], output_padding=1), ArgumentError, "below the stride"),
        (lambda x, w: F.conv_transpose2d(x, w[:2], padding=9), ShapeError, "nothing is left"),
        (lambda x, w: F.conv_transpose2d(x, w[:2], sg.zeros(3)), ShapeError, "one for each of 2 channels"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.zeros(2, 2, 5, 5), sg.zeros(3, 2, 3, 3))
