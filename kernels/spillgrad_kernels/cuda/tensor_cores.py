"""The matrix product of half precision on tensor cores, which devices of capability 8.0 and later have.

A block of warps makes a tile of C, each warp a part of it. As in `matmul`, a step's parts of A and B lie in one half of
shared memory while the next step's are fetched; they lie there as in memory, along K or across, since `ldmatrix` reads
both. A warp multiplies 16 x 16 by 16 x 8 elements at once; products are exact, and sums are float32.

Source: NVIDIA, "Parallel Thread Execution ISA", sections on matrix fragments for mma.m16n8k16 and on ldmatrix.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba import cuda as numba_cuda
from numba.cuda import types

from spillgrad_kernels.cuda.compile import SIMULATED, cuda
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, HALF

WIDTH = 8  # neighbours of half precision in one access
NEIGHBOURS = 2  # sums of a row of C that a thread has beside each other
_WARP = 32
_ROWS, _COLUMNS, _DEPTH = 16, 8, 16  # of one multiplication


class Tile(NamedTuple):
    """How a product is cut: a block's rows and columns of C, a warp's, and the depth of a step."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    depth: int

    @property
    def threads(self) -> int:
        """How many threads a block has."""
        return _WARP * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)


TILE = Tile(32, 16, 16, 16, 32) if SIMULATED else Tile(128, 128, 64, 64, 32)


@functools.cache
def at_hand() -> bool:
    """Return whether the device has them."""
    return not SIMULATED and numba_cuda.get_current_device().compute_capability >= (8, 0)


