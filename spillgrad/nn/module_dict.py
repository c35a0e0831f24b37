"""A dictionary of modules."""

from spillgrad.nn.module import Module
from spillgrad.nn.registry_dict import RegistryDict

__all__ = ["ModuleDict"]


class ModuleDict(RegistryDict[Module]):
    """A dictionary whose modules are registered under their keys, in insertion order; it has no forward."""

    @property
    def _entries(self) -> dict[str, Module]:
        return self._modules  # type: ignore[return-value]

    def __setitem__(self, key: str, module: Module) -> None:
        self.register_module(key, module)
