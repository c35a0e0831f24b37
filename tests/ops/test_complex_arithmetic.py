"""Arithmetic and elementwise functions of complex tensors: values, dtypes, gradients of both orders, and refusals."""

import re

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd import gradcheck, gradgradcheck
from spillgrad.errors import ArgumentError, ComplexDtypeError, DtypeError, GradcheckError
from spillgrad.nn import functional as F

Z = np.array([[0.3 + 0.4j, -1.2 + 0.5j], [0.7 - 1.1j, -0.4 - 0.8j]])
W = np.array([[1.1 - 0.7j, 0.2 + 2j], [-0.9 + 0.3j, 0.6 + 0.1j]])
X = np.array([[0.5, -1.5], [2.0, 0.25]])
MASK = np.array([[True, False], [False, True]])

# In these, z and w are complex, and x is real. Each is checked with NumPy under the names of `sg` and of NumPy.
EXPRESSIONS = """
z + w;  z + x;  x + z;  z + 2;  2j + z;  x + 1j;  z - w;  1 - z;  x - z;  z * w;  z * x;  x * z;  z * 2j;  x * 2j
z / w;  z / x;  x / z;  z / 2;  1 / z;  1j / x;  z ** 2;  z ** 3;  z ** -1;  z ** 0.5;  z ** 2.5;  z ** w;  2 ** z
z ** (1 + 2j);  (x * x) ** w;  -z;  abs(z);  xp.abs(z);  xp.exp(z);  xp.expm1(z);  xp.log(z);  xp.log1p(z)
xp.log2(z);  xp.log10(z);  xp.sqrt(z);  xp.square(z);  xp.reciprocal(z);  xp.sin(z);  xp.cos(z);  xp.tan(z)
xp.sinh(z);  xp.cosh(z);  xp.tanh(z);  xp.arcsin(z);  xp.arccos(z);  xp.arctan(z);  xp.arcsinh(z);  xp.arccosh(z)
xp.arctanh(z);  xp.conj(z);  z * xp.conj(z);  xp.where(m, z, w);  xp.where(m, z, x);  xp.where(m, x, 1j);  z * z * x
xp.sinc(z);  (-2.0) ** z;  (-2) ** z;  2j ** z;  z ** -2.5;  z ** 1;  z ** 0;  -2.0 / z;  xp.where(m, z, -2.0)
"""
CASES = [case.strip() for line in EXPRESSIONS.split("\n") for case in line.split(";") if case.strip()]
FUNCTIONS = [
    ("sgn", lambda z, w: sg.sgn(z), lambda z, w: z / abs(z)),
    ("angle", lambda z, w: sg.angle(z), lambda z, w: np.angle(z)),
    ("rsqrt", lambda z, w: sg.rsqrt(z), lambda z, w: 1 / np.sqrt(z)),
    ("exp2", lambda z, w: sg.exp2(z), lambda z, w: 2**z),
    ("sigmoid", lambda z, w: sg.sigmoid(z), lambda z, w: 1 / (1 + np.exp(-z))),
    ("silu", lambda z, w: F.silu(z), lambda z, w: z / (1 + np.exp(-z))),
    ("lerp", lambda z, w: sg.lerp(z, w, w), lambda z, w: z + w * (w - z)),
    ("lerp by a number", lambda z, w: sg.lerp(z, w, 0.3), lambda z, w: z + 0.3 * (w - z)),
    ("addcmul", lambda z, w: sg.addcmul(z, w, z, value=2j), lambda z, w: z + 2j * w * z),
    ("addcdiv", lambda z, w: sg.addcdiv(z, w, z, value=2), lambda z, w: z + 2 * w / z),
    ("add with alpha", lambda z, w: sg.add(z, w, alpha=2j), lambda z, w: z + 2j * w),
    ("rsub", lambda z, w: sg.rsub(z, w), lambda z, w: w - z),
    ("softsign", lambda z, w: F.softsign(z), lambda z, w: z / (1 + abs(z))),
    ("logaddexp", lambda z, w: sg.logaddexp(z, w), lambda z, w: np.log(np.exp(z) + np.exp(w))),
    ("logcumsumexp", lambda z, w: sg.logcumsumexp(z, 1), lambda z, w: np.log(np.cumsum(np.exp(z), 1))),
    ("nan_to_num", lambda z, w: sg.nan_to_num(z), lambda z, w: z),
    (
        "rms_norm",
        lambda z, w: F.rms_norm(z, (2,), w[0], 0.1),
        lambda z, w: z / np.sqrt((z * z).mean(1, keepdims=True) + 0.1) * w[0],
    ),
    ("a fused function", lambda z, w: sg.fuse(lambda a, b, c: a * b + c)(z, w, 2.5), lambda z, w: z * w + 2.5),
    ("poisson_nll_loss", lambda z, w: F.poisson_nll_loss(z, w), lambda z, w: (np.exp(z) - w * z).mean()),
    (
        "gaussian_nll_loss",
        lambda z, w: F.gaussian_nll_loss(z, w, sg.tensor(X * X)),
        lambda z, w: ((z - w) ** 2 / X**2 + np.log(X**2)).mean() / 2,
    ),
    ("soft_margin_loss", lambda z, w: F.soft_margin_loss(z, w), lambda z, w: np.log1p(np.exp(-z * w)).mean()),
    ("adaptive_avg_pool1d", lambda z, w: F.adaptive_avg_pool1d(z, 1), lambda z, w: z.mean(1, keepdims=True)),
]


