"""Elementwise loops for the CPU, for dense, strided, broadcast and scalar operands and for several results.

A loop walks over the operands' common shape in tiles of rows, along the dimension in which most arrays are dense, so
that LLVM vectorises it. The rows of an array may still have gaps, for example if only one operand is transposed. Such
an operand is copied to dense memory before the loop, and such a result is copied from dense memory after the loop.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad_kernels.cpu.copying import copy
from spillgrad_kernels.cpu.pointers import array_at, data_of, element, row_at, set_element, words_on_stack
from spillgrad_kernels.device_array import on_device
from spillgrad_kernels.jit.by_address import call, code_address, integers
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.layout import Layout, Shape, dense, layout_of
from spillgrad_kernels.memory.buffers import allocator
from spillgrad_kernels.tables import half
from spillgrad_kernels.tables.formula import CONVERSIONS, FUNCTIONS, Formula, Trace, constants_of, trace
from spillgrad_kernels.tables.scalar_math import COMPLEX_OPERATORS
from spillgrad_kernels.threads.atomics import WORD_BYTES
from spillgrad_kernels.threads.dispatch import Kernel, entry_point, parallel_for
from spillgrad_kernels.tile_walk import locate, tile_walk


def _source(body: Trace, pattern: str, dtypes: Sequence[np.dtype[Any]]) -> str:
    """Return the Python code of the loop that computes `body` over a tile.

    `dtypes` are the dtypes of operands and results. `pattern` has a letter for each operand: "v" if the elements of a
    row vary, "s" if they are all the same. The loop's argument is the address of int64 words: each array's address in
    the tile, the tile's numbers of rows and columns, and each array's row stride in bytes.
    """
    arrays = len(dtypes)
    results = list(zip(range(len(pattern), arrays), body.results, strict=True))
    moving = [i for i, letter in enumerate(pattern) if letter == "v"]
    standing = [i for i, letter in enumerate(pattern) if letter == "s"]

    def value(i: int, position: str) -> str:
        return _converted("widen", dtypes[i], f"element(x{i}, {position})")

    lines = [
        "def loop(place):",
        f"    words = row_at(like_int64, place, {2 * arrays + 2})",
        *(f"    p{i} = element(words, {i})" for i in range(arrays)),
        *(f"    down{i} = element(words, {arrays + 2 + i})" for i in range(arrays)),
        f"    length = element(words, {arrays + 1})",
        f"    for _ in range(element(words, {arrays})):",
        *(
            f"        x{i} = row_at(like_{dtype.name}, p{i}, {1 if i in standing else 'length'})"
            for i, dtype in enumerate(dtypes)
        ),
        *(f"        {body.inputs[i]} = {value(i, '0')}" for i in standing),
        "        for i in range(length):",
        *(f"            {body.inputs[i]} = {value(i, 'i')}" for i in moving),
        *(f"            {line}" for line in body.lines),
        *(f"            set_element(x{i}, i, {_converted('narrow', dtypes[i], name)})" for i, name in results),
        *(f"        p{i} += down{i}" for i in range(arrays)),
    ]
    return "\n".join(lines)


def _converted(verb: str, dtype: np.dtype[Any], expression: str) -> str:
    return f"{verb}_{dtype.name}({expression})" if dtype.name in half.HALF else expression


@functools.lru_cache(maxsize=1024)
def build(body: Trace, name: str, pattern: str, dtypes: tuple[np.dtype[Any], ...]) -> int:
    """Compile the loop that computes `body` over a tile (see `_source`); return its address, which stays valid."""
    source = _source(body, pattern, dtypes)
    kinds = {dtype.name: np.uint16 if dtype.name in half.HALF else dtype for dtype in (*dtypes, np.dtype(np.int64))}
    like = {f"like_{name}": np.zeros(1, kind) for name, kind in kinds.items()}
    namespace = {**FUNCTIONS, **COMPLEX_OPERATORS, **_NAMES, **half.NAMES, **like, **body.constants}
    exec(compile(source, f"<{name}>", "exec"), namespace)
    constants = sorted((key, repr(value)) for key, value in body.constants.items())
    digest = hashlib.sha256(f"{source}{constants}".encode()).hexdigest()[:12]
    # If products of complex numbers were fused with additions, the imaginary part of z * conj(z) would not be 0.
    fastmath: set[str] | None = set() if any(dtype.kind == "c" for dtype in dtypes) else None
    loop = jit(namespace["loop"], fastmath=fastmath, name=f"elementwise.{name}.{pattern}.{digest}", by_address=True)
    return code_address(loop, integers(1))


@functools.cache
def _walker(arrays: int) -> Kernel:
    """Return the kernel that walks over the tiles of `arrays` arrays, and calls a formula's loop for each tile.

    The kernel takes a range of tiles, the address `CallPlan.words`, and the arrays' ids. The kernel calls the loop by
    address, so only the loop is compiled for each formula, in 80 ms. Compiling both together would take 320 ms.
    """
    ids = [f"a{i}" for i in range(arrays)]
    source = "\n".join([
        f"def walk(start, stop, words, {', '.join(ids)}):",
        "    head = array_at(like_int64, words, 2)",
        "    loop, dims = head[0], head[1]",
        f"    loops = array_at(like_int64, words + {2 * WORD_BYTES}, {arrays + 2} * dims)",
        "    place = scratch()",
        *(f"    place[{arrays + 2 + i}] = loops[{3 + i} * dims - 2]" for i in range(arrays)),
        "    for tile in range(start, stop):",
        *(f"        place[{i}] = data_of({name})" for i, name in enumerate(ids)),
        "        locate(loops, dims, tile, place)",
        "        call(loop, (int64(place.ctypes.data),))",
    ])  # fmt: skip
    namespace = {
        "__name__": __name__, "like_int64": np.zeros(1, np.int64), "int64": np.int64,
        "scratch": words_on_stack(2 * arrays + 2),
        "array_at": array_at, "data_of": data_of, "locate": locate, "call": call,
    }  # fmt: skip
    exec(compile(source, "<walk>", "exec"), namespace)
    return jit(namespace["walk"], name=f"elementwise.{arrays}")


# The names that a loop's code may use besides the functions that formulas may call.
_NAMES = {
    "__name__": __name__, "row_at": row_at, "element": element, "set_element": set_element,
    **{kind.__name__: kind for kind in CONVERSIONS.values()},
}  # fmt: skip


_trace: Callable[[Formula, Any, bool], Trace] = functools.cache(trace)


class CallPlan(NamedTuple):
    """The prepared kernel for all calls whose arrays have the same layouts.

    `copied` lists the arrays that are copied to or from dense memory. Each entry is the index of an array and the order
    of the dimensions in the copy's memory.
    """

    kernel: Kernel
    tiles: int
    grain: int
    words: int  # the address of numbers that the kernel reads: the loop's address, the dimensions, `TileWalk.loops`
    shape: Shape
    results: tuple[tuple[Callable[[Shape, Any], np.ndarray], Any], ...]  # each result's allocator and dtype
    copied: tuple[tuple[int, Shape], ...]
    arrays: int
    kept: np.ndarray  # holds the memory at `words`

    @property
    def code(self) -> Kernel:
        """The kernel as a function of start, stop, `words` and the arrays' ids, without type checks."""
        return entry_point(self.kernel, 3 + self.arrays)

    def run(self, operands: Sequence[np.ndarray], outs: tuple[np.ndarray, ...] = ()) -> tuple[np.ndarray, ...]:
        """Compute the results into `outs`, or by default into new arrays; return the arrays of the results."""
        kernel, tiles, grain, words, shape, results, copied, _, _ = self
        if not outs:
            outs = tuple([allocate(shape, dtype) for allocate, dtype in results])
        if not copied:
            parallel_for(kernel, tiles, grain, words, *map(id, operands), *map(id, outs))
        elif tiles:
            self._run_with_copies(operands, outs)
        return outs

    def _run_with_copies(self, operands: Sequence[np.ndarray], outs: tuple[np.ndarray, ...]) -> None:
        arrays = [*operands, *outs]
        for i, order in self.copied:
            shape, dtype = tuple([arrays[i].shape[d] for d in order]), arrays[i].dtype
            dense = allocator(shape, dtype)(shape, dtype)
            arrays[i] = dense.transpose(sorted(range(dense.ndim), key=order.__getitem__))
            if i < len(operands):
                copy(operands[i], arrays[i])
        parallel_for(self.kernel, self.tiles, self.grain, self.words, *map(id, arrays))
        for i, _ in self.copied:
            if i >= len(operands):
                copy(arrays[i], outs[i - len(operands)])


