"""Scaled dot-product attention on a device by tiles: the T x S matrix of weights never exists.

Each thread of a block owns a part of one row: of a query in the forward pass and for the gradients of queries, of a key
for those of keys and values. Tiles of the other side's rows lie in shared memory. The threads of a row add up what
their parts give each score, share out the work of making weights of scores, and go on each with its own part of the
result, which stays in registers. Every sum has a fixed order: results do not depend on the device.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao, "FlashAttention-2: Faster
Attention with Better Parallelism and Work Partitioning", 2023.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.attention import Dropout
from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives exp and log their meaning here)
from spillgrad_kernels.cuda.array import DeviceArray, empty
from spillgrad_kernels.cuda.compile import SIMULATED, Kernel, cuda, device
from spillgrad_kernels.cuda.elementwise import compute, contiguous
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    kernel_types,
    loaders,
    quotient,
    shared_address,
    shared_loaders,
    storers,
)
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.elementwise import ROWS
from spillgrad_kernels.random import counters_needed, philox4x32
from spillgrad_kernels.scalar_math import exp, log
from spillgrad_kernels.walk import Shape

_THREADS = 8 if SIMULATED else 128
# Features of a row that a thread has in registers, of each array that it keeps: two forward, three or four backward.
_FEATURES, _BACKWARD_FEATURES = (4, 4) if SIMULATED else (32, 16)
# Rows of the other side in shared memory at once, as far as that has room.
_TILE = 4 if SIMULATED else 32
_SHARED_BYTES = 44 << 10
NO_MASK, CHOICE, BIAS = 0, 1, 2

_MASK32, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
device(philox4x32)


class Variant(NamedTuple):
    """What a kernel's code depends on: features of queries and keys, and of values; `mask` is one of the constants."""

    dtype: str
    width: int
    value_width: int
    mask: int
    causal: bool
    dropout: bool


class _Cut(NamedTuple):
    """How rows are shared: among `splits` threads, each with a part of so many features; `tile` rows at once."""

    splits: int
    part: int
    value_part: int
    tile: int

    @property
    def rows(self) -> int:
        """The rows that a block owns."""
        return _THREADS // self.splits


