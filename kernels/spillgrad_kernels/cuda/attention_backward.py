"""The backward pass of scaled dot-product attention on a device (see `attention`)."""

import functools

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives exp its meaning here)
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.attention import BLOCK_THREADS, PLACE, Variant, cut_of, functions, number_types, prepare
from spillgrad_kernels.cuda.elementwise import compute, contiguous
from spillgrad_kernels.cuda.jit.compile import SIMULATED, Kernel, cuda
from spillgrad_kernels.cuda.pointers import kernel_types, loaders, quotient, shared_address
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.attention import Dropout, check_operands, check_results
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.scalar_math import exp

# The number of features in a thread's registers, for each of the three or four arrays of which it holds a part of a
# row.
_BACKWARD_FEATURES = 4 if SIMULATED else 16


@functools.cache
def queries_kernel(variant: Variant) -> Kernel:
    """Return the kernel in which a block computes the gradients of some queries of a head."""
    dtype = np.dtype(variant.dtype)
    size, number, sums = dtype.itemsize, dtype.type, kernel_types[variant.dtype]
    splits, part, value_part, tile, rows = cut_of(variant, _BACKWARD_FEATURES, 2)
    width, value_width, padded, value_padded = variant.width, variant.value_width, splits * part, splits * value_part
    fill_part, fill_tile, dot, add, store_part, score, factor = functions(variant, tile)
    load, zero, one, lowest = loaders[dtype.name, 1], number(0), number(1), number(-np.inf)
    keys_size, values_size, scores_size = tile * padded, tile * value_padded, splits * tile * rows
    causal, drops = variant.causal, variant.dropout

    def queries_backward(
        queries: int, keys: int, size1: int, blocks: int, scale: float, kept_factor: float, threshold: int, seed: int,
        counter: int, row_counters: int,
        q: int, q_0: int, q_1: int, q_row: int, q_step: int, k: int, k_0: int, k_1: int, k_row: int, k_step: int,
        v: int, v_0: int, v_1: int, v_row: int, v_step: int, mask: int, mask_0: int, mask_1: int, mask_row: int,
        mask_step: int, g: int, g_0: int, g_1: int, g_row: int, g_step: int, dq: int, dq_0: int, dq_1: int,
        dq_row: int, dq_step: int, lse: int, mean_grad: int,
    ) -> None:  # fmt: skip
        key_rows = cuda.shared.array(keys_size, sums)  # separate lines: the simulator tells arrays apart by line
        value_rows = cuda.shared.array(values_size, sums)
        scores = cuda.shared.array(scores_size, sums)
        slopes = cuda.shared.array(scores_size, sums)
        own, grads = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        made = cuda.local.array(part, sums)
        split = quotient(cuda.threadIdx.x, rows)
        r = cuda.threadIdx.x - split * rows
        head = quotient(cuda.blockIdx.x, blocks)
        first = (cuda.blockIdx.x - head * blocks) * rows
        b0 = quotient(head, size1)
        b1 = head - b0 * size1
        query = first + r
        is_inside = query < queries
        fill_part(own, q + b0 * q_0 + b1 * q_1 + query * q_row, q_step, split * part, width, is_inside)
        fill_part(grads, g + b0 * g_0 + b1 * g_1 + query * g_row, g_step, split * value_part, value_width, is_inside)
        for i in range(part):
            made[i] = zero
        at = (head * queries + query) * size
        normalizer = load(lse + at) if is_inside else zero
        mean = load(mean_grad + at) if is_inside else zero
        last = first + rows if causal and first + rows < keys else keys
        begin = 0
        while begin < last:
            fill_tile(key_rows, k + b0 * k_0 + b1 * k_1, k_row, k_step, begin, keys, width, padded)
            fill_tile(value_rows, v + b0 * v_0 + b1 * v_1, v_row, v_step, begin, keys, value_width, value_padded)
            cuda.syncthreads()
            key_place = shared_address(key_rows) + split * part * size
            value_place = shared_address(value_rows) + split * value_part * size
            for j in range(tile):
                place = (split * tile + j) * rows + r
                scores[place] = dot(own, key_place + j * padded * size)
                slopes[place] = dot(grads, value_place + j * value_padded * size)
            cuda.syncthreads()
            for j in range(split, tile, splits):
                value, slope = zero, zero
                for other in range(splits):
                    value += scores[(other * tile + j) * rows + r]
                    slope += slopes[(other * tile + j) * rows + r]
                place = mask + b0 * mask_0 + b1 * mask_1 + query * mask_row + (begin + j) * mask_step
                value = score(value * scale, query, begin + j, queries, keys, place)
                weight = zero if value == lowest else exp(value - normalizer)
                drawn_from = counter + (head * queries + query) * row_counters
                kept = factor(seed, drawn_from, begin + j, threshold, kept_factor) if drops else one
                scores[j * rows + r] = zero if weight == zero else weight * (slope * kept - mean) * scale
            cuda.syncthreads()
            for j in range(tile):
                add(made, scores[j * rows + r], key_place + j * padded * size)
            cuda.syncthreads()
            begin += tile
        if is_inside:
            store_part(made, one, dq + b0 * dq_0 + b1 * dq_1 + query * dq_row, dq_step, split * part, width)

    parameters = [*number_types(sums), *[types.int64] * (6 * PLACE + 2)]
    return Kernel(queries_backward, parameters=parameters, threads=BLOCK_THREADS)


