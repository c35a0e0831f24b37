"""Map a function of single examples over a batch."""

import functools
from collections.abc import Callable
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.func.trees import leaves, mapped, rebuilt
from spillgrad.generator import default_generator
from spillgrad.ops.join_split import select, stack
from spillgrad.tensor import Tensor

__all__ = ["vmap"]

_RANDOMNESS = ("error", "different", "same")


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Return a function that calls `func` on each example of a batch, and stacks the results.

    It is a loop over the examples: as right as the calls are, and as slow as they are together. Write large batches
    with operations that take batches.

    Parameters
    ----------
    func : callable
        Function of single examples.
    in_dims : int or None or nested structure of them, default 0
        Which dimension of each argument counts the examples; None for an argument that all share. All examples share
        the keyword arguments.
    out_dims : int or nested structure of int, default 0
        Where the examples lie in the results.
    randomness : {"error", "different", "same"}, default "error"
        Whether random draws are the same for all examples; otherwise, they differ.
    chunk_size : int, optional
        Accepted for PyTorch's programs.

    Returns
    -------
    callable
        Takes batches.

    Raises
    ------
    ArgumentError
        For another `randomness`; in a call, for sizes that differ, and for a batch of none.

    Examples
    --------
    >>> import spillgrad as sg
    >>> batched_dot = sg.func.vmap(sg.dot)
    >>> batched_dot(sg.ones(3, 2), sg.ones(3, 2))
    tensor([2., 2., 2.])
    """
    if randomness not in _RANDOMNESS:
        raise ArgumentError(
            f"vmap: Only allowed values for randomness are {', '.join(_RANDOMNESS)}; got {randomness!r}"
        )

    @functools.wraps(func)
    def computed(*arguments: Any, **options: Any) -> Any:
        places, values = leaves(_dims_of(in_dims, list(arguments))), leaves(arguments)
        size = _batch_size(places, values)
        state = default_generator.get_state()
        results = []
        for i in range(size):
            if randomness == "same":
                default_generator.set_state(state)
            parts = iter([x if dim is None else select(x, dim, i) for dim, x in zip(places, values, strict=True)])
            results.append(func(*rebuilt(arguments, parts), **options))
        return _stacked(results, out_dims)

    return computed


def _dims_of(dims: Any, tree: Any) -> Any:
    """Return the batch dimension of each leaf of `tree`: `dims` has the tree's structure, or that of its upper part."""
    if dims is None or isinstance(dims, int):
        return mapped(lambda _: dims, tree)
    if isinstance(tree, dict) and isinstance(dims, dict) and dims.keys() == tree.keys():
        return {key: _dims_of(dims[key], value) for key, value in tree.items()}
    if isinstance(tree, tuple | list) and isinstance(dims, tuple | list) and len(dims) == len(tree):
        return [_dims_of(dim, value) for dim, value in zip(dims, tree, strict=True)]
    raise ArgumentError(
        f"vmap: in_dims is not compatible with the structure of inputs: got {dims!r} for {type(tree).__name__}; give "
        "integer, None, or one of these for each argument"
    )


def _batch_size(places: list[Any], values: list[Any]) -> int:
    sizes: set[int] = set()
    for dim, value in zip(places, values, strict=True):
        if dim is None:
            continue
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"vmap: Got in_dim={dim} for an input but the input is of type {type(value).__name__}. We cannot vmap "
                "over non-Tensor arguments, please use None as the respective in_dim"
            )
        if not -value.ndim <= dim < value.ndim:
            raise ArgumentError(f"vmap: Got in_dim={dim} for an input of {value.ndim} dimensions")
        sizes.add(value.shape[dim])
    if not sizes:
        raise ArgumentError("vmap: got no dimension to map over; at least one of in_dims must not be None")
    if len(sizes) > 1:
        raise ArgumentError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sorted(sizes)}"
        )
    (size,) = sizes
    if not size:
        raise ArgumentError("vmap: got a batch of no examples, from which the shapes of the results cannot be told")
    return size


def _stacked(results: list[Any], out_dims: Any) -> Any:
    dims = leaves(_dims_of(out_dims, results[0]))
    columns = list(zip(*map(leaves, results), strict=True))
    for column in columns:
        if not all(isinstance(value, Tensor) for value in column):
            raise ArgumentError(f"vmap: `f` must only return Tensors, got type {type(column[0]).__name__}")
    return rebuilt(results[0], iter([stack(list(c), dim) for c, dim in zip(columns, dims, strict=True)]))
