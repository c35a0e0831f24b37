"""Convolution and its two derivatives on a device, as matrix products over patches that are gathered a piece at a time.

A piece is some images, or some rows of one: as many as have patches of `_PIECE_BYTES`, which become the columns of a
matrix. The product over it is that of `matmul`, whose tensor cores and accesses of 16 bytes need neighbours that lie
beside each other in memory, which a window's elements do not. Beside the M multiply-adds of each of its elements, that
a matrix is written and read is little, and pieces are so small that large caches hold them. Where a group has few
outputs, above all one for each channel, the product would leave most of its tile empty: there a thread adds up each
element of a result by itself.

The derivative by the input gathers too: each element of an image adds up what the windows over it have for it, in one
order. Columns beyond the last are there so that rows begin at multiples of 16 bytes.
Source: Chellapilla et al. 2006, "High performance convolutional neural networks for document processing".
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types

from spillgrad_kernels.cuda import conv_direct
from spillgrad_kernels.cuda.array import empty, zeros
from spillgrad_kernels.cuda.conv_direct import sums_dtype
from spillgrad_kernels.cuda.elementwise import compute, contiguous, copy
from spillgrad_kernels.cuda.jit.compile import Kernel, blocks_for, cuda
from spillgrad_kernels.cuda.matmul import matmul
from spillgrad_kernels.cuda.pointers import ACCESS_BYTES, loaders, quotient, storers
from spillgrad_kernels.cuda.reductions import sum as sum_over
from spillgrad_kernels.cuda.windows import Strides, lay
from spillgrad_kernels.device_array import DeviceArray
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.integer_math import round_up
from spillgrad_kernels.windows import Windows

# What patches, and what is made of them or what they are made of, take at once.
_PIECE_BYTES = 1 << 26
# Rows and columns of matrices are multiples of so many elements: 16 bytes of half precision.
_WHOLE = 8
# Outputs of a group below which the product's tile would be so empty that it takes longer than sums by single threads.
_FEW_OUTPUTS = 16
# Tiles of a result below which the depth of its product is shared among several, and the least that each has then.
_WANTED_TILES, _TILE = 256, 128
_SHARED_DEPTH = 256
# Elements of patches that a thread gathers, at least.
_GATHERED = 32


# --- Patches ---------------------------------------------------------------------------------------------------------


@functools.cache
def gathering(nbytes: int) -> Kernel:
    """Return the kernel that writes patches as columns, of elements of so many bytes, a thread for some channels."""
    name = f"int{8 * nbytes}"
    load, store, nothing = loaders[name, 1], storers[name, 1], getattr(np, name)(0)

    def gather(
        count: int, columns: int, positions: int, down: int, across: int, step_y: int, step_x: int, pad_y: int,
        pad_x: int, rows: int, row_elements: int, gap_y: int, gap_x: int, channels: int, inner: int, own: int,
        depth: int, height: int, width: int, x: int, out: int,
    ) -> None:  # fmt: skip
        turn = cuda.grid(1)
        while turn < count:
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
            turn += cuda.gridsize(1)

    gather.__name__ = f"gather_patches_{nbytes}"
    return Kernel(gather, [types.int64] * 21)


class _Piece(NamedTuple):
    """Some images, or of one some rows."""

    images: slice
    rows: slice

    @property
    def all_rows(self) -> int:
        """How many rows all its images have."""
        return int((self.images.stop - self.images.start) * (self.rows.stop - self.rows.start))


def _pieces(count: int, rows: int, row_bytes: int) -> list[_Piece]:
    """Return images of so many rows as pieces of a few bytes, all about as large; a row is never parted."""
    at_once = max(1, _PIECE_BYTES // row_bytes)
    if at_once >= rows:
        images = -(-count // -(-count // min(count, at_once // rows)))
        return [_Piece(slice(n, min(n + images, count)), slice(0, rows)) for n in range(0, count, images)]
    at_once = -(-rows // -(-rows // at_once))
    return [
        _Piece(slice(n, n + 1), slice(y, min(y + at_once, rows))) for n in range(count) for y in range(0, rows, at_once)
    ]


def _gathered(
    x: DeviceArray, piece: _Piece, windows: Windows, groups: int, depth: int, columns: int
) -> DeviceArray:  # fmt: skip
    """Return the patches of the windows in some rows of the grid as columns; what is beyond them is 0.

    Shapes: x (N, C, *image) without gaps, result (groups, depth, columns). Rows are a channel's elements of a window.
    """
    out = empty((groups, depth, columns), x.dtype)
    images, channels = x[piece.images], x.shape[1]
    down, across = piece.rows.stop - piece.rows.start, windows.grid[1]
    own = -(-_GATHERED // math.prod(windows.size))
    count = -(-channels // own) * columns
    kernel = gathering(x.dtype.itemsize)
    kernel.launch(
        blocks_for(count, kernel.threads), count, columns, piece.all_rows * across, down, across, *windows.stride,
        windows.padding[0] - piece.rows.start * windows.stride[0], windows.padding[1], *windows.size,
        *windows.dilation, channels, channels // groups, own, depth, *windows.image, images.address, out.address,
    )  # fmt: skip
    return out


def _beside_each_other(images: DeviceArray, groups: int, columns: int) -> DeviceArray:
    """Return the places of all images in a row for each channel, and zeros behind them.

    Shapes: images (N, C, H, W), result (groups, C / groups, columns).
    """
    n, channels, height, width = images.shape
    out, used = empty((channels, columns), images.dtype), n * height * width
    copy(images.transpose(1, 0, 2, 3), out=out[:, :used].reshape(channels, n, height, width))
    if used < columns:
        out[:, used:].fill(0)
    return out.reshape(groups, channels // groups, columns)


def _matrices(weight: DeviceArray, groups: int) -> DeviceArray:
    """Return the weights of each group as a matrix with a row for each output, and zeros behind it.

    Shapes: weight (M, C / groups, *size), result (groups, M / groups, depth).
    """
    weight = contiguous(weight)
    outputs, depth = len(weight), math.prod(weight.shape[1:])
    rows = weight.reshape(outputs, depth)
    if depth % _WHOLE:
        rows = zeros((outputs, round_up(depth, _WHOLE)), weight.dtype)
        copy(weight.reshape(outputs, depth), out=rows[:, :depth])
    return rows.reshape(groups, outputs // groups, rows.shape[1])


def _parts(groups: int, rows: int, depth: int, columns: int) -> int:
    """Return in how many parts of its depth to make a product, so that even one of few tiles fills a device."""
    tiles = groups * -(-rows // _TILE) * -(-columns // _TILE)
    return max(1, min(_WANTED_TILES // tiles, depth // _SHARED_DEPTH))


def _products(a: DeviceArray, b: DeviceArray, parts: int, before: DeviceArray | None = None) -> DeviceArray:
    """Return the products of the groups in so many parts of their depth, added to what was `before`.

    Shapes: a (groups, rows, depth), b (groups, depth, columns), result (parts, groups, rows, columns).
    """
    groups, depth, columns = b.shape
    left = a.reshape(groups, a.shape[1], parts, depth // parts).transpose(2, 0, 1, 3)
    right = b.reshape(groups, parts, depth // parts, columns).transpose(1, 0, 2, 3)
    return matmul(left, right, before, accumulate=before is not None, dtype=sums_dtype(a.dtype))


def _total(products: DeviceArray) -> DeviceArray:
    return products[0] if len(products) == 1 else sum_over(products, (0,))


def _product(a: DeviceArray, b: DeviceArray) -> DeviceArray:
    """Return the products of the groups; see `_products`."""
    (groups, rows, depth), columns = a.shape, b.shape[2]
    parts = _parts(groups, rows, depth, columns)
    while parts > 1 and depth % (parts * _WHOLE):
        parts -= 1
    return _total(_products(a, b, parts))


def _finish(product: DeviceArray, bias: DeviceArray | None, out: DeviceArray) -> None:
    """Write a product of (N, C, ...), plus the bias of its channel."""
    if bias is None:
        copy(product, out=out)
    else:
        shift = bias.reshape(-1, *(1,) * (out.ndim - 2))
        compute(ROWS["add"].forward, "add", [product, shift], (out.dtype,), (out,))


def _is_pointwise(windows: Windows, itemsize: int) -> bool:
    """Return whether images are matrices that a product takes as they are: windows of one element, at every one."""
    places = math.prod(windows.image)
    is_every = windows.size == windows.stride == (1, 1) and windows.grid == windows.image and not any(windows.padding)
    return is_every and places * itemsize % ACCESS_BYTES == 0 and places >= _TILE


def _multiply(
    matrices: DeviceArray, images: DeviceArray, bias: DeviceArray | None, out: DeviceArray
) -> DeviceArray:  # fmt: skip
    """Write to images the product of each group's matrix and its channels, plus a bias; return them."""
    groups, rows, depth = matrices.shape
    by_group = contiguous(images).reshape(len(images), groups, depth, -1)
    target = out.reshape(len(out), groups, rows, -1)
    if bias is None:
        matmul(matrices, by_group, target)
    else:
        _finish(matmul(matrices, by_group, dtype=sums_dtype(out.dtype)).reshape(*out.shape), bias, out)
    return out


