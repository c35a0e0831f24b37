"""Normalisation of channels over the batch or over each sample, with running statistics."""

from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.autograd.recompute.state import is_recomputing
from spillgrad.distributed.process_group import get_world_size, is_initialized
from spillgrad.errors import ShapeError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.normalization import Affine
from spillgrad.ops import channel_norm, creation, shape
from spillgrad.tensor import Tensor

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "SyncBatchNorm",
]  # fmt: skip


class _TrackedNorm(Affine):
    """The base of batch and instance normalisation: options, parameters and running statistics."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    _optional = frozenset({"num_batches_tracked"})  # old checkpoints lack this buffer

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        shapes = self._shapes() if affine else {}
        self._new_parameters(device, dtype, weight=shapes.get("weight"), bias=shapes.get("bias") if bias else None)
        options = {"device": device, "dtype": dtype}
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, creation.zeros(num_features, **options) if track_running_stats else None)
        count = creation.zeros((), device=device, dtype="int64") if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (self.num_features,))

    def reset_running_stats(self) -> None:
        """Reset the running statistics to mean 0 and variance 1."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set weight to one and bias to zero, and reset the running statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_TrackedNorm):
    _ndims: tuple[int, ...]

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in self._ndims:
            wanted = " or ".join(f"{ndim}D" for ndim in self._ndims)
            raise ShapeError(f"{type(self).__name__}: expected {wanted} input (got {x.ndim}D input)")
        factor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None and not is_recomputing():
            with no_grad():
                self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the average of all batches so far
                factor = 1 / self.num_batches_tracked.item()
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        tracked = not self.training or self.track_running_stats
        return channel_norm.batch_norm(
            x, self.running_mean if tracked else None, self.running_var if tracked else None, self.weight, self.bias,
            by_batch, factor, self.eps,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Normalise features or channels by the statistics of the batch; in evaluation mode, by the running statistics.

    The input has shape (N, num_features) or (N, num_features, L), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics; without them, the batch's are used in evaluation, too.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.

    Notes
    -----
    Source: Ioffe, Szegedy 2015, "Batch normalization".
    """

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise channels of images over the batch (see `BatchNorm1d`).

    The input has shape (N, num_features, H, W), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics; without them, the batch's are used in evaluation, too.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layer = sg.nn.BatchNorm2d(3)
    >>> layer(sg.randn(8, 3, 4, 4)).shape
    (8, 3, 4, 4)
    >>> layer.num_batches_tracked.item()
    1
    """

    _ndims = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise channels of volumes over the batch (see `BatchNorm1d`).

    The input has shape (N, num_features, D, H, W), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics; without them, the batch's are used in evaluation, too.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """

    _ndims = (5,)


class SyncBatchNorm(_BatchNorm):
    """Normalise channels by the statistics of the batch of the one process.

    PyTorch's takes those of all processes; several processes are refused in training.

    The input has shape (N, num_features, ...), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float or None, default 0.1
        Share of the batch's statistics in the new running statistics; None averages over all batches.
    affine : bool, default True
        Whether to scale and shift by parameters.
    track_running_stats : bool, default True
        Whether to keep running statistics; without them, the batch's are used in evaluation, too.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """

    _ndims = (2, 3, 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and is_initialized() and get_world_size() > 1:
            raise UnsupportedError("SyncBatchNorm: got several processes; use BatchNorm, or one process")
        return super().forward(x)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Return the module with all `BatchNorm` layers, itself included, replaced by layers with their tensors.

        Parameters
        ----------
        module : Module
            Module whose layers are replaced in place.
        process_group : object, optional
            Accepted for PyTorch's programs.

        Returns
        -------
        Module
            The module, or its replacement if it is such a layer itself.
        """
        converted: Module = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(converted, name, getattr(module, name))
            converted.training = module.training
        for name, child in module.named_children():
            setattr(converted, name, cls.convert_sync_batchnorm(child))
        return converted


class _InstanceNorm(_TrackedNorm):
    _dims: int

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in (self._dims + 1, self._dims + 2):
            raise ShapeError(
                f"{type(self).__name__}: expected {self._dims + 1}D or {self._dims + 2}D input (got {x.ndim}D input)"
            )
        alone = x.ndim == self._dims + 1
        if x.shape[0 if alone else 1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: expected input's size at dim={0 if alone else 1} to match num_features "
                f"({self.num_features}), but got: {x.shape}"
            )
        result = channel_norm.instance_norm(
            shape.unsqueeze(x, 0) if alone else x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, 0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        return shape.squeeze(result, 0) if alone else result


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each signal.

    The input has shape (N, num_features, L) or (num_features, L), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default False
        Whether to scale and shift by parameters.
    track_running_stats : bool, default False
        Whether to keep running statistics, which normalise in evaluation mode.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.

    Notes
    -----
    Source: Ulyanov, Vedaldi, Lempitsky 2016, "Instance normalization".
    """

    _dims = 1


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each image (see `InstanceNorm1d`).

    The input has shape (N, num_features, H, W) or (num_features, H, W), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default False
        Whether to scale and shift by parameters.
    track_running_stats : bool, default False
        Whether to keep running statistics, which normalise in evaluation mode.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """

    _dims = 2


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of each volume (see `InstanceNorm1d`).

    The input has shape (N, num_features, D, H, W) or (num_features, D, H, W), the result the same.

    Parameters
    ----------
    num_features : int
        Number of channels.
    eps : float, default 1e-5
        Added to the variance.
    momentum : float, default 0.1
        Share of the batch's statistics in the new running statistics.
    affine : bool, default False
        Whether to scale and shift by parameters.
    track_running_stats : bool, default False
        Whether to keep running statistics, which normalise in evaluation mode.
    device : device, optional
        Where parameters and buffers are; by default, the default device.
    dtype : dtype, optional
        Data type of parameters and buffers; by default, the default data type.
    bias : bool, default True
        Whether to shift, if `affine`.
    """

    _dims = 3
