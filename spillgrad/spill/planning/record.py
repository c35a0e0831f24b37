"""Record the bytes that each module saves for backward, and the time of its forward."""

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import numpy as np

from spillgrad.spill.module_paths import around, is_numbered, is_within, pattern
from spillgrad.tensor import Tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """A module that may be recomputed; recomputation frees `freed_bytes` of saved tensors and takes `seconds`."""

    path: str
    freed_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Unit:
    """A layer of a model, and its parts, which may be recomputed instead of the whole layer."""

    whole: Part
    children: tuple[Part, ...] = ()


class Recorder:
    """Records the times of modules' forwards, and the memory that operations inside the modules save.

    Saved memory counts once, for the innermost module that contains all operations that save it.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._saved: dict[Hashable, tuple[str, int]] = {}  # by the memory's key: the module's path, and the bytes
        self._arguments: dict[str, set[Hashable]] = {}

    def forward(
        self, path: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> Any:  # fmt: skip
        """Run and time the forward of the module at `path`; the clock `now_s` may stop while the thread waits."""
        known = self._arguments.setdefault(path, set())
        known.update(tensor.storage.uid for tensor in _tensors([args, kwargs]))
        began_s = now_s()
        try:
            return forward(*args, **kwargs)
        finally:
            self.seconds[path] = self.seconds.get(path, 0.0) + now_s() - began_s

    def save(self, path: str, key: Hashable, nbytes: int) -> None:
        """Record that an operation in the module at `path` saves `nbytes` of memory, which `key` identifies."""
        where, most = self._saved.get(key, (path, nbytes))
        both = next(outer for outer in (where, *around(where)) if is_within(path, outer))
        self._saved[key] = both, max(most, nbytes)

    @property
    def saved_bytes(self) -> int:
        """The bytes of all saved memory."""
        return sum(nbytes for _, nbytes in self._saved.values())

    def freed(self, path: str) -> dict[Hashable, int]:
        """Return {memory key: bytes} that recomputing a module frees: memory saved only inside it, except arguments."""
        arguments = self._arguments[path]
        return {
            key: nbytes
            for key, (where, nbytes) in self._saved.items()
            if is_within(where, path) and key not in arguments
        }

    def units(self) -> list[Unit]:
        """Return the layers in a `ModuleList` or `Sequential`, in order; if there are no layers, the outermost modules.

        Modules at the same path within layers of one list get the same time, the median of their times.
        """
        paths = list(self.seconds)
        units = [path for path in paths if is_numbered(path) and not any(map(is_numbered, around(path)))]
        units = units or [path for path in paths if "." not in path]
        typical: dict[str, list[float]] = {}
        for path in paths:
            typical.setdefault(pattern(path), []).append(self.seconds[path])

        def part(path: str) -> Part:
            return Part(path, sum(self.freed(path).values()), float(np.median(typical[pattern(path)])))

        found = {path: [child for child in paths if child.rpartition(".")[0] == path] for path in units}
        return [Unit(part(path), tuple(map(part, children))) for path, children in found.items()]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
