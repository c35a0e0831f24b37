"""Convolution with one input channel per group, and its derivatives: sums of shifted planes, without matrix products.

A plane is copied to a strip (see `strips.py`). There, a tap of the window is a fixed distance from the window's
position, so a vector of sums adds up vectors of the strip, each times the tap's weight. The sums of several rows stay
in registers until all taps are added up.
"""

from typing import Any

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES, like_of
from spillgrad_kernels.cpu.strips import Phase, Strip, fill, phases_of_input, phases_of_output, words_of
from spillgrad_kernels.cpu.vector_instructions import Emitter, vector_code
from spillgrad_kernels.jit.compile import DISABLE_JIT, jit
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.threads.dispatch import parallel_for
from spillgrad_kernels.windows import Pair, Windows

# The number of multiply-adds that pays for another thread.
_GRAIN = 1 << 17
# The number of vectors that are summed up at a time: of several rows, or of one row. And the number of taps of a
# weight's gradient.
_VECTORS = 8
_TAPS = 9
# The results of a channel whose weights' gradients are a unit of work; a unit copies the channel's planes to strips.
_RESULTS = 4
_INT64 = np.zeros(1, np.int64)

if DISABLE_JIT:

    def _add_taps(
        like: np.ndarray, rows: int, width: int, columns: int, source: int, source_row: int, taps: int, places: int,
        weights: int, bias: int, target: int, target_row: int,
    ) -> None:  # fmt: skip
        """Set a block to a bias, plus the sum of vectors of the strip, each times a tap's weight.

        The block has `rows` rows of `width` elements. It is made of `_VECTORS` vectors: 2 ** `columns` beside each
        other, and so many rows of these that the block has at most as many. Row i is at address `target` + i *
        `target_row`. It adds up the vectors at `source` + i * `source_row` + `places`[t], for each tap t, of which
        there is at least one. `places` is the address of int64 numbers of bytes, `weights` of the taps' weights, `bias`
        of the bias.
        """
        factors = array_at(like, weights, taps)
        for i in range(rows):
            sums = np.zeros(width, like.dtype)
            for place, factor in zip(array_at(_INT64, places, taps), factors, strict=True):
                sums += array_at(like, source + i * source_row + place, width) * factor
            array_at(like, target + i * target_row, width)[:] = sums + array_at(like, bias, 1)

    def _add_products(
        like: np.ndarray, rows: int, width: int, grads: int, grads_row: int, source: int, source_row: int, taps: int,
        places: int, sums: int,
    ) -> None:  # fmt: skip
        """Add, for each of at most `_TAPS` taps, products of gradients and elements of the strip to a vector of sums.

        Gradients are `rows` rows, at least one, of `width` elements, at most a vector. Element j of the vector adds up
        the products of column j. Row i of the strip is at `source` + i * `source_row` + `places`[t], for tap t.
        `places` is the address of int64 numbers of bytes, `sums` of the taps' vectors.
        """
        lanes = VECTOR_BYTES // like.itemsize
        for t, place in enumerate(array_at(_INT64, places, taps)):
            total = array_at(like, sums + t * VECTOR_BYTES, lanes)
            for i in range(rows):
                seen = array_at(like, source + i * source_row + place, width)
                total[:width] += seen * array_at(like, grads + i * grads_row, width)

