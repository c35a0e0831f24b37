"""The matrix product on tensor cores, for half precision, and for float32 rounded to tf32 if `precision` permits that.

Devices of compute capability 8.0 and later have tensor cores. A block of warps computes a tile of C; each warp computes
a part of this tile. As in `matmul`, one half of shared memory holds the tiles of A and B for one step along K, while
the tiles for the next step are fetched. One mma instruction of a warp multiplies 16 rows of A by 8 columns of B, of
depth 16 along K, or 8 for tf32. Products are exact, and sums are float32.

Source: NVIDIA, "Parallel Thread Execution ISA", sections on matrix fragments for mma.m16n8k16 and mma.m16n8k8 of tf32,
and on ldmatrix.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.jit.compile import SIMULATED, cuda
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, loaders, shared_loaders, shared_storers
from spillgrad_kernels.cuda.precision import tf32_is_allowed

NEIGHBOURS = 2  # a thread holds pairs of adjacent sums of a row of C
_WARP = 32
_ROWS, _COLUMNS = 16, 8  # the rows and columns of the result of one multiplication


class Tile(NamedTuple):
    """The tile sizes of a product: rows and columns of C for a block and a warp, and the depth of a step along K."""

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    depth: int

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        return _WARP * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)


class Kind(NamedTuple):
    """A dtype that tensor cores multiply: its `name` in PTX, and the `depth` along K of one mma instruction."""

    name: str
    itemsize: int
    depth: int
    tile: Tile

    @property
    def width(self) -> int:
        """The number of elements in one access."""
        return ACCESS_BYTES // self.itemsize


_HALF_TILE = Tile(32, 16, 16, 16, 32) if SIMULATED else Tile(128, 128, 32, 64, 32)
_TF32_TILE = Tile(32, 16, 16, 16, 16) if SIMULATED else Tile(128, 128, 64, 64, 16)
KINDS = {
    "float16": Kind("f16", 2, 16, _HALF_TILE), "bfloat16": Kind("bf16", 2, 16, _HALF_TILE),
    "float32": Kind("tf32", 4, 8, _TF32_TILE),
}  # fmt: skip


def used_for() -> tuple[str, ...]:
    """Return the names of the dtypes that tensor cores multiply: none if the device has no tensor cores."""
    if not at_hand():
        return ()
    return ("bfloat16", "float16", "float32") if tf32_is_allowed() else ("bfloat16", "float16")


@functools.cache
def at_hand() -> bool:
    """Return whether the device has tensor cores."""
    return not SIMULATED and driver.calls.capability() >= (8, 0)


if SIMULATED:
    _held: dict[int, Any] = {}  # for each thread of the running block: its argument, then its result

    def _by_warp(own: Any, work: Callable[[list[Any]], list[Any]]) -> Any:
        """Let one thread of each warp call `work` with a list of the warp's `own` values; return this thread's result.

        All threads of the block must call this function.
        """
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

    def _multiplier(kind: Kind) -> Callable[..., Any]:
        dtype = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32}[kind.name]

        def of_warp(given: list[Any]) -> list[Any]:
            words = np.array([own[:6] for own in given], np.int32)
            elements = words.view(dtype).astype(np.float32).reshape(8, 4, 6, -1)
            # The axes are the row, the thread (of four) in the row, (upper or lower half, left or right half), and the
            # element of a word. For B, columns take the place of rows.
            a = elements[:, :, :4].reshape(8, 4, 2, 2, -1).transpose(3, 0, 2, 1, 4).reshape(_ROWS, kind.depth)
            b = elements[:, :, 4:].transpose(2, 1, 3, 0).reshape(kind.depth, _COLUMNS)
            c = np.array([own[6:] for own in given], np.float32).reshape(8, 4, 2, 2)
            c += (a @ b).reshape(2, 8, 4, 2).transpose(1, 2, 0, 3)
            return [tuple(sums) for sums in c.reshape(_WARP, 4)]

        return lambda *own: _by_warp(own, of_warp)

    def _rounded(word: Any) -> Any:
        upper = np.array(word, np.int32).view(np.uint32) + np.uint32(1 << 12)
        return (upper & np.uint32(~((1 << 13) - 1) & 0xFFFFFFFF)).view(np.int32)

else:
    from llvmlite import ir
    from numba.cuda.extending import intrinsic

    _INT32, _FLOAT = ir.IntType(32), ir.FloatType()

    def _assembled(builder: Any, code: str, result: Any, constraints: str, arguments: list[Any]) -> list[Any]:
        """Emit the instruction `code`, which has four results; return the results."""
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

    def _multiplier(kind: Kind) -> Callable[..., Any]:
        result = types.UniTuple(types.float32, 4)
        code = (
            f"mma.sync.aligned.m16n8k{kind.depth}.row.col.f32.{kind.name}.{kind.name}.f32 "
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

    @intrinsic
    def _rounded(typing_context: Any, word: Any) -> Any:
        """Return the bits of a float32 rounded to the nearest tf32."""

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            assembly = ir.InlineAsm(ir.FunctionType(_INT32, [_INT32]), "cvt.rna.tf32.f32 $0, $1;", "=r,r")
            return builder.call(assembly, arguments)

        return types.int32(types.int32), codegen


# These functions load four matrices of 8 rows of 16 bytes from shared memory. Each thread passes the address of one
# row, and gets a word of each matrix. `_load_turned` transposes matrices of half precision.
_load_matrices, _load_turned = _loader(False), _loader(True)
_multiply = {dtype: _multiplier(kind) for dtype, kind in KINDS.items()}


def names(dtype: str, a_along: bool, b_along: bool) -> dict[str, Any]:
    """Return a dict from names in a kernel's generated code to the functions and constants that they stand for."""
    return {
        "multiply": _multiply[dtype], "read_a": _load_matrices if a_along else _load_turned,
        "read_b": _load_matrices if b_along else _load_turned, "read_word": shared_loaders["int32", 1],
        "rounded": _rounded, "element": getattr(types, f"int{8 * KINDS[dtype].itemsize}"),
        "load_a": loaders["int32", 4], "load_b": loaders["int32", 4], "store_words": shared_storers["int32", 4],
        "nothing": np.int32(0),
    }  # fmt: skip


