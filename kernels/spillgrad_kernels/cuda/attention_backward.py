"""The backward pass of scaled dot-product attention on a device (see `attention`)."""

import functools

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.attention import DTYPES, prepare
from spillgrad_kernels.cuda.attention_tiles import (
    ACROSS,
    Cut,
    Variant,
    compiled,
    cut_of,
    dots,
    filled,
    mixed,
    opening,
    places,
    results,
    row_of,
    stored,
    to_head,
    weight_stored,
)
from spillgrad_kernels.cuda.elementwise import compute, contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel
from spillgrad_kernels.cuda.pointers import computing_dtype
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.attention import Dropout, check_operands, check_results
from spillgrad_kernels.tables.elementwise_derivatives import ROWS


def _backward_bytes(variant: Variant, cut: Cut) -> tuple[int, int, int, int, int]:
    """Return the bytes of shared memory for two arrays of own rows, for two of a tile's rows, and for weights."""
    keys, values = variant.pitch(variant.width), variant.pitch(variant.value_width)
    return cut.rows * keys, cut.rows * values, cut.tile * keys, cut.tile * values, cut.weights_bytes


@functools.cache
def backward_kernel(variant: Variant, by_keys: bool) -> Kernel:
    """Return the kernel of the gradients of queries or, if `by_keys`, of the gradients of keys and values.

    A block has some rows of the arrays `a` and `b` of a head, and walks along the rows of the arrays `c` and `d`. A
    score is the dot product of a row of `a` and a row of `c`. The gradient of a weight is the dot product of a row of
    `b` and a row of `d`. If `by_keys`, the arrays are k, v, q and the gradient of the result, and the kernel computes
    the gradients of `a` and `b`. Otherwise, the arrays are q, the gradient of the result, k and v, and the kernel
    computes the gradient of `a`. The mask has a row for each row of `a`.
    """
    cut = cut_of(variant, _backward_bytes)
    sizes = dict(zip(("own_a", "own_b", "tile_c", "tile_d", "weights"), _backward_bytes(variant, cut), strict=True))
    width, value_width = variant.width, variant.value_width
    own, other = range(cut.own), range(cut.other)
    count, others = ("keys", "queries") if by_keys else ("queries", "keys")
    loop = [
        *filled(variant, "tile_c", cut.tile, width, "c", "begin", others),
        *filled(variant, "tile_d", cut.tile, value_width, "d", "begin", others),
        "cuda.syncthreads()",
        *dots(variant, cut, "s", "own_a", "tile_c", width),
        *dots(variant, cut, "t", "own_b", "tile_d", value_width),
    ]

    def normalizer_of(query: str, named: str) -> list[str]:
        """Return the code that loads a query's normalizer and mean gradient, 0 beyond the last query."""
        at = f"(head * queries + {query}) * {variant.itemsize}"
        return [
            f"normalizer{named} = mean{named} = zero",
            f"if {query} < queries:",
            f"    normalizer{named}, mean{named} = load_sum(lse + {at}), load_sum(mean_grad + {at})",
        ]

    if by_keys:
        loop += [line for c in other for line in normalizer_of(f"begin + x + {c * ACROSS}", str(c))]
    for i in own:
        loop.append(f"row = {row_of(i)}")
        for c in other:
            number = c if by_keys else i
            loop += [
                f"column = begin + x + {c * ACROSS}",
                f"query, key = {'column, row' if by_keys else 'row, column'}",
                "place = mask + row * mask_row + column * mask_step",
                f"value = score(s{i}_{c} * scale, query, key, queries, keys, place)",
                f"weight = zero if value == lowest else exp(value - normalizer{number})",
                "drawn_from = counter + (head * queries + query) * row_counters",
                "kept = factor(seed, drawn_from, key, threshold, kept_factor)",
                f"slope{i}_{c} = zero if weight == zero else weight * (t{i}_{c} * kept - mean{number}) * scale",
                *([weight_stored(cut, "weights", i, c, "weight * kept")] if by_keys else []),
            ]
    if by_keys:
        loop += ["cuda.syncthreads()", *mixed(variant, cut, "made_b", "weights", "tile_d", value_width)]
        loop.append("cuda.syncthreads()")
    loop += [
        *(weight_stored(cut, "weights", i, c, f"slope{i}_{c}") for i in own for c in other),
        "cuda.syncthreads()",
        *mixed(variant, cut, "made_a", "weights", "tile_c", width),
        "cuda.syncthreads()",
        f"begin += {cut.tile}",
    ]
    # The blocks with the most work come first: those of the first keys, or of the last queries.
    nth = "block" if by_keys else f"quotient(queries + {cut.rows - 1}, {cut.rows}) - 1 - block"
    lines = [
        *opening(cut, sizes, nth),
        *to_head("a", "b", "c", "d", "mask", "da", "db"),
        *filled(variant, "own_a", cut.rows, width, "a", "first", count),
        *filled(variant, "own_b", cut.rows, value_width, "b", "first", count),
        *(f"{name} = zero" for name in results(variant, own, "made_a", width)),
        *(f"{name} = zero" for name in (results(variant, own, "made_b", value_width) if by_keys else ())),
        *([] if by_keys else [line for i in own for line in normalizer_of(row_of(i), str(i))]),
        f"begin, last = 0, {others}",
    ]
    if variant.causal and by_keys:  # earlier queries do not see these keys
        lines.append(f"begin = quotient(first, {cut.tile}) * {cut.tile}")
    elif variant.causal:
        lines.append(f"last = first + {cut.rows} if first + {cut.rows} < keys else keys")
    lines += ["while begin < last:", *(f"    {line}" for line in loop)]
    lines += stored(variant, cut, "made_a", "", "da", width, count)
    if by_keys:
        lines += stored(variant, cut, "made_b", "", "db", value_width, count)
    name, parameters = f"{'keys' if by_keys else 'queries'}_backward", places("a", "b", "c", "d", "mask", "da", "db")
    return compiled(variant, name, f"{parameters}, lse, mean_grad", lines, list(sizes.values()))


def attention_backward(
    grad_out: DeviceArray, q: DeviceArray, k: DeviceArray, v: DeviceArray, out: DeviceArray, lse: DeviceArray,
    scale: float, causal: bool, mask: DeviceArray | None = None, dropout: Dropout | None = None,
    first_keys: DeviceArray | None = None, softcap: float | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    """Return the gradients of `attention_forward` by q, k and v. `out` and `lse` are the results of that function."""
    check_operands(q, k, v, DTYPES)
    check_results(q, v, grad_out, out, lse)
    dq, dk, dv = (empty(array.shape, array.dtype) for array in (q, k, v))
    call = prepare(q, k, v, scale, causal, mask, dropout, first_keys, softcap, grad_out)
    # For each query, the sum over keys of weight * gradient of the weight, which is equal to the sum of grad_out * out.
    (weighted,) = compute(ROWS["mul"].forward, "mul", [grad_out, out], (computing_dtype(q.dtype),))
    dense = [contiguous(lse), sum_over(weighted, (weighted.ndim - 1,))]
    q, k, v, mask = call.arrays
    rows = cut_of(call.variant, _backward_bytes).rows
    if dq.size:
        call.launch(backward_kernel(call.variant, False), rows, [q, grad_out, k, v, mask, dq, dq], dense)
    if dk.size or dv.size:
        turned = mask.swapaxes(-1, -2)
        call.launch(backward_kernel(call.variant, True), rows, [k, v, q, grad_out, turned, dk, dv], dense)
    return dq, dk, dv
