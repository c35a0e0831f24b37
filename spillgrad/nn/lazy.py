"""Lazy layers, which take one of their sizes from their first input, and the base of lazy modules.

Source: torch.nn.modules.lazy.
"""

import inspect
from typing import Any, ClassVar

from spillgrad.errors import ArgumentError, GraphError, ShapeError
from spillgrad.nn import batch_norm, conv, linear
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from spillgrad.tensor import Tensor

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d", "LazyInstanceNorm2d",
    "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip


class LazyModuleMixin(Module):
    """The base of modules that set the shapes of their parameters when they are first called.

    Name it before the other base: `class LazyScale(LazyModuleMixin, Scale)`. Register each parameter without shape as
    an `UninitializedParameter`, and define `initialize_parameters`, which the first call gets its arguments from. Then
    the module's class becomes `cls_to_become`, if that is set. Loading a state dict also sets the shapes. Set dtype and
    device before, the optimizer after.
    Raises GraphError in the first call if `initialize_parameters` left a parameter without shape.
    """

    cls_to_become: ClassVar[type[Module] | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._load_hook = self.register_load_state_dict_pre_hook(_take_shapes)
        self._initialize_hook = self.register_forward_pre_hook(_initialize, with_kwargs=True)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Materialize and fill the parameters; every subclass defines it.

        Parameters
        ----------
        *args : object
            The positional arguments of the first call.
        **kwargs : object
            The keyword arguments of the first call.
        """
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}; define it, and call "
            "materialize(shape) of each parameter there"
        )

    def has_uninitialized_params(self) -> bool:
        """Return whether a parameter or buffer of this module itself has no shape yet.

        Returns
        -------
        bool
            Parameters of its submodules do not count.
        """
        return any(map(is_lazy, (*self._parameters.values(), *self._buffers.values())))


def _initialize(module: LazyModuleMixin, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Initialize a lazy module before its first forward."""
    module.initialize_parameters(*args, **kwargs)
    if module.has_uninitialized_params():
        raise GraphError(
            f"module {type(module).__name__} has not been fully initialized; let initialize_parameters materialize "
            "each parameter"
        )
    module._initialize_hook.remove()
    module._load_hook.remove()
    del module._initialize_hook, module._load_hook
    if module.cls_to_become is not None:
        module.__class__ = module.cls_to_become  # type: ignore[assignment]


def _take_shapes(module: LazyModuleMixin, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Materialize each parameter and buffer without shape for which a state dict that is being loaded has a value."""
    for name, tensor in (*module._parameters.items(), *module._buffers.items()):
        value = state_dict.get(prefix + name)
        if value is None or is_lazy(value):
            continue
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            tensor.materialize(tuple(value.shape))


class _LazyLayer(LazyModuleMixin):
    """The base of layers whose first argument is left out: the first input gives this size."""

    _size: ClassVar[str]  # the attribute with the size
    _dims: int

    def __init_subclass__(cls, size: str | None = None) -> None:
        super().__init_subclass__()
        if size is not None:
            cls._size = size
            cls.cls_to_become = cls.__bases__[-1]
            if cls.__init__ is _LazyLayer.__init__:
                parameters = list(inspect.signature(cls.cls_to_become).parameters.values())
                cls.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(0, *args, **kwargs)
        for name, buffer in self._buffers.items():
            if buffer is not None and name in self._shapes():
                self._buffers[name] = UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)

    def _new_parameters(self, device: Any, dtype: Any, **shapes: tuple[int, ...] | None) -> None:
        for name, shape in shapes.items():
            made = None if shape is None else UninitializedParameter(device=device, dtype=dtype)
            self.register_parameter(name, made)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of parameters and buffers; the base that is not lazy defines them."""
        return super()._shapes()  # type: ignore[misc, no-any-return]

    def _size_of(self, input: Tensor) -> int:
        """Return the size that an input has."""
        return input.shape[-1]

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        """Set the size, materialize the parameters and buffers, and fill them as the layer's constructor does.

        Parameters
        ----------
        input : Tensor
            The input of the first call, which has the size.
        *args : object
            Its other positional arguments.
        **kwargs : object
            Its keyword arguments.
        """
        if getattr(self, self._size) == 0:  # also where a state dict has set the shapes
            setattr(self, self._size, self._size_of(input))
        if not self.has_uninitialized_params():
            return
        shapes = self._shapes()
        for name, tensor in (*self._parameters.items(), *self._buffers.items()):
            if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
                tensor.materialize(shapes[name])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the parameters as the layer's constructor does; while they have no shape, do nothing."""
        if not self.has_uninitialized_params() and getattr(self, self._size) != 0:
            super().reset_parameters()  # type: ignore[misc]


class _LazyChannels(_LazyLayer):
    """The base of lazy layers whose input has channels, with or without a batch."""

    groups = 1

    def _size_of(self, input: Tensor) -> int:
        dims = self._dims
        if input.ndim not in (dims + 1, dims + 2):
            raise ShapeError(
                f"Expected {dims + 1}D (unbatched) or {dims + 2}D (batched) input to {type(self).__name__}, but got "
                f"input of size: {input.shape}"
            )
        channels: int = input.shape[-dims - 1]
        if channels % self.groups:
            raise ArgumentError(
                f"{type(self).__name__}: in_channels must be divisible by groups, got {channels} and {self.groups}"
            )
        return channels


class _LazyBatchNorm(_LazyLayer):
    def _size_of(self, input: Tensor) -> int:
        return input.shape[1]


class _LazyInstanceNorm(_LazyChannels):
    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype, bias=bias)


class LazyLinear(_LazyLayer, linear.Linear, size="in_features"):
    """A `Linear` whose `in_features` is the size of its first input's last dimension; it becomes a `Linear` then.

    Parameters
    ----------
    out_features : int
        Size of the result's last dimension.
    bias : bool, default True
        Whether to add a bias.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.LazyLinear(3)
    >>> layer(sg.zeros(2, 5)).shape
    (2, 3)
    >>> layer
    Linear(in_features=5, out_features=3, bias=True)
    """


class LazyConv1d(_LazyChannels, conv.Conv1d, size="in_channels"):
    """A `Conv1d` whose `in_channels` are those of its first input; it becomes a `Conv1d` then.

    Parameters
    ----------
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
    """


class LazyConv2d(_LazyChannels, conv.Conv2d, size="in_channels"):
    """A `Conv2d` whose `in_channels` are those of its first input; it becomes a `Conv2d` then.

    Parameters
    ----------
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
    """


class LazyConv3d(_LazyChannels, conv.Conv3d, size="in_channels"):
    """A `Conv3d` whose `in_channels` are those of its first input; it becomes a `Conv3d` then.

    Parameters
    ----------
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
    """


class LazyConvTranspose1d(_LazyChannels, conv.ConvTranspose1d, size="in_channels"):
    """A `ConvTranspose1d` whose `in_channels` are those of its first input; it becomes a `ConvTranspose1d` then.

    Parameters
    ----------
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
    """


class LazyConvTranspose2d(_LazyChannels, conv.ConvTranspose2d, size="in_channels"):
    """A `ConvTranspose2d` whose `in_channels` are those of its first input; it becomes a `ConvTranspose2d` then.

    Parameters
    ----------
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
    """


class LazyConvTranspose3d(_LazyChannels, conv.ConvTranspose3d, size="in_channels"):
    """A `ConvTranspose3d` whose `in_channels` are those of its first input; it becomes a `ConvTranspose3d` then.

    Parameters
    ----------
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
    """


class LazyBatchNorm1d(_LazyBatchNorm, batch_norm.BatchNorm1d, size="num_features"):
    """A `BatchNorm1d` whose `num_features` are its first input's channels; it becomes a `BatchNorm1d` then.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """


class LazyBatchNorm2d(_LazyBatchNorm, batch_norm.BatchNorm2d, size="num_features"):
    """A `BatchNorm2d` whose `num_features` are its first input's channels; it becomes a `BatchNorm2d` then.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """


class LazyBatchNorm3d(_LazyBatchNorm, batch_norm.BatchNorm3d, size="num_features"):
    """A `BatchNorm3d` whose `num_features` are its first input's channels; it becomes a `BatchNorm3d` then.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """


class LazyInstanceNorm1d(_LazyInstanceNorm, batch_norm.InstanceNorm1d, size="num_features"):
    """An `InstanceNorm1d` whose `num_features` are its first input's channels; it becomes an `InstanceNorm1d` then.

    Unlike `InstanceNorm1d`, it has a scale and running statistics by default.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """


class LazyInstanceNorm2d(_LazyInstanceNorm, batch_norm.InstanceNorm2d, size="num_features"):
    """An `InstanceNorm2d` whose `num_features` are its first input's channels; it becomes an `InstanceNorm2d` then.

    Unlike `InstanceNorm2d`, it has a scale and running statistics by default.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """


class LazyInstanceNorm3d(_LazyInstanceNorm, batch_norm.InstanceNorm3d, size="num_features"):
    """An `InstanceNorm3d` whose `num_features` are its first input's channels; it becomes an `InstanceNorm3d` then.

    Unlike `InstanceNorm3d`, it has a scale and running statistics by default.

    Parameters
    ----------
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """
