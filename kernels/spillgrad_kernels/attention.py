"""Scaled dot-product attention by tiles: the T x S matrix of weights never exists, so memory is linear in T and S.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import numpy as np

from spillgrad_kernels import memory
from spillgrad_kernels.compile import jit
from spillgrad_kernels.dispatch import get_num_threads, parallel_for
from spillgrad_kernels.matmul import aligned, batch_offsets, product, round_up, workspace_size
from spillgrad_kernels.microkernel import VECTOR_BYTES, array_at
from spillgrad_kernels.reductions import row_dot, row_max, row_sum
from spillgrad_kernels.scalar_math import exp

# A tile of scores, queries x keys: with its panels it stays in the L2 cache.
_QUERIES = 96
_KEYS = 256
# Multiply-adds that take about 50 microseconds, below which a thread of its own does not pay.
_GRAIN = 1 << 21
_BOTH, _KEY_SIDE, _QUERY_SIDE = 0, 1, 2


# These two loops are functions of their own because LLVM inlines `exp` into a small function, and only then vectorises.
@jit
def _exponentials(row: np.ndarray, shift: float) -> None:
    for j in range(row.size):
        row[j] = exp(row[j] - shift)


@jit
def _score_gradients(p: np.ndarray, dp: np.ndarray, scale: float, normalizer: float, mean_grad: float) -> None:
    """Turn scores into weights, and gradients by weights into gradients by scores."""
    for j in range(p.size):
        p[j] = exp(p[j] * scale - normalizer)
        dp[j] = p[j] * (dp[j] - mean_grad) * scale


@jit
def _forward_range(
    start: int,
    stop: int,
    worker: int,
    workspaces: np.ndarray,
    places: np.ndarray,
    strides: np.ndarray,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    scale: float,
    causal: bool,
) -> None:
    """Compute tiles of queries, numbered over all heads. Operands: q, k, v, out, lse."""
    workspace = workspaces[worker]
    size = workspace.itemsize
    # Not plain `False`: Numba would compile `product` once more for each literal.
    fresh = np.bool_(False)
    blocks = (queries + _QUERIES - 1) // _QUERIES
    scores = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    largest = array_at(workspace, scores + _QUERIES * _KEYS * size, _QUERIES)
    total = array_at(workspace, scores + _QUERIES * (_KEYS + 1) * size, _QUERIES)
    scratch = scores + _QUERIES * (_KEYS + 2) * size
    q_row, q_col, k_row, k_col, v_row, v_col, out_row, out_col, lse_row, _ = strides
    for task in range(start, stop):
        q, k, v, out, lse = places[task // blocks]
        q0 = task % blocks * _QUERIES
        rows = min(_QUERIES, queries - q0)
        q += q0 * q_row
        out += q0 * out_row
        seen = min(keys, q0 + rows) if causal else keys
        largest[:] = -np.inf
        total[:] = 0
        for k0 in range(0, seen, _KEYS):
            columns = min(_KEYS, seen - k0)
            product(
                workspace, rows, columns, width, q, q_row, q_col, k + k0 * k_row, k_col, k_row,
                scores, _KEYS * size, size, fresh, scratch,
            )  # fmt: skip
            for r in range(rows):
                visible = max(0, min(columns, q0 + r + 1 - k0)) if causal else columns
                weights = array_at(workspace, scores + r * _KEYS * size, columns)
                for j in range(visible):
                    weights[j] *= scale
                weights[visible:] = 0
                before = largest[r]
                largest[r] = max(before, row_max(weights[:visible]))
                # A row that holds only -inf so far: any finite shift gives its weights of 0, where inf - inf would not.
                shift = largest[r] if largest[r] != -np.inf else weights.dtype.type(0)
                _exponentials(weights[:visible], shift)
                shrink = exp(before - shift)
                total[r] = total[r] * shrink + row_sum(weights[:visible])
                if k0 > 0:
                    mean = array_at(workspace, out + r * out_row, value_width)
                    for j in range(value_width):
                        mean[j] *= shrink
            product(
                workspace, rows, value_width, columns, scores, _KEYS * size, size, v + k0 * v_row, v_row, v_col,
                out, out_row, out_col, k0 > 0, scratch,
            )  # fmt: skip
        for r in range(rows):
            mean = array_at(workspace, out + r * out_row, value_width)
            normalizer = total[r]
            for j in range(value_width):
                mean[j] /= normalizer
            array_at(workspace, lse + (q0 + r) * lse_row, 1)[0] = largest[r] + np.log(normalizer)


@jit
def _backward_range(
    start: int,
    stop: int,
    worker: int,
    workspaces: np.ndarray,
    places: np.ndarray,
    strides: np.ndarray,
    queries: int,
    keys: int,
    width: int,
    value_width: int,
    scale: float,
    causal: bool,
    side: int,
) -> None:
    """Add to the gradients of heads (`side` _BOTH), or of tiles of keys or of queries, numbered over all heads.

    Operands: grad_out, q, k, v, out, lse, dq, dk, dv. Every gradient is a sum of tiles in ascending order on each side.
    """
    workspace = workspaces[worker]
    size = workspace.itemsize
    fresh, added = np.bool_(False), np.bool_(True)
    key_blocks = (keys + _KEYS - 1) // _KEYS
    query_blocks = (queries + _QUERIES - 1) // _QUERIES
    blocks = 1 if side == _BOTH else key_blocks if side == _KEY_SIDE else query_blocks
    weights = round_up(np.intp(workspace.ctypes.data), VECTOR_BYTES)
    weight_grads = weights + _QUERIES * _KEYS * size
    scratch = weight_grads + _QUERIES * _KEYS * size
    tile_row = _KEYS * size
    g_row, g_col, q_row, q_col, k_row, k_col, v_row, v_col, out_row, _, lse_row, _, dq_row, dq_col = strides[:14]
    dk_row, dk_col, dv_row, dv_col = strides[14:]
    for task in range(start, stop):
        grad_out, q, k, v, out, lse, dq, dk, dv = places[task // blocks]
        first_key, last_key, first_query, last_query = 0, key_blocks, 0, query_blocks
        if side == _KEY_SIDE:
            first_key = task % blocks
            last_key = first_key + 1
        elif side == _QUERY_SIDE:
            first_query = task % blocks
            last_query = first_query + 1
        for key_block in range(first_key, last_key):
            k0 = key_block * _KEYS
            key, value = k + k0 * k_row, v + k0 * v_row
            for query_block in range(first_query, last_query):
                q0 = query_block * _QUERIES
                rows = min(_QUERIES, queries - q0)
                columns = min(_KEYS, keys - k0)
                if causal:
                    columns = min(columns, q0 + rows - k0)
                if columns <= 0:
                    continue
                query, grad = q + q0 * q_row, grad_out + q0 * g_row
                product(
                    workspace, rows, columns, width, query, q_row, q_col, key, k_col, k_row,
                    weights, tile_row, size, fresh, scratch,
                )  # fmt: skip
                product(
                    workspace, rows, columns, value_width, grad, g_row, g_col, value, v_col, v_row,
                    weight_grads, tile_row, size, fresh, scratch,
                )  # fmt: skip
                for r in range(rows):
                    visible = max(0, min(columns, q0 + r + 1 - k0)) if causal else columns
                    p = array_at(workspace, weights + r * tile_row, columns)
                    dp = array_at(workspace, weight_grads + r * tile_row, columns)
                    normalizer = array_at(workspace, lse + (q0 + r) * lse_row, 1)[0]
                    mean_grad = p.dtype.type(
                        row_dot(
                            array_at(workspace, grad + r * g_row, value_width),
                            array_at(workspace, out + (q0 + r) * out_row, value_width),
                        )
                    )
                    _score_gradients(p[:visible], dp[:visible], scale, normalizer, mean_grad)
                    p[visible:] = 0
                    dp[visible:] = 0
                if side != _QUERY_SIDE:
                    product(
                        workspace, columns, value_width, rows, weights, size, tile_row, grad, g_row, g_col,
                        dv + k0 * dv_row, dv_row, dv_col, added, scratch,
                    )  # fmt: skip
                    product(
                        workspace, columns, width, rows, weight_grads, size, tile_row, query, q_row, q_col,
                        dk + k0 * dk_row, dk_row, dk_col, added, scratch,
                    )  # fmt: skip
                if side != _KEY_SIDE:
                    product(
                        workspace, rows, width, columns, weight_grads, tile_row, size, key, k_row, k_col,
                        dq + q0 * dq_row, dq_row, dq_col, added, scratch,
                    )  # fmt: skip


def attention_forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return softmax(scale q k^T) v, and the logarithm of each query's sum of exponentials, which backward needs.

    Causal: query i sees the keys up to i. Without keys out is 0.
    Shapes: q (B, H, T, D), k (B, H, S, D), v (B, H, S, E); out (B, H, T, E), lse (B, H, T). Any strides.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    q, k, v = _checked(q, k, v)
    out = _empty_in_order_of(q, v.shape[3])
    lse = memory.empty(q.shape[:3], q.dtype)
    heads, queries = q.shape[0] * q.shape[1], q.shape[2]
    keys, width, value_width = k.shape[2], q.shape[3], v.shape[3]
    if keys == 0:
        out.fill(0)
        lse.fill(-np.inf)
    elif lse.size:
        places, strides = _places_and_strides(q, k, v, out, lse[..., None])
        parallel_for(
            _forward_range,
            heads * -(-queries // _QUERIES),
            1 + _GRAIN // (_QUERIES * keys * (width + value_width)),
            _workspaces(width, value_width, q.dtype),
            places,
            strides,
            queries,
            keys,
            width,
            value_width,
            q.dtype.type(scale),
            causal,
        )
    return out, lse


def attention_backward(
    grad_out: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    scale: float,
    causal: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients of `attention_forward` by q, k and v; `out` and `lse` are what it returned.

    Raises ValueError for shapes and TypeError for dtypes that do not fit.
    """
    q, k, v = _checked(q, k, v)
    wanted = (*q.shape[:3], v.shape[3])
    if grad_out.shape != wanted or out.shape != wanted or lse.shape != wanted[:3]:
        raise ValueError(
            f"attention: got grad_out {grad_out.shape}, out {out.shape}, lse {lse.shape}; "
            f"wanted {wanted}, {wanted}, {wanted[:3]}; pass what attention_forward returned for these q, k and v"
        )
    if not grad_out.dtype == out.dtype == lse.dtype == q.dtype:
        raise TypeError(f"attention: got {grad_out.dtype}, {out.dtype}, {lse.dtype}; wanted {q.dtype} as of q; convert")
    dq, dk, dv = _empty_in_order_of(q, q.shape[3]), _empty_in_order_of(k, k.shape[3]), _empty_in_order_of(v, v.shape[3])
    for gradient in (dq, dk, dv):
        gradient.fill(0)
    heads, queries = q.shape[0] * q.shape[1], q.shape[2]
    keys, width, value_width = k.shape[2], q.shape[3], v.shape[3]
    if grad_out.size and keys:
        grad_out, out = _with_contiguous_rows(grad_out), _with_contiguous_rows(out)
        places, strides = _places_and_strides(grad_out, q, k, v, out, lse[..., None], dq, dk, dv)
        # Where there are too few heads for all threads, tiles are shared out, at the price of making weights twice.
        if heads >= get_num_threads():
            sides = [(_BOTH, 1)]
        else:
            sides = [(_KEY_SIDE, -(-keys // _KEYS)), (_QUERY_SIDE, -(-queries // _QUERIES))]
        for side, blocks in sides:
            parallel_for(
                _backward_range,
                heads * blocks,
                1 + _GRAIN * blocks // (2 * queries * keys * (width + value_width)),
                _workspaces(width, value_width, q.dtype),
                places,
                strides,
                queries,
                keys,
                width,
                value_width,
                q.dtype.type(scale),
                causal,
                side,
            )
    return dq, dk, dv


def _checked(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"attention: got {shapes}; wanted four dimensions each: batch, heads, positions, features")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or not q.shape[3] == k.shape[3] > 0:
        raise ValueError(f"attention: got {shapes}; wanted (B, H, T, D), (B, H, S, D), (B, H, S, E) with D at least 1")
    if q.dtype not in (np.float32, np.float64) or not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"attention: got {q.dtype}, {k.dtype}, {v.dtype}; wanted all float32 or all float64; convert")
    return aligned(q), aligned(k), aligned(v)


def _empty_in_order_of(array: np.ndarray, width: int) -> np.ndarray:
    """Return an empty (B, H, T, width) array whose heads lie inside positions if those of `array` do."""
    batch, heads, positions, _ = array.shape
    if array.strides[1] < array.strides[2]:
        return memory.empty((batch, positions, heads, width), array.dtype).transpose(0, 2, 1, 3)
    return memory.empty((batch, heads, positions, width), array.dtype)


def _with_contiguous_rows(array: np.ndarray) -> np.ndarray:
    return array if array.strides[-1] == array.itemsize and array.flags.aligned else np.ascontiguousarray(array)


def _places_and_strides(*operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the address of each operand's matrix for every head, and the bytes between rows and columns of each."""
    starts = np.array([operand.ctypes.data for operand in operands], np.int64)
    strides = np.array([stride for operand in operands for stride in operand.strides[-2:]], np.int64)
    return batch_offsets(operands[0].shape[:2], *operands) + starts, strides


def _workspaces(width: int, value_width: int, dtype: np.dtype) -> np.ndarray:
    """Return scratch memory, a row for each thread: two tiles, and what the products need."""
    widest = max(width, value_width)
    depth = max(_KEYS, _QUERIES, widest)
    products = workspace_size(max(_KEYS, _QUERIES), max(_KEYS, _QUERIES, widest), depth, dtype.itemsize)
    return memory.empty((get_num_threads(), 2 * _QUERIES * _KEYS + products + VECTOR_BYTES // dtype.itemsize), dtype)
