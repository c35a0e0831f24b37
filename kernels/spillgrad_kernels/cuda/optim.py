"""Update parameters in place on a device, by the CPU's formulas, and compute the norm for gradient clipping.

Clipping does not wait for the device: the results of `squares_on_device` and `clipping`, and the factor that `scaled`
takes, are arrays on the device.
"""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.array import empty
from spillgrad_kernels.cuda.elementwise import compute, contiguous, device_function, traced
from spillgrad_kernels.cuda.jit.compile import THREADS, Kernel, cuda, device, for_each_group
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, WORD_BYTES, loaders, quotient, storers
from spillgrad_kernels.cuda.reductions import add_up_block
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.jit.compile import FLOATS
from spillgrad_kernels.tables.formula import Formula
from spillgrad_kernels.tables.optim import Update, adam, adamw, lion, scaled, sgd
from spillgrad_kernels.tables.scalar_math import sqrt, where

__all__ = ["adam", "adamw", "clipping", "lion", "run", "scaled", "sgd", "squares_on_device", "sums_of_squares"]

# The number of elements of a part, which a block adds up or updates. It is the same on all devices, and so are results.
_PART_ELEMENTS = 1 << 14
# The number of words that one launch writes to the device.
_WORDS_AT_ONCE = 128


def run(updates: Iterable[Update]) -> None:
    """Update the arrays of all `updates` in place, with one or two launches for each formula and dtype.

    Arrays may have any layout. The numbers of an update may be device arrays without dimensions.
    """
    groups: dict[Any, list[Update]] = {}
    for update in updates:
        arrays = (update.param, update.grad, *update.state)
        dtype = update.param.dtype
        if not all([a.layout.dense and a.dtype == dtype for a in arrays]) or dtype not in FLOATS:
            _run_alone(update)
            continue
        lanes = ACCESS_BYTES // dtype.itemsize
        if update.param.size % lanes or any([a.address % ACCESS_BYTES for a in arrays]):
            lanes = 1
        numbers = tuple([id(number) if isinstance(number, DeviceArray) else number for number in update.numbers])
        groups.setdefault((update.formula, dtype, numbers, lanes), []).append(update)
    for (_, _, _, lanes), group in groups.items():
        if len(group) == 1:
            _run_alone(group[0])
        else:
            _run_together(group, lanes)


def _numbers(update: Update) -> list[Any]:
    return [n if isinstance(n, DeviceArray) else update.param.dtype.type(n) for n in update.numbers]


def _run_alone(update: Update) -> None:
    formula, param, grad, state, _ = update
    outs = (param, *state)
    operands = (param, grad, *state, *_numbers(update))
    compute(formula, formula.__name__, operands, tuple([out.dtype for out in outs]), outs)


