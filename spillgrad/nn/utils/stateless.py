"""Call a module with other parameters and buffers than its own."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spillgrad.errors import ArgumentError, OperandError, StateDictError
from spillgrad.nn.module import Module
from spillgrad.nn.utils.parametrize import is_parametrized
from spillgrad.tensor import Tensor

__all__ = ["functional_call"]

# Where a tensor is registered: the module's parameters or buffers, and the name there.
Place = tuple[dict[str, Any], str]


def functional_call(
    module: Module,
    parameter_and_buffer_dicts: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """Return ``module(*args, **kwargs)``, computed with the given tensors in place of parameters and buffers.

    Gradients flow to the given tensors. Other threads must not use the module during the call.

    Parameters
    ----------
    module : Module
        The module.
    parameter_and_buffer_dicts : mapping or sequence of mapping
        Tensors by the names of `named_parameters` and `named_buffers`; the module's others stay. For the name of a
        parametrized tensor, the originals are replaced by the `right_inverse` of the given one.
    args : object, optional
        Tuple of the arguments, or a single argument; by default, there are none.
    kwargs : mapping, optional
        Keyword arguments.
    tie_weights : bool, default True
        Whether a tensor that is registered under several names is replaced under all.
    strict : bool, default False
        Whether the names must be exactly the module's.

    Returns
    -------
    object
        The module's result.

    Raises
    ------
    StateDictError
        If `strict`, unless the names are exactly the module's.
    ArgumentError
        If several dictionaries have a name, or tied names have different tensors.
    OperandError
        If `parameter_and_buffer_dicts` is neither a dictionary nor a sequence of them.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.Linear(2, 1, bias=False)
    >>> sg.func.functional_call(layer, {"weight": sg.ones(1, 2)}, sg.tensor([3.0, 4.0])).tolist()
    [7.0]
    """
    given = _merged(parameter_and_buffer_dicts)
    with _replaced(module, given, tie_weights, strict):
        arguments = () if args is None else args if isinstance(args, tuple) else (args,)
        return module(*arguments, **(kwargs or {}))


def _merged(dicts: Any) -> dict[str, Tensor]:
    if isinstance(dicts, Mapping):
        return dict(dicts)
    if not isinstance(dicts, Sequence) or not all(isinstance(part, Mapping) for part in dicts):
        raise OperandError(
            "functional_call: Expected all elements of parameter_and_buffer_dicts to be dictionaries, got "
            f"{type(dicts).__name__}"
        )
    merged: dict[str, Tensor] = {}
    for part in dicts:
        if repeated := merged.keys() & part.keys():
            raise ArgumentError(
                f"functional_call: {sorted(repeated)} appeared in multiple dictionaries; give each once"
            )
        merged.update(part)
    return merged


def _places(module: Module) -> dict[str, Place]:
    """Return, by its full name, where each parameter and buffer is registered; shared ones have several names."""
    found: dict[str, Place] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for registry in (part._parameters, part._buffers):
            for name in registry:
                found[f"{path}.{name}" if path else name] = registry, name
    return found


def _with_originals(module: Module, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the originals of parametrized ones in place of these."""
    parametrized: dict[str, Any] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if is_parametrized(part):
            prefix = f"{path}." if path else ""
            for name, made_by in part.parametrizations.items():
                parametrized[f"{prefix}{name}"] = f"{prefix}parametrizations.{name}.", made_by
    found: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if name in parametrized:
            prefix, made_by = parametrized[name]
            found |= {f"{prefix}{key}": original for key, original in made_by.originals_of(tensor).items()}
        else:
            found[name] = tensor
    return found


@contextlib.contextmanager
def _replaced(module: Module, given: Mapping[str, Tensor], tie_weights: bool, strict: bool) -> Iterator[None]:
    places = _places(module)
    if strict and given.keys() != places.keys():
        raise StateDictError(
            f"functional_call: Missing key(s): {sorted(places.keys() - given.keys())}, Unexpected key(s): "
            f"{sorted(given.keys() - places.keys())}"
        )
    before = {name: registry[key] for name, (registry, key) in places.items()}
    new = {name: tensor for name, tensor in _with_originals(module, given).items() if name in places}
    if tie_weights:
        new = _tied(before, new)
    try:
        for name, tensor in new.items():
            registry, key = places[name]
            registry[key] = tensor
        yield
    finally:
        for name in new:
            registry, key = places[name]
            registry[key] = before[name]


def _tied(before: Mapping[str, Any], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the new tensors also under the other names of the tensors that they replace."""
    by_tensor: dict[int, Tensor] = {}
    for name, tensor in new.items():
        known = by_tensor.setdefault(id(before[name]), tensor)
        if known is not tensor:
            raise ArgumentError(
                f"functional_call: {name} is tied to another name whose value differs; give one value for both, or "
                "tie_weights=False"
            )
    return {
        name: by_tensor[id(old)] for name, old in before.items() if old is not None and id(old) in by_tensor
    } | dict(new)
