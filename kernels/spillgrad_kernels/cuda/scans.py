"""Kernels of running folds, such as cumulative sums, of (outer, n, inner) arrays along n, in parts of a fixed length.

What precedes a part was folded before. Where n is dense in memory a block of threads goes along a part, a tile at a
time: a thread folds some neighbours, which pass through shared memory, so that accesses are together. Where it is not,
a thread goes down one column of a part, beside its neighbours.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda
from spillgrad_kernels.cuda.pointers import loaders, quotient, storers

# Neighbours that a thread folds: an odd number, so that threads do not meet in one bank of shared memory.
_THREAD_ELEMENTS = 9
TILE = THREADS * _THREAD_ELEMENTS


def along_rows(combine: Callable[..., Any], identity: Any, dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel of arrays with `inner` 1; `before` holds what each part folds to with those before it."""
    number, accumulated = type(identity), np.dtype(type(identity))
    in_shared = getattr(types, accumulated.name)
    load, load_before, store = loaders[dtype.name, 1], loaders[accumulated.name, 1], storers[result.name, 1]
    size, before_size, result_size = dtype.itemsize, accumulated.itemsize, result.itemsize
    threads, own, tile = THREADS, _THREAD_ELEMENTS, TILE

    def scan_rows(rows: int, n: int, parts: int, length: int, a: int, before: int, out: int) -> None:
        elements = cuda.shared.array(tile, in_shared)
        folds = cuda.shared.array(threads, in_shared)
        thread = cuda.threadIdx.x
        group = cuda.blockIdx.x
        while group < rows * parts:
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
                while step < threads:  # until each holds what all threads up to it folded
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
            group += cuda.gridDim.x

    return Kernel(scan_rows, [types.int64] * 7, threads)


def down_columns(combine: Callable[..., Any], identity: Any, dtype: np.dtype[Any], result: np.dtype[Any]) -> Kernel:
    """Return the kernel of any arrays; `before` holds what each part folds to with those before it."""
    number, accumulated = type(identity), np.dtype(type(identity))
    load, load_before, store = loaders[dtype.name, 1], loaders[accumulated.name, 1], storers[result.name, 1]
    size, before_size, result_size = dtype.itemsize, accumulated.itemsize, result.itemsize

    def scan_columns(
        count: int, inner: int, n: int, parts: int, length: int, a: int, before: int, out: int
    ) -> None:  # fmt: skip
        turn = cuda.grid(1)
        while turn < count:
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
            turn += cuda.gridsize(1)

    return Kernel(scan_columns, [types.int64] * 8)
