"""Pooling layers."""

from collections.abc import Sequence
from typing import ClassVar

from spillgrad.nn.function_layer import FunctionLayer
from spillgrad.ops import pooling, volume_pooling
from spillgrad.ops.window_arguments import Sizes, sizes
from spillgrad.tensor import Tensor

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "LPPool1d", "LPPool2d", "LPPool3d", "MaxPool1d",
    "MaxPool2d", "MaxPool3d", "MaxUnpool1d", "MaxUnpool2d", "MaxUnpool3d",
]  # fmt: skip


class _Pool(FunctionLayer):
    """The base of pooling layers: unless a stride is given, the stride is the size of the window."""

    kernel_size: Sizes
    stride: Sizes | None = None

    def _set_up(self) -> None:
        if self.stride is None:
            self.stride = self.kernel_size


class _MaxPool(_Pool):
    padding: Sizes = 0
    dilation: Sizes = 1
    return_indices: bool = False
    ceil_mode: bool = False
    _shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class MaxPool1d(_MaxPool):
    """Take the largest element of each window of a signal.

    The input has shape (N, C, L) or (C, L), the result (N, C, l) or (C, l).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides; padding is never taken.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    """

    _function = pooling.max_pool1d


class MaxPool2d(_MaxPool):
    """Take the largest element of each window of an image.

    The input has shape (N, C, H, W) or (C, H, W), the result (N, C, h, w) or (C, h, w).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides; padding is never taken.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.nn.MaxPool2d(2)(sg.arange(16.0).reshape(1, 4, 4))
    tensor([[[ 5.,  7.],
             [13., 15.]]])
    """

    _function = pooling.max_pool2d


class MaxPool3d(_MaxPool):
    """Take the largest element of each box of a volume.

    The input has shape (N, C, D, H, W) or (C, D, H, W), the result (N, C, d, h, w) or (C, d, h, w).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides; padding is never taken.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    """

    _function = volume_pooling.max_pool3d


class AvgPool1d(_Pool):
    """Take the mean of each window of a signal.

    The input has shape (N, C, L) or (C, L), the result (N, C, l) or (C, l).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    count_include_pad : bool, default True
        Whether padding counts as zeros; otherwise it does not count.
    """

    _function = pooling.avg_pool1d
    padding: Sizes = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    _shown = ("kernel_size", "stride", "padding")


class AvgPool2d(AvgPool1d):
    """Take the mean of each window of an image.

    The input has shape (N, C, H, W) or (C, H, W), the result (N, C, h, w) or (C, h, w).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    count_include_pad : bool, default True
        Whether padding counts as zeros; otherwise it does not count.
    divisor_override : int, optional
        Number to divide the sums by; by default, the number of elements.
    """

    _function = pooling.avg_pool2d
    divisor_override: int | None = None


class AvgPool3d(AvgPool2d):
    """Take the mean of each box of a volume.

    The input has shape (N, C, D, H, W) or (C, D, H, W), the result (N, C, d, h, w) or (C, d, h, w).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    count_include_pad : bool, default True
        Whether padding counts as zeros; otherwise it does not count.
    divisor_override : int, optional
        Number to divide the sums by; by default, the number of elements.
    """

    _function = volume_pooling.avg_pool3d


class _Adaptive(FunctionLayer):
    output_size: pooling.OutputSize
    _shown = ("output_size",)


class AdaptiveAvgPool1d(_Adaptive):
    """Take means of windows that cover a signal of any length.

    The input has shape (N, C, L) or (C, L); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int
        Number of windows.
    """

    _function = pooling.adaptive_avg_pool1d


class AdaptiveAvgPool2d(_Adaptive):
    """Take means of windows that cover an image of any size.

    The input has shape (N, C, H, W) or (C, H, W); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int or sequence of int or None
        Size of the result; None, for a dimension, keeps the input's size.
    """

    _function = pooling.adaptive_avg_pool2d


class AdaptiveAvgPool3d(_Adaptive):
    """Take means of boxes that cover a volume of any size.

    The input has shape (N, C, D, H, W) or (C, D, H, W); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int or sequence of int or None
        Size of the result; None, for a dimension, keeps the input's size.
    """

    _function = volume_pooling.adaptive_avg_pool3d


