"""A dictionary of modules."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

from spillgrad.nn.module import Module


class ModuleDict(Module):
    """A dictionary whose modules are registered under their keys, in order of insertion; it is not called itself."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add or replace modules by key."""
        for key, module in modules.items():
            self.register_module(key, module)

    def keys(self) -> KeysView[str]:
        """Return the keys."""
        return self._modules.keys()

    def values(self) -> ValuesView[Module]:
        """Return the modules."""
        return self._modules.values()

    def items(self) -> ItemsView[str, Module]:
        """Return keys and modules."""
        return self._modules.items()

    def pop(self, key: str) -> Module:
        """Remove a module and return it."""
        module = self._modules.pop(key)
        Module._structure_version += 1
        return module

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def __getitem__(self, key: str) -> Module:
        return self._modules[key]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)

    def __delitem__(self, key: str) -> None:
        self.pop(key)
