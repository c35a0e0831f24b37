"""Fourier transforms against NumPy, their gradients against central differences of their parts."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import fft
from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from tests.ops.checks import check_gradients, leaf

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(2, 5, 4)), RNG.normal(size=(2, 5, 4))
OPTIONS = {
    "fft": [{}, {"n": 3}, {"n": 6, "dim": 1}],
    "rfft": [{}, {"n": 3}, {"n": 7, "dim": 1}],
    "irfft": [{}, {"n": 5}, {"n": 3}, {"n": 9, "dim": 1}],
    "fft2": [{}, {"s": (3, 6)}, {"dim": (0, 2)}],
    "rfft2": [{}, {"s": (3, 5)}, {"dim": (0, 1)}],
    "irfft2": [{}, {"s": (3, 5)}, {"dim": (0, 1)}],
    "fftn": [{}, {"s": (3, 6)}, {"dim": (1,)}],
    "rfftn": [{}, {"s": (3, 6)}],
    "irfftn": [{}, {"s": (3, 6)}],
}
OPTIONS |= {"hfft": OPTIONS["irfft"], "ihfft": OPTIONS["rfft"]}
OPTIONS |= {f"i{name}": OPTIONS[name] for name in ("fft", "fft2", "fftn")}
CASES = [(name, options) for name, given in OPTIONS.items() for options in given]


def numpys(name, options):
    """Return NumPy's function with its names for the options."""
    options = dict(options)
    if "s" in options and "dim" not in options:
        options["dim"] = (-2, -1)
    if "dim" in options:
        options["axis" if "n" in options or name.removeprefix("i") in ("fft", "rfft", "hfft") else "axes"] = (
            options.pop("dim")
        )
    return lambda a: getattr(np.fft, name)(a, **options)


def parts(z):
    return sg.view_as_real(z) if z.is_complex() else z


@pytest.mark.parametrize("norm", ["backward", "forward", "ortho"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_a_transform_agrees_with_numpy_and_its_gradients_with_differences(name, options, norm):
    options = options | {"norm": norm}
    transform = getattr(fft, name)
    real = name.startswith(("rfft", "ihfft"))
    got = transform(sg.tensor(X) if real else sg.complex(sg.tensor(X), sg.tensor(Y)), **options)
    np.testing.assert_allclose(got.numpy(), numpys(name, options)(X if real else X + 1j * Y), 1e-10, 1e-12)
    if real:
        check_gradients(lambda x: parts(transform(x, **options)), X[:1])
    else:
        check_gradients(lambda x, y: parts(transform(sg.complex(x, y), **options)), X[:1], Y[:1])


@pytest.mark.parametrize("name", ["fft", "irfft2"])
def test_real_numbers_count_as_complex_ones(name):
    transform = getattr(fft, name)
    np.testing.assert_allclose(transform(sg.tensor(X)).numpy(), getattr(np.fft, name)(X), 1e-10, 1e-12)
    check_gradients(lambda x: parts(transform(x)), X[:1])


def test_second_derivatives_pass_through_a_spectrum():
    def power(x):
        z = fft.rfft(x)
        return fft.irfft(sg.complex(sg.real(z) ** 2, sg.imag(z) ** 3))

    check_gradients(power, X[0, :2])


def test_a_complex_tensor_used_twice_sums_its_gradients():
    def function(x):
        z = fft.fft(x)
        return sg.real(z) * sg.imag(z)

    check_gradients(function, X[0, :2])


def test_a_complex_leaf_accumulates_its_gradient():
    z = sg.complex(sg.tensor(X), sg.tensor(Y)).requires_grad_()
    for _ in range(2):
        (sg.real(z) * 2 + sg.imag(z) * 3).sum().backward()
    np.testing.assert_array_equal(z.grad.numpy(), np.full(X.shape, 4 + 6j))


@pytest.mark.parametrize(
    ("dtype", "wanted"), [("float32", "complex64"), ("bfloat16", "complex64"), ("int64", "complex64")]
)
def test_precision_is_kept(dtype, wanted):
    assert str(fft.fft(sg.ones(4, dtype=dtype)).dtype) == wanted
    assert str(fft.rfft(sg.ones(4, dtype=dtype)).dtype) == wanted
    assert fft.irfft(fft.rfft(sg.ones(4))).dtype == sg.float32
    assert str(fft.fft(sg.ones(4, dtype="float64")).dtype) == "complex128"


def test_parts_of_complex_numbers_go_apart_and_together():
    z = sg.complex(sg.tensor(X), sg.tensor(Y))
    assert sg.view_as_real(z).shape == (2, 5, 4, 2)
    np.testing.assert_array_equal(sg.view_as_complex(sg.view_as_real(z)).numpy(), X + 1j * Y)
    x = sg.tensor(X)
    assert sg.real(x) is x
    check_gradients(lambda a: sg.view_as_real(sg.view_as_complex(a)) ** 2, np.stack([X[0], Y[0]], -1))


def test_frequencies_and_shifts_are_numpys():
    np.testing.assert_allclose(fft.fftfreq(5, 0.5, dtype="float64").numpy(), np.fft.fftfreq(5, 0.5))
    np.testing.assert_allclose(fft.rfftfreq(6).numpy(), np.fft.rfftfreq(6), 1e-6)
    for dim in (None, 1, (0, 2)):
        np.testing.assert_array_equal(fft.fftshift(sg.tensor(X), dim).numpy(), np.fft.fftshift(X, dim))
        np.testing.assert_array_equal(fft.ifftshift(sg.tensor(X), dim).numpy(), np.fft.ifftshift(X, dim))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: fft.fft(x, norm="unit"), ArgumentError, "got norm 'unit'"),
        (lambda x: fft.fft(x, 0), ShapeError, "there must be data points"),
        (lambda x: fft.fft2(x, (1, 2, 3)), ArgumentError, "give one for each"),
        (lambda x: fft.fft(sg.tensor(1.0)), ShapeError, "0-d tensor"),
        (lambda x: fft.rfft(fft.fft(x)), DtypeError, "expects a real input tensor, but got complex64"),
        (lambda x: fft.irfft(x[:, :1]), ShapeError, "stands for 0 data points"),
        (lambda x: sg.complex(x, x.double()), DtypeError, "wanted float32 twice"),
        (lambda x: sg.complex(x, x[:, :2]), ShapeError, "sizes must match"),
        (lambda x: sg.imag(x), DtypeError, "complex dtypes"),
        (lambda x: sg.view_as_complex(x), ShapeError, "last dimension of size 2"),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(sg.ones(2, 3))


def test_transforms_save_nothing():
    saved = []
    with sg.autograd.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        fft.irfft(fft.rfft(leaf(X)))
    assert saved == []
