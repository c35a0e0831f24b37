"""A list of modules."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Self

from spillgrad.nn.module import Module


class ModuleList(Module):
    """A list whose modules are registered under their index; it is not called itself."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Insert a module before an index."""
        modules = [*self]
        modules.insert(index, module)
        self._replace(modules)

    def _replace(self, modules: list[Module]) -> None:
        self._modules.clear()
        self.extend(modules)
        Module._structure_version += 1

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        modules = [*self][index]
        return type(self)(modules) if isinstance(modules, list) else modules

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(str(range(len(self))[index]), module)

    def __delitem__(self, index: int | slice) -> None:
        modules = [*self]
        del modules[index]
        self._replace(modules)

    def __repr__(self) -> str:
        """Show runs of equal modules once, as `(0-11): 12 x Block(...)`."""
        lines = []
        first = 0
        for shown, equal in itertools.groupby(map(repr, self)):
            count = len(list(equal))
            lines.append(f"({first}-{first + count - 1}): {count} x {shown}" if count > 1 else f"({first}): {shown}")
            first += count
        return self._represent(lines)