@functools.cache
def keys_kernel(variant: Variant) -> Kernel:
    """Return the kernel in which a block computes the gradients of some keys of a head and of their values."""
    dtype = np.dtype(variant.dtype)
    size, number, sums = dtype.itemsize, dtype.type, kernel_types[variant.dtype]
    splits, part, value_part, tile, rows = cut_of(variant, _BACKWARD_FEATURES, 2)
    width, value_width, padded, value_padded = variant.width, variant.value_width, splits * part, splits * value_part
    fill_part, fill_tile, dot, add, store_part, score, factor = functions(variant, tile)
    load, zero, one, lowest = loaders[dtype.name, 1], number(0), number(1), number(-np.inf)
    queries_size, grads_size, scores_size = tile * padded, tile * value_padded, splits * tile * rows
    causal, drops = variant.causal, variant.dropout

    def keys_backward(
        queries: int, keys: int, size1: int, blocks: int, scale: float, kept_factor: float, threshold: int, seed: int,
        counter: int, row_counters: int,
        q: int, q_0: int, q_1: int, q_row: int, q_step: int, k: int, k_0: int, k_1: int, k_row: int, k_step: int,
        v: int, v_0: int, v_1: int, v_row: int, v_step: int, mask: int, mask_0: int, mask_1: int, mask_row: int,
        mask_step: int, g: int, g_0: int, g_1: int, g_row: int, g_step: int, dk: int, dk_0: int, dk_1: int,
        dk_row: int, dk_step: int, dv: int, dv_0: int, dv_1: int, dv_row: int, dv_step: int, lse: int, mean_grad: int,
    ) -> None:  # fmt: skip
        query_rows = cuda.shared.array(queries_size, sums)  # separate lines: the simulator tells arrays apart by line
        grad_rows = cuda.shared.array(grads_size, sums)
        scores = cuda.shared.array(scores_size, sums)
        slopes = cuda.shared.array(scores_size, sums)
        own, values = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        own_made, values_made = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        split = quotient(cuda.threadIdx.x, rows)
        r = cuda.threadIdx.x - split * rows
        head = quotient(cuda.blockIdx.x, blocks)
        first = (cuda.blockIdx.x - head * blocks) * rows
        b0 = quotient(head, size1)
        b1 = head - b0 * size1
        key = first + r
        is_inside = key < keys
        fill_part(own, k + b0 * k_0 + b1 * k_1 + key * k_row, k_step, split * part, width, is_inside)
        fill_part(values, v + b0 * v_0 + b1 * v_1 + key * v_row, v_step, split * value_part, value_width, is_inside)
        for i in range(part):
            own_made[i] = zero
        for i in range(value_part):
            values_made[i] = zero
        begin = quotient(first, tile) * tile if causal else 0  # earlier queries do not see these keys
        while begin < queries:
            fill_tile(query_rows, q + b0 * q_0 + b1 * q_1, q_row, q_step, begin, queries, width, padded)
            fill_tile(grad_rows, g + b0 * g_0 + b1 * g_1, g_row, g_step, begin, queries, value_width, value_padded)
            cuda.syncthreads()
            query_place = shared_address(query_rows) + split * part * size
            grad_place = shared_address(grad_rows) + split * value_part * size
            for j in range(tile):
                place = (split * tile + j) * rows + r
                scores[place] = dot(own, query_place + j * padded * size)
                slopes[place] = dot(values, grad_place + j * value_padded * size)
            cuda.syncthreads()
            for j in range(split, tile, splits):
                query = begin + j
                value, slope, weight, kept = zero, zero, zero, one
                for other in range(splits):
                    value += scores[(other * tile + j) * rows + r]
                    slope += slopes[(other * tile + j) * rows + r]
                if query < queries:
                    place = mask + b0 * mask_0 + b1 * mask_1 + query * mask_row + key * mask_step
                    at = (head * queries + query) * size
                    value = score(value * scale, query, key, queries, keys, place)
                    weight = zero if value == lowest else exp(value - load(lse + at))
                    drawn_from = counter + (head * queries + query) * row_counters
                    kept = factor(seed, drawn_from, key, threshold, kept_factor) if drops else one
                    slope = zero if weight == zero else weight * (slope * kept - load(mean_grad + at)) * scale
                scores[j * rows + r] = weight * kept
                slopes[j * rows + r] = slope if query < queries else zero
            cuda.syncthreads()
            for j in range(tile):
                add(own_made, slopes[j * rows + r], query_place + j * padded * size)
                add(values_made, scores[j * rows + r], grad_place + j * value_padded * size)
            cuda.syncthreads()
            begin += tile
        if is_inside:
            store_part(own_made, one, dk + b0 * dk_0 + b1 * dk_1 + key * dk_row, dk_step, split * part, width)
            place = dv + b0 * dv_0 + b1 * dv_1 + key * dv_row
            store_part(values_made, one, place, dv_step, split * value_part, value_width)

    parameters = [*number_types(sums), *[types.int64] * (7 * PLACE + 2)]
    return Kernel(keys_backward, parameters=parameters, threads=BLOCK_THREADS)


