"""The matrix product on a device's ordinary cores.

As in `tensor_cores`, a block of threads computes a tile of C. A thread holds its elements of C in registers, in groups
of adjacent elements that fill one access. These groups are apart in the tile; thus the threads of a warp read shared
memory without bank conflicts.

Source: Goto & van de Geijn 2008, "Anatomy of high-performance matrix multiplication"; Volkov & Demmel 2008,
"Benchmarking GPUs to tune dense linear algebra".
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from spillgrad_kernels.cuda.jit.compile import SIMULATED
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES

# This many positions along K are multiplied in one turn of a loop, so that the compiler can read elements from shared
# memory while the cores multiply. A turn of four takes more registers, and is slower (H200).
_UNROLLED = 2


class Tile(NamedTuple):
    """The tile sizes of a product: rows and columns of C for a block and a thread, and the depth of a step along K.

    A multiprocessor runs `resident` blocks at once. K is cut until a product has about `wanted` blocks.
    """

    rows: int
    columns: int
    thread_rows: int
    thread_columns: int
    depth: int
    resident: int = 4
    wanted: int = 1024

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        return self.rows // self.thread_rows * (self.columns // self.thread_columns)


# The tile for each dtype of sums.
TILES = {
    "float32": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(128, 64, 8, 8, 8),
    "float64": Tile(8, 16, 4, 4, 4) if SIMULATED else Tile(64, 64, 8, 4, 8),
}
# For matrices that would fill at most half of a tile's rows, such as those of a convolution with few outputs.
LOW_TILES = {**TILES, "float32": Tile(4, 16, 4, 4, 4) if SIMULATED else Tile(64, 128, 8, 8, 8)}


def _stashed(side: str, along: bool, tile: Tile, across: int, width: int, pitch: int) -> Iterator[str]:
    """Yield the code by which a thread stores its fetched elements in shared memory, a row per position along K."""
    itemsize = ACCESS_BYTES // width
    for turn in range(across * tile.depth // (width * tile.threads)):
        yield f"place = thread + {turn * tile.threads}"
        if along:
            per = tile.depth // width
            yield f"at = half_{side} + (place & {per - 1}) * {width * pitch} + quotient(place, {per})"
        else:
            per = across // width
            yield f"at = half_{side} + quotient(place, {per}) * {pitch} + (place & {per - 1}) * {width}"
        names = [f"{side}{turn}_{v}" for v in range(width)]
        if along:
            for v, name in enumerate(names):
                yield f"store_shared1(shared_{side} + (at + {v * pitch}) * {itemsize}, {name})"
        else:
            yield f"store_shared(shared_{side} + at * {itemsize}, {', '.join(names)})"


def _walk_along_k(
    step: int, half_a: int, half_b: int, fetch: list[str], stash: list[str], multiply: list[str]
) -> list[str]:
    """Return the code that walks along K in steps of `step` positions.

    The code begins at the position `depth`. Each step fetches the next tiles, multiplies the tiles in one half of
    shared memory, then fills the other half.
    """
    return [
        "half = 0",
        "half_a = half_b = 0",
        *fetch,
        *stash,
        "cuda.syncthreads()",
        "while depth < k:",
        f"    depth += {step}",
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
    tile: Tile, sums: str, lanes: int, along: tuple[bool, bool], opening: list[str], fetch: Mapping[str, list[str]],
    finished: Callable[[str, list[str]], Iterator[str]],
) -> list[str]:  # fmt: skip
    """Return the body of a kernel that adds up in the dtype `sums`, and stores `lanes` adjacent sums at once.

    `along` says whether A, and whether B, is read along K. Code: `opening` finds the block's tile of C, and its first
    position along K; `fetch["a"]` and `fetch["b"]` fetch a step's tiles. `finished(column, sums)` yields the code that
    stores the adjacent `sums` of a row from the tile's `column` on.
    """
    a_along, b_along = along
    width = ACCESS_BYTES // np.dtype(sums).itemsize
    down, across = tile.thread_rows, tile.thread_columns
    # Rows in shared memory are longer than the tile, so that threads that store along K access different banks.
    pitch_a, pitch_b = tile.rows + (width if a_along else 0), tile.columns + (width if b_along else 0)
    half_a, half_b = tile.depth * pitch_a, tile.depth * pitch_b
    columns = tile.columns // across
    # Adjacent elements move in one access only if the compiler knows the alignment. The simulator takes no alignment.
    aligned = "" if SIMULATED else f", {ACCESS_BYTES}"

    def thread_row(i: int) -> str:
        return f"{i // width * (tile.rows // (down // width)) + i % width} + thread_y * {width}"

    def thread_column(j: int) -> str:
        return f"{j // width * (tile.columns // (across // width)) + j % width} + thread_x * {width}"

    def read(name: str, side: str, count: int, pitch: int, place: Callable[[int], str], deeper: int) -> Iterator[str]:
        for i in range(0, count, width):
            names = ", ".join([f"{name}{i + v}" for v in range(width)])
            at = f"half_{side} + (step + {deeper}) * {pitch} + {place(i)}"
            yield f"    {names} = load_shared(shared_{side} + ({at}) * {ACCESS_BYTES // width})"

    stash = [
        *_stashed("a", a_along, tile, tile.rows, width, pitch_a),
        *_stashed("b", b_along, tile, tile.columns, width, pitch_b),
    ]
    multiply = [f"for step in range(0, {tile.depth}, {_UNROLLED}):"]
    for deeper in range(_UNROLLED):
        multiply += read("x", "a", down, pitch_a, thread_row, deeper)
        multiply += read("y", "b", across, pitch_b, thread_column, deeper)
        multiply += [f"    c{i}_{j} += x{i} * y{j}" for i in range(down) for j in range(across)]
    lines = [
        f"array_a = cuda.shared.array({2 * half_a}, sums{aligned})",
        f"array_b = cuda.shared.array({2 * half_b}, sums{aligned})",
        "shared_a, shared_b = shared_address(array_a), shared_address(array_b)",
        "thread = cuda.threadIdx.x",
        f"thread_x, thread_y = thread & {columns - 1}, quotient(thread, {columns})",
        *opening,
        *(f"c{i}_{j} = zero" for i in range(down) for j in range(across)),
        *_walk_along_k(tile.depth, half_a, half_b, [*fetch["a"], *fetch["b"]], stash, multiply),
    ]
    for i in range(down):
        lines += [f"row = row0 + {thread_row(i)}", "if row < m:"]
        for j in range(0, across, lanes):
            values = [f"c{i}_{j + v}" for v in range(lanes)]
            lines += [f"    {line}" for line in finished(thread_column(j), values)]
    return lines
