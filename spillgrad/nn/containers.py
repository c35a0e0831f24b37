"""Lists and dictionaries of modules and of parameters."""

import itertools
import operator
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Any, Generic, Self, TypeVar

from spillgrad.errors import ArgumentError, DimensionError, OperandError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]

Entry = TypeVar("Entry")


class _Container(Module, Generic[Entry]):
    """The base of containers: it registers entries as modules, by name, in order of insertion."""

    @property
    def _entries(self) -> dict[str, Any]:
        return self._modules

    def _put(self, name: str, entry: Any) -> None:
        self.register_module(name, entry)

    def __len__(self) -> int:
        return len(self._entries)


class _ParameterContainer(_Container[Any]):
    """The base of containers of parameters: tensors become parameters, modules sub-modules, others plain attributes."""

    @property
    def _keys(self) -> dict[str, None]:
        """The names of the entries, in order."""
        return vars(self).setdefault("_entry_keys", {})  # type: ignore[no-any-return]

    @property
    def _entries(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._keys}

    def _put(self, name: str, entry: Any) -> None:
        if name not in self._keys and hasattr(self, name):
            raise KeyError(f"{type(self).__name__}: attribute {name!r} already exists; take another name")
        setattr(self, name, self._as_parameter(entry))
        self._keys[name] = None

    def __len__(self) -> int:
        return len(self._keys)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._keys.pop(name, None)

    @staticmethod
    def _as_parameter(value: Any) -> Any:
        """Return a parameter that shares a tensor's memory, and anything else as it is."""
        return Parameter(value) if isinstance(value, Tensor) and not isinstance(value, Parameter) else value

    def extra_repr(self) -> str:
        return "\n".join(
            f"({name}): Parameter of shape {entry.shape}, {entry.dtype}" if isinstance(entry, Tensor)
            else f"({name}): Object of type: {type(entry).__name__}"
            for name, entry in self._entries.items()
        )  # fmt: skip


class _List(_Container[Entry]):
    """The base of lists, whose entries are registered under their index."""

    def _append(self, entry: Any) -> Self:
        self._put(str(len(self)), entry)
        return self

    def _extend(self, entries: Iterable[Any]) -> Self:
        for entry in list(entries):  # they may be this list's own
            self._append(entry)
        return self

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())


class _ModuleSequence(_List[Module]):
    """The base of `ModuleList` and `Sequential`: modules registered under their index or a name.

    A method that changes the positions of modules registers every module under its new index; names are lost.
    """

    _modules: dict[str, Module]  # type: ignore[assignment]

    def append(self, module: Module) -> Self:
        """Add a module at the end.

        Parameters
        ----------
        module : Module
            The module.

        Returns
        -------
        Module
            This container.
        """
        return self._append(module)

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end.

        Parameters
        ----------
        modules : iterable of Module
            The modules.

        Returns
        -------
        Module
            This container.
        """
        return self._extend(modules)

    def insert(self, index: int, module: Module) -> Self:
        """Insert a module before an index.

        Parameters
        ----------
        index : int
            Index, which may count from the end.
        module : Module
            The module.

        Returns
        -------
        Module
            This container.

        Raises
        ------
        DimensionError
            If the index is out of range.
        TypeError
            If `module` is no module.
        """
        if not isinstance(module, Module):
            raise TypeError(self._misfit("insert", "a Module", module))
        if not -len(self) <= index <= len(self):
            raise DimensionError(f"{type(self).__name__}: Index out of range: {index}; it has {len(self)} modules")
        modules = [*self]
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, key: int | slice) -> Any:
        """Remove and return a module or several.

        Parameters
        ----------
        key : int or slice
            Index, or slice of the sequence.

        Returns
        -------
        Module
            The module at the index, or the sequence of modules in the slice.
        """
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

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._of(dict(list(self._modules.items())[index]))
        return self._modules[self._name(index)]

    def _of(self, named: dict[str, Module]) -> Self:
        """Return a new sequence of this class with the given modules."""
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


class ModuleList(_ModuleSequence):
    """A list whose modules are registered under their index; it has no forward.

    Parameters
    ----------
    modules : iterable of Module, optional
        First entries; by default, the list is empty.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layers = sg.nn.ModuleList([sg.nn.Linear(2, 2) for _ in range(3)])
    >>> len(layers)
    3
    >>> layers
    ModuleList(
      (0-2): 3 x Linear(in_features=2, out_features=2, bias=True)
    )
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __add__(self, other: Iterable[Module]) -> "ModuleList":
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> Self:
        return self.extend(other)

    def __repr__(self) -> str:
        """Return the representation, in which a run of equal modules is one line: `(0-11): 12 x Block(...)`."""
        lines = []
        first = 0
        for shown, equal in itertools.groupby(map(repr, self)):
            count = len(list(equal))
            lines.append(f"({first}-{first + count - 1}): {count} x {shown}" if count > 1 else f"({first}): {shown}")
            first += count
        return self._represent(lines)


