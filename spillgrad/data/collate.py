"""Samples to batches."""

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from spillgrad.errors import OperandError, ShapeError
from spillgrad.ops import creation, join_split
from spillgrad.tensor import Tensor

__all__ = ["collate", "default_collate", "default_collate_fn_map", "default_convert"]

# What makes a batch of samples of a type, or of each of several types.
Rules = dict[Any, Callable[..., Any]]


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples of the same structure into a batch: tensors, arrays and numbers become tensors, strings stay.

    Parameters
    ----------
    batch : sequence
        The samples.

    Returns
    -------
    object
        The batch: of tuples and lists, lists of batches; of mappings and named tuples, the same of batches.

    Raises
    ------
    OperandError
        For samples of other types; it is a TypeError.
    ShapeError
        For samples of different lengths.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.utils.data.default_collate([(1.0, "a"), (2.0, "b")])
    [tensor([1., 2.], dtype=float64), ('a', 'b')]
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: Sequence[Any], *, collate_fn_map: Rules | None = None) -> Any:
    """Make a batch of samples: by the rule for the type of the first one, else of the batches of their parts.

    A rule is called with the samples, and with the rules as `collate_fn_map`.
    """
    first, rules = batch[0], collate_fn_map or {}
    if type(first) in rules:
        return rules[type(first)](batch, collate_fn_map=collate_fn_map)
    for kind, rule in rules.items():
        if isinstance(first, kind):
            return rule(batch, collate_fn_map=collate_fn_map)
    if isinstance(first, Mapping):
        parts = {key: collate([sample[key] for sample in batch], collate_fn_map=collate_fn_map) for key in first}
        return _mapping(first, parts)
    if isinstance(first, Sequence):
        is_named = isinstance(first, tuple) and hasattr(first, "_fields")
        if not is_named and any(len(sample) != len(first) for sample in batch):
            raise ShapeError("default_collate: each element in list of batch should be of equal size")
        found = [collate(samples, collate_fn_map=collate_fn_map) for samples in zip(*batch, strict=False)]
        if is_named:
            return type(first)(*found)
        return found if isinstance(first, tuple) else _sequence(first, found)
    raise _unknown(type(first))


def _unknown(kind: object) -> OperandError:
    return OperandError(
        f"default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found {kind}; give the "
        "DataLoader a collate_fn"
    )


def _mapping(first: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a dict as a mapping like `first`, which may have more than its items, if that can be made."""
    try:
        if not isinstance(first, MutableMapping):
            return type(first)(parts)  # type: ignore[call-arg]
        made = copy.copy(first)
        made.update(parts)
        return made
    except TypeError:
        return parts


def _sequence(first: Sequence[Any], parts: list[Any]) -> Any:
    """Return a list as a sequence like `first`, which may have more than its items, if that can be made."""
    try:
        if not isinstance(first, MutableSequence):
            return type(first)(parts)  # type: ignore[call-arg]
        made = copy.copy(first)
        for index, part in enumerate(parts):
            made[index] = part
        return made
    except TypeError:  # such as a range
        return parts


def collate_tensor_fn(batch: Sequence[Tensor], *, collate_fn_map: Rules | None = None) -> Tensor:
    """Stack tensors."""
    return join_split.stack(list(batch))


def collate_numpy_array_fn(batch: Sequence[np.ndarray], *, collate_fn_map: Rules | None = None) -> Any:
    """Make tensors of arrays, and a batch of them. Raises OperandError for arrays of objects or texts."""
    if batch[0].dtype.kind in "SUO":
        raise _unknown(batch[0].dtype)
    return collate([creation.as_tensor(array) for array in batch], collate_fn_map=collate_fn_map)


def collate_numpy_scalar_fn(batch: Sequence[Any], *, collate_fn_map: Rules | None = None) -> Tensor:
    """Make a tensor of NumPy's scalars, of their dtype."""
    return creation.as_tensor(np.stack(batch))


def collate_float_fn(batch: Sequence[float], *, collate_fn_map: Rules | None = None) -> Tensor:
    """Make a tensor of float64."""
    return creation.tensor(batch, dtype="float64")


def collate_int_fn(batch: Sequence[int], *, collate_fn_map: Rules | None = None) -> Tensor:
    """Make a tensor of integers or truth values."""
    return creation.tensor(batch)


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: Rules | None = None) -> Any:
    """Return texts as they are."""
    return batch


default_collate_fn_map: Rules = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}


def default_convert(data: Any) -> Any:
    """Return a sample with arrays as tensors, in the same structure; a tuple becomes a list.

    Parameters
    ----------
    data : object
        A sample.

    Returns
    -------
    object
        The sample.
    """
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind not in "SUO":
        return creation.as_tensor(data)
    if isinstance(data, Mapping):
        return _mapping(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        found = [default_convert(value) for value in data]
        return found if isinstance(data, tuple) else _sequence(data, found)
    return data