class _AdaptiveMax(_Adaptive):
    return_indices: bool = False


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Take the largest elements of windows that cover a signal of any length.

    The input has shape (N, C, L) or (C, L); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int
        Number of windows.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    """

    _function = pooling.adaptive_max_pool1d


class AdaptiveMaxPool2d(_AdaptiveMax):
    """Take the largest elements of windows that cover an image of any size.

    The input has shape (N, C, H, W) or (C, H, W); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int or sequence of int or None
        Size of the result; None, for a dimension, keeps the input's size.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    """

    _function = pooling.adaptive_max_pool2d


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Take the largest elements of boxes that cover a volume of any size.

    The input has shape (N, C, D, H, W) or (C, D, H, W); the result has the size `output_size`, whatever the input's.

    Parameters
    ----------
    output_size : int or sequence of int or None
        Size of the result; None, for a dimension, keeps the input's size.
    return_indices : bool, default False
        Whether to return the indices of the elements, too.
    """

    _function = volume_pooling.adaptive_max_pool3d


class _PowerPool(FunctionLayer):
    norm_type: float
    kernel_size: Sizes
    stride: Sizes | None = None
    ceil_mode: bool = False


class LPPool1d(_PowerPool):
    """Compute ``(sum of x ** p) ** (1 / p)`` of each window of a signal, with p = `norm_type`.

    The input has shape (N, C, L) or (C, L), the result (N, C, l) or (C, l).

    Parameters
    ----------
    norm_type : float
        Exponent: 1 gives the sum, infinity the largest element.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    """

    _function = pooling.lp_pool1d


class LPPool2d(_PowerPool):
    """Compute ``(sum of x ** p) ** (1 / p)`` of each window of an image, with p = `norm_type`.

    The input has shape (N, C, H, W) or (C, H, W), the result (N, C, h, w) or (C, h, w).

    Parameters
    ----------
    norm_type : float
        Exponent: 1 gives the sum, infinity the largest element.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    """

    _function = pooling.lp_pool2d


class LPPool3d(_PowerPool):
    """Compute ``(sum of x ** p) ** (1 / p)`` of each box of a volume, with p = `norm_type`.

    The input has shape (N, C, D, H, W) or (C, D, H, W), the result (N, C, d, h, w) or (C, d, h, w).

    Parameters
    ----------
    norm_type : float
        Exponent: 1 gives the sum, infinity the largest element.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    ceil_mode : bool, default False
        Whether a last window that is not full counts.
    """

    _function = volume_pooling.lp_pool3d


class _Unpool(_Pool):
    padding: Sizes = 0
    _dims: ClassVar[int]

    def _set_up(self) -> None:
        super()._set_up()
        for name, least in (("kernel_size", 1), ("stride", 1), ("padding", 0)):
            setattr(self, name, sizes(type(self).__name__, name, getattr(self, name), self._dims, least))

    def forward(self, x: Tensor, indices: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        unpooled: Tensor = type(self)._function(x, indices, self.kernel_size, self.stride, self.padding, output_size)
        return unpooled


class MaxUnpool1d(_Unpool):
    """Put elements back at the indices from which `MaxPool1d` took them; all other elements are zero.

    The input and the indices have shape (N, C, l) or (C, l), the result (N, C, L) or (C, L).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    """

    _function, _dims = pooling.max_unpool1d, 1


class MaxUnpool2d(_Unpool):
    """Put elements back at the indices from which `MaxPool2d` took them; all other elements are zero.

    The input and the indices have shape (N, C, h, w) or (C, h, w), the result (N, C, H, W) or (C, H, W).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    """

    _function, _dims = pooling.max_unpool2d, 2


class MaxUnpool3d(_Unpool):
    """Put elements back at the indices from which `MaxPool3d` took them; all other elements are zero.

    The input and the indices have shape (N, C, d, h, w) or (C, d, h, w), the result (N, C, D, H, W) or (C, D, H, W).

    Parameters
    ----------
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, optional
        Distance between windows; by default, the window's size.
    padding : int or sequence of int, default 0
        Width of padding on both sides.
    """

    _function, _dims = volume_pooling.max_unpool3d, 3
