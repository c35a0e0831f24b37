"""Automatic differentiation: gradients, custom functions and hooks on saved tensors.

Names load on first use: the tensor class itself is built on modules of this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillgrad.autograd import anomaly_mode, function, functional, grad_mode, graph
    from spillgrad.autograd.core.anomaly_mode import detect_anomaly, set_detect_anomaly
    from spillgrad.autograd.core.grad_mode import (
        enable_grad,
        inference_mode,
        is_grad_enabled,
        no_grad,
        set_grad_enabled,
    )
    from spillgrad.autograd.core.hooks import disable_saved_tensors_hooks, saved_tensors_hooks
    from spillgrad.autograd.core.saved import SavedTensor
    from spillgrad.autograd.cpu_hooks import save_on_cpu
    from spillgrad.autograd.differentiate import backward, grad
    from spillgrad.autograd.function import Function, FunctionCtx, once_differentiable
    from spillgrad.autograd.gradcheck import gradcheck, gradgradcheck
    from spillgrad.autograd.lazy_jacobian import hessian, jacobian
    from spillgrad.autograd.pylayer import PyLayer, PyLayerContext
    from spillgrad.autograd.variable import Variable

_NAMES = {
    "core.anomaly_mode": "detect_anomaly set_detect_anomaly",
    "core.grad_mode": "enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
    "core.hooks": "disable_saved_tensors_hooks saved_tensors_hooks",
    "core.saved": "SavedTensor",
    "cpu_hooks": "save_on_cpu",
    "differentiate": "backward grad",
    "function": "Function FunctionCtx once_differentiable",
    "gradcheck": "gradcheck gradgradcheck",
    "lazy_jacobian": "hessian jacobian",
    "pylayer": "PyLayer PyLayerContext",
    "variable": "Variable",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("anomaly_mode", "function", "functional", "grad_mode", "graph")

__all__ = [
    "Function",
    "FunctionCtx",
    "PyLayer",
    "PyLayerContext",
    "SavedTensor",
    "Variable",
    "anomaly_mode",
    "backward",
    "detect_anomaly",
    "disable_saved_tensors_hooks",
    "enable_grad",
    "function",
    "functional",
    "grad",
    "grad_mode",
    "gradcheck",
    "gradgradcheck",
    "graph",
    "hessian",
    "inference_mode",
    "is_grad_enabled",
    "jacobian",
    "no_grad",
    "once_differentiable",
    "save_on_cpu",
    "saved_tensors_hooks",
    "set_detect_anomaly",
    "set_grad_enabled",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"spillgrad.autograd.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'spillgrad.autograd' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"spillgrad.autograd.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