@functools.lru_cache(maxsize=4096)
def prepare(
    formula: Formula | Trace, name: str, dtypes: tuple[Any, ...], operands: tuple[Layout, ...],
    outs: tuple[Layout, ...] = (),
) -> CallPlan:  # fmt: skip
    """Return the plan for computing a formula, or a trace with several results, over operands of these layouts.

    Raises ValueError if the operands' shapes do not broadcast together, or if an array of `outs` has another shape than
    the result. Raises TypeError for an array in another machine's byte order.
    """
    foreign = [layout.dtype for layout in (*operands, *outs) if not layout.dtype.isnative]
    if foreign:  # kernels identify a dtype by its name, which does not show the byte order
        raise TypeError(f"{name}: got {foreign[0]!r}; convert the array to this machine's byte order")
    shape = np.broadcast_shapes(*[layout.shape for layout in operands])
    for out in outs:
        if out.shape != shape:
            raise ValueError(f"{name}: got out of shape {out.shape}; the result has shape {shape}")
    kinds = [np.dtype(dtype) for dtype in dtypes]
    arrays = [*operands, *(outs or [dense(shape, kind) for kind in kinds])]
    walk = tile_walk(shape, arrays)
    copied = {
        i: _own_order(walk.order, len(shape), a.ndim)
        for i, (a, step) in enumerate(zip(arrays, walk.steps, strict=True))
        if step not in (0, a.dtype.itemsize)
    }
    if copied:
        dense_copies = [dense(a.shape, a.dtype, copied[i]) if i in copied else a for i, a in enumerate(arrays)]
        walk = tile_walk(shape, dense_copies)
    pattern = "".join("s" if step == 0 else "v" for step in walk.steps[: len(operands)])
    if not isinstance(formula, Trace):
        found = [layout.dtype for layout in (*operands, arrays[-1])]
        number = next((d for d in found if d.kind == "c"), None) or next(
            (d for d in found[:-1] if d.name in CONVERSIONS), found[-1]
        )
        formula = _trace(formula, constants_of(number), number.kind == "c")
    # Arrays without elements have no tiles: nothing would call their loop.
    loop = build(formula, name, pattern, tuple([layout.dtype for layout in arrays])) if walk.tiles else 0
    results = tuple([(allocator(shape, kind), kind) for kind in kinds])
    words = np.array([loop, walk.loops.shape[1], *walk.loops.reshape(-1)], np.int64)
    return CallPlan(
        _walker(len(arrays)), walk.tiles, walk.grain, words.ctypes.data, shape, results, tuple(copied.items()),
        len(arrays), words,
    )  # fmt: skip


