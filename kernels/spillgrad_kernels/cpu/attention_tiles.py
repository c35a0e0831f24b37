"""Tiles of attention's kernels: how rows and scores lie in memory, and what the forward and backward pass share.

A tile of scores stays in the L2 cache between the product that computes it and the products that read it. These read
the tile, or its transpose, without packing. Scores are multiplied by log2(e), because exponentials to base 2 are the
fastest.
"""

import math

import numpy as np

from spillgrad_kernels.cpu.microkernel import multiply_strided, prefetch
from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, tile_columns
from spillgrad_kernels.cpu.random import draw
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.tables.scalar_math import tanh, where

# The sides of a tile of scores, both multiples of the micro-kernel's tile. At T = 2048 on a Zen 4 (1 MiB of L2), a tile
# of 96 x 192 ran 5 % slower, one of 192 x 384 as fast.
QUERIES = 96
KEYS = 384
# The least number of tasks. Few heads are cut into this many tasks, so that many cores share the work evenly.
TASKS = 32
# The number of multiply-adds that pays for another thread: about 5 microseconds of work.
GRAIN = 1 << 18
# The rows of a head may lie a page apart. No hardware prefetcher follows such strides.
_PREFETCHED_ROWS, _LINE_BYTES = 8, 64
# Bytes per iteration of a vectorised and unrolled loop. The size of KEYS elements is a multiple of this.
_UNROLLED_BYTES = 4 * VECTOR_BYTES
# The first column of a tile that is computed is a multiple of this: of the rows of a micro-kernel's tile, and of the
# random words that one counter gives.
_FIRST_COLUMNS = 4 * TILE_ROWS
NO_MASK, CHOICE, BIAS = 0, 1, 2
_INT32, _HIGHEST = np.zeros(1, np.int32), (1 << 31) - 1
LOG2_E = 1 / math.log(2)


# Each loop over a row is a separate function, because LLVM vectorises it only then.
@jit
def _hide(row: np.ndarray, mask: np.ndarray) -> None:
    for j in range(row.size):
        row[j] = where(mask[j] != 0, row[j], row.dtype.type(-np.inf))


@jit
def _add_bias(row: np.ndarray, bias: np.ndarray) -> None:
    log2_e = row.dtype.type(LOG2_E)
    for j in range(row.size):
        row[j] += bias[j] * log2_e


@jit
def _drop_row(row: np.ndarray, words: np.ndarray, threshold: int, factor: float) -> None:
    for j in range(row.size):
        row[j] = where(words[j] >= threshold, row[j] * factor, row.dtype.type(0))


@jit
def cap_row(row: np.ndarray, cap: float) -> None:
    """Replace each score x of `row` by `cap` * tanh(x / `cap`), in place."""
    for j in range(row.size):
        row[j] = cap * tanh(row[j] / cap)


@jit
def _cap_with_slopes(row: np.ndarray, slopes: np.ndarray, cap: float) -> None:
    """Cap the scores of `row` in place; set `slopes` to the derivatives of the capped scores by the scores."""
    one = row.dtype.type(1)
    for j in range(row.size):
        share = tanh(row[j] / cap)
        row[j] = cap * share
        slopes[j] = (one - share) * (one + share)


@jit
def pitch(like: np.ndarray, width: int) -> int:
    """Return the stride, in bytes, of rows of `width` elements: an odd number of vectors, to use all cache sets."""
    return round_up(width, tile_columns(like)) * like.itemsize + VECTOR_BYTES  # type: ignore[no-any-return]