if SIMULATED:
    from spillgrad_kernels.cuda.pointers import shared_loaders

    _held: dict[int, Any] = {}  # what each thread of the running block gives to its warp, then gets from it

    def _by_warp(own: Any, work: Callable[[list[Any]], list[Any]]) -> Any:
        """Return a thread's part of what its warp makes of what all give; the whole block must come here."""
        thread = cuda.threadIdx.x
        _held[thread] = own
        cuda.syncthreads()
        if thread % _WARP == 0:
            members = range(thread, thread + _WARP)
            _held.update(zip(members, work([_held[i] for i in members]), strict=True))
        cuda.syncthreads()
        return _held[thread]

    def _loader(turned: bool) -> Callable[..., Any]:
        load_row = shared_loaders["int16", 8]

        def of_warp(addresses: list[Any]) -> list[Any]:
            rows = np.array([load_row(address) for address in addresses], np.int16).reshape(4, 8, 8)
            rows = rows.transpose(0, 2, 1) if turned else rows
            return [tuple(words) for words in np.ascontiguousarray(rows).view(np.int32).reshape(4, _WARP).T]

        return lambda address: _by_warp(address, of_warp)

    def _multiplier(dtype: str) -> Callable[..., Any]:
        kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16

        def of_warp(given: list[Any]) -> list[Any]:
            words = np.array([own[:6] for own in given], np.int32)
            halves = words.view(kind).astype(np.float32).reshape(8, 4, 6, 2)
            # By row, pair, (below, further) and which of a pair; and the other way round for B.
            a = halves[:, :, :4].reshape(8, 4, 2, 2, 2).transpose(3, 0, 2, 1, 4).reshape(_ROWS, _DEPTH)
            b = halves[:, :, 4:].transpose(2, 1, 3, 0).reshape(_DEPTH, _COLUMNS)
            c = np.array([own[6:] for own in given], np.float32).reshape(8, 4, 2, 2)
            c += (a @ b).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3)
            return [tuple(sums) for sums in c.reshape(_WARP, 4)]

        return lambda *own: _by_warp(own, of_warp)

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    _INT32, _FLOAT = ir.IntType(32), ir.FloatType()

    def _assembled(builder: Any, code: str, result: Any, constraints: str, arguments: list[Any]) -> list[Any]:
        """Emit an instruction of four results; return them."""
        kind = ir.LiteralStructType([result] * 4)
        function = ir.FunctionType(kind, [argument.type for argument in arguments])
        assembly = ir.InlineAsm(function, code, constraints, side_effect="memory" in constraints)
        made = builder.call(assembly, arguments, attrs=("convergent",))
        return [builder.extract_value(made, i) for i in range(4)]

    def _loader(turned: bool) -> Callable[..., Any]:
        result = types.UniTuple(types.int32, 4)
        code = f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if turned else ''}.shared.b16 {{$0, $1, $2, $3}}, [$4];"

        def load_matrices(typing_context: Any, address: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                place = builder.trunc(arguments[0], _INT32)
                words = _assembled(builder, code, _INT32, "=r,=r,=r,=r,r,~{memory}", [place])
                return context.make_tuple(builder, result, words)

            return result(types.int64), codegen

        return intrinsic(load_matrices)  # type: ignore[no-any-return]

    def _multiplier(dtype: str) -> Callable[..., Any]:
        result = types.UniTuple(types.float32, 4)
        kind = "bf16" if dtype == "bfloat16" else "f16"
        code = (
            f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
            "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)

        def multiply(
            typing_context: Any, a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any,
            c3: Any,
        ) -> Any:  # fmt: skip
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                sums = _assembled(builder, code, _FLOAT, constraints, list(arguments))
                return context.make_tuple(builder, result, sums)

            return result(*[types.int32] * 6, *[types.float32] * 4), codegen

        return intrinsic(multiply)  # type: ignore[no-any-return]


# Of four matrices of 8 x 8 elements in shared memory, each thread gives the address of a row and gets a word of each.
_load_matrices, _load_turned = _loader(False), _loader(True)
_multiply = {dtype: _multiplier(dtype) for dtype in sorted(HALF)}


def names(dtype: str, a_along: bool, b_along: bool) -> dict[str, Any]:
    """Return what the code of a kernel calls."""
    return {
        "multiply": _multiply[dtype], "read_a": _load_matrices if a_along else _load_turned,
        "read_b": _load_matrices if b_along else _load_turned, "half_word": types.int16,
    }  # fmt: skip


def _pitch(tile: Tile, across: int, along: bool) -> int:
    """Return the elements from one row in shared memory to the next; the eight of a matrix lie in different banks."""
    return (tile.depth if along else across) + WIDTH


def _half(tile: Tile, across: int, along: bool) -> int:
    return _pitch(tile, across, along) * (across if along else tile.depth)


def _stashed(side: str, along: bool, tile: Tile, across: int) -> Iterator[str]:
    """Write how each thread puts into shared memory what it fetched."""
    per_row = (tile.depth if along else across) // WIDTH
    for turn in range(across * tile.depth // (WIDTH * tile.threads)):
        words = ", ".join(f"{side}{turn}_{v}" for v in range(4))
        yield f"place = thread + {turn * tile.threads}"
        yield f"at = quotient(place, {per_row}) * {_pitch(tile, across, along)} + (place & {per_row - 1}) * {WIDTH}"
        yield f"store_words(shared_{side} + (half_{side} + at) * 2, {words})"


def _read(side: str, along: bool, tile: Tile, across: int, first: int, step: int, words: list[str]) -> str:
    pitch = _pitch(tile, across, along)
    at = first * pitch + step if along else step * pitch + first
    return f"{', '.join(words)} = read_{side}(shared_{side} + (half_{side} + {side}_lane + {at}) * 2)"


def source(
    a_along: bool, b_along: bool, tile: Tile, opening: list[str], fetch: list[str],
    finished: Callable[[str, list[str]], Iterator[str]],
) -> list[str]:  # fmt: skip
    """Return the body of a kernel, given the code that finds the tile, fetches a step, and uses finished sums."""
    down, across = tile.warp_rows // _ROWS, tile.warp_columns // _COLUMNS
    half_a, half_b = _half(tile, tile.rows, a_along), _half(tile, tile.columns, b_along)
    aligned = "" if SIMULATED else f", {ACCESS_BYTES}"
    stash = [*_stashed("a", a_along, tile, tile.rows), *_stashed("b", b_along, tile, tile.columns)]

    def lane(side: str, along: bool, size: int, first: str, low: int) -> str:
        """Where a lane's row lies: of matrix lane >> 3, which the bit `low` of its number moves across K."""
        at, deep = f"({first} + ((lane >> {3 + low}) & 1) * 8", f"((lane >> {4 - low}) & 1) * 8"
        pitch = _pitch(tile, size, along)
        if along:
            return f"{side}_lane = {at} + (lane & 7)) * {pitch} + {deep}"
        return f"{side}_lane = ({deep} + (lane & 7)) * {pitch} + {at})"

    multiply = []
    for step in range(0, tile.depth, _DEPTH):
        for i in range(down):
            multiply.append(_read("a", a_along, tile, tile.rows, i * _ROWS, step, [f"x{i}_{v}" for v in range(4)]))
        for j in range(0, across, 2):
            words = [f"y{j + v // 2}_{v % 2}" for v in range(4)]
            multiply.append(_read("b", b_along, tile, tile.columns, j * _COLUMNS, step, words))
        for i in range(down):
            for j in range(across):
                sums = ", ".join(f"c{i}_{j}_{v}" for v in range(4))
                given = ", ".join([*(f"x{i}_{v}" for v in range(4)), *(f"y{j}_{v}" for v in range(2))])
                multiply.append(f"{sums} = multiply({given}, {sums})")
    lines = [
        f"array_a = cuda.shared.array({2 * half_a}, half_word{aligned})",
        f"array_b = cuda.shared.array({2 * half_b}, half_word{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"warp, lane = quotient(thread, {_WARP}), thread & {_WARP - 1}",
        f"warps_across = {tile.columns // tile.warp_columns}",
        "warp_row = quotient(warp, warps_across)",
        f"warp_column = (warp - warp_row * warps_across) * {tile.warp_columns}",
        f"warp_row *= {tile.warp_rows}",
        lane("a", a_along, tile.rows, "warp_row", 0),
        lane("b", b_along, tile.columns, "warp_column", 1),
        *opening,
        *(f"c{i}_{j}_{v} = zero" for i in range(down) for j in range(across) for v in range(4)),
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
        *(f"    {line}" for line in multiply),
        "    half ^= 1",
        f"    half_a, half_b = half * {half_a}, half * {half_b}",
        "    if depth < k:",
        *(f"        {line}" for line in stash),
        "    cuda.syncthreads()",
    ]
    for i in range(down):
        for below in range(2):
            lines += [f"row = row0 + warp_row + quotient(lane, 4) + {i * _ROWS + below * 8}", "if row < m:"]
            for j in range(across):
                column = f"warp_column + (lane & 3) * 2 + {j * _COLUMNS}"
                values = [f"c{i}_{j}_{2 * below + v}" for v in range(NEIGHBOURS)]
                lines += [f"    {line}" for line in finished(column, values)]
    return lines
