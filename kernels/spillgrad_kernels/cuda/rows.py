"""Loops over rows for a device: fold each row, compute numbers from the fold, then map each element of the row.

Rows lie along n in an (outer, n, inner) array. A block of threads computes several rows, each with several threads.
Adjacent threads walk along a row if rows are dense in memory, else across the rows. A thread moves several elements in
one access of 16 bytes if rows are dense and begin at multiples of 16 bytes. If the rows that are being computed fit the
cache, the second pass over a row reads it from the cache. The order of a fold depends on the shape and on the
alignment, not on the device.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.elementwise import device_function
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, blocks_for, cuda
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, loaders, quotient, storers
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.layout import Shape
from spillgrad_kernels.tables.formula import CONVERSIONS, Formula, Symbol, Trace, parameters

# The fewest accesses of a thread to its row, so that combining the threads' results costs little in comparison. Also
# the number of one-element accesses that a thread starts before it waits for the first of them.
_THREAD_ACCESSES = 4
# The number of adjacent rows that fill one access of 32 threads.
_NEIGHBOURS = 32


@dataclass(frozen=True, eq=False)
class Fold:
    """A fold of the elements of a row: `start` maps the name of each accumulator to its first value.

    `term` returns the accumulators for one element. `join` takes the accumulators of two parts of a row, and returns
    the accumulators of both parts together. The last accumulators, which `join` does not take, are sums.
    """

    start: Mapping[str, float]
    term: Formula
    join: Formula | None = None


@dataclass(frozen=True, eq=False)
class RowLoop:
    """A computation over rows, made of formulas. The parameters of a formula are names of values.

    A name stands for an operand, an accumulator of the fold, a result of `finish` (listed in `finished`), `n` (the
    length of a row) or `j` (the position of an element in its row). There are four kinds of operands: `elements` have
    the shape of the rows; `columns` have a value for each position in a row, and a default for a missing array;
    `numbers` have a value for each row; `constants` are single values. `picked` maps the name of a further value to
    (operand, position): the value of an element or column operand at a position, which is a number or one of `numbers`.
    A picked value is NaN if its position is outside the row.
    """

    name: str
    elements: Sequence[str]
    columns: Mapping[str, float] = field(default_factory=dict)
    numbers: Sequence[str] = ()
    constants: Sequence[str] = ()
    picked: Mapping[str, tuple[str, str | int]] = field(default_factory=dict)
    fold: Fold | None = None
    finish: Formula | None = None
    finished: Sequence[str] = ()
    stored: Sequence[str] = ()  # accumulators or finished numbers; each is a result with a value for each row
    element: Formula | None = None  # computes the last result, which has the shape of the rows

    @property
    def operands(self) -> list[str]:
        """The names of the operands, in the order in which `run` takes them."""
        return [*self.elements, *self.columns, *self.numbers, *self.constants]

    @property
    def results(self) -> list[str]:
        """The names of the results, in the order in which `run` takes them."""
        return [*(f"{name}_out" for name in self.stored), *(["element_out"] if self.element else [])]


# A row has `width` threads, its members, at a distance of 1 << beside. The distance of threads of consecutive rows is
# 1 << apart.
_KERNEL = """
def kernel(rows, extent, inner, parts, part_extent, width, beside, apart, {parameters}):
    {shared}
    n = number(extent)
    at_once = quotient({threads}, width)
    thread = cuda.threadIdx.x
    member = (thread >> beside) & (width - 1)
    groups = quotient(rows + at_once - 1, at_once) * parts
    group = cuda.blockIdx.x
    while group < groups:
        group_of_rows = quotient(group, parts)
        part = group - group_of_rows * parts
        row = group_of_rows * at_once + ((thread >> apart) & (at_once - 1))
        exists = row < rows
        row = row if exists else rows - 1
        begin = row * extent
        {begin_between_neighbours}
        last = (part + 1) * part_extent if (part + 1) * part_extent < extent else extent
        last = last if exists else 0
        {numbers}
        {fold}
        {finish}
        if exists and member == 0:
            pass
            {store_numbers}
        {write}
        group += cuda.gridDim.x
