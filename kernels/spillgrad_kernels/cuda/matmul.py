"""The matrix product on a device, for any strides and any broadcast batch; a formula may be applied before storing.

A block of threads computes a tile of C. The block walks along K in steps: while its threads multiply the tiles of A and
B in one half of shared memory, they fetch the next step's tiles into registers; then they store these tiles in the
other half. If the device has tensor cores, they multiply half precision, and also float32 if rounding to tf32 is
allowed (see `tensor_cores`); ordinary cores multiply the rest (see `plain_cores`).

If C has few tiles, K is cut into parts, so that more blocks run at once. A block adds up a part of the products, and a
second kernel adds up the parts in their order. The number of parts depends on the shapes alone, so that results do not
depend on the device.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

import spillgrad_kernels.cuda.scalar_math  # noqa: F401 (registers the functions that formulas call)
from spillgrad_kernels.cuda import plain_cores, tensor_cores
from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.jit.compile import SIMULATED, Kernel, cuda, device, for_each_turn
from spillgrad_kernels.cuda.pointers import (
    ACCESS_BYTES,
    HALF,
    lane_loader,
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
# K is cut into at most `_MOST_PARTS` parts of at least `_PART_DEPTH`.
_PART_DEPTH = 16 if SIMULATED else 256
_MOST_PARTS = 16


Tile = plain_cores.Tile | tensor_cores.Tile


class Operand(NamedTuple):
    """How a kernel reads A or B: `lanes` adjacent elements of `dtype` at a time, along K if `along`, else across K."""

    dtype: str
    along: bool
    lanes: int


class Variant(NamedTuple):
    """The properties of a call that change a kernel's code, besides the formula.

    `batch` is the number of batch dimensions. `addend` says that an array is added to the product, `other` that the
    formula takes a second array, and `kept` that the product, before the formula, is stored too. These arrays and the
    result are accessed `lanes` adjacent elements at a time. `parts` says that a block adds up a part of the products.
    """

    a: Operand
    b: Operand
    result: str
    lanes: int
    batch: int
    addend: bool
    other: bool
    kept: bool
    parts: bool = False

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
        return [
            "m", "n", "k", "tiles_down", "tiles_across", *self.batch_sizes,
            *(["items", "part_depth", "part_step"] if self.parts else []), *self.steps_of(self.arrays), *self.arrays,
        ]  # fmt: skip

    @property
    def joining_parameters(self) -> list[str]:
        """The parameters of the function that adds up the parts of one group of adjacent elements of C."""
        arrays = self.arrays[2:]
        return [
            "turn", "m", "across", "parts", "part_step", *self.batch_sizes, *self.steps_of(arrays), "sums", *arrays,
        ]  # fmt: skip

    @property
    def batch_sizes(self) -> list[str]:
        """The parameters for the sizes of all batch dimensions but the first."""
        return [f"size{d}" for d in range(1, self.batch)]

    def steps_of(self, arrays: list[str]) -> list[str]:
        """Return the parameters for the strides of `arrays`."""
        return [
            f"{name}_{step}" for name in arrays for step in (*[f"batch{d}" for d in range(self.batch)], "row", "column")
        ]


def _fetched(side: str, operand: Operand, tile: Tile, across: int, width: int, held: int) -> Iterator[str]:
    """Yield the code by which a thread fetches its elements of a tile of A or B into registers.

    The tile has `across` rows of A or `across` columns of B. A group of `held` registers holds `width` adjacent
    elements, two in a register if there are twice as many. Elements beyond the edges of A or B are 0.
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
        elements = names if held == width else [f"{side}_{v}" for v in range(width)]
        for v, element in enumerate(elements):
            inside = f"at < {size} and deep + {v} < k" if operand.along else f"at + {v} < {size} and deep < k"
            step = step_along if operand.along else step_across
            yield f"{element} = load_{side}({address} + {v} * {step}) if {inside} else nothing"
        if elements is not names:
            yield from (f"{name} = paired({side}_{2 * i}, {side}_{2 * i + 1})" for i, name in enumerate(names))


def _opening(variant: Variant, tile: Tile) -> list[str]:
    """Return the code that finds a block's tile of C, and moves the arrays' addresses to this tile's batch item."""
    lines = [
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
        "depth = 0",
    ]
    if variant.parts:
        lines += [
            "part = quotient(index0, items)",
            "index0 -= part * items",
            "result += part * part_step",
            "depth = part * part_depth",
            "k = depth + part_depth if depth + part_depth < k else k",
        ]
    return [*lines, *_to_batch_item(variant, variant.arrays)]


def _to_batch_item(variant: Variant, arrays: list[str]) -> Iterator[str]:
    """Yield the code that moves the addresses of `arrays` to the batch item of number `index0`."""
    for d in range(variant.batch - 1, 0, -1):
        yield f"index{d}, index0 = index0 - quotient(index0, size{d}) * size{d}, quotient(index0, size{d})"
    yield from (f"{name} += index{d} * {name}_batch{d}" for name in arrays for d in range(variant.batch))


