"""Optimizer updates, in place and in one pass over the memory of all arrays; and sums of squares to clip gradients."""

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import (
    array_at,
    data_of,
    element,
    floats_on_stack,
    prefer_widest_vectors,
    prefetching,
    promise_no_overlap,
    row_at,
    set_element,
)
from spillgrad_kernels.cpu.state_codes import CHUNK, CODERS, NO_SIZE, inverse_of, larger
from spillgrad_kernels.cpu.state_vectors import RUN, decoder, encoder, has_vectors
from spillgrad_kernels.device_array import DeviceArray, device_kernel, on_device
from spillgrad_kernels.jit.compile import FLOATS, REASSOCIATE, jit
from spillgrad_kernels.tables.formula import Formula, parameters
from spillgrad_kernels.tables.optim import Update, adam, adamw, lion, scaled, sgd
from spillgrad_kernels.tables.state_codes import BLOCK, ENTRIES, KINDS, Encoded, entries, of_bits
from spillgrad_kernels.threads.dispatch import Kernel, parallel_for

__all__ = ["CHUNK", "adam", "adamw", "lion", "run", "scaled", "sgd", "squares_of_chunks", "sums_of_squares"]

# The number of elements that pays for another thread: 3 to 6 microseconds of work.
_GRAIN = 2 * CHUNK
# Loops over encoded state fetch runs of `RUN` elements, `_AHEAD` elements before they need them: at less, memory is
# late, and at more, the cache of the core is full.
_AHEAD = 512


def _loop(formula: Formula, states: int) -> Any:
    """Return the compiled loop that applies an optimizer's formula, in place, to parts of five arrays.

    The arrays are the parameter, its gradient and three states. The formula has `states` states, from 0 to 3; the loop
    does not read a state that the formula lacks.
    """
    arrays = ["param", "grad", "state0", "state1", "state2"]
    operands = [f"{array}[j]" for array in arrays[: 2 + states]]
    numbers = [f"n{i}" for i in range(len(parameters(formula)) - len(operands))]
    lines = [
        f"def loop({', '.join(arrays)}, numbers):",
        *(f"    {number} = numbers[{i}]" for i, number in enumerate(numbers)),
        "    for j in range(param.size):",
        f"        {', '.join([operands[0], *operands[2:]])} = formula({', '.join([*operands, *numbers])})",
    ]
    namespace: dict[str, Any] = {"formula": formula, "__name__": __name__}
    exec(compile("\n".join(lines), f"<{formula.__name__}>", "exec"), namespace)
    return jit(namespace["loop"], name=f"optim.{formula.__name__}")


@functools.cache
def _over_arrays(formula: Formula, states: int) -> Kernel:
    """Return the kernel that applies a formula with `states` states to chunks of many parameters, in place.

    The kernel's argument `table` has a row for each parameter: the number of the parameter's first chunk, its size in
    elements, and the ids of its five arrays (see `_loop`).
    """
    loop = _loop(formula, states)

    def kernel(start: int, stop: int, like: Any, table: Any, numbers: Any) -> None:
        row = 0
        width = like.itemsize
        for chunk in range(start, stop):
            while row + 1 < len(table) and table[row + 1, 0] <= chunk:
                row += 1
            begin = (chunk - table[row, 0]) * CHUNK
            count = min(CHUNK, table[row, 1] - begin)
            loop(
                array_at(like, data_of(table[row, 2]) + begin * width, count),
                array_at(like, data_of(table[row, 3]) + begin * width, count),
                array_at(like, data_of(table[row, 4]) + begin * width, count),
                array_at(like, data_of(table[row, 5]) + begin * width, count),
                array_at(like, data_of(table[row, 6]) + begin * width, count),
                numbers[row],
            )

    return jit(kernel, name=f"optim.{formula.__name__}.over_arrays")