"""

_FOLD = """
{start}
{own_part}
{share}
cuda.syncthreads()
half = width >> 1
while half > 0:
    if member < half:
        neighbour = thread + (half << beside)
        {from_neighbour}
        {join}
        {share}
    cuda.syncthreads()
    half >>= 1
first = thread - (member << beside)
{from_first}
cuda.syncthreads()
"""


def _filled(template: str, **parts: str | Sequence[str]) -> list[str]:
    """Return the lines of a template, with `parts[name]` in place of each ``{name}``.

    A field whose part is a sequence of lines stands alone on its line; each line gets the indentation of the field.
    """
    lines: list[str] = []
    for line in template.strip().splitlines():
        part = parts.get(line.strip()[1:-1]) if line.strip().startswith("{") else None
        if part is None or isinstance(part, str):
            lines.append(line.format(**parts))
        else:
            indentation = line[: len(line) - len(line.lstrip())]
            lines += [indentation + each for each in part]
    return lines


# A function that takes the code of a formula's calls, and the code of the positions of their elements, and returns the
# code that uses the results of the calls.
_Used = Callable[[list[str], list[str]], list[str]]


class _Writer:
    """The writer of the kernel code of `loop`, for the dtypes of operands and results, and for `lanes` lanes."""

    def __init__(self, loop: RowLoop, dtypes: Sequence[np.dtype[Any] | None], lanes: int) -> None:
        self.loop, self.lanes = loop, lanes
        named = zip([*loop.operands, *loop.results], dtypes, strict=True)
        self.dtypes = {name: dtype for name, dtype in named if dtype is not None}
        self.number = CONVERSIONS[self.dtypes[loop.elements[0]].name]
        self.namespace: dict[str, Any] = {
            "cuda": cuda, "quotient": quotient, "number": self.number, "int64": np.int64,
            "undefined": self.number(np.nan), "accumulated": getattr(types, self.number.__name__),
        }  # fmt: skip
        for name, default in loop.columns.items():
            self.namespace[name] = self.number(default)

    def parameters(self) -> dict[str, Any]:
        """Return names and types of the kernel's addresses and constants: the parameters after the shape's."""
        found = {}
        for name, dtype in self.dtypes.items():
            if name in self.loop.constants:
                found[name] = getattr(types, dtype.name)
            else:
                found[f"at_{name}"] = types.int64
        return found

    def _size(self, name: str) -> int:
        return self.dtypes[name].itemsize

    def _place(self, name: str, position: str | int) -> str:
        """Return the code for an address: of the element or column operand `name`, at `position` in the row."""
        if name in self.loop.columns:
            return f"at_{name} + ({position}) * {self._size(name)}"
        step = "" if self.lanes > 1 else " * inner"  # with several lanes, rows are dense
        return f"at_{name} + (begin + ({position}){step}) * {self._size(name)}"

    def _loaded(self, name: str, place: str, lanes: int = 1) -> str:
        self.namespace[f"load_{name}_{lanes}"] = loaders[self.dtypes[name].name, lanes]
        return f"load_{name}_{lanes}({place})"

    def _stored(self, name: str, place: str, values: Sequence[str]) -> str:
        self.namespace[f"store_{name}"] = storers[self.dtypes[name].name, len(values)]
        return f"store_{name}({place}, {', '.join(values)})"

    def _moves(self, name: str) -> bool:
        return name in self.loop.elements or (name in self.loop.columns and name in self.dtypes)

    def _function(self, name: str, formula: Formula) -> None:
        """Add a formula to the kernel's namespace, as the function `name`."""
        record = Trace([f"in_{parameter}" for parameter in parameters(formula)])
        result = record.apply(formula, [Symbol(record, parameter) for parameter in record.inputs], self.number)
        record.results = tuple(map(record.name_of, result if isinstance(result, tuple) else (result,)))
        self.namespace[name] = device_function(record)

    def _pass(self, name: str, formula: Formula, used: _Used) -> list[str]:
        """Add `formula` to the namespace as `name`; return the code of a pass that calls it for a thread's elements."""
        self._function(name, formula)
        one = [f"j + {lane}" for lane in range(self.lanes)] if self.lanes > 1 else ["j"]
        lines = [f"j = part * part_extent + member * {self.lanes}"]
        if self.lanes == 1:  # several elements in a turn, so that no access waits for the previous access
            several = ["j", *(f"j + width * {i}" for i in range(1, _THREAD_ACCESSES))]
            lines += [f"while {several[-1]} < last:", *self._turn(name, formula, several, used)]
        return [*lines, "while j < last:", *self._turn(name, formula, one, used)]

    def _turn(self, name: str, formula: Formula, positions: list[str], used: _Used) -> list[str]:
        """Return the body of a pass: load the elements at `positions`, then the code from `used(calls, positions)`."""
        moving = [each for each in parameters(formula) if self._moves(each)]
        lines, calls = [], []
        for each in moving:
            if self.lanes > 1:
                values = ", ".join(f"{each}_{i}" for i in range(self.lanes))
                lines.append(f"{values} = {self._loaded(each, self._place(each, 'j'), self.lanes)}")
            else:
                for i, position in enumerate(positions):
                    lines.append(f"{each}_{i} = {self._loaded(each, self._place(each, position))}")
        for i, position in enumerate(positions):
            own = {**{each: f"{each}_{i}" for each in moving}, "j": position}
            calls.append(f"{name}({', '.join(own.get(each, each) for each in parameters(formula))})")
        lines += [*used(calls, positions), f"j += width * {len(positions)}"]
        return [f"    {line}" for line in lines]

    def _numbers(self) -> list[str]:
        lines = []
        for name in self.loop.numbers:
            value = self._loaded(name, f"at_{name} + row * {self._size(name)}")
            lines.append(f"{name} = int64({value})" if self.dtypes[name].kind in "iu" else f"{name} = {value}")
        for name, (source, position) in self.loop.picked.items():
            value = self._loaded(source, self._place(source, position)) if self._moves(source) else source
            lines += [f"{name} = undefined", f"if 0 <= {position} < extent:", f"    {name} = {value}"]
        return lines

    def _fold(self, fold: Fold) -> list[str]:
        names = list(fold.start)
        self.namespace |= {f"start_{name}": self.number(value) for name, value in fold.start.items()}

        def taken(calls: list[str], positions: list[str]) -> list[str]:
            others = ", ".join(f"other_{name}" for name in names)
            return [line for call in calls for line in (f"{others} = {call}", *self._joined(fold))]

        return _filled(
            _FOLD, start=[f"{name} = start_{name}" for name in names],
            own_part=self._pass("term", fold.term, taken),
            share=[f"shared_{name}[thread] = {name}" for name in names],
            from_neighbour=[f"other_{name} = shared_{name}[neighbour]" for name in names], join=self._joined(fold),
            from_first=[f"{name} = shared_{name}[first]" for name in names],
        )  # fmt: skip

    def _joined(self, fold: Fold) -> list[str]:
        names, lines, joined = list(fold.start), [], 0
        if fold.join is not None:
            self._function("join", fold.join)
            joined = len(parameters(fold.join)) // 2
            taken = names[:joined]
            lines.append(f"{', '.join(taken)} = join({', '.join([*taken, *(f'other_{name}' for name in taken)])})")
        return [*lines, *(f"{name} = {name} + other_{name}" for name in names[joined:])]

    def _finish(self, finish: Formula) -> list[str]:
        self._function("finish", finish)
        return [f"{', '.join(self.loop.finished)} = finish({', '.join(parameters(finish))})"]

    def _write(self, element: Formula) -> list[str]:
        def stored(calls: list[str], positions: list[str]) -> list[str]:
            if self.lanes > 1:
                return [self._stored("element_out", self._place("element_out", "j"), calls)]
            return [
                self._stored("element_out", self._place("element_out", position), [call])
                for call, position in zip(calls, positions, strict=True)
            ]

        return self._pass("element", element, stored)

    def source(self) -> str:
        """Return the kernel's code, which uses the names in `namespace`."""
        loop = self.loop
        store_numbers = [
            self._stored(f"{name}_out", f"at_{name}_out + (part * rows + row) * {self._size(f'{name}_out')}", [name])
            for name in loop.stored
        ]
        between = ["outer = quotient(row, inner)", "begin = outer * extent * inner + row - outer * inner"]
        lines = _filled(
            _KERNEL, parameters=", ".join(self.parameters()), threads=str(THREADS),
            shared=[f"shared_{name} = cuda.shared.array({THREADS}, accumulated)" for name in loop.fold.start]
            if loop.fold else [],
            begin_between_neighbours=[] if self.lanes > 1 else between,
            numbers=self._numbers(), fold=self._fold(loop.fold) if loop.fold else [],
            finish=self._finish(loop.finish) if loop.finish else [],
            store_numbers=store_numbers, write=self._write(loop.element) if loop.element else [],
        )  # fmt: skip
        return "\n".join(lines)


