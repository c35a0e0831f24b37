"""What the processor can do: the timings do the work that they say, and caches are found in latencies."""

import numpy as np
import pytest

from spillgrad_kernels.cpu import limits
from spillgrad_kernels.threads.dispatch import get_num_threads, set_num_threads


@pytest.fixture(autouse=True)
def _one_thread():
    threads = get_num_threads()
    set_num_threads(1)
    yield
    set_num_threads(threads)


def test_a_timing_of_multiply_adds_adds_up_what_it_says():
    numbers = np.full((1, 2 * limits.VECTOR_BYTES // 4), 2, np.float32)
    limits._multiply_adds(0, 1, 10, numbers)
    first, total = numbers.reshape(2, -1)
    assert (first == 2).all()
    assert (total == 2 * 2 * 10 * limits._SUMS).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rates_are_positive(monkeypatch, dtype):
    for name, value in {"_STEPS": 8, "_LEAST_S": 0, "_WARM_UP_S": 0}.items():
        monkeypatch.setattr(limits, name, value)
    assert limits.flop_per_s(dtype) > 0
    assert limits.bytes_per_s(1 << 16) > 0


def test_loads_visit_every_line_of_memory(monkeypatch):
    monkeypatch.setattr(limits, "_MOST_BYTES", 1 << 15)
    monkeypatch.setattr(limits, "_CHASED", 64)
    monkeypatch.setattr(limits, "_REPEATS", 1)
    visited = []

    def chase(following, loads, last):
        place, seen = 0, set()
        while place not in seen:
            seen.add(place)
            place = int(following[place])
        visited.append(len(seen) * 64)
        return 1.0

    monkeypatch.setattr(limits, "_seconds_of_chase", chase)
    assert list(limits.latencies()) == visited


@pytest.mark.parametrize(
    ("measured", "caches"),
    [
        ({1: 1, 2: 1, 4: 1.1, 8: 4, 16: 4, 32: 4.2, 64: 5.4, 128: 12, 256: 12, 512: 12, 1024: 90}, [4, 64, 512]),
        ({1: 1, 2: 1, 4: 5, 8: 20, 16: 80, 32: 85, 64: 85}, [2]),
        ({1: 1, 2: 1, 4: 1}, []),
    ],
)  # fmt: skip
def test_a_cache_ends_where_the_latency_leaves_its_level(monkeypatch, measured, caches):
    monkeypatch.setattr(limits, "latencies", lambda: measured)
    assert limits.cache_bytes() == caches
