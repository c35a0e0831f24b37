"""Kernels of running folds, such as cumulative sums, of (outer, n, inner) arrays along n, in parts of a fixed length.

Each part starts from the fold of all parts before it, which another kernel has computed. If n is dense in memory, a
block of threads walks along a part, one tile at a time: a thread folds several adjacent elements. The elements pass
through shared memory, so that adjacent threads access adjacent memory. Otherwise a thread walks down one column of a
part, and adjacent threads have adjacent columns.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, for_each_group, for_each_turn
from spillgrad_kernels.cuda.pointers import loaders, quotient, storers

# The number of adjacent elements that a thread folds: it is odd, so that threads access different banks of shared
# memory.
_THREAD_ELEMENTS = 9
TILE = THREADS * _THREAD_ELEMENTS


def kernel(
    combine: Callable[..., Any], identity: Any, dtype: np.dtype[Any], result: np.dtype[Any], is_dense: bool, name: str
) -> Kernel:
    """Return the kernel of running folds by `combine`: for `inner` = 1 if `is_dense`, else for any `inner`.

    A fold starts from `identity`. The kernel's argument `before` is the address of the running folds of whole parts.
    """
    number, accumulated = type(identity), np.dtype(type(identity))
    in_shared = getattr(types, accumulated.name)
    load, load_before, store = loaders[dtype.name, 1], loaders[accumulated.name, 1], storers[result.name, 1]
    size, before_size, result_size = dtype.itemsize, accumulated.itemsize, result.itemsize
    threads, own, tile = THREADS, _THREAD_ELEMENTS, TILE

    def scan_rows(group: int, n: int, parts: int, length: int, a: int, before: int, out: int) -> None:
        elements = cuda.shared.array(tile, in_shared)
        folds = cuda.shared.array(threads, in_shared)
        thread = cuda.threadIdx.x
        row = quotient(group, parts)
        part = group - row * parts
        first = row * n + part * length
        last = first + length if (part + 1) * length < n else (row + 1) * n
        total = load_before(before + (group - 1) * before_size) if part > 0 else identity
        while first < last:
            for k in range(own):
                i = first + k * threads + thread
                elements[k * threads + thread] = number(load(a + i * size)) if i < last else identity
            cuda.syncthreads()
            folded = identity
            for k in range(own):
                folded = combine(folded, elements[thread * own + k])
            folds[thread] = folded
            cuda.syncthreads()
            step = 1
            while step < threads:  # in the end, each thread holds the fold of all threads up to itself
                other = folds[thread - step] if thread >= step else identity
                cuda.syncthreads()
                folds[thread] = combine(other, folds[thread])
                cuda.syncthreads()
                step *= 2
            folded = combine(total, folds[thread - 1]) if thread > 0 else total
            total = combine(total, folds[threads - 1])
            for k in range(own):
                folded = combine(folded, elements[thread * own + k])
                elements[thread * own + k] = folded
            cuda.syncthreads()
            for k in range(own):
                i = first + k * threads + thread
                if i < last:
                    store(out + i * result_size, elements[k * threads + thread])
            cuda.syncthreads()
            first += tile

    def scan_columns(
        turn: int, inner: int, n: int, parts: int, length: int, a: int, before: int, out: int
    ) -> None:  # fmt: skip
        group = quotient(turn, inner)
        c = turn - group * inner
        o = quotient(group, parts)
        part = group - o * parts
        last = (part + 1) * length if (part + 1) * length < n else n
        place = ((o * inner + c) * parts + part - 1) * before_size
        folded = load_before(before + place) if part > 0 else identity
        for j in range(part * length, last):
            i = (o * n + j) * inner + c
            folded = combine(folded, number(load(a + i * size)))
            store(out + i * result_size, folded)

    return Kernel(for_each_group(scan_rows) if is_dense else for_each_turn(scan_columns), name)
