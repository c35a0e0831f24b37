"""How windows lie over an image: what convolution and pooling share."""

from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """A grid of equal windows over an image; every field is a pair (down, across).

    Element t of window i lies at `i * stride + t * dilation - padding` of the image; what lies outside it is padding.
    """

    size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    image: Pair
    grid: Pair
