"""Convolution layers."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from spillgrad.errors import ArgumentError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import conv
from spillgrad.ops.padding import pad
from spillgrad.ops.window_arguments import Sizes, sizes
from spillgrad.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


class _Conv(Module):
    """The base of convolution layers: options, parameters and their initial values."""

    weight: Parameter
    bias: Parameter | None
    _function: ClassVar[Callable[..., Tensor]]
    _dims = 2
    _transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0,
        dilation: Sizes = 1, groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{name}: got {in_channels} input and {out_channels} output channels in {groups} groups; "
                "the groups must divide both"
            )
        modes = ("zeros",) if self._transposed else ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ArgumentError(f"{name}: got padding_mode {padding_mode!r}; accepted are {', '.join(modes)}")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = sizes(name, "kernel_size", kernel_size, self._dims, 1)
        self.stride = sizes(name, "stride", stride, self._dims, 1)
        self.padding = padding if isinstance(padding, str) else sizes(name, "padding", padding, self._dims, 0)
        self.dilation = sizes(name, "dilation", dilation, self._dims, 1)
        self.groups = groups
        self.padding_mode = padding_mode
        shapes = self._shapes()
        self._new_parameters(device, dtype, weight=shapes["weight"], bias=shapes["bias"] if bias else None)
        self.reset_parameters()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        outer, inner = self.out_channels, self.in_channels
        if self._transposed:
            outer, inner = inner, outer
        return {"weight": (outer, inner // self.groups, *self.kernel_size), "bias": (self.out_channels,)}

    def reset_parameters(self) -> None:
        """Draw weight and bias from U(-1/sqrt(n), 1/sqrt(n)), where n counts the weights of one output channel."""
        init.uniform_by_fan((self.weight, self.bias), math.prod(self.weight.shape[1:]))

    def _padded(self, x: Tensor) -> tuple[Tensor, Sizes | str]:
        """Pad the input unless `padding_mode` is "zeros"; return the input and the zero padding still to be added."""
        if self.padding_mode == "zeros" or self.padding == "valid":
            return x, self.padding
        widths: list[int] = []  # from the last dimension on
        for d in reversed(range(self._dims)):
            if isinstance(self.padding, str):
                total = self.dilation[d] * (self.kernel_size[d] - 1)
                widths += [total // 2, total - total // 2]
            else:
                widths += [self.padding[d]] * 2
        return pad(x, widths, self.padding_mode), 0

    def forward(self, x: Tensor) -> Tensor:
        x, padding = self._padded(x)
        return type(self)._function(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        plain = {"padding": (0,) * self._dims, "output_padding": (0,) * self._dims, "dilation": (1,) * self._dims}
        for option, default in (*plain.items(), ("groups", 1), ("padding_mode", "zeros")):
            value = getattr(self, option, default)
            if value != default:
                shown.append(f"{option}={value!r}")
        return ", ".join(shown if self.bias is not None else [*shown, "bias=False"])


class Conv1d(_Conv):
    """Multiply every window of a signal by the same weights.

    The input has shape (N, in_channels, L), the result (N, out_channels, l), and the weight
    (out_channels, in_channels/groups, k). Weight and bias are drawn from U(-a, a) with a = 1/sqrt(n), where n
    counts the weights of one output channel.

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows.
    padding : int or sequence of int, or str, default 0
        Width of padding on both sides; "valid" is none, and "same" keeps the input's size.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default "zeros"
        What the padding consists of.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or for another `padding_mode`.
    """

    _function = conv.conv1d
    _dims = 1


class Conv2d(_Conv):
    """Multiply every window of an image by the same weights.

    The input has shape (N, in_channels, H, W), the result (N, out_channels, h, w), and the weight
    (out_channels, in_channels/groups, kh, kw). Weight and bias are drawn from U(-a, a) with a = 1/sqrt(n), where n
    counts the weights of one output channel.

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows.
    padding : int or sequence of int, or str, default 0
        Width of padding on both sides; "valid" is none, and "same" keeps the input's size.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default "zeros"
        What the padding consists of.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or for another `padding_mode`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.Conv2d(3, 16, kernel_size=3, padding=1)
    >>> layer(sg.randn(1, 3, 32, 32)).shape
    (1, 16, 32, 32)
    """

    _function = conv.conv2d


class Conv3d(_Conv):
    """Multiply every window of a volume by the same weights.

    The input has shape (N, in_channels, D, H, W), the result (N, out_channels, d, h, w), and the weight
    (out_channels, in_channels/groups, kd, kh, kw). Weight and bias are drawn from U(-a, a) with a = 1/sqrt(n), where n
    counts the weights of one output channel.

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows.
    padding : int or sequence of int, or str, default 0
        Width of padding on both sides; "valid" is none, and "same" keeps the input's size.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    padding_mode : {"zeros", "reflect", "replicate", "circular"}, default "zeros"
        What the padding consists of.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or for another `padding_mode`.
    """

    _function = conv.conv3d
    _dims = 3


class _ConvTranspose(_Conv):
    _transposed = True
    padding: tuple[int, ...]

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes = 0,
        output_padding: Sizes = 0, groups: int = 1, bias: bool = True, dilation: Sizes = 1, padding_mode: str = "zeros",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if isinstance(padding, str):
            raise ArgumentError(f"{name}: got padding {padding!r}; wanted integers")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.output_padding = sizes(name, "output_padding", output_padding, self._dims, 0)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        extra = self._extra(x, output_size)
        return type(self)._function(
            x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation
        )

    def _extra(self, x: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
        """Return the output padding that gives `output_size`; if that is None, return the layer's output padding."""
        if output_size is None:
            return self.output_padding
        wanted = tuple(output_size)[-self._dims :]
        least = [
            (x.shape[d - self._dims] - 1) * self.stride[d] - 2 * self.padding[d]
            + self.dilation[d] * (self.kernel_size[d] - 1) + 1
            for d in range(self._dims)
        ]  # fmt: skip
        extra = tuple(want - have for want, have in zip(wanted, least, strict=True))
        if any(not 0 <= more < max(step, 1) for more, step in zip(extra, self.stride, strict=True)):
            raise ArgumentError(
                f"{type(self).__name__}: requested an output size of {wanted}, but valid sizes range from "
                f"{tuple(least)} to {tuple(have + step - 1 for have, step in zip(least, self.stride, strict=True))}"
            )
        return extra


