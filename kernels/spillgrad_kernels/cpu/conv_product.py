"""The compiled loops of convolution: matrix products whose A, the matrix of patches, is read where it lies, in strips.

In strips (see `strips.py`), the element that a tap of a window sees in a channel is at a fixed distance from the
window. So the matrix of all patches, with a row for each window and a column for each channel and tap, need not be
made: the address of an element is a number of its row plus a number of its column. Rows lie in runs of `RUN`
neighbours. B is packed into panels as wide as a tile; if at most half of the last panel of a group is used, it is half
as wide.
Source: Dukhan 2019, "The Indirect Convolution Algorithm" (patches by address); Van Zee and van de Geijn, "BLIS: A
Framework for Rapidly Instantiating BLAS Functionality", 2015 (the product).
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.microkernel import RUN, multiply_gathered, transpose_block
from spillgrad_kernels.cpu.packing import pack
from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product import DEPTH
from spillgrad_kernels.cpu.product_tile import TILE_ROWS, TILE_VECTORS, VECTOR_BYTES, like_of, tile_columns
from spillgrad_kernels.cpu.strips import fill
from spillgrad_kernels.jit.compile import jit, register_jitable
from spillgrad_kernels.tables.integer_math import round_up

# The number of runs of rows in a tile.
TILE_RUNS = TILE_ROWS // RUN


@register_jitable
def _vectors(outputs: int, panel: int, columns: int) -> int:
    """Return how many vectors wide a panel is: as wide as a tile, or half if it has at most half as many outputs."""
    return TILE_VECTORS if outputs - panel * columns > columns // TILE_VECTORS else 1


@jit
def fill_strips(start: int, stop: int, planes: Any, words: Any, strips: Any) -> None:
    """Copy plane i of `planes` (count, height, width) to row i of `strips`, with zeros around it."""
    like, size = like_of(planes), planes.itemsize
    height, width = planes.shape[1:]
    for i in range(start, stop):
        strips[i] = 0
        strip, plane = np.intp(strips.ctypes.data), np.intp(planes.ctypes.data)
        fill(like, strip + i * strips.shape[1] * size, words, plane + i * height * width * size, height, width)


@jit
def pack_weights(
    start: int, stop: int, weights: Any, phases: Any, steps: Any, lane: int, group_bytes: int, outputs: int,
    all_panels: int, panels: Any,
) -> None:  # fmt: skip
    """Pack the weights of all phases into `all_panels` panels each. A unit of work is `DEPTH` rows of a panel.

    Element (d, o) of a group's matrix lies `steps[first + d]` + o * `lane` bytes from the group's start, where `first`
    is the phase's. Groups are `group_bytes` bytes apart. `phases` is described in `correlate`.
    """
    like = like_of(weights)
    size, columns = weights.itemsize, tile_columns(like)
    in_group = (outputs + columns - 1) // columns
    phase, begin, end = -1, 0, 0
    depth, first, cuts, is_dense = 0, 0, 1, False
    for unit in range(start, stop):
        while unit >= end:
            phase += 1
            depth, first = phases[phase, 1], phases[phase, 2]
            cuts = (depth + DEPTH - 1) // DEPTH
            begin, end = end, end + all_panels * cuts
            is_dense = steps[first + depth - 1] - steps[first] == (depth - 1) * size
        panel, cut = (unit - begin) // cuts, (unit - begin) % cuts
        j = panel % in_group
        present = min(columns, outputs - j * columns)
        width = _vectors(outputs, j, columns) * columns // TILE_VECTORS
        source = np.intp(weights.ctypes.data) + panel // in_group * group_bytes + j * columns * lane
        target = np.intp(panels.ctypes.data) + (all_panels * first + panel * depth) * columns * size
        if is_dense:
            d = cut * DEPTH
            rows = min(DEPTH, depth - d)
            pack(like, width, source + steps[first + d], lane, size, present, rows, target + d * width * size)
            continue
        for d in range(cut * DEPTH, min((cut + 1) * DEPTH, depth)):
            row = array_at(like, target + d * width * size, width)
            place = source + steps[first + d]
            for o in range(present):
                row[o] = array_at(like, place + o * lane, 1)[0]
            for o in range(present, width):
                row[o] = 0


@jit
def pack_gradients(start: int, stop: int, grads: Any, panels: Any) -> None:
    """Pack gradients (images, groups, outputs, positions) into panels (groups, panels, images x positions, columns).

    A unit of work is a panel's part of one image.
    """
    like = like_of(grads)
    size, columns = grads.itemsize, tile_columns(like)
    images, outputs, positions = grads.shape[0], grads.shape[2], grads.shape[3]
    in_group = (outputs + columns - 1) // columns
    for unit in range(start, stop):
        panel, image = unit // images, unit % images
        j = panel % in_group
        present = min(columns, outputs - j * columns)
        width = _vectors(outputs, j, columns) * columns // TILE_VECTORS
        source = np.intp(grads[image, panel // in_group].ctypes.data) + j * columns * positions * size
        target = np.intp(panels.ctypes.data) + (panel * columns * images + image * width) * positions * size
        pack(like, width, source, positions * size, size, present, positions, target)


@jit
def _find_runs(lines: Any, first: int, runs: Any) -> None:
    """Write to `runs` where the runs of positions number `first`, `first` + 1 and so on lie, as many as it has columns.

    Positions are counted along three dimensions, whose sizes are `lines[:, 0]`; a run has `RUN` neighbours along the
    last of them. `lines[:, 1]` and `lines[:, 2]` are the distances of neighbours, in bytes, in the strips and in the
    result. A column of `runs` is the run's place in each, and the number of its positions that exist.
    """
    in_line = (lines[2, 0] + RUN - 1) // RUN
    x, line = first % in_line, first // in_line
    y, z = line % lines[1, 0], line // lines[1, 0]
    for r in range(runs.shape[1]):
        runs[0, r] = z * lines[0, 1] + y * lines[1, 1] + x * RUN * lines[2, 1]
        runs[1, r] = z * lines[0, 2] + y * lines[1, 2] + x * RUN * lines[2, 2]
        runs[2, r] = min(RUN, lines[2, 0] - x * RUN)
        x += 1
        if x == in_line:
            x = 0
            y += 1
            if y == lines[1, 0]:
                y = 0
                z += 1


@jit
def _write(like: Any, source: int, row: int, count: int, outputs: int, target: int, step: int, channel: int) -> None:
    """Write the transpose of `count` rows of `outputs` sums: to address `target`, a channel for each column.

    Rows are `row` bytes apart; elements of a channel are `step` bytes apart, and channels are `channel` bytes apart.
    """
    size = like.itemsize
    lanes = VECTOR_BYTES // size
    whole = count - count % lanes if step == size else 0
    for o in range(0, outputs - outputs % lanes, lanes):
        for i in range(0, whole, lanes):
            place = target + o * channel + i * size
            transpose_block(like, source + i * row + o * size, row, lanes, place, channel // size)
    for o in range(outputs):
        begin = whole if o < outputs - outputs % lanes else 0
        for i in range(begin, count):
            value = array_at(like, source + i * row + o * size, 1)[0]
            array_at(like, target + o * channel + i * step, 1)[0] = value


@jit
def correlate(
    start: int, stop: int, strips: Any, group_bytes: int, phases: Any, lines: Any, steps: Any, panels: Any, bias: Any,
    outputs: int, channel: int, out: Any,
) -> None:  # fmt: skip
    """Compute tasks of a convolution: a task is a block of tiles of positions of a phase, and a panel of outputs.

    A row of `phases` is a phase: where its tasks end, the depth of its matrices, its first element in `steps`, the
    place of its first position in the result, in bytes, and the most tiles of a task. `lines[phase]` is described in
    `_find_runs`. `strips` are those of all images. Column d of the matrix of patches is `steps[first + d]` bytes from
    each position, group g `g * group_bytes`. Channels of the result are `channel` bytes apart.
    """
    like = like_of(out)
    size, columns = out.itemsize, tile_columns(like)
    in_group = (outputs + columns - 1) // columns
    count = bias.size // columns
    most = phases[:, 4].max()
    scratch = np.empty(most * TILE_ROWS * columns + VECTOR_BYTES // size, out.dtype)
    runs = np.empty((3, most * TILE_RUNS), np.int64)
    phase, begin, end, found = -1, 0, 0, -1
    depth, first, tiles, all_runs, blocks = 0, 0, 1, 0, 1
    own_lines = lines[0]
    for task in range(start, stop):
        while task >= end:
            phase += 1
            begin, end, depth, first, tiles = (
                end,
                phases[phase, 0],
                phases[phase, 1],
                phases[phase, 2],
                phases[phase, 4],
            )
            own_lines = lines[phase]
            all_runs = own_lines[0, 0] * own_lines[1, 0] * ((own_lines[2, 0] + RUN - 1) // RUN)
            blocks = (all_runs + tiles * TILE_RUNS - 1) // (tiles * TILE_RUNS)
            found = -1
        # Using the array within the loop keeps it alive. Numba frees an array after its last use, even if its address
        # is used later.
        sums = round_up(np.intp(scratch.ctypes.data), VECTOR_BYTES)
        group, rest = (task - begin) // (blocks * in_group), (task - begin) % (blocks * in_group)
        block, panel = rest // in_group, rest % in_group
        present = min(tiles * TILE_RUNS, all_runs - block * tiles * TILE_RUNS)
        if found != block:
            found = block
            _find_runs(own_lines, block * tiles * TILE_RUNS, runs[:, :present])
            for r in range(present, round_up(present, TILE_RUNS)):
                runs[0, r] = runs[0, present - 1]  # the last tile may lack runs
        wide = min(columns, outputs - panel * columns)
        vectors = _vectors(outputs, panel, columns)
        row = vectors * columns // TILE_VECTORS * size
        number = group * in_group + panel
        a: Any = np.intp(strips.ctypes.data) + group * group_bytes
        b = np.intp(panels.ctypes.data) + (count * first + number * depth) * columns * size
        shift = np.intp(bias.ctypes.data) + number * columns * size
        places: Any = np.intp(runs.ctypes.data)
        apart: Any = own_lines[2, 1]
        step = own_lines[2, 2]
        for d in range(0, depth, DEPTH):
            for tile in range((present + TILE_RUNS - 1) // TILE_RUNS):
                c = sums + tile * TILE_ROWS * row
                multiply_gathered(
                    like, vectors, min(DEPTH, depth - d), a, apart,
                    places + tile * TILE_RUNS * runs.itemsize,
                    np.intp(steps.ctypes.data) + (first + d) * steps.itemsize, b + d * row, c, row,
                    c if d > 0 else shift, row if d > 0 else 0,
                )  # fmt: skip
        target = np.intp(out.ctypes.data) + phases[phase, 3] + (group * outputs + panel * columns) * channel
        begun, positions = 0, 0  # the first run of a series without gaps, and its number of positions
        for r in range(present):
            positions += runs[2, r]
            is_last = r + 1 == present or runs[2, r] < RUN
            if is_last or runs[1, r + 1] != runs[1, r] + RUN * step:
                _write(like, sums + begun * RUN * row, row, positions, wide, target + runs[1, begun], step, channel)
                begun, positions = r + 1, 0


@jit
def add_gradients(
    start: int, stop: int, strips: Any, group_bytes: int, row_bytes: int, runs: Any, lines: Any, panels: Any,
    outputs: int, tiles: int, is_first: bool, sums: Any,
) -> None:  # fmt: skip
    """Compute tasks of a weight's gradient: a task is a block of at most `tiles` tiles of rows, and a panel of outputs.

    Add to `sums` (parts, groups, panels, rows, columns), or set it if `is_first`. Each part is a sum over its share of
    the positions. A row is a channel and a tap: `runs` are the distances of each `RUN` rows, which are `row_bytes`
    apart. The sizes of the positions' dimensions are `lines[:, 0]`, and the distances of neighbours `lines[:, 1]`.
    """
    like = like_of(sums)
    size, columns = sums.itemsize, tile_columns(like)
    parts, groups, in_group = sums.shape[:3]
    all_tiles = runs.size // TILE_RUNS
    blocks = (all_tiles + tiles - 1) // tiles
    positions = lines[0, 0] * lines[1, 0] * lines[2, 0]
    share = round_up((positions + parts - 1) // parts, DEPTH)
    row = columns * size
    steps = np.empty(DEPTH, np.int64)
    for task in range(start, stop):
        block, rest = task % blocks, task // blocks
        panel, rest = rest % in_group, rest // in_group
        group, part = rest % groups, rest // groups
        vectors = _vectors(outputs, panel, columns)
        a = np.intp(strips.ctypes.data) + group * group_bytes
        b = np.intp(panels.ctypes.data) + (group * in_group + panel) * columns * positions * size
        target = np.intp(sums[part, group, panel].ctypes.data)
        if is_first and part * share >= positions:
            sums[part, group, panel, block * tiles * TILE_ROWS : (block + 1) * tiles * TILE_ROWS] = 0
        for p in range(part * share, min((part + 1) * share, positions), DEPTH):
            adds = not is_first or p > part * share
            _find_positions(lines, p, steps)
            places: Any = np.intp(steps.ctypes.data)
            for tile in range(block * tiles, min((block + 1) * tiles, all_tiles)):
                c = target + tile * TILE_ROWS * row
                multiply_gathered(
                    like, vectors, min(DEPTH, positions - p), a, row_bytes,
                    np.intp(runs.ctypes.data) + tile * TILE_RUNS * runs.itemsize, places,
                    b + p * (vectors * columns // TILE_VECTORS) * size, c, row, c if adds else 0, row,
                )  # fmt: skip


@jit
def _find_positions(lines: Any, first: int, steps: Any) -> None:
    """Write to `steps` the distances, in the strips, of the positions number `first`, `first` + 1 and so on."""
    x, line = first % lines[2, 0], first // lines[2, 0]
    y, z = line % lines[1, 0], line // lines[1, 0]
    done = 0
    while done < steps.size:
        place = z * lines[0, 1] + y * lines[1, 1]
        count = min(lines[2, 0] - x, steps.size - done)
        for i in range(count):
            steps[done + i] = place + (x + i) * lines[2, 1]
        done += count
        x = 0
        y += 1
        if y == lines[1, 0]:
            y = 0
            z += 1


@jit
def unpack_gradients(start: int, stop: int, sums: Any, taps: int, out: Any) -> None:
    """Set `out` (groups, outputs, channels, taps) to the sums of all parts, as `add_gradients` leaves them.

    A unit of work is a panel's part of `RUN` channels.
    """
    like = like_of(sums)
    parts, in_group, columns = sums.shape[0], sums.shape[2], sums.shape[4]
    outputs, channels = out.shape[1], out.shape[2]
    in_runs = (channels + RUN - 1) // RUN
    row = columns * sums.itemsize
    for unit in range(start, stop):
        run, panel = unit % in_runs, unit // in_runs
        group, j = panel // in_group, panel % in_group
        block = sums[:, group, j, run * taps * RUN : (run + 1) * taps * RUN]
        for part in range(1, parts):
            block[0] += block[part]
        first = np.intp(block.ctypes.data)
        for o in range(min(columns, outputs - j * columns)):
            for i in range(min(RUN, channels - run * RUN)):
                seen = out[group, j * columns + o, run * RUN + i]
                place = first + i * row + o * sums.itemsize
                for t in range(taps):
                    seen[t] = array_at(like, place + t * RUN * row, 1)[0]
