"""Scaled dot-product attention by tiles: the T x S matrix of weights never exists, so memory is linear in T and S.

A tile of scores stays in the L2 cache between the product that makes it and the products that use it, which read it
where it lies, as it is or transposed. Scores are kept in powers of two: their exponential costs least.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import math
from typing import Any

import numpy as np
from llvmlite import ir

from spillgrad_kernels.cpu.microkernel import multiply_strided, prefetch
from spillgrad_kernels.cpu.packing import pack
from spillgrad_kernels.cpu.pointers import aligned, array_at
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, VECTOR_BYTES, like_of, tile_columns
from spillgrad_kernels.cpu.random import draw
from spillgrad_kernels.cpu.rows import row_dot
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.compile import CONTRACT, REASSOCIATE, intrinsic, jit, overload
from spillgrad_kernels.layout import batch_offsets, layout_of
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.tables.attention import Dropout, check_operands, check_results, dropout_operands
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.tables.scalar_math import where
from spillgrad_kernels.tables.vector_code import bits
from spillgrad_kernels.threads.dispatch import parallel_for

# A tile of scores, queries x keys: both multiples of the micro-kernel's tile. At T = 2048 on a Zen 4 (1 MiB of L2) one
# of 96 x 192 ran 5 % slower, one of 192 x 384 as fast.
_QUERIES = 96
_KEYS = 384
# Queries that share one packing of the keys and values, in forward: a multiple of _QUERIES.
_CHUNK = 12 * _QUERIES
# Tasks wanted where there are few heads: enough for many cores to share evenly.
_TASKS = 32
# Multiply-adds that take about 5 microseconds, below which a thread of its own does not pay.
_GRAIN = 1 << 18
# Rows of a head may lie a page apart, where no hardware prefetcher follows.
_PREFETCHED_ROWS, _LINE_BYTES = 8, 64
# What one iteration of a vectorised loop takes, unrolled: _KEYS are a multiple of it.
_UNROLLED_BYTES = 4 * VECTOR_BYTES
_NO_MASK, _CHOICE, _BIAS = 0, 1, 2
_LOG2_E = 1 / math.log(2)


def exp2_below(x: Any) -> Any:
    """Return 2**x for x up to 127, to 2 ulp; results below the smallest normal number are 0."""
    return np.exp2(x)


# Powers of 2 in [-1/2, 1/2]: 2**r = 1 + r (c[0] r**n + … + c[n]), interpolated at Chebyshev's points.
_SERIES32 = (0.00015453162945, 0.00133908633655, 0.00961808255728, 0.05550357114219, 0.24022650760568, 0.69314718802623)
_SERIES64 = (
    4.454945547842242e-10, 7.07258646795143e-09, 1.017806253298163e-07, 1.3215442585889058e-06, 1.5252733829686257e-05,
    0.00015403530441737684, 0.0013333558146417, 0.00961812910760689, 0.0555041086648216, 0.24022650695910097,
    0.6931471805599453,
)  # fmt: skip


@overload(exp2_below, jit_options={"error_model": "numpy", "fastmath": CONTRACT, "nogil": True})
def _exp2_below(x: Any) -> Any:
    is_single = x.bitwidth == 32
    number, integer, mantissa_bits = (np.float32, np.int32, 23) if is_single else (np.float64, np.int64, 52)
    bias = 127 if is_single else 1023
    # Adding this rounds to an integer n and leaves n + bias in the lowest bits, ready to be shifted to the exponent.
    shifter = number(1.5 * 2.0**mantissa_bits + bias)
    lowest = number(-bias)
    shift = integer(mantissa_bits)
    first, *series = (number(c) for c in (_SERIES32 if is_single else _SERIES64))
    rest = tuple(series)
    one = number(1)

    def power(x: Any) -> Any:
        clamped = where(x < lowest, lowest, x)
        shifted = clamped + shifter
        r = clamped - (shifted - shifter)
        p = first
        for coefficient in rest:
            p = p * r + coefficient
        return (p * r + one) * bits(integer(bits(shifted) << shift))

    return power


def _larger(x: Any, y: Any) -> Any:
    """Return the larger of two values, NaN when either is NaN; of zeros either one."""
    return np.maximum(x, y)


@intrinsic
def _maximum(typing_context: Any, x: Any, y: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        function = builder.module.declare_intrinsic("llvm.maximum", [kind], ir.FunctionType(kind, [kind, kind]))
        # Ordering zeros by sign would cost as much again as comparing.
        return builder.call(function, arguments, fastmath=("nsz",))

    return x(x, x), codegen


@overload(_larger)
def _larger_compiled(x: Any, y: Any) -> Any:
    def maximum(x: Any, y: Any) -> Any:
        return _maximum(x, y)

    return maximum


# The loops over rows are functions of their own because LLVM vectorises them only there.
@jit
def _row_max(row: np.ndarray) -> float:
    largest = row.dtype.type(-np.inf)
    for j in range(row.size):
        largest = _larger(largest, row[j])
    return largest  # type: ignore[no-any-return]


@jit(fastmath=REASSOCIATE)
def _exponentials(row: np.ndarray, shift: float) -> float:
    """Replace a row by powers of 2, less `shift` each; return their sum."""
    total = row.dtype.type(0)
    for j in range(row.size):
        row[j] = exp2_below(row[j] - shift)
        total += row[j]
    return total  # type: ignore[no-any-return]


@jit
def _score_gradients(weights: np.ndarray, grads: np.ndarray, normalizer: float, mean_grad: float) -> None:
    """Turn scores into weights, and gradients by weights into gradients by scores."""
    for j in range(weights.size):
        weights[j] = exp2_below(weights[j] - normalizer)
        grads[j] = weights[j] * (grads[j] - mean_grad)


@jit
def _hide(row: np.ndarray, mask: np.ndarray) -> None:
    for j in range(row.size):
        row[j] = where(mask[j] != 0, row[j], row.dtype.type(-np.inf))


@jit
def _add_bias(row: np.ndarray, bias: np.ndarray) -> None:
    log2_e = row.dtype.type(_LOG2_E)
    for j in range(row.size):
        row[j] += bias[j] * log2_e


@jit
def _drop_row(row: np.ndarray, words: np.ndarray, threshold: int, factor: float) -> None:
    for j in range(row.size):
        row[j] = where(words[j] >= threshold, row[j] * factor, row.dtype.type(0))


@jit
def _pitch(like: np.ndarray, width: int) -> int:
    """Return the bytes between rows of `width` elements: an odd number of vectors, spread evenly over the cache."""
    return round_up(width, tile_columns(like)) * like.itemsize + VECTOR_BYTES  # type: ignore[no-any-return]


@jit
def _load_rows(
    like: np.ndarray, rows: int, width: int, source: int, row: int, col: int, target: int, pitch: int, factor: float
) -> None:
    """Copy `rows` rows times `factor` to contiguous ones `pitch` bytes apart; zeros fill them and the last tile up."""
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
def _store_rows(
    like: np.ndarray, rows: int, width: int, source: int, pitch: int, target: int, row: int, col: int, factor: float
) -> None:
    """Copy rows `pitch` bytes apart, times `factor`, to where a result has them."""
    for r in range(rows):
        original = array_at(like, source + r * pitch, width)
        if col == like.itemsize:
            copy = array_at(like, target + r * row, width)
            for j in range(width):
                copy[j] = original[j] * factor
        else:
            for j in range(width):
                array_at(like, target + r * row + j * col, 1)[0] = original[j] * factor


# In a tile whose first query is `ahead` positions after its first key, query i sees the keys up to i + ahead. Three
# products leave out what no query of a micro-kernel's tile sees; without a causal mask `ahead` is all keys.


@jit
def _multiply_by_panels(
    like: np.ndarray, rows: int, columns: int, depth: int, a: int, a_row: int, panels: int, tile: int, tile_row: int,
    ahead: int,
) -> None:  # fmt: skip
    """Set a tile to the product of rows of queries and packed panels of keys."""
    size, width = like.itemsize, tile_columns(like)
    for j in range(0, columns, width):
        for i in range(0, rows, TILE_ROWS):
            if j < i + TILE_ROWS + ahead:
                multiply_strided(
                    like, depth, a + i * a_row, a_row, size, panels + j * depth * size, width * size,
                    tile + i * tile_row + j * size, tile_row, 0, 0,
                )  # fmt: skip


@jit
def _multiply_tile(
    like: np.ndarray, rows: int, columns: int, width: int, tile: int, tile_row: int, b: int, b_row: int, c: int,
    c_row: int, accumulate: bool, ahead: int,
) -> None:  # fmt: skip
    """Set or add to `rows` rows of C the product of a tile and `columns` rows of B."""
    size = like.itemsize
    for j in range(0, width, tile_columns(like)):
        for i in range(0, rows, TILE_ROWS):
            depth = min(columns, i + TILE_ROWS + ahead)
            if depth > 0:
                place = c + i * c_row + j * size
                multiply_strided(
                    like, depth, tile + i * tile_row, tile_row, size, b + j * size, b_row, place, c_row,
                    place if accumulate else 0, c_row,
                )  # fmt: skip


@jit
def _add_transposed_product(
    like: np.ndarray, rows: int, columns: int, width: int, tile: int, tile_row: int, b: int, b_row: int, c: int,
    c_row: int, ahead: int,
) -> None:  # fmt: skip
    """Add to `columns` rows of C the product of a tile's transpose and `rows` rows of B."""
    size = like.itemsize
    for j in range(0, width, tile_columns(like)):
        for i in range(0, columns, TILE_ROWS):
            first = max(0, i - ahead)
            if first < rows:
                place = c + i * c_row + j * size
                multiply_strided(
                    like, rows - first, tile + first * tile_row + i * size, size, tile_row,
                    b + first * b_row + j * size, b_row, place, c_row, place, c_row,
                )  # fmt: skip