else:

    @vector_code
    def _add_taps(
        emit: Emitter, rows: Any, width: Any, columns: Any, source: Any, source_row: Any, taps: Any, places: Any,
        weights: Any, bias: Any, target: Any, target_row: Any,
    ) -> None:  # fmt: skip
        builder, integer = emit.builder, taps.type
        last = builder.sub(rows, integer(1))
        across = builder.sub(builder.shl(integer(1), columns), integer(1))
        from_source, to_target, present = [], [], []
        for number in range(_VECTORS):
            row = builder.lshr(integer(number), columns)
            # In place of missing rows, the last row is computed and stored again.
            row = builder.select(builder.icmp_signed("<", row, rows), row, last)
            column = builder.mul(builder.and_(integer(number), across), integer(emit.lanes))
            shift = builder.mul(column, integer(emit.bytes))
            from_source.append(builder.add(builder.mul(row, source_row), shift))
            to_target.append(builder.add(builder.mul(row, target_row), shift))
            present.append(builder.sub(width, column))

        def b_at(pb: Any, number: int) -> Any:
            place = builder.load(builder.inttoptr(pb, integer.as_pointer()))
            return emit.load(builder.add(builder.add(source, place), from_source[number]))

        sums = emit.sums_of_products(
            taps, ([weights], integer(emit.bytes)), (places, integer(_INT64.itemsize)), lambda pa, _: pa[0], b_at, 1,
            _VECTORS,
        )  # fmt: skip
        added = emit.splat(bias)
        for place, count, total in zip(to_target, present, sums.values(), strict=True):
            emit.store_some(builder.fadd(total, added), builder.add(target, place), emit.first_lanes(count))

    @vector_code
    def _add_products(
        emit: Emitter, rows: Any, width: Any, grads: Any, grads_row: Any, source: Any, source_row: Any, taps: Any,
        places: Any, sums: Any,
    ) -> None:  # fmt: skip
        builder, integer = emit.builder, taps.type
        mask = emit.first_lanes(width)

        def add_up(count: int) -> None:
            """Emit the code for at most `count` taps: in place of missing taps, the last one is computed again."""
            last = builder.sub(taps, integer(1))
            starts = []
            for t in range(count):
                number = builder.select(builder.icmp_signed("<", integer(t), taps), integer(t), last)
                address = builder.add(places, builder.mul(number, integer(_INT64.itemsize)))
                starts.append(builder.add(source, builder.load(builder.inttoptr(address, integer.as_pointer()))))
            entry, loop = builder.block, builder.append_basic_block("rows")
            done = builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            row, from_grads, from_strip = (builder.phi(integer) for _ in range(3))
            totals = [builder.phi(emit.sums) for _ in range(count)]
            gradients = emit.load_some(from_grads, mask)
            # What lies beyond the row is not read: infinity times 0 would be NaN.
            updated = [
                emit.fma(gradients, emit.load_some(builder.add(start, from_strip), mask), total)
                for start, total in zip(starts, totals, strict=True)
            ]
            next_row = builder.add(row, integer(1))
            for phi, first, following in (
                (row, integer(0), next_row),
                (from_grads, grads, builder.add(from_grads, grads_row)),
                (from_strip, integer(0), builder.add(from_strip, source_row)),
                *((total, emit.zero, new) for total, new in zip(totals, updated, strict=True)),
            ):
                phi.add_incoming(first, entry)
                phi.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", next_row, rows), loop, done)
            builder.position_at_end(done)
            for t, total in enumerate(updated):
                with builder.if_then(builder.icmp_signed("<", integer(t), taps)):
                    place = emit.shifted(sums, t * emit.lanes)
                    emit.store(builder.fadd(emit.load_sums(place), total), place)

        few = _TAPS // 3
        with builder.if_else(builder.icmp_signed("<=", taps, integer(few))) as (is_few, is_many):
            with is_few:
                add_up(few)
            with is_many:
                add_up(_TAPS)