def attention_backward(
    grad_out: DeviceArray, q: DeviceArray, k: DeviceArray, v: DeviceArray, out: DeviceArray, lse: DeviceArray,
    scale: float, causal: bool, mask: DeviceArray | None = None, dropout: Dropout | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    """Return the gradients of `attention_forward` by q, k and v. `out` and `lse` are its results."""
    check_operands(q, k, v)
    check_results(q, v, grad_out, out, lse)
    dq, dk, dv = (empty(array.shape, array.dtype) for array in (q, k, v))
    call = prepare(q, k, v, scale, causal, mask, dropout)
    # For each query, the sum over keys of weight * gradient of the weight, which is equal to the sum of grad_out * out.
    (weighted,) = compute(ROWS["mul"].forward, "mul", [grad_out, out], (q.dtype,))
    dense = [contiguous(lse), sum_over(weighted, (weighted.ndim - 1,))]
    rows = cut_of(call.variant, _BACKWARD_FEATURES, 2).rows
    if dq.size:
        call.launch(queries_kernel(call.variant), q.shape[-2], rows, [grad_out, dq], dense)
    if dk.size or dv.size:
        call.launch(keys_kernel(call.variant), k.shape[-2], rows, [grad_out, dk, dv], dense)
    return dq, dk, dv
