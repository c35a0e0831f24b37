"""A list and a dictionary of parameters."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from spillgrad.errors import OperandError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.tensor import Tensor


def _as_parameter(value: Any) -> Parameter:
    """Return a parameter over a tensor's memory. Raises OperandError for what is no tensor."""
    if isinstance(value, Parameter):
        return value
    if not isinstance(value, Tensor):
        raise OperandError(f"ParameterList: got {type(value).__name__}; wanted tensors or parameters")
    return Parameter(value)


class ParameterList(Module):
    """A list whose parameters are registered under their index; tensors become parameters."""

    _parameters: dict[str, Parameter]  # type: ignore[assignment]

    def __init__(self, values: Iterable[Tensor] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def append(self, value: Tensor) -> Self:
        """Add a parameter at the end."""
        self.register_parameter(str(len(self)), _as_parameter(value))
        return self

    def extend(self, values: Iterable[Tensor]) -> Self:
        """Add parameters at the end."""
        for value in values:
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
        self.register_parameter(str(range(len(self))[index]), _as_parameter(value))

    def extra_repr(self) -> str:
        return "\n".join(f"({name}): Parameter of shape {p.shape}, {p.dtype}" for name, p in self._parameters.items())


class ParameterDict(Module):
    """A dictionary whose parameters are registered under their keys, in order of insertion."""

    _parameters: dict[str, Parameter]  # type: ignore[assignment]

    def __init__(self, parameters: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def update(self, parameters: Mapping[str, Tensor]) -> None:
        """Add or replace parameters by key."""
        for key, value in parameters.items():
            self[key] = value

    def keys(self) -> Iterable[str]:
        """Return the keys."""
        return self._parameters.keys()

    def values(self) -> Iterable[Parameter]:
        """Return the parameters."""
        return self._parameters.values()

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """Return keys and parameters."""
        return self._parameters.items()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a parameter, or the default where there is none of that key."""
        return self._parameters.get(key, default)

    def pop(self, key: str) -> Parameter:
        """Remove a parameter and return it."""
        return self._parameters.pop(key)

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, key: object) -> bool:
        return key in self._parameters

    def __getitem__(self, key: str) -> Parameter:
        return self._parameters[key]

    def __setitem__(self, key: str, value: Tensor) -> None:
        self.register_parameter(key, _as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]

    extra_repr = ParameterList.extra_repr
