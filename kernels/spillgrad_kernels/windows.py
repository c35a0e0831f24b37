"""The positions of the windows of convolution and pooling in an image."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """A grid of equal windows over an image; every field is a pair (down, across).

    Element t of window i lies at `i * stride + t * dilation - padding` of the image. Elements outside are padding.
    """

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    image: Pair
    grid: Pair


class Ranges(NamedTuple):
    """Windows along one dimension. Elements of window i are at starts[i], starts[i] + step, … below stops[i]."""

    starts: np.ndarray
    stops: np.ndarray
    step: int


def ranges(windows: Windows) -> tuple[Ranges, Ranges]:
    """Return the ranges, down and across, of equal windows, without the elements that lie outside the image."""
    found = []
    for size, stride, padding, step, image, grid in zip(
        windows.size, windows.stride, windows.padding, windows.dilation, windows.image, windows.grid, strict=True
    ):
        begins = np.arange(grid) * stride - padding
        stops = np.minimum(begins + (size - 1) * step + 1, image)
        # The first element inside the image is a whole number of steps after the window's beginning.
        starts = begins + np.maximum(0, -(begins // step)) * step * (begins < 0)
        found.append(Ranges(starts, stops, step))
    return found[0], found[1]


def adaptive_ranges(image: Pair, grid: Pair) -> tuple[Ranges, Ranges]:
    """Return the ranges, down and across, of windows that cut an image into a grid of any size.

    Neighbouring windows overlap if the grid does not divide the image evenly.
    """
    found = []
    for size, count in zip(image, grid, strict=True):
        place = np.arange(count)
        found.append(Ranges(place * size // count, -(-(place + 1) * size // count), 1))
    return found[0], found[1]