class Sequential(_ModuleSequence):
    """Feed each module's result to the next.

    Parameters
    ----------
    *modules : Module
        The modules in order, or one dict of modules by name.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Sequential(sg.nn.Linear(4, 8), sg.nn.ReLU(), sg.nn.Linear(8, 2))
    >>> model(sg.zeros(3, 4)).shape
    (3, 2)
    >>> model[1]
    ReLU()
    """

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        named: Any = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else dict(enumerate(modules))
        for name, module in named.items():
            self.register_module(str(name), module)

    def forward(self, x: Any) -> Any:
        """Return the last module's result.

        Parameters
        ----------
        x : object
            The first module's argument.

        Returns
        -------
        object
            The last module's result; `x` if there is no module.
        """
        for module in self._modules.values():
            x = module(x)
        return x

    def _of(self, named: dict[str, Module]) -> Self:
        return type(self)(named)

    def _require_chain(self, other: Any) -> "Sequential":
        if not isinstance(other, Sequential):
            raise ArgumentError(
                f"Sequential: add operator supports only objects of Sequential class, but {type(other)} is given; "
                "extend() takes any modules"
            )
        return other

    def __add__(self, other: "Sequential") -> "Sequential":
        return Sequential(*self, *self._require_chain(other))

    def __iadd__(self, other: "Sequential") -> Self:
        return self.extend(self._require_chain(other))

    def __mul__(self, count: int) -> "Sequential":
        return Sequential(*self).__imul__(count)

    __rmul__ = __mul__

    def __imul__(self, count: int) -> Self:
        """Repeat the modules `count` times, in place; every repetition holds the same objects."""
        if not isinstance(count, int):
            raise TypeError(f"Sequential: unsupported operand type(s) for *: {type(self)} and {type(count)}")
        if count < 1:
            raise ArgumentError(f"Sequential: Non-positive multiplication factor {count}; wanted a number from 1 on")
        return self.extend([*self] * (count - 1))


