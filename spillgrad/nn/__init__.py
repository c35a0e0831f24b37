"""Layers, and what belongs to training them."""

from spillgrad.nn import functional, init, utils
from spillgrad.nn.activation import GELU, ReLU, Sigmoid, SiLU, Softmax, Tanh
from spillgrad.nn.conv import Conv1d, Conv2d, ConvTranspose2d
from spillgrad.nn.dropout import Dropout
from spillgrad.nn.embedding import Embedding
from spillgrad.nn.flatten import Flatten
from spillgrad.nn.identity import Identity
from spillgrad.nn.layer_norm import LayerNorm
from spillgrad.nn.linear import Linear
from spillgrad.nn.loss import CrossEntropyLoss, MSELoss
from spillgrad.nn.module import Module
from spillgrad.nn.module_dict import ModuleDict
from spillgrad.nn.module_list import ModuleList
from spillgrad.nn.multihead_attention import MultiheadAttention
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.pooling import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from spillgrad.nn.rms_norm import RMSNorm
from spillgrad.nn.sequential import Sequential

__all__ = [
    "GELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool1d",
    "AvgPool2d",
    "Conv1d",
    "Conv2d",
    "ConvTranspose2d",
    "CrossEntropyLoss",
    "Dropout",
    "Embedding",
    "Flatten",
    "Identity",
    "LayerNorm",
    "Linear",
    "MSELoss",
    "MaxPool1d",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiheadAttention",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "functional",
    "init",
    "utils",
]
