"""Pooling layers."""

from collections.abc import Sequence
from typing import Any

from spillgrad.nn.module import Module
from spillgrad.ops import pooling, volume_pooling
from spillgrad.ops.window_arguments import Sizes, sizes
from spillgrad.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
]  # fmt: skip


class _MaxPool(Module):
    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, dilation: Sizes = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Take the largest element of each window of a signal."""

    def forward(self, x: Tensor) -> Any:
        return pooling.max_pool1d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool2d(_MaxPool):
    """Take the largest element of each window of an image."""

    def forward(self, x: Tensor) -> Any:
        return pooling.max_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool3d(_MaxPool):
    """Take the largest element of each box of a volume."""

    def forward(self, x: Tensor) -> Any:
        return volume_pooling.max_pool3d(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class AvgPool1d(Module):
    """Take the mean of each window of a signal."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return pooling.avg_pool1d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(AvgPool1d):
    """Take the mean of each window of an image."""

    def __init__(
        self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        return pooling.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip


class AvgPool3d(AvgPool2d):
    """Take the mean of each box of a volume."""

    def forward(self, x: Tensor) -> Tensor:
        return volume_pooling.avg_pool3d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
            self.divisor_override,
        )  # fmt: skip


class _Adaptive(Module):
    def __init__(self, output_size: pooling.OutputSize) -> None:
        super().__init__()
        self.output_size = output_size

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Take means of windows so that the result has the wanted length, whatever the signal's."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_Adaptive):
    """Take means of windows so that the result has the wanted size, whatever the image's."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveAvgPool3d(_Adaptive):
    """Take means of boxes so that the result has the wanted size, whatever the volume's."""

    def forward(self, x: Tensor) -> Tensor:
        return volume_pooling.adaptive_avg_pool3d(x, self.output_size)


class _AdaptiveMax(_Adaptive):
    def __init__(self, output_size: pooling.OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Take the largest elements of windows so that the result has the wanted length, whatever the signal's."""

    def forward(self, x: Tensor) -> Any:
        return pooling.adaptive_max_pool1d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Take the largest elements of windows so that the result has the wanted size, whatever the image's."""

    def forward(self, x: Tensor) -> Any:
        return pooling.adaptive_max_pool2d(x, self.output_size, self.return_indices)


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Take the largest elements of boxes so that the result has the wanted size, whatever the volume's."""

    def forward(self, x: Tensor) -> Any:
        return volume_pooling.adaptive_max_pool3d(x, self.output_size, self.return_indices)


class _PowerPool(Module):
    def __init__(
        self, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def extra_repr(self) -> str:
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_PowerPool):
    """Take the root of the sum of powers of each window of a signal."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.lp_pool1d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool2d(_PowerPool):
    """Take the root of the sum of powers of each window of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return pooling.lp_pool2d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool3d(_PowerPool):
    """Take the root of the sum of powers of each box of a volume."""

    def forward(self, x: Tensor) -> Tensor:
        return volume_pooling.lp_pool3d(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class _Unpool(Module):
    _dims = 2

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self.kernel_size = sizes(type(self).__name__, "kernel_size", kernel_size, self._dims, 1)
        self.stride = (
            self.kernel_size if stride is None else sizes(type(self).__name__, "stride", stride, self._dims, 1)
        )
        self.padding = sizes(type(self).__name__, "padding", padding, self._dims, 0)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_Unpool):
    """Put elements back where `MaxPool1d` took them from, among zeros."""

    _dims = 1

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return pooling.max_unpool1d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool2d(_Unpool):
    """Put elements back where `MaxPool2d` took them from, among zeros."""

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return pooling.max_unpool2d(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool3d(_Unpool):
    """Put elements back where `MaxPool3d` took them from, among zeros."""

    _dims = 3

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        return volume_pooling.max_unpool3d(x, indices, self.kernel_size, self.stride, self.padding, output_size)
