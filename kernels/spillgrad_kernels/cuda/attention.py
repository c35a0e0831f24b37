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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives exp and log their meaning here)
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import contiguous
from spillgrad_kernels.cuda.jit.compile import SIMULATED, Kernel, cuda, device
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    computing_dtype,
    kernel_types,
    lane_loader,
    loaders,
    quotient,
    shared_address,
    shared_loaders,
    shared_storers,
    storers,
)
from spillgrad_kernels.cuda.random import philox4x32
from spillgrad_kernels.device_array import DeviceArray, NotOnDevice
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.attention import Dropout, check_operands, dropout_operands
from spillgrad_kernels.tables.formula import CONVERSIONS
from spillgrad_kernels.tables.random import counters_needed
from spillgrad_kernels.tables.scalar_math import exp, log

# The threads of a block stand in a grid. Thread (y, x) has the rows y, y + _DOWN, ... of the block, and the rows x,
# x + ACROSS, ... of a tile: then the threads of a warp read from shared memory without bank conflicts.
_DOWN, ACROSS = (2, 4) if SIMULATED else (16, 8)
BLOCK_THREADS = _DOWN * ACROSS
# How many rows of the block and of a tile a thread may have. The first pair is taken whose arrays fit shared memory.
_CUTS = [(2, 2), (1, 1)] if SIMULATED else [(4, 8), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1)]
_SHARED_BYTES = 64 << 10  # all devices have as much
NO_MASK, CHOICE, BIAS = 0, 1, 2
DTYPES = FLOATS | {np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)}

