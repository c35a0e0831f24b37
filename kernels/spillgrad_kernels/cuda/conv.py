"""Convolution and its two derivatives on a device, as matrix products over patches, one piece at a time.

A patch is the elements of one window, copied into a column of a matrix. `matmul` needs this copy: its tensor cores and
its accesses of 16 bytes take adjacent elements, and a window's elements are not adjacent in memory. The copy costs
little, as each of its elements takes part in M multiply-adds. A piece is some images, or some rows of one image, with
about `_PIECE_BYTES` of patches, few enough for large caches. If a group has few outputs, as in depthwise convolution,
the product would leave most of its tile empty. In this case, `conv_direct` computes each element of a result in one
thread.

For the derivative by the input, each element of an image adds up the windows that contain it, in a fixed order.
Matrices have extra columns of zeros, so that rows begin at multiples of 16 bytes.
Source: Chellapilla et al. 2006, "High performance convolutional neural networks for document processing".
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from spillgrad_kernels.cuda import conv_direct
from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.elementwise import compute, contiguous, copy
from spillgrad_kernels.cuda.jit.compile import Kernel, for_each_turn
from spillgrad_kernels.cuda.matmul import matmul
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, computing_dtype, loaders, quotient, storers
from spillgrad_kernels.cuda.windows import Strides, lay
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.windows import Windows

# The most bytes of a piece: its patches, and the result or gradient of its product.
_PIECE_BYTES = 1 << 26
# Rows and columns of matrices are multiples of this number of elements: 16 bytes of half precision.
_WHOLE = 8
# With fewer outputs per group, the product's tile is so empty that `conv_direct` is faster.
_FEW_OUTPUTS = 16
# The columns of a product's tile.
_TILE = 128
# The least number of patch elements that a thread copies.
_GATHERED = 32


# --- Patches ---------------------------------------------------------------------------------------------------------


@functools.cache
def gathering(nbytes: int) -> Kernel:
    """Return the kernel that copies patches into columns, for elements of `nbytes` bytes.

    A thread copies some channels of one patch; the kernel's argument `own` is the number of these channels.
    """
    name = f"int{8 * nbytes}"
    load, store, nothing = loaders[name, 1], storers[name, 1], getattr(np, name)(0)

    def gather(
        turn: int, columns: int, positions: int, down: int, across: int, step_y: int, step_x: int, pad_y: int,
        pad_x: int, rows: int, row_elements: int, gap_y: int, gap_x: int, channels: int, inner: int, own: int,
        depth: int, height: int, width: int, x: int, out: int,
    ) -> None:  # fmt: skip
        part = quotient(turn, columns)
        column = turn - part * columns
        image = quotient(column, down * across)
        place = column - image * down * across
        i = quotient(place, across)
        first_y, first_x = i * step_y - pad_y, (place - i * across) * step_x - pad_x
        channel = part * own
        last = channel + own if channel + own < channels else channels
        while channel < last:
            group = quotient(channel, inner)
            c = channel - group * inner
            to = out + ((group * depth + c * rows * row_elements) * columns + column) * nbytes
            source = x + (image * channels + channel) * height * width * nbytes
            y = first_y
            for _ in range(rows):
                is_row_inside = column < positions and 0 <= y < height
                z = first_x
                for _ in range(row_elements):
                    value = nothing
                    if is_row_inside and 0 <= z < width:
                        value = load(source + (y * width + z) * nbytes)
                    store(to, value)
                    to += columns * nbytes
                    z += gap_x
                y += gap_y
            if c == inner - 1:
                for _ in range(inner * rows * row_elements, depth):
                    store(to, nothing)
                    to += columns * nbytes
            channel += 1

    return Kernel(for_each_turn(gather), f"gather_patches_{nbytes}")


class _Piece(NamedTuple):
    """Some images, or some rows of one image."""

    images: slice
    rows: slice

    @property
    def all_rows(self) -> int:
        """The number of rows of all images of the piece together."""
        return int((self.images.stop - self.images.start) * (self.rows.stop - self.rows.start))


def _pieces(count: int, rows: int, row_bytes: int) -> list[_Piece]:
    """Cut `count` images of `rows` rows into about equal pieces, each of one row or at most `_PIECE_BYTES` bytes."""
    at_once = max(1, _PIECE_BYTES // row_bytes)
    if at_once >= rows:
        images = -(-count // -(-count // min(count, at_once // rows)))
        return [_Piece(slice(n, min(n + images, count)), slice(0, rows)) for n in range(0, count, images)]
    at_once = -(-rows // -(-rows // at_once))
    return [
        _Piece(slice(n, n + 1), slice(y, min(y + at_once, rows))) for n in range(count) for y in range(0, rows, at_once)
    ]


def _gathered(x: DeviceArray, piece: _Piece, windows: Windows, groups: int, depth: int, columns: int) -> DeviceArray:
    """Return the patches of a piece as the columns of a matrix per group, with zeros beyond the last row and column.

    Shapes: x (N, C, *image) and dense, result (groups, depth, columns). A row of the result has one element of every
    window.
    """
    out = empty((groups, depth, columns), x.dtype)
    images, channels = x[piece.images], x.shape[1]
    down, across = piece.rows.stop - piece.rows.start, windows.grid[1]
    own = -(-_GATHERED // math.prod(windows.size))
    count = -(-channels // own) * columns
    gathering(x.dtype.itemsize).run(
        count, columns, piece.all_rows * across, down, across, *windows.stride,
        windows.padding[0] - piece.rows.start * windows.stride[0], windows.padding[1], *windows.size,
        *windows.dilation, channels, channels // groups, own, depth, *windows.image, images.address, out.address,
    )  # fmt: skip
    return out


def _beside_each_other(images: DeviceArray, groups: int, columns: int) -> DeviceArray:
    """Return a row for each channel, with the channel's elements of all images one after another, then zeros.

    Shapes: images (N, C, H, W), result (groups, C / groups, columns).
    """
    n, channels, height, width = images.shape
    out, used = empty((channels, columns), images.dtype), n * height * width
    copy(images.transpose(1, 0, 2, 3), out=out[:, :used].reshape(channels, n, height, width))
    if used < columns:
        out[:, used:].fill(0)
    return out.reshape(groups, channels // groups, columns)


def _matrices(weight: DeviceArray, groups: int) -> DeviceArray:
    """Return the weights of each group as a matrix with a row for each output, padded with zeros.

    Shapes: weight (M, C / groups, *size), result (groups, M / groups, depth).
    """
    weight = contiguous(weight)
    outputs, depth = len(weight), math.prod(weight.shape[1:])
    rows = weight.reshape(outputs, depth)
    if depth % _WHOLE:
        rows = zeros((outputs, round_up(depth, _WHOLE)), weight.dtype)
        copy(weight.reshape(outputs, depth), out=rows[:, :depth])
    return rows.reshape(groups, outputs // groups, rows.shape[1])


def _product(a: DeviceArray, b: DeviceArray, before: DeviceArray | None = None) -> DeviceArray:
    """Return the product a @ b of each group, in the dtype of sums.

    If `before` is given, the products are added to `before` in place, and `before` is returned.
    Shapes: a (groups, rows, depth), b (groups, depth, columns), result and before (groups, rows, columns).
    """
    return matmul(a, b, before, accumulate=before is not None, dtype=computing_dtype(a.dtype))


def _finish(product: DeviceArray, bias: DeviceArray | None, out: DeviceArray) -> None:
    """Write `product`, of shape (N, C, ...), plus each channel's bias, to `out`."""
    if bias is None:
        copy(product, out=out)
    else:
        shift = bias.reshape(-1, *(1,) * (out.ndim - 2))
        compute(ROWS["add"].forward, "add", [product, shift], (out.dtype,), (out,))


