"""The matrix product on a device, for any strides and any broadcast batch, with what is done to it before it is stored.

A block of threads makes a tile of C. It walks along K in steps: while the threads multiply what lies in one half of
shared memory, they fetch the next step's parts of A and B into registers, and put them into the other half. A thread's
part of the tile is in registers, as rows and columns of as many neighbours as one access moves, which lie apart so that
the threads of a warp read shared memory without conflicts. Half precision, and float32 if it may be rounded to tf32, is
multiplied by tensor cores where the device has them and neighbours move in accesses of 16 bytes (see `tensor_cores`).

Source: Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Volkov & Demmel 2008,
"Benchmarking GPUs to tune dense linear algebra".
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import (
    scalar_math,  # noqa: F401 (gives formulas' functions their meaning here)
    tensor_cores,
)
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

# Tiles beside each other that blocks take in turn: what they read of A and B is still in the second-level cache.
_GROUP_ROWS = 8


class Tile(NamedTuple):
    """How a product is cut: a block's rows and columns of C, a thread's, and the depth of a step."""

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)


# By the dtype that sums have.
_TILES = {
    "float32": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(128, 128, 8, 8, 8),
    "float64": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(64, 64, 8, 4, 8),
}
# For matrices of so few rows that half of a tile would be empty, such as a convolution's with few outputs.
_LOW_TILES = {**_TILES, "float32": Tile(4, 16, 4, 4, 4) if SIMULATED else Tile(64, 128, 8, 8, 8)}


class Operand(NamedTuple):
    """How a kernel reads A or B: elements of a dtype, `lanes` neighbours at a time, along K or across."""

    dtype: str
    along: bool
    lanes: int


class Variant(NamedTuple):
    """What a kernel's code depends on, beside the formula.

    `batch` is the number of the batch's dimensions. An `addend` is added to the product; `other` is what a formula
    takes beside it; `kept` says that the product itself is stored too. Of these and of the result `lanes` neighbours
    move at a time.
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
        """The dtype that sums have."""
        return "float64" if self.result == "float64" else "float32"

    @property
    def arrays(self) -> list[str]:
        """The names of the arrays: A, B, the result, and what else there is."""
        further = {"addend": self.addend, "other": self.other, "kept": self.kept}
        return ["a", "b", "result", *[name for name, is_there in further.items() if is_there]]

    @property
    def parameters(self) -> list[str]:
        """What the kernel takes, all int64; strides are bytes: `_row` leads to the next row, `_column` along one."""
        steps = (*[f"batch{d}" for d in range(self.batch)], "row", "column")
        return [
            "m", "n", "k", "tiles_down", "tiles_across", *[f"size{d}" for d in range(1, self.batch)],
            *[f"{name}_{step}" for name in self.arrays for step in steps], *self.arrays,
        ]  # fmt: skip


