"""Attention of positions to former ones: to all, to those of a window, or to those of their document."""

import math

import numpy as np

from spillgrad.errors import ArgumentError, DtypeError, ShapeError
from spillgrad.ops import creation
from spillgrad.ops.attention import Seen, attend, checked_batch, grouped, ungrouped
from spillgrad.ops.clamp_where import clamp
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.shape import unsqueeze
from spillgrad.tensor import Tensor

__all__ = ["causal_attention"]


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, first_keys: Tensor | np.ndarray | None = None, dropout_p: float = 0.0,
    scale: float | None = None, softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Return attention of the last positions of a sequence to the former ones, each from its first key up to itself.

    It is for models with sliding windows, and for rows of several documents, whose `starts` are first keys. Memory is
    linear in T and S, and what no query sees takes no time. On a CUDA device, `first_keys` becomes a mask of T x S, and
    with `softcap` all scores exist at once.

    Parameters
    ----------
    query : Tensor
        Of shape (..., heads, T, E): the last T of S positions.
    key : Tensor
        Of shape (..., shared, S, E). Neighbouring heads of the query share a head of key and value; `shared` divides
        `heads`.
    value : Tensor
        Of shape (..., shared, S, V).
    first_keys : Tensor or array, optional
        For each query, the position of the first key that it sees: integers of a shape that broadcasts to (..., T),
        the same for all heads. By default, queries see all keys up to themselves. A query whose first key is a later
        one sees none.
    dropout_p : float, default 0.0
        Probability with which a weight is set to 0.
    scale : float, optional
        Factor of the scores; by default, ``1 / sqrt(E)``.
    softcap : float, optional
        Bound of the scores: a score x becomes ``softcap * tanh(x / softcap)``.

    Returns
    -------
    Tensor
        Of shape (..., heads, T, V); 0 for a query that sees no key.

    Raises
    ------
    ShapeError
        If the shapes do not fit together, or there are more queries than keys.
    DtypeError
        If the dtypes differ or are not of floating-point numbers, or first keys are not integers.
    ArgumentError
        If `softcap` is not positive, or `dropout_p` is no probability.

    See Also
    --------
    scaled_dot_product_attention : Attention with any mask, as in PyTorch.

    Examples
    --------
    A position sees the last 3, itself included, of the document that begins at position 0 or 4:

    >>> import spillgrad as sg
    >>> q, k, v = (sg.randn(1, 2, 6, 8) for _ in range(3))
    >>> starts = sg.tensor([[0, 0, 0, 0, 4, 4]])
    >>> first_keys = sg.maximum(starts, sg.arange(6) - 2)
    >>> tuple(sg.nn.functional.causal_attention(q, k, v, first_keys).shape)
    (1, 2, 6, 8)
    """
    name = "causal_attention"
    if softcap is not None and not 0 < softcap < math.inf:
        raise ArgumentError(f"{name}: got softcap={softcap}; wanted a positive number, or None for no bound")
    if min(query.ndim, key.ndim, value.ndim) < 3:
        raise ShapeError(
            f"{name}: got query {query.shape}, key {key.shape} and value {value.shape}; each needs at least three "
            "dimensions: heads, positions and features"
        )
    queries, keys, lead = query.shape[-2], key.shape[-2], query.shape[:-3]
    if queries > keys:
        raise ShapeError(
            f"{name}: got {queries} queries for {keys} keys; the queries are the last positions of the keys': give the "
            "keys of all positions"
        )
    starts = None if first_keys is None else _checked_first_keys(first_keys, query, keys)
    is_grouped = query.shape[-3] != key.shape[-3]
    if is_grouped:
        query, key, value = grouped(name, query, key, value)
    checked_batch(name, query, key, value)
    if starts is None and 1 < queries < keys:
        starts = creation.zeros(queries, dtype="int32", device=query.device)
    if starts is not None and starts.ndim > 1:
        for _ in range(query.ndim - len(lead) - 2):
            starts = unsqueeze(starts, -2)
    seen = Seen(is_causal=queries == keys) if starts is None else Seen(first_keys=starts)
    result = attend(name, query, key, value, seen, dropout_p, scale, None if softcap is None else float(softcap))
    return ungrouped(result) if is_grouped else result


def _checked_first_keys(given: Tensor | np.ndarray, query: Tensor, keys: int) -> Tensor:
    """Return first keys as int32 on the query's device. Raises DtypeError or ShapeError if they do not fit."""
    first_keys = given if isinstance(given, Tensor) else creation.as_tensor(given, device=query.device)
    if first_keys.numpy_dtype.kind not in "iu":
        raise DtypeError(f"causal_attention: got first keys of {first_keys.dtype}; wanted integers: positions of keys")
    shape = (*query.shape[:-3], query.shape[-2])
    try:
        broadcasts = np.broadcast_shapes(first_keys.shape, shape) == shape
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise ShapeError(
            f"causal_attention: got first keys of shape {first_keys.shape}; wanted one that broadcasts to {shape}: a "
            "position for each query"
        )
    return first_keys if first_keys.numpy_dtype == np.int32 else to_dtype(clamp(first_keys, 0, keys), "int32")