class _Side(NamedTuple):
    """The layout in shared memory of one tile, which has `across` rows of A or `across` columns of B.

    If `along` is true, a row in shared memory lies along K, else across K, as the operand is read.
    """

    name: str
    kind: Kind
    along: bool
    across: int

    @property
    def pitch(self) -> int:
        """The number of elements in a row of shared memory, with padding that prevents bank conflicts."""
        return self.kind.tile.depth + self.kind.width if self.along else self.across + 8

    @property
    def elements(self) -> int:
        """The number of elements of the tile in shared memory, with padding."""
        return self.pitch * (self.across if self.along else self.kind.tile.depth)

    @property
    def by_matrices(self) -> bool:
        """Whether ldmatrix reads the fragments. ldmatrix cannot transpose elements of 4 bytes."""
        return self.along or self.kind.itemsize == 2

    def stashed(self) -> Iterator[str]:
        """Yield the code by which a thread stores its fetched elements in shared memory, float32 rounded to tf32."""
        width, tile = self.kind.width, self.kind.tile
        per_row = (tile.depth if self.along else self.across) // width
        for turn in range(self.across * tile.depth // (width * tile.threads)):
            words = [f"{self.name}{turn}_{v}" for v in range(4)]
            if self.kind.itemsize == 4:
                words = [f"rounded({word})" for word in words]
            yield f"place = thread + {turn * tile.threads}"
            yield f"at = quotient(place, {per_row}) * {self.pitch} + (place & {per_row - 1}) * {width}"
            yield f"store_words({self._address('at')}, {', '.join(words)})"

    def lane(self, first: str) -> str:
        """Return the code that computes the position in shared memory from which a lane reads first.

        ldmatrix reads four matrices. In A, the second lies below the first; in B, the second follows along K.
        """
        own = f"{self.name}_lane"
        if not self.by_matrices:
            return f"{own} = (lane & 3) * {self.pitch} + {first} + quotient(lane, 4)"
        down, further = (3, 4) if self.name == "a" else (4, 3)
        at = f"({first} + ((lane >> {down}) & 1) * 8"
        deep = f"((lane >> {further}) & 1) * {self.kind.width}"
        if self.along:
            return f"{own} = {at} + (lane & 7)) * {self.pitch} + {deep}"
        return f"{own} = ({deep} + (lane & 7)) * {self.pitch} + {at})"

    def read(self, first: int, deep: int, words: list[str]) -> Iterator[str]:
        """Yield the code that reads a lane's four `words` of 16 rows of A or columns of B, for one mma depth."""
        own = f"{self.name}_lane"
        if self.by_matrices:
            at = first * self.pitch + deep if self.along else deep * self.pitch + first
            yield f"{', '.join(words)} = read_{self.name}({self._address(f'{own} + {at}')})"
            return
        for v, word in enumerate(words):
            down, further = (v & 1, v >> 1) if self.name == "a" else (v >> 1, v & 1)
            at = (deep + further * 4) * self.pitch + first + down * 8
            yield f"{word} = read_word({self._address(f'{own} + {at}')})"

    def _address(self, at: str) -> str:
        return f"shared_{self.name} + (half_{self.name} + {at}) * {self.kind.itemsize}"


def walk_along_k(
    depth: int, half_a: int, half_b: int, fetch: list[str], stash: list[str], multiply: list[str]
) -> list[str]:
    """Return the code that walks along K in steps of `depth`.

    Each step fetches the next tiles, multiplies the tiles in one half of shared memory, then fills the other half.
    """
    return [
        "depth = 0",
        "half = 0",
        "half_a = half_b = 0",
        *fetch,
        *stash,
        "cuda.syncthreads()",
        "while depth < k:",
        f"    depth += {depth}",
        "    if depth < k:",
        *(f"        {line}" for line in fetch),
        *(f"    {line}" for line in multiply),
        "    half ^= 1",
        f"    half_a, half_b = half * {half_a}, half * {half_b}",
        "    if depth < k:",
        *(f"        {line}" for line in stash),
        "    cuda.syncthreads()",
    ]


def source(
    kind: Kind, a_along: bool, b_along: bool, opening: list[str], fetch: list[str],
    finished: Callable[[str, list[str]], Iterator[str]],
) -> list[str]:  # fmt: skip
    """Return the body of a kernel. Code: `opening` finds the block's tile of C, `fetch` fetches a step's tiles.

    `finished(column, sums)` yields the code that stores the adjacent `sums` of a row from the tile's `column` on.
    """
    tile = kind.tile
    a, b = _Side("a", kind, a_along, tile.rows), _Side("b", kind, b_along, tile.columns)
    down, across = tile.warp_rows // _ROWS, tile.warp_columns // _COLUMNS
    half_a, half_b = a.elements, b.elements
    aligned = "" if SIMULATED else f", {ACCESS_BYTES}"
    multiply: list[str] = []
    for deep in range(0, tile.depth, kind.depth):
        for i in range(down):
            multiply += a.read(i * _ROWS, deep, [f"x{i}_{v}" for v in range(4)])
        for j in range(0, across, 2):
            multiply += b.read(j * _COLUMNS, deep, [f"y{j + v // 2}_{v % 2}" for v in range(4)])
        for i in range(down):
            for j in range(across):
                sums = ", ".join(f"c{i}_{j}_{v}" for v in range(4))
                given = ", ".join([*(f"x{i}_{v}" for v in range(4)), *(f"y{j}_{v}" for v in range(2))])
                multiply.append(f"{sums} = multiply({given}, {sums})")
    lines = [
        f"array_a = cuda.shared.array({2 * half_a}, element{aligned})",
        f"array_b = cuda.shared.array({2 * half_b}, element{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"warp, lane = quotient(thread, {_WARP}), thread & {_WARP - 1}",
        f"warps_across = {tile.columns // tile.warp_columns}",
        "warp_row = quotient(warp, warps_across)",
        f"warp_column = (warp - warp_row * warps_across) * {tile.warp_columns}",
        f"warp_row *= {tile.warp_rows}",
        a.lane("warp_row"),
        b.lane("warp_column"),
        *opening,
        *(f"c{i}_{j}_{v} = zero" for i in range(down) for j in range(across) for v in range(4)),
        *walk_along_k(tile.depth, half_a, half_b, fetch, [*a.stashed(), *b.stashed()], multiply),
    ]
    for i in range(down):
        for below in range(2):
            lines += [f"row = row0 + warp_row + quotient(lane, 4) + {i * _ROWS + below * 8}", "if row < m:"]
            for j in range(across):
                column = f"warp_column + (lane & 3) * 2 + {j * _COLUMNS}"
                values = [f"c{i}_{j}_{2 * below + v}" for v in range(NEIGHBOURS)]
                lines += [f"    {line}" for line in finished(column, values)]
    return lines
