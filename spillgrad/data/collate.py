"""Samples to batches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from spillgrad.errors import ArgumentError
from spillgrad.ops import creation, join_split
from spillgrad.tensor import Tensor

__all__ = ["default_collate", "default_convert"]


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack samples of the same structure into a batch: tensors, arrays and numbers become tensors, strings lists.

    Tuples and lists of them become lists, mappings mappings and named tuples named tuples, of batches.
    Raises ArgumentError for samples of other types, or of different lengths.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return join_split.stack(list(batch))
    if isinstance(first, np.ndarray | np.generic) and first.dtype.kind not in "SUO":
        return creation.tensor(np.stack([np.asarray(sample) for sample in batch]))
    if isinstance(first, float):
        return creation.tensor(batch, dtype="float64")
    if isinstance(first, int):
        return creation.tensor(batch)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        found = {key: default_collate([sample[key] for sample in batch]) for key in first}
        return _like(first, found)
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise ArgumentError("collate: each element in list of batch should be of equal size")
        parts = [default_collate(samples) for samples in zip(*batch, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else parts
    raise ArgumentError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found "
        f"{type(first).__name__}; give the DataLoader a collate_fn"
    )


def default_convert(data: Any) -> Any:
    """Return a sample with arrays as tensors, in the same structure."""
    if isinstance(data, np.ndarray | np.generic) and data.dtype.kind not in "SUO":
        return creation.as_tensor(data)
    if isinstance(data, Mapping):
        return _like(data, {key: default_convert(value) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return [default_convert(value) for value in data]
    return data


def _like(mapping: Mapping[Any, Any], found: dict[Any, Any]) -> Any:
    """Return a dict as a mapping of the same type, if that can be made of a dict."""
    try:
        return type(mapping)(found)  # type: ignore[call-arg]
    except TypeError:
        return found