def _own_order(order: Shape, ndim: int, own_ndim: int) -> Shape:
    """Return `order`, an order of `ndim` dimensions, as an order of only the last `own_ndim` of these dimensions."""
    lead = ndim - own_ndim
    return tuple([d - lead for d in order if d >= lead])


@on_device("elementwise")
def compute(
    formula: Formula | Trace, name: str, operands: Sequence[np.ndarray], dtypes: tuple[Any, ...],
    outs: tuple[np.ndarray, ...] = (),
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Compute a formula, or a trace with several results, over broadcast operands into new arrays or into `outs`.

    Shapes: the operands broadcast together to the shape of each of `outs`, which may have any strides. One of `outs`
    may be an operand itself; otherwise `outs` must not overlap operands. Raises the errors of `prepare`.
    """
    operands = [np.asarray(a) for a in operands]  # a NumPy scalar has the attributes of an array, but no address
    call = prepare(formula, name, dtypes, tuple(map(layout_of, operands)), tuple(map(layout_of, outs)))
    return call.run(operands, outs)


@on_device("elementwise")
def elementwise(
    formula: Formula, name: str, operands: Sequence[np.ndarray], dtype: Any, out: np.ndarray | None = None
) -> np.ndarray:
    """Compute `formula` over broadcast operands into a new array of `dtype`, or into `out` (see `compute`).

    Constants in the formula take the dtype of the first floating operand. Half-precision operands and results are
    uint16 bits in memory, and float32 in the loop.
    """
    return compute(formula, name, operands, (dtype,), () if out is None else (out,))[0]