def _is_pointwise(windows: Windows, itemsize: int) -> bool:
    """Return whether `matmul` can read images without a copy: a window is one element, and accesses are aligned."""
    places = math.prod(windows.image)
    is_every = windows.size == windows.stride == (1, 1) and windows.grid == windows.image and not any(windows.padding)
    return is_every and places * itemsize % ACCESS_BYTES == 0 and places >= _TILE


def _multiply(matrices: DeviceArray, images: DeviceArray, bias: DeviceArray | None, out: DeviceArray) -> DeviceArray:
    """Write the product of each group's matrix and the group's channels, plus a bias, to `out`; return `out`."""
    groups, rows, depth = matrices.shape
    by_group = contiguous(images).reshape(len(images), groups, depth, -1)
    target = out.reshape(len(out), groups, rows, -1)
    if bias is None:
        matmul(matrices, by_group, target)
    else:
        _finish(matmul(matrices, by_group, dtype=computing_dtype(out.dtype)).reshape(*out.shape), bias, out)
    return out


def conv(x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, windows: Windows, groups: int) -> DeviceArray:
    """Return, for each window and output channel, the sum of the window's elements times the weights, plus the bias."""
    outputs, inner = weight.shape[:2]
    out = empty((len(x), outputs, *windows.grid), x.dtype)
    if not out.size:
        return out
    x, bias = contiguous(x), None if bias is None else contiguous(bias)
    if outputs // groups < _FEW_OUTPUTS:
        conv_direct.run(conv_direct.adding_windows(x.dtype), out, x, weight, bias, windows, groups)
        return out
    if _is_pointwise(windows, x.itemsize):
        return _multiply(contiguous(weight).reshape(groups, outputs // groups, inner), x, bias, out)
    matrices = _matrices(weight, groups)
    depth, across, sums = matrices.shape[2], windows.grid[1], computing_dtype(x.dtype)
    row_bytes = across * (groups * depth * x.itemsize + outputs * sums.itemsize)
    for piece in _pieces(len(x), windows.grid[0], row_bytes):
        used = piece.all_rows * across
        patches = _gathered(x, piece, windows, groups, depth, round_up(used, _WHOLE))
        product = _product(matrices, patches).reshape(outputs, -1)
        part = out[piece.images, :, piece.rows]
        apart = product[:, :used].reshape(outputs, len(part), *part.shape[2:])
        _finish(apart.transpose(1, 0, 2, 3), bias, part)
    return out


def _windows_over(windows: Windows, first: int, last: int) -> tuple[int, int]:
    """Return (begin, end): the grid's rows of windows that contain any of the image's rows `first` to `last` - 1."""
    reach, step = (windows.size[0] - 1) * windows.dilation[0], windows.stride[0]
    begin = max(0, -(-(first + windows.padding[0] - reach) // step))
    end = min(windows.grid[0], (last - 1 + windows.padding[0]) // step + 1)
    return begin, max(begin, end)


def conv_input(
    grad: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, windows: Windows, groups: int
) -> DeviceArray:
    """Return the gradient of `conv` by its input, plus a bias: the transposed convolution."""
    outputs, inner = weight.shape[:2]
    out = empty((len(grad), inner * groups, *windows.image), grad.dtype)
    if not out.size:
        return out
    bias = None if bias is None else contiguous(bias)
    if outputs // groups < _FEW_OUTPUTS:
        conv_direct.run(conv_direct.adding_inputs(grad.dtype), out, contiguous(grad), weight, bias, windows, groups)
        return out
    if _is_pointwise(windows, grad.itemsize):
        matrices = contiguous(weight).reshape(groups, outputs // groups, inner).swapaxes(1, 2)
        return _multiply(matrices, grad, bias, out)
    matrices, sums = _matrices(weight, groups).swapaxes(1, 2), computing_dtype(grad.dtype)
    (rows, row_elements), across = windows.size, windows.grid[1]
    row_bytes = across * (groups * matrices.shape[1] * sums.itemsize + outputs * grad.itemsize)
    for piece in _pieces(len(grad), windows.image[0], -(-row_bytes // windows.stride[0])):
        first, last = _windows_over(windows, piece.rows.start, piece.rows.stop)
        part, product = out[piece.images, :, piece.rows], None
        columns = round_up(len(part) * (last - first) * across, _WHOLE)
        if columns:
            beside = _beside_each_other(grad[piece.images, :, first:last], groups, columns)
            product = _product(matrices, beside)
        row = columns * sums.itemsize
        strides = Strides(
            (last - first) * across * sums.itemsize, matrices.shape[1] * row, rows * row_elements * row,
            row_elements * row, row, across * sums.itemsize, sums.itemsize,
        )  # fmt: skip
        moved = windows.padding[0] + piece.rows.start - first * windows.stride[0]
        over = Windows(
            windows.size, windows.stride, (moved, windows.padding[1]), windows.dilation,
            (part.shape[2], part.shape[3]), (last - first, across),
        )  # fmt: skip
        lay(product, strides, groups, over, bias, part)
    return out


def conv_weight(grad: DeviceArray, x: DeviceArray, windows: Windows, groups: int) -> DeviceArray:
    """Return the gradient of `conv` by its weight."""
    outputs, inner = grad.shape[1] // groups, x.shape[1] // groups
    shape = (outputs * groups, inner, *windows.size)
    if not grad.size or not math.prod(shape):
        return zeros(shape, x.dtype)
    out, x, elements = empty(shape, x.dtype), contiguous(x), inner * math.prod(windows.size)
    if outputs < _FEW_OUTPUTS:
        conv_direct.run_weight(out, contiguous(grad), x, windows, groups)
        return out
    depth, across = round_up(elements, _WHOLE), windows.grid[1]
    pieces = _pieces(len(x), windows.grid[0], across * groups * (depth + outputs) * x.itemsize)
    sums: DeviceArray | None = None
    for piece in pieces:
        columns = round_up(piece.all_rows * across, _WHOLE)
        patches = _gathered(x, piece, windows, groups, depth, columns)
        beside = _beside_each_other(grad[piece.images, :, piece.rows], groups, columns)
        sums = _product(beside, patches.swapaxes(1, 2), sums)
    assert sums is not None  # there is a piece for each image at least
    copy(sums[:, :, :elements], out=out.reshape(groups, outputs, elements))
    return out
