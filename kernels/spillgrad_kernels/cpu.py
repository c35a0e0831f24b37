"""Elementwise loops for the CPU: one builder for dense, strided, broadcast and scalar operands, and several results.

The operands' common shape is walked in tiles of rows, along the dimension in which most arrays are dense, so that the
loop over a row vectorises whatever the shapes. An array whose rows have gaps even so, as a transposed operand among
others, passes through a dense copy, made tile by tile.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.compile import jit
from spillgrad_kernels.dispatch import Kernel, parallel_for
from spillgrad_kernels.formula import CONVERSIONS, FUNCTIONS, Formula, Trace, trace
from spillgrad_kernels.memory import empty

# Elements below which another thread does not pay: 8,192 cheap ones take about as long as handing half of them over.
GRAIN = 1 << 13
# Elements of a tile: about a microsecond of work, beside which finding its place (20 ns) is nothing.
_TILE = 4096
# The side of a square tile of a copy: whole cache lines of either array.
_COPY_SIDE = 64

Shape = tuple[int, ...]
# How an array lies in memory: shape, strides in bytes, dtype.
Layout = tuple[Shape, Shape, np.dtype[Any]]


class Walk(NamedTuple):
    """How to walk arrays of given layouts: `loops` for the kernel, how many tiles, and the elements of one.

    Rows of `loops`: the sizes of the dimensions, the last two being rows and columns; a tile's sizes; then, per array,
    its strides in elements and, in the last column, where it begins.
    """

    loops: np.ndarray
    tiles: int
    tile: int
    order: tuple[int, ...]  # the dimensions, outermost first

    def steps(self) -> list[int]:
        """Return how far each array moves from one column to the next."""
        return self.loops[2:, -2].tolist()  # type: ignore[no-any-return]


def plan(shape: Shape, arrays: Sequence[Layout], side: int | None = None) -> Walk:
    """Return how to walk arrays broadcast to `shape`: in tiles of whole rows, or in squares of a given side."""
    steps = []
    for array_shape, strides, dtype in arrays:
        own = [0 if size == 1 else stride // dtype.itemsize for size, stride in zip(array_shape, strides, strict=True)]
        steps.append([0] * (len(shape) - len(own)) + own)
    begins = [sum(-s * (n - 1) for s, n in zip(own, shape, strict=True) if s < 0) for own in steps]
    # Innermost the dimension in which the fewest arrays have gaps; for the others, large strides outermost.
    order = sorted(
        reversed(range(len(shape))),
        key=lambda d: (sum(abs(own[d]) > 1 for own in steps), sum(abs(own[d]) for own in steps)),
    )[::-1]
    sizes: list[int] = []
    strides_of: list[list[int]] = []  # per dimension, outermost first: each array's stride
    for d in order:
        here = [own[d] for own in steps]
        if shape[d] == 1:
            continue
        if sizes and strides_of[-1] == [stride * shape[d] for stride in here]:
            sizes[-1] *= shape[d]
            strides_of[-1] = here
        else:
            sizes.append(shape[d])
            strides_of.append(here)
    while len(sizes) < 2:
        sizes.insert(0, 1)
        strides_of.insert(0, [1] * len(steps))
    columns = min(sizes[-1], side or _TILE)
    rows = min(sizes[-2], side or max(1, _TILE // max(columns, 1)))
    tile = [*[1] * (len(sizes) - 2), rows, columns]
    loops = np.array([[*sizes, 0], [*tile, 0], *([*s, b] for *s, b in zip(*strides_of, begins, strict=True))], np.int64)
    loops.setflags(write=False)
    tiles = math.prod(-(-size // part) for size, part in zip(sizes, tile, strict=True)) if math.prod(shape) else 0
    return Walk(loops, tiles, max(1, rows * columns), tuple(order))


@jit
def _locate(loops: Any, tile: int, place: Any) -> None:
    """Store in `place` where each array's part of a tile begins, then the tile's rows and columns."""
    arrays = len(loops) - 2
    for i in range(arrays):
        place[i] = loops[2 + i, -1]
    for d in range(loops.shape[1] - 2, -1, -1):
        parts = (loops[0, d] + loops[1, d] - 1) // loops[1, d]
        rest = tile // parts
        index = (tile - rest * parts) * loops[1, d]
        tile = rest
        for i in range(arrays):
            place[i] += index * loops[2 + i, d]
        if d >= loops.shape[1] - 3:
            place[arrays + d - (loops.shape[1] - 3)] = min(loops[1, d], loops[0, d] - index)


def _source(body: Trace, pattern: str) -> str:
    """Return the Python code of the loop that computes `body`.

    The pattern has a letter per operand: "v" moves along a row, "s" stands still.
    """
    arrays = len(pattern) + len(body.results)
    results = list(zip(range(len(pattern), arrays), body.results, strict=True))
    moving = [i for i, letter in enumerate(pattern) if letter == "v"]
    standing = [i for i, letter in enumerate(pattern) if letter == "s"]
    lines = [
        f"def kernel(start, stop, loops, {', '.join(f'a{i}' for i in range(arrays))}):",
        f"    place = empty({arrays + 2}, int64)",
        *(f"    down{i} = loops[{2 + i}, -3]" for i in range(arrays)),
        "    for tile in range(start, stop):",
        "        locate(loops, tile, place)",
        *(f"        p{i} = place[{i}]" for i in range(arrays)),
        f"        length = place[{arrays + 1}]",
        f"        for _ in range(place[{arrays}]):",
        *(f"            {body.inputs[i]} = a{i}[p{i}]" for i in standing),
        *(f"            x{i} = a{i}[p{i} : p{i} + length]" for i in (*moving, *(i for i, _ in results))),
        "            for i in range(length):",
        *(f"                {body.inputs[i]} = x{i}[i]" for i in moving),
        *(f"                {line}" for line in body.lines),
        *(f"                x{i}[i] = {name}" for i, name in results),
        *(f"            p{i} += down{i}" for i in range(arrays)),
    ]
    return "\n".join(lines)


@functools.lru_cache(maxsize=1024)
def build(body: Trace, name: str, pattern: str) -> Kernel:
    """Compile the loop that computes `body` for operands that move ("v") or stand still ("s") along a row."""
    source = _source(body, pattern)
    namespace = {**FUNCTIONS, **_NAMES, **body.constants}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    constants = sorted((key, repr(value)) for key, value in body.constants.items())
    digest = hashlib.sha256(f"{source}{constants}".encode()).hexdigest()[:12]
    return jit(namespace["kernel"], name=f"elementwise.{name}.{pattern}.{digest}")  # type: ignore[no-any-return]


# What a loop may name besides the functions of formulas: conversions, and its own needs.
_NAMES = {
    "__name__": __name__, "empty": np.empty, "locate": _locate,
    **{kind.__name__: kind for kind in (*CONVERSIONS.values(), np.int64)},
}  # fmt: skip


@jit
def _copy_tiles(start: int, stop: int, loops: Any, source: Any, target: Any) -> None:
    place = np.empty(4, np.int64)
    down, step = loops[2, -3], loops[2, -2]
    target_down, target_step = loops[3, -3], loops[3, -2]
    for tile in range(start, stop):
        _locate(loops, tile, place)
        for r in range(place[2]):
            p, q = place[0] + r * down, place[1] + r * target_down
            for c in range(place[3]):
                target[q + c * target_step] = source[p + c * step]


_trace: Callable[[Formula, Any], Trace] = functools.cache(trace)


def _flat(array: np.ndarray) -> np.ndarray:
    """Return the memory from an array's lowest to its highest element in one dimension: a view of the array."""
    if array.flags.c_contiguous:
        return array.reshape(-1)
    corner = array[tuple([slice(None, None, -1 if stride < 0 else None) for stride in array.strides])]
    gaps = zip(corner.shape, corner.strides, strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in gaps) // array.itemsize if array.size else 0
    return np.lib.stride_tricks.as_strided(corner, (span,), (array.itemsize,))


