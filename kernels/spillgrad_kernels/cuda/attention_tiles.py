"""Tiles of attention's kernels on a device: how rows lie in shared memory, and the code that the kernels share.

The threads of a block stand in a grid, `DOWN` x `ACROSS`. Thread (y, x) has the rows y, y + DOWN, ... of the block, and
the rows x, x + ACROSS, ... of a tile: then the threads of a warp read from shared memory without bank conflicts.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import scalar_math  # noqa: F401 (gives exp and log their meaning here)
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
from spillgrad_kernels.device_array import NotOnDevice
from spillgrad_kernels.tables.scalar_math import exp, log

DOWN, ACROSS = (2, 4) if SIMULATED else (16, 8)
BLOCK_THREADS = DOWN * ACROSS
# How many rows of the block and of a tile a thread may have. The first pair is taken whose arrays fit shared memory.
_CUTS = [(2, 2), (1, 1)] if SIMULATED else [(4, 8), (4, 4), (2, 4), (2, 2), (1, 2), (1, 1)]
_SHARED_BYTES = 64 << 10  # all devices have as much
NO_MASK, CHOICE, BIAS = 0, 1, 2

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
        return computing_dtype(np.dtype(self.dtype))

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
        return DOWN * self.own

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


def places(*names: str) -> str:
    """Return a kernel's parameters for arrays: the address, and the strides of two batch dimensions, rows, features."""
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
        "cuda": cuda, "quotient": quotient, "shared_address": shared_address, "bytes": types.int8,
        "exp": exp, "log": log, "zero": zero, "one": one, "lowest": lowest, "score": score, "factor": factor,
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


def opening(cut: Cut, sizes: dict[str, int], nth: str) -> Iterator[str]:
    """Yield the code that finds the thread's place (y, x), the block's head and first row, and arrays in shared memory.

    `sizes` maps the names of the arrays to their sizes in bytes. The blocks of all heads for the same rows follow each
    other: `block` is the number of these rows in the order in which blocks run. `nth` is the code that makes of it
    which rows these are, counted from a head's first.
    """
    yield f"y, x = quotient(cuda.threadIdx.x, {ACROSS}), cuda.threadIdx.x & {ACROSS - 1}"
    yield "block = quotient(cuda.blockIdx.x, heads)"
    yield "head = cuda.blockIdx.x - block * heads"
    yield f"first = ({nth}) * {cut.rows}"
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
    return f"first + y + {i * DOWN}"


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
        yield f"    {', '.join(f'a{i}_{v}' for v in lanes)} = read(own_row + deep + {i * DOWN * pitch})"
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
        at = f"weights_row + step * {ACCESS_BYTES} + {i * DOWN * cut.weights_pitch}"
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
    at = f"(y + {i * DOWN}) * {cut.weights_pitch} + (x + {c * ACROSS}) * {cut.itemsize}"
    return f"write1({weights} + {at}, {value})"


def stored(variant: Variant, cut: Cut, made: str, factor: str, name: str, width: int, count: str) -> Iterator[str]:
    """Yield the code that stores the thread's results in rows of the array `name`, which has `count` rows.

    Row i is multiplied by `factor`, in which {i} stands for i, unless `factor` is empty.
    """
    lanes = variant.lanes
    for i in range(cut.own if width else 0):
        yield f"row = first + y + {i * DOWN}"
        yield f"if row < {count}:"
        for g in groups(variant, width):
            for v in range(0, variant.vector, lanes):
                yield f"    feature = {g * ACROSS * variant.vector + v} + x * {variant.vector}"
                yield f"    if feature < {width}:"
                times = f" * {factor.format(i=i)}" if factor else ""
                values = ", ".join(f"{made}{i}_{g}_{v + lane}{times}" for lane in range(lanes))
                at = f"{name} + row * {name}_row + feature * {name}_step"
                yield f"        store_lanes({at}, {values})"
