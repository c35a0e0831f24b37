"""Quantized matrices against plain NumPy: what codes stand for, and products whose panels are expanded from codes."""

import numpy as np
import pytest

from spillgrad_kernels.cpu.quantization import Quantized
from spillgrad_kernels.cpu.quantized_product import times, times_transposed
from spillgrad_kernels.cpu.quantizing import dequantize, quantize
from spillgrad_kernels.tables.quantization import BOUNDS, INT8, LEVELS, NF4, OF_LARGEST, dynamic_map

# Whole blocks in each row, blocks that cross rows, odd numbers of elements, one row, one column.
SHAPES = [(1, 1), (3, 64), (7, 5), (33, 7), (64, 1), (96, 64), (100, 100), (130, 128), (300, 320), (40, 2112)]
FORMATS = {"nf4": (NF4, True), "nf4 with float32 scales": (NF4, False), "int8": (INT8, True)}


def _matrix(shape: tuple[int, int], name: str) -> Quantized:
    numbers = np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)
    return quantize(numbers, *FORMATS[name])


def _numbers(matrix: Quantized) -> np.ndarray:
    """Return what codes and scales stand for, as the format says it."""
    if matrix.codes.dtype == INT8:
        return matrix.codes * matrix.scales[:, None] * OF_LARGEST
    codes = np.stack([matrix.codes >> 4, matrix.codes & 15], 1).reshape(-1)[: np.prod(matrix.shape)]
    scales = matrix.scales
    if matrix.nested is not None:
        scales = dynamic_map()[scales] * np.repeat(matrix.nested, 256)[: scales.size] + matrix.offset
    return (LEVELS[codes] * np.repeat(scales, 64)[: codes.size]).reshape(matrix.shape)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_stand_for_the_numbers_of_their_format(shape: tuple[int, int], name: str) -> None:
    matrix = _matrix(shape, name)
    np.testing.assert_array_equal(dequantize(matrix), _numbers(matrix))
    rows = np.array([[shape[0] - 1, 0], [0, 0]])
    np.testing.assert_array_equal(dequantize(matrix, rows), _numbers(matrix)[rows])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_number_becomes_the_nearest_level_of_its_block(shape: tuple[int, int]) -> None:
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found = quantize(numbers, NF4, nests=False)
    flat = numbers.reshape(-1)
    for block, scale in enumerate(found.scales):
        values = flat[block * 64 : block * 64 + 64]
        assert scale == np.abs(values).max()
        nearest = np.abs(values[:, None] / scale - LEVELS).argmin(1)
        near_a_bound = np.abs(values[:, None] / scale - BOUNDS).min(1) < 1e-6
        codes = np.stack([found.codes >> 4, found.codes & 15], 1).reshape(-1)[block * 64 : block * 64 + values.size]
        assert ((codes == nearest) | near_a_bound).all()


def test_a_row_of_int8_is_rounded_to_even() -> None:
    found = quantize(np.array([[127, 0.5, 1.5, -2.5], [0, 0, 0, 0]], np.float32), INT8)
    assert found.codes.tolist() == [[127, 0, 2, -2], [0, 0, 0, 0]]
    assert found.scales.tolist() == [127, 0]


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_numbers_that_are_not_finite_are_refused(name: str, wrong: float) -> None:
    numbers = np.ones((3, 70), np.float32)
    numbers[1, 40] = wrong
    with pytest.raises(ValueError, match="infinite or NaN"):
        quantize(numbers, *FORMATS[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_with_the_expanded_matrix(shape: tuple[int, int], name: str, dtype: type) -> None:
    matrix = _matrix(shape, name)
    numbers = _numbers(matrix).astype(np.float64)
    random = np.random.default_rng(1)
    for rows in (1, 2, 3, 8, 11, 17, 130):
        x, g = (random.standard_normal((rows, size)).astype(dtype) for size in (shape[1], shape[0]))
        bias = random.standard_normal(shape[0]).astype(dtype)
        tolerance = 2e-6 if dtype == np.float32 else 1e-14
        for found, wanted in (
            (times_transposed(x, matrix, bias), x @ numbers.T + bias),
            (times_transposed(x, matrix), x @ numbers.T),
            (times(g, matrix), g @ numbers),
        ):
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * max(1, np.abs(wanted).max()))


def test_threads_share_a_large_product() -> None:
    matrix = _matrix((700, 640), "nf4")
    x = np.random.default_rng(2).standard_normal((600, 640)).astype(np.float32)
    np.testing.assert_allclose(times_transposed(x, matrix), x @ _numbers(matrix).T, atol=2e-4)
    g = np.random.default_rng(3).standard_normal((600, 700)).astype(np.float32)
    np.testing.assert_allclose(times(g, matrix), g @ _numbers(matrix), atol=2e-4)


def test_products_without_rows_are_empty() -> None:
    matrix = _matrix((96, 64), "nf4")
    assert times_transposed(np.empty((0, 64), np.float32), matrix).shape == (0, 96)
    assert times(np.empty((0, 96), np.float32), matrix).shape == (0, 64)
