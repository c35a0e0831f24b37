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

# A thread holds parts of rows of three or four arrays in registers. This is the largest number of features of a part.
_BACKWARD_FEATURES = 4 if SIMULATED else 16


@functools.cache
def backward_kernel(variant: Variant, by_keys: bool) -> Kernel:
    """Return the kernel of the gradients of queries or, if `by_keys`, of the gradients of keys and values.

    A block has some rows of the arrays `a` and `b` of a head, and walks along the rows of the arrays `c` and `d`. A
    score is the dot product of a row of `a` and a row of `c`. The gradient of a weight is the dot product of a row of
    `b` and a row of `d`. If `by_keys`, the arrays are k, v, q and the gradient of the result, and the kernel computes
    the gradients of `a` and `b`. Otherwise, the arrays are q, the gradient of the result, k and v, and the kernel
    computes the gradient of `a`. The mask has a row for each row of `a`.
    """
    dtype = np.dtype(variant.dtype)
    size, number, sums = dtype.itemsize, dtype.type, kernel_types[variant.dtype]
    cut = cut_of(variant, _BACKWARD_FEATURES, 2)
    splits, part, value_part, tile, rows = cut
    width, value_width, padded, value_padded = variant.width, variant.value_width, splits * part, splits * value_part
    find_rows, fill_part, fill_tile, dot, add, store_part, score, factor = functions(variant, cut)
    load, zero, one, lowest = loaders[dtype.name, 1], number(0), number(1), number(-np.inf)
    c_size, d_size, scores_size = tile * padded, tile * value_padded, splits * tile * rows
    b_part = value_part if by_keys else 1
    causal = variant.causal

    def backward(
        queries: int, keys: int, size1: int, blocks: int, scale: float, kept_factor: float, threshold: int, seed: int,
        counter: int, row_counters: int,
        a: int, a_0: int, a_1: int, a_row: int, a_step: int, b: int, b_0: int, b_1: int, b_row: int, b_step: int,
        c: int, c_0: int, c_1: int, c_row: int, c_step: int, d: int, d_0: int, d_1: int, d_row: int, d_step: int,
        mask: int, mask_0: int, mask_1: int, mask_row: int, mask_step: int, da: int, da_0: int, da_1: int, da_row: int,
        da_step: int, db: int, db_0: int, db_1: int, db_row: int, db_step: int, lse: int, mean_grad: int,
    ) -> None:  # fmt: skip
        c_rows = cuda.shared.array(c_size, sums)  # separate lines: the simulator tells arrays apart by line
        d_rows = cuda.shared.array(d_size, sums)
        scores = cuda.shared.array(scores_size, sums)
        slopes = cuda.shared.array(scores_size, sums)
        own_a, own_b = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        made_a, made_b = cuda.local.array(part, sums), cuda.local.array(b_part, sums)
        split, r, head, first, b0, b1 = find_rows(blocks, size1)
        row = first + r
        count, others = (keys, queries) if by_keys else (queries, keys)
        is_inside = row < count
        fill_part(own_a, a + b0 * a_0 + b1 * a_1 + row * a_row, a_step, split * part, width, is_inside)
        fill_part(own_b, b + b0 * b_0 + b1 * b_1 + row * b_row, b_step, split * value_part, value_width, is_inside)
        for i in range(part):
            made_a[i] = zero
        for i in range(b_part):
            made_b[i] = zero
        normalizer, mean = zero, zero
        if is_inside and not by_keys:
            at = (head * queries + row) * size
            normalizer, mean = load(lse + at), load(mean_grad + at)
        begin, last = 0, others
        if causal and by_keys:  # earlier queries do not see these keys
            begin = quotient(first, tile) * tile
        elif causal and first + rows < keys:
            last = first + rows
        while begin < last:
            fill_tile(c_rows, c + b0 * c_0 + b1 * c_1, c_row, c_step, begin, others, width, padded)
            fill_tile(d_rows, d + b0 * d_0 + b1 * d_1, d_row, d_step, begin, others, value_width, value_padded)
            cuda.syncthreads()
            c_place = shared_address(c_rows) + split * part * size
            d_place = shared_address(d_rows) + split * value_part * size
            for j in range(tile):
                place = (split * tile + j) * rows + r
                scores[place] = dot(own_a, c_place + j * padded * size)
                slopes[place] = dot(own_b, d_place + j * value_padded * size)
            cuda.syncthreads()
            for j in range(split, tile, splits):
                value, slope = zero, zero
                for other in range(splits):
                    value += scores[(other * tile + j) * rows + r]
                    slope += slopes[(other * tile + j) * rows + r]
                query, key = (begin + j, row) if by_keys else (row, begin + j)
                place = mask + b0 * mask_0 + b1 * mask_1 + row * mask_row + (begin + j) * mask_step
                value = score(value * scale, query, key, queries, keys, place)
                if by_keys and query < queries:
                    at = (head * queries + query) * size
                    normalizer, mean = load(lse + at), load(mean_grad + at)
                weight = zero if value == lowest else exp(value - normalizer)
                drawn_from = counter + (head * queries + query) * row_counters
                kept = factor(seed, drawn_from, key, threshold, kept_factor)
                slopes[j * rows + r] = zero if weight == zero else weight * (slope * kept - mean) * scale
                if by_keys:
                    scores[j * rows + r] = weight * kept
            cuda.syncthreads()
            for j in range(tile):
                add(made_a, slopes[j * rows + r], c_place + j * padded * size)
                if by_keys:
                    add(made_b, scores[j * rows + r], d_place + j * value_padded * size)
            cuda.syncthreads()
            begin += tile
        if is_inside:
            store_part(made_a, one, da + b0 * da_0 + b1 * da_1 + row * da_row, da_step, split * part, width)
            if by_keys:
                place = db + b0 * db_0 + b1 * db_1 + row * db_row
                store_part(made_b, one, place, db_step, split * value_part, value_width)

    parameters = [*number_types(sums), *[types.int64] * (7 * PLACE + 2)]
    return Kernel(backward, f"{'keys' if by_keys else 'queries'}_backward", parameters, BLOCK_THREADS)


def attention_backward(
    grad_out: DeviceArray, q: DeviceArray, k: DeviceArray, v: DeviceArray, out: DeviceArray, lse: DeviceArray,
    scale: float, causal: bool, mask: DeviceArray | None = None, dropout: Dropout | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    """Return the gradients of `attention_forward` by q, k and v. `out` and `lse` are the results of that function."""
    check_operands(q, k, v)
    check_results(q, v, grad_out, out, lse)
    dq, dk, dv = (empty(array.shape, array.dtype) for array in (q, k, v))
    call = prepare(q, k, v, scale, causal, mask, dropout)
    # For each query, the sum over keys of weight * gradient of the weight, which is equal to the sum of grad_out * out.
    (weighted,) = compute(ROWS["mul"].forward, "mul", [grad_out, out], (q.dtype,))
    dense = [contiguous(lse), sum_over(weighted, (weighted.ndim - 1,))]
    rows = cut_of(call.variant, _BACKWARD_FEATURES, 2).rows
    q, k, v, mask = call.arrays
    if dq.size:
        call.launch(backward_kernel(call.variant, False), rows, [q, grad_out, k, v, mask, dq, dq], dense)
    if dk.size or dv.size:
        turned = mask.swapaxes(-1, -2)
        call.launch(backward_kernel(call.variant, True), rows, [k, v, q, grad_out, turned, dk, dv], dense)
    return dq, dk, dv