@jit
def load_rows(
    like: np.ndarray, rows: int, width: int, source: int, row: int, col: int, target: int, pitch: int, factor: float
) -> None:
    """Copy a matrix, multiplied by `factor`, to contiguous rows, and pad the copy with zeros to whole tiles.

    The matrix has `rows` x `width` elements and begins at address `source`, with strides `row` and `col` in bytes. The
    copy begins at address `target`; its rows are `pitch` bytes apart. Both rows and columns are padded.
    """
    size = like.itemsize
    padded = round_up(width, tile_columns(like))
    for r in range(round_up(rows, TILE_ROWS)):
        copy = array_at(like, target + r * pitch, padded)
        filled = 0
        if r < rows:
            filled = width
            if col == size:
                ahead = source + (r + _PREFETCHED_ROWS) * row
                for line in range(0, width * size, _LINE_BYTES):
                    prefetch(ahead + line)
                original = array_at(like, source + r * row, width)
                for j in range(width):
                    copy[j] = original[j] * factor
            else:
                for j in range(width):
                    copy[j] = array_at(like, source + r * row + j * col, 1)[0] * factor
        copy[filled:] = 0


@jit
def store_rows(
    like: np.ndarray, rows: int, width: int, source: int, pitch: int, target: int, row: int, col: int, factor: float
) -> None:
    """Copy contiguous rows, multiplied by `factor`, to a matrix of any strides.

    The rows have `width` elements, and begin at address `source`, `pitch` bytes apart. The matrix begins at address
    `target`, with strides `row` and `col` in bytes.
    """
    for r in range(rows):
        original = array_at(like, source + r * pitch, width)
        if col == like.itemsize:
            copy = array_at(like, target + r * row, width)
            for j in range(width):
                copy[j] = original[j] * factor
        else:
            for j in range(width):
                array_at(like, target + r * row + j * col, 1)[0] = original[j] * factor


# In the functions below, parameters such as `tile`, `a`, `b`, `c` and `panels` are addresses; `tile_row`, `a_row`,
# `b_row` and `c_row` are row strides in bytes. Only the dtype of `like` counts. Query i of a tile sees the tile's keys
# from `starts`[i] - `k0` up to i + `ahead`: `k0` is the number of the tile's first key, and `starts` begins at the
# tile's first query. `lows` has the least start of each `TILE_ROWS` queries, so that products skip the keys that no
# query of a micro-kernel's tile sees. A query that sees all keys has a start of 0, and an `ahead` of at least the
# number of keys.


@jit
def load_starts(starts: np.ndarray, lows: np.ndarray, source: int, row: int, is_given: bool) -> int:
    """Set `starts` to the first keys that queries see, at address `source` and `row` bytes apart; else to 0.

    Set `lows`, too, and return the least start.
    """
    starts[:] = 0
    lows[:] = 0
    if not is_given:
        return 0
    least: int = _HIGHEST
    for r in range(starts.size):
        start = max(0, array_at(_INT32, source + r * row, 1)[0])
        starts[r] = start
        block = r // TILE_ROWS
        lows[block] = start if r % TILE_ROWS == 0 else min(lows[block], start)
        least = min(least, start)
    return least


@jit
def first_column(lows: np.ndarray, k0: int) -> int:
    """Return the first column of a tile to compute, a multiple of `_FIRST_COLUMNS`."""
    least = k0 + KEYS
    for low in lows:
        least = min(least, low)
    return max(0, least - k0) // _FIRST_COLUMNS * _FIRST_COLUMNS


