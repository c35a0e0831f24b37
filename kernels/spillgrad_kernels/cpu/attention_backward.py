"""The gradients of scaled dot-product attention, computed tile by tile as in the forward pass (see `attention.py`)."""

import numpy as np

from spillgrad_kernels.cpu.attention import (
    checked,
    checked_first_keys,
    checked_mask,
    common_operands,
    empty_in_order_of,
)
from spillgrad_kernels.cpu.attention_tiles import (
    BIAS,
    GRAIN,
    KEYS,
    LOG2_E,
    NO_MASK,
    QUERIES,
    TASKS,
    apply_mask,
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
from spillgrad_kernels.cpu.microkernel import multiply_strided
from spillgrad_kernels.cpu.packing import pack
from spillgrad_kernels.cpu.pointers import aligned, array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, like_of, tile_columns
from spillgrad_kernels.cpu.rows import row_dot
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.tables.attention import (
    Dropout,
    check_results,
    checked_softcap,
    dropout_operands,
    reach_of,
)
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.tables.scalar_math import normal_exp2
from spillgrad_kernels.threads.dispatch import parallel_for


@jit
def _score_gradients(weights: np.ndarray, grads: np.ndarray, normalizer: float, mean_grad: float) -> None:
    """Compute the weights of one query and the gradients of the query's scores, both in place.

    Replace each score x in `weights` by the weight 2**(x - `normalizer`). Replace each gradient g of a weight in
    `grads` by the gradient of the score: weight * (g - `mean_grad`). `mean_grad` is the sum of weight * g over all
    keys.
    """
    for j in range(weights.size):
        weights[j] = normal_exp2(weights[j] - normalizer)
        grads[j] = weights[j] * (grads[j] - mean_grad)


@jit
def _scale(row: np.ndarray, factors: np.ndarray) -> None:
    for j in range(row.size):
        row[j] *= factors[j]


@jit
def _add_transposed_product(
    like: np.ndarray, rows: int, columns: int, width: int, tile: int, tile_row: int, b: int, b_row: int, c: int,
    c_row: int, low: int, starts: np.ndarray, k0: int, ahead: int,
) -> None:  # fmt: skip
    """Add transpose(tile) @ B to C, in place.

    Shapes: tile (rows, columns), B (rows, width), C (columns, width). `tile`, `b` and `c` are addresses; `tile_row`,
    `b_row` and `c_row` are row strides in bytes. `starts`, `k0` and `ahead` have the same meaning as in
    `attention_tiles.py`. Columns before `low`, a multiple of `TILE_ROWS`, are left out.
    """
    size = like.itemsize
    for j in range(0, width, tile_columns(like)):
        for i in range(low, columns, TILE_ROWS):
            first, last = max(0, i - ahead), rows
            while last > first and starts[last - 1] - k0 >= i + TILE_ROWS:
                last -= 1
            if first < last:
                place = c + i * c_row + j * size
                multiply_strided(
                    like, last - first, tile + first * tile_row + i * size, size, tile_row,
                    b + first * b_row + j * size, b_row, place, c_row, place, c_row,
                )  # fmt: skip


@jit
def _backward(
    start: int, stop: int, empty: np.ndarray, choice: np.ndarray, places: np.ndarray, strides: np.ndarray, queries: int,
    keys: int, width: int, value_width: int, parts: int, scale: float, softcap: float, reach: int, has_starts: bool,
    mask_kind: int, dropout: bool, threshold: int, kept_factor: float, seed: int, counter: int, dq_offsets: np.ndarray,
) -> None:  # fmt: skip
    """Compute the gradients for tasks `start` to `stop`. A task is one part of a head: every `parts`-th block of keys.

    `places` and `strides` (see `common_operands`) describe grad_out, q, k, v, out, lse, mask, first keys, dq, dk and
    dv. Query i sees no key after i + `reach`. Each part writes a separate gradient of q, `dq_offsets[part]` bytes after
    dq. The tiles of a gradient are added up in ascending order.
    """
    size, number = empty.itemsize, empty.dtype.type
    key_blocks = (keys + KEYS - 1) // KEYS
    row_counters = (keys + 3) // 4
    g_row, g_col, q_row, q_col, k_row, k_col, v_row, v_col, out_row, out_col, lse_row, _, mask_row, _ = strides[:14]
    starts_row, _, dq_row, dq_col, dk_row, dk_col, dv_row, dv_col = strides[14:]
    q_pitch, v_pitch, tile_row = pitch(empty, width), pitch(empty, value_width), pitch(empty, KEYS)
    k_panels_bytes = round_up(KEYS * width * size, VECTOR_BYTES) + VECTOR_BYTES
    v_panels_bytes = round_up(KEYS * value_width * size, VECTOR_BYTES) + VECTOR_BYTES
    tiles = 3 if softcap else 2
    needed = tiles * QUERIES * tile_row + (2 * QUERIES + 2 * KEYS) * q_pitch + (QUERIES + KEYS) * v_pitch
    # The addresses below point into this array. It lives to the end of the function, which names it until then.
    like = np.empty((needed + k_panels_bytes + v_panels_bytes + VECTOR_BYTES) // size, empty.dtype)
    weights = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    grads = weights + QUERIES * tile_row
    slopes = grads + QUERIES * tile_row
    query_rows = weights + tiles * QUERIES * tile_row
    query_grads = query_rows + QUERIES * q_pitch
    key_rows = query_grads + QUERIES * q_pitch
    key_grads = key_rows + KEYS * q_pitch
    grad_rows = key_grads + KEYS * q_pitch
    value_grads = grad_rows + QUERIES * v_pitch
    key_panels = value_grads + KEYS * v_pitch
    value_panels = key_panels + k_panels_bytes
    words = np.empty(QUERIES * KEYS if dropout else 0, np.uint32)
    normalizers, mean_grads = np.empty(queries, like.dtype), np.empty(queries, like.dtype)
    starts, lows = np.empty(queries, np.int64), np.empty((queries + TILE_ROWS - 1) // TILE_ROWS, np.int64)
    one, query_scale, cap = number(1), number(scale * LOG2_E), number(softcap * LOG2_E)
    for task in range(start, stop):
        head, part = task // parts, task % parts
        grad_out, q, k, v, out, lse, mask, first_keys, dq, dk, dv = places[head]
        dq += dq_offsets[part]
        load_starts(starts, lows, first_keys, starts_row, has_starts)
        for q0 in range(0, queries, QUERIES):
            rows = min(QUERIES, queries - q0)
            load_rows(like, rows, value_width, grad_out + q0 * g_row, g_row, g_col, grad_rows, v_pitch, one)
            load_rows(like, rows, value_width, out + q0 * out_row, out_row, out_col, value_grads, v_pitch, one)
            for r in range(rows):
                normalizer = array_at(like, lse + (q0 + r) * lse_row, 1)[0]
                # The lse of a query that sees no key is -inf. A normalizer of inf makes the weights 0; -inf would make
                # them NaN.
                normalizers[q0 + r] = normalizer * number(LOG2_E) if normalizer != -np.inf else number(np.inf)
                mean_grads[q0 + r] = row_dot(
                    array_at(like, grad_rows + r * v_pitch, value_width),
                    array_at(like, value_grads + r * v_pitch, value_width),
                )
        for block in range(part, key_blocks, parts):
            k0 = block * KEYS
            columns = min(KEYS, keys - k0)
            key, value = k + k0 * k_row, v + k0 * v_row
            pack(like_of(like), tile_columns(like), key, k_row, k_col, columns, width, key_panels)
            pack(like_of(like), tile_columns(like), value, v_row, v_col, columns, value_width, value_panels)
            load_rows(like, columns, width, key, k_row, k_col, key_rows, q_pitch, number(scale))
            array_at(like, key_grads, KEYS * q_pitch // size)[:] = 0
            array_at(like, value_grads, KEYS * v_pitch // size)[:] = 0
            for q0 in range(0, queries, QUERIES):
                rows = min(QUERIES, queries - q0)
                ahead = q0 - k0 + reach
                least_starts = lows[q0 // TILE_ROWS : (q0 + rows + TILE_ROWS - 1) // TILE_ROWS]
                seen, low = min(columns, rows + ahead), first_column(least_starts, k0)
                query_grad = dq + q0 * dq_row
                if block == part:
                    array_at(like, query_grads, QUERIES * q_pitch // size)[:] = 0
                elif seen > low:
                    load_rows(like, rows, width, query_grad, dq_row, dq_col, query_grads, q_pitch, one)
                if seen <= low:
                    if block == part:
                        store_rows(like, rows, width, query_grads, q_pitch, query_grad, dq_row, dq_col, one)
                    continue
                load_rows(like, rows, width, q + q0 * q_row, q_row, q_col, query_rows, q_pitch, query_scale)
                load_rows(like, rows, value_width, grad_out + q0 * g_row, g_row, g_col, grad_rows, v_pitch, one)
                multiply_by_panels(
                    like, rows, seen, width, query_rows, q_pitch, key_panels, weights, tile_row, least_starts, k0, ahead
                )
                multiply_by_panels(
                    like, rows, seen, value_width, grad_rows, v_pitch, value_panels, grads, tile_row, least_starts, k0,
                    ahead,
                )  # fmt: skip
                begins = starts[q0 : q0 + rows]
                if cap != 0:
                    cap_scores(like, rows, seen, weights, tile_row, slopes, cap, begins, k0, ahead)
                corner = low * size
                if mask_kind != NO_MASK:
                    place = mask + q0 * mask_row + (k0 + low) * (size if mask_kind == BIAS else 1)
                    apply_mask(like, choice, mask_kind, rows, seen - low, weights + corner, tile_row, place, mask_row)
                if dropout:
                    row_number = np.uint64(head * queries + q0)
                    at = counter + row_number * np.uint64(row_counters) + np.uint64((k0 + low) // 4)
                    draw_words(words, rows, seen - low, at, row_counters, seed)
                    drop(like, words, rows, seen - low, grads + corner, tile_row, threshold, kept_factor)
                for r in range(rows):
                    first, visible = visible_columns(r, seen, begins[r], k0, ahead)
                    p = array_at(like, weights + r * tile_row, KEYS)
                    dp = array_at(like, grads + r * tile_row, KEYS)
                    begin, end = hide_rest(p, low, first, visible, seen, number(-np.inf))
                    hide_rest(dp, low, first, visible, seen, number(0))
                    _score_gradients(p[begin:end], dp[begin:end], normalizers[q0 + r], mean_grads[q0 + r])
                    if cap != 0:
                        slope = array_at(like, slopes + r * tile_row, KEYS)
                        hide_rest(slope, low, first, visible, seen, number(0))
                        _scale(dp[begin:end], slope[begin:end])
                if dropout:
                    drop(like, words, rows, seen - low, weights + corner, tile_row, threshold, kept_factor)
                _add_transposed_product(
                    like, rows, seen, value_width, weights, tile_row, grad_rows, v_pitch, value_grads, v_pitch,
                    low, begins, k0, ahead,
                )  # fmt: skip
                _add_transposed_product(
                    like, rows, seen, width, grads, tile_row, query_rows, q_pitch, key_grads, q_pitch,
                    low, begins, k0, ahead,
                )  # fmt: skip
                multiply_tile(
                    like, rows, seen, width, grads, tile_row, key_rows, q_pitch, query_grads, q_pitch, least_starts, k0,
                    ahead,
                )  # fmt: skip
                store_rows(like, rows, width, query_grads, q_pitch, query_grad, dq_row, dq_col, one)
            # `query_rows` holds the rows of q times scale * log2(e).
            store_rows(like, columns, width, key_grads, q_pitch, dk + k0 * dk_row, dk_row, dk_col, number(1 / LOG2_E))
            store_rows(like, columns, value_width, value_grads, v_pitch, dv + k0 * dv_row, dv_row, dv_col, one)


@on_device("attention_backward")
def attention_backward(
    grad_out: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray, scale: float,
    causal: bool, mask: np.ndarray | None = None, dropout: Dropout | None = None,
    first_keys: np.ndarray | None = None, softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return (dq, dk, dv), the gradients of `attention_forward`. `out` and `lse` are what `attention_forward` returned.

    Raises ValueError for shapes that do not match. Raises TypeError for dtypes that do not match.
    """
    q, k, v = checked(q, k, v)
    check_results(q, v, grad_out, out, lse)
    queries, keys, width, value_width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    dk, dv = empty_in_order_of(k, width), empty_in_order_of(v, value_width)
    if not grad_out.size or not keys:
        dq = empty_in_order_of(q, width)
        for gradient in (dq, dk, dv):
            gradient.fill(0)
        return dq, dk, dv
    grad_out, out = aligned(grad_out), aligned(out)
    mask, mask_kind = checked_mask(mask, lse, keys)
    starts = checked_first_keys(first_keys, lse)
    heads = lse.size // queries
    # If the number of parts depended on the number of threads, results would depend on it too.
    parts = max(1, min(TASKS // heads, -(-keys // KEYS)))
    dq_parts = [empty_in_order_of(q, width) for _ in range(parts)]
    parallel_for(
        _backward, heads * parts, 1 + GRAIN * parts // (2 * queries * keys * (width + value_width)),
        *common_operands(grad_out, q, k, v, out, lse[..., None], mask, starts, *dq_parts[:1], dk, dv), queries, keys,
        width, value_width, parts, float(scale), checked_softcap(softcap),
        reach_of(queries, keys, causal, first_keys), first_keys is not None, mask_kind,
        *dropout_operands(dropout, q.dtype),
        np.array([part.ctypes.data - dq_parts[0].ctypes.data for part in dq_parts], np.int64),
    )  # fmt: skip
    dq = dq_parts[0]
    for part in dq_parts[1:]:
        dq += part
    return dq, dk, dv
