"""The matrix product on a device, for any strides and any broadcast batch; a formula may be applied before storing.

A block of threads computes a tile of C. The block walks along K in steps: while its threads multiply the tiles of A and
B in one half of shared memory, they fetch the next step's tiles into registers; then they store these tiles in the
other half. A thread holds its elements of C in registers, in groups of adjacent elements that fill one access. These
groups are apart in the tile; thus the threads of a warp read shared memory without bank conflicts. If the device has
tensor cores and accesses of 16 bytes are possible, tensor cores multiply half precision, and also float32 if rounding
to tf32 is allowed (see `tensor_cores`).

Source: Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Volkov & Demmel 2008,
"Benchmarking GPUs to tune dense linear algebra".
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

import spillgrad_kernels.cuda.scalar_math  # noqa: F401 (registers the functions that formulas call)
from spillgrad_kernels.cuda import tensor_cores
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.jit.compile import SIMULATED, Kernel, cuda, device
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    HALF,
    loaders,
    quotient,
    shared_address,
    shared_loaders,
    shared_storers,
    storers,
)
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Layout, Shape
from spillgrad_kernels.tables.formula import FUNCTIONS, Formula, Trace, trace

# Consecutive blocks compute this many rows of tiles in a column of tiles, then the next column, so that A and B stay in
# the level-2 cache.
_GROUP_ROWS = 8
# This many positions along K are multiplied in one turn of a loop, so that the compiler can read elements from shared
# memory while the cores multiply. A turn of four takes more registers, and is slower (H200).
_UNROLLED = 2


class Tile(NamedTuple):
    """The tile sizes of a product: rows and columns of C for a block and a thread, and the depth of a step along K."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)


# The tile for each dtype of sums.
_TILES = {
    "float32": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(128, 64, 8, 8, 8),
    "float64": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(64, 64, 8, 4, 8),
}
# For matrices that would fill at most half of a tile's rows, such as those of a convolution with few outputs.
_LOW_TILES = {**_TILES, "float32": Tile(4, 16, 4, 4, 4) if SIMULATED else Tile(64, 128, 8, 8, 8)}


class Operand(NamedTuple):
    """How a kernel reads A or B: `lanes` adjacent elements of `dtype` at a time, along K if `along`, else across K."""

    dtype: str
    along: bool
    lanes: int


class Variant(NamedTuple):
    """The properties of a call that change a kernel's code, besides the formula.

    `batch` is the number of batch dimensions. `addend` says that an array is added to the product, `other` that the
    formula takes a second array, and `kept` that the product, before the formula, is stored too. These arrays and the
    result are accessed `lanes` adjacent elements at a time.
    """

    a: Operand
    b: Operand
    result: str
    lanes: int
    batch: int
    addend: bool
    other: bool
    kept: bool

    @property
    def sums(self) -> str:
        """The name of the dtype in which products are summed."""
        return "float64" if self.result == "float64" else "float32"

    @property
    def arrays(self) -> list[str]:
        """The names of the kernel's arrays: a, b, result, then addend, other and kept, if the kernel has them."""
        further = {"addend": self.addend, "other": self.other, "kept": self.kept}
        return ["a", "b", "result", *[name for name, is_there in further.items() if is_there]]

    @property
    def parameters(self) -> list[str]:
        """The kernel's parameters. For each array, `_row` and `_column` are row and column strides in bytes."""
        steps = (*[f"batch{d}" for d in range(self.batch)], "row", "column")
        return [
            "m", "n", "k", "tiles_down", "tiles_across", *[f"size{d}" for d in range(1, self.batch)],
            *[f"{name}_{step}" for name in self.arrays for step in steps], *self.arrays,
        ]  # fmt: skip