@functools.cache
def kernel(loop: RowLoop, dtypes: tuple[np.dtype[Any] | None, ...], lanes: int) -> Kernel:
    """Return the kernel of a loop for these dtypes of operands and results. A missing column has None as its dtype."""
    writer = _Writer(loop, dtypes, lanes)
    exec(compile(writer.source(), f"<{loop.name}>", "exec"), writer.namespace)
    return Kernel(writer.namespace["kernel"], loop.name, [*[types.int64] * 8, *writer.parameters().values()])


class Rows(NamedTuple):
    """The rows of an (outer, n, inner) array along n. If `parts` > 1, rows are only folded, each in `parts` parts."""

    outer: int
    n: int
    inner: int = 1
    parts: int = 1

    @classmethod
    def along(cls, shape: Shape, axis: int) -> "Rows":
        """Return the rows of an array along an axis."""
        axis %= len(shape)
        return cls(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))

    @property
    def units(self) -> int:
        """The number of rows."""
        return self.outer * self.inner


def threads_of_row(n: int, inner: int, lanes: int = 1) -> int:
    """Return how many threads share a row: a power of two, at most all threads of a block.

    The row has `n` elements, `inner` elements apart. A thread reads `lanes` adjacent elements at once.
    """
    wanted = n // (_THREAD_ACCESSES * lanes)
    if inner > 1:
        wanted = min(wanted, THREADS // min(inner, _NEIGHBOURS))
    return min(THREADS, 1 << max(0, wanted.bit_length() - 1))


@functools.lru_cache(maxsize=4096)
def _prepare(
    loop: RowLoop, rows: Rows, dtypes: tuple[np.dtype[Any] | None, ...], is_aligned: bool
) -> tuple[Kernel, int, tuple[int, ...]]:
    """Return the kernel, the number of blocks to run, and the kernel's first arguments, which describe the rows."""
    lanes = 1
    if is_aligned and rows.inner == rows.parts == 1:
        names = [*loop.operands, *loop.results]
        moving = {*loop.elements, *loop.columns, "element_out"}
        lanes = ACCESS_BYTES // max(d.itemsize for name, d in zip(names, dtypes, strict=True) if d and name in moving)
        while rows.n % lanes:
            lanes //= 2
    part_length = -(-rows.n // rows.parts)
    width = threads_of_row(part_length, rows.inner, lanes)
    at_once = THREADS // width
    beside, apart = (0, width.bit_length() - 1) if rows.inner == 1 else (at_once.bit_length() - 1, 0)
    groups = -(-rows.units // at_once) * rows.parts
    words = (rows.units, rows.n, rows.inner, rows.parts, part_length, width, beside, apart)
    return kernel(loop, dtypes, lanes), blocks_for(groups), words


def run(
    loop: RowLoop, rows: Rows, operands: Sequence[DeviceArray | np.generic | None], results: Sequence[DeviceArray]
) -> None:
    """Run `loop`: compute `results`, in place, from `operands`.

    Results are in the order of `loop.results`, operands in the order of `loop.operands`. Arrays are dense. A constant
    is given as a number, a missing column as None. If rows have several parts, each result in `loop.stored` gets a
    value for each part of each row: first all values of the first part, and so on.
    """
    if not rows.units:
        return
    dtypes: list[np.dtype[Any] | None] = []
    given: list[Any] = []
    addresses = 0
    for operand in (*operands, *results):
        dtypes.append(None if operand is None else operand.dtype)
        if type(operand) is DeviceArray:
            given.append(operand.address)
            addresses |= operand.address
        elif operand is not None:
            given.append(operand)
    prepared, blocks, words = _prepare(loop, rows, tuple(dtypes), addresses % ACCESS_BYTES == 0)
    prepared.launch(blocks, *words, *given)
