"""The arguments of convolution and pooling, in one and two dimensions, and the windows that they describe."""

import operator
from collections.abc import Sequence
from typing import Any

from spillgrad.errors import ArgumentError, OperandError, ShapeError
from spillgrad.ops.shape import Shape, reshape
from spillgrad.tensor import Tensor
from spillgrad_kernels.windows import Pair, Windows

Sizes = int | Sequence[int]


def sizes(name: str, option: str, value: Any, count: int, least: int) -> tuple[int, ...]:
    """Return an option as `count` integers; one integer stands for all.

    Raises OperandError for a non-integer, ArgumentError for another number of integers or an integer below `least`.
    """
    try:
        values = tuple(map(operator.index, value)) if hasattr(value, "__iter__") else (operator.index(value),)
    except TypeError as error:
        raise OperandError(f"{name}: got {option} {value!r}; wanted an integer, or {count} of them") from error
    values = values * count if len(values) == 1 else values
    if len(values) != count or min(values) < least:
        raise ArgumentError(f"{name}: got {option} {value!r}; wanted an integer from {least} on, or {count} of them")
    return values


def windows_over(
    name: str, image: Shape, size: Shape, stride: Shape, before: Shape, after: Shape, dilation: Shape,
    ceil_mode: bool = False,
) -> Windows:  # fmt: skip
    """Return the windows that fit into the padded image; `ceil_mode` adds one that begins inside but ends outside.

    Raises ShapeError if no window fits.
    """
    grid = []
    for d in range(2):
        room = image[d] + before[d] + after[d] - dilation[d] * (size[d] - 1) - 1
        count = (-(-room // stride[d]) if ceil_mode else room // stride[d]) + 1
        # A window that began in the padding after the image would see nothing of it.
        grid.append(count - 1 if ceil_mode and (count - 1) * stride[d] >= image[d] + before[d] else count)
    if min(grid) < 1 or not all(image):
        raise ShapeError(
            f"{name}: got an image of {image} and a kernel of {size} (dilation {dilation}, padding {before}); not one "
            "window fits: pad more, or take a smaller kernel"
        )
    return Windows(*map(as_pair, (size, stride, before, dilation, image, grid)))


def as_pair(values: Sequence[int]) -> Pair:
    """Return a sequence of two sizes as the pair (down, across)."""
    down, across = values
    return down, across


def as_image(tensor: Tensor) -> Tensor:
    """Return a signal (N, C, L) as images (N, C, 1, L)."""
    return reshape(tensor, (*tensor.shape[:2], 1, tensor.shape[2]))


def as_signal(tensor: Tensor) -> Tensor:
    """Return images (N, C, 1, L) as a signal (N, C, L)."""
    return reshape(tensor, (*tensor.shape[:2], tensor.shape[3]))
