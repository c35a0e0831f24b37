"""Copies between arrays of any strides, on several threads. Copies larger than the caches bypass them."""

import ctypes
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.pointers import array_at, copy_bytes, data_of
from spillgrad_kernels.jit.compile import DISABLE_JIT, emitted, jit, types
from spillgrad_kernels.layout import layout_of
from spillgrad_kernels.threads.dispatch import parallel_for
from spillgrad_kernels.tile_walk import locate, tile_walk

# The side of a square tile of a copy, in elements: whole cache lines of both arrays.
_SIDE = 64
# The bytes of a block of a dense copy, and the number of blocks that pays for another thread.
_BLOCK = 1 << 15
_GRAIN_BLOCKS = 2
# A target of this size would push everything out of the caches, itself included. So it is stored past the caches: 2**24
# floats take 2.7 ms, through the caches 3.7 ms. A smaller target stays in the caches for its next reader. A thread asks
# for its next share by an atomic operation, which makes these stores visible to all threads.
_STREAM_MIN_BYTES = 1 << 25
_LINE = 64

# An element is copied as an unsigned integer of its size, whatever its dtype.
_WORDS = {size: np.zeros(1, kind) for size, kind in {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}.items()}

if DISABLE_JIT:

    def _stream_line(target: int, source: int) -> None:
        """Copy a cache line from address `source` to `target`, past the caches. `target` must be aligned to a line."""
        ctypes.memmove(int(target), int(source), _LINE)

else:

    @emitted(lambda target, source: types.void(types.int64, types.int64))
    def _stream_line(builder: Any, target: Any, source: Any) -> None:
        line = ir.VectorType(ir.IntType(64), _LINE // 8).as_pointer()
        loaded = builder.load(builder.inttoptr(source, line), align=1)
        stored = builder.store(loaded, builder.inttoptr(target, line), align=_LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))


@jit
def _copy_dense(start: int, stop: int, source: int, target: int, nbytes: int, streamed: bool) -> None:
    """Copy blocks `start` to `stop` of a dense array to another dense array, past the caches if `streamed`.

    `source` and `target` are the ids of the arrays.
    """
    first, last = start * _BLOCK, min(stop * _BLOCK, nbytes)
    source, target = data_of(source), data_of(target)
    if not streamed:
        copy_bytes(target + first, source + first, last - first)
        return
    # The target may begin within a cache line. A block copies the target's cache lines that begin in this block.
    skewed = -target % _LINE
    if first == 0:
        copy_bytes(target, source, min(skewed, last))
    for at in range(first + skewed, min(last + skewed, nbytes - _LINE + 1), _LINE):
        _stream_line(target + at, source + at)
    if last == nbytes:
        rest = (nbytes - skewed) % _LINE if nbytes > skewed else 0
        copy_bytes(target + nbytes - rest, source + nbytes - rest, rest)


@jit
def _copy_tiles(start: int, stop: int, loops: Any, source: int, target: int, like: Any) -> None:
    place = np.empty(4, np.int64)
    dims = loops.shape[1]
    flat = loops.reshape(-1)
    down, step = loops[2, -2], loops[2, -1]
    target_down, target_step = loops[3, -2], loops[3, -1]
    for tile in range(start, stop):
        place[0], place[1] = data_of(source), data_of(target)
        locate(flat, dims, tile, place)
        for r in range(place[2]):
            p, q = place[0] + r * down, place[1] + r * target_down
            if step == like.itemsize and target_step == like.itemsize:
                copy_bytes(q, p, place[3] * step)
                continue
            for c in range(place[3]):
                array_at(like, q + c * target_step, 1)[0] = array_at(like, p + c * step, 1)[0]


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy `source` into `target`, in tiles that stay in the cache.

    Both arrays have the same shape and dtype, and any strides. They must not overlap.
    """
    if source.flags.c_contiguous and target.flags.c_contiguous:
        nbytes = source.nbytes
        streamed = nbytes >= _STREAM_MIN_BYTES
        parallel_for(_copy_dense, -(-nbytes // _BLOCK), _GRAIN_BLOCKS, id(source), id(target), nbytes, streamed)
        return
    walk = tile_walk(source.shape, (layout_of(source), layout_of(target)), _SIDE)
    parallel_for(_copy_tiles, walk.tiles, walk.grain, walk.loops, id(source), id(target), _WORDS[source.itemsize])