def evaluated(case, xp, z, w, x, m):
    return eval(case, {"xp": xp, "z": z, "w": w, "x": x, "m": m, "abs": abs})


def inputs(case):
    """The tensors that a case uses by name, and the case as a function of them."""
    values = {"z": Z, "w": W, "x": X}
    used = [name for name in values if re.search(rf"\b{name}\b", case)]
    tensors = [sg.tensor(values[name]).requires_grad_() for name in used]
    return tensors, lambda *given: evaluated(
        case, sg, **{**dict.fromkeys(values), **dict(zip(used, given, strict=True))}, m=sg.tensor(MASK)
    )


@pytest.mark.parametrize("case", CASES)
def test_an_expression_has_numpys_values_and_dtypes(case):
    tensors, function = inputs(case)
    wanted = evaluated(case, np, Z, W, X, MASK)
    result = function(*tensors)
    assert result.dtype == wanted.dtype
    np.testing.assert_allclose(result.detach().numpy(), wanted, 1e-12)
    narrow = function(*[t.detach().to("complex64" if t.is_complex() else "float32") for t in tensors])
    assert narrow.dtype == ("float32" if wanted.dtype == np.float64 else "complex64")
    np.testing.assert_allclose(narrow.numpy(), wanted, 2e-5)


@pytest.mark.parametrize("case", CASES)
def test_an_expression_has_the_gradients_of_its_real_and_imaginary_parts(case):
    tensors, function = inputs(case)
    assert gradcheck(function, tensors)
    assert gradgradcheck(function, tensors)


@pytest.mark.parametrize(("name", "function", "formula"), FUNCTIONS, ids=[name for name, *_ in FUNCTIONS])
def test_a_function_has_its_formula_s_values_and_gradients(name, function, formula):
    z, w = sg.tensor(Z).requires_grad_(), sg.tensor(W).requires_grad_()
    np.testing.assert_allclose(function(z, w).detach().numpy(), formula(Z, W), 1e-12)
    assert gradcheck(function, [z, w])
    assert gradgradcheck(function, [z, w])


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("complex64", "float32", "complex64"), ("complex64", "float64", "complex128"),
        ("complex64", "complex128", "complex128"), ("complex64", "int64", "complex64"),
        ("complex64", "bool", "complex64"), ("complex64", "float16", "complex64"),
        ("complex128", "bfloat16", "complex128"), ("float32", 1j, "complex64"), ("float64", 1j, "complex128"),
        ("float16", 1j, "complex64"), ("bfloat16", 1j, "complex64"), ("int64", 1j, "complex64"),
        ("bool", 1j, "complex64"), ("complex64", 1j, "complex64"), ("complex128", 1j, "complex128"),
        ("complex64", 1.5, "complex64"), ("complex64", np.complex128(1j), "complex64"),
    ],
)  # fmt: skip
def test_dtypes_promote_as_in_pytorch(first, second, wanted):
    x = sg.ones(2, dtype=first)
    other = sg.ones(2, dtype=second) if isinstance(second, str) else second
    for result in (x + other, other * x, sg.where(sg.tensor([True, False]), x, other)):
        assert result.dtype == wanted
    assert sg.result_type(x, other) == wanted


@pytest.mark.parametrize(
    ("tensor", "scalar", "wanted"),
    [
        ("float32", "complex128", "complex64"), ("float64", "complex64", "complex128"),
        ("int64", "complex128", "complex128"), ("complex64", "float64", "complex64"),
        ("complex64", "complex128", "complex64"), ("bool", "complex64", "complex64"),
    ],
)  # fmt: skip
def test_a_tensor_without_dimensions_widens_no_tensor_with_dimensions(tensor, scalar, wanted):
    assert (sg.ones(2, dtype=tensor) * sg.ones((), dtype=scalar)).dtype == wanted