def _formula(body: Trace) -> list[str]:
    """Return the code of the function `formula` that kernels call."""
    lines = [f"def formula({', '.join(body.inputs)}):", *(f"    {line}" for line in body.lines)]
    return [*lines, f"    return {body.results[0]}"]


def _source(variant: Variant, tile: Tile, has_formula: bool) -> list[str]:
    """Return the code of the kernel, which may call the function `formula`."""
    on_tensor_cores = isinstance(tile, tensor_cores.Tile)
    width = ACCESS_BYTES // np.dtype(variant.a.dtype if on_tensor_cores else variant.sums).itemsize
    held = ACCESS_BYTES // 4 if on_tensor_cores else width
    fetch = {
        side: list(_fetched(side, operand, tile, across, width, held))
        for side, operand, across in (("a", variant.a, tile.rows), ("b", variant.b, tile.columns))
    }
    along, opening = (variant.a.along, variant.b.along), _opening(variant, tile)

    def finished(column: str, sums: list[str]) -> Iterator[str]:
        for i in range(0, len(sums), variant.lanes):
            yield from _finished(variant, f"{column} + {i}", sums[i : i + variant.lanes], has_formula)

    if isinstance(tile, tensor_cores.Tile):
        copied = (tensor_cores.copies(*variant.a[::2]), tensor_cores.copies(*variant.b[::2]))
        kind = tensor_cores.KINDS[variant.a.dtype]
        lines = tensor_cores.source(kind, tile, along, copied, opening, fetch, finished)
    else:
        lines = plain_cores.source(tile, variant.sums, variant.lanes, along, opening, fetch, finished)
    return [f"def kernel({', '.join(variant.parameters)}):", *(f"    {line}" for line in lines)]


def _joining_source(variant: Variant, has_formula: bool) -> list[str]:
    """Return the code of a function that adds up the parts of a group of adjacent elements of C, and stores C.

    The address `sums` is that of an array of shape (parts, ..., m, n) of sums. A row of C has `across` groups.
    """
    totals, sums = ([f"{name}{v}" for v in range(variant.lanes)] for name in ("total", "sum"))
    lines = [
        "rest = quotient(turn, across)",
        "index0 = quotient(rest, m)",
        f"row, column0 = rest - index0 * m, (turn - rest * across) * {variant.lanes}",
        f"n = across * {variant.lanes}",
        *_to_batch_item(variant, variant.arrays[2:]),
        f"sums += turn * {variant.lanes * np.dtype(variant.sums).itemsize}",
        f"{', '.join(totals)}, = load_sums(sums)",
        "for part in range(1, parts):",
        f"    {', '.join(sums)}, = load_sums(sums + part * part_step)",
        *(f"    {total} += {number}" for total, number in zip(totals, sums, strict=True)),
        *_finished(variant, "0", totals, has_formula),
    ]
    return [f"def matmul_joined({', '.join(variant.joining_parameters)}):", *(f"    {line}" for line in lines)]


def _finished(variant: Variant, column: str, values: list[str], has_formula: bool) -> Iterator[str]:
    """Yield the code that applies addend and formula to adjacent sums of a row, and stores those inside C."""

    def place(name: str) -> str:
        return f"{name} + row * {name}_row + column * {name}_column"

    def loaded(name: str) -> str:
        return f"{', '.join(f'{name}{v}' for v in range(len(values)))}, = load_result({place(name)})"

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


def _names(variant: Variant, formula: Formula | None, name: str) -> tuple[dict[str, Any], bool]:
    """Return a dict from names in generated code to what they stand for, and whether it has the function `formula`."""
    number = np.dtype(variant.sums).type
    names: dict[str, Any] = {
        "quotient": quotient, "zero": number(0), "load_sums": lane_loader(variant.sums, variant.lanes),
        "load_result": lane_loader(variant.result, variant.lanes),
        "store_result": storers[variant.result, variant.lanes],
    }  # fmt: skip
    if formula is None:
        return names, False
    body = trace(formula, number)
    names |= {**FUNCTIONS, **body.constants}
    exec(compile("\n".join(_formula(body)), f"<formula {name}>", "exec"), names)
    names["formula"] = device(names["formula"])
    return names, True


