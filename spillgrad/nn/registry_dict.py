"""The base of `ModuleDict` and `ParameterDict`."""

from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import Any, Generic, TypeVar

from spillgrad.nn.module import Module

Entry = TypeVar("Entry")


class RegistryDict(Module, Generic[Entry]):
    """A dictionary of registered modules or parameters, in insertion order."""

    def __init__(self, entries: Any = None) -> None:
        super().__init__()
        self.update(entries or {})

    @property
    def _entries(self) -> dict[str, Entry]:
        raise NotImplementedError(f"{type(self).__name__}: defines no _entries")

    def __setitem__(self, key: str, value: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: defines no __setitem__")

    def update(self, entries: Any) -> None:
        """Add or replace entries, given a mapping or pairs."""
        for key, value in dict(entries).items():
            self[key] = value

    def pop(self, key: str) -> Entry:
        """Remove an entry and return it. Raises KeyError if the key does not exist."""
        value = self[key]
        delattr(self, key)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        for key in list(self._entries):
            del self[key]

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self._entries.keys()

    def values(self) -> ValuesView[Entry]:
        """Return the entries."""
        return self._entries.values()

    def items(self) -> ItemsView[str, Entry]:
        """Return keys and entries."""
        return self._entries.items()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __delitem__(self, key: str) -> None:
        self.pop(key)