def _fetched(
    side: str, operand: Operand, tile: Tile | tensor_cores.Tile, across: int, width: int, held: int
) -> Iterator[str]:
    """Yield the code by which a thread fetches its elements of a tile of A or B into registers.

    The tile has `across` rows of A or `across` columns of B. A group of `held` registers holds `width` adjacent
    elements. Elements beyond the edges of A or B are 0.
    """
    size, first = ("m", "row0") if side == "a" else ("n", "column0")
    step_across, step_along = (f"{side}_row", f"{side}_column") if side == "a" else (f"{side}_column", f"{side}_row")
    for turn in range(across * tile.depth // (width * tile.threads)):
        names = [f"{side}{turn}_{v}" for v in range(held)]
        yield f"place = thread + {turn * tile.threads}"
        if operand.along:
            yield f"at = {first} + quotient(place, {tile.depth // width})"
            yield f"deep = depth + (place & {tile.depth // width - 1}) * {width}"
        else:
            yield f"deep = depth + quotient(place, {across // width})"
            yield f"at = {first} + (place & {across // width - 1}) * {width}"
        address = f"{side} + at * {step_across} + deep * {step_along}"
        if operand.lanes > 1:
            yield f"if at < {size} and deep < k:"
            yield f"    {', '.join(names)} = load_{side}({address})"
            yield "else:"
            yield f"    {' = '.join(names)} = nothing"
            continue
        for v, name in enumerate(names):
            inside = f"at < {size} and deep + {v} < k" if operand.along else f"at + {v} < {size} and deep < k"
            step = step_along if operand.along else step_across
            yield f"{name} = load_{side}({address} + {v} * {step}) if {inside} else nothing"


def _stashed(side: str, operand: Operand, tile: Tile, across: int, width: int, pitch: int) -> Iterator[str]:
    """Yield the code by which a thread stores its fetched elements in shared memory, a row per position along K."""
    itemsize = ACCESS_BYTES // width
    for turn in range(across * tile.depth // (width * tile.threads)):
        yield f"place = thread + {turn * tile.threads}"
        if operand.along:
            per = tile.depth // width
            yield f"at = half_{side} + (place & {per - 1}) * {width * pitch} + quotient(place, {per})"
        else:
            per = across // width
            yield f"at = half_{side} + quotient(place, {per}) * {pitch} + (place & {per - 1}) * {width}"
        names = [f"{side}{turn}_{v}" for v in range(width)]
        if operand.along:
            for v, name in enumerate(names):
                yield f"store_shared1(shared_{side} + (at + {v * pitch}) * {itemsize}, {name})"
        else:
            yield f"store_shared(shared_{side} + at * {itemsize}, {', '.join(names)})"


def _opening(variant: Variant, tile: Tile | tensor_cores.Tile) -> list[str]:
    """Return the code that finds a block's tile of C, and moves the arrays' addresses to this tile's batch item."""
    batch = range(variant.batch - 1, 0, -1)
    return [
        "tiles = tiles_down * tiles_across",
        "index0 = quotient(cuda.blockIdx.x, tiles)",
        "rest = cuda.blockIdx.x - index0 * tiles",
        # Blocks go down a group of `_GROUP_ROWS` tiles, then across.
        f"group = quotient(rest, {_GROUP_ROWS} * tiles_across)",
        f"above = group * {_GROUP_ROWS}",
        f"high = tiles_down - above if tiles_down - above < {_GROUP_ROWS} else {_GROUP_ROWS}",
        f"rest -= group * {_GROUP_ROWS} * tiles_across",
        "right = quotient(rest, high)",
        f"row0, column0 = (above + rest - right * high) * {tile.rows}, right * {tile.columns}",
        *(f"index{d}, index0 = index0 - quotient(index0, size{d}) * size{d}, quotient(index0, size{d})" for d in batch),
        *(f"{name} += index{d} * {name}_batch{d}" for name in variant.arrays for d in range(variant.batch)),
    ]


def _source(variant: Variant, tile: Tile | tensor_cores.Tile, body: Trace | None) -> str:
    """Return the code of the kernel, and of the function `formula` that it calls."""
    header = [] if body is None else [
        f"def formula({', '.join(body.inputs)}):", *(f"    {line}" for line in body.lines),
        f"    return {body.results[0]}",
    ]  # fmt: skip
    if isinstance(tile, Tile):
        lines = _on_plain_cores(variant, tile, body is not None)
    else:
        fetch = [
            line
            for side, operand, across in (("a", variant.a, tile.rows), ("b", variant.b, tile.columns))
            for line in _fetched(side, operand, tile, across, operand.lanes, ACCESS_BYTES // 4)
        ]

        def finished(column: str, sums: list[str]) -> Iterator[str]:
            for i in range(0, len(sums), variant.lanes):
                yield from _finished(variant, f"{column} + {i}", sums[i : i + variant.lanes], body is not None)

        opening = _opening(variant, tile)
        kind = tensor_cores.KINDS[variant.a.dtype]
        lines = tensor_cores.source(kind, variant.a.along, variant.b.along, opening, fetch, finished)
    return "\n".join([*header, f"def kernel({', '.join(variant.parameters)}):", *(f"    {line}" for line in lines)])


def _on_plain_cores(variant: Variant, tile: Tile, has_formula: bool) -> list[str]:
    """Return the body of the kernel that multiplies without tensor cores."""
    width = ACCESS_BYTES // np.dtype(variant.sums).itemsize
    down, across = tile.thread_rows, tile.thread_columns
    # Rows in shared memory are longer than the tile, so that threads that store along K access different banks.
    pitch_a, pitch_b = tile.rows + (width if variant.a.along else 0), tile.columns + (width if variant.b.along else 0)
    half_a, half_b = tile.depth * pitch_a, tile.depth * pitch_b
    columns = tile.columns // across
    # Adjacent elements move in one access only if the compiler knows the alignment. The simulator takes no alignment.
    aligned = "" if SIMULATED else f", {ACCESS_BYTES}"

    def thread_row(i: int) -> str:
        return f"{i // width * (tile.rows // (down // width)) + i % width} + thread_y * {width}"

    def thread_column(j: int) -> str:
        return f"{j // width * (tile.columns // (across // width)) + j % width} + thread_x * {width}"

    def read(name: str, side: str, count: int, pitch: int, place: Callable[[int], str], deeper: int) -> Iterator[str]:
        for i in range(0, count, width):
            names = ", ".join([f"{name}{i + v}" for v in range(width)])
            at = f"half_{side} + (step + {deeper}) * {pitch} + {place(i)}"
            yield f"    {names} = load_shared(shared_{side} + ({at}) * {ACCESS_BYTES // width})"

    fetch = [
        *_fetched("a", variant.a, tile, tile.rows, width, width),
        *_fetched("b", variant.b, tile, tile.columns, width, width),
    ]
    stash = [
        *_stashed("a", variant.a, tile, tile.rows, width, pitch_a),
        *_stashed("b", variant.b, tile, tile.columns, width, pitch_b),
    ]
    multiply = [f"for step in range(0, {tile.depth}, {_UNROLLED}):"]
    for deeper in range(_UNROLLED):
        multiply += read("x", "a", down, pitch_a, thread_row, deeper)
        multiply += read("y", "b", across, pitch_b, thread_column, deeper)
        multiply += [f"    c{i}_{j} += x{i} * y{j}" for i in range(down) for j in range(across)]
    lines = [
        f"array_a = cuda.shared.array({2 * half_a}, sums{aligned})",
        f"array_b = cuda.shared.array({2 * half_b}, sums{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"thread_x, thread_y = thread & {columns - 1}, quotient(thread, {columns})",
        *_opening(variant, tile),
        *(f"c{i}_{j} = zero" for i in range(down) for j in range(across)),
        *tensor_cores.walk_along_k(tile.depth, half_a, half_b, fetch, stash, multiply),
    ]
    for i in range(down):
        lines += [f"row = row0 + {thread_row(i)}", "if row < m:"]
        for j in range(0, across, variant.lanes):
            values = [f"c{i}_{j + v}" for v in range(variant.lanes)]
            lines += [f"    {line}" for line in _finished(variant, thread_column(j), values, has_formula)]
    return lines


def _finished(variant: Variant, column: str, values: list[str], has_formula: bool) -> Iterator[str]:
    """Yield the code that applies addend and formula to adjacent sums of a row, and stores those inside C."""

    def place(name: str) -> str:
        return f"{name} + row * {name}_row + column * {name}_column"

    def loaded(name: str) -> str:
        return f"{', '.join(f'{name}{v}' for v in range(len(values)))} = load_result({place(name)})"

    yield f"column = column0 + {column}"
    yield "if column < n:"
    if variant.addend:
        yield f"    {loaded('addend')}"
        for v, value in enumerate(values):
            yield f"    {value} += addend{v}"
    if variant.kept:
        yield f"    store_result({place('kept')}, {', '.join(values)})"
    if variant.other:
        yield f"    {loaded('other')}"
    if has_formula:
        for v, value in enumerate(values):
            yield f"    {value} = formula({value}{f', other{v}' if variant.other else ''})"
    yield f"    store_result({place('result')}, {', '.join(values)})"


@functools.lru_cache(maxsize=256)
def build(variant: Variant, tile: Tile | tensor_cores.Tile, formula: Formula | None, name: str) -> Kernel:
    """Return the kernel of a variant of the product."""
    number = np.dtype(variant.sums).type
    body = None if formula is None else trace(formula, number)
    width = ACCESS_BYTES // np.dtype(variant.sums).itemsize
    namespace: dict[str, Any] = {
        **FUNCTIONS, **({} if body is None else body.constants), "cuda": cuda, "quotient": quotient,
        "sums": getattr(types, variant.sums), "zero": number(0), "shared_address": shared_address,
        "load_shared": shared_loaders[variant.sums, width], "store_shared": shared_storers[variant.sums, width],
        "store_shared1": shared_storers[variant.sums, 1],
        "load_result": loaders[variant.result, variant.lanes], "store_result": storers[variant.result, variant.lanes],
        "nothing": number(0),
    }  # fmt: skip
    if isinstance(tile, Tile):
        namespace["load_a"] = loaders[variant.a.dtype, variant.a.lanes]
        namespace["load_b"] = loaders[variant.b.dtype, variant.b.lanes]
    else:
        namespace |= tensor_cores.names(variant.a.dtype, variant.a.along, variant.b.along)
    exec(compile(_source(variant, tile, body), f"<matmul {name}>", "exec"), namespace)
    if body is not None:
        namespace["formula"] = device(namespace["formula"])
    return Kernel(namespace["kernel"], threads=tile.threads)


class CallPlan(NamedTuple):
    """The kernel for products of given layouts, the number of blocks, and all arguments except addresses."""

    kernel: Kernel
    blocks: int
    words: tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def prepare(
    a: Layout, b: Layout, result: Layout, further: tuple[tuple[str, Layout], ...], formula: Formula | None, name: str,
    is_aligned: tuple[bool, ...], on_tensor_cores: tuple[str, ...] = (),
) -> CallPlan:  # fmt: skip
    """Return the plan for operands of these layouts; `further` has the names and layouts of addend, other and kept.

    `is_aligned` says whether A, whether B, and whether all other arrays begin at multiples of 16 bytes.
    `on_tensor_cores` are the dtypes that tensor cores multiply if accesses of 16 bytes are possible.
    """
    batch, (m, n), k = result.shape[:-2], result.shape[-2:], a.shape[-1]
    sums = "float64" if result.dtype.name == "float64" else "float32"
    layouts = {"a": a, "b": b, "result": result, **dict(further)}
    steps = {each: _steps(len(batch), layout) for each, layout in layouts.items()}
    sizes = list(batch)
    for d in reversed(range(len(sizes) - 1)):  # merge dimensions if the strides of all arrays permit it
        if all(own[d] == own[d + 1] * sizes[d + 1] for own in steps.values()):
            sizes[d] *= sizes.pop(d + 1)
            for own in steps.values():
                own.pop(d)

    def operands(width: int) -> tuple[Operand, Operand]:
        """Return how A and B are read, with `width` adjacent elements in an access if possible."""
        a_along, a_lanes = _reading(a, steps["a"], a.ndim - 1, (m, k), width if is_aligned[0] else 1)
        b_along, b_lanes = _reading(b, steps["b"], b.ndim - 2, (k, n), width if is_aligned[1] else 1)
        return Operand(a.dtype.name, a_along, a_lanes), Operand(b.dtype.name, b_along, b_lanes)

    low = _LOW_TILES[sums]
    tile: Tile | tensor_cores.Tile = low if m <= low.rows else _TILES[sums]
    width = ACCESS_BYTES // np.dtype(sums).itemsize
    read = operands(width)
    if a.dtype.name in on_tensor_cores and sums == "float32":
        kind = tensor_cores.KINDS[a.dtype.name]
        wide = operands(kind.width)
        if all(operand.lanes == kind.width for operand in wide):
            read, tile, width = wide, kind.tile, tensor_cores.NEIGHBOURS
    lanes = width if is_aligned[2] and n % width == 0 else 1
    for each, layout in layouts.items():
        if each not in "ab":
            itemsize = layout.dtype.itemsize
            whole = all(step % (width * itemsize) == 0 for step in steps[each][:-1])
            lanes = lanes if whole and steps[each][-1] == itemsize else 1
    given = {each for each, _ in further}
    variant = Variant(
        *read, result.dtype.name, lanes, len(sizes), "addend" in given, "other" in given, "kept" in given
    )  # fmt: skip
    down, across = -(-m // tile.rows), -(-n // tile.columns)
    words = (m, n, k, down, across, *sizes[1:], *[step for each in variant.arrays for step in steps[each]])
    return CallPlan(build(variant, tile, formula, name), down * across * int(np.prod(sizes, dtype=np.int64)), words)


def _steps(dims: int, layout: Layout) -> list[int]:
    """Return the strides in bytes of `dims` batch dimensions, rows and columns; 0 where missing or of size 1."""
    own = [0 if size == 1 else stride for size, stride in zip(layout.shape, layout.strides, strict=True)]
    return [*[0] * (dims + 2 - len(own)), *own]


def _reading(layout: Layout, steps: list[int], along: int, sizes: Shape, width: int) -> tuple[bool, int]:
    """Return whether to read an operand along K (its dimension `along`), and the number of elements in an access."""
    last = layout.ndim - 1
    itemsize = layout.dtype.itemsize
    dense_last, dense_first = steps[-1] == itemsize, steps[-2] == itemsize
    is_along = (along == last) == (dense_last or not dense_first)
    dimension, others = (-1, steps[:-1]) if dense_last else (-2, [*steps[:-2], steps[-1]])
    whole = (dense_last or dense_first) and layout.shape[dimension] % width == 0
    return is_along, width if whole and all(step % (width * itemsize) == 0 for step in others) else 1


def _product(
    a: DeviceArray, b: DeviceArray, result: DeviceArray, formula: Formula | None, name: str,
    **further: DeviceArray | None,
) -> None:  # fmt: skip
    """Compute a product into `result`. `further` has the arrays addend, other and kept by name, None if missing."""
    given = {each: array for each, array in further.items() if array is not None}
    addresses = [array.address for array in (a, b, result, *given.values())]
    is_aligned = [address % ACCESS_BYTES == 0 for address in addresses]
    call = prepare(
        a.layout, b.layout, result.layout, tuple([(each, array.layout) for each, array in given.items()]), formula,
        name, (is_aligned[0], is_aligned[1], all(is_aligned[2:])), tensor_cores.used_for(),
    )  # fmt: skip
    if call.blocks:
        call.kernel.launch(call.blocks, *call.words, *addresses)


def matmul(
    a: DeviceArray, b: DeviceArray, out: DeviceArray | None = None, *, accumulate: bool = False, dtype: Any = None
) -> DeviceArray:
    """Return a @ b, written to `out` or, with `accumulate`, added to `out`.

    The operands have the same floating-point dtype. Sums are float64 for a result of float64, else float32. The result
    has `dtype`, by default the dtype of the operands.
    """
    batch, kind = _checked(a.layout, b.layout)
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is None:
        if accumulate:
            raise ValueError("matmul: got accumulate=True without out; pass the array to add to")
        out = empty(shape, dtype or kind)
    elif out.shape != shape:
        raise ValueError(f"matmul: got out {out.shape}; wanted {shape}")
    _product(a, b, out, None, "", addend=out if accumulate else None)
    return out


def linear(
    rows: DeviceArray, weight: DeviceArray, bias: DeviceArray | None = None, *, other: DeviceArray | None = None,
    formula: Formula | None = None, name: str = "", product: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Return formula(rows @ weight.T + bias, other), where the formula is applied while the product is in registers.

    `name` is the formula's name. Without `other`, the formula has one parameter. If `product` is given, rows @
    weight.T + bias is written to it. Without a formula, rows @ weight.T + bias is the result.
    Shapes: rows (M, K), weight (N, K), bias (N,), other, product and result (M, N).
    """
    across = weight.T
    _, kind = _checked(rows.layout, across.layout)
    result = product if formula is None and product is not None else empty((rows.shape[0], weight.shape[0]), kind)
    addend = None if bias is None else bias.reshape(1, weight.shape[0]).broadcast_to(result.shape)
    kept = None if formula is None else product
    _product(rows, across, result, formula, name, addend=addend, other=other, kept=kept)
    return result


@functools.lru_cache(maxsize=4096)
def _checked(a: Layout, b: Layout) -> tuple[Shape, np.dtype[Any]]:
    """Return the batch shape and the dtype of a product.

    Raises TypeError if the dtypes do not fit, and ValueError if the shapes do not fit.
    """
    if a.dtype != b.dtype or a.dtype.name not in (*HALF, *_TILES):
        raise TypeError(f"matmul: got {a.dtype} and {b.dtype}; wanted both of one floating-point dtype; convert one")
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: got {a.shape} and {b.shape}; wanted (..., M, K) and (..., K, N) with equal K; transpose one"
        )
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.dtype
    except ValueError:
        raise ValueError(
            f"matmul: got {a.shape} and {b.shape}; batch dimensions {a.shape[:-2]} and {b.shape[:-2]} must broadcast; "
            "reshape or expand one"
        ) from None