@functools.lru_cache(maxsize=256)
def build(variant: Variant, tile: Tile, formula: Formula | None, name: str) -> Kernel:
    """Return the kernel of a variant of the product."""
    names, has_formula = _names(variant, formula, name)
    width = ACCESS_BYTES // np.dtype(variant.sums).itemsize
    names |= {
        "cuda": cuda, "sums": getattr(types, variant.sums), "shared_address": shared_address, "nothing": names["zero"],
        "load_shared": shared_loaders[variant.sums, width], "store_shared": shared_storers[variant.sums, width],
        "store_shared1": shared_storers[variant.sums, 1],
    }  # fmt: skip
    if isinstance(tile, tensor_cores.Tile):
        names |= tensor_cores.names(variant.a.dtype, variant.a.along, variant.b.along)
        names["load_a"], names["load_b"] = (tensor_cores.loader(side.dtype, side.lanes) for side in variant[:2])
    else:
        names["load_a"], names["load_b"] = (loaders[side.dtype, side.lanes] for side in variant[:2])
    exec(compile("\n".join(_source(variant, tile, has_formula)), f"<matmul {name}>", "exec"), names)
    place = "tensor_cores_" if isinstance(tile, tensor_cores.Tile) else ""
    return Kernel(
        names["kernel"], f"matmul_{place}{variant.a.dtype}", threads=tile.threads, resident=tile.resident
    )  # fmt: skip


@functools.lru_cache(maxsize=256)
def _joining(variant: Variant, formula: Formula | None, name: str) -> Kernel:
    """Return the kernel that adds up the parts of a product."""
    names, has_formula = _names(variant, formula, name)
    exec(compile("\n".join(_joining_source(variant, has_formula)), f"<matmul_joined {name}>", "exec"), names)
    return Kernel(for_each_turn(names["matmul_joined"]))


class Joining(NamedTuple):
    """How the parts of a product become C: an array of sums of `shape` and `dtype` holds them before `kernel` runs."""

    shape: Shape
    dtype: np.dtype[Any]
    kernel: Kernel
    turns: int
    words: tuple[int, ...]


class CallPlan(NamedTuple):
    """The kernel for products of given layouts, the number of blocks, and all arguments except addresses.

    If K is cut into parts, `joining` says how these become C.
    """

    kernel: Kernel
    blocks: int
    words: tuple[int, ...]
    joining: Joining | None = None


@functools.lru_cache(maxsize=4096)
def prepare(
    a: Layout, b: Layout, result: Layout, further: tuple[tuple[str, Layout], ...], formula: Formula | None, name: str,
    is_aligned: tuple[bool, ...], on_tensor_cores: tuple[str, ...] = (),
) -> CallPlan:  # fmt: skip
    """Return the plan for operands of these layouts; `further` has the names and layouts of addend, other and kept.

    `is_aligned` says whether A, whether B, and whether all other arrays begin at multiples of 16 bytes.
    `on_tensor_cores` are the dtypes that tensor cores multiply.
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

    width = ACCESS_BYTES // np.dtype(sums).itemsize
    if a.dtype.name in on_tensor_cores and sums == "float32":
        kind = tensor_cores.KINDS[a.dtype.name]
        read, width = operands(kind.width), tensor_cores.NEIGHBOURS
        tile: Tile = tensor_cores.tile_for(a.dtype.name, [side.lanes for side in read])
    else:
        low = plain_cores.LOW_TILES[sums]
        read, tile = operands(width), low if m <= low.rows else plain_cores.TILES[sums]
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
    items, down, across = int(np.prod(sizes, dtype=np.int64)), -(-m // tile.rows), -(-n // tile.columns)
    blocks, head = down * across * items, (m, n, k, down, across, *sizes[1:])
    wanted = round(tile.wanted / max(1, blocks))
    part_depth = -(-k // (max(1, min(wanted, _MOST_PARTS, k // _PART_DEPTH)) * tile.depth)) * tile.depth
    if k <= part_depth:
        words = (*head, *[step for each in variant.arrays for step in steps[each]])
        return CallPlan(build(variant, tile, formula, name), blocks, words)

    parts, size, kind_of_sums = -(-k // part_depth), items * m * n, np.dtype(sums)
    part_step, row = size * kind_of_sums.itemsize, n * kind_of_sums.itemsize
    strides = [kind_of_sums.itemsize, row]
    for length in (m, *reversed(sizes[1:])):
        strides.append(strides[-1] * length)
    adding = Variant(*read, sums, width if n % width == 0 else 1, len(sizes), False, False, False, parts=True)
    words = (*head, items, part_depth, part_step, *steps["a"], *steps["b"], *strides[len(sizes) + 1 :: -1])
    joining = Joining(
        (parts, size), kind_of_sums, _joining(variant, formula, name), size // lanes,
        (m, n // lanes, parts, part_step, *sizes[1:], *[step for each in variant.arrays[2:] for step in steps[each]]),
    )  # fmt: skip
    return CallPlan(build(adding, tile, None, ""), blocks * parts, words, joining)


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
    if not call.blocks:
        return
    if call.joining is None:
        call.kernel.launch(call.blocks, *call.words, *addresses)
        return
    joining, sums = call.joining, empty(call.joining.shape, call.joining.dtype)
    call.kernel.launch(call.blocks, *call.words, *addresses[:2], sums.address)
    joining.kernel.run(joining.turns, *joining.words, sums.address, *addresses[2:])


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
    if a.dtype != b.dtype or a.dtype.name not in (*HALF, *plain_cores.TILES):
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
