"""Checks of the arguments of indexing, for processors and devices."""

from typing import Any


def reachable_part(who: str, a: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """Return the part of `a` that an index of `shape` along `axis` can reach: the first elements of other dimensions.

    Raises ValueError where the index is larger than `a` in another dimension.
    """
    others = [i for i in range(a.ndim) if i != axis]
    if len(shape) != a.ndim or any(shape[i] > a.shape[i] for i in others):
        raise ValueError(
            f"{who}: got an index of shape {shape} for an array of shape {a.shape}; apart from dimension {axis}, "
            "no dimension of the index may be larger; slice the index"
        )
    return a[tuple(slice(None) if i == axis else slice(shape[i]) for i in range(a.ndim))]


def require_source(index: tuple[int, ...], source: tuple[int, ...]) -> None:
    """Raise ValueError unless a source of this shape has a value for every element of an index."""
    if len(source) != len(index) or any(have < need for have, need in zip(source, index, strict=True)):
        raise ValueError(
            f"scatter_add: got an index of shape {index} and a source of shape {source}; "
            "the source needs a value for every index"
        )
