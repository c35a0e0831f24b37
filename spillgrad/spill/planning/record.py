"""What a step saves for backward, and how long its forwards take, module by module."""

import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from spillgrad.tensor import Tensor


@dataclasses.dataclass(frozen=True)
class Part:
    """A module that may be recomputed: that spares so many saved bytes, and takes so many seconds more."""

    path: str
    freed_bytes: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Unit:
    """A layer that a model repeats, and the parts of it that may be recomputed instead of all of it."""

    whole: Part
    children: tuple[Part, ...] = ()


class Recorder:
    """Notes what passes by: modules' forwards, and what operations inside save.

    Every memory counts once, for the innermost module that all who save it are in.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._saved: dict[Hashable, tuple[str, int]] = {}  # where, and how many bytes
        self._arguments: dict[str, set[Hashable]] = {}

    def forward(
        self,
        path: str,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        now_s: Callable[[], float] = time.perf_counter,
    ) -> Any:
        """Run the forward of the module at a path; `now_s` is a clock that stands still while the thread waits."""
        known = self._arguments.setdefault(path, set())
        known.update(tensor.storage.uid for tensor in _tensors([args, kwargs]))
        began_s = now_s()
        try:
            return forward(*args, **kwargs)
        finally:
            self.seconds[path] = self.seconds.get(path, 0.0) + now_s() - began_s

    def save(self, path: str, key: Hashable, nbytes: int) -> None:
        """Note a memory that an operation within a module saves."""
        where, most = self._saved.get(key, (path, nbytes))
        self._saved[key] = _common(where, path), max(most, nbytes)

    @property
    def saved_bytes(self) -> int:
        """Everything saved."""
        return sum(nbytes for _, nbytes in self._saved.values())

    def part(self, path: str) -> Part:
        """Return what recomputing a module spares: what only it saves, but for its arguments."""
        return Part(path, sum(self.freed(path).values()), self.seconds[path])

    def freed(self, path: str) -> dict[Hashable, int]:
        """Return the memories that recomputing a module spares, and their bytes."""
        arguments = self._arguments[path]
        return {
            key: nbytes
            for key, (where, nbytes) in self._saved.items()
            if is_within(where, path) and key not in arguments
        }

    def units(self) -> list[Unit]:
        """Return the layers that a `ModuleList` or `Sequential` repeats, in order; without any, the outermost modules.

        Layers that are alike take the same time.
        """
        paths = list(self.seconds)
        units = [path for path in paths if _is_numbered(path) and not any(map(_is_numbered, _outside(path)))]
        units = units or [path for path in paths if "." not in path]
        typical: dict[str, list[float]] = {}
        for path in paths:
            typical.setdefault(pattern(path), []).append(self.seconds[path])

        def part(path: str) -> Part:
            return dataclasses.replace(self.part(path), seconds=statistics.median(typical[pattern(path)]))

        found = {path: [child for child in paths if child.rpartition(".")[0] == path] for path in units}
        return [Unit(part(path), tuple(map(part, children))) for path, children in found.items()]


def pattern(path: str) -> str:
    """Return a path with a star for each number: the same for layers that are alike."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def is_within(path: str, outer: str) -> bool:
    """Whether a path is that of a module, or of one below it."""
    return not outer or path == outer or path.startswith(outer + ".")


def _common(path: str, other: str) -> str:
    while not is_within(other, path):
        path = path.rpartition(".")[0]
    return path


def _outside(path: str) -> Iterator[str]:
    while path := path.rpartition(".")[0]:
        yield path


def _is_numbered(path: str) -> bool:
    return path.rpartition(".")[2].isdigit()


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
