"""Every row of the elementwise table through its tensor function: a new row is tested by existing."""

import itertools
import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DtypeError, GraphError, OperandError, SavedTensorError, ShapeError
from spillgrad.ops import (
    activations,
    arithmetic,
    clamp_where,
    comparison,
    elementwise,
    logic,
    special,
    trigonometry,
)
from spillgrad_kernels.memory.buffers import pool
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import parameters
from tests.ops.checks import check_gradients, check_precision, leaf

NUMBERS = {
    "negative_slope": 0.1, "alpha": 1.5, "beta": 2.0, "threshold": 3.0, "value": -0.7, "min_val": -0.5, "max_val": 0.5,
    "lambd": 0.5, "nan": 0.5, "posinf": 2.0, "neginf": -2.0, "n": 2,
}  # fmt: skip
POSITIVE = {"log", "log2", "log10", "sqrt", "rsqrt", "pow", "xlogy", "logit", "binary_cross_entropy"}
# Rows whose domain, or what is worth testing, lies elsewhere: values from 0.15 to 0.9 of either sign go there.
ELSEWHERE = {
    "acosh": lambda a: np.abs(a) + 1.25, "lgamma": lambda a: a + 1.25, "digamma": lambda a: a + 1.5,
    "polygamma": lambda a: a + 2, "hardsigmoid": lambda a: 6 * a, "hardswish": lambda a: 6 * a, "sinc": lambda a: 2 * a,
    "threshold": lambda a: 6 * a,
}  # fmt: skip
# Rows reached by an argument of another function.
VARIANTS = {
    "gelu_tanh": lambda x, **options: activations.gelu(x, "tanh", **options),
    "cube": lambda x, **options: arithmetic.pow(x, 3, **options),
    "prelu_kernel": lambda x, weight, **options: elementwise.call("prelu_kernel", x, weight, **options),
    "binary_cross_entropy": lambda x, y, **options: elementwise.call("binary_cross_entropy", x, y, **options),
    "polygamma": lambda x, n, **options: special.polygamma(n, x, **options),
}
# What rows that NumPy has under another name, or not at all, compute.
NUMPY = {
    "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "rsqrt": lambda a: a**-0.5,
    "cube": lambda a: a**3, "lerp": lambda a, b, w: a + w * (b - a), "erf": np.vectorize(math.erf, otypes=[float]),
    "normal_cdf": lambda a: (1 + np.vectorize(math.erf, otypes=[float])(a / math.sqrt(2))) / 2,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "silu": lambda a: a / (1 + np.exp(-a)), "clamp": np.clip,
    "relu": lambda a: np.maximum(a, 0), "leaky_relu": lambda a: np.where(a > 0, a, 0.1 * a),
    "elu": lambda a: np.where(a > 0, a, 1.5 * np.expm1(a)), "softplus": lambda a: np.log1p(np.exp(2 * a)) / 2,
    "gelu": lambda a: a * (1 + np.vectorize(math.erf, otypes=[float])(a / math.sqrt(2))) / 2,
    "gelu_tanh": lambda a: a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))) / 2,
    "celu": lambda a: np.where(a > 0, a, 1.5 * np.expm1(a / 1.5)), "frac": lambda a: np.modf(a)[0],
    "selu": lambda a: 1.0507009873554805 * np.where(a > 0, a, 1.6732632423543772 * np.expm1(a)),
    "prelu_kernel": lambda a, w: np.where(a > 0, a, w * a), "threshold": lambda a: np.where(a > 3, a, -0.7),
    "hardtanh": lambda a: a.clip(-0.5, 0.5), "hardsigmoid": lambda a: (a / 6 + 0.5).clip(0, 1),
    "hardswish": lambda a: a * (a / 6 + 0.5).clip(0, 1), "hardshrink": lambda a: np.where(np.abs(a) > 0.5, a, 0),
    "softshrink": lambda a: np.sign(a) * np.maximum(np.abs(a) - 0.5, 0), "softsign": lambda a: a / (1 + np.abs(a)),
    "log_sigmoid": lambda a: -np.log1p(np.exp(-a)), "mish": lambda a: a * np.tanh(np.log1p(np.exp(a))),
    "logit": lambda a: np.log(a / (1 - a)), "xlogy": lambda a, b: a * np.log(b),
    "xlog1py": lambda a, b: a * np.log1p(b),
    "binary_cross_entropy": lambda a, b: -b * np.log(a) - (1 - b) * np.log1p(-a),
    "erfc": np.vectorize(math.erfc, otypes=[float]), "lgamma": np.vectorize(math.lgamma, otypes=[float]),
}  # fmt: skip
MODULES = (arithmetic, trigonometry, comparison, clamp_where, logic, special, activations)
DIFFERENTIABLE = [name for name, row in ROWS.items() if row.derivatives]
SEVERAL = [name for name in ROWS if sum(p not in NUMBERS for p in parameters(ROWS[name].forward)) > 1]