def _encoded_loop(formula: Formula, kinds: Sequence[str]) -> Any:
    """Return the compiled loop that applies an optimizer's formula to blocks of arrays with encoded state, in place.

    It gets rows of the parameter, its gradient, and of each state the codes and the scales, with the array of the
    `entries`. The rows have `count` elements, and `left` until the parameter ends.

    Where codes have scales, a block of new state is on the stack until its scale is known, and is encoded while the
    formula runs on the next block: the processor divides and takes roots in one unit, and looks up codes in another.
    Where the processor can, `state_vectors` decodes and encodes whole runs. Such a loop is long, so the processor alone
    reads too few elements ahead.
    """
    states = range(len(kinds))
    scaled = [i for i in states if KINDS[kinds[i]].block]
    in_vectors = scaled if has_vectors() else []
    numbers = [f"n{i}" for i in range(len(parameters(formula)) - 2 - len(kinds))]

    def apply(on_stack: list[int]) -> list[str]:
        """Return the lines for an element: the states `on_stack` are there, decoded."""
        decoded = [
            f"element(old{i}, j)" if i in on_stack else
            f"decode{i}(element(codes{i}, at + j), {f'scale{i}' if i in scaled else 'ZERO'})"
            for i in states
        ]  # fmt: skip
        operands = ["element(param, at + j)", "grad", *decoded, *numbers]
        return [
            "grad = element(gradient, at + j)",
            f"{', '.join(['x', *[f'value{i}' for i in states]])} = formula({', '.join(operands)})",
            "set_element(param, at + j, x)",
            *[
                f"set_element(new{i}, j, value{i})" if i in scaled else
                f"set_element(codes{i}, at + j, encode{i}(value{i}, ZERO, entries{i}, x, grad))"
                for i in states
            ],
        ]  # fmt: skip

    encode = [
        f"set_element(codes{i}, last + j, encode{i}(element(new{i}, j), inverse{i}, entries{i}, ZERO, ZERO))"
        for i in scaled
    ]
    encode_runs = [f"encode_run{i}(new{i}, run, inverse{i}, codes{i}, last + run)" for i in in_vectors]
    decode_runs = [f"decode_run{i}(codes{i}, at + run, scale{i}, old{i}, run)" for i in in_vectors]
    rows = ["param", *[f"codes{i}" for i in states]]

    def indented(by: int, *lines: str) -> list[str]:
        return [" " * by + line for line in lines]

    def loop_over(indices: str, body: list[str]) -> list[str]:
        return [f"for j in range({indices}):", *indented(4, *body)] if body else []

    if in_vectors:
        runs = "size // RUN * RUN"
        of_run = ["if 0 < at:", *indented(4, *encode_runs), *decode_runs, *loop_over("run, run + RUN", apply(scaled))]
        decode = [f"set_element(old{i}, j, decode{i}(element(codes{i}, at + j), scale{i}))" for i in scaled]
        of_rest = [*loop_over("runs, size", decode), *loop_over("runs, size", apply(scaled))]
    else:
        runs = "BLOCK if 0 < at and size == BLOCK else 0"
        of_run = loop_over("run, run + RUN", [*encode, *apply([])])
        of_rest = loop_over("runs, size", apply([]))
    arrays = ", ".join([f"codes{i}, scales{i}, entries{i}" for i in states])
    lines = [
        f"def loop(param, gradient, count, left, {arrays}, numbers):",
        *indented(4, "promise_no_overlap()", "prefer_widest_vectors()"),
        *indented(4, *[f"{number} = numbers[{i}]" for i, number in enumerate(numbers)]),
        *indented(4, *[f"old{i}, new{i}, inverse{i} = on_stack{i}(), on_stack{i}(), ZERO" for i in scaled]),
        "    for at in range(0, count, BLOCK):",
        "        last, size = at - BLOCK, min(BLOCK, count - at)",
        f"        runs = {runs}",
        "        ahead = at + AHEAD if at + BLOCK + AHEAD <= left else at",
        *indented(8, *[f"scale{i}, largest{i} = element(scales{i}, at // BLOCK), NO_SIZE" for i in scaled]),
        "        for run in range(0, runs, RUN):",
        "            prefetch_to_read(gradient, ahead + run)",
        *indented(12, *[f"prefetch({row}, ahead + run)" for row in rows], *of_run),
        *indented(8, *loop_over("runs, min(at, BLOCK)", encode), *of_rest),
        *indented(8, *loop_over("size", [f"largest{i} = larger(largest{i}, element(new{i}, j))" for i in scaled])),
        *indented(8, *[f"set_element(scales{i}, at // BLOCK, of_bits(largest{i}))" for i in scaled]),
        *indented(8, *[f"inverse{i} = inverse_of(of_bits(largest{i}))" for i in scaled]),
        "    last = (count - 1) // BLOCK * BLOCK",
        f"    runs = {'(count - last) // RUN * RUN' if in_vectors else '0'}",
        *(["    for run in range(0, runs, RUN):", *indented(8, *encode_runs)] if in_vectors else []),
        *indented(4, *loop_over("runs, count - last", encode)),
    ]
    namespace: dict[str, Any] = {
        "__name__": __name__, "AHEAD": _AHEAD, "BLOCK": BLOCK, "NO_SIZE": NO_SIZE, "RUN": RUN, "ZERO": np.float32(0),
        "element": element, "formula": formula, "inverse_of": inverse_of, "larger": larger, "min": min,
        "of_bits": of_bits, "prefer_widest_vectors": prefer_widest_vectors,
        "prefetch": prefetching(RUN, to_write=True), "prefetch_to_read": prefetching(RUN, to_write=False),
        "promise_no_overlap": promise_no_overlap, "range": range, "set_element": set_element,
    }  # fmt: skip
    for i, kind in enumerate(kinds):
        decode_one, encode_one = CODERS[kind]
        namespace |= {f"decode{i}": decode_one, f"encode{i}": encode_one, f"on_stack{i}": floats_on_stack(BLOCK)}
        if i in in_vectors:
            namespace |= {f"decode_run{i}": decoder(kind), f"encode_run{i}": encoder(kind)}
    exec(compile("\n".join(lines), f"<{formula.__name__}>", "exec"), namespace)
    return jit(namespace["loop"], name=f"optim.{formula.__name__}.{'.'.join(kinds)}")


