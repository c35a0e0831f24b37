"""The stable sort of integers on a device, against NumPy's."""

import numpy as np
import pytest

from spillgrad_kernels.cuda.array import to_device
from spillgrad_kernels.cuda.sorting import stable_order


@pytest.mark.parametrize("n, largest, bits", [
    (0, 1, 1), (1, 5, 3), (7, 0, 1), (64, 1, 1), (65, 15, 4), (400, 3, 2), (130, 50_000, 16), (70, 1 << 40, 41),
])  # fmt: skip
def test_keys_are_sorted_and_equal_ones_keep_their_order(n, largest, bits):
    keys = np.random.default_rng(n).integers(0, largest, n, np.int64, endpoint=True)
    found, positions = (part.to_host() for part in stable_order(to_device(keys), bits))
    wanted = np.argsort(keys, kind="stable")
    assert np.array_equal(positions, wanted)
    assert np.array_equal(found, keys[wanted])
