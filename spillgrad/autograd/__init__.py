"""Automatic differentiation: gradients, custom functions and hooks on saved tensors.

Names are imported on first use, because the tensor class itself imports modules of this package.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spillgrad.autograd import anomaly_mode as anomaly_mode
    from spillgrad.autograd import function as function
    from spillgrad.autograd import functional as functional
    from spillgrad.autograd import grad_mode as grad_mode
    from spillgrad.autograd import graph as graph
    from spillgrad.autograd import variable as variable
    from spillgrad.autograd.core.anomaly_mode import detect_anomaly as detect_anomaly
    from spillgrad.autograd.core.anomaly_mode import set_detect_anomaly as set_detect_anomaly
    from spillgrad.autograd.core.grad_mode import enable_grad as enable_grad
    from spillgrad.autograd.core.grad_mode import inference_mode as inference_mode
    from spillgrad.autograd.core.grad_mode import is_grad_enabled as is_grad_enabled
    from spillgrad.autograd.core.grad_mode import no_grad as no_grad
    from spillgrad.autograd.core.grad_mode import set_grad_enabled as set_grad_enabled
    from spillgrad.autograd.core.hooks import disable_saved_tensors_hooks as disable_saved_tensors_hooks
    from spillgrad.autograd.core.hooks import saved_tensors_hooks as saved_tensors_hooks
    from spillgrad.autograd.core.multithreading import is_multithreading_enabled as is_multithreading_enabled
    from spillgrad.autograd.core.multithreading import set_multithreading_enabled as set_multithreading_enabled
    from spillgrad.autograd.core.saved import SavedTensor as SavedTensor
    from spillgrad.autograd.cpu_hooks import save_on_cpu as save_on_cpu
    from spillgrad.autograd.differentiate import backward as backward
    from spillgrad.autograd.differentiate import grad as grad
    from spillgrad.autograd.function import Function as Function
    from spillgrad.autograd.function import FunctionCtx as FunctionCtx
    from spillgrad.autograd.function import once_differentiable as once_differentiable
    from spillgrad.autograd.gradcheck import gradcheck as gradcheck
    from spillgrad.autograd.gradcheck import gradgradcheck as gradgradcheck
    from spillgrad.autograd.lazy_jacobian import hessian as hessian
    from spillgrad.autograd.lazy_jacobian import jacobian as jacobian
    from spillgrad.autograd.legacy_variable import Variable as Variable
    from spillgrad.autograd.pylayer import PyLayer as PyLayer
    from spillgrad.autograd.pylayer import PyLayerContext as PyLayerContext

_NAMES = {
    "core.anomaly_mode": "detect_anomaly set_detect_anomaly",
    "core.grad_mode": "enable_grad inference_mode is_grad_enabled no_grad set_grad_enabled",
    "core.hooks": "disable_saved_tensors_hooks saved_tensors_hooks",
    "core.multithreading": "is_multithreading_enabled set_multithreading_enabled",
    "core.saved": "SavedTensor",
    "cpu_hooks": "save_on_cpu",
    "differentiate": "backward grad",
    "function": "Function FunctionCtx once_differentiable",
    "gradcheck": "gradcheck gradgradcheck",
    "lazy_jacobian": "hessian jacobian",
    "legacy_variable": "Variable",
    "pylayer": "PyLayer PyLayerContext",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = ("anomaly_mode", "function", "functional", "grad_mode", "graph", "profiler", "variable")

__all__ = sorted([*_HOME, *_MODULES])


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