class ConvTranspose1d(_ConvTranspose):
    """Add the weights, scaled by each input element, to a longer signal: the transpose of `Conv1d`.

    The input has shape (N, in_channels, l), the result (N, out_channels, L), and the weight
    (in_channels, out_channels/groups, k).

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows of the result.
    padding : int or sequence of int, default 0
        Width that is left out of the result on both sides.
    output_padding : int or sequence of int, default 0
        Width that is added to the result at the end of each dimension.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    padding_mode : {"zeros"}, default "zeros"
        Accepted for likeness with `Conv1d`.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or `padding` or `padding_mode` is another text.
    """

    _function = conv.conv_transpose1d
    _dims = 1


class ConvTranspose2d(_ConvTranspose):
    """Add the weights, scaled by each input element, to a larger image: the transpose of `Conv2d`.

    The input has shape (N, in_channels, h, w), the result (N, out_channels, H, W), and the weight
    (in_channels, out_channels/groups, kh, kw).

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows of the result.
    padding : int or sequence of int, default 0
        Width that is left out of the result on both sides.
    output_padding : int or sequence of int, default 0
        Width that is added to the result at the end of each dimension.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    padding_mode : {"zeros"}, default "zeros"
        Accepted for likeness with `Conv2d`.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or `padding` or `padding_mode` is another text.
    """

    _function = conv.conv_transpose2d


class ConvTranspose3d(_ConvTranspose):
    """Add the weights, scaled by each input element, to a larger volume: the transpose of `Conv3d`.

    The input has shape (N, in_channels, d, h, w), the result (N, out_channels, D, H, W), and the weight
    (in_channels, out_channels/groups, kd, kh, kw).

    Parameters
    ----------
    in_channels : int
        Number of channels of the input.
    out_channels : int
        Number of channels of the result.
    kernel_size : int or sequence of int
        Size of the window.
    stride : int or sequence of int, default 1
        Distance between windows of the result.
    padding : int or sequence of int, default 0
        Width that is left out of the result on both sides.
    output_padding : int or sequence of int, default 0
        Width that is added to the result at the end of each dimension.
    groups : int, default 1
        Number of groups of channels; each is convolved apart from the others.
    bias : bool, default True
        Whether to add a bias to each channel.
    dilation : int or sequence of int, default 1
        Distance between elements of a window.
    padding_mode : {"zeros"}, default "zeros"
        Accepted for likeness with `Conv3d`.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `groups` does not divide both numbers of channels, or `padding` or `padding_mode` is another text.
    """

    _function = conv.conv_transpose3d
    _dims = 3
