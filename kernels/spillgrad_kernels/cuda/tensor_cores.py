"""The matrix product on tensor cores, for half precision, and for float32 rounded to tf32 if `precision` permits that.

Devices of compute capability 8.0 and later have tensor cores. A block of warps computes a tile of C; each warp computes
a part of this tile. One mma instruction of a warp multiplies 16 rows of A by 8 columns of B, of depth 16 along K, or 8
for tf32. Products are exact, and sums are float32.

Shared memory holds the tiles of A and B for several steps along K, each in its stage. While the warps multiply the
tiles of one stage, the device copies those of later steps from global memory (cp.async), without registers. Tiles that
cannot be copied so, because accesses of 16 bytes are not aligned or because numbers are rounded, pass through
registers. `warp_instructions` has the instructions.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import warp_instructions as instructions
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, loaders, shared_loaders, shared_storers
from spillgrad_kernels.cuda.precision import tf32_is_allowed
from spillgrad_kernels.cuda.warp_instructions import COLUMNS, ROWS, WARP

NEIGHBOURS = 2  # a thread holds pairs of adjacent sums of a row of C


class Tile(NamedTuple):
    """The tile sizes of a product: rows and columns of C for a block and a warp, and the depth of a step along K.

    Shared memory has tiles of `stages` steps. A multiprocessor runs `resident` blocks at once. K is cut until a product
    has about `wanted` blocks.
    """

    rows: int
    columns: int
    warp_rows: int
    warp_columns: int
    depth: int
    stages: int
    resident: int = 2
    wanted: int = 128

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        return WARP * (self.rows // self.warp_rows) * (self.columns // self.warp_columns)


class Kind(NamedTuple):
    """A dtype that tensor cores multiply: its `name` in PTX, and the `depth` along K of one mma instruction.

    Products whose operands pass through registers have the tile `ragged_tile`: more threads have more registers.
    """

    name: str
    itemsize: int
    depth: int
    tile: Tile
    ragged_tile: Tile

    @property
    def width(self) -> int:
        """The number of elements in one access."""
        return ACCESS_BYTES // self.itemsize


_HALF_TILE = Tile(32, 16, 16, 16, 32, 3) if SIMULATED else Tile(128, 128, 64, 64, 32, 3)
_RAGGED_TILE = _HALF_TILE if SIMULATED else _HALF_TILE._replace(warp_rows=32, resident=1, wanted=512)
_TF32_TILE = Tile(32, 16, 16, 16, 16, 2) if SIMULATED else Tile(128, 128, 64, 64, 16, 2)
KINDS = {
    "float16": Kind("f16", 2, 16, _HALF_TILE, _RAGGED_TILE), "bfloat16": Kind("bf16", 2, 16, _HALF_TILE, _RAGGED_TILE),
    "float32": Kind("tf32", 4, 8, _TF32_TILE, _TF32_TILE),
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


_multiply = {dtype: instructions.multiplier(kind.name, kind.depth) for dtype, kind in KINDS.items()}


def copies(dtype: str, lanes: int) -> bool:
    """Return whether tiles of an operand of `dtype`, with accesses of `lanes` elements, are copied by cp.async."""
    return KINDS[dtype].itemsize == 2 and lanes == KINDS[dtype].width


def tile_for(dtype: str, lanes: Iterable[int]) -> Tile:
    """Return the tile of products of `dtype` whose operands have accesses of `lanes` elements."""
    kind = KINDS[dtype]
    return kind.tile if all(copies(dtype, each) for each in lanes) else kind.ragged_tile


def names(dtype: str, a_along: bool, b_along: bool) -> dict[str, Any]:
    """Return a dict from names in a kernel's generated code to the functions and constants that they stand for."""
    return {
        "multiply": _multiply[dtype], "rounded": instructions.rounded, "paired": instructions.paired,
        "read_a": instructions.load_matrices if a_along else instructions.load_turned,
        "read_b": instructions.load_matrices if b_along else instructions.load_turned,
        "read_word": shared_loaders["int32", 1], "store_words": shared_storers["int32", 4], "bytes": types.int8,
        "nothing": np.int32(0), "copy": instructions.copy, "close_group": instructions.close_group,
        "wait_for_all": instructions.waiter(0),
        "wait_for_stage": instructions.waiter(KINDS[dtype].tile.stages - 2),
    }  # fmt: skip


def loader(dtype: str, lanes: int) -> Any:
    """Return the device function that loads `lanes` adjacent elements as bits: 16 bytes in words, else one element."""
    return loaders["int32", 4] if lanes > 1 else loaders[f"int{8 * KINDS[dtype].itemsize}", 1]


