"""Packing: copies of a matrix's blocks as panels, in which the numbers that are multiplied together are neighbours.

A panel holds the rows of A or the columns of B that a tile of C needs, over the depth of a block. Below, rows of A and
columns of B are both called lines. `like` is an array of the panels' dtype: float32, float64 or `BFLOAT16_PAIR`. A
`BFLOAT16_PAIR` holds two neighbours along the depth; the micro-kernel adds up their products in float32.
B may be a quantized matrix: its numbers are computed on the way into the panel. An address of such a B is its `origin`
(see `quantization.py`) plus `CODE_BYTES` for each number before it, which stand for no memory.
Source: Van Zee and van de Geijn, "BLIS: A Framework for Rapidly Instantiating BLAS Functionality", 2015.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.microkernel import copy_tile_line, transpose_block
from spillgrad_kernels.cpu.pointers import array_at, words_on_stack
from spillgrad_kernels.cpu.product_tile import BFLOAT16_PAIR, HALVES, TILE_VECTORS, VECTOR_BYTES, is_pair
from spillgrad_kernels.cpu.quantization import describes, expand
from spillgrad_kernels.jit.compile import jit, overload, register_jitable
from spillgrad_kernels.tables.quantization import BLOCK

# The number of panels that are packed together if lines are neighbours in memory.
_PANEL_RUN = 8
# How far numbers of a quantized matrix are apart, in the addresses that stand for them. No operand's numbers are.
CODE_BYTES = 16
# Numbers of a panel's lines, a block of each, as a kernel expands them before it packs them.
_EXPANDED = words_on_stack(TILE_VECTORS * VECTOR_BYTES * BLOCK // 8)


@jit
def pack(
    like: np.ndarray, width: int, source: int, across: int, along: int, count: int, depth: int, target: int
) -> None:
    """Copy `count` lines of `depth` elements at address `source` into panels of `width` lines at address `target`.

    `width` is the number of rows of a tile, or of elements in one vector or two. In a panel, the elements of all lines
    at the same depth are neighbours. At the source, lines are `across` bytes
    apart, and the elements of a line are `along` bytes apart. The last panel is filled up with zeros.
    """
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    whole = count // width if across == size else 0
    # Several panels are packed at a time: memory is read faster in long runs, but too many targets would not fit the
    # caches.
    for first in range(0, whole, _PANEL_RUN):
        for d in range(depth):
            for panel in range(first, min(first + _PANEL_RUN, whole)):
                place = target + (panel * depth + d) * width * size
                copy_tile_line(like, width, source + panel * width * size + d * along, place)
    for first in range(whole * width, count, width):
        present = min(width, count - first)
        corner = source + first * across
        panel = target + first * depth * size
        done = 0
        if along == size:
            done = depth - depth % lanes
            for d in range(0, done, lanes):
                # Last lines first: a block may write beyond the panel's width, over the first lines of the next depth.
                for line in range((width - 1) // lanes * lanes, -1, -lanes):
                    block = corner + d * size + line * across
                    lines = min(lanes, present - line)
                    transpose_block(like, block, across, lines, panel + (d * width + line) * size, width)
        for d in range(done, depth):
            packed = array_at(like, panel + d * width * size, width)
            if across == size:
                neighbours = array_at(like, corner + d * along, present)
                for line in range(present):
                    packed[line] = neighbours[line]
            else:
                for line in range(present):
                    packed[line] = array_at(like, corner + line * across + d * along, 1)[0]
            for line in range(present, width):
                packed[line] = 0


@jit
def _pack_pairs(
    like: np.ndarray, width: int, source: int, across: int, along: int, count: int, depth: int, target: int
) -> None:
    """Pack lines of `depth` bfloat16 numbers as pairs, like `pack`. For an odd depth, the last pair ends with 0."""
    pairs = (depth + 1) // 2
    if along == HALVES.itemsize and depth % 2 == 0:
        pack(like, width, source, across, like.itemsize, count, pairs, target)
        return
    for first in range(0, count, width):
        present = min(width, count - first)
        corner = source + first * across
        for pair in range(pairs):
            packed = array_at(like, target + (first * pairs + pair * width) * like.itemsize, width)
            lower = corner + 2 * pair * along
            is_whole = 2 * pair + 1 < depth
            upper = lower + along if is_whole else lower
            mask = np.uint32(0xFFFF0000 if is_whole else 0)
            if across == HALVES.itemsize:
                firsts, seconds = array_at(HALVES, lower, present), array_at(HALVES, upper, present)
                for line in range(present):
                    packed[line] = np.uint32(firsts[line]) | (np.uint32(seconds[line]) << np.uint32(16) & mask)
            else:
                for line in range(present):
                    low = np.uint32(array_at(HALVES, lower + line * across, 1)[0])
                    high = np.uint32(array_at(HALVES, upper + line * across, 1)[0])
                    packed[line] = low | (high << np.uint32(16) & mask)
            for line in range(present, width):
                packed[line] = 0


def packer(like: np.ndarray) -> Callable[..., None]:
    """Return the function that packs into panels of the dtype of `like`. It has the same parameters as `pack`."""
    return _pack_pairs if like.dtype == BFLOAT16_PAIR else pack  # type: ignore[no-any-return]


overload(packer)(lambda like: (lambda like: _pack_pairs) if is_pair(like.dtype) else (lambda like: pack))


def has_codes(codes: np.ndarray) -> bool:
    """Return whether the dtype of `codes` is that of a format of quantized matrices."""
    return codes.dtype.itemsize == 1


overload(has_codes)(lambda codes: (lambda codes: True) if codes.dtype.bitwidth == 8 else (lambda codes: False))


@register_jitable
def code_row_bytes(columns: int) -> int:
    """Return how far rows of a quantized matrix are apart, in the addresses that stand for its numbers."""
    return CODE_BYTES * max(columns, 2)  # never as far as numbers, by which kernels tell rows from columns


@jit
def _pack_codes(
    like: np.ndarray, codes: np.ndarray, origin: int, width: int, source: int, across: int, along: int, count: int,
    depth: int, target: int,
) -> None:  # fmt: skip
    size = like.itemsize
    row_bytes = code_row_bytes(describes(origin).columns)
    row, column = (source - origin) // row_bytes, (source - origin) % row_bytes // CODE_BYTES
    if across == CODE_BYTES:
        whole = count // width * width
        for d in range(depth):
            place = target + d * width * size
            expand(codes, like, origin, row + d, column, whole, place, width, depth * width * size)
            if whole < count:
                place += whole * depth * size
                expand(codes, like, origin, row + d, column + whole, count - whole, place, width, 0)
                rest = array_at(like, place, width)
                for line in range(count - whole, width):
                    rest[line] = 0
        return
    words = _EXPANDED()
    expanded: Any = np.intp(words.ctypes.data)
    for first in range(0, count, width):
        present = min(width, count - first)
        for d in range(0, depth, BLOCK):
            run = min(BLOCK, depth - d)
            for line in range(present):
                place = expanded + line * BLOCK * size
                expand(codes, like, origin, row + first + line, column + d, run, place, BLOCK, 0)
            place = target + (first * depth + d * width) * size
            pack(like, width, expanded, BLOCK * size, size, present, run, place)


@jit
def _pack_numbers(
    like: np.ndarray, codes: np.ndarray, origin: int, width: int, source: int, across: int, along: int, count: int,
    depth: int, target: int,
) -> None:  # fmt: skip
    packer(like)(like, width, source, across, along, count, depth, target)


def b_packer(codes: np.ndarray) -> Callable[..., None]:
    """Return the function that packs B: from numbers or, if the dtype of `codes` is a format's, from those of codes.

    Its parameters are `like`, `codes`, the address of the description of a quantized B, and those of `pack` from
    `width` on.
    """
    return _pack_codes if has_codes(codes) else _pack_numbers  # type: ignore[no-any-return]


overload(b_packer)(
    lambda codes: (lambda codes: _pack_codes) if codes.dtype.bitwidth == 8 else (lambda codes: _pack_numbers)
)
