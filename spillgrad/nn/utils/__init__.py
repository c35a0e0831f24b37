"""Helpers for all parameters and gradients of a model, and for sequences of different lengths (`rnn`)."""

from spillgrad.nn.utils import clip_grad, convert_parameters, rnn, stateless
from spillgrad.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_
from spillgrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

__all__ = [
    "clip_grad", "clip_grad_norm_", "clip_grad_value_", "convert_parameters", "parameters_to_vector", "rnn",
    "stateless", "vector_to_parameters",
]  # fmt: skip
