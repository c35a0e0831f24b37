"""Scaled dot-product attention on a device, tile by tile: the T x S matrix of weights never exists in memory.

A block of threads computes some rows of one side: queries in the forward pass and for the gradients of queries, keys
for the gradients of keys and values. It walks along tiles of rows of the other side. All these rows are in shared
memory. A thread holds in registers a tile of the block's scores, and a tile of its results. So each number that it
reads from shared memory is used several times, as in a matrix product. Between the two, weights pass through shared
memory. Every sum has a fixed order, so results do not depend on the device.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import functools
import math
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.attention_tiles import (
    ACROSS,
    BIAS,
    CHOICE,
    DOWN,
    NO_MASK,
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
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import Kernel
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, computing_dtype
from spillgrad_kernels.device_array import DeviceArray, NotOnDevice
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.attention import Dropout, check_operands, dropout_operands
from spillgrad_kernels.tables.random import counters_needed

DTYPES = FLOATS | {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}


def _forward_bytes(variant: Variant, cut: Cut) -> tuple[int, int, int, int]:
    """Return the bytes of shared memory for queries, for keys or weights, for values, and for exchanges along rows."""
    keys, values = variant.pitch(variant.width), variant.pitch(variant.value_width)
    return cut.rows * keys, max(cut.tile * keys, cut.weights_bytes), cut.tile * values, ACROSS * cut.rows * cut.itemsize


@functools.cache
def forward_kernel(variant: Variant) -> Kernel:
    """Return the kernel of the forward pass. A block computes the results of some queries of a head."""
    cut = cut_of(variant, _forward_bytes)
    sizes = dict(zip(("own", "tile", "values", "exchange"), _forward_bytes(variant, cut), strict=True))
    own, other, size = range(cut.own), range(cut.other), variant.itemsize
    # Weights take the place of the tile's keys, once the scores are computed.
    loop = [
        *filled(variant, "tile", cut.tile, variant.width, "k", "begin", "keys"),
        *filled(variant, "values", cut.tile, variant.value_width, "v", "begin", "keys"),
        "cuda.syncthreads()",
        *dots(variant, cut, "s", "own", "tile", variant.width),
    ]
    for i in own:
        loop.append(f"query, now = {row_of(i)}, lowest")
        for c in other:
            at = f"mask + query * mask_row + (begin + x + {c * ACROSS}) * mask_step"
            loop += [
                f"s{i}_{c} = score(s{i}_{c} * scale, query, begin + x + {c * ACROSS}, queries, keys, {at})",
                f"now = s{i}_{c} if s{i}_{c} > now or s{i}_{c} != s{i}_{c} else now",
            ]
        loop.append(f"write1(exchange + (x * {cut.rows} + y + {i * DOWN}) * {size}, now)")
    loop.append("cuda.syncthreads()")
    for i in own:
        loop += [
            f"now = largest{i}",
            f"for part in range({ACROSS}):",
            f"    value = read1(exchange + (part * {cut.rows} + y + {i * DOWN}) * {size})",
            "    now = value if value > now or value != value else now",
            # If all scores of a row so far are -inf, shift by 0: -inf - -inf would be NaN.
            "shift = zero if now == lowest else now",
            f"shrink = exp(largest{i} - shift)",
            f"largest{i} = now",
            f"total{i} *= shrink",
            *(f"{name} *= shrink" for name in results(variant, [i], "mean", variant.value_width)),
        ]
        if variant.dropout:
            loop.append(f"drawn_from = counter + (head * queries + first + y + {i * DOWN}) * row_counters")
        for c in other:
            loop += [f"weight = exp(s{i}_{c} - shift)", f"total{i} += weight"]
            if variant.dropout:
                loop.append(f"weight *= factor(seed, drawn_from, begin + x + {c * ACROSS}, threshold, kept_factor)")
            loop.append(weight_stored(cut, "tile", i, c, "weight"))
    loop += [
        "cuda.syncthreads()",
        *mixed(variant, cut, "mean", "tile", "values", variant.value_width),
        "cuda.syncthreads()",
        f"begin += {cut.tile}",
    ]
    # The last queries see the most keys: their blocks come first.
    lines = [
        *opening(cut, sizes, f"quotient(queries + {cut.rows - 1}, {cut.rows}) - 1 - block"),
        *to_head("q", "k", "v", "mask", "out"),
        *filled(variant, "own", cut.rows, variant.width, "q", "first", "queries"),
        *(f"{name} = zero" for name in results(variant, own, "mean", variant.value_width)),
        *(f"largest{i}, total{i} = lowest, zero" for i in own),
        "begin, last = 0, keys",
        *([f"last = first + {cut.rows} if first + {cut.rows} < keys else keys"] if variant.causal else []),
        "while begin < last:",
        *(f"    {line}" for line in loop),
        *(f"write1(exchange + (x * {cut.rows} + y + {i * DOWN}) * {size}, total{i})" for i in own),
        "cuda.syncthreads()",
    ]
    for i in own:
        lines += [
            "total = zero",
            f"for part in range({ACROSS}):",
            f"    total += read1(exchange + (part * {cut.rows} + y + {i * DOWN}) * {size})",
            f"normalizer{i} = zero if total == zero else one / total",
            f"if x == 0 and first + y + {i * DOWN} < queries:",
            f"    store_sum(lse + (head * queries + first + y + {i * DOWN}) * {size}, largest{i} + log(total))",
        ]
    lines += stored(variant, cut, "mean", "normalizer{i}", "out", variant.value_width, "queries")
    parameters = f"{places('q', 'k', 'v', 'mask', 'out')}, lse"
    return compiled(variant, "forward", parameters, lines, list(sizes.values()))


# --- Calls -----------------------------------------------------------------------------------------------------------


class Call(NamedTuple):
    """The arguments that the forward and the backward kernels share, and `arrays`: q, k, v and the mask."""

    variant: Variant
    numbers: tuple[Any, ...]
    arrays: list[DeviceArray]

    def launch(self, kernel: Kernel, rows: int, strided: list[DeviceArray], dense: list[DeviceArray]) -> None:
        """Launch `kernel`, in which a block computes the results for `rows` rows of the array strided[0].

        The kernel takes `strided`, each as an address and strides, then `dense`, each as an address only.
        """
        q, k = self.arrays[:2]
        batch = q.shape[:-2]
        heads, blocks = math.prod(batch), -(-strided[0].shape[-2] // rows)
        places = [number for array in strided for number in _place(short_batch(array))]
        kernel.launch(
            heads * blocks, q.shape[-2], k.shape[-2], batch[-1] if batch else 1, heads, *self.numbers, *places,
            *[array.address for array in dense],
        )  # fmt: skip


def short_batch(array: DeviceArray) -> DeviceArray:
    """Return an array with its batch dimensions merged into at most two, the most that kernels take."""
    if array.ndim <= 4:
        return array
    return contiguous(array).reshape(math.prod(array.shape[:-3]), *array.shape[-3:])


def _place(array: DeviceArray) -> tuple[int, ...]:
    """Return a kernel's arguments for an array: the address, and the strides of two batch dimensions, rows, features.

    A batch dimension that the array does not have gets stride 0.
    """
    strides = array.strides[:-2]
    outer = strides[-2] if len(strides) > 1 else 0
    return array.address, outer, strides[-1] if strides else 0, *array.strides[-2:]


def prepare(
    q: DeviceArray, k: DeviceArray, v: DeviceArray, scale: float, causal: bool, mask: DeviceArray | None,
    dropout: Dropout | None, first_keys: DeviceArray | None, softcap: float | None,
    grad_out: DeviceArray | None = None,
) -> Call:  # fmt: skip
    """Return the call for these operands and, in the backward pass, the gradient of the result.

    Raises TypeError or ValueError if the mask's dtype or shape does not fit. Raises NotOnDevice for first keys and a
    cap, which `spillgrad.ops.attention` does not pass.
    """
    if first_keys is not None or softcap is not None:
        raise NotOnDevice("attention: no kernel of the device takes first keys or a cap of scores")
    kind, shape = NO_MASK, (*q.shape[:-1], k.shape[-2])
    if mask is None:
        mask = q  # stands for the mask, which the kernel then does not read
    else:
        if mask.dtype not in (np.bool_, q.dtype):
            raise TypeError(f"attention: got a mask of {mask.dtype}; wanted bool or {q.dtype} as of q; convert")
        try:
            mask, kind = mask.broadcast_to(shape), CHOICE if mask.dtype == np.bool_ else BIAS
        except ValueError:
            raise ValueError(f"attention: got a mask of {mask.shape}; wanted one that broadcasts to {shape}") from None
    arrays = [short_batch(array) for array in (q, k, v, mask)]
    read = [*arrays[:3], *([] if grad_out is None else [grad_out])]
    sums = computing_dtype(q.dtype)
    lanes = ACCESS_BYTES // sums.itemsize
    if any(array.strides[-1] != q.itemsize or array.shape[-1] % lanes for array in read) or any(
        place % (lanes * q.itemsize) for array in read for place in (array.address, *array.strides[:-1])
    ):
        lanes = 1
    variant = Variant(q.dtype.name, q.shape[-1], v.shape[-1], kind, bool(causal), dropout is not None, lanes)
    _, threshold, kept_factor, seed, counter = dropout_operands(dropout, sums)
    numbers = (sums.type(scale), kept_factor, int(threshold), int(seed), int(counter), counters_needed(k.shape[-2]))
    return Call(variant, numbers, arrays)


def attention_forward(
    q: DeviceArray, k: DeviceArray, v: DeviceArray, scale: float, causal: bool, mask: DeviceArray | None = None,
    dropout: Dropout | None = None, first_keys: DeviceArray | None = None, softcap: float | None = None,
) -> tuple[DeviceArray, DeviceArray]:  # fmt: skip
    """Return softmax(scale q k^T + mask) v and, for backward, the logarithm of each query's sum of exponentials."""
    check_operands(q, k, v, DTYPES)
    out, lse = empty((*q.shape[:-1], v.shape[-1]), q.dtype), empty(q.shape[:-1], computing_dtype(q.dtype))
    if lse.size:
        call = prepare(q, k, v, scale, causal, mask, dropout, first_keys, softcap)
        rows = cut_of(call.variant, _forward_bytes).rows
        call.launch(forward_kernel(call.variant), rows, [*call.arrays, out], [lse])
    return out, lse