def _fetched(
    side: str, operand: Operand, tile: Tile | tensor_cores.Tile, across: int, width: int, held: int
) -> Iterator[str]:
    """Write how each thread fetches its share of a step's part of A or B into registers; what is outside is 0.

    `across` is how many rows of A or columns of B the part has, `width` how many neighbours a group of registers holds,
    and `held` how many registers that are.
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
    itemsize = ACCESS_BYTES // width
    """Write how each thread puts into shared memory what it fetched: as rows of the depth, neighbours across."""
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
    """Return the code that finds the tile of a block, and where the arrays of its item of the batch begin."""
    batch = range(variant.batch - 1, 0, -1)
    return [
        "tiles = tiles_down * tiles_across",
        "index0 = quotient(cuda.blockIdx.x, tiles)",
        "rest = cuda.blockIdx.x - index0 * tiles",
        # Down groups of rows of tiles, then across.
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
    """Return the code of the kernel, and of what it calls as `formula`."""
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
    """Return the body of the kernel that multiplies and adds numbers one by one."""
    width = ACCESS_BYTES // np.dtype(variant.sums).itemsize
    down, across = tile.thread_rows, tile.thread_columns
    # A column more than the tile: threads that put elements along the depth do not meet in one bank.
    pitch_a, pitch_b = tile.rows + (width if variant.a.along else 0), tile.columns + (width if variant.b.along else 0)
    half_a, half_b = tile.depth * pitch_a, tile.depth * pitch_b
    columns = tile.columns // across
    # Said, so that neighbours in shared memory move in one access; the simulator takes no such argument.
    aligned = "" if SIMULATED else f", {ACCESS_BYTES}"

    def thread_row(i: int) -> str:
        return f"{i // width * (tile.rows // (down // width)) + i % width} + thread_y * {width}"

    def thread_column(j: int) -> str:
        return f"{j // width * (tile.columns // (across // width)) + j % width} + thread_x * {width}"

    def read(name: str, side: str, count: int, pitch: int, place: Callable[[int], str]) -> Iterator[str]:
        for i in range(0, count, width):
            names = ", ".join([f"{name}{i + v}" for v in range(width)])
            at = f"half_{side} + step * {pitch} + {place(i)}"
            yield f"        {names} = load_shared(shared_{side} + ({at}) * {ACCESS_BYTES // width})"

    fetch = [
        *_fetched("a", variant.a, tile, tile.rows, width, width),
        *_fetched("b", variant.b, tile, tile.columns, width, width),
    ]
    stash = [
        *_stashed("a", variant.a, tile, tile.rows, width, pitch_a),
        *_stashed("b", variant.b, tile, tile.columns, width, pitch_b),
    ]
    lines = [
        f"array_a = cuda.shared.array({2 * half_a}, sums{aligned})",
        f"array_b = cuda.shared.array({2 * half_b}, sums{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"thread_x, thread_y = thread & {columns - 1}, quotient(thread, {columns})",
        *_opening(variant, tile),
        *(f"c{i}_{j} = zero" for i in range(down) for j in range(across)),
        "depth = 0",
        "half = 0",
        "half_a = half_b = 0",
        *fetch,
        *stash,
        "cuda.syncthreads()",
        "while depth < k:",
        f"    depth += {tile.depth}",
        "    if depth < k:",
        *(f"        {line}" for line in fetch),
        f"    for step in range({tile.depth}):",
        *read("x", "a", down, pitch_a, thread_row),
        *read("y", "b", across, pitch_b, thread_column),
        *(f"        c{i}_{j} += x{i} * y{j}" for i in range(down) for j in range(across)),
        "    half ^= 1",
        f"    half_a, half_b = half * {half_a}, half * {half_b}",
        "    if depth < k:",
        *(f"        {line}" for line in stash),
        "    cuda.syncthreads()",
    ]
    for i in range(down):
        lines += [f"row = row0 + {thread_row(i)}", "if row < m:"]
        for j in range(0, across, variant.lanes):
            values = [f"c{i}_{j + v}" for v in range(variant.lanes)]
            lines += [f"    {line}" for line in _finished(variant, thread_column(j), values, has_formula)]
    return lines


def _finished(variant: Variant, column: str, values: list[str], has_formula: bool) -> Iterator[str]:
    """Write what becomes of neighbouring sums of a row, if they are inside."""

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
    return Kernel(namespace["kernel"], [types.int64] * len(variant.parameters), tile.threads)


class CallPlan(NamedTuple):
    """The prepared kernel for products of the same layouts: its blocks, and its arguments before the addresses."""

    kernel: Kernel
    blocks: int
    words: tuple[int, ...]


def prepare(
    a: Layout, b: Layout, result: Layout, further: tuple[tuple[str, Layout], ...], formula: Formula | None, name: str,
    is_aligned: tuple[bool, ...], on_tensor_cores: tuple[str, ...] = (),
) -> CallPlan:  # fmt: skip
    """Return the plan for operands of these layouts; `further` holds the layouts of addend, other and kept.

    `is_aligned` says of A, B and the rest whether they begin at a multiple of 16 bytes. Tensor cores are used for
    some dtypes, where neighbours move in accesses of 16 bytes.
    """
    batch, (m, n), k = result.shape[:-2], result.shape[-2:], a.shape[-1]
    sums = "float64" if result.dtype.name == "float64" else "float32"
    layouts = {"a": a, "b": b, "result": result, **dict(further)}
    steps = {each: _steps(len(batch), layout) for each, layout in layouts.items()}
    sizes = list(batch)
    for d in reversed(range(len(sizes) - 1)):  # dimensions that all arrays pass through evenly are one
        if all(own[d] == own[d + 1] * sizes[d + 1] for own in steps.values()):
            sizes[d] *= sizes.pop(d + 1)
            for own in steps.values():
                own.pop(d)

    def operands(width: int) -> tuple[Operand, Operand]:
        """Return how A and B are read, with so many neighbours in an access if that can be."""
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
    """Return how far the matrices of an operand, which broadcasts, lie apart in each dimension of the batch; then
    its rows, and its columns."""
    own = [0 if size == 1 else stride for size, stride in zip(layout.shape, layout.strides, strict=True)]
    return [*[0] * (dims + 2 - len(own)), *own]


def _reading(layout: Layout, steps: list[int], along: int, sizes: Shape, width: int) -> tuple[bool, int]:
    """Return whether to read an operand along K, which is its dimension `along`, and how many neighbours at once."""
    last = layout.ndim - 1
    itemsize = layout.dtype.itemsize
    dense_last, dense_first = steps[-1] == itemsize, steps[-2] == itemsize
    is_along = (along == last) == (dense_last or not dense_first)
    dimension, others = (-1, steps[:-1]) if dense_last else (-2, [*steps[:-2], steps[-1]])
    whole = (dense_last or dense_first) and layout.shape[dimension] % width == 0
    return is_along, width if whole and all(step % (width * itemsize) == 0 for step in others) else 1


@functools.lru_cache(maxsize=4096)
def prepared(
    arrays: tuple[Layout, ...], further: tuple[str, ...], formula: Formula | None, name: str,
    is_aligned: tuple[bool, ...], on_tensor_cores: tuple[str, ...],
) -> CallPlan:  # fmt: skip
    """Return what `prepare` does for the layouts of A, B, the result, and the further arrays of these names."""
    a, b, result, *others = arrays
    named = tuple(zip(further, others, strict=True))
    aligned = (is_aligned[0], is_aligned[1], all(is_aligned[2:]))
    return prepare(a, b, result, named, formula, name, aligned, on_tensor_cores)


def _product(
    a: DeviceArray,
    b: DeviceArray,
    result: DeviceArray,
    formula: Formula | None,
    name: str,
    **further: DeviceArray | None,
) -> None:
    given = {each: array for each, array in further.items() if array is not None}
    arrays = [a, b, result, *given.values()]
    addresses = [array.address for array in arrays]
    call = prepared(
        tuple([array.layout for array in arrays]), tuple(given), formula, name,
        tuple([address % ACCESS_BYTES == 0 for address in addresses]), tensor_cores.used_for(),
    )  # fmt: skip
    if call.blocks:
        call.kernel.launch(call.blocks, *call.words, *addresses)


def matmul(
    a: DeviceArray, b: DeviceArray, out: DeviceArray | None = None, *, accumulate: bool = False, dtype: Any = None
) -> DeviceArray:
    """Return a @ b, written to `out` or, with `accumulate`, added to it. `out` must not overlap the operands.

    Shapes: a (..., M, K), b (..., K, N), out (..., M, N); batch dimensions broadcast. Any strides. Sums of float64 are
    float64, those of other dtypes float32. The result is of `dtype`, by default that of the operands.
    Raises ValueError for shapes and TypeError for dtypes that do not fit.
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
    """Return formula(rows @ weight.T + bias, other), made tile by tile while the product is in registers.

    `formula`, known as `name`, may take one parameter. What it is applied to goes into `product`, if given; without a
    formula that is the result. Shapes: rows (M, K), weight (N, K), bias (N,), other, product and result (M, N).
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
    """Return the batch and dtype of a product. Raises as `matmul`."""
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