@functools.cache
def _over_encoded(formula: Formula, kinds: tuple[str, ...]) -> Kernel:
    """Return the kernel that applies a formula to chunks of many parameters whose state is encoded, in place.

    The kernel's argument `table` has a row for each parameter: the number of the parameter's first chunk, its size in
    elements, and the ids of the arrays of `_encoded_loop`.
    """
    namespace: dict[str, Any] = {
        "__name__": __name__, "CHUNK": CHUNK, "BLOCK": BLOCK, "ENTRIES": ENTRIES, "array_at": array_at,
        "data_of": data_of, "entry": np.zeros(1, np.int32), "loop": _encoded_loop(formula, kinds), "min": min,
        "row_at": row_at,
    }  # fmt: skip
    lines = [
        "def kernel(start, stop, like, table, numbers):",
        "    row = 0",
        "    for chunk in range(start, stop):",
        "        while row + 1 < len(table) and table[row + 1, 0] <= chunk:",
        "            row += 1",
        "        begin = (chunk - table[row, 0]) * CHUNK",
        "        count = min(CHUNK, table[row, 1] - begin)",
        "        loop(",
        "            row_at(like, data_of(table[row, 2]) + begin * like.itemsize, count),",
        "            row_at(like, data_of(table[row, 3]) + begin * like.itemsize, count),",
        "            count,",
        "            table[row, 1] - begin,",
    ]
    for i, kind in enumerate(kinds):
        namespace[f"codes{i}"] = codes = np.zeros(1, np.uint8 if KINDS[kind].block else np.uint16)
        codes_at = f"data_of(table[row, {4 + 3 * i}]) + begin * {codes.itemsize}"
        scales_at = f"data_of(table[row, {5 + 3 * i}]) + begin // BLOCK * like.itemsize"
        lines += [
            f"            row_at(codes{i}, {codes_at}, count),",
            f"            row_at(like, {scales_at}, (count + BLOCK - 1) // BLOCK),",
            f"            array_at(entry, data_of(table[row, {6 + 3 * i}]), ENTRIES),",
        ]
    source = "\n".join([*lines, "            numbers[row],", "        )"])
    exec(compile(source, f"<{formula.__name__}.over_encoded>", "exec"), namespace)
    return jit(namespace["kernel"], name=f"optim.{formula.__name__}.over_encoded.{'.'.join(kinds)}")