@jit
def _correlate(
    start: int, stop: int, planes: Any, weights: Any, bias: Any, words: Any, strip_size: int, places: Any,
    numbers: Any, phases: Any, steps: Any, out: Any,
) -> None:  # fmt: skip
    """Set each plane of `out` to its bias, plus the sum of the shifted planes of its channel.

    A row of `phases` is a phase's first position, its number of rows and of columns, and its range of taps: their
    distances in bytes are `places`, the weights that they take are `numbers`. Shapes: planes (N, channels, sources,
    *image), weights (channels, sources, results, taps), bias (channels, results), out (N, channels, results, *image).
    """
    like, size = like_of(planes), planes.itemsize
    lanes = VECTOR_BYTES // size
    channels, sources, height, width = planes.shape[1:]
    results, out_height, out_width = out.shape[2:]
    # A block's vectors may end beyond the last strip.
    strips = np.zeros(sources * strip_size + _VECTORS * lanes, planes.dtype)
    chosen = np.empty(sources * numbers.size, planes.dtype)
    distances = np.empty(sources * numbers.size, np.int64)
    sums = np.empty(_VECTORS * lanes, planes.dtype)
    strip_row, out_row = words[-1] * size, steps[0] * out_width * size
    for unit in range(start, stop):
        # Addresses, because each view of an array costs as much as a row of sums.
        at_strips: Any = np.intp(strips.ctypes.data)
        at_sums: Any = np.intp(sums.ctypes.data)
        at_chosen: Any = np.intp(chosen.ctypes.data)
        at_distances: Any = np.intp(distances.ctypes.data)
        channel = unit % channels
        for s in range(sources):
            plane = np.intp(planes.ctypes.data) + (unit * sources + s) * height * width * size
            fill(like, at_strips + s * strip_size * size, words, plane, height, width)
        for r in range(results):
            at_bias = np.intp(bias.ctypes.data) + (channel * results + r) * size
            result = np.intp(out.ctypes.data) + (unit * results + r) * out_height * out_width * size
            for f in range(phases.shape[0]):
                top, left, rows, columns, begin, end = phases[f]
                taps = 0
                for s in range(sources):
                    for t in range(begin, end):
                        chosen[taps] = weights[channel, s, r, numbers[t]]
                        distances[taps] = places[t] + s * strip_size * size
                        taps += 1
                if taps == 0:
                    sums[:] = bias[channel, r]
                across, beside = 0, 1  # blocks of one vector beside each other, or of more if rows are few
                while rows < _VECTORS // beside and columns > beside * lanes:
                    across, beside = across + 1, 2 * beside
                tall, broad = _VECTORS // beside, beside * lanes
                for i in range(0, rows, tall):
                    high = min(tall, rows - i)
                    for j in range(0, columns, broad):
                        wide = min(broad, columns - j)
                        target = result + ((top + i * steps[0]) * out_width + left + j * steps[1]) * size
                        is_dense = taps > 0 and steps[1] == 1
                        if taps > 0:
                            _add_taps(
                                like, high, wide, across, at_strips + i * strip_row + j * size, strip_row, taps,
                                at_distances, at_chosen, at_bias, target if is_dense else at_sums,
                                out_row if is_dense else broad * size,
                            )  # fmt: skip
                        if not is_dense:
                            for down in range(high):
                                for k in range(wide):
                                    place = target + down * out_row + k * steps[1] * size
                                    array_at(like, place, 1)[0] = sums[down * broad + k]


@jit
def _weight_gradients(
    start: int, stop: int, grads: Any, planes: Any, words: Any, strip_size: int, places: Any, out: Any
) -> None:
    """Set out[channel, m, t] to the sum over all images of the gradients times the plane's elements at tap t.

    A unit of work is `_RESULTS` numbers m of a channel.
    Shapes: grads (N, channels, m, *grid), planes (N, channels, *image).
    """
    like, size = like_of(planes), planes.itemsize
    lanes = VECTOR_BYTES // size
    channels, results, rows, columns = grads.shape[1:]
    height, width = planes.shape[2:]
    strip = np.zeros(strip_size, planes.dtype)
    sums = np.empty((places.size, lanes), planes.dtype)
    totals = np.empty((_RESULTS, places.size, lanes), np.float64)
    blocks = (results + _RESULTS - 1) // _RESULTS
    for unit in range(start, stop):
        at_strip: Any = np.intp(strip.ctypes.data)
        at_sums: Any = np.intp(sums.ctypes.data)
        at_places: Any = np.intp(places.ctypes.data)
        channel, first = unit // blocks, unit % blocks * _RESULTS
        count = min(_RESULTS, results - first)
        totals[:] = 0
        for image in range(planes.shape[0]):
            place = image * channels + channel
            fill(like, at_strip, words, np.intp(planes.ctypes.data) + place * height * width * size, height, width)
            for m in range(count):
                sums[:] = 0
                grad = np.intp(grads.ctypes.data) + (place * results + first + m) * rows * columns * size
                # A single row is summed up as if its vectors were rows.
                long = columns // lanes if rows == 1 else 0
                for t in range(0, places.size, _TAPS):
                    taps, at_tap, at_sum = min(_TAPS, places.size - t), t * places.itemsize, t * VECTOR_BYTES
                    if long > 1:
                        _add_products(
                            like, long, lanes, grad, VECTOR_BYTES, at_strip, VECTOR_BYTES, taps, at_places + at_tap,
                            at_sums + at_sum,
                        )  # fmt: skip
                    for j in range(long * lanes if long > 1 else 0, columns, lanes):
                        _add_products(
                            like, rows, min(lanes, columns - j), grad + j * size, columns * size, at_strip + j * size,
                            words[-1] * size, taps, at_places + at_tap, at_sums + at_sum,
                        )  # fmt: skip
                for t in range(places.size):
                    for lane in range(lanes):
                        totals[m, t, lane] += sums[t, lane]
        for m in range(count):
            for t in range(places.size):
                out[channel, first + m, t] = totals[m, t].sum()


