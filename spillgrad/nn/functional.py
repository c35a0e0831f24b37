"""Functions of neural networks, under PyTorch's names."""

from spillgrad.ops.attention import scaled_dot_product_attention
from spillgrad.ops.channel_norm import batch_norm, group_norm, instance_norm, local_response_norm
from spillgrad.ops.conv import conv1d, conv2d, conv_transpose1d, conv_transpose2d
from spillgrad.ops.elementwise import elu, gelu, leaky_relu, relu, sigmoid, silu, softplus, tanh
from spillgrad.ops.indexing import embedding, one_hot
from spillgrad.ops.interpolate import interpolate
from spillgrad.ops.linalg import linear
from spillgrad.ops.losses import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    linear_cross_entropy,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from spillgrad.ops.normalization import layer_norm, log_softmax, rms_norm, softmax
from spillgrad.ops.pooling import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    avg_pool1d,
    avg_pool2d,
    lp_pool1d,
    lp_pool2d,
    max_pool1d,
    max_pool2d,
    max_unpool1d,
    max_unpool2d,
)
from spillgrad.ops.random import dropout, dropout_add
from spillgrad.ops.shape import pad

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cross_entropy",
    "dropout",
    "dropout_add",
    "elu",
    "embedding",
    "gelu",
    "group_norm",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_cross_entropy",
    "local_response_norm",
    "log_softmax",
    "lp_pool1d",
    "lp_pool2d",
    "max_pool1d",
    "max_pool2d",
    "max_unpool1d",
    "max_unpool2d",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "pad",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "tanh",
]