def form_of(name):
    """What the code that loads and stores depends on, besides dtypes and layouts."""
    return [(p in NUMBERS, p == "condition") for p in parameters(ROWS[name].forward)], ROWS[name].result


# The first row of each form. The code around a formula is made for its form, and a loop takes a tenth of a second to
# compile: in `make test`, what tests that code takes these rows.
FIRST = {
    name for name in ROWS if form_of(name) not in [form_of(other) for other in itertools.takewhile(name.__ne__, ROWS)]
}
# Rows whose derivative is computed from the result, which is rounded to the dtype.
FROM_RESULT = {n for n, row in ROWS.items() if any("result" in parameters(d) for d in row.derivatives.values())}


def mostly_exhaustive(names, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.exhaustive) for name in names]


def read_only(size):
    array = np.ones(size, np.float32)
    array.flags.writeable = False
    return sg.from_numpy(array)


def function_of(name):
    """The tensor function of a row, its numbers bound: what is left takes tensors."""
    function = VARIANTS.get(name) or next(getattr(m, name) for m in MODULES if hasattr(m, name))
    numbers = {p: v for p, v in NUMBERS.items() if name in ROWS and p in parameters(ROWS[name].forward)}
    return (lambda *tensors, **options: function(*tensors, **numbers, **options)) if numbers else function


def oracle_of(name):
    """The row's formula on NumPy arrays."""
    names = parameters(ROWS[name].forward)

    def oracle(*arrays):
        given = iter(arrays)
        with np.errstate(all="ignore"):
            return np.asarray(ROWS[name].forward(*(NUMBERS[p] if p in NUMBERS else next(given) for p in names)))

    return oracle


def values_of(name, *shapes, seed=0):
    """Arrays off every kink (0, halves, whole numbers), exact in bfloat16; one shape for all operands, or one each."""
    rng = np.random.default_rng(seed)
    names = [p for p in parameters(ROWS[name].forward) if p not in NUMBERS]
    arrays = []
    for operand, shape in zip(names, shapes if len(shapes) > 1 else shapes * len(names), strict=True):
        if operand == "condition":
            arrays.append(rng.random(shape) > 0.5)
            continue
        sizes = np.where(rng.random(shape) < 0.5, rng.uniform(0.15, 0.45, shape), rng.uniform(0.55, 0.9, shape))
        signs = 1.0 if name in POSITIVE else np.where(rng.random(shape) < 0.5, -1.0, 1.0)
        lifted = {"min": -1.2, "max": 0.6}.get(operand, 0.0)  # clamp's bounds, mostly on their sides
        values = ELSEWHERE.get(name, np.positive)(sizes * signs * (0.6 if lifted else 1) + lifted)
        arrays.append(np.asarray(values, sg.bfloat16).astype(np.float64))
    return arrays


def with_floats_only(name, arrays):
    """Bind conditions, which have no gradient; return the function of the other operands, and those."""
    function = function_of(name)
    if ROWS[name].forward.__code__.co_varnames[0] != "condition":
        return function, arrays
    return lambda *rest: function(sg.tensor(arrays[0]), *rest), arrays[1:]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_agrees_with_its_numpy_formula(name):
    arrays = values_of(name, (3, 4))
    got, wanted = function_of(name)(*map(sg.tensor, arrays)), oracle_of(name)(*arrays)
    assert got.shape == wanted.shape
    assert str(got.dtype) == ("bool" if ROWS[name].result == "bool" else "float64")
    np.testing.assert_allclose(got.numpy(), wanted, 1e-13, 1e-13)