@on_device("optim")
def run(updates: Iterable[Update]) -> None:
    """Update the arrays of all `updates` in place, in one launch for each formula, dtype and way to encode state."""
    groups: dict[tuple[Formula, Any, tuple[str, ...]], list[Update]] = {}
    elsewhere = []
    for update in updates:
        if type(update.param) is DeviceArray:
            elsewhere.append(update)
        elif update.param.size:
            kinds = tuple([each.kind for each in update.state if type(each) is Encoded])
            groups.setdefault((update.formula, update.param.dtype, kinds), []).append(update)
    for (formula, dtype, kinds), group in groups.items():
        rows, chunks, elements = [], 0, 0
        for _, param, grad, state, _ in group:
            if kinds:
                ids = [id(array) for each in state for array in _arrays_of(each, param)]
            else:
                # In place of a state that the formula lacks, the loop gets the gradient, and does not read it as one.
                ids = [id(array) for array in (*state, grad, grad, grad)[:3]]
            rows.append((chunks, param.size, id(param), id(grad), *ids))
            chunks += -(-param.size // CHUNK)
            elements += param.size
        # Numbers have the dtype of the arrays. A float64 number would make the whole loop float64.
        numbers = np.array([update.numbers for update in group], dtype)
        grain = max(1, chunks * _GRAIN // elements)
        kernel = _over_encoded(formula, kinds) if kinds else _over_arrays(formula, len(group[0].state))
        parallel_for(kernel, chunks, grain, np.empty(0, dtype), np.array(rows, np.int64), numbers)
    if elsewhere:
        device_kernel(run)(elsewhere)


def _arrays_of(state: Encoded, otherwise: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the arrays of encoded state that its loop gets; `otherwise` stands for what a kind lacks."""
    kind, codes, scales = state
    return (codes, otherwise, otherwise) if scales is None else (codes, scales, entries(kind))


@jit(fastmath=REASSOCIATE)
def _sums_of_squares(start: int, stop: int, like: Any, table: Any, partials: Any) -> None:
    row = 0
    for chunk in range(start, stop):
        while row + 1 < len(table) and table[row + 1, 0] <= chunk:
            row += 1
        begin = (chunk - table[row, 0]) * CHUNK
        part = array_at(like, data_of(table[row, 2]) + begin * like.itemsize, min(CHUNK, table[row, 1] - begin))
        total = np.float64(0.0)
        for j in range(part.size):
            x = np.float64(part[j])
            total += x * x
        partials[chunk] = total


@on_device("optim")
def sums_of_squares(arrays: Sequence[np.ndarray]) -> list[float]:
    """Return each array's sum of squares, added up in float64. Raises TypeError unless all have the same float type."""
    return [float(sums[0] if sums.size == 1 else sums.sum()) for sums in squares_of_chunks(arrays)]


def squares_of_chunks(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the sums of squares of each array's runs of `CHUNK` elements, added up in float64.

    The sum of squares of an array is the sum of these. So parts of an array that begin at multiples of `CHUNK` give the
    bits of the whole. Raises TypeError unless all arrays have the same float type.
    """
    flat = [np.ascontiguousarray(a) for a in arrays]
    if not flat:
        return []
    if flat[0].dtype not in FLOATS or any(a.dtype != flat[0].dtype for a in flat):
        listed = ", ".join(sorted({str(a.dtype) for a in flat}))
        raise TypeError(f"sums_of_squares: got {listed}; all must be float32, or all float64")
    starts = [0, *itertools.accumulate(-(-a.size // CHUNK) for a in flat)]
    table = np.array([(start, a.size, id(a)) for start, a in zip(starts, flat, strict=False)], np.int64)
    sums = np.empty(starts[-1])
    grain = max(1, starts[-1] * _GRAIN // max(1, sum(a.size for a in flat)))
    parallel_for(_sums_of_squares, starts[-1], grain, np.empty(0, flat[0].dtype), table, sums)
    return [sums[start:stop] for start, stop in itertools.pairwise(starts)]
