"""Modules run one after the other."""

from typing import Any, Self

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.nn.module_sequence import ModuleSequence

__all__ = ["Sequential"]


class Sequential(ModuleSequence):
    """Feed each module's result to the next. Takes the modules, or one dict of modules by name."""

    def __init__(self, *modules: Module | dict[str, Module]) -> None:
        super().__init__()
        named: Any = modules[0] if len(modules) == 1 and isinstance(modules[0], dict) else dict(enumerate(modules))
        for name, module in named.items():
            self.register_module(str(name), module)

    def forward(self, x: Any) -> Any:
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
        """Repeat the modules; every repetition holds the same objects."""
        if not isinstance(count, int):
            raise TypeError(f"Sequential: unsupported operand type(s) for *: {type(self)} and {type(count)}")
        if count < 1:
            raise ArgumentError(f"Sequential: Non-positive multiplication factor {count}; wanted a number from 1 on")
        return self.extend([*self] * (count - 1))