@pytest.mark.parametrize("name", [name for name in ROWS if name in NUMPY or hasattr(np, name)])
def test_a_formula_is_the_function_of_its_name(name):
    arrays = values_of(name, (3, 4))
    wanted = (NUMPY.get(name) or getattr(np, name))(*arrays)
    np.testing.assert_allclose(function_of(name)(*map(sg.tensor, arrays)).numpy(), wanted, 1e-13, 1e-13)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_takes_any_strides_and_no_elements(name):
    function, oracle = function_of(name), oracle_of(name)
    arrays = values_of(name, (4, 6))
    views = [sg.tensor(a)[::-1, ::2].T for a in arrays]
    np.testing.assert_allclose(function(*views).numpy(), oracle(*(a[::-1, ::2].T for a in arrays)), 1e-13, 1e-13)
    empty = values_of(name, (0, 3))
    got = function(*map(sg.tensor, empty))
    assert got.shape == oracle(*empty).shape == (0, 3)


@pytest.mark.parametrize("name", mostly_exhaustive(ROWS, FIRST))
def test_a_row_takes_no_dimensions(name):
    arrays = values_of(name, ())
    got = function_of(name)(*map(sg.tensor, arrays))
    assert got.shape == ()
    np.testing.assert_allclose(got.numpy(), oracle_of(name)(*arrays), 1e-13, 1e-13)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_writes_into_out_whatever_its_strides_and_dtype(name):
    operands = list(map(sg.tensor, values_of(name, (3, 4))))
    wanted = function_of(name)(*operands)
    wider = sg.float64 if wanted.dtype == sg.bool else wanted.dtype
    for out in (sg.empty_like(wanted), sg.empty(4, 6, dtype=wider)[::-1, ::2].T, sg.empty(3, 4, dtype=sg.float32)):
        assert function_of(name)(*operands, out=out) is out
        assert out._version == 1
        assert sg.equal(out, wanted.to(out.dtype))


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name].result != "bool" and name != "where"])
def test_out_may_be_an_operand_or_overlap_one(name):
    arrays = values_of(name, (5, 4))
    for position in range(len(arrays)):
        operands = [sg.tensor(a) for a in arrays]
        wanted = function_of(name)(*operands)
        function_of(name)(*operands, out=operands[position])
        assert sg.equal(operands[position], wanted)
        shifted = [sg.tensor(a)[:-1] for a in arrays]
        memory = sg.tensor(arrays[position])
        shifted[position] = memory[:-1]
        wanted = function_of(name)(*shifted)
        function_of(name)(*shifted, out=memory[1:])
        assert sg.equal(memory[1:], wanted)


def test_out_works_for_what_is_made_of_several_operations():
    x, y = sg.tensor([1.5, -2.5]), sg.tensor([2.0, 4.0])
    for function in (
        lambda **o: sg.add(x, y, alpha=3, **o), lambda **o: sg.sub(x, y, alpha=3, **o),
        lambda **o: sg.rsub(x, y, **o), lambda **o: sg.addcmul(x, y, y, value=2, **o),
        lambda **o: sg.addcdiv(x, y, y, **o), lambda **o: sg.div(x, y, rounding_mode="trunc", **o),
        lambda **o: sg.div(x, y, rounding_mode="floor", **o), lambda **o: sg.round(x, decimals=1, **o),
        lambda **o: sg.clamp_min(x, 0, **o), lambda **o: sg.clamp_max(x, 0, **o), lambda **o: sg.pow(x, 2, **o),
        lambda **o: sg.logical_and(x, y, **o), lambda **o: sg.logical_not(x, **o),
    ):  # fmt: skip
        out = sg.empty(2)
        assert function(out=out) is out
        assert sg.equal(out, function().to(sg.float32))
    bits = sg.tensor([1, 6])
    for function in (lambda **o: sg.bitwise_xor(bits, 3, **o), lambda **o: sg.bitwise_not(bits, **o)):
        assert sg.equal(function(out=sg.empty(2, dtype=sg.int64)), function())
    assert sg.equal(sg.add(bits, bits, out=bits), sg.tensor([2, 12]))


def test_a_result_goes_straight_into_a_dense_out_of_its_dtype():
    x, out = sg.ones(1 << 16), sg.empty(1 << 16)
    sg.exp(x, out=out)
    before = pool.stats().peak_live_bytes, pool.stats().live_bytes
    sg.exp(x, out=out)
    sg.exp(x, out=x)
    assert (pool.stats().peak_live_bytes, pool.stats().live_bytes) == before


