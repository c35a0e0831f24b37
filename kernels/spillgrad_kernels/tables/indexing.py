"""Checks of the arguments of indexing, for the CPU and for devices."""

from typing import Any


def reachable_part(who: str, a: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """Return `a` cut to the index's `shape` in all dimensions but `axis`: the part that the index can reach.

    Raises ValueError if a dimension of `shape` other than `axis` is larger than that dimension of `a`.
    """
    others = [i for i in range(a.ndim) if i != axis]
    if len(shape) != a.ndim or any(shape[i] > a.shape[i] for i in others):
        raise ValueError(
            f"{who}: got an index of shape {shape} for an array of shape {a.shape}; apart from dimension {axis}, "
            "no dimension of the index may be larger; slice the index"
        )
    return a[tuple(slice(None) if i == axis else slice(shape[i]) for i in range(a.ndim))]


def require_source(index: tuple[int, ...], source: tuple[int, ...]) -> None:
    """Raise ValueError unless a source of shape `source` has a value for every element of an index of shape `index`."""
    if len(source) != len(index) or any(have < need for have, need in zip(source, index, strict=True)):
        raise ValueError(
            f"scatter_add: got an index of shape {index} and a source of shape {source}; "
            "the source needs a value for every index"
        )
