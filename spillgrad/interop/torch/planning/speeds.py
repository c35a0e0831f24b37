"""The speed of PyTorch on this machine, and the time that work takes at that speed."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_MATRIX = 1024
_ELEMENTS = 8 << 20
_SMALL = 64
_CALLS = 200
_TIMES = 5


@dataclasses.dataclass
class Work:
    """Work of functions: floating-point operations by dtype, bytes of new and of existing tensors, and calls."""

    flops: "collections.Counter[Any]" = dataclasses.field(default_factory=collections.Counter)
    new_bytes: int = 0
    used_bytes: int = 0
    calls: int = 0

    def add(self, other: "Work") -> None:
        """Add other work to this."""
        self.flops.update(other.flops)
        self.new_bytes += other.new_bytes
        self.used_bytes += other.used_bytes
        self.calls += other.calls


class Speeds:
    """Measures what a product, a byte and a call of PyTorch take, with this process's number of threads."""

    def __init__(self) -> None:
        self._flop_per_s: dict[Any, float] = {}  # by dtype
        x = torch.ones(_ELEMENTS)
        self._used_s = _median(lambda: x.mul_(1.0)) / (2 * x.nbytes)  # a byte read, or written in place
        self._new_s = max(0.0, _median(lambda: x + x) / x.nbytes - self._used_s)  # a byte of a new tensor
        small = torch.ones(_SMALL)
        self._call_s = _median(lambda: [small + small for _ in range(_CALLS)]) / _CALLS

    def flop_per_s(self, dtype: Any) -> float:
        """Return the floating-point operations of products of a dtype in a second."""
        if dtype not in self._flop_per_s:
            a = torch.ones(_MATRIX, _MATRIX).to(dtype)
            self._flop_per_s[dtype] = 2 * _MATRIX**3 / _median(lambda: a @ a)
        return self._flop_per_s[dtype]

    def seconds(self, work: Work) -> float:
        """Return how long work takes."""
        seconds: float = work.new_bytes * self._new_s + work.used_bytes * self._used_s + work.calls * self._call_s
        for dtype, flops in work.flops.items():
            seconds += flops / self.flop_per_s(dtype)
        return seconds


def _median(run: Callable[[], Any]) -> float:
    run()
    taken = []
    for _ in range(_TIMES):
        began_s = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began_s)
    return statistics.median(taken)
