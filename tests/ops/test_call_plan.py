"""Plans: what an operation remembers of calls with the same layouts."""

import gc

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_kernels.cpu import elementwise, matmul, reductions


@pytest.mark.parametrize(
    ("operation", "kernels"),
    [
        (lambda x, y: x + y, elementwise.prepare),
        (lambda x, y: x.sum(1), reductions.prepare),
        (lambda x, y: x @ y, matmul.prepare),
    ],
    ids=["elementwise", "reduction", "product"],
)
def test_a_plan_outlives_what_the_kernels_remember(operation, kernels):
    x = sg.tensor(np.arange(49.0).reshape(7, 7))
    y = sg.tensor(np.arange(49.0).reshape(7, 7)).t()
    before = operation(x, y).numpy()
    kernels.cache_clear()
    gc.collect()
    noise = [np.zeros(size, np.int64) for size in range(64) for _ in range(20)]  # takes the place of what was freed
    np.testing.assert_array_equal(operation(x, y).numpy(), before)
    assert noise


def test_products_follow_the_number_of_threads():
    before = sg.get_num_threads()
    x = sg.tensor(np.random.default_rng(0).standard_normal((200, 200)))
    try:
        sg.set_num_threads(1)
        alone = (x @ x).numpy()
        sg.set_num_threads(3)
        np.testing.assert_array_equal((x @ x).numpy(), alone)
    finally:
        sg.set_num_threads(before)