def test_a_real_operand_gets_the_real_part_of_the_gradient():
    x = sg.tensor(X).requires_grad_()
    (x * sg.tensor(Z)).backward(sg.tensor(W))
    assert x.grad.dtype == "float64"
    np.testing.assert_allclose(x.grad.numpy(), (W * Z.conj()).real, 1e-15)


def test_gradients_of_a_tensor_used_twice_add_up():
    z = sg.tensor(Z).requires_grad_()
    (z * z + z.conj() * z + 2 * z).backward(sg.ones(2, 2, dtype="complex128"))
    np.testing.assert_allclose(z.grad.numpy(), (2 * Z).conj() + (Z + Z) + 2, 1e-14)
    z.sin().backward(sg.ones(2, 2, dtype="complex128"))  # a second backward adds to .grad
    np.testing.assert_allclose(z.grad.numpy(), (2 * Z).conj() + 2 * Z + 2 + np.cos(Z).conj(), 1e-14)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("base", [2.7, 3, 2.7j - 1, -2.7])
def test_a_recorded_gradient_of_a_power_of_a_number_is_as_exact_as_the_tensor(base, dtype):
    if isinstance(base, complex) or base < 0:
        dtype = "complex128"
    exponent = sg.tensor([1.5, -3.0], dtype=dtype, requires_grad=True)
    (gradient,) = sg.autograd.grad(base**exponent, exponent, sg.ones(2, dtype=dtype), create_graph=True)
    wanted = np.conj(base ** exponent.detach().numpy() * np.log(np.array(base, dtype)))
    np.testing.assert_allclose(gradient.detach().numpy(), wanted, 1e-14)


def test_the_gradients_of_abs_sgn_and_angle_are_zero_at_zero():
    for function in (sg.abs, sg.sgn, sg.angle):
        z = sg.zeros(2, dtype="complex64").requires_grad_()
        function(z).backward(sg.ones(2, dtype=function(z).dtype))
        assert z.grad.tolist() == [0, 0]


def test_a_power_of_zero_has_the_gradients_that_it_has_in_pytorch():
    z = sg.zeros(3, dtype="complex128").requires_grad_()
    exponent = sg.tensor([0j, 1, 2.5]).to("complex128").requires_grad_()
    (z**exponent).backward(sg.ones(3, dtype="complex128"))
    assert z.grad.tolist() == [0, 1, 0]
    assert exponent.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("order", [3, 1.5, 0.5, -1, -2])
def test_the_gradient_of_a_norm_is_zero_at_zero(order, dtype):
    for values, expected in (([0, 0], [0, 0]), ([0, 3 - 4j], [0, (0.6 - 0.8j) * (order > 0)])):
        z = sg.tensor(values, dtype=dtype, requires_grad=True)
        sg.linalg.vector_norm(z, order).backward()
        np.testing.assert_allclose(z.grad.numpy(), np.array(expected), 1e-6)


def test_an_absolute_value_and_a_quotient_do_not_overflow_on_the_way():
    z = sg.tensor([3e200 + 4e200j, 3e-200 + 4e-200j], dtype="complex128")
    np.testing.assert_allclose(z.abs().numpy(), [5e200, 5e-200], 1e-15)
    np.testing.assert_allclose((z / z).numpy(), [1, 1], 1e-15)
    narrow = sg.tensor([3e38 + 1e38j], dtype="complex64")
    assert (narrow / narrow).tolist() == [1]


def test_complex_numbers_compare_equal_or_not():
    z = sg.tensor([1 + 2j, float("nan"), 3j])
    assert (z == 1 + 2j).tolist() == [True, False, False]
    assert (z != z).tolist() == [False, True, False]
    assert sg.equal(z[:1], z[:1])
    w = sg.tensor([1 + 2j, 1 + 2.1j])
    assert sg.isclose(w, w + 1e-9j).tolist() == [True, True]
    assert sg.isclose(w, sg.tensor([1 + 2j, 1 + 2j])).tolist() == [True, False]
    assert sg.allclose(z, z, equal_nan=True)


def test_infinite_and_undefined_numbers_are_found_in_either_part():
    inf, nan = float("inf"), float("nan")
    numbers = [complex(1e308, 1e308), complex(inf, 0), complex(0, -inf), complex(nan, inf), complex(0, nan)]
    z = sg.tensor(numbers, dtype="complex128")
    assert sg.isinf(z).tolist() == [False, True, True, True, False]
    assert sg.isnan(z).tolist() == [False, False, False, True, True]
    assert sg.isfinite(z).tolist() == [True, False, False, False, False]


