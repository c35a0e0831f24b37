"""Scaled dot-product attention by tiles: it never holds the T x S matrix of weights, so memory is linear in T and S.

A tile of scores stays in the L2 cache between the product that computes it and the products that read it. These read
the tile, or its transpose, without packing. Scores are multiplied by log2(e), because exponentials to base 2 are the
fastest.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import math

import numpy as np

from spillgrad_kernels.cpu.microkernel import multiply_strided, prefetch
from spillgrad_kernels.cpu.packing import pack
from spillgrad_kernels.cpu.pointers import aligned, array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, like_of, tile_columns
from spillgrad_kernels.cpu.random import draw
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import REASSOCIATE, jit
from spillgrad_kernels.layout import address_of, batch_offsets, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.attention import (
    Dropout,
    check_first_keys,
    check_operands,
    checked_softcap,
    dropout_operands,
    reach_of,
)
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.tables.reductions import maximum_of_any_zero
from spillgrad_kernels.tables.scalar_math import normal_exp2, tanh, where
from spillgrad_kernels.threads.dispatch import parallel_for

# The sides of a tile of scores, both multiples of the micro-kernel's tile. At T = 2048 on a Zen 4 (1 MiB of L2), a tile
# of 96 x 192 ran 5 % slower, one of 192 x 384 as fast.
QUERIES = 96
KEYS = 384
# The number of queries for which the forward pass packs keys and values once: a multiple of QUERIES.
_CHUNK = 12 * QUERIES
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
_INT32 = np.zeros(1, np.int32)
LOG2_E = 1 / math.log(2)


# Each loop over a row is a separate function, because LLVM vectorises it only then.
@jit
def _row_max(row: np.ndarray) -> float:
    largest = row.dtype.type(-np.inf)
    for j in range(row.size):
        largest = maximum_of_any_zero(largest, row[j])
    return largest  # type: ignore[no-any-return]


@jit(fastmath=REASSOCIATE)
def _exponentials(row: np.ndarray, shift: float) -> float:
    """Replace each element x of `row` by 2**(x - `shift`), in place; return the sum of the new elements."""
    total = row.dtype.type(0)
    for j in range(row.size):
        row[j] = normal_exp2(row[j] - shift)
        total += row[j]
    return total  # type: ignore[no-any-return]


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
def _cap(row: np.ndarray, cap: float) -> None:
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
    least = np.int64(np.iinfo(np.int32).max)
    for r in range(starts.size):
        start = max(0, array_at(_INT32, source + r * row, 1)[0])
        starts[r] = start
        block = r // TILE_ROWS
        lows[block] = start if r % TILE_ROWS == 0 else min(lows[block], start)
        least = min(least, start)
    return least  # type: ignore[no-any-return]


@jit
def first_column(lows: np.ndarray, k0: int) -> int:
    """Return the first column of a tile to compute, a multiple of `_FIRST_COLUMNS`."""
    least = k0 + KEYS
    for low in lows:
        least = min(least, low)
    return max(0, least - k0) // _FIRST_COLUMNS * _FIRST_COLUMNS  # type: ignore[no-any-return]


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
            _cap(row[begin:end], cap)


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


@jit
def _weigh(
    like: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, means: int, means_row: int, value_width: int,
    largest: np.ndarray, total: np.ndarray, low: int, starts: np.ndarray, k0: int, ahead: int,
) -> None:  # fmt: skip
    """Replace a tile's scores by weights 2**(score - largest), in place, and update `largest`, `total` and the means.

    `largest` and `total` hold each query's largest score and sum of weights so far. `means` is the address of the sums
    of weighted values so far, in rows of `value_width` elements. Where `largest` grows, the older weights in `total`
    and in `means` are scaled down.
    """
    zero, lowest = like.dtype.type(0), like.dtype.type(-np.inf)
    for r in range(rows):
        row = array_at(like, tile + r * tile_row, KEYS)
        first, visible = visible_columns(r, columns, starts[r], k0, ahead)
        begin, end = hide_rest(row, low, first, visible, columns, lowest)
        before = largest[r]
        now = maximum_of_any_zero(before, _row_max(row[begin:end]))
        # If all scores so far are -inf, a finite shift gives weights of 0. A shift of -inf would give NaN.
        shift = where(now == lowest, zero, now)
        added = _exponentials(row[begin:end], shift)
        shrink = normal_exp2(before - shift)
        if now != before:
            largest[r] = now
            mean = array_at(like, means + r * means_row, value_width)
            for j in range(value_width):
                mean[j] *= shrink
        total[r] = total[r] * shrink + added


@jit
def _forward(
    start: int, stop: int, empty: np.ndarray, choice: np.ndarray, places: np.ndarray, strides: np.ndarray, queries: int,
    keys: int, width: int, value_width: int, chunk: int, scale: float, softcap: float, reach: int, has_starts: bool,
    mask_kind: int, dropout: bool, threshold: int, kept_factor: float, seed: int, counter: int,
) -> None:  # fmt: skip
    """Compute `out` and `lse` for chunks `start` to `stop` of `chunk` queries each, numbered over all heads.

    `places` holds the addresses of each head's q, k, v, out, lse, mask and first keys; `strides` holds the strides of
    these operands (see `common_operands`). Query i sees no key after i + `reach`.
    """
    size, number = empty.itemsize, empty.dtype.type
    chunks = (queries + chunk - 1) // chunk
    row_counters = (keys + 3) // 4
    q_pitch, v_pitch, tile_row = pitch(empty, width), pitch(empty, value_width), pitch(empty, KEYS)
    q_row, q_col, k_row, k_col, v_row, v_col, out_row, out_col, lse_row, _, mask_row, _, starts_row, _ = strides
    panels_bytes = round_up(KEYS * width * size, VECTOR_BYTES) + VECTOR_BYTES
    needed = chunk * (q_pitch + v_pitch) + KEYS * v_pitch + QUERIES * tile_row + panels_bytes + VECTOR_BYTES
    # The addresses below point into this array. The array is used below until the end, so that Numba does not free it
    # earlier.
    like = np.empty(needed // size, empty.dtype)
    tile = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    query_rows = tile + QUERIES * tile_row
    means = query_rows + chunk * q_pitch
    value_rows = means + chunk * v_pitch
    panels = value_rows + KEYS * v_pitch
    words = np.empty(QUERIES * KEYS if dropout else 0, np.uint32)
    largest, total = np.empty(chunk, like.dtype), np.empty(chunk, np.float64)
    starts, lows = np.empty(chunk, np.int64), np.empty(chunk // TILE_ROWS, np.int64)
    one, query_scale, cap = number(1), number(scale * LOG2_E), number(softcap * LOG2_E)
    for task in range(start, stop):
        head = task // chunks
        # Under a causal mask, the last chunks take longest. They are computed first, so that short chunks end the work
        # evenly.
        first = (chunks - 1 - task % chunks) * chunk
        q, k, v, out, lse, mask, first_keys = places[head]
        present = min(chunk, queries - first)
        least = load_starts(starts[:present], lows, first_keys + first * starts_row, starts_row, has_starts)
        load_rows(like, present, width, q + first * q_row, q_row, q_col, query_rows, q_pitch, query_scale)
        largest[:] = -np.inf
        total[:] = 0
        array_at(like, means, chunk * v_pitch // size)[:] = 0
        for k0 in range(least // KEYS * KEYS, min(keys, first + present + reach), KEYS):
            columns = min(KEYS, keys - k0)
            pack(like_of(like), tile_columns(like), k + k0 * k_row, k_row, k_col, columns, width, panels)
            load_rows(like, columns, value_width, v + k0 * v_row, v_row, v_col, value_rows, v_pitch, one)
            for q0 in range(0, present, QUERIES):
                rows = min(QUERIES, present - q0)
                ahead = first + q0 - k0 + reach
                least_starts = lows[q0 // TILE_ROWS : (q0 + rows + TILE_ROWS - 1) // TILE_ROWS]
                seen, low = min(columns, rows + ahead), first_column(least_starts, k0)
                if seen <= low:
                    continue
                begins = starts[q0 : q0 + rows]
                mean, corner = means + q0 * v_pitch, tile + low * size
                multiply_by_panels(
                    like, rows, seen, width, query_rows + q0 * q_pitch, q_pitch, panels, tile, tile_row, least_starts,
                    k0, ahead,
                )  # fmt: skip
                if cap != 0:
                    cap_scores(like, rows, seen, tile, tile_row, 0, cap, begins, k0, ahead)
                if mask_kind != NO_MASK:
                    place = mask + (first + q0) * mask_row + (k0 + low) * (size if mask_kind == BIAS else 1)
                    apply_mask(like, choice, mask_kind, rows, seen - low, corner, tile_row, place, mask_row)
                _weigh(
                    like, rows, seen, tile, tile_row, mean, v_pitch, value_width,
                    largest[q0 : q0 + rows], total[q0 : q0 + rows], low, begins, k0, ahead,
                )  # fmt: skip
                if dropout:
                    row_number = np.uint64(head * queries + first + q0)
                    at = counter + row_number * np.uint64(row_counters) + np.uint64((k0 + low) // 4)
                    draw_words(words, rows, seen - low, at, row_counters, seed)
                    drop(like, words, rows, seen - low, corner, tile_row, threshold, kept_factor)
                multiply_tile(
                    like, rows, seen, value_width, tile, tile_row, value_rows, v_pitch, mean, v_pitch, least_starts,
                    k0, ahead,
                )  # fmt: skip
        for r in range(present):
            position = first + r
            # A query that sees no key has no mean.
            inverse = number(1 / total[r]) if total[r] != 0 else number(0)
            store_rows(
                like, 1, value_width, means + r * v_pitch, v_pitch, out + position * out_row, out_row, out_col, inverse
            )
            array_at(like, lse + position * lse_row, 1)[0] = largest[r] / LOG2_E + np.log(total[r])


@on_device("attention")
def attention_forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool, mask: np.ndarray | None = None,
    dropout: Dropout | None = None, first_keys: np.ndarray | None = None, softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return softmax(scale q k^T + mask) v and, for backward, the logarithm of each query's sum of exponentials.

    With `causal`, query i sees the keys up to i. With `first_keys`, int32 that broadcasts to (..., T), the queries are
    the last T of S positions, and query i sees the keys from first_keys[i] up to S - T + i. With `softcap`, scores
    x become softcap * tanh(x / softcap) before the mask. The result of a query that sees no key is 0.
    Shapes: q (..., T, D), k (..., S, D), v (..., S, E); out (..., T, E), lse (..., T). Any strides. The mask broadcasts
    to (..., T, S). Its elements are bool, True for the keys to see, or numbers to add to the scores.
    Raises ValueError for shapes that do not match. Raises TypeError for dtypes that do not match.
    """
    q, k, v = checked(q, k, v)
    out = empty_in_order_of(q, v.shape[-1])
    lse = buffers.empty(q.shape[:-1], q.dtype)
    queries, keys, width, value_width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    if keys == 0:
        out.fill(0)
        lse.fill(-np.inf)
    elif lse.size:
        mask, mask_kind = checked_mask(mask, lse, keys)
        starts = checked_first_keys(first_keys, lse)
        heads = lse.size // queries
        chunk = round_up(min(_CHUNK, -(-queries * heads // TASKS), queries), QUERIES)
        chunk = round_up(-(-queries // -(-queries // chunk)), TILE_ROWS)
        parallel_for(
            _forward, heads * -(-queries // chunk), 1 + GRAIN // (chunk * keys * (width + value_width)),
            *common_operands(q, k, v, out, lse[..., None], mask, starts), queries, keys, width, value_width, chunk,
            float(scale), checked_softcap(softcap), reach_of(queries, keys, causal, first_keys),
            first_keys is not None, mask_kind, *dropout_operands(dropout, q.dtype),
        )  # fmt: skip
    return out, lse


def checked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    check_operands(q, k, v)
    return aligned(q), aligned(k), aligned(v)


def checked_mask(mask: np.ndarray | None, lse: np.ndarray, keys: int) -> tuple[np.ndarray, int]:
    """Return `mask`, broadcast to (..., T, S) with contiguous rows, and the mask's kind: CHOICE for bool, else BIAS.

    If `mask` is None, return NO_MASK as the kind, and an array that kernels do not read.
    """
    if mask is None:
        return lse[..., None], NO_MASK
    if mask.dtype not in (np.bool_, lse.dtype):
        raise TypeError(f"attention: got a mask of {mask.dtype}; wanted bool or {lse.dtype} as of q; convert")
    shape = (*lse.shape, keys)
    try:
        # The kernel reads contiguous rows, so a mask that is broadcast along keys is copied.
        if mask.shape[-1:] != (keys,):
            mask = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (keys,)))
        if mask.strides[-1] != mask.itemsize or not mask.flags.aligned:
            mask = np.ascontiguousarray(mask)
        return np.broadcast_to(mask, shape), CHOICE if mask.dtype == np.bool_ else BIAS
    except ValueError:
        raise ValueError(f"attention: got a mask of {mask.shape}; wanted one that broadcasts to {shape}") from None


def checked_first_keys(first_keys: np.ndarray | None, lse: np.ndarray) -> np.ndarray:
    """Return `first_keys`, broadcast to (..., T, 1); if it is None, an array that kernels do not read."""
    if first_keys is None:
        return lse[..., None]
    check_first_keys(first_keys, lse.shape)
    return np.broadcast_to(aligned(first_keys), lse.shape)[..., None]


def empty_in_order_of(array: np.ndarray, width: int) -> np.ndarray:
    """Return an uninitialised array of the shape of `array`, except that its last dimension has size `width`.

    The last dimension is contiguous. The other dimensions have the same order in memory as in `array`.
    """
    lead = array.shape[:-1]
    order = sorted(range(len(lead)), key=lambda axis: -abs(array.strides[axis]))
    ordered = buffers.empty((*[lead[axis] for axis in order], width), array.dtype)
    if order == sorted(order):
        return ordered
    return ordered.transpose(*np.argsort(order), len(lead))


def common_operands(*operands: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return four arrays that tell kernels the dtypes, addresses and strides of the operands' matrices.

    The first two are empty: one has the operands' dtype, the other is bool. The third, of shape (heads, operands),
    holds the address of each operand's matrix for each head. The last holds the row stride and the column stride of
    each operand, in bytes.
    """
    starts = np.array([address_of(operand) for operand in operands], np.int64)
    strides = np.array([stride for operand in operands for stride in operand.strides[-2:]], np.int64)
    places = batch_offsets(operands[0].shape[:-2], *map(layout_of, operands)) + starts
    return np.empty(0, operands[0].dtype), np.empty(0, np.bool_), places, strides
