"""An optimizer's state in a checkpoint: what JSON holds of it, and its tensors by name.

A tensor of a parameter's state is named "<parameter's number>.<entry's name>", and JSON does not mention it. The JSON
object "nested" holds, by number and name, the entries that have tensors within lists, tuples and dicts, such as the
history of L-BFGS, and those that have tuples, or dicts whose keys are no texts. In it `{"tensor": name}` stands for a
tensor, `{"tuple": [...]}` for a tuple, and `{"dict": [[key, value], ...]}` for a dict.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from spillgrad.errors import OperandError
from spillgrad.optim.optimizer import Optimizer
from spillgrad.tensor import Tensor

_NUMBER = re.compile("[0-9]{1,18}")
_KEYS = (str, int, float, type(None))  # what JSON holds exactly; a bool is an int


def split(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return an optimizer's state for JSON, and its tensors by name.

    Raises OperandError for tensors in containers of other kinds, and for state that belongs to no parameter.
    """
    state = optimizer.state_dict()
    writer = _Writer()
    plain: dict[str, dict[str, Any]] = {}
    within: dict[str, dict[str, Any]] = {}  # the entries that JSON alone would not hold exactly
    for number, entries in state["state"].items():
        if not isinstance(number, int):
            raise OperandError(
                f"save_checkpoint: the optimizer has state of {number!r}, which is no parameter; keep it in a group "
                "or save it as extra"
            )
        plain[str(number)] = {}
        for key, value in entries.items():
            if isinstance(value, Tensor):
                writer.tensors[f"{number}.{key}"] = value
            else:
                (plain[str(number)] if _is_json(value) else within.setdefault(str(number), {}))[key] = value
    nested = {
        number: {key: writer.encoded(value, f"{number}.{key}") for key, value in entries.items()}
        for number, entries in within.items()
    }
    result = {"state": plain, "param_groups": state["param_groups"]}
    return result | ({"nested": nested} if nested else {}), writer.tensors


def _is_json(value: Any) -> bool:
    """Return whether JSON gives a value back as it was, as far as its containers are concerned."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return not isinstance(value, tuple) and not any(True for _ in _tensors(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a value."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | set | frozenset | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


class _Writer:
    """Converts containers of tensors to JSON, and collects the tensors by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def encoded(self, value: Any, name: str) -> Any:
        """Return the JSON for a value; its tensors get names that begin with `name`."""
        if isinstance(value, Tensor):
            free, tries = name, 1
            while free in self.tensors:  # an entry may be called as a part of another one
                free, tries = f"{name}#{tries + 1}", tries + 1
            self.tensors[free] = value
            return {"tensor": free}
        if isinstance(value, dict):
            if wrong := [key for key in value if not isinstance(key, _KEYS)]:
                raise OperandError(f"save_checkpoint: {name} has the key {wrong[0]!r}; use texts or numbers")
            return {"dict": [[key, self.encoded(part, f"{name}.{key}")] for key, part in value.items()]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            raise OperandError(
                f"save_checkpoint: {name} is a {type(value).__name__}; a checkpoint has no named tuples; use a dict"
            )
        if isinstance(value, list | tuple):
            parts = [self.encoded(part, f"{name}.{index}") for index, part in enumerate(value)]
            return {"tuple": parts} if isinstance(value, tuple) else parts
        if any(True for _ in _tensors(value)):
            raise OperandError(
                f"save_checkpoint: {name} has tensors in a {type(value).__name__}; keep them in lists, tuples or dicts"
            )
        return value


def is_state(said: Mapping[str, Any]) -> bool:
    """Return whether an object of a JSON file may be the first result of `split`; it must not be nested too deep."""
    entries, groups, nested = said.get("state"), said.get("param_groups"), said.get("nested", {})
    return (
        isinstance(entries, dict)
        and all(_NUMBER.fullmatch(number) and isinstance(entry, dict) for number, entry in entries.items())
        and isinstance(groups, list)
        and all(isinstance(group, dict) and isinstance(group.get("params"), list) for group in groups)
        and all(type(number) is int for group in groups for number in group["params"])
        and isinstance(nested, dict)
        and nested.keys() <= entries.keys()
        and all(
            isinstance(entry, dict) and not entry.keys() & entries[number].keys() for number, entry in nested.items()
        )
        and all(_is_encoded(part) for entry in nested.values() for part in entry.values())
    )


def _is_encoded(part: Any) -> bool:
    if isinstance(part, list):
        return all(map(_is_encoded, part))
    if not isinstance(part, dict):
        return True
    if len(part) != 1:
        return False
    ((kind, content),) = part.items()
    if kind == "tensor":
        return isinstance(content, str)
    if not isinstance(content, list):
        return False
    if kind == "tuple":
        return all(map(_is_encoded, content))
    return kind == "dict" and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], _KEYS) and _is_encoded(pair[1])
        for pair in content
    )


def joined(said: Mapping[str, Any], tensors: dict[str, Any], damaged: Callable[[str], Exception]) -> dict[str, Any]:
    """Return the state dict whose parts `split` returned; its tensors may be stand-ins for tensors in a file.

    Raises what `damaged(why)` returns if the parts do not belong together. `is_state(said)` must be true.
    """
    entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in said["state"].items()}
    left = dict(tensors)

    def decoded(part: Any) -> Any:
        if isinstance(part, list):
            return [decoded(each) for each in part]
        if not isinstance(part, dict):
            return part
        ((kind, content),) = part.items()
        if kind == "tensor":
            if content not in left:
                raise damaged(f"its tensors lack {content}")
            return left.pop(content)
        if kind == "tuple":
            return tuple([decoded(each) for each in content])
        return {key: decoded(each) for key, each in content}

    for number, values in said.get("nested", {}).items():
        entries[int(number)] |= {key: decoded(part) for key, part in values.items()}
    for name, tensor in left.items():
        number, _, key = name.partition(".")
        if not _NUMBER.fullmatch(number) or int(number) not in entries or key in entries[int(number)]:
            raise damaged(f"it tells of no {name}")
        entries[int(number)][key] = tensor
    return {"state": entries, "param_groups": said["param_groups"]}
