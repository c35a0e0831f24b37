"""The base of `ModuleList` and `Sequential`."""

import operator
from collections.abc import Iterable, Iterator
from typing import Any, Self

from spillgrad.errors import DimensionError
from spillgrad.nn.module import Module


class ModuleSequence(Module):
    """Modules in order, with the methods of a list; they are registered under their index or a name.

    A method that moves modules registers all of them under their index.
    """

    _modules: dict[str, Module]  # type: ignore[assignment]

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end."""
        for module in list(modules):  # they may be this sequence's own
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Insert a module before an index. Raises DimensionError beyond the end, TypeError for other objects."""
        if not isinstance(module, Module):
            raise TypeError(self._misfit("insert", "a Module", module))
        if not -len(self) <= index <= len(self):
            raise DimensionError(f"{type(self).__name__}: Index out of range: {index}; it has {len(self)} modules")
        modules = [*self]
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, key: int | slice) -> Any:
        """Remove the module at an index, or the slice of them, and return it."""
        removed = self[key]
        del self[key]
        return removed

    def _renumber(self, modules: list[Module]) -> None:
        self._modules.clear()
        self.extend(modules)
        Module._structure_version += 1

    def _name(self, index: int) -> str:
        place = operator.index(index)
        if not -len(self) <= place < len(self):
            raise DimensionError(f"{type(self).__name__}: index {place} is out of range; it has {len(self)} modules")
        return list(self._modules)[place]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(dict(list(self._modules.items())[index]))
        return self._modules[self._name(index)]

    def _of(self, named: dict[str, Module]) -> Self:
        """Return another sequence of this class."""
        return type(self)(named.values())  # type: ignore[call-arg]

    def __setitem__(self, index: int, module: Module) -> None:
        self.register_module(self._name(index), module)

    def __delitem__(self, index: int | slice) -> None:
        if not isinstance(index, slice):
            index = slice(place := list(self._modules).index(self._name(index)), place + 1)
        modules = [*self]
        del modules[index]
        self._renumber(modules)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if not name.isdigit()]
