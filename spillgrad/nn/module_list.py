"""A list of modules."""

import itertools
from collections.abc import Iterable
from typing import Self

from spillgrad.nn.module import Module
from spillgrad.nn.module_sequence import ModuleSequence

__all__ = ["ModuleList"]


class ModuleList(ModuleSequence):
    """A list whose modules are registered under their index; it has no forward."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> "ModuleList":
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)

    def __repr__(self) -> str:
        """Show runs of equal modules once, as `(0-11): 12 x Block(...)`."""
        lines = []
        first = 0
        for shown, equal in itertools.groupby(map(repr, self)):
            count = len(list(equal))
            lines.append(f"({first}-{first + count - 1}): {count} x {shown}" if count > 1 else f"({first}): {shown}")
            first += count
        return self._represent(lines)