class _Side(NamedTuple):
    """The layout in shared memory of one tile, which has `across` rows of A or `across` columns of B.

    If `along` is true, a row in shared memory lies along K, else across K, as the operand is read. A row consists of
    accesses of 16 bytes. Of half precision, their order in a row depends on the row, so that the 8 rows of a matrix
    that ldmatrix reads are in different banks; rows of tf32 are padded instead. If `copied`, cp.async fills the tiles.
    """

    name: str
    kind: Kind
    tile: Tile
    along: bool
    across: int
    copied: bool

    @property
    def accesses(self) -> int:
        """The number of accesses in a row."""
        return (self.tile.depth if self.along else self.across) // self.kind.width

    @property
    def row_bytes(self) -> int:
        """The number of bytes in a row, with padding."""
        padding = 0 if self.kind.itemsize == 2 else ACCESS_BYTES if self.along else 2 * ACCESS_BYTES
        return self.accesses * ACCESS_BYTES + padding

    @property
    def stage_bytes(self) -> int:
        """The number of bytes of a stage."""
        return self.row_bytes * (self.across if self.along else self.tile.depth)

    @property
    def turns(self) -> range:
        """The numbers of the accesses by which a thread fills its share of the tile."""
        return range(self.across * self.tile.depth // (self.kind.width * self.tile.threads))

    @property
    def by_matrices(self) -> bool:
        """Whether ldmatrix reads the fragments. ldmatrix cannot transpose elements of 4 bytes."""
        return self.along or self.kind.itemsize == 2

    def _place(self, row: str, access: str) -> str:
        """Return the code for the offset in bytes of an access of a row."""
        if self.kind.itemsize == 2:
            near = min(8, self.accesses)  # 8 accesses reach all banks
            access = f"(({access}) ^ (quotient({row}, {8 // near}) & {near - 1}))"
        return f"({row}) * {self.row_bytes} + ({access}) * {ACCESS_BYTES}"

    def opening(self) -> Iterator[str]:
        """Yield the code that finds where a thread's accesses are in a stage, and, if copied, in the operand."""
        name, tile, accesses = self.name, self.tile, self.accesses
        size, first, step, deeper = (
            ("m", "row0", "a_row", "a_column") if name == "a" else ("n", "column0", "b_column", "b_row")
        )
        for turn in self.turns:
            yield f"place = thread + {turn * tile.threads}"
            yield f"row, access = quotient(place, {accesses}), place & {accesses - 1}"
            yield f"{name}_to{turn} = {self._place('row', 'access')}"
            if self.copied:
                at, deep = (
                    ("row", f"access * {self.kind.width}") if self.along else (f"access * {self.kind.width}", "row")
                )
                yield f"at, deep = {first} + {at}, {deep}"
                yield f"{name}_from{turn} = {name} + at * {step} + (depth + deep) * {deeper}"
                yield f"{name}_deep{turn} = deep if at < {size} else k"  # no step copies what is outside
        if self.copied:
            yield f"{name}_further = {tile.depth} * {deeper}"

    def copying(self) -> Iterator[str]:
        """Yield the code by which a thread begins to copy its elements of the tile at position `ahead` along K."""
        for turn in self.turns:
            to = f"shared_{self.name} + into * {self.stage_bytes} + {self.name}_to{turn}"
            nbytes = f"{ACCESS_BYTES} if ahead + {self.name}_deep{turn} < k else 0"
            yield f"copy({to}, {self.name}_from{turn}, {nbytes})"
            yield f"{self.name}_from{turn} += {self.name}_further"

    def stashed(self) -> Iterator[str]:
        """Yield the code by which a thread stores its fetched elements in shared memory, float32 rounded to tf32."""
        for turn in self.turns:
            words = [f"{self.name}{turn}_{v}" for v in range(4)]
            if self.kind.itemsize == 4:
                words = [f"rounded({word})" for word in words]
            to = f"shared_{self.name} + stage * {self.stage_bytes} + {self.name}_to{turn}"
            yield f"store_words({to}, {', '.join(words)})"

    def lanes(self, first: str, firsts: range) -> Iterator[str]:
        """Yield the code that computes the offsets in shared memory from which a lane reads.

        The warp begins at row or column `first`; `firsts` are the rows or columns after it where fragments begin.
        ldmatrix reads four matrices. In A, the second lies below the first; in B, the second follows along K.
        """
        if not self.by_matrices:
            yield f"{self.name}_lane = (lane & 3) * {self.row_bytes} + ({first} + quotient(lane, 4)) * 4"
            return
        down, further = (3, 4) if self.name == "a" else (4, 3)
        below, right = f"((lane >> {down}) & 1)", f"((lane >> {further}) & 1)"
        if self.along:
            for deep in range(0, self.tile.depth, self.kind.depth):
                place = self._place(f"{first} + {below} * 8 + (lane & 7)", f"{deep // self.kind.width} + {right}")
                yield f"{self.name}_lane{deep} = {place}"
            return
        for begin in firsts:
            place = self._place(f"{right} * 8 + (lane & 7)", f"quotient({first} + {begin}, 8) + {below}")
            yield f"{self.name}_lane{begin} = {place}"

    def read(self, first: int, deep: int, words: list[str]) -> Iterator[str]:
        """Yield the code that reads a lane's four `words` of 16 rows of A or columns of B, for one mma depth."""
        name = self.name
        if self.by_matrices:
            own, other = (deep, first) if self.along else (first, deep)
            yield f"{', '.join(words)} = read_{name}(at_{name} + {name}_lane{own} + {other * self.row_bytes})"
            return
        for v, word in enumerate(words):
            down, further = (v & 1, v >> 1) if name == "a" else (v >> 1, v & 1)
            at = (deep + further * 4) * self.row_bytes + (first + down * 8) * 4
            yield f"{word} = read_word(at_{name} + {name}_lane + {at})"


def _walk_along_k(tile: Tile, sides: Sequence[_Side], fetch: Mapping[str, list[str]], multiply: list[str]) -> list[str]:
    """Return the code that walks along K. A step begins to copy tiles that are `stages` - 1 steps ahead.

    If a side is not copied, a step fetches the next tile to registers before it multiplies, and stores it after.
    """
    copying = [line for side in sides if side.copied for line in side.copying()]
    if copying:
        copying += ["close_group()", f"ahead += {tile.depth}"]
    fetched = [line for side in sides if not side.copied for line in fetch[side.name]]
    stashed = [line for side in sides if not side.copied for line in side.stashed()]
    lines = ["stage, into, ahead = 0, 0, depth"]
    for _ in range(tile.stages - 1):
        lines += [*copying, "into += 1"]
    lines += [*fetched, *stashed, "while depth < k:"]
    step = [
        *(["wait_for_stage()"] if copying else []),
        "cuda.syncthreads()",
        *copying,
        f"depth += {tile.depth}",
        *(["if depth < k:", *(f"    {line}" for line in fetched)] if fetched else []),
        *(f"at_{side.name} = shared_{side.name} + stage * {side.stage_bytes}" for side in sides),
        *multiply,
        "into = stage",
        f"stage = stage + 1 if stage < {tile.stages - 1} else 0",
        *(["if depth < k:", *(f"    {line}" for line in stashed)] if stashed else []),
    ]
    return [*lines, *(f"    {line}" for line in step), *(["wait_for_all()"] if copying else [])]


def source(
    kind: Kind, tile: Tile, along: tuple[bool, bool], copied: tuple[bool, bool], opening: list[str],
    fetch: Mapping[str, list[str]], finished: Callable[[str, list[str]], Iterator[str]],
) -> list[str]:  # fmt: skip
    """Return the body of a kernel; `along` and `copied` are those of A and B (see `_Side`).

    Code: `opening` finds the block's tile of C, and its first position along K; `fetch["a"]` and `fetch["b"]` fetch a
    step's tiles. `finished(column, sums)` yields the code that stores the adjacent `sums` of a row from the tile's
    `column` on.
    """
    a = _Side("a", kind, tile, along[0], tile.rows, copied[0])
    b = _Side("b", kind, tile, along[1], tile.columns, copied[1])
    down, across = tile.warp_rows // ROWS, tile.warp_columns // COLUMNS
    aligned = "" if SIMULATED else f", {8 * ACCESS_BYTES}"  # whole lines of all banks
    multiply: list[str] = []
    for deep in range(0, tile.depth, kind.depth):
        for i in range(down):
            multiply += a.read(i * ROWS, deep, [f"x{i}_{v}" for v in range(4)])
        for j in range(0, across, 2):
            multiply += b.read(j * COLUMNS, deep, [f"y{j + v // 2}_{v % 2}" for v in range(4)])
        for i in range(down):
            for j in range(across):
                sums = ", ".join(f"c{i}_{j}_{v}" for v in range(4))
                given = ", ".join([*(f"x{i}_{v}" for v in range(4)), *(f"y{j}_{v}" for v in range(2))])
                multiply.append(f"{sums} = multiply({given}, {sums})")
    lines = [
        f"array_a = cuda.shared.array({tile.stages * a.stage_bytes}, bytes{aligned})",
        f"array_b = cuda.shared.array({tile.stages * b.stage_bytes}, bytes{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"warp, lane = quotient(thread, {WARP}), thread & {WARP - 1}",
        f"warps_across = {tile.columns // tile.warp_columns}",
        "warp_row = quotient(warp, warps_across)",
        f"warp_column = (warp - warp_row * warps_across) * {tile.warp_columns}",
        f"warp_row *= {tile.warp_rows}",
        *a.lanes("warp_row", range(0, tile.warp_rows, ROWS)),
        *b.lanes("warp_column", range(0, tile.warp_columns, 2 * COLUMNS)),
        *opening,
        *a.opening(),
        *b.opening(),
        *(f"c{i}_{j}_{v} = zero" for i in range(down) for j in range(across) for v in range(4)),
        *_walk_along_k(tile, (a, b), fetch, multiply),
    ]
    for i in range(down):
        for below in range(2):
            lines += [f"row = row0 + warp_row + quotient(lane, 4) + {i * ROWS + below * 8}", "if row < m:"]
            for j in range(across):
                column = f"warp_column + (lane & 3) * 2 + {j * COLUMNS}"
                values = [f"c{i}_{j}_{2 * below + v}" for v in range(NEIGHBOURS)]
                lines += [f"    {line}" for line in finished(column, values)]
    return lines
