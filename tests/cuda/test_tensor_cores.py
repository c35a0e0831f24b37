"""Products on tensor cores, or on their stand-in in the simulator, against NumPy.

Small integers and their sums are exact in every precision.
"""

import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cuda import matmul as products
from spillgrad_kernels.cuda import tensor_cores
from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.cuda.matmul import linear, matmul
from spillgrad_kernels.cuda.precision import allow_tf32

SHAPES = [(32, 16, 32), (40, 24, 72), (8, 8, 8)] + ([] if SIMULATED else [(1000, 520, 328)])


@pytest.fixture(autouse=True)
def used(monkeypatch):
    """Return the list of tiles of the products that are prepared."""
    if SIMULATED:
        monkeypatch.setattr(tensor_cores, "at_hand", lambda: True)
    elif not tensor_cores.at_hand():
        pytest.skip("the device's capability to compute is below 8.0: it multiplies half precision another way")
    tiles, build = [], products.build

    def noted(variant, tile, *rest):
        tiles.append(tile)
        return build(variant, tile, *rest)

    monkeypatch.setattr(products, "build", noted)
    products.prepare.cache_clear()
    allow_tf32(True)
    yield tiles
    allow_tf32(False)
    products.prepare.cache_clear()  # its plans are for the pretended tensor cores


def integers(shape, dtype=np.float16, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def exact(array):
    return array.astype(np.float32)


@pytest.mark.parametrize("dtype, turned_a, turned_b", [
    (np.float16, False, False), (np.float16, True, True), (ml_dtypes.bfloat16, False, True),
    (np.float32, False, False), (np.float32, True, False), (np.float32, True, True),
])  # fmt: skip
@pytest.mark.parametrize("m, n, k", SHAPES)
def test_products_of_any_orientation_are_exact(m, n, k, turned_a, turned_b, dtype, used):
    a = integers((k, m) if turned_a else (m, k), dtype)
    b = integers((n, k) if turned_b else (k, n), dtype, 1)
    x, y = (to_device(array).T if turned else to_device(array) for array, turned in ((a, turned_a), (b, turned_b)))
    wanted = exact(a.T if turned_a else a) @ exact(b.T if turned_b else b)
    assert np.array_equal(matmul(x, y, dtype=np.float32).to_host(), wanted)
    assert used == [tensor_cores.KINDS[np.dtype(dtype).name].tile]


def test_heads_of_attention_are_a_batch_with_gaps(used):
    q, k = integers((2, 10, 3, 8)), integers((2, 16, 3, 8), seed=1)
    x, y = to_device(q).transpose(0, 2, 1, 3), to_device(k).transpose(0, 2, 3, 1)
    wanted = exact(q).transpose(0, 2, 1, 3) @ exact(k).transpose(0, 2, 3, 1)
    assert np.array_equal(exact(matmul(x, y).to_host()), wanted)
    assert used == [tensor_cores.KINDS["float16"].tile]


def test_a_product_is_added_to_out_and_nothing_lies_beside_it(used):
    a, b = integers((9, 16)), integers((16, 24), seed=1)
    around = np.full((20, 40), 5, np.float32)
    memory = to_device(around)
    matmul(to_device(a), to_device(b), memory[3:12, 4:28], accumulate=True)
    around[3:12, 4:28] += exact(a) @ exact(b)
    assert np.array_equal(memory.to_host(), around)
    assert used == [tensor_cores.KINDS["float16"].tile]


@pytest.mark.parametrize("columns", [16, 24])
def test_a_formula_is_applied_before_the_result_is_stored(columns, used):
    rows, weight, bias, other = (
        integers(shape, seed=i) for i, shape in enumerate([(9, 8), (columns, 8), (columns,), (9, columns)])
    )
    product = to_device(np.zeros((9, columns), np.float16))
    result = linear(
        to_device(rows), to_device(weight), to_device(bias), other=to_device(other),
        formula=lambda product, other: other + product * 2, name="test", product=product,
    )  # fmt: skip
    wanted = exact(rows) @ exact(weight).T + exact(bias)
    assert np.array_equal(exact(product.to_host()), wanted)
    assert np.array_equal(exact(result.to_host()), exact(other) + wanted * 2)
    assert used == [tensor_cores.KINDS["float16"].tile]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m, n, k, shift", [(8, 8, 12, 0), (8, 9, 8, 0), (8, 8, 8, 1), (37, 19, 45, 1), (1, 1, 1, 0)])
def test_what_accesses_of_16_bytes_do_not_fit_is_read_element_by_element(m, n, k, shift, turned, dtype, used):
    a, b = integers((m, k + shift), dtype), integers((n, k) if turned else (k, n), dtype, 1)
    found = matmul(to_device(a)[:, shift:], to_device(b).T if turned else to_device(b))
    assert np.array_equal(exact(found.to_host()), exact(a[:, shift:]) @ exact(b.T if turned else b))
    assert used == [tensor_cores.KINDS[np.dtype(dtype).name].tile]


def test_float32_is_rounded_to_tf32_only_where_that_is_allowed(used):
    a = np.full((8, 8), 1 + 2**-12 + 2**-11, np.float32)
    a[1] = -a[0]
    b = np.eye(8, dtype=np.float32)
    wanted = np.where(a > 0, 1 + 2**-10, -1 - 2**-10).astype(np.float32)
    assert np.array_equal(matmul(to_device(a), to_device(b)).to_host(), wanted)
    allow_tf32(False)
    assert np.array_equal(matmul(to_device(a), to_device(b)).to_host(), a)
    assert [isinstance(tile, tensor_cores.Tile) for tile in used] == [True, False]
