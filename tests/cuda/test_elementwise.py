"""The table of elementwise operations on a device, against the uncompiled formulas, over every kind of layout."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.elementwise import compute, copy, elementwise
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.program import Program, Step
from tests.kernels.cpu.test_elementwise import SHAPES
from tests.kernels.cpu.test_elementwise import operands_of as floats_of
from tests.kernels.cuda.integer_rows import FORMULAS, INTEGERS, as_by_numpy, operands_of

SUB = ROWS["sub"].forward


def on_device(operands):
    return [to_device(operand) for operand in operands]


def any_layout(rng, shape):
    """Return a device array whose dimensions lie in any order, with gaps, backwards or shifted; and a copy of it."""
    order = rng.permutation(len(shape))
    memory = rng.standard_normal([2 * shape[d] + 1 for d in order]).astype(np.float32)
    parts = [
        [slice(None, 2 * n, 2), slice(n), slice(n, 0, -1), slice(1, n + 1)][rng.integers(4)]
        for n in (shape[d] for d in order)
    ]
    axes = tuple(np.argsort(order))
    return to_device(memory)[(*parts, ...)].transpose(axes), memory[(*parts, ...)].transpose(axes).copy()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROWS)
def test_a_row_agrees_with_its_formula(name, dtype):
    rng = np.random.default_rng(0)
    row = ROWS[name]
    for kernel_name, formula in {name: row.forward, **{f"{name}_{k}": f for k, f in row.derivatives.items()}}.items():
        operands = floats_of(formula, rng, (3, 5), dtype)
        if name == "acosh":
            operands = [operand + 1 for operand in operands]
        wanted = np.asarray(formula(*[o.astype(np.float64) if o.dtype != bool else o for o in operands]))
        kind = np.bool_ if wanted.dtype == bool else dtype
        (result,) = compute(formula, kernel_name, on_device(operands), (kind,))
        tolerance = 2e-5 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(
            result.to_host().astype(np.float64), np.broadcast_to(wanted.astype(np.float64), result.shape),
            rtol=tolerance, atol=tolerance, err_msg=kernel_name,
        )  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES)
def test_operands_broadcast_as_in_numpy(shapes):
    rng = np.random.default_rng(1)
    a, b = (rng.random(shape).astype(np.float32) for shape in shapes)
    (result,) = compute(SUB, "sub", on_device([a, b]), (np.float32,))
    assert result.shape == (a - b).shape
    assert np.array_equal(result.to_host(), a - b)


@pytest.mark.parametrize("shape", [(), (7,), (1, 5), (4, 6), (3, 1, 4), (2, 3, 4, 2), (1, 1, 1), (8, 16)])
def test_any_strides_are_walked_in_operands_and_in_out(shape):
    rng = np.random.default_rng(len(shape))
    for _ in range(10):
        shapes = [shape, tuple(1 if rng.random() < 0.3 else n for n in shape)[rng.integers(len(shape) + 1) :]]
        (a, a_host), (b, b_host), (out, _) = (any_layout(rng, s) for s in (*shapes, shape))
        (result,) = compute(SUB, "sub", [a, b], (np.float32,))
        assert np.array_equal(result.to_host(), a_host - b_host)
        assert compute(SUB, "sub", [a, b], (np.float32,), (out,)) == (out,)
        assert np.array_equal(out.to_host(), a_host - b_host)
        compute(SUB, "sub", [a, b], (np.float32,), (a,))
        assert np.array_equal(a.to_host(), a_host - b_host)


@pytest.mark.parametrize("count", [1, 3, 4, 8, 64, 250])
@pytest.mark.parametrize("begin", [0, 1, 2, 4])
def test_neighbours_move_together_only_where_they_lie_on_a_boundary(count, begin):
    memory = np.arange(300, dtype=np.float32)
    a = to_device(memory)[begin : begin + count]
    (result,) = compute(ROWS["neg"].forward, "neg", [a], (np.float32,))
    assert np.array_equal(result.to_host(), -memory[begin : begin + count])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_to_the_nearest(dtype):
    values = np.array([0, -0.0, 1, 2.5, 65504, 1e-7, 6e-8, 1 / 3, np.inf, -np.inf, np.nan, 3e38, 1e-40, 257, 258, 259])
    with np.errstate(over="ignore"):
        a = values.astype(dtype)
        wanted = (a.astype(np.float32) * np.float32(1.001)).astype(dtype)
    (result,) = compute(ROWS["mul"].forward, "mul", [to_device(a), np.float32(1.001)], (dtype,))
    assert np.array_equal(result.to_host().astype(np.float32), wanted.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", FORMULAS)
def test_integers_and_truth_values_are_computed_as_by_numpy(name, dtype):
    operands = [operand[:: 1 + len(operand) // 40] for operand in operands_of(name, dtype)]
    wanted = as_by_numpy(name, operands, dtype)
    if wanted is not None:
        found = elementwise(FORMULAS[name], name, on_device(operands), wanted.dtype)
        assert (found.dtype, found.to_host().tolist()) == (wanted.dtype, wanted.tolist())


@pytest.mark.parametrize("dtype", [*INTEGERS, np.float16, np.float64], ids=str)
def test_an_array_is_converted_as_by_numpy(dtype):
    a = np.array([0, 1, 2.75, 100, 0.5]).astype(dtype)
    for other in [*INTEGERS, np.dtype(np.float16), np.dtype(np.float32)]:
        found = copy(to_device(a), other)
        assert (found.dtype, found.to_host().tolist()) == (other, a.astype(other).tolist())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_copy_keeps_the_bits_of_nan(dtype):
    bits = np.array([[0x7FC1, 0x3C00], [0xFFC5, 0x7FFF]], np.uint16)
    a, out = to_device(bits.view(dtype)).T, to_device(np.zeros((2, 2), dtype))
    assert copy(a).to_host().tobytes() == bits.T.tobytes()
    assert copy(a, out=out) is out
    assert out.to_host().tobytes() == bits.T.tobytes()


def test_a_host_s_array_without_dimensions_is_a_number():
    a = np.arange(6, dtype=np.uint8)
    out = to_device(np.zeros(6, np.uint8))
    assert elementwise(SUB, "sub", [np.asarray(a[3]), to_device(a)], np.uint8, out) is out
    assert np.array_equal(out.to_host(), a[3] - a)
    half = elementwise(SUB, "sub", [np.asarray(1, ml_dtypes.bfloat16), to_device(a.astype(np.float16))], np.float16)
    assert np.array_equal(half.to_host(), 1 - a.astype(np.float16))
    with pytest.raises(TypeError, match=r"shape \(6,\) in the host's memory"):
        elementwise(SUB, "sub", [a, to_device(a)], np.uint8)


def test_a_number_is_passed_by_its_value():
    a = np.arange(6, dtype=np.float32)
    (result,) = compute(SUB, "sub", [np.float32(10), to_device(a)], (np.float32,))
    assert np.array_equal(result.to_host(), 10 - a)


def test_several_results_come_from_one_loop():
    program = Program()
    a, b = program.add_input(np.dtype(np.float32)), program.add_input(np.dtype(np.float32))
    step = {
        name: Step(ROWS[name].forward, ROWS[name].derivatives, (a, b), np.dtype(np.float32)) for name in ("mul", "add")
    }
    results = [program.add_step(step[name], np.dtype(np.float32)) for name in ("mul", "add")]
    rng = np.random.default_rng(3)
    x, y = rng.random((4, 8)).astype(np.float32), rng.random(8).astype(np.float32)
    kinds = (np.float32, np.float32)
    product, total = compute(program.forward_loop(results), "both", on_device([x, y]), kinds)
    assert np.array_equal(product.to_host(), x * y)
    assert np.array_equal(total.to_host(), x + y)


def test_shapes_that_do_not_broadcast_are_refused():
    a, b, c = on_device([np.ones(3, np.float32), np.ones(4, np.float32), np.ones((2, 3), np.float32)])
    with pytest.raises(ValueError, match="broadcast"):
        compute(SUB, "sub", [a, b], (np.float32,))
    with pytest.raises(ValueError, match=r"sub: got out of shape \(3,\); the result has shape \(2, 3\)"):
        compute(SUB, "sub", [a, c], (np.float32,), (a,))
