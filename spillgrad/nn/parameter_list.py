"""A list and a dictionary of parameters."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from spillgrad.errors import OperandError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.registry_dict import RegistryDict
from spillgrad.tensor import Tensor

__all__ = ["ParameterDict", "ParameterList"]


def _as_parameter(name: str, value: Any) -> Parameter:
    """Return a parameter over a tensor's memory. Raises OperandError for anything but a tensor."""
    if isinstance(value, Parameter):
        return value
    if not isinstance(value, Tensor):
        raise OperandError(f"{name}: got {type(value).__name__}; wanted tensors or parameters")
    return Parameter(value)


class ParameterList(Module):
    """A list whose parameters are registered under their index; tensors become parameters."""

    _parameters: dict[str, Parameter]  # type: ignore[assignment]

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end."""
        self.register_parameter(str(len(self)), _as_parameter("ParameterList", value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add parameters at the end. Raises OperandError for a tensor."""
        if isinstance(values, Tensor):  # iterating over it would split it
            raise OperandError("ParameterList.extend should be called with an iterable, but got Tensor: use append")
        for value in list(values):  # they may be this list's own
            self.append(value)
        return self

    __iadd__ = extend

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self._parameters.values())

    def __getitem__(self, index: int | slice) -> Any:
        found = [*self][index]
        return type(self)(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, value: Tensor) -> None:
        self.register_parameter(str(range(len(self))[index]), _as_parameter("ParameterList", value))

    def extra_repr(self) -> str:
        return "\n".join(f"({name}): Parameter of shape {p.shape}, {p.dtype}" for name, p in self._parameters.items())


class ParameterDict(RegistryDict[Parameter]):
    """A dictionary whose parameters are registered under their keys; tensors become parameters.

    They stay in order of insertion, where PyTorch sorts those that come in a plain dict.
    """

    @property
    def _entries(self) -> dict[str, Parameter]:
        return self._parameters  # type: ignore[return-value]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.register_parameter(key, _as_parameter("ParameterDict", value))

    def get(self, key: str, default: Any = None) -> Any:
        """Return the parameter of a key, or the default if there is none."""
        return self._entries.get(key, default)

    def setdefault(self, key: str, default: Tensor) -> Parameter:
        """Return the parameter of a key; add `default` first if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def popitem(self) -> tuple[str, Parameter]:
        """Remove the last parameter; return its key and the parameter. Raises KeyError if there is none."""
        if not self._entries:
            raise KeyError("ParameterDict: popitem of an empty dictionary")
        key = next(reversed(self._entries))
        return key, self.pop(key)

    def copy(self) -> "ParameterDict":
        """Return another dictionary of the same parameters."""
        return ParameterDict(self.items())

    @staticmethod
    def fromkeys(keys: Iterable[str], default: Tensor) -> "ParameterDict":
        """Return a dictionary in which one tensor is the parameter of every key."""
        shared = _as_parameter("ParameterDict", default)
        return ParameterDict((key, shared) for key in keys)

    def __or__(self, other: "ParameterDict") -> "ParameterDict":
        return self.copy().__ior__(other)

    def __ror__(self, other: Mapping[str, Tensor]) -> "ParameterDict":
        return ParameterDict(other).__ior__(self)

    def __ior__(self, other: "ParameterDict") -> Self:
        self.update(other)
        return self

    extra_repr = ParameterList.extra_repr
