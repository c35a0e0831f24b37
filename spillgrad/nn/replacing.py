"""Choosing layers of a model by name, and putting other layers in their places."""

import re
from collections.abc import Collection, Iterable, Mapping

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module


class LayerNames:
    """Layers of a model by name: a layer's whole path or an end of it; one string may also be a pattern of whole paths.

    Raises ArgumentError, which begins with `who`, for a string that is no pattern.
    """

    def __init__(self, who: str, names: str | Iterable[str]) -> None:
        self.names = (names,) if isinstance(names, str) else tuple(names)
        try:
            self._pattern = re.compile(names) if isinstance(names, str) else None
        except re.error as error:
            raise ArgumentError(
                f"{who}: got {names!r}, which is no layer's name, and no regular expression ({error}); correct it"
            ) from error

    def __contains__(self, path: str) -> bool:
        return any(self._is_named(path, name) for name in self.names)

    def unknown(self, paths: Collection[str]) -> list[str]:
        """Return the names that none of the paths has."""
        return [name for name in self.names if not any(self._is_named(path, name) for path in paths)]

    def _is_named(self, path: str, name: str) -> bool:
        ends = path == name or path.endswith(f".{name}")
        return ends or (self._pattern is not None and self._pattern.fullmatch(path) is not None)


def replaced(model: Module, others: Mapping[Module, Module]) -> Module:
    """Replace each module in `others` by its value, wherever it is registered; return the model or its replacement."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in others:
                parent.register_module(name, others[child])
    return others.get(model, model)