def test_a_change_by_out_is_noticed_by_what_saved_the_tensor():
    x, out = leaf(np.ones(2)), sg.ones(2, dtype=sg.float64)
    product = x * out
    sg.exp(sg.ones(2, dtype=sg.float64), out=out)
    with pytest.raises(SavedTensorError, match="modified"):
        product.sum().backward()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_both_derivatives_of_a_row_agree_with_differences(name):
    function, arrays = with_floats_only(name, values_of(name, (2, 3)))
    check_gradients(function, *arrays)


@pytest.mark.parametrize("name", mostly_exhaustive(SEVERAL, FIRST | FROM_RESULT))
def test_every_operand_of_a_row_broadcasts(name):
    function, oracle = function_of(name), oracle_of(name)
    count = len(values_of(name, ()))
    for position in range(count):
        for small in [(1,), (3, 1), ()]:
            shapes = [(3, 2)] * count
            shapes[position] = small
            arrays = values_of(name, *shapes)
            np.testing.assert_allclose(function(*map(sg.tensor, arrays)).numpy(), oracle(*arrays), 1e-13, 1e-13)
            if ROWS[name].derivatives:
                bound, floats = with_floats_only(name, arrays)
                check_gradients(bound, *floats, second=False)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_float32_agrees_with_float64(name):
    function, arrays = with_floats_only(name, values_of(name, (3, 4)))
    check_precision(function, *arrays, tolerances={"float32": 1e-4})


@pytest.mark.parametrize("name", mostly_exhaustive(DIFFERENTIABLE, FIRST | FROM_RESULT))
def test_half_precision_agrees_with_float64(name):
    function, arrays = with_floats_only(name, values_of(name, (3, 4)))
    check_precision(function, *arrays, tolerances={"bfloat16": 2e-2})
    half = function(*(sg.tensor(a).to("float16") for a in arrays))
    assert half.dtype == sg.float16
    exact = function(*map(sg.tensor, arrays)).numpy()
    np.testing.assert_allclose(half.numpy().astype(np.float64), exact, 2e-3, 2e-3)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_the_gradient_of_no_elements_has_none(name):
    function, arrays = with_floats_only(name, values_of(name, (0, 3)))
    leaves = [leaf(a) for a in arrays]
    function(*leaves).sum().backward()
    assert [x.grad.shape for x in leaves] == [(0, 3)] * len(leaves)


@pytest.mark.parametrize("name", [name for name in ROWS if not ROWS[name].derivatives])
def test_a_comparison_has_no_gradient(name):
    result = function_of(name)(*map(leaf, values_of(name, (2,))))
    assert result.dtype == sg.bool
    assert not result.requires_grad


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.result == "float"])
def test_integers_and_bool_are_computed_in_the_default_float(name):
    count = sum(p not in NUMBERS for p in parameters(ROWS[name].forward))
    for dtype in ("uint8", "bool"):
        ones = [sg.tensor([1, 0, 1], dtype=dtype)] * count
        got = function_of(name)(*ones)
        assert got.dtype == sg.float32
        np.testing.assert_array_equal(got.numpy(), function_of(name)(*(x.float() for x in ones)).numpy())


INTEGER_ORACLES = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs, "square": np.square,
    "remainder": np.remainder, "floor_divide": np.floor_divide, "maximum": np.maximum, "minimum": np.minimum,
    "floor": np.positive, "ceil": np.positive, "round": np.positive, "trunc": np.positive, "sign": np.sign,
    "relu": lambda a: np.maximum(a, 0), "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_not": np.invert, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor, "logical_not": np.logical_not,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", INTEGER_ORACLES)
def test_integers_agree_with_numpy_and_wrap_around(name, dtype):
    oracle = INTEGER_ORACLES[name]
    limits = np.iinfo(dtype)
    values = np.array([limits.max, limits.max - 1, 7, 5, limits.min, 3], dtype)
    others = np.array([limits.max, 2, 3, 5, 1, limits.max], dtype)
    operands = (values, others)[: getattr(oracle, "nin", 1)]
    got, wanted = function_of(name)(*map(sg.tensor, operands)), oracle(*operands)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.numpy(), wanted)