class ParameterList(_ParameterContainer, _List[Any]):
    """A list whose parameters are registered under their index; tensors become parameters.

    Modules in it are registered, too; other values are kept as they are.

    Parameters
    ----------
    values : iterable, optional
        First entries; by default, the list is empty.
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def append(self, value: Any) -> Self:
        """Add a parameter, or another value, at the end.

        Parameters
        ----------
        value : object
            The entry.

        Returns
        -------
        ParameterList
            This list.
        """
        return self._append(value)

    def extend(self, values: Iterable[Any]) -> Self:
        """Add several parameters or other values at the end.

        Parameters
        ----------
        values : iterable
            The entries.

        Returns
        -------
        ParameterList
            This list.

        Raises
        ------
        OperandError
            If `values` is a single tensor.
        """
        if isinstance(values, Tensor):  # iterating over it would split it
            raise OperandError("ParameterList.extend should be called with an iterable, but got Tensor: use append")
        return self._extend(values)

    __iadd__ = extend

    def __getitem__(self, index: int | slice) -> Any:
        found = [*self][index]
        return type(self)(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, value: Any) -> None:
        self._put(str(range(len(self))[index]), value)


class _Dict(_Container[Entry]):
    """The base of dictionaries."""

    def __init__(self, entries: Any = None) -> None:
        super().__init__()
        self.update(entries or {})

    def update(self, entries: Any) -> None:
        """Add or replace entries.

        Parameters
        ----------
        entries : mapping or iterable
            Entries by key, or (key, entry) pairs.
        """
        for key, value in dict(entries).items():
            self[key] = value

    def pop(self, key: str) -> Entry:
        """Remove an entry and return it.

        Parameters
        ----------
        key : str
            Key of the entry.

        Returns
        -------
        object
            The entry.

        Raises
        ------
        KeyError
            If the key does not exist.
        """
        value = self[key]
        delattr(self, key)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        for key in list(self._entries):
            del self[key]

    def keys(self) -> KeysView[str]:
        """Return the keys.

        Returns
        -------
        collection of str
            The keys in order.
        """
        return self._entries.keys()

    def values(self) -> ValuesView[Entry]:
        """Return the entries.

        Returns
        -------
        collection
            The entries in order.
        """
        return self._entries.values()

    def items(self) -> ItemsView[str, Entry]:
        """Return keys and entries.

        Returns
        -------
        collection of tuple
            The (key, entry) pairs in order.
        """
        return self._entries.items()

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]  # type: ignore[no-any-return]

    def __setitem__(self, key: str, value: Any) -> None:
        self._put(key, value)

    def __delitem__(self, key: str) -> None:
        self.pop(key)


class ModuleDict(_Dict[Module]):
    """A dictionary whose modules are registered under their keys, in insertion order; it has no forward.

    Parameters
    ----------
    entries : mapping or iterable, optional
        First entries: modules by key, or (key, module) pairs.
    """


class ParameterDict(_ParameterContainer, _Dict[Any]):
    """A dictionary whose parameters are registered under their keys; tensors become parameters.

    Modules in it are registered, too; other values are kept as they are. Entries stay in order of insertion; PyTorch
    sorts those of a plain dict by key.

    Parameters
    ----------
    entries : mapping or iterable, optional
        First entries: values by key, or (key, value) pairs.
    """

    def get(self, key: str, default: Any = None) -> Any:
        """Return the parameter of a key, or the default if there is none.

        Parameters
        ----------
        key : str
            Key of the entry.
        default : object, optional
            Result for an unknown key; by default, None.

        Returns
        -------
        object
            The entry, or `default`.
        """
        return self._entries.get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the parameter of a key; add `default` first if there is none.

        Parameters
        ----------
        key : str
            Key of the entry.
        default : object, optional
            Entry for an unknown key; by default, None.

        Returns
        -------
        object
            The entry.
        """
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self) -> tuple[str, Any]:
        """Remove the last parameter.

        Returns
        -------
        str
            Its key.
        object
            The parameter.

        Raises
        ------
        KeyError
            If the dictionary is empty.
        """
        if not self._keys:
            raise KeyError("ParameterDict: popitem of an empty dictionary")
        key = next(reversed(self._keys))
        return key, self.pop(key)

    def copy(self) -> "ParameterDict":
        """Return a new dictionary with the same parameters.

        Returns
        -------
        ParameterDict
            The copy.
        """
        return ParameterDict(self.items())

    @staticmethod
    def fromkeys(keys: Iterable[str], default: Any = None) -> "ParameterDict":
        """Return a dictionary in which one tensor, or another value, is the entry of every key.

        Parameters
        ----------
        keys : iterable of str
            The keys.
        default : object, optional
            The entry; by default, None.

        Returns
        -------
        ParameterDict
            The dictionary.
        """
        shared = ParameterDict._as_parameter(default)
        return ParameterDict((key, shared) for key in keys)

    def __or__(self, other: "ParameterDict") -> "ParameterDict":
        return self.copy().__ior__(other)

    def __ror__(self, other: Mapping[str, Any]) -> "ParameterDict":
        return ParameterDict(other).__ior__(self)

    def __ior__(self, other: "ParameterDict") -> Self:
        self.update(other)
        return self
