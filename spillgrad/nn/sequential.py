"""Modules run one after the other."""

from collections.abc import Iterator
from typing import Any, Self

from spillgrad.nn.module import Module


class Sequential(Module):
    """Feed each module's result to the next; give the modules, or one dict of them by name."""

    _modules: dict[str, Module]  # type: ignore[assignment]

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        named: Any = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else dict(enumerate(modules))
        for name, module in named.items():
            self.register_module(str(name), module)

    def forward(self, x: Any) -> Any:
        for module in self._modules.values():
            x = module(x)
        return x

    def append(self, module: Module) -> Self:
        """Add a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return list(self._modules.values())[index]