def test_integer_division_is_exact_beyond_what_floats_hold():
    big = 2**62 + 1
    for mode, wanted in (("floor", -(big // 3) - 1), ("trunc", -(big // 3))):
        assert arithmetic.div(sg.tensor([-big]), 3, rounding_mode=mode).tolist() == [wanted]
    assert (sg.tensor([big]) % 10).tolist() == [big % 10]


@pytest.mark.parametrize(
    ("rounding", "wanted"), [("floor", [3, -4, -4, 3]), ("trunc", [3, -3, -3, 3]), (None, [3.5, -3.5, -3.5, 3.5])]
)
def test_division_rounds_as_asked(rounding, wanted):
    for dtype in ("int32", "float64"):
        x, y = sg.tensor([7, -7, 7, -7], dtype=dtype), sg.tensor([2, 2, -2, -2], dtype=dtype)
        got = sg.div(x, y, rounding_mode=rounding)
        assert got.tolist() == wanted
        assert got.dtype == (sg.float32 if rounding is None and dtype == "int32" else x.dtype)


def test_floor_division_rounds_once():
    """floor(1 / 0.1) is 10; the largest whole number whose product with 0.1 is at most 1 is 9."""
    for dtype in ("float32", "float64"):
        assert (sg.tensor([1.0, 6.0, -1.0, math.inf], dtype=dtype) // 0.1).tolist()[:3] == [9, 59, -10]
        assert sg.floor_divide(sg.tensor([1.0, -1.0], dtype=dtype), 0.0).tolist() == [math.inf, -math.inf]


def test_remainder_has_the_divisors_sign():
    got = sg.remainder(sg.tensor([5.0, -5.0, 5.0, -5.0]), sg.tensor([3.0, 3.0, -3.0, -3.0]))
    assert got.tolist() == [2, 1, -1, -2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sign_of_nan_and_of_0_counts(dtype):
    values = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1.5, -1.5], dtype)
    x = sg.tensor(values)
    assert sg.signbit(x).tolist() == [False, True] * 4
    assert np.signbit(sg.copysign(sg.ones_like(x), x).numpy()).tolist() == [False, True] * 4
    assert np.signbit(sg.copysign(x, sg.tensor(-0.0, dtype=dtype)).numpy()).all()


def test_special_values_are_pytorchs():
    nan, inf = math.nan, math.inf
    x = sg.tensor([nan, inf, -inf, -0.0, 2.0])
    assert sg.sign(x).tolist() == [0, 1, -1, 0, 1]
    assert sg.isnan(x).tolist() == [True, False, False, False, False]
    assert sg.isinf(x).tolist() == [False, True, True, False, False]
    assert sg.isfinite(x).tolist() == [False, False, False, True, True]
    assert sg.log(sg.tensor([0.0, -1.0])).numpy()[0] == -inf
    assert sg.round(sg.tensor([0.5, 1.5, -2.5, 1.2345])).tolist() == [0, 2, -2, 1]
    assert sg.round(sg.tensor([1.2345], dtype="float64"), decimals=2).tolist() == [1.23]
    for function in (sg.maximum, sg.minimum):
        assert sg.isnan(function(sg.tensor([nan, 1.0]), sg.tensor([1.0, nan]))).all()


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"min": 2, "max": 4}, [2, 3, 4]),
        ({"min": 2}, [2, 3, 9]),
        ({"max": 4}, [1, 3, 4]),
        ({"min": 4, "max": 2}, [2, 2, 2]),
        ({"min": [0.0, 5.0, 0.0], "max": 6}, [1, 5, 6]),
        ({"min": math.nan}, [math.nan] * 3),
    ],
)
def test_clamp_moves_into_the_bounds_and_the_upper_one_wins(bounds, wanted):
    bounds = {k: sg.tensor(v) if isinstance(v, list) else v for k, v in bounds.items()}
    np.testing.assert_array_equal(sg.clamp(sg.tensor([1.0, 3.0, 9.0]), **bounds).numpy(), np.float32(wanted))


def test_clamp_of_integers_takes_one_bound_or_a_float():
    x = sg.tensor([1, 5], dtype="int8")
    assert sg.clamp(x, max=2).tolist() == [1, 2]
    assert x.clamp_min(3).dtype == sg.int8
    assert sg.clamp(x, 2.5).tolist() == [2.5, 5]
    assert sg.clamp(sg.tensor([True, False]), 0, 2).dtype == sg.int64


