"""Helpers for a model's parameters and gradients, and for sequences of different lengths (`rnn`).

`parametrize`, `parametrizations` and `prune` compute weights from other tensors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spillgrad.nn.utils import clip_grad, convert_parameters, rnn, stateless
from spillgrad.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from spillgrad.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters

if TYPE_CHECKING:
    from spillgrad.nn.utils import fusion, parametrizations, parametrize, prune
    from spillgrad.nn.utils.fusion import (
        fuse_conv_bn_eval,
        fuse_conv_bn_weights,
        fuse_linear_bn_eval,
        fuse_linear_bn_weights,
    )
    from spillgrad.nn.utils.hooked_norms import remove_spectral_norm, remove_weight_norm, spectral_norm, weight_norm
    from spillgrad.nn.utils.uninitialised import skip_init

_MODULES = ("fusion", "parametrizations", "parametrize", "prune")
# The module of each function that few programs use.
_LAZY = {
    **dict.fromkeys(
        ("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"), "fusion"
    ),
    **dict.fromkeys(("remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"), "hooked_norms"),
    "skip_init": "uninitialised",
}

__all__ = [
    "clip_grad", "clip_grad_norm", "clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_",
    "convert_parameters", "get_total_norm", "parameters_to_vector", "rnn", "stateless", "vector_to_parameters",
    *_LAZY, *_MODULES,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what few programs use on first use."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
