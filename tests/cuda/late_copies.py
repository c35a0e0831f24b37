"""A device whose copies come late: code that does not wait for a copy finds what was there before."""

import collections
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from spillgrad_kernels.cuda.driver import driver


class LateCopies:
    """Lets the streams beside `compute` do their work only when something waits for it, or now and then when asked.

    `compute` does its work at once. On a GPU, too, work is done when the call that lets a stream do it returns.
    """

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._random, self._lock = random.Random(seed), threading.RLock()
        self._compute = driver.compute().handle
        self._work: dict[Any, collections.deque[Callable[[], None]]] = collections.defaultdict(collections.deque)
        self._done: collections.Counter[Any] = collections.Counter()
        self._recorded: dict[int, tuple[Any, int]] = {}  # by the identity of an event: a stream, and how much of it
        calls = driver.calls
        self._synchronize = calls.synchronize
        self._at_once = {name: getattr(calls, name) for name in ("to_host", "to_device")}
        for name in ("record", "hold", "is_done", "wait_for", "synchronize"):
            monkeypatch.setattr(calls, name, getattr(self, name))
        for name in self._at_once:
            monkeypatch.setattr(calls, name, lambda *arguments, name=name: self.copy(name, *arguments))

    def copy(self, name: str, target: int, source: int, nbytes: int, stream: Any) -> None:
        def work() -> None:
            self._synchronize(self._compute)
            self._at_once[name](target, source, nbytes, stream)
            self._synchronize(stream)

        if stream == self._compute:
            work()
        else:
            self._work[stream].append(work)

    def record(self, event: Any, stream: Any) -> None:
        with self._lock:
            self._recorded[id(event)] = stream, self._done[stream] + len(self._work[stream])

    def hold(self, stream: Any, event: Any) -> None:
        other, count = self._recorded.get(id(event), (self._compute, 0))
        if stream == self._compute:
            self._advance(other, count)
        else:
            self._work[stream].append(lambda: self._advance(other, count))

    def is_done(self, event: Any) -> bool:
        with self._lock:
            stream, count = self._recorded.get(id(event), (self._compute, 0))
            if self._random.random() < 0.2:
                self._advance(stream, min(count, self._done[stream] + 1))
            return self._done[stream] >= count

    def wait_for(self, event: Any) -> None:
        self._synchronize(self._compute)
        self._advance(*self._recorded.get(id(event), (self._compute, 0)))

    def synchronize(self, stream: Any) -> None:
        self._synchronize(self._compute)
        with self._lock:
            self._advance(stream, self._done[stream] + len(self._work[stream]))

    def _advance(self, stream: Any, count: int) -> None:
        with self._lock:
            while self._done[stream] < count:
                work = self._work[stream].popleft()
                self._done[stream] += 1
                work()