# What PyTorch gives where a formula alone would give NaN, or one of several subgradients.
@pytest.mark.parametrize(
    ("function", "inputs", "wanted"),
    [
        (sg.maximum, [[1.0, 2.0], [1.0, 3.0]], [[0.5, 0], [0.5, 1]]),
        (sg.maximum, [[1.0, math.nan], [math.nan, 3.0]], [[1, 1], [1, 1]]),
        (sg.minimum, [[1.0, 2.0], [1.0, 3.0]], [[0.5, 1], [0.5, 0]]),
        (sg.atan2, [[0.0, 0.0], [0.0, 1.0]], [[0, 1], [0, 0]]),
        (sg.abs, [[0.0, -0.0, math.nan]], [[0, 0, 0]]),
        (sg.relu, [[0.0, -1.0, 2.0]], [[0, 0, 1]]),
        (sg.sqrt, [[0.0, 4.0]], [[math.inf, 0.25]]),
        (lambda x: sg.clamp(x, 0, 1), [[0.0, 1.0, 2.0, -1.0]], [[1, 1, 0, 0]]),
        (lambda x: x**0, [[0.0, 2.0]], [[0, 0]]),
        (lambda x: x**2.5, [[0.0, 4.0]], [[0, 20]]),
        (lambda x: x**-2, [[2.0, -1.0]], [[-0.25, 2]]),
        (lambda x: 0**x, [[1.0, 2.0]], [[0, 0]]),
        (lambda x: 2**x, [[0.0, 1.0]], [[math.log(2), 2 * math.log(2)]]),
        (sg.pow, [[0.0, 2.0], [0.0, 3.0]], [[0, 12], [0, 8 * math.log(2)]]),
        (sg.remainder, [[5.0, -5.0], [3.0, 3.0]], [[1, 1], [-1, 2]]),
        (lambda x: sg.div(x, 0.3, rounding_mode="floor"), [[0.5, 1.0]], [[0, 0]]),
        (lambda x, y: sg.where(x > y, x, y), [[1.0, 5.0], [2.0, 4.0]], [[0, 1], [1, 0]]),
    ],
)
def test_gradients_at_kinks_are_pytorchs(function, inputs, wanted):
    leaves = [leaf(v) for v in inputs]
    function(*leaves).sum().backward()
    for x, expected in zip(leaves, wanted, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), expected, 1e-12)


# The gradients that arrive, and what PyTorch passes on; for atan2 the limit, which PyTorch misses.
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("function", "inputs", "arriving", "wanted"),
    [
        *(
            (function, [[1.5, 0.0, math.inf, math.nan]], [math.inf, -math.inf, math.nan, 1.0], [[0, 0, 0, 0]])
            for function in (sg.floor, sg.ceil, sg.round, sg.trunc, sg.sign)
        ),
        (sg.floor_divide, [[5.0, 1.0], [2.0, 0.0]], [math.inf, math.nan], [[0, 0], [0, 0]]),
        (sg.relu, [[math.nan, math.nan, -1.0]], [1.0, math.nan, math.inf], [[1, math.nan, 0]]),
        (sg.atan2, [[1e-30, 0.0], [0.0, 1e-30]], [1.0, 1.0], [[0, 1e30], [-1e30, 0]]),
        (sg.atan2, [[3e25, 1.0], [4e25, math.inf]], [1.0, 1.0], [[1.6e-26, 0], [-1.2e-26, 0]]),
        (sg.atan2, [[math.nan, 0.0], [0.0, 0.0]], [1.0, math.inf], [[math.nan, 0], [math.nan, 0]]),
    ],
)
def test_gradients_at_special_values_are_those_of_the_function(function, inputs, arriving, wanted, create_graph):
    leaves = [sg.tensor(v).requires_grad_() for v in inputs]
    got = sg.grad(function(*leaves), leaves, sg.tensor(arriving), create_graph=create_graph)
    for gradient, expected in zip(got, wanted, strict=True):
        np.testing.assert_allclose(gradient.detach().numpy(), expected, 1e-6)


def test_lerp_reaches_both_ends():
    start, end = sg.tensor([1e8, -3.0]), sg.tensor([1.25, 1e8])
    assert sg.lerp(start, end, 0.0).tolist() == start.tolist()
    assert sg.lerp(start, end, 1.0).tolist() == end.tolist()