@jit
def multiply_by_panels(
    like: np.ndarray, rows: int, columns: int, depth: int, a: int, a_row: int, panels: int, tile: int, tile_row: int,
    lows: np.ndarray, k0: int, ahead: int,
) -> None:  # fmt: skip
    """Set a tile of scores to the dot products of `rows` queries at address `a` and `columns` keys in `panels`.

    Queries and keys have `depth` elements each.
    """
    size, width = like.itemsize, tile_columns(like)
    for j in range(0, columns, width):
        for i in range(0, rows, TILE_ROWS):
            if lows[i // TILE_ROWS] - k0 < j + width and j < i + TILE_ROWS + ahead:
                multiply_strided(
                    like, depth, a + i * a_row, a_row, size, panels + j * depth * size, width * size,
                    tile + i * tile_row + j * size, tile_row, 0, 0,
                )  # fmt: skip


@jit
def multiply_tile(
    like: np.ndarray, rows: int, columns: int, width: int, tile: int, tile_row: int, b: int, b_row: int, c: int,
    c_row: int, lows: np.ndarray, k0: int, ahead: int,
) -> None:  # fmt: skip
    """Add the matrix product of a tile and B to C, in place.

    Shapes: tile (rows, columns), B (columns, width), C (rows, width).
    """
    size = like.itemsize
    for j in range(0, width, tile_columns(like)):
        for i in range(0, rows, TILE_ROWS):
            low = max(0, lows[i // TILE_ROWS] - k0)
            depth = min(columns, i + TILE_ROWS + ahead) - low
            if depth > 0:
                place = c + i * c_row + j * size
                multiply_strided(
                    like, depth, tile + i * tile_row + low * size, tile_row, size, b + low * b_row + j * size, b_row,
                    place, c_row, place, c_row,
                )  # fmt: skip


@jit
def apply_mask(
    like: np.ndarray, choice: np.ndarray, kind: int, rows: int, columns: int, tile: int, tile_row: int, mask: int,
    mask_row: int,
) -> None:  # fmt: skip
    """Apply a mask to a tile of scores in place: add the mask or, if `kind` is CHOICE, hide scores where it is False.

    The tile of the mask begins at address `mask`; its rows are `mask_row` bytes apart. `choice` is any array of dtype
    bool.
    """
    for r in range(rows):
        row = array_at(like, tile + r * tile_row, columns)
        if kind == CHOICE:
            _hide(row, array_at(choice, mask + r * mask_row, columns))
        else:
            _add_bias(row, array_at(like, mask + r * mask_row, columns))


@jit
def draw_words(words: np.ndarray, rows: int, columns: int, counter: int, row_counters: int, seed: int) -> None:
    for r in range(rows):
        draw(
            words[r * KEYS : r * KEYS + round_up(columns, 4)],
            counter + np.uint64(r * row_counters),
            np.uint64(0),
            seed,
        )


@jit
def drop(
    like: np.ndarray, words: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, threshold: int,
    factor: float,
) -> None:  # fmt: skip
    for r in range(rows):
        _drop_row(array_at(like, tile + r * tile_row, columns), words[r * KEYS :], threshold, factor)


@jit
def _processed(row: np.ndarray, first: int, visible: int) -> tuple[int, int]:
    """Return which scores of a row to process: those from `first` to `visible`, and whole vectorised iterations.

    Vectorised loops would process a remainder one by one.
    """
    step = _UNROLLED_BYTES // row.itemsize
    return first // step * step, round_up(visible, step)


@jit
def visible_columns(row: int, columns: int, start: int, k0: int, ahead: int) -> tuple[int, int]:
    """Return the first column that a row of a tile sees, and the one after the last; both are equal if it sees none."""
    visible = max(0, min(columns, row + 1 + ahead))
    return min(max(0, start - k0), visible), visible


@jit
def cap_scores(
    like: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, slopes: int, cap: float, starts: np.ndarray,
    k0: int, ahead: int,
) -> None:  # fmt: skip
    """Cap a tile of scores in place; if `slopes` is an address, put there a tile of the derivatives."""
    for r in range(rows):
        row = array_at(like, tile + r * tile_row, KEYS)
        first, visible = visible_columns(r, columns, starts[r], k0, ahead)
        begin, end = _processed(row, first, visible)
        if slopes:
            _cap_with_slopes(row[begin:end], array_at(like, slopes + r * tile_row, KEYS)[begin:end], cap)
        else:
            cap_row(row[begin:end], cap)


@jit
def hide_rest(
    row: np.ndarray, low: int, first: int, visible: int, columns: int, hidden: float
) -> tuple[int, int]:  # fmt: skip
    """Return which scores of a row to process (see `_processed`), if those from `first` to `visible` are visible.

    Set the processed scores that are not visible to `hidden`, and the rest of the row, from `low` to `columns`, to 0.
    """
    begin, end = _processed(row, first, visible)
    if first:
        row[low:begin] = 0
        row[begin:first] = hidden
    row[visible:end] = hidden
    row[end : round_up(columns, TILE_ROWS)] = 0
    return begin, end
