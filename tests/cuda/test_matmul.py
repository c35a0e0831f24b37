"""Products on a device, against NumPy in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda import matmul as products
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.matmul import linear, matmul
from spillgrad_kernels.tables.elementwise_derivatives import ROWS

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-13, np.float16: 2e-3, ml_dtypes.bfloat16: 2e-2}


def numbers(rng, shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


def assert_close(found, wanted, dtype=np.float32):
    np.testing.assert_allclose(found.to_host().astype(np.float64), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def exact(array):
    return array.astype(np.float64)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("m, n, k", [
    (1, 1, 1), (8, 16, 4), (16, 32, 8), (7, 5, 3), (17, 33, 9), (1, 20, 12), (20, 1, 12), (9, 17, 1), (70, 3, 2),
    (8, 16, 0),
])  # fmt: skip
def test_a_product_agrees_with_numpy(m, n, k, dtype):
    rng = np.random.default_rng(m)
    a, b = numbers(rng, (m, k), dtype), numbers(rng, (k, n), dtype)
    assert_close(matmul(to_device(a), to_device(b)), exact(a) @ exact(b), dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("turned_a", [False, True])
@pytest.mark.parametrize("turned_b", [False, True])
@pytest.mark.parametrize("m, n, k", [(12, 24, 8), (11, 9, 7)])
def test_either_operand_may_be_transposed(m, n, k, turned_a, turned_b, dtype):
    rng = np.random.default_rng(0)
    a = numbers(rng, (k, m) if turned_a else (m, k), dtype)
    b = numbers(rng, (n, k) if turned_b else (k, n), dtype)
    x, y = (to_device(array).T if turned else to_device(array) for array, turned in ((a, turned_a), (b, turned_b)))
    assert_close(matmul(x, y), exact(a.T if turned_a else a) @ exact(b.T if turned_b else b), dtype)


def test_operands_and_out_may_have_gaps():
    rng = np.random.default_rng(1)
    a, b = numbers(rng, (20, 30)), numbers(rng, (30, 40))
    x, y, out = to_device(a)[::2, 1::3], to_device(b)[:10, ::-2], to_device(np.zeros((30, 60), np.float32))[::3, ::3]
    assert matmul(x, y, out) is out
    assert_close(out, exact(a[::2, 1::3]) @ exact(b[:10, ::-2]))


def test_what_lies_beside_the_result_is_left_alone():
    rng = np.random.default_rng(2)
    a, b, around = numbers(rng, (9, 6)), numbers(rng, (6, 10)), np.full((20, 30), 7, np.float32)
    memory = to_device(around)
    matmul(to_device(a), to_device(b), memory[5:14, 4:14])
    around[5:14, 4:14] = a @ b
    np.testing.assert_allclose(memory.to_host(), around, rtol=1e-5)


@pytest.mark.parametrize("a_shape, b_shape", [
    ((3, 5, 4), (3, 4, 6)), ((3, 5, 4), (4, 6)), ((5, 4), (2, 4, 6)), ((2, 1, 5, 4), (3, 4, 6)),
    ((2, 3, 1, 4), (2, 3, 4, 9)), ((0, 5, 4), (4, 6)),
])  # fmt: skip
def test_batches_broadcast(a_shape, b_shape):
    rng = np.random.default_rng(3)
    a, b = numbers(rng, a_shape), numbers(rng, b_shape)
    assert_close(matmul(to_device(a), to_device(b)), exact(a) @ exact(b))


def test_heads_of_attention_are_a_batch_with_gaps():
    rng = np.random.default_rng(4)
    q, k = numbers(rng, (2, 10, 3, 8)), numbers(rng, (2, 10, 3, 8))
    x, y = to_device(q).transpose(0, 2, 1, 3), to_device(k).transpose(0, 2, 3, 1)
    assert_close(matmul(x, y), exact(q).transpose(0, 2, 1, 3) @ exact(k).transpose(0, 2, 3, 1))


def test_a_product_is_added_to_out():
    rng = np.random.default_rng(5)
    a, b, c = numbers(rng, (9, 12)), numbers(rng, (12, 20)), numbers(rng, (9, 20))
    out = to_device(c)
    matmul(to_device(a), to_device(b), out, accumulate=True)
    assert_close(out, exact(a) @ exact(b) + exact(c))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("formula", [None, ROWS["gelu_tanh"].forward, lambda product, other: other + product * 2])
def test_a_formula_is_applied_before_the_result_is_stored(formula, has_bias, kept):
    rng = np.random.default_rng(6)
    rows, weight, bias, other = (numbers(rng, shape) for shape in ((9, 7), (20, 7), (20,), (9, 20)))
    wanted = exact(rows) @ exact(weight).T + (exact(bias) if has_bias else 0)
    two = formula is not None and formula.__code__.co_argcount == 2
    product = to_device(np.zeros((9, 20), np.float32)) if kept else None
    result = linear(
        to_device(rows), to_device(weight), to_device(bias) if has_bias else None,
        other=to_device(other) if two else None, formula=formula, name="test", product=product,
    )  # fmt: skip
    if kept:
        assert_close(product, wanted)
    if formula is not None:
        wanted = formula(wanted, exact(other)) if two else formula(wanted)
    assert_close(result, wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_the_parts_of_a_product_are_added_up(batch, dtype):
    """Small integers: every order of sums is exact, and the formula is applied once, to the whole sum."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (*batch, *shape)).astype(dtype) for shape in ((5, 2000), (2000, 7)))
    a, b = (array[..., :1999] if array is a else array[..., :1999, :] for array in (a, b))
    before = rng.integers(-2, 3, (*batch[::-1], 5, 7)).astype(dtype)
    out = to_device(before)
    out = out.transpose(1, 0, 2, 3) if len(batch) == 2 else out
    call = products.prepare(
        to_device(a).layout, to_device(b).layout, out.layout, (("addend", out.layout),), None, "", (True,) * 3
    )
    assert call.joining is not None and call.joining.shape[0] > 1
    matmul(to_device(a), to_device(b), out, accumulate=True)
    wanted = exact(a) @ exact(b) + exact(before.swapaxes(0, 1) if len(batch) == 2 else before)
    assert np.array_equal(exact(out.to_host()), wanted.astype(dtype).astype(np.float64))


