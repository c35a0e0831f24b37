"""Layers, and what belongs to training them."""

from spillgrad.nn import functional, init, utils
from spillgrad.nn.activation import GELU, ReLU, Sigmoid, SiLU, Softmax, Tanh
from spillgrad.nn.batch_norm import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
)
from spillgrad.nn.conv import Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.flatten import Flatten
from spillgrad.nn.group_norm import GroupNorm, LocalResponseNorm
from spillgrad.nn.identity import Identity
from spillgrad.nn.layer_norm import LayerNorm
from spillgrad.nn.linear import Linear
from spillgrad.nn.loss import CrossEntropyLoss, MSELoss
from spillgrad.nn.module import Module
from spillgrad.nn.module_dict import ModuleDict
from spillgrad.nn.module_list import ModuleList
from spillgrad.nn.multihead_attention import MultiheadAttention
from spillgrad.nn.parameter import Buffer, Parameter
from spillgrad.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    LPPool1d,
    LPPool2d,
    MaxPool1d,
    MaxPool2d,
    MaxUnpool1d,
    MaxUnpool2d,
)
from spillgrad.nn.rms_norm import RMSNorm
from spillgrad.nn.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNBase, RNNCell
from spillgrad.nn.sequential import Sequential
from spillgrad.nn.upsample import Upsample, UpsamplingBilinear2d, UpsamplingNearest2d

__all__ = [
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GroupNorm",
    "Identity",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LPPool1d",
    "LPPool2d",
    "LSTMCell",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "RNNBase",
    "RNNCell",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "functional",
    "init",
    "utils",
]