def _run_together(group: list[Update], lanes: int) -> None:
    """Run updates with the same formula and numbers, in place. All arrays are dense and have one dtype."""
    first, words, parts = group[0], [], 0
    for update in group:
        arrays = (update.param, update.grad, *update.state)
        words += [parts, update.param.size, *[a.address for a in arrays]]
        parts += -(-update.param.size // _PART_ELEMENTS)
    if not parts:
        return
    numbers = _numbers(first)
    kinds = tuple([number.dtype.name if isinstance(number, DeviceArray) else None for number in numbers])
    updating(first.formula, first.param.dtype, 2 + len(first.state), kinds, lanes).run_blocks(
        parts, len(group), _PART_ELEMENTS, _on_device(tuple(words)).address,
        *[number.address if isinstance(number, DeviceArray) else number for number in numbers],
    )  # fmt: skip


@functools.cache
def updating(
    formula: Formula, dtype: np.dtype[Any], arrays: int, numbers: tuple[str | None, ...], lanes: int
) -> Kernel:
    """Return the kernel that updates many parameters by `formula`, `lanes` adjacent elements at a time, in place.

    The kernel's argument `table` is the address of a table with a row of words for each parameter: the number of the
    parameter's first part, the parameter's size, and the addresses of `arrays` arrays (parameter, gradient and state).
    `numbers` has None for each number that is passed by value, and a dtype's name for each number that is passed by
    address.
    """
    size, every = dtype.itemsize, range(lanes)
    values = [[f"x{i}_{lane}" for lane in every] for i in range(arrays)]
    results = [values[i] for i in range(arrays) if i != 1]  # all arrays but the gradient
    given = [f"number{i}" for i in range(len(numbers))]
    lines = [
        f"def update({', '.join(['part', 'rows', 'length', 'table', *given])}):",
        *[f"    number{i} = load_number{i}(number{i})" for i, lies in enumerate(numbers) if lies],
        "    at = find_row(table, rows, part)",
        "    begin = (part - load_word(at)) * length",
        f"    n = load_word(at + {WORD_BYTES})",
        "    last = begin + length if begin + length < n else n",
        *[f"    a{i} = load_word(at + {(2 + i) * WORD_BYTES})" for i in range(arrays)],
        f"    j = begin + cuda.threadIdx.x * {lanes}",
        "    while j < last:",
        *[f"        {', '.join(values[i])} = load(a{i} + j * {size})" for i in range(arrays)],
        *[
            f"        {', '.join(result[lane] for result in results)} = "
            f"formula({', '.join([*[value[lane] for value in values], *given])})" for lane in every
        ],
        *[f"        store(a{i} + j * {size}, {', '.join(values[i])})" for i in range(arrays) if i != 1],
        f"        j += {THREADS * lanes}",
    ]  # fmt: skip
    namespace: dict[str, Any] = {
        "cuda": cuda, "find_row": row_finder(2 + arrays), "load_word": loaders["int64", 1],
        "formula": device_function(traced(formula, dtype)), "load": loaders[dtype.name, lanes],
        "store": storers[dtype.name, lanes],
        **{f"load_number{i}": loaders[lies, 1] for i, lies in enumerate(numbers) if lies},
    }  # fmt: skip
    exec(compile("\n".join(lines), f"<{formula.__name__}>", "exec"), namespace)
    kinds = [*[types.int64] * 4, *[types.int64 if lies else getattr(types, dtype.name) for lies in numbers]]
    return Kernel(for_each_group(namespace["update"]), f"{formula.__name__.strip('_')}_together", kinds)


@functools.cache
def row_finder(words: int) -> Any:
    """Return the device function find_row(table, rows, part): the address of the table's row that `part` belongs to.

    A row has `words` words; the first word is the number of the row's first part.
    """
    load_word, row_bytes = loaders["int64", 1], words * WORD_BYTES

    def find_row(table: int, rows: int, part: int) -> int:
        row, beyond = 0, rows  # bisect for the last row whose first part is not after `part`
        while beyond - row > 1:
            middle = quotient(row + beyond, 2)
            if load_word(table + middle * row_bytes) <= part:
                row = middle
            else:
                beyond = middle
        return table + row * row_bytes

    return device(find_row)


@functools.cache
def writing() -> Kernel:
    """Return the kernel that writes its arguments to device memory: unlike a copy from the host, it never waits."""
    names = [f"word{i}" for i in range(_WORDS_AT_ONCE)]
    lines = [f"    store(at + {i * WORD_BYTES}, {name})" for i, name in enumerate(names)]
    namespace: dict[str, Any] = {"store": storers["int64", 1]}
    exec("\n".join([f"def write_words(at, {', '.join(names)}):", *lines]), namespace)
    return Kernel(namespace["write_words"], threads=1)


@functools.lru_cache(maxsize=64)  # gradients mostly have the same addresses as in the previous step
def _on_device(words: tuple[int, ...]) -> DeviceArray:
    """Return a device array that begins with `words`. Do not change it: later calls with equal words return it."""
    made = empty((-(-len(words) // _WORDS_AT_ONCE) * _WORDS_AT_ONCE,), np.int64)
    for start in range(0, len(words), _WORDS_AT_ONCE):
        some = words[start : start + _WORDS_AT_ONCE]
        writing().launch(1, made.address + start * WORD_BYTES, *some, *[0] * (_WORDS_AT_ONCE - len(some)))
    return made


@functools.cache
def adding(dtype: np.dtype[Any], squares: bool) -> Kernel:
    """Return the kernel that adds up the elements, or their squares if `squares`, of each part of many arrays.

    Sums are float64. The kernel's argument `table` is the address of three words for each array: the number of the
    array's first part, the array's size and the array's address.
    """
    load, load_word, store, size = loaders[dtype.name, 1], loaders["int64", 1], storers["float64", 1], dtype.itemsize
    find_row = row_finder(3)

    def add_parts(part: int, arrays: int, length: int, table: int, sums: int) -> None:
        shared = cuda.shared.array(THREADS, types.float64)
        thread = cuda.threadIdx.x
        at = find_row(table, arrays, part)
        n, a = load_word(at + WORD_BYTES), load_word(at + 2 * WORD_BYTES)
        i = (part - load_word(at)) * length + thread
        last = i - thread + length if i - thread + length < n else n
        total = np.float64(0)
        while i < last:
            x = np.float64(load(a + i * size))
            total += x * x if squares else x
            i += THREADS
        shared[thread] = total
        add_up_block(shared)
        if thread == 0:
            store(sums + part * WORD_BYTES, shared[0])
        cuda.syncthreads()

    return Kernel(for_each_group(add_parts), f"add_{'squares' if squares else 'parts'}_{dtype.name}")


def squares_on_device(arrays: Sequence[DeviceArray]) -> DeviceArray:
    """Compute `sums_of_squares` without waiting for the device, and return the sums as an array on the device.

    Shapes: result (n,), float64, for n arrays.
    """
    if not arrays:
        return empty((0,), np.float64)
    if arrays[0].dtype not in FLOATS or any(a.dtype != arrays[0].dtype for a in arrays):
        listed = ", ".join(sorted({str(a.dtype) for a in arrays}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    dense = [contiguous(a) for a in arrays]
    # An empty array has one part, without elements.
    starts = [0, *itertools.accumulate(max(1, -(-a.size // _PART_ELEMENTS)) for a in dense)]
    partials, sums = empty((starts[-1],), np.float64), empty((len(dense),), np.float64)
    _add(dense[0].dtype, True, starts, [(a.size, a.address) for a in dense], _PART_ELEMENTS, partials)
    parts = [(stop - start, partials.address + start * WORD_BYTES) for start, stop in itertools.pairwise(starts)]
    _add(partials.dtype, False, range(len(parts) + 1), parts, starts[-1], sums)
    return sums


def _add(
    dtype: np.dtype[Any], squares: bool, starts: Sequence[int], arrays: list[tuple[int, int]], length: int,
    sums: DeviceArray,
) -> None:  # fmt: skip
    """Write the sum of each part, of `length` elements, to `sums`; if `squares`, the sum of the squares.

    `arrays` holds (size, address) of each array. `starts` holds the number of each array's first part, then the number
    of parts.
    """
    table = _on_device(tuple([word for start, array in zip(starts, arrays, strict=False) for word in (start, *array)]))
    adding(dtype, squares).run_blocks(starts[-1], len(arrays), length, table.address, sums.address)


def sums_of_squares(arrays: Sequence[DeviceArray]) -> list[float]:
    """Return the sum of the squared elements of each array, accumulated in float64; all arrays have one dtype.

    Waits for the device.
    """
    return squares_on_device(arrays).to_host().tolist()  # type: ignore[no-any-return]


def _clipping(total: Any, max_norm: Any) -> Any:
    norm = sqrt(total)
    factor = max_norm / (norm + 1e-6)
    return norm, where(factor >= 1, 1, factor)  # a NaN norm gives a NaN factor, so that the NaN is not hidden


def clipping(squares: DeviceArray, max_norm: float, dtype: Any) -> tuple[DeviceArray, DeviceArray]:
    """Return (norm, factor) on the device: the total norm of all arrays, and the factor that limits it to `max_norm`.

    Shapes: squares (n,), returned by `squares_on_device`; norm (float64) and factor (of `dtype`) have no dimensions.
    """
    total = sum_over(squares, (0,))
    norm, factor = compute(_clipping, "clipping", [total, np.float64(max_norm)], (np.float64, dtype))
    return norm, factor
