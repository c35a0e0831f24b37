"""Layers that rearrange elements."""

from collections.abc import Sequence

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import rearrange, shape, sliding_windows
from spillgrad.tensor import Tensor

__all__ = ["ChannelShuffle", "Flatten", "Fold", "PixelShuffle", "PixelUnshuffle", "Unflatten", "Unfold"]


class Flatten(FunctionLayer):
    """Join the dimensions from `start_dim` to `end_dim` into one."""

    _function = shape.flatten
    start_dim: int = 1
    end_dim: int = -1


class Unflatten(FunctionLayer):
    """Split one dimension into several dimensions of the sizes `unflattened_size`."""

    dim: int
    unflattened_size: Sequence[int]

    def _set_up(self) -> None:
        self.unflattened_size = tuple(self.unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        return shape.unflatten(x, self.dim, self.unflattened_size)


class PixelShuffle(FunctionLayer):
    """Rearrange r² channels as r × r pixels. Shapes: (..., C r², H, W) gives (..., C, H r, W r)."""

    _function = rearrange.pixel_shuffle
    upscale_factor: int


class PixelUnshuffle(FunctionLayer):
    """Rearrange r × r pixels as r² channels. Shapes: (..., C, H r, W r) gives (..., C r², H, W)."""

    _function = rearrange.pixel_unshuffle
    downscale_factor: int


class ChannelShuffle(FunctionLayer):
    """Interleave groups of channels. Shapes: (N, C, ...)."""

    _function = rearrange.channel_shuffle
    groups: int


class Unfold(FunctionLayer):
    """Return the sliding windows of images as columns. Shapes: (N, C, H, W) gives (N, C · kernel elements, windows)."""

    _function = sliding_windows.unfold_image
    kernel_size: int | Sequence[int]
    dilation: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    stride: int | Sequence[int] = 1


class Fold(FunctionLayer):
    """Add windows, one in each column, into images, at the positions from which `Unfold` takes them."""

    _function = sliding_windows.fold
    output_size: int | Sequence[int]
    kernel_size: int | Sequence[int]
    dilation: int | Sequence[int] = 1
    padding: int | Sequence[int] = 0
    stride: int | Sequence[int] = 1