def conv(
    x: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, windows: Windows, groups: int
) -> DeviceArray:  # fmt: skip
    """Return the sum of each window's elements times the weights, for every output channel, plus its bias.

    Shapes: x (N, C, *image), weight (M, C / groups, *size), bias (M,), result (N, M, *grid). Any strides.
    """
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
    depth, across, sums = matrices.shape[2], windows.grid[1], sums_dtype(x.dtype)
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
    """Return the first and last + 1 of the grid's rows whose windows see rows of the image."""
    reach, step = (windows.size[0] - 1) * windows.dilation[0], windows.stride[0]
    begin = max(0, -(-(first + windows.padding[0] - reach) // step))
    end = min(windows.grid[0], (last - 1 + windows.padding[0]) // step + 1)
    return begin, max(begin, end)


def conv_input(
    grad: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, windows: Windows, groups: int
) -> DeviceArray:
    """Return the gradient of `conv` by its input, plus a bias: the transposed convolution.

    Shapes: grad (N, M, *grid), weight (M, C / groups, *size), bias (C,), result (N, C, *image). Any strides.
    """
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
    matrices, sums = _matrices(weight, groups).swapaxes(1, 2), sums_dtype(grad.dtype)
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
    """Return the gradient of `conv` by its weight.

    Shapes: grad (N, M, *grid), x (N, C, *image), result (M, C / groups, *size). Any strides.
    """
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
    most = max([piece.all_rows for piece in pieces]) * across
    parts = _parts(groups, outputs, most, depth)
    columns = round_up(most, parts * _WHOLE)
    sums: Any = None
    for piece in pieces:
        patches = _gathered(x, piece, windows, groups, depth, columns)
        beside = _beside_each_other(grad[piece.images, :, piece.rows], groups, columns)
        sums = _products(beside, patches.swapaxes(1, 2), parts, sums)
    total = _total(sums)
    copy(total[:, :, :elements], out=out.reshape(groups, outputs, elements))
    return out