@pytest.mark.parametrize("exponent", [1, 2, 3, 0.5, -1, 4, 2.5, True])
def test_a_power_is_the_same_whichever_shortcut_computes_it(exponent):
    x = np.array([0.5, 1.5, 2.0])
    np.testing.assert_allclose((sg.tensor(x) ** exponent).numpy(), x**exponent, 1e-14)
    check_gradients(lambda t: t**exponent, x)


@pytest.mark.parametrize("exponent", [2, 3, 4.5])
def test_a_power_saves_its_input_once(exponent):
    saved = []
    with sg.autograd.saved_tensors_hooks(lambda t: saved.append(t.shape) or t, lambda t: t):
        result = leaf([1.0, 2.0]) ** exponent
    assert saved == [(2,)]
    assert result.grad_fn.name() == "PowBackward0"


def test_softplus_is_the_identity_above_its_threshold():
    x = leaf([-2.0, 1.0, 9.9, 10.1])
    y = sg.nn.functional.softplus(x, beta=2.0, threshold=20.0)
    np.testing.assert_allclose(y.numpy(), [*np.log1p(np.exp(2 * np.array([-2.0, 1.0, 9.9]))) / 2, 10.1])
    y.sum().backward()
    assert x.grad.numpy()[3] == 1


def test_where_chooses_and_with_a_condition_alone_gives_indices():
    condition = sg.tensor([[True, False], [True, True]])
    assert sg.where(condition, 1, 0).tolist() == [[1, 0], [1, 1]]
    assert sg.where(condition, sg.tensor([1.5, 2.5]), 0).tolist() == [[1.5, 0], [1.5, 2.5]]
    assert [i.tolist() for i in sg.where(condition)] == [[0, 1, 1], [0, 0, 1]]
    assert sg.tensor([1, 2]).where(sg.tensor([True, False]), 9).tolist() == [1, 9]


def test_add_and_sub_scale_their_second_operand():
    x, y = sg.tensor([1.0, 2.0]), sg.tensor([3.0, 4.0])
    assert sg.add(x, y, alpha=2).tolist() == [7, 10]
    assert x.sub(1, alpha=3).tolist() == [-2, -1]
    assert sg.rsub(x, 3).tolist() == [2, 1]
    assert sg.addcmul(x, x, y, value=2).tolist() == [7, 18]
    assert sg.addcdiv(x, y, x).tolist() == [4, 4]
    check_gradients(lambda a, b, c: sg.addcdiv(a, b, c, value=0.5), [1.0, 2.0], [3.0, 4.0], [5.0, 6.0])


def test_shifts_multiply_and_divide_by_powers_of_two():
    assert (sg.tensor([1, 3]) << 2).tolist() == [4, 12]
    assert (sg.tensor([8, -3]) >> 1).tolist() == [4, -2]
    assert (1 << sg.tensor([0, 5])).tolist() == [1, 32]


def test_closeness_and_equality_answer_with_bools():
    x = sg.tensor([1.0, math.nan, math.inf])
    assert sg.isclose(x, sg.tensor([1.0 + 1e-6, math.nan, math.inf])).tolist() == [True, False, True]
    assert sg.isclose(x, x, equal_nan=True).all()
    assert sg.allclose(sg.tensor([1.0, 2.0]), sg.tensor([1.0, 2.00001])) is True
    assert sg.allclose(sg.tensor([1.0]), 1.1, rtol=0.2)
    assert sg.equal(sg.tensor([1, 2]), sg.tensor([1, 2])) is True
    assert sg.equal(sg.tensor([1, 2]), sg.tensor([[1, 2]])) is False


def test_comparisons_with_numbers_out_of_range_are_right():
    small = sg.tensor([200], dtype="uint8")
    assert (small < 300).item() is True
    assert (small == 456).item() is False
    assert (small > -1).item() is True