def _tasks(work: int, count: int) -> int:
    return max(1, _GRAIN * count // max(work, 1))


def _run(
    planes: np.ndarray, strip: Strip, phases: list[Phase], steps: Pair, weights: np.ndarray, bias: np.ndarray,
    out: np.ndarray,
) -> None:  # fmt: skip
    """Compute `out` by `_correlate`, which tells the shapes."""
    places = np.concatenate([phase.taps for phase in phases]) * out.itemsize
    numbers = np.concatenate([phase.weight_taps for phase in phases])
    ends = np.cumsum([len(phase.taps) for phase in phases])
    rows = [
        (*phase.first, *phase.grid, end - len(phase.taps), end)
        for phase, end in zip(phases, ends.tolist(), strict=True)
    ]
    count = out.shape[0] * out.shape[1]
    parallel_for(
        _correlate, count, _tasks(out.size * planes.shape[2] * len(places) // len(phases), count), planes, weights,
        bias, words_of(strip), strip.size, places, numbers, np.array(rows, np.int64), np.array(steps), out,
    )  # fmt: skip


def convolve(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, windows: Windows, out: np.ndarray) -> None:
    """Set `out` to the convolution of each channel with its own weights, plus a bias.

    Shapes: x (N, G, *image), weight (G, m, *size), bias (G, m), out (N, G, m, *grid); all C-contiguous.
    """
    channels, results = out.shape[1:3]
    strip, phases = phases_of_output(windows)
    _run(x[:, :, None], strip, phases, (1, 1), weight.reshape(channels, 1, results, -1), bias, out)


def input_gradient(grad: np.ndarray, weight: np.ndarray, bias: np.ndarray, windows: Windows, out: np.ndarray) -> None:
    """Set `out` to the gradient of `convolve` with respect to x, plus a bias: the transposed convolution.

    Shapes: grad (N, G, m, *grid), weight (G, m, *size), bias (G,), out (N, G, *image); all C-contiguous.
    """
    channels, sources = grad.shape[1:3]
    strip, phases = phases_of_input(windows)
    weights = weight.reshape(channels, sources, 1, -1)
    _run(grad, strip, phases, windows.stride, weights, bias[:, None], out[:, :, None])


def weight_gradient(grad: np.ndarray, x: np.ndarray, windows: Windows) -> np.ndarray:
    """Return the gradient of `convolve` with respect to its weight.

    Shapes: grad (N, G, m, *grid), x (N, G, *image), result (G, m, size[0] * size[1]); all C-contiguous.
    """
    strip, [phase] = phases_of_output(windows)
    channels, results = grad.shape[1:3]
    out = buffers.empty((channels, results, len(phase.taps)), x.dtype)
    units = channels * -(-results // _RESULTS)
    parallel_for(
        _weight_gradients, units, _tasks(grad.size * len(phase.taps), units), grad, x, words_of(strip), strip.size,
        phase.taps * x.itemsize, out,
    )  # fmt: skip
    return out