def test_in_place_and_into_out():
    z = sg.tensor(Z)
    memory = z.data_ptr()
    z += 1j
    z *= sg.tensor(W)
    z.sub_(2).exp_()
    assert z.data_ptr() == memory
    np.testing.assert_allclose(z.numpy(), np.exp((Z + 1j) * W - 2), 1e-13)
    out = sg.empty(2, 2, dtype="complex128")
    assert sg.mul(z, z, out=out) is out
    np.testing.assert_allclose(out.numpy(), z.numpy() ** 2, 1e-13)
    sizes = sg.empty(2, 2, dtype="float64")
    np.testing.assert_allclose(sg.abs(z, out=sizes).numpy(), np.abs(z.numpy()), 1e-15)


def test_a_recorded_change_in_place_has_its_gradient():
    def changed(z, w):
        y = z * 1
        y.mul_(w).add_(2j)
        y[0].exp_()
        return y

    assert gradcheck(changed, [sg.tensor(Z).requires_grad_(), sg.tensor(W).requires_grad_()])


def test_large_and_strided_tensors_have_gradients():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((300, 400)) + 1j * rng.standard_normal((300, 400))
    z = sg.tensor(values).requires_grad_()
    (z.t()[::2] * z.t()[1::2]).backward(sg.ones(200, 300, dtype="complex128"))
    wanted = values.reshape(300, 200, 2)[:, :, ::-1].reshape(300, 400).conj()
    np.testing.assert_allclose(z.grad.numpy(), wanted, 1e-14)


def test_saved_complex_tensors_come_back_from_disk(tmp_path):
    z = sg.tensor(np.tile(Z, (500, 20))).requires_grad_()
    with sg.save_on_disk(tmp_path, ram_budget=0, min_bytes=0) as spill:
        (z.sin() * z.exp()).abs().sum().backward()
    assert spill.stats().read_bytes > 0
    wanted = z.grad.clone()
    z.grad = None
    (z.sin() * z.exp()).abs().sum().backward()
    assert sg.equal(z.grad, wanted)


z32 = sg.tensor(Z, dtype="complex64")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.floor(z32), ComplexDtypeError, "\"floor\" not implemented for 'ComplexFloat'"),
        (lambda: z32 < 1, ComplexDtypeError, "\"lt\" not implemented for 'ComplexFloat'"),
        (lambda: z32 // 2, ComplexDtypeError, "floor_divide: got complex64"),
        (lambda: z32 % 2, NotImplementedError, "remainder: got complex64"),
        (lambda: sg.sign(z32), NotImplementedError, "use sgn"),
        (lambda: sg.maximum(z32, z32), RuntimeError, "maximum: got complex64"),
        (lambda: z32.clamp(0, 1), NotImplementedError, "clamp: got complex64; it is not supported for complex"),
        (lambda: F.relu(z32), NotImplementedError, "relu: got complex64"),
        (lambda: sg.deg2rad(z32), RuntimeError, "deg2rad: got complex64; it is not supported for complex"),
        (lambda: sg.atan2(z32.to("complex128"), z32), NotImplementedError, "'ComplexDouble'"),
        (lambda: z32.clone().abs_(), DtypeError, "In-place abs is not supported for complex tensors"),
        (lambda: sg.ones(2).add_(1j), DtypeError, "result type complex64 can't be cast to the tensor's float32"),
        (lambda: sg.exp(z32, out=sg.empty(2, 2)), DtypeError, "result type complex64 can't be cast"),
        (lambda: sg.add(sg.ones(2), 1, alpha=2j), ArgumentError, "alpha must not be a complex number"),
    ],
)
def test_what_complex_numbers_cannot_do_says_so(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Conjugating(sg.autograd.Function):
    """The identity, with a gradient that is wrong in its imaginary part only."""

    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, g):
        return g.conj()


def test_gradcheck_sees_a_wrong_imaginary_part():
    z = sg.tensor(Z).requires_grad_()
    for fast_mode in (False, True):
        with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
            gradcheck(Conjugating.apply, [z], fast_mode=fast_mode)
        assert gradcheck(lambda z: z * z, [z], fast_mode=fast_mode, check_batched_grad=True)


def test_the_sign_of_zero_is_zero_without_a_sign():
    zeros = sg.tensor([complex(-0.0, 0.0), complex(0.0, -0.0), complex(-0.0, -0.0)])
    signs = sg.sgn(zeros).numpy()
    assert not np.signbit(signs.real).any()
    assert not np.signbit(signs.imag).any()