def test_a_number_wraps_around_only_where_that_is_modular_arithmetic():
    small = sg.tensor([100], dtype="int8")
    assert (small + 1000).tolist() == [76]
    assert (small * 300).tolist() == [48]
    for function in (sg.maximum, sg.floor_divide, sg.remainder, sg.clamp):
        with pytest.raises(ArgumentError, match="got 1000; int8 takes -128 to 127"):
            function(small, 1000)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sg.add(sg.ones(2), sg.ones(3)), ShapeError, r"add: got shapes \(2,\) and \(3,\); .* reshape or unsq"),
        (lambda: sg.clamp(sg.ones(2), sg.ones(3)), ShapeError, r"clamp: got shapes \(2,\) and \(3,\)"),
        (lambda: sg.logical_and(sg.ones(2), sg.ones(3)), ShapeError, r"logical_and: got shapes"),
        (lambda: sg.bitwise_and(sg.tensor([1, 2]), sg.tensor([1, 2, 3])), ShapeError, r"bitwise_and: got shapes"),
        (lambda: sg.add(sg.ones(2), "x"), OperandError, "add: got str; wanted a tensor, a number or a NumPy array"),
        (lambda: sg.exp(None), OperandError, "exp: got NoneType"),
        (lambda: sg.logical_or(sg.ones(2), [1, 2]), OperandError, "logical_or: got list"),
        (lambda: sg.bitwise_or(sg.ones(2), 1), DtypeError, "bitwise_or: got operands of float32; wanted integers or"),
        (lambda: sg.bitwise_left_shift(sg.tensor([True]), sg.tensor([True])), DtypeError, "of bool; wanted integers$"),
        (lambda: ~sg.ones(2), DtypeError, "bitwise_not: got a tensor of float32"),
        (lambda: sg.sub(sg.tensor([True]), sg.tensor([True])), DtypeError, r"sub: got bool.*convert with .to\(int64\)"),
        (lambda: -sg.tensor([True]), DtypeError, "neg: got bool"),
        (lambda: sg.tensor([1]) // 0, ArgumentError, "floor_divide: got integers and a zero divisor"),
        (lambda: sg.tensor([1]) % sg.tensor([0]), ArgumentError, "remainder: got integers and a zero divisor"),
        (lambda: sg.tensor([2]) ** -1, ArgumentError, "pow: got integers and a negative exponent"),
        (lambda: sg.clamp(sg.ones(2)), ArgumentError, "clamp: got neither min nor max"),
        (lambda: sg.div(sg.ones(2), 2, rounding_mode="up"), ArgumentError, "got rounding_mode='up'; accepted are"),
        (
            lambda: sg.where(sg.tensor([True]), sg.ones(1)),
            ArgumentError,
            "where: got one of input and other; give both",
        ),
        (lambda: sg.where(sg.ones(2), 1, 2), DtypeError, "where: got a condition of float32; wanted bool"),
        (lambda: sg.exp(sg.ones(2), out=np.ones(2)), OperandError, "exp: got out of ndarray; wanted a tensor"),
        (
            lambda: sg.exp(sg.ones(2), out=sg.ones(3)),
            ShapeError,
            r"exp: got out of shape \(3,\); the result has \(2,\)",
        ),
        (lambda: sg.add(sg.ones(2), sg.ones(3), out=sg.ones(3)), ShapeError, r"add: got shapes \(2,\) and \(3,\)"),
        (lambda: sg.exp(sg.ones(2), out=sg.ones(2, dtype=sg.int64)), DtypeError, "exp: result type float32 can't be"),
        (lambda: sg.exp(sg.ones(2, requires_grad=True), out=sg.ones(2)), GraphError, r"leave it away.*no_grad\(\)"),
        (lambda: sg.exp(sg.ones(2), out=sg.ones(2, requires_grad=True)), GraphError, "exp: got out= and a tensor that"),
        (
            lambda: sg.exp(sg.ones(2), out=sg.ones(1).expand(2)),
            GraphError,
            "exp: more than one element of the expanded",
        ),
        (lambda: sg.exp(sg.ones(2), out=read_only(2)), GraphError, "exp: the tensor's memory is read-only"),
        (lambda: sg.logical_not(sg.ones(2), out=sg.ones(3)), ShapeError, "logical_not: got out of shape"),
        (lambda: sg.nn.functional.gelu(sg.ones(2), "sigmoid"), ArgumentError, "got approximate='sigmoid'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "maximum", "atan2", "lt", "hypot", "remainder"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_a_truth_value_counts_as_a_number_each_time(name, dtype):
    x, function = sg.tensor([0.5, -2.0, 3.0], dtype=dtype), function_of(name)
    for _ in range(2):  # the second call follows the first one's plan
        for truth in (True, False):
            got, wanted = function(x, truth), function(x, float(truth))
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got.float().numpy(), wanted.float().numpy())
