"""Scaled dot-product attention by tiles: it never holds the T x S matrix of weights, so memory is linear in T and S.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import numpy as np

from spillgrad_kernels.cpu.attention_tiles import (
    BIAS,
    CHOICE,
    GRAIN,
    KEYS,
    LOG2_E,
    NO_MASK,
    QUERIES,
    TASKS,
    apply_mask,
    cap_row,
    cap_scores,
    draw_words,
    drop,
    first_column,
    hide_rest,
    load_rows,
    load_starts,
    multiply_by_panels,
    multiply_tile,
    pitch,
    store_rows,
    visible_columns,
)
from spillgrad_kernels.cpu.packing import pack
from spillgrad_kernels.cpu.pointers import aligned, array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, like_of, tile_columns
from spillgrad_kernels.cpu.vector_product import combine_columns, dot_rows
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
from spillgrad_kernels.tables.scalar_math import normal_exp2, where
from spillgrad_kernels.threads.dispatch import parallel_for

# The number of queries for which the forward pass packs keys and values once: a multiple of QUERIES.
_CHUNK = 12 * QUERIES
_FROM_THE_START = np.zeros(1, np.int32)


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


@jit
def _one_query(
    start: int, stop: int, empty: np.ndarray, sizes: np.ndarray, places: np.ndarray, starts: np.ndarray, scale: float,
    softcap: float,
) -> None:  # fmt: skip
    """Compute `out` for heads `start` to `stop` of all sequences, of which each has one query."""
    heads, group, keys, width, value_width = sizes
    size, number = empty.itemsize, empty.dtype.type
    scores = np.empty(keys, empty.dtype)
    for task in range(start, stop):
        sequence, head = task // heads, task % heads
        q, q_sequence, q_head, k, k_sequence, k_head, k_row, v, v_sequence, v_head, v_row, out = places
        query = array_at(empty, q + sequence * q_sequence + head * q_head, width)
        first = min(max(starts[sequence % starts.size], 0), keys)
        k += sequence * k_sequence + head // group * k_head + first * k_row
        v += sequence * v_sequence + head // group * v_head + first * v_row
        row = scores[: keys - first]
        dot_rows(empty, row.size, k, k_row, query, row)
        for i in range(row.size):
            row[i] *= number(scale * LOG2_E)
        if softcap != 0:
            cap_row(row, number(softcap * LOG2_E))
        largest = _row_max(row)
        # As in `_weigh`: scores that are all -inf have weights of 0, and the query sees no key.
        total = _exponentials(row, where(largest == number(-np.inf), number(0), largest))
        inverse = number(1) / total if total != 0 else number(0)
        means = array_at(empty, out + task * value_width * size, value_width)
        combine_columns(empty, value_width, row.size, (v, size, v_row), row, means)
        for j in range(value_width):
            means[j] *= inverse


def attention_of_next(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, first_keys: np.ndarray | None = None,
    softcap: float | None = None,
) -> np.ndarray:  # fmt: skip
    """Return attention of the last position of each sequence to all positions, from its first key on.

    It computes what `attention_forward` does for one query, in less time. Neighbouring heads of q share a head of k and
    v. Shapes: q (B, heads, 1, D), k (B, shared, S, D), v (B, shared, S, E), S at least 1; first_keys int32, (1,) or
    (B, 1); result (B, heads, 1, E), 0 for a first key beyond the last. All are float32, or all are float64. Rows are
    contiguous. Raises TypeError for dtypes that differ.
    """
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: got {q.dtype}, {k.dtype} and {v.dtype}; wanted one dtype; convert")
    batch, heads, _, width = q.shape
    _, shared, keys, value_width = v.shape
    out = buffers.empty((batch, heads, 1, value_width), q.dtype)
    sizes = np.array((heads, heads // shared, keys, width, value_width))
    places = np.array(
        (address_of(q), *q.strides[:2], address_of(k), *k.strides[:3], address_of(v), *v.strides[:3], address_of(out))
    )
    parallel_for(
        _one_query, batch * heads, 1 + GRAIN // (keys * (width + value_width)), np.empty(0, q.dtype), sizes, places,
        _FROM_THE_START if first_keys is None else first_keys.reshape(-1), scale, checked_softcap(softcap),
    )  # fmt: skip
    return out


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