def _layout(array: np.ndarray) -> Layout:
    return array.shape, array.strides, array.dtype


def copy(source: np.ndarray, target: np.ndarray) -> None:
    """Copy an array into another of its shape and dtype, both of any strides; a transposition in cached squares."""
    walk = plan(source.shape, (_layout(source), _layout(target)), _COPY_SIDE)
    parallel_for(_copy_tiles, walk.tiles, max(1, GRAIN // walk.tile), walk.loops, _flat(source), _flat(target))


class _Call(NamedTuple):
    """What calls with the same layouts share: the kernel, the result's shape, how to walk the arrays.

    `copied` are those that pass through a dense copy, with the order of its dimensions.
    """

    kernel: Kernel
    shape: Shape
    walk: Walk
    grain: int
    copied: tuple[tuple[int, Shape], ...]
    lines: bool  # whether all arrays are dense and one-dimensional


@functools.lru_cache(maxsize=4096)
def _prepare(
    formula: Formula | Trace, name: str, dtypes: tuple[Any, ...], operands: tuple[Layout, ...], outs: tuple[Layout, ...]
) -> _Call:
    shape = np.broadcast_shapes(*[layout[0] for layout in operands])
    for out in outs:
        if out[0] != shape:
            raise ValueError(f"{name}: got out of shape {out[0]}; the result has shape {shape}")
    arrays = [*operands, *(outs or [_dense(shape, np.dtype(dtype)) for dtype in dtypes])]
    walk = plan(shape, arrays)
    copied = {
        i: _own_order(walk.order, len(shape), a[0]) for i, a in enumerate(arrays) if walk.steps()[i] not in (0, 1)
    }
    if copied:
        walk = plan(shape, [_dense(a[0], a[2], copied.get(i)) if i in copied else a for i, a in enumerate(arrays)])
    pattern = "".join("s" if step == 0 else "v" for step in walk.steps()[: len(operands)])
    lines = all(len(layout[0]) == 1 and layout == _dense(layout[0], layout[2]) for layout in arrays)
    if not isinstance(formula, Trace):
        number = next((layout[2] for layout in operands if layout[2].kind == "f"), arrays[-1][2])
        formula = _trace(formula, number.type)
    kernel, grain = build(formula, name, pattern), max(1, GRAIN // walk.tile)
    return _Call(kernel, shape, walk, grain, tuple(copied.items()), lines)


def _own_order(order: Shape, ndim: int, shape: Shape) -> Shape:
    """Return the order of the dimensions of an array that broadcasts to `ndim` dimensions."""
    lead = ndim - len(shape)
    return tuple([d - lead for d in order if d >= lead])


def _dense(shape: Shape, dtype: np.dtype[Any], order: Shape | None = None) -> Layout:
    """Return the layout without gaps whose dimensions lie in memory in a given order, outermost first."""
    strides, stride = [0] * len(shape), dtype.itemsize
    for d in reversed(range(len(shape)) if order is None else order):
        strides[d] = stride
        stride *= shape[d]
    return shape, tuple(strides), dtype


def compute(
    formula: Formula | Trace, name: str, operands: Sequence[np.ndarray], dtypes: tuple[Any, ...],
    outs: tuple[np.ndarray, ...] = (),
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Compute a formula, or a trace with several results, over broadcast operands into fresh memory or into `outs`.

    Shapes: operands broadcast together, to the shape of each of `outs`, which may have any strides. One of `outs` may
    be one of the operands, but not overlap one otherwise. Raises ValueError when shapes do not fit.
    """
    layouts = tuple([(a.shape, a.strides, a.dtype) for a in operands])
    call = _prepare(formula, name, dtypes, layouts, tuple([(a.shape, a.strides, a.dtype) for a in outs]))
    if not outs:
        outs = tuple([empty(call.shape, dtype) for dtype in dtypes])
    if call.lines:
        parallel_for(call.kernel, call.walk.tiles, call.grain, call.walk.loops, *operands, *outs)
    elif call.walk.tiles:
        arrays = [*operands, *outs]
        for i, order in call.copied:
            dense = empty(tuple([arrays[i].shape[d] for d in order]), arrays[i].dtype)
            arrays[i] = dense.transpose(sorted(range(dense.ndim), key=order.__getitem__))
            if i < len(operands):
                copy(operands[i], arrays[i])
        parallel_for(call.kernel, call.walk.tiles, call.grain, call.walk.loops, *[_flat(a) for a in arrays])
        for i, _ in call.copied:
            if i >= len(operands):
                copy(arrays[i], outs[i - len(operands)])
    return outs


def elementwise(
    formula: Formula, name: str, operands: Sequence[np.ndarray], dtype: Any, out: np.ndarray | None = None
) -> np.ndarray:
    """Compute `formula` over broadcast operands into fresh memory of `dtype`, or into `out` (see `compute`).

    Constants in the formula take the first floating operand's dtype.
    """
    return compute(formula, name, operands, (dtype,), () if out is None else (out,))[0]
