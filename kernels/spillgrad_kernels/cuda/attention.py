"""Scaled dot-product attention on a device, tile by tile: the T x S matrix of weights never exists in memory.

A block of threads computes some rows of one side: queries in the forward pass and for the gradients of queries, keys
for the gradients of keys and values. Tiles of rows of the other side are in shared memory. Several threads share a row;
each holds a part of the row's features in registers. The threads add up their parts of each score, divide the work of
computing weights from scores, and then each thread updates its own part of the result. Every sum has a fixed order, so
results do not depend on the device.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives exp and log their meaning here)
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import SIMULATED, Kernel, cuda, device
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    kernel_types,
    loaders,
    quotient,
    shared_address,
    shared_loaders,
    storers,
)
from spillgrad_kernels.cuda.random import philox4x32
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.attention import Dropout, check_operands, dropout_operands
from spillgrad_kernels.tables.random import counters_needed
from spillgrad_kernels.tables.scalar_math import exp, log

BLOCK_THREADS = 8 if SIMULATED else 128
# A thread holds parts of rows of two arrays in registers. This is the largest number of features of a part.
_FEATURES = 4 if SIMULATED else 32
# The most rows of the other side that are in shared memory at once, and the most bytes of these rows.
_TILE = 4 if SIMULATED else 32
_SHARED_BYTES = 44 << 10
NO_MASK, CHOICE, BIAS = 0, 1, 2

_MASK32, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class Variant(NamedTuple):
    """The properties of a call that change a kernel's code.

    Queries and keys have `width` features, values have `value_width` features. `mask` is NO_MASK, CHOICE or BIAS.
    """

    dtype: str
    width: int
    value_width: int
    mask: int
    causal: bool
    dropout: bool


class Cut(NamedTuple):
    """How the `rows` of a block are divided among its threads.

    `splits` threads share a row; each thread holds `part` features of queries and keys, and `value_part` features of
    values. Shared memory holds `tile` rows of the other side at once.
    """

    splits: int
    part: int
    value_part: int
    tile: int
    rows: int


def cut_of(variant: Variant, features: int, scores: int) -> Cut:
    """Return the cut with parts of at most `features` features. In shared memory, a score takes `scores` numbers."""
    itemsize = np.dtype(variant.dtype).itemsize
    lanes = ACCESS_BYTES // itemsize
    splits = 1
    while max(variant.width, variant.value_width) > splits * features:
        splits *= 2
    part, value_part = (-(-width // (splits * lanes)) * lanes for width in (variant.width, variant.value_width))
    tile = _TILE
    while tile > 1 and tile * (splits * (part + value_part) + scores * BLOCK_THREADS) * itemsize > _SHARED_BYTES:
        tile //= 2
    return Cut(splits, part, value_part, tile, BLOCK_THREADS // splits)


# The number of arguments for an array: its address, and the strides of two batch dimensions, of rows, and of features.
PLACE = 5


def number_types(sums: Any) -> list[Any]:
    """Return the types of the first arguments of each attention kernel, those before the arguments for arrays."""
    return [*[types.int64] * 4, sums, sums, types.int64, types.uint64, types.int64, types.int64]


@device
def _random_word(seed: int, counter: int, position: int) -> Any:
    """Return word `position` of the random words from `counter` on, in the order of `spillgrad_kernels.cpu.random`."""
    at, key = np.uint64(counter + quotient(position, 4)), np.uint64(seed)
    x0, x1, x2, x3 = philox4x32(at & _MASK32, at >> _HALF, np.uint64(0), np.uint64(0), key & _MASK32, key >> _HALF)
    lane = position & 3
    return x0 if lane == 0 else x1 if lane == 1 else x2 if lane == 2 else x3


class Functions(NamedTuple):
    """The device functions that the kernels of a variant share."""

    find_rows: Any
    fill_part: Any
    fill_tile: Any
    dot: Any
    add: Any
    store_part: Any
    score: Any
    factor: Any


@functools.cache
def functions(variant: Variant, cut: Cut) -> Functions:
    """Return the device functions that the kernels of a variant share."""
    tile, rows = cut.tile, cut.rows
    dtype = np.dtype(variant.dtype)
    size, lanes, number = dtype.itemsize, ACCESS_BYTES // dtype.itemsize, dtype.type
    load, store, load_shared = loaders[dtype.name, 1], storers[dtype.name, 1], shared_loaders[dtype.name, lanes]
    load_choice, zero, one, lowest = loaders["bool", 1], number(0), number(1), number(-np.inf)
    kind, causal, drops = variant.mask, variant.causal, variant.dropout

    @device
    def find_rows(blocks: int, size1: int) -> Any:
        """Return (split, row, head, first, b0, b1) for the calling thread.

        `split` is the thread's part of its row, `row` the number of the row in the block, and `first` the block's first
        row. `b0` and `b1` are the head's indices in two batch dimensions. The last batch dimension has size `size1`.
        """
        split, head = quotient(cuda.threadIdx.x, rows), quotient(cuda.blockIdx.x, blocks)
        b0, first = quotient(head, size1), (cuda.blockIdx.x - head * blocks) * rows
        return split, cuda.threadIdx.x - split * rows, head, first, b0, head - b0 * size1

    @device
    def fill_part(part: Any, address: int, step: int, first: int, width: int, is_inside: bool) -> None:
        """Load a part of a row, which begins at feature `first`, into the registers `part`."""
        for i in range(len(part)):
            part[i] = load(address + (first + i) * step) if is_inside and first + i < width else zero

    @device
    def fill_tile(
        shared: Any, address: int, row_step: int, step: int, begin: int, count: int, width: int, padded: int
    ) -> None:
        """Load rows, from row `begin` on, into shared memory. Each row is padded with zeros to `padded` features."""
        place = cuda.threadIdx.x
        while place < tile * padded:
            j = quotient(place, padded)
            feature = place - j * padded
            inside = begin + j < count and feature < width
            shared[place] = load(address + (begin + j) * row_step + feature * step) if inside else zero
            place += cuda.blockDim.x

    @device
    def dot(part: Any, address: int) -> Any:
        """Return the dot product of the registers `part` and a row in shared memory."""
        total = zero
        for i in range(0, len(part), lanes):
            values = load_shared(address + i * size)
            for lane in range(lanes):
                total += part[i + lane] * values[lane]
        return total

    @device
    def add(part: Any, factor: Any, address: int) -> None:
        """Add `factor` times a row in shared memory to the registers `part`."""
        for i in range(0, len(part), lanes):
            values = load_shared(address + i * size)
            for lane in range(lanes):
                part[i + lane] += factor * values[lane]

    @device
    def store_part(part: Any, factor: Any, address: int, step: int, first: int, width: int) -> None:
        """Store `factor` times the registers `part` in a row, from feature `first` on."""
        for i in range(len(part)):
            if first + i < width:
                store(address + (first + i) * step, part[i] * factor)

    @device
    def score(value: Any, query: int, key: int, queries: int, keys: int, mask: int) -> Any:
        """Return the score `value` with the mask applied: -inf for a key that the query must not see."""
        if query >= queries or key >= keys or (causal and key > query):
            return lowest
        if kind == CHOICE:
            return value if load_choice(mask) else lowest
        if kind == BIAS:
            return value + load(mask)
        return value

    @device
    def factor(seed: int, counter: int, key: int, threshold: int, kept_factor: Any) -> Any:
        """Return the factor by which dropout multiplies a weight: 0 for a dropped weight, 1 without dropout."""
        if drops:
            return kept_factor if _random_word(seed, counter, key) >= np.uint64(threshold) else zero
        return one

    return Functions(find_rows, fill_part, fill_tile, dot, add, store_part, score, factor)


@functools.cache
def forward_kernel(variant: Variant) -> Kernel:
    """Return the kernel of the forward pass. A block computes the results of some queries of a head."""
    dtype = np.dtype(variant.dtype)
    size, number, sums = dtype.itemsize, dtype.type, kernel_types[variant.dtype]
    cut = cut_of(variant, _FEATURES, 2 if variant.dropout else 1)
    splits, part, value_part, tile, rows = cut
    width, value_width, padded, value_padded = variant.width, variant.value_width, splits * part, splits * value_part
    find_rows, fill_part, fill_tile, dot, add, store_part, score, factor = functions(variant, cut)
    store, zero, one, lowest = storers[dtype.name, 1], number(0), number(1), number(-np.inf)
    keys_size, values_size, scores_size = tile * padded, tile * value_padded, splits * tile * rows
    factors_size = tile * rows if variant.dropout else 1
    causal, drops = variant.causal, variant.dropout

    def forward(
        queries: int, keys: int, size1: int, blocks: int, scale: float, kept_factor: float, threshold: int, seed: int,
        counter: int, row_counters: int,
        q: int, q_0: int, q_1: int, q_row: int, q_step: int, k: int, k_0: int, k_1: int, k_row: int, k_step: int,
        v: int, v_0: int, v_1: int, v_row: int, v_step: int, mask: int, mask_0: int, mask_1: int, mask_row: int,
        mask_step: int, out: int, out_0: int, out_1: int, out_row: int, out_step: int, lse: int,
    ) -> None:  # fmt: skip
        key_rows = cuda.shared.array(keys_size, sums)  # separate lines: the simulator tells arrays apart by line
        value_rows = cuda.shared.array(values_size, sums)
        scores = cuda.shared.array(scores_size, sums)
        factors = cuda.shared.array(factors_size, sums)
        own, mean = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        split, r, head, first, b0, b1 = find_rows(blocks, size1)
        query = first + r
        place = q + b0 * q_0 + b1 * q_1 + query * q_row
        fill_part(own, place, q_step, split * part, width, query < queries)
        for i in range(value_part):
            mean[i] = zero
        largest, total = lowest, zero
        last = first + rows if causal and first + rows < keys else keys
        begin = 0
        while begin < last:
            fill_tile(key_rows, k + b0 * k_0 + b1 * k_1, k_row, k_step, begin, keys, width, padded)
            fill_tile(value_rows, v + b0 * v_0 + b1 * v_1, v_row, v_step, begin, keys, value_width, value_padded)
            cuda.syncthreads()
            key_place = shared_address(key_rows) + split * part * size
            for j in range(tile):
                scores[(split * tile + j) * rows + r] = dot(own, key_place + j * padded * size)
            cuda.syncthreads()
            for j in range(split, tile, splits):
                value = zero
                for other in range(splits):
                    value += scores[(other * tile + j) * rows + r]
                at = mask + b0 * mask_0 + b1 * mask_1 + query * mask_row + (begin + j) * mask_step
                scores[j * rows + r] = score(value * scale, query, begin + j, queries, keys, at)
                if drops:
                    drawn_from = counter + (head * queries + query) * row_counters
                    factors[j * rows + r] = factor(seed, drawn_from, begin + j, threshold, kept_factor)
            cuda.syncthreads()
            now = largest
            for j in range(tile):
                value = scores[j * rows + r]
                now = value if value > now or value != value else now
            # If all scores of a row so far are -inf, shift by 0: -inf - -inf would be NaN.
            shift = zero if now == lowest else now
            shrink = exp(largest - shift)
            largest = now
            total *= shrink
            for i in range(value_part):
                mean[i] *= shrink
            value_place = shared_address(value_rows) + split * value_part * size
            for j in range(tile):
                weight = exp(scores[j * rows + r] - shift)
                total += weight
                if drops:
                    weight *= factors[j * rows + r]
                add(mean, weight, value_place + j * value_padded * size)
            cuda.syncthreads()
            begin += tile
        if query < queries:
            place = out + b0 * out_0 + b1 * out_1 + query * out_row
            normalizer = zero if total == zero else one / total
            store_part(mean, normalizer, place, out_step, split * value_part, value_width)
            if split == 0:
                store(lse + (head * queries + query) * size, largest + log(total))

    parameters = [*number_types(sums), *[types.int64] * (5 * PLACE + 1)]
    return Kernel(forward, parameters=parameters, threads=BLOCK_THREADS)


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
            heads * blocks, q.shape[-2], k.shape[-2], batch[-1] if batch else 1, blocks, *self.numbers, *places,
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
    dropout: Dropout | None,
) -> Call:  # fmt: skip
    """Return the call for these operands. Raises TypeError or ValueError if the mask's dtype or shape does not fit."""
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
    variant = Variant(q.dtype.name, q.shape[-1], v.shape[-1], kind, bool(causal), dropout is not None)
    _, threshold, kept_factor, seed, counter = dropout_operands(dropout, q.dtype)
    numbers = (q.dtype.type(scale), kept_factor, int(threshold), int(seed), int(counter), counters_needed(k.shape[-2]))
    return Call(variant, numbers, [short_batch(array) for array in (q, k, v, mask)])


def attention_forward(
    q: DeviceArray, k: DeviceArray, v: DeviceArray, scale: float, causal: bool, mask: DeviceArray | None = None,
    dropout: Dropout | None = None,
) -> tuple[DeviceArray, DeviceArray]:  # fmt: skip
    """Return softmax(scale q k^T + mask) v and, for backward, the logarithm of each query's sum of exponentials."""
    check_operands(q, k, v)
    out, lse = empty((*q.shape[:-1], v.shape[-1]), q.dtype), empty(q.shape[:-1], q.dtype)
    if lse.size:
        call = prepare(q, k, v, scale, causal, mask, dropout)
        rows = cut_of(call.variant, _FEATURES, 2 if dropout else 1).rows
        call.launch(forward_kernel(call.variant), rows, [*call.arrays, out], [lse])
    return out, lse
