"""Copies: every element in its place, for any strides, sizes and dtypes, small or past the caches."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import copying
from spillgrad_kernels.cpu.copying import copy
from tests.kernels.cpu.layouts import any_layout


@pytest.mark.parametrize("dtype", ["bool", "int16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (0, 3), (200, 300), (3, 70, 5, 2)])
def test_a_copy_keeps_every_element_in_its_place(shape, dtype):
    rng = np.random.default_rng(5)
    for _ in range(5):
        source, target = any_layout(rng, shape, dtype), any_layout(rng, shape, dtype)
        copy(source, target)
        assert np.array_equal(source, target)
        copy(np.broadcast_to(source[..., :1] if shape else source, shape), target)
        assert np.array_equal(target, np.broadcast_to(source[..., :1] if shape else source, shape))


@pytest.mark.parametrize("least", [0, 1 << 25])
@pytest.mark.parametrize("offset", [0, 1, 63])
@pytest.mark.parametrize("nbytes", [64, 4096, (1 << 15) - 1, 1 << 15, 200_000, (1 << 20) + 77])
def test_dense_copies_write_their_bytes_and_no_others(monkeypatch, nbytes, offset, least):
    monkeypatch.setattr(copying, "_STREAM_MIN_BYTES", least)
    source = np.random.default_rng(0).integers(0, 255, nbytes + 7, np.uint8)[7:]
    memory = np.full(nbytes + 300, 255, np.uint8)
    begin = 64 + offset
    copy(source, memory[begin : begin + nbytes])
    assert np.array_equal(memory[begin : begin + nbytes], source)
    assert np.all(memory[:begin] == 255)
    assert np.all(memory[begin + nbytes :] == 255)