@jit
def _apply_mask(
    like: np.ndarray, choice: np.ndarray, kind: int, rows: int, columns: int, tile: int, tile_row: int, mask: int,
    mask_row: int,
) -> None:  # fmt: skip
    """Hide scores, or add to them, by the mask's rows from `mask` on."""
    for r in range(rows):
        row = array_at(like, tile + r * tile_row, columns)
        if kind == _CHOICE:
            _hide(row, array_at(choice, mask + r * mask_row, columns))
        else:
            _add_bias(row, array_at(like, mask + r * mask_row, columns))


@jit
def _draw_words(words: np.ndarray, rows: int, columns: int, counter: int, row_counters: int, seed: int) -> None:
    for r in range(rows):
        draw(
            words[r * _KEYS : r * _KEYS + round_up(columns, 4)],
            counter + np.uint64(r * row_counters),
            np.uint64(0),
            seed,
        )


@jit
def _drop(
    like: np.ndarray, words: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, threshold: int,
    factor: float,
) -> None:  # fmt: skip
    for r in range(rows):
        _drop_row(array_at(like, tile + r * tile_row, columns), words[r * _KEYS :], threshold, factor)


@jit
def _hide_rest(row: np.ndarray, visible: int, columns: int, hidden: float) -> int:
    """Return how much of a row of scores to process; what of it is not visible is `hidden`, all beyond it 0.

    That is whole iterations of vectorised loops: what they leave over would be done one by one.
    """
    visible = max(0, visible)
    processed: int = round_up(visible, _UNROLLED_BYTES // row.itemsize)
    row[visible:processed] = hidden
    row[processed : round_up(columns, TILE_ROWS)] = 0
    return processed


@jit
def _weigh(
    like: np.ndarray, rows: int, columns: int, tile: int, tile_row: int, means: int, means_row: int, value_width: int,
    largest: np.ndarray, total: np.ndarray, ahead: int,
) -> None:  # fmt: skip
    """Turn scores into weights relative to each row's largest so far; where that grew, shrink the earlier mean."""
    zero, lowest = like.dtype.type(0), like.dtype.type(-np.inf)
    for r in range(rows):
        row = array_at(like, tile + r * tile_row, _KEYS)
        processed = _hide_rest(row, min(columns, r + 1 + ahead), columns, lowest)
        before = largest[r]
        now = _larger(before, _row_max(row[:processed]))
        # A row that holds only -inf so far: any finite shift gives its weights of 0, where inf - inf would not.
        shift = where(now == lowest, zero, now)
        added = _exponentials(row[:processed], shift)
        shrink = exp2_below(before - shift)
        if now != before:
            largest[r] = now
            mean = array_at(like, means + r * means_row, value_width)
            for j in range(value_width):
                mean[j] *= shrink
        total[r] = total[r] * shrink + added


@jit
def _forward(
    start: int, stop: int, empty: np.ndarray, choice: np.ndarray, places: np.ndarray, strides: np.ndarray, queries: int,
    keys: int, width: int, value_width: int, chunk: int, scale: float, causal: bool, mask_kind: int, dropout: bool,
    threshold: int, kept_factor: float, seed: int, counter: int,
) -> None:  # fmt: skip
    """Compute chunks of queries, numbered over all heads. Operands: q, k, v, out, lse, mask."""
    size, number = empty.itemsize, empty.dtype.type
    chunks = (queries + chunk - 1) // chunk
    row_counters = (keys + 3) // 4
    q_pitch, v_pitch, tile_row = _pitch(empty, width), _pitch(empty, value_width), _pitch(empty, _KEYS)
    q_row, q_col, k_row, k_col, v_row, v_col, out_row, out_col, lse_row, _, mask_row, _ = strides
    panels_bytes = round_up(_KEYS * width * size, VECTOR_BYTES) + VECTOR_BYTES
    needed = chunk * (q_pitch + v_pitch) + _KEYS * v_pitch + _QUERIES * tile_row + panels_bytes + VECTOR_BYTES
    # Addresses below point into this array, which is named to the end and so lives as long.
    like = np.empty(needed // size, empty.dtype)
    tile = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    query_rows = tile + _QUERIES * tile_row
    means = query_rows + chunk * q_pitch
    value_rows = means + chunk * v_pitch
    panels = value_rows + _KEYS * v_pitch
    words = np.empty(_QUERIES * _KEYS if dropout else 0, np.uint32)
    largest, total = np.empty(chunk, like.dtype), np.empty(chunk, np.float64)
    one, query_scale = number(1), number(scale * _LOG2_E)
    for task in range(start, stop):
        head = task // chunks
        # Under a causal mask the last chunks take longest: first come, they leave the short ones to even out.
        first = (chunks - 1 - task % chunks) * chunk
        q, k, v, out, lse, mask = places[head]
        present = min(chunk, queries - first)
        _load_rows(like, present, width, q + first * q_row, q_row, q_col, query_rows, q_pitch, query_scale)
        largest[:] = -np.inf
        total[:] = 0
        for k0 in range(0, min(keys, first + present) if causal else keys, _KEYS):
            columns = min(_KEYS, keys - k0)
            pack(like_of(like), tile_columns(like), k + k0 * k_row, k_row, k_col, columns, width, panels)
            _load_rows(like, columns, value_width, v + k0 * v_row, v_row, v_col, value_rows, v_pitch, one)
            for q0 in range(0, present, _QUERIES):
                rows = min(_QUERIES, present - q0)
                ahead = first + q0 - k0 if causal else keys
                if rows + ahead <= 0:
                    continue
                seen = min(columns, rows + ahead)
                mean = means + q0 * v_pitch
                _multiply_by_panels(
                    like, rows, seen, width, query_rows + q0 * q_pitch, q_pitch, panels, tile, tile_row, ahead
                )
                if mask_kind != _NO_MASK:
                    place = mask + (first + q0) * mask_row + k0 * (size if mask_kind == _BIAS else 1)
                    _apply_mask(like, choice, mask_kind, rows, seen, tile, tile_row, place, mask_row)
                _weigh(
                    like, rows, seen, tile, tile_row, mean, v_pitch, value_width,
                    largest[q0 : q0 + rows], total[q0 : q0 + rows], ahead,
                )  # fmt: skip
                if dropout:
                    row_number = np.uint64(head * queries + first + q0)
                    at = counter + row_number * np.uint64(row_counters) + np.uint64(k0 // 4)
                    _draw_words(words, rows, seen, at, row_counters, seed)
                    _drop(like, words, rows, seen, tile, tile_row, threshold, kept_factor)
                _multiply_tile(
                    like, rows, seen, value_width, tile, tile_row, value_rows, v_pitch, mean, v_pitch, k0 > 0, ahead
                )
        for r in range(present):
            position = first + r
            # No key seen: nothing to take a mean of.
            inverse = number(1 / total[r]) if total[r] != 0 else number(0)
            _store_rows(
                like, 1, value_width, means + r * v_pitch, v_pitch, out + position * out_row, out_row, out_col, inverse
            )
            array_at(like, lse + position * lse_row, 1)[0] = largest[r] / _LOG2_E + np.log(total[r])


@jit
def _backward(
    start: int, stop: int, empty: np.ndarray, choice: np.ndarray, places: np.ndarray, strides: np.ndarray, queries: int,
    keys: int, width: int, value_width: int, parts: int, scale: float, causal: bool, mask_kind: int, dropout: bool,
    threshold: int, kept_factor: float, seed: int, counter: int, dq_offsets: np.ndarray,
) -> None:  # fmt: skip
    """Compute gradients of heads, or of parts of them: every `parts`-th block of keys.

    Operands: grad_out, q, k, v, out, lse, mask, dq, dk, dv. Parts add to gradients by q of their own, `dq_offsets`
    bytes after the first. Every gradient is a sum of tiles in ascending order.
    """
    size, number = empty.itemsize, empty.dtype.type
    key_blocks = (keys + _KEYS - 1) // _KEYS
    row_counters = (keys + 3) // 4
    g_row, g_col, q_row, q_col, k_row, k_col, v_row, v_col, out_row, out_col, lse_row, _, mask_row, _ = strides[:14]
    dq_row, dq_col, dk_row, dk_col, dv_row, dv_col = strides[14:]
    q_pitch, v_pitch, tile_row = _pitch(empty, width), _pitch(empty, value_width), _pitch(empty, _KEYS)
    k_panels_bytes = round_up(_KEYS * width * size, VECTOR_BYTES) + VECTOR_BYTES
    v_panels_bytes = round_up(_KEYS * value_width * size, VECTOR_BYTES) + VECTOR_BYTES
    needed = 2 * _QUERIES * tile_row + (2 * _QUERIES + 2 * _KEYS) * q_pitch + (_QUERIES + _KEYS) * v_pitch
    # Addresses below point into this array, which is named to the end and so lives as long.
    like = np.empty((needed + k_panels_bytes + v_panels_bytes + VECTOR_BYTES) // size, empty.dtype)
    weights = round_up(np.intp(like.ctypes.data), VECTOR_BYTES)
    grads = weights + _QUERIES * tile_row
    query_rows = grads + _QUERIES * tile_row
    query_grads = query_rows + _QUERIES * q_pitch
    key_rows = query_grads + _QUERIES * q_pitch
    key_grads = key_rows + _KEYS * q_pitch
    grad_rows = key_grads + _KEYS * q_pitch
    value_grads = grad_rows + _QUERIES * v_pitch
    key_panels = value_grads + _KEYS * v_pitch
    value_panels = key_panels + k_panels_bytes
    words = np.empty(_QUERIES * _KEYS if dropout else 0, np.uint32)
    normalizers, mean_grads = np.empty(queries, like.dtype), np.empty(queries, like.dtype)
    one, query_scale = number(1), number(scale * _LOG2_E)
    for task in range(start, stop):
        head, part = task // parts, task % parts
        grad_out, q, k, v, out, lse, mask, dq, dk, dv = places[head]
        dq += dq_offsets[part]
        for q0 in range(0, queries, _QUERIES):
            rows = min(_QUERIES, queries - q0)
            _load_rows(like, rows, value_width, grad_out + q0 * g_row, g_row, g_col, grad_rows, v_pitch, one)
            _load_rows(like, rows, value_width, out + q0 * out_row, out_row, out_col, value_grads, v_pitch, one)
            for r in range(rows):
                normalizer = array_at(like, lse + (q0 + r) * lse_row, 1)[0]
                # A query that sees no key has weights of 0: minus infinity would be subtracted from itself.
                normalizers[q0 + r] = normalizer * number(_LOG2_E) if normalizer != -np.inf else number(np.inf)
                mean_grads[q0 + r] = row_dot(
                    array_at(like, grad_rows + r * v_pitch, value_width),
                    array_at(like, value_grads + r * v_pitch, value_width),
                )
        for block in range(part, key_blocks, parts):
            k0 = block * _KEYS
            columns = min(_KEYS, keys - k0)
            key, value = k + k0 * k_row, v + k0 * v_row
            pack(like_of(like), tile_columns(like), key, k_row, k_col, columns, width, key_panels)
            pack(like_of(like), tile_columns(like), value, v_row, v_col, columns, value_width, value_panels)
            _load_rows(like, columns, width, key, k_row, k_col, key_rows, q_pitch, number(scale))
            array_at(like, key_grads, _KEYS * q_pitch // size)[:] = 0
            array_at(like, value_grads, _KEYS * v_pitch // size)[:] = 0
            for q0 in range(0, queries, _QUERIES):
                rows = min(_QUERIES, queries - q0)
                ahead = q0 - k0 if causal else keys
                seen = min(columns, rows + ahead)
                query_grad = dq + q0 * dq_row
                if block == part:
                    array_at(like, query_grads, _QUERIES * q_pitch // size)[:] = 0
                elif seen > 0:
                    _load_rows(like, rows, width, query_grad, dq_row, dq_col, query_grads, q_pitch, one)
                if seen <= 0:
                    if block == part:
                        _store_rows(like, rows, width, query_grads, q_pitch, query_grad, dq_row, dq_col, one)
                    continue
                _load_rows(like, rows, width, q + q0 * q_row, q_row, q_col, query_rows, q_pitch, query_scale)
                _load_rows(like, rows, value_width, grad_out + q0 * g_row, g_row, g_col, grad_rows, v_pitch, one)
                _multiply_by_panels(like, rows, seen, width, query_rows, q_pitch, key_panels, weights, tile_row, ahead)
                _multiply_by_panels(
                    like, rows, seen, value_width, grad_rows, v_pitch, value_panels, grads, tile_row, ahead
                )
                if mask_kind != _NO_MASK:
                    place = mask + q0 * mask_row + k0 * (size if mask_kind == _BIAS else 1)
                    _apply_mask(like, choice, mask_kind, rows, seen, weights, tile_row, place, mask_row)
                if dropout:
                    at = counter + np.uint64(head * queries + q0) * np.uint64(row_counters) + np.uint64(k0 // 4)
                    _draw_words(words, rows, seen, at, row_counters, seed)
                    _drop(like, words, rows, seen, grads, tile_row, threshold, kept_factor)
                for r in range(rows):
                    visible = min(seen, r + 1 + ahead)
                    p = array_at(like, weights + r * tile_row, _KEYS)
                    dp = array_at(like, grads + r * tile_row, _KEYS)
                    processed = _hide_rest(p, visible, seen, number(-np.inf))
                    _hide_rest(dp, visible, seen, number(0))
                    _score_gradients(p[:processed], dp[:processed], normalizers[q0 + r], mean_grads[q0 + r])
                if dropout:
                    _drop(like, words, rows, seen, weights, tile_row, threshold, kept_factor)
                _add_transposed_product(
                    like, rows, seen, value_width, weights, tile_row, grad_rows, v_pitch, value_grads, v_pitch, ahead
                )
                _add_transposed_product(
                    like, rows, seen, width, grads, tile_row, query_rows, q_pitch, key_grads, q_pitch, ahead
                )
                _multiply_tile(
                    like, rows, seen, width, grads, tile_row, key_rows, q_pitch, query_grads, q_pitch,
                    np.bool_(True), ahead,
                )  # fmt: skip
                _store_rows(like, rows, width, query_grads, q_pitch, query_grad, dq_row, dq_col, one)
            # The rows of q were scaled for powers of two.
            _store_rows(like, columns, width, key_grads, q_pitch, dk + k0 * dk_row, dk_row, dk_col, number(1 / _LOG2_E))
            _store_rows(like, columns, value_width, value_grads, v_pitch, dv + k0 * dv_row, dv_row, dv_col, one)


@on_device("attention")
def attention_forward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    dropout: Dropout | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return softmax(scale q k^T + mask) v, and the logarithm of each query's sum of exponentials, for backward.

    Causal: query i sees the keys up to i. A query that sees no key gives 0.
    Shapes: q (..., T, D), k (..., S, D), v (..., S, E); out (..., T, E), lse (..., T). Any strides. The mask broadcasts
    to (..., T, S): bool, True where a key takes part, or numbers to add.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    q, k, v = _checked(q, k, v)
    out = _empty_in_order_of(q, v.shape[-1])
    lse = buffers.empty(q.shape[:-1], q.dtype)
    queries, keys, width, value_width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    if keys == 0:
        out.fill(0)
        lse.fill(-np.inf)
    elif lse.size:
        mask, mask_kind = _checked_mask(mask, lse, keys)
        heads = lse.size // queries
        chunk = round_up(min(_CHUNK, -(-queries * heads // _TASKS), queries), _QUERIES)
        chunk = round_up(-(-queries // -(-queries // chunk)), TILE_ROWS)
        parallel_for(
            _forward,
            heads * -(-queries // chunk),
            1 + _GRAIN // (chunk * keys * (width + value_width)),
            *_common_operands(q, k, v, out, lse[..., None], mask),
            queries,
            keys,
            width,
            value_width,
            chunk,
            float(scale),
            bool(causal),
            mask_kind,
            *dropout_operands(dropout, q.dtype),
        )
    return out, lse


@on_device("attention")
def attention_backward(
    grad_out: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    scale: float,
    causal: bool,
    mask: np.ndarray | None = None,
    dropout: Dropout | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients of `attention_forward` by q, k and v; `out` and `lse` are what it returned.

    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    q, k, v = _checked(q, k, v)
    check_results(q, v, grad_out, out, lse)
    queries, keys, width, value_width = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    dk, dv = _empty_in_order_of(k, width), _empty_in_order_of(v, value_width)
    if not grad_out.size or not keys:
        dq = _empty_in_order_of(q, width)
        for gradient in (dq, dk, dv):
            gradient.fill(0)
        return dq, dk, dv
    grad_out, out = aligned(grad_out), aligned(out)
    mask, mask_kind = _checked_mask(mask, lse, keys)
    heads = lse.size // queries
    # The number of parts must not depend on the number of threads, or results would.
    parts = max(1, min(_TASKS // heads, -(-keys // _KEYS)))
    dq_parts = [_empty_in_order_of(q, width) for _ in range(parts)]
    parallel_for(
        _backward,
        heads * parts,
        1 + _GRAIN * parts // (2 * queries * keys * (width + value_width)),
        *_common_operands(grad_out, q, k, v, out, lse[..., None], mask, *dq_parts[:1], dk, dv),
        queries,
        keys,
        width,
        value_width,
        parts,
        float(scale),
        bool(causal),
        mask_kind,
        *dropout_operands(dropout, q.dtype),
        np.array([part.ctypes.data - dq_parts[0].ctypes.data for part in dq_parts], np.int64),
    )
    dq = dq_parts[0]
    for part in dq_parts[1:]:
        dq += part
    return dq, dk, dv


def _checked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    check_operands(q, k, v)
    return aligned(q), aligned(k), aligned(v)


def _checked_mask(mask: np.ndarray | None, lse: np.ndarray, keys: int) -> tuple[np.ndarray, int]:
    """Return the mask as (..., T, S) with contiguous rows, and its kind; where there is none, an array never read."""
    if mask is None:
        return lse[..., None], _NO_MASK
    if mask.dtype not in (np.bool_, lse.dtype):
        raise TypeError(f"attention: got a mask of {mask.dtype}; wanted bool or {lse.dtype} as of q; convert")
    shape = (*lse.shape, keys)
    try:
        # Only what repeats along keys is copied: the kernel reads rows.
        if mask.shape[-1:] != (keys,):
            mask = np.broadcast_to(mask, np.broadcast_shapes(mask.shape, (keys,)))
        if mask.strides[-1] != mask.itemsize or not mask.flags.aligned:
            mask = np.ascontiguousarray(mask)
        return np.broadcast_to(mask, shape), _CHOICE if mask.dtype == np.bool_ else _BIAS
    except ValueError:
        raise ValueError(f"attention: got a mask of {mask.shape}; wanted one that broadcasts to {shape}") from None


def _empty_in_order_of(array: np.ndarray, width: int) -> np.ndarray:
    """Return an empty (..., width) array whose other dimensions lie in memory in the order of those of `array`."""
    lead = array.shape[:-1]
    order = sorted(range(len(lead)), key=lambda axis: -abs(array.strides[axis]))
    ordered = buffers.empty((*(lead[axis] for axis in order), width), array.dtype)
    return ordered.transpose(*np.argsort(order), len(lead))


def _common_operands(*operands: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return two empty arrays of the operands' dtypes, and where matrices lie.

    That is the address of each operand's matrix for every head, and the bytes between rows and columns of each.
    """
    starts = np.array([operand.ctypes.data for operand in operands], np.int64)
    strides = np.array([stride for operand in operands for stride in operand.strides[-2:]], np.int64)
    places = batch_offsets(operands[0].shape[:-2], *map(layout_of, operands)) + starts
    return np.empty(0, operands[0].dtype), np.empty(0, np.bool_), places, strides
