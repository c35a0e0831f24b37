"""Fixtures of the kernels' tests: a gradient by central differences, and a check that threads change no bit."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from spillgrad_kernels.threads import dispatch


@pytest.fixture
def numeric_gradient() -> Callable[..., np.ndarray]:
    """Return the gradient of sum(grad * function(x)) by x, from central differences in float64."""

    def differentiate(
        function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, grad: np.ndarray, step: float = 1e-6
    ) -> np.ndarray:
        result = np.empty_like(x)
        for position in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[position] += step
            down[position] -= step
            result[position] = np.sum(grad * (function(up) - function(down))) / (2 * step)
        return result

    return differentiate


@pytest.fixture
def assert_same_on_any_number_of_threads() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Run a computation on one, two and five threads; each array it returns must be the same to the bit."""
    before = dispatch.get_num_threads()

    def check(compute: Callable[[], Any]) -> None:
        results = []
        for count in (1, 2, 5):
            dispatch.set_num_threads(count)
            result = compute()
            results.append(
                [np.asarray(part).tobytes() for part in (result if isinstance(result, tuple) else (result,))]
            )
        assert results[0] == results[1] == results[2]

    yield check
    dispatch.set_num_threads(before)