_MASK32, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class Variant(NamedTuple):
    """The properties of a call that change a kernel's code. Kernels compute with half precision in float32.

    Queries and keys have `width` features, values have `value_width` features. `mask` is NO_MASK, CHOICE or BIAS.
    `lanes` is the number of adjacent features that an access to global memory moves.
    """

    dtype: str
    width: int
    value_width: int
    mask: int
    causal: bool
    dropout: bool
    lanes: int

    @property
    def sums(self) -> np.dtype[Any]:
        """The dtype in which the kernel computes, also in shared memory."""
        return np.dtype(CONVERSIONS[self.dtype])

    @property
    def itemsize(self) -> int:
        """The size in bytes of a number in shared memory."""
        return self.sums.itemsize

    @property
    def vector(self) -> int:
        """The number of elements in an access to shared memory."""
        return ACCESS_BYTES // self.itemsize

    def pitch(self, width: int) -> int:
        """Return the bytes from one row of `width` features to the next in shared memory.

        Each thread of a row has whole accesses. One more access puts adjacent rows in different banks.
        """
        return (-(-width // (ACROSS * self.vector)) * ACROSS + 1) * ACCESS_BYTES


class Cut(NamedTuple):
    """The rows of a block and of a tile: a thread has `own` rows of the block, and `other` rows of the tile.

    Weights have a row for each row of the block.
    """

    own: int
    other: int
    itemsize: int

    @property
    def rows(self) -> int:
        """The number of rows of a block."""
        return _DOWN * self.own

    @property
    def tile(self) -> int:
        """The number of rows of a tile."""
        return ACROSS * self.other

    @property
    def weights_pitch(self) -> int:
        """The bytes from one row of weights to the next. Rows of adjacent threads begin 8 banks apart."""
        return self.tile * self.itemsize + 2 * ACCESS_BYTES

    @property
    def weights_bytes(self) -> int:
        """The bytes of the block's weights."""
        return self.rows * self.weights_pitch


def _forward_bytes(variant: Variant, cut: Cut) -> tuple[int, int, int, int]:
    """Return the bytes of shared memory for queries, for keys or weights, for values, and for exchanges along rows."""
    keys, values = variant.pitch(variant.width), variant.pitch(variant.value_width)
    return cut.rows * keys, max(cut.tile * keys, cut.weights_bytes), cut.tile * values, ACROSS * cut.rows * cut.itemsize


def backward_bytes(variant: Variant, cut: Cut) -> tuple[int, int, int, int, int]:
    """Return the bytes of shared memory for two arrays of own rows, for two of a tile's rows, and for weights."""
    keys, values = variant.pitch(variant.width), variant.pitch(variant.value_width)
    return cut.rows * keys, cut.rows * values, cut.tile * keys, cut.tile * values, cut.weights_bytes


@functools.cache
def cut_of(variant: Variant, bytes_of: Callable[[Variant, Cut], tuple[int, ...]]) -> Cut:
    """Return the first cut whose arrays, of sizes bytes_of(variant, cut), fit shared memory.

    Raises NotOnDevice if none fits, because a row has too many features.
    """
    for own, other in _CUTS:
        cut = Cut(own, other, variant.itemsize)
        if sum(bytes_of(variant, cut)) <= _SHARED_BYTES:
            return cut
    raise NotOnDevice(f"attention: no kernel of the device takes {variant.width} and {variant.value_width} features")


# The number of arguments for an array: its address, and the strides of two batch dimensions, of rows, and of features.
PLACE = 5


def places(*names: str) -> str:
    """Return the parameters of a kernel for arrays."""
    return ", ".join(f"{name}, {name}_0, {name}_1, {name}_row, {name}_step" for name in names)


# The first parameters of each attention kernel, before the parameters for arrays.
NUMBERS = "queries, keys, size1, heads, scale, kept_factor, threshold, seed, counter, row_counters"


def number_types(sums: Any) -> list[Any]:
    """Return the types of the first parameters of each attention kernel, `NUMBERS`."""
    return [*[types.int64] * 4, sums, sums, types.int64, types.uint64, types.int64, types.int64]


@device
def _random_word(seed: int, counter: int, position: int) -> Any:
    """Return word `position` of the random words from `counter` on, in the order of `spillgrad_kernels.cpu.random`."""
    at, key = np.uint64(counter + quotient(position, 4)), np.uint64(seed)
    x0, x1, x2, x3 = philox4x32(at & _MASK32, at >> _HALF, np.uint64(0), np.uint64(0), key & _MASK32, key >> _HALF)
    lane = position & 3
    return x0 if lane == 0 else x1 if lane == 1 else x2 if lane == 2 else x3


# --- Code that the kernels share -------------------------------------------------------------------------------------


def names(variant: Variant) -> dict[str, Any]:
    """Return a dict from names in the kernels' generated code to the functions and constants that they stand for."""
    dtype, sums = variant.dtype, variant.sums.name
    number, load = variant.sums.type, loaders[dtype, 1]
    load_choice, zero, one, lowest = loaders["bool", 1], number(0), number(1), number(-np.inf)
    kind, causal, drops = variant.mask, variant.causal, variant.dropout

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

    return {
        "cuda": cuda, "quotient": quotient, "shared_address": shared_address, "bytes": types.int8, "exp": exp,
        "log": log,
        "zero": zero, "one": one, "lowest": lowest, "score": score, "factor": factor,
        "load_sum": loaders[sums, 1], "store_sum": storers[sums, 1],
        "load_lanes": lane_loader(dtype, variant.lanes), "store_lanes": storers[dtype, variant.lanes],
        "read": shared_loaders[sums, variant.vector], "read1": shared_loaders[sums, 1],
        "write_lanes": shared_storers[sums, variant.lanes], "write1": shared_storers[sums, 1],
    }  # fmt: skip


def compiled(variant: Variant, name: str, parameters: str, lines: list[str], sizes: Sequence[int]) -> Kernel:
    """Return the kernel with the body `lines`; a block has arrays of these `sizes` in bytes in shared memory."""
    text = "\n".join([f"def {name}({NUMBERS}, {parameters}):", *(f"    {line}" for line in lines)])
    namespace = names(variant)
    exec(compile(text, f"<attention {name}>", "exec"), namespace)
    kinds = [*number_types(kernel_types[variant.dtype]), *[types.int64] * (parameters.count(",") + 1)]
    return Kernel(namespace[name], parameters=kinds, threads=BLOCK_THREADS, shared_bytes=sum(sizes))


def opening(cut: Cut, sizes: dict[str, int], blocks: str) -> Iterator[str]:
    """Yield the code that finds the thread's place (y, x), the block's head and first row, and arrays in shared memory.

    `sizes` maps the names of the arrays to their sizes in bytes. `blocks` is the number of the block's rows of blocks,
    counted from the first; the blocks of all heads with equal rows follow each other.
    """
    yield f"y, x = quotient(cuda.threadIdx.x, {ACROSS}), cuda.threadIdx.x & {ACROSS - 1}"
    yield "block = quotient(cuda.blockIdx.x, heads)"
    yield "head = cuda.blockIdx.x - block * heads"
    yield f"first = ({blocks}) * {cut.rows}"
    yield "b0 = quotient(head, size1)"
    yield "b1 = head - b0 * size1"
    # Aligned for accesses, which the simulator does not ask for.
    yield f"memory = shared_address(cuda.shared.array(0, bytes{'' if SIMULATED else f', {ACCESS_BYTES}'}))"
    at = 0
    for name, nbytes in sizes.items():
        yield f"{name} = memory + {at}"
        at += nbytes


def row_of(i: int) -> str:
    """Return the code for the number of the thread's row i of the block."""
    return f"first + y + {i * _DOWN}"


def to_head(*arrays: str) -> Iterator[str]:
    """Yield the code that moves the addresses of `arrays` to the block's head."""
    yield from (f"{name} += b0 * {name}_0 + b1 * {name}_1" for name in arrays)


def filled(variant: Variant, to: str, rows: int, width: int, name: str, begin: str, count: str) -> Iterator[str]:
    """Yield the code that loads `rows` rows of the array `name`, from row `begin` on, into shared memory at `to`.

    Rows from `count` on, and features that fill a row's last access, are 0.
    """
    lanes, vector = variant.lanes, variant.vector
    units = -(-width // lanes) if lanes > 1 else -(-width // vector) * vector
    values = [f"value{lane}" for lane in range(lanes)]
    yield "place = cuda.threadIdx.x"
    yield f"while place < {rows * units}:"
    yield f"    row = quotient(place, {units})"
    yield f"    feature = (place - row * {units}) * {lanes}"
    yield f"    if {begin} + row < {count} and feature < {width}:"
    yield f"        {', '.join(values)}, = load_lanes({name} + ({begin} + row) * {name}_row + feature * {name}_step)"
    yield "    else:"
    yield f"        {' = '.join(values)} = zero"
    at = f"{to} + row * {variant.pitch(width)} + feature * {variant.itemsize}"
    yield f"    write_lanes({at}, {', '.join(values)})"
    yield f"    place += {BLOCK_THREADS}"


def dots(variant: Variant, cut: Cut, into: str, own: str, tile: str, width: int) -> Iterator[str]:
    """Yield the code that sets `into`i_c to the dot product of the thread's row i of the block and row c of the tile.

    `own` and `tile` are the addresses of the arrays in shared memory, with rows of `width` features.
    """
    pitch, lanes = variant.pitch(width), range(variant.vector)
    yield from (f"{into}{i}_{c} = zero" for i in range(cut.own) for c in range(cut.other))
    yield f"own_row, tile_row = {own} + y * {pitch}, {tile} + x * {pitch}"
    yield f"for deep in range(0, {-(-width // variant.vector) * ACCESS_BYTES}, {ACCESS_BYTES}):"
    for i in range(cut.own):
        yield f"    {', '.join(f'a{i}_{v}' for v in lanes)} = read(own_row + deep + {i * _DOWN * pitch})"
    for c in range(cut.other):
        yield f"    {', '.join(f'b{v}' for v in lanes)} = read(tile_row + deep + {c * ACROSS * pitch})"
        yield from (f"    {into}{i}_{c} += a{i}_{v} * b{v}" for v in lanes for i in range(cut.own))


def groups(variant: Variant, width: int) -> range:
    """Return the numbers of the accesses that a thread has in a row of results of `width` features."""
    return range(-(-width // (ACROSS * variant.vector)))


def mixed(variant: Variant, cut: Cut, into: str, weights: str, tile: str, width: int) -> Iterator[str]:
    """Yield the code that adds to `into`i_g_v the tile's rows, times the block's weights for them.

    i is the number of the thread's row, g that of the access in the row of `width` features, v that of the element.
    """
    pitch, lanes = variant.pitch(width), range(variant.vector)
    yield f"weights_row, tile_row = {weights} + y * {cut.weights_pitch}, {tile} + x * {ACCESS_BYTES}"
    yield f"for step in range({cut.tile // variant.vector}):"
    for i in range(cut.own):
        at = f"weights_row + step * {ACCESS_BYTES} + {i * _DOWN * cut.weights_pitch}"
        yield f"    {', '.join(f'w{i}_{v}' for v in lanes)} = read({at})"
    for u in lanes:
        for g in groups(variant, width):
            at = f"tile_row + step * {variant.vector * pitch} + {u * pitch + g * ACROSS * ACCESS_BYTES}"
            yield f"    {', '.join(f'b{v}' for v in lanes)} = read({at})"
            yield from (f"    {into}{i}_{g}_{v} += w{i}_{u} * b{v}" for v in lanes for i in range(cut.own))


def results(variant: Variant, rows: Iterable[int], name: str, width: int) -> Iterator[str]:
    """Yield the names of the registers that hold the results of the thread's `rows`, which have `width` features."""
    for i in rows:
        yield from (f"{name}{i}_{g}_{v}" for g in groups(variant, width) for v in range(variant.vector))


def weight_stored(cut: Cut, weights: str, i: int, c: int, value: str) -> str:
    """Return the code that stores a weight for the thread's row i of the block and row c of the tile."""
    at = f"(y + {i * _DOWN}) * {cut.weights_pitch} + (x + {c * ACROSS}) * {cut.itemsize}"
    return f"write1({weights} + {at}, {value})"


def stored(variant: Variant, cut: Cut, made: str, factor: str, name: str, width: int, count: str) -> Iterator[str]:
    """Yield the code that stores the thread's results in rows of the array `name`, which has `count` rows.

    Row i is multiplied by `factor`, in which {i} stands for i, unless `factor` is empty.
    """
    lanes = variant.lanes
    for i in range(cut.own):
        yield f"row = first + y + {i * _DOWN}"
        yield f"if row < {count}:"
        for g in groups(variant, width):
            for v in range(0, variant.vector, lanes):
                yield f"    feature = {g * ACROSS * variant.vector + v} + x * {variant.vector}"
                yield f"    if feature < {width}:"
                times = f" * {factor.format(i=i)}" if factor else ""
                values = ", ".join(f"{made}{i}_{g}_{v + lane}{times}" for lane in range(lanes))
                at = f"{name} + row * {name}_row + feature * {name}_step"
                yield f"        store_lanes({at}, {values})"


# --- The forward pass ------------------------------------------------------------------------------------------------


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
        loop.append(f"query, now = first + y + {i * _DOWN}, lowest")
        for c in other:
            at = f"mask + query * mask_row + (begin + x + {c * ACROSS}) * mask_step"
            loop += [
                f"s{i}_{c} = score(s{i}_{c} * scale, query, begin + x + {c * ACROSS}, queries, keys, {at})",
                f"now = s{i}_{c} if s{i}_{c} > now or s{i}_{c} != s{i}_{c} else now",
            ]
        loop.append(f"write1(exchange + (x * {cut.rows} + y + {i * _DOWN}) * {size}, now)")
    loop.append("cuda.syncthreads()")
    for i in own:
        loop += [
            f"now = largest{i}",
            f"for part in range({ACROSS}):",
            f"    value = read1(exchange + (part * {cut.rows} + y + {i * _DOWN}) * {size})",
            "    now = value if value > now or value != value else now",
            # If all scores of a row so far are -inf, shift by 0: -inf - -inf would be NaN.
            "shift = zero if now == lowest else now",
            f"shrink = exp(largest{i} - shift)",
            f"largest{i} = now",
            f"total{i} *= shrink",
            *(f"{name} *= shrink" for name in results(variant, [i], "mean", variant.value_width)),
        ]
        if variant.dropout:
            loop.append(f"drawn_from = counter + (head * queries + first + y + {i * _DOWN}) * row_counters")
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
        *(f"write1(exchange + (x * {cut.rows} + y + {i * _DOWN}) * {size}, total{i})" for i in own),
        "cuda.syncthreads()",
    ]
    for i in own:
        lines += [
            "total = zero",
            f"for part in range({ACROSS}):",
            f"    total += read1(exchange + (part * {cut.rows} + y + {i * _DOWN}) * {size})",
            f"normalizer{i} = zero if total == zero else one / total",
            f"if x == 0 and first + y + {i * _DOWN} < queries:",
            f"    store_sum(lse + (head * queries + first + y + {i * _DOWN}) * {size}, largest{i} + log(total))",
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
    dropout: Dropout | None, grad_out: DeviceArray | None = None,
) -> Call:  # fmt: skip
    """Return the call for these operands and, in the backward pass, the gradient of the result.

    Raises TypeError or ValueError if the mask's dtype or shape does not fit.
    """
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
    dropout: Dropout | None = None,
) -> tuple[DeviceArray, DeviceArray]:  # fmt: skip
    """Return softmax(scale q k^T + mask) v and, for backward, the logarithm of each query's sum of exponentials."""
    check_operands(q, k, v, DTYPES)
    out, lse = empty((*q.shape[:-1], v.shape[-1]), q.dtype), empty(q.shape[:-1], computing_dtype(q.dtype))
    if lse.size:
        call = prepare(q, k, v, scale, causal, mask, dropout)
        rows = cut_of(call.variant, _forward_bytes).rows
        call.launch(forward_kernel(call.variant), rows, [*call.arrays, out], [lse])
    return out, lse
