"""`weight_norm` and `spectral_norm` by hooks before forward, PyTorch's older form of these parametrizations.

Source: torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm.
"""

import functools
import warnings
from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.utils.power_iteration import as_matrix, iterate, norm_except_dim, singular_value, spectral_dim
from spillgrad.ops.creation import randn
from spillgrad.ops.distance import normalize
from spillgrad.tensor import Tensor

__all__ = ["remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"]


class _Computed:
    """A hook before forward that computes the tensor `name` of a module from others."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self.name, self.value(module))

    def value(self, module: Module) -> Tensor:
        """Return the tensor, computed."""
        raise NotImplementedError


class WeightNorm(_Computed):
    """Compute weight = g v / |v|, from the parameters `weight_g` and `weight_v`."""

    def __init__(self, name: str, dim: int) -> None:
        super().__init__(name)
        self.dim = dim

    def value(self, module: Module) -> Tensor:
        g, v = getattr(module, f"{self.name}_g"), getattr(module, f"{self.name}_v")
        return v * (g / norm_except_dim(v, 2, self.dim))  # type: ignore[no-any-return]


class SpectralNorm(_Computed):
    """Compute weight = weight_orig / its largest singular value, which the buffers `weight_u` and `weight_v` follow."""

    def __init__(self, name: str, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__(name)
        self.n_power_iterations = n_power_iterations
        self.dim = dim
        self.eps = eps

    def value(self, module: Module) -> Tensor:
        weight, u, v = (getattr(module, f"{self.name}_{part}") for part in ("orig", "u", "v"))
        matrix = as_matrix(weight, self.dim)
        if module.training:
            iterate(matrix.t(), v, u, self.n_power_iterations, self.eps)
        return weight / singular_value(matrix, u, v)  # type: ignore[no-any-return]


def _hooks(module: Module, kind: type[_Computed], name: str) -> list[int]:
    """Return the keys of a module's hooks before forward that are of a kind, and compute the tensor `name`."""
    found = []
    for key, called in module._forward_pre_hooks.items():
        hook = called.args[0] if isinstance(called, functools.partial) and called.args else None
        if isinstance(hook, kind) and hook.name == name:
            found.append(key)
    return found


def _require_first(who: str, module: Module, kind: type[_Computed], name: str) -> None:
    if _hooks(module, kind, name):
        raise ArgumentError(f"Cannot register two {who} hooks on the same parameter {name}")


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight's length `weight_g` and direction `weight_v` in place of the weight.

    Parameters
    ----------
    module : Module
        Module that has the weight.
    name : str, default "weight"
        Name of the weight.
    dim : int or None, default 0
        Dimension for each index of which there is a length; None for one length of all.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If the weight is normalised already.

    Warns
    -----
    FutureWarning
        At each call, as in PyTorch: `parametrizations.weight_norm` is the newer form.

    Notes
    -----
    Source: Salimans and Kingma 2016, "Weight normalization", equation 2.
    """
    warnings.warn(
        "`torch.nn.utils.weight_norm` is deprecated in favor of `torch.nn.utils.parametrizations.weight_norm`.",
        FutureWarning,
        stacklevel=2,
    )
    _require_first("weight_norm", module, WeightNorm, name)
    hook = WeightNorm(name, -1 if dim is None else dim)
    weight = getattr(module, name)
    delattr(module, name)
    with no_grad():
        module.register_parameter(f"{name}_g", Parameter(norm_except_dim(weight, 2, hook.dim).detach()))
        module.register_parameter(f"{name}_v", Parameter(weight.detach()))
    setattr(module, name, hook.value(module))
    module.register_forward_pre_hook(hook)
    return module


def _removed(who: str, module: Module, kind: type[_Computed], name: str) -> Any:
    """Remove a hook and return it. Raises ArgumentError if there is none."""
    keys = _hooks(module, kind, name)
    if not keys:
        raise ArgumentError(f"{who} of '{name}' not found in {module}")
    hook = module._forward_pre_hooks.pop(keys[0]).args[0]
    return hook


def remove_weight_norm(module: Module, name: str = "weight") -> Module:
    """Make a weight of `weight_norm` a parameter again.

    Parameters
    ----------
    module : Module
        Module that has the weight.
    name : str, default "weight"
        Name of the weight.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If `weight_norm` was not applied to the weight.
    """
    hook = _removed("weight_norm", module, WeightNorm, name)
    with no_grad():
        weight = hook.value(module)
    delattr(module, name)
    delattr(module, f"{name}_g")
    delattr(module, f"{name}_v")
    module.register_parameter(name, Parameter(weight.detach()))
    return module


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value before each forward.

    Parameters
    ----------
    module : Module
        Module that has the weight.
    name : str, default "weight"
        Name of the weight.
    n_power_iterations : int, default 1
        Number of iterations that improve the singular vectors at each use in training mode.
    eps : float, default 1e-12
        Least norm to divide by.
    dim : int, optional
        Dimension that becomes the rows of the matrix; by default, that of the module's outputs.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If `n_power_iterations` is not positive, or the weight is normalised already.

    Notes
    -----
    Source: Miyato et al. 2018, "Spectral normalization for generative adversarial networks", algorithm 1.
    """
    if n_power_iterations <= 0:
        raise ArgumentError(
            "Expected n_power_iterations to be positive, but got n_power_iterations=" + str(n_power_iterations)
        )
    _require_first("spectral_norm", module, SpectralNorm, name)
    hook = SpectralNorm(name, n_power_iterations, spectral_dim(module) if dim is None else dim, eps)
    weight = getattr(module, name)
    height, width = as_matrix(weight.detach(), hook.dim).shape
    delattr(module, name)
    module.register_parameter(f"{name}_orig", weight)
    setattr(module, name, weight.detach())
    for part, size in (("u", height), ("v", width)):
        drawn = randn(size, dtype=weight.dtype, device=weight.device)
        module.register_buffer(f"{name}_{part}", normalize(drawn, dim=0, eps=eps))
    module.register_forward_pre_hook(hook)
    return module


def remove_spectral_norm(module: Module, name: str = "weight") -> Module:
    """Make a weight of `spectral_norm` a parameter again.

    Parameters
    ----------
    module : Module
        Module that has the weight.
    name : str, default "weight"
        Name of the weight.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ArgumentError
        If `spectral_norm` was not applied to the weight.
    """
    hook = _removed("spectral_norm", module, SpectralNorm, name)
    training = module.training
    module.training = False
    with no_grad():
        weight = hook.value(module)
    module.training = training
    for part in ("", "_orig", "_u", "_v"):
        delattr(module, name + part)
    module.register_parameter(name, Parameter(weight.detach()))
    return module
