"""Put a batch normalization in evaluation mode into the layer before it.

Source: torch.nn.utils.fusion.
"""

import copy
from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError
from spillgrad.nn.parameter import Parameter
from spillgrad.ops.creation import ones_like, zeros_like
from spillgrad.tensor import Tensor

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]


def fuse_conv_bn_weights(
    conv_w: Tensor, conv_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None, transpose: bool = False,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Return weight and bias of the convolution that does what a convolution and a batch normalization do.

    Parameters
    ----------
    conv_w : Tensor
        Weight of the convolution.
    conv_b : Tensor or None
        Its bias; None means 0.
    bn_rm, bn_rv : Tensor
        Running mean and running variance of the normalization.
    bn_eps : float
        What it adds to the variance.
    bn_w, bn_b : Tensor or None
        Its scale and shift; None means 1 and 0.
    transpose : bool, default False
        Whether it is a transposed convolution.

    Returns
    -------
    Parameter
        Weight.
    Parameter
        Bias.
    """
    bias = zeros_like(bn_rm) if conv_b is None else conv_b
    weight_of_norm = ones_like(bn_rm) if bn_w is None else bn_w
    bias_of_norm = zeros_like(bn_rm) if bn_b is None else bn_b
    with no_grad():
        scale = weight_of_norm * (bn_rv + bn_eps).rsqrt()
        outputs = [1] * conv_w.ndim
        outputs[1 if transpose else 0] = -1
        fused = (conv_w * scale.reshape(outputs)).to(conv_w.dtype)
        shift = ((bias - bn_rm) * scale + bias_of_norm).to(bias.dtype)
    trained = conv_w.requires_grad
    return Parameter(fused, trained), Parameter(shift, trained if conv_b is None else conv_b.requires_grad)


def fuse_linear_bn_weights(
    linear_w: Tensor, linear_b: Tensor | None, bn_rm: Tensor, bn_rv: Tensor, bn_eps: float, bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:  # fmt: skip
    """Return weight and bias of the linear layer that does what a linear layer and a batch normalization do.

    Parameters
    ----------
    linear_w : Tensor
        Weight of the linear layer.
    linear_b : Tensor or None
        Its bias; None means 0.
    bn_rm, bn_rv : Tensor
        Running mean and running variance of the normalization.
    bn_eps : float
        What it adds to the variance.
    bn_w, bn_b : Tensor or None
        Its scale and shift; None means 1 and 0.

    Returns
    -------
    Parameter
        Weight.
    Parameter
        Bias.
    """
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _fused(name: str, layer: Any, bn: Any, transpose: bool) -> Any:
    if layer.training or bn.training:
        raise ArgumentError(f"{name}: Fusion only for eval!; call eval() on both layers")
    if bn.running_mean is None:
        raise ArgumentError(f"{name}: got a batch normalization without running statistics, which has nothing to fuse")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Return a new convolution that does what `conv` and then `bn` do.

    Parameters
    ----------
    conv : Module
        Convolution in evaluation mode.
    bn : Module
        Batch normalization in evaluation mode.
    transpose : bool, default False
        Whether it is a transposed convolution.

    Returns
    -------
    Module
        The convolution.

    Raises
    ------
    ArgumentError
        If a layer is in training mode, or `bn` has no running statistics.
    """
    return _fused("fuse_conv_bn_eval", conv, bn, transpose)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """Return a new linear layer that does what `linear` and then `bn` do.

    Parameters
    ----------
    linear : Module
        Linear layer in evaluation mode.
    bn : Module
        Batch normalization in evaluation mode.

    Returns
    -------
    Module
        The linear layer.

    Raises
    ------
    ArgumentError
        If a layer is in training mode, or `bn` has no running statistics.
    """
    return _fused("fuse_linear_bn_eval", linear, bn, False)
