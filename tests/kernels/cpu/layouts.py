"""Arrays that lie in memory in every way."""

import numpy as np


def any_layout(rng, shape, dtype=np.float32):
    """An array of a shape whose dimensions lie in any order, with gaps, backwards, or shifted."""
    order = rng.permutation(len(shape))
    memory = rng.standard_normal([2 * shape[d] + 1 for d in order]).astype(dtype)
    parts = [
        [slice(None, 2 * n, 2), slice(n), slice(n, 0, -1), slice(1, n + 1)][rng.integers(4)]
        for n in (shape[d] for d in order)
    ]
    return memory[(*parts, ...)].transpose(np.argsort(order))
