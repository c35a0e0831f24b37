"""Checks of attention's arguments, and attention's dropout, for the CPU and for devices."""

import math
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.random import threshold_and_scale


class Dropout(NamedTuple):
    """Dropout of attention weights: a weight is 0 with probability `p` < 1; `seed` and `offset` fix the random words.

    Each row of S weights uses `counters_needed(S)` counters of its own. Counters begin at `offset`, in the order of
    heads and queries.
    """

    p: float
    seed: int
    offset: int


def check_operands(q: Any, k: Any, v: Any, accepted: Any = FLOATS) -> None:
    """Check q, k and v for `attention_forward`. Raises ValueError for wrong shapes, TypeError for wrong dtypes."""
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if q.ndim < 2 or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ValueError(f"attention: got {shapes}; wanted the same dimensions before positions and features; expand")
    if k.shape[-2] != v.shape[-2] or not q.shape[-1] == k.shape[-1] > 0:
        raise ValueError(f"attention: got {shapes}; wanted (..., T, D), (..., S, D), (..., S, E) with D at least 1")
    if q.dtype not in accepted or not q.dtype == k.dtype == v.dtype:
        wanted = " or ".join(f"all {name}" for name in sorted(map(str, accepted)))
        raise TypeError(f"attention: got {q.dtype}, {k.dtype}, {v.dtype}; wanted {wanted}; convert")


def check_results(q: Any, v: Any, grad_out: Any, out: Any, lse: Any) -> None:
    """Check grad_out, out and lse for these q and v. Raises ValueError for wrong shapes, TypeError for wrong dtypes."""
    wanted = (*q.shape[:-1], v.shape[-1])
    if grad_out.shape != wanted or out.shape != wanted or lse.shape != wanted[:-1]:
        raise ValueError(
            f"attention: got grad_out {grad_out.shape}, out {out.shape}, lse {lse.shape}; "
            f"wanted {wanted}, {wanted}, {wanted[:-1]}; pass what attention_forward returned for these q, k and v"
        )
    sums = q.dtype if q.dtype in FLOATS else np.dtype(np.float32)
    if not (grad_out.dtype == out.dtype == q.dtype and lse.dtype == sums):
        raise TypeError(
            f"attention: got grad_out {grad_out.dtype}, out {out.dtype}, lse {lse.dtype}; wanted {q.dtype} as of "
            f"q, and {sums} for lse; convert"
        )


def check_first_keys(first_keys: Any, shape: tuple[int, ...]) -> None:
    """Check the first keys of queries, of `shape`. Raises TypeError for another dtype than int32, else ValueError."""
    if first_keys.dtype != np.int32:
        raise TypeError(f"attention: got first keys of {first_keys.dtype}; wanted int32; convert")
    try:
        broadcasts = np.broadcast_shapes(first_keys.shape, shape) == shape
    except ValueError:
        broadcasts = False
    if not broadcasts:
        raise ValueError(f"attention: got first keys of {first_keys.shape}; wanted a shape that broadcasts to {shape}")


def checked_softcap(softcap: float | None) -> float:
    """Return the bound of scores, or 0 for none. Raises ValueError unless it is positive and finite."""
    if softcap is None:
        return 0.0
    if not 0 < softcap < math.inf:
        raise ValueError(
            f"attention: got softcap={softcap}; wanted a positive number, or None for scores without bound"
        )
    return float(softcap)


def reach_of(queries: int, keys: int, causal: bool, first_keys: Any) -> int:
    """Return the number that, added to that of a query, gives the number of the last key that the query sees."""
    if first_keys is not None:
        return keys - queries
    return 0 if causal else keys


def dropout_operands(dropout: Dropout | None, dtype: np.dtype) -> tuple[bool, np.uint32, Any, np.uint64, np.uint64]:
    """Return the arguments with which kernels compute dropout. Raises ValueError unless p is in [0, 1).

    These are whether weights are dropped, the least random word for which a weight is kept, the factor for kept
    weights, the seed, and the first counter.
    """
    if dropout is None:
        return False, np.uint32(0), dtype.type(1), np.uint64(0), np.uint64(0)
    if not 0 <= dropout.p < 1:
        raise ValueError(f"attention: got dropout p={dropout.p}; wanted a probability from 0 to below 1")
    threshold, scale = threshold_and_scale(dropout.p)
    seed = np.uint64(dropout.seed & 0xFFFFFFFFFFFFFFFF)
    return True, np.uint32(threshold), dtype.type(scale), seed, np.uint64(dropout.offset)