def _cut(variant: Variant, features: int, scores: int) -> _Cut:
    """Cut rows into parts of at most `features`; a block has `scores` numbers of shared memory per score and thread."""
    itemsize = np.dtype(variant.dtype).itemsize
    lanes = ACCESS_BYTES // itemsize
    splits = 1
    while max(variant.width, variant.value_width) > splits * features:
        splits *= 2
    part, value_part = (-(-width // (splits * lanes)) * lanes for width in (variant.width, variant.value_width))
    tile = _TILE
    while tile > 1 and tile * (splits * (part + value_part) + scores * _THREADS) * itemsize > _SHARED_BYTES:
        tile //= 2
    return _Cut(splits, part, value_part, tile)


# An array's place: its address and the bytes from one item to the next in the two dimensions of the batch, by rows and
# by columns.
_PLACE = 5


@device
def _random_word(seed: int, counter: int, position: int) -> int:
    """Return word `position` of those drawn from a counter on, as `spillgrad_kernels.random` draws them."""
    at, key = np.uint64(counter + quotient(position, 4)), np.uint64(seed)
    x0, x1, x2, x3 = philox4x32(at & _MASK32, at >> _HALF, np.uint64(0), np.uint64(0), key & _MASK32, key >> _HALF)
    lane = position & 3
    return x0 if lane == 0 else x1 if lane == 1 else x2 if lane == 2 else x3


class _Functions(NamedTuple):
    """What the three kernels of a variant share, as functions for them."""

    fill_part: Any  # (part, address, step, first, width, is_inside): registers from a row
    fill_tile: Any  # (shared, address, row_step, step, begin, count, width, padded): shared memory from rows
    dot: Any  # (part, shared, address): of registers with a row in shared memory
    add: Any  # (part, factor, address): a row in shared memory to registers
    store_part: Any  # (part, factor, address, step, first, width): registers to a row
    score: Any  # (score, query, key, keys, mask): with the mask
    factor: Any  # (seed, counter, key, threshold, kept_factor): what dropout multiplies a weight by


@functools.cache
def _functions(variant: Variant, tile: int) -> _Functions:
    dtype = np.dtype(variant.dtype)
    size, lanes, number = dtype.itemsize, ACCESS_BYTES // dtype.itemsize, dtype.type
    load, store, load_shared = loaders[dtype.name, 1], storers[dtype.name, 1], shared_loaders[dtype.name, lanes]
    load_choice, zero, one, lowest = loaders["bool", 1], number(0), number(1), number(-np.inf)
    kind, causal, drops = variant.mask, variant.causal, variant.dropout

    @device
    def fill_part(part: Any, address: int, step: int, first: int, width: int, is_inside: bool) -> None:
        for i in range(len(part)):
            part[i] = load(address + (first + i) * step) if is_inside and first + i < width else zero

    @device
    def fill_tile(
        shared: Any, address: int, row_step: int, step: int, begin: int, count: int, width: int, padded: int
    ) -> None:
        place = cuda.threadIdx.x
        while place < tile * padded:
            j = quotient(place, padded)
            feature = place - j * padded
            inside = begin + j < count and feature < width
            shared[place] = load(address + (begin + j) * row_step + feature * step) if inside else zero
            place += cuda.blockDim.x

    @device
    def dot(part: Any, address: int) -> Any:
        total = zero
        for i in range(0, len(part), lanes):
            values = load_shared(address + i * size)
            for lane in range(lanes):
                total += part[i + lane] * values[lane]
        return total

    @device
    def add(part: Any, factor: Any, address: int) -> None:
        for i in range(0, len(part), lanes):
            values = load_shared(address + i * size)
            for lane in range(lanes):
                part[i + lane] += factor * values[lane]

    @device
    def store_part(part: Any, factor: Any, address: int, step: int, first: int, width: int) -> None:
        for i in range(len(part)):
            if first + i < width:
                store(address + (first + i) * step, part[i] * factor)

    @device
    def score(value: Any, query: int, key: int, queries: int, keys: int, mask: int) -> Any:
        if query >= queries or key >= keys or (causal and key > query):
            return lowest
        if kind == CHOICE:
            return value if load_choice(mask) else lowest
        if kind == BIAS:
            return value + load(mask)
        return value

    @device
    def factor(seed: int, counter: int, key: int, threshold: int, kept_factor: Any) -> Any:
        if drops:
            return kept_factor if _random_word(seed, counter, key) >= np.uint64(threshold) else zero
        return one

    return _Functions(fill_part, fill_tile, dot, add, store_part, score, factor)


@functools.cache
def forward_kernel(variant: Variant) -> Kernel:
    """Return the kernel whose blocks own queries of a head, and make their rows of the result."""
    dtype = np.dtype(variant.dtype)
    size, number, sums = dtype.itemsize, dtype.type, kernel_types[variant.dtype]
    cut = _cut(variant, _FEATURES, 2 if variant.dropout else 1)
    splits, part, value_part, tile, rows = cut.splits, cut.part, cut.value_part, cut.tile, cut.rows
    width, value_width, padded, value_padded = variant.width, variant.value_width, splits * part, splits * value_part
    fill_part, fill_tile, dot, add, store_part, score, factor = _functions(variant, tile)
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
        key_rows, value_rows = cuda.shared.array(keys_size, sums), cuda.shared.array(values_size, sums)
        scores, factors = cuda.shared.array(scores_size, sums), cuda.shared.array(factors_size, sums)
        own, mean = cuda.local.array(part, sums), cuda.local.array(value_part, sums)
        split = quotient(cuda.threadIdx.x, rows)
        r = cuda.threadIdx.x - split * rows
        head = quotient(cuda.blockIdx.x, blocks)
        first = (cuda.blockIdx.x - head * blocks) * rows
        b0 = quotient(head, size1)
        b1 = head - b0 * size1
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
            # A row that holds only -inf so far: any finite shift gives its weights of 0, where inf - inf would not.
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

    return Kernel(forward, [*[types.int64] * 4, sums, sums, *[types.int64] * (4 + 5 * _PLACE + 1)], _THREADS)
