"""Attention on a device, against the CPU's kernels in float64."""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import attention as on_the_host
from spillgrad_kernels.cpu import attention_backward as gradients_on_the_host
from spillgrad_kernels.cuda import attention_tiles
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.attention import attention_forward
from spillgrad_kernels.cuda.attention_backward import attention_backward
from spillgrad_kernels.device_array import NotOnDevice
from spillgrad_kernels.tables.attention import Dropout

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12, np.float16: 4e-3, ml_dtypes.bfloat16: 3e-2}


def operands(rng, batch, queries, keys, width, value_width, dtype):
    shapes = (
        (*batch, queries, width),
        (*batch, keys, width),
        (*batch, keys, value_width),
        (*batch, queries, value_width),
    )
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def check(q, k, v, g, causal=False, mask=None, dropout=None, rearranged=lambda array: array):
    """Compare both passes with the host; `rearranged` changes the layout of device arrays."""
    exact = [array.astype(np.float64) for array in (q, k, v, g)]
    exact_mask = mask if mask is None or mask.dtype == bool else mask.astype(np.float64)
    scale = q.shape[-1] ** -0.5
    out, lse = on_the_host.attention_forward(*exact[:3], scale, causal, exact_mask, dropout)
    wanted = [
        out,
        lse,
        *gradients_on_the_host.attention_backward(exact[3], *exact[:3], out, lse, scale, causal, exact_mask, dropout),
    ]
    x, y, z, gradient = (rearranged(to_device(array)) for array in (q, k, v, g))
    on_device = None if mask is None else to_device(mask)
    result, normalizers = attention_forward(x, y, z, scale, causal, on_device, dropout)
    found = [
        result,
        normalizers,
        *attention_backward(gradient, x, y, z, result, normalizers, scale, causal, on_device, dropout),
    ]
    tolerance = TOLERANCE[q.dtype.type]
    for name, each, exactly in zip(("out", "lse", "dq", "dk", "dv"), found, wanted, strict=True):
        assert each.dtype == (q.dtype if name != "lse" or q.itemsize > 2 else np.float32)
        numbers = each.to_host().astype(np.float64)
        np.testing.assert_allclose(numbers, exactly, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype, causal", [
    (np.float32, False), (np.float32, True), (np.float64, True), (np.float16, True), (ml_dtypes.bfloat16, False),
])  # fmt: skip
@pytest.mark.parametrize("batch, queries, keys, width, value_width", [
    ((), 1, 1, 1, 1), ((2,), 5, 5, 3, 3), ((1, 2), 9, 9, 4, 4), ((2,), 3, 7, 5, 2), ((), 7, 3, 9, 17),
    ((1,), 6, 6, 16, 8), ((), 21, 30, 36, 20), ((), 3, 5, 4, 0),
])  # fmt: skip
def test_attention_agrees_with_the_host(batch, queries, keys, width, value_width, causal, dtype):
    rng = np.random.default_rng(0)
    check(*operands(rng, batch, queries, keys, width, value_width, dtype), causal)


def test_batches_of_three_dimensions_are_walked():
    rng = np.random.default_rng(1)
    check(*operands(rng, (2, 1, 2), 3, 4, 4, 4, np.float32), mask=rng.random((2, 1, 1, 3, 4)) < 0.7)


def test_heads_may_lie_between_positions_and_features():
    rng = np.random.default_rng(2)
    q, k, v, g = (rng.standard_normal((2, 6, 3, 4)).astype(np.float32) for _ in range(4))
    turned = [array.transpose(0, 2, 1, 3) for array in (q, k, v, g)]

    def rearranged(array):  # store as (batch, positions, heads, features), and view as before
        return to_device(np.ascontiguousarray(array.to_host().transpose(0, 2, 1, 3))).transpose(0, 2, 1, 3)

    check(*turned, rearranged=rearranged)


@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (5, 6), (1, 6), (2, 1, 1, 6)])
@pytest.mark.parametrize("kind", ["choice", "bias"])
def test_a_mask_hides_keys_or_is_added(kind, shape):
    rng = np.random.default_rng(3)
    mask = rng.random(shape) < 0.6 if kind == "choice" else rng.standard_normal(shape).astype(np.float32)
    check(*operands(rng, (2, 3), 5, 6, 4, 4, np.float32), mask=mask)


def test_a_query_that_sees_no_key_gives_zeros_and_no_gradient():
    rng = np.random.default_rng(4)
    mask = np.ones((4, 5), bool)
    mask[2] = False
    check(*operands(rng, (2,), 4, 5, 4, 4, np.float32), mask=mask)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_draws_what_the_host_draws(causal):
    rng = np.random.default_rng(5)
    check(*operands(rng, (2, 2), 5, 7, 4, 4, np.float32), causal, dropout=Dropout(0.4, -123456789, 77))


def test_no_keys_give_zeros():
    rng = np.random.default_rng(6)
    check(*operands(rng, (2,), 3, 0, 4, 4, np.float32))
    check(*operands(rng, (2,), 0, 3, 4, 4, np.float32))


def test_heads_that_shared_memory_does_not_hold_are_left_to_the_host(monkeypatch):
    monkeypatch.setattr(attention_tiles, "_SHARED_BYTES", 2000)
    attention_tiles.cut_of.cache_clear()
    q = to_device(np.zeros((2, 3, 40), np.float32))
    with pytest.raises(NotOnDevice, match="attention: no kernel of the device takes 40 and 40 features"):
        attention_forward(q, q, q, 1.0, False)
    attention_tiles.cut_of.cache_clear()


def test_first_keys_and_a_cap_are_left_to_others():
    q = to_device(np.zeros((2, 3, 4), np.float32))
    for options in ({"first_keys": to_device(np.zeros(3, np.int32))}, {"softcap": 50.0}):
        with pytest.raises(NotOnDevice, match="takes first keys or a cap"):
            attention_forward(q, q, q, 1.0, False, **options)


def test_what_does_not_fit_is_refused():
    q, k = (to_device(np.zeros(shape, np.float32)) for shape in ((2, 3, 4), (2, 5, 6)))
    with pytest.raises(ValueError, match=r"attention: got q \(2, 3, 4\)"):
        attention_forward(q, k, k, 1.0, False)
    with pytest.raises(ValueError, match=r"got a mask of \(7,\)"):
        attention_forward(q, q, q, 1.0, False, to_device(np.zeros(7, bool)))
    with pytest.raises(TypeError, match="got a mask of int64"):
        attention_forward(q, q, q, 1.0, False, to_device(np.zeros(3, np.int64)))