def test_a_formula_is_applied_to_the_sum_of_the_parts():
    rng = np.random.default_rng(0)
    rows, weight, bias, other = (
        rng.integers(-2, 3, shape).astype(np.float32) for shape in ((5, 2000), (7, 2000), (7,), (5, 7))
    )
    product = to_device(np.zeros((5, 7), np.float32))
    result = linear(
        to_device(rows), to_device(weight), to_device(bias), other=to_device(other),
        formula=lambda product, other: other + product * 2, name="test", product=product,
    )  # fmt: skip
    assert np.array_equal(product.to_host(), rows @ weight.T + bias)
    assert np.array_equal(result.to_host(), other + (rows @ weight.T + bias) * 2)


def test_what_does_not_fit_is_refused():
    a, b = (to_device(np.zeros(shape, np.float32)) for shape in ((3, 4), (5, 6)))
    with pytest.raises(ValueError, match=r"got \(3, 4\) and \(5, 6\)"):
        matmul(a, b)
    with pytest.raises(ValueError, match="without out"):
        matmul(a, a.T, accumulate=True)
    with pytest.raises(ValueError, match=r"got out \(3, 4\); wanted \(3, 3\)"):
        matmul(a, a.T, a)
    with pytest.raises(TypeError, match="got float32 and float64"):
        matmul(a, to_device(np.zeros((4, 2))))
    with pytest.raises(ValueError, match="must broadcast"):
        matmul(to_device(np.zeros((2, 3, 4), np.float32)), to_device(np.zeros((3, 4, 5), np.float32)))
