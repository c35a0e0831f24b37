"""The parametrizations `weight_norm` and `spectral_norm`.

Source: torch.nn.utils.parametrizations.
"""

from typing import Any

from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.utils.parametrize import register_parametrization
from spillgrad.nn.utils.power_iteration import as_matrix, iterate, norm_except_dim, singular_value, spectral_dim
from spillgrad.ops.creation import randn
from spillgrad.ops.distance import normalize
from spillgrad.tensor import Tensor

__all__ = ["orthogonal", "spectral_norm", "weight_norm"]


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        return weight_v * (weight_g / norm_except_dim(weight_v, 2, self.dim))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the length and the direction of a weight."""
        return norm_except_dim(weight, 2, self.dim), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train a weight's length (`original0`) and direction (`original1`) in place of the weight.

    State dicts of the older `spillgrad.nn.utils.weight_norm` can be loaded.

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

    Notes
    -----
    Source: Salimans and Kingma 2016, "Weight normalization", equation 2.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)

    def rename(module: Module, state_dict: dict[str, Any], prefix: str, *further: Any) -> None:
        old = [f"{prefix}{name}_{part}" for part in "gv"]
        if all(key in state_dict for key in old):
            for i, key in enumerate(old):
                state_dict[f"{prefix}parametrizations.{name}.original{i}"] = state_dict.pop(key)

    module.register_load_state_dict_pre_hook(rename)
    return module


class _SpectralNorm(Module):
    _u: Tensor
    _v: Tensor

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if n_power_iterations <= 0:
            raise ArgumentError(
                "Expected n_power_iterations to be positive, but got n_power_iterations=" + str(n_power_iterations)
            )
        self.dim = dim if dim >= 0 else dim + weight.ndim
        self.eps = eps
        self.n_power_iterations = n_power_iterations
        if weight.ndim > 1:
            matrix = as_matrix(weight.detach(), self.dim)
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                drawn = randn(size, dtype=weight.dtype, device=weight.device)
                self.register_buffer(name, normalize(drawn, dim=0, eps=eps))
            iterate(matrix, self._u, self._v, 15, eps)

    def forward(self, weight: Tensor) -> Tensor:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = as_matrix(weight, self.dim)
        if self.training:
            iterate(matrix, self._u, self._v, self.n_power_iterations, self.eps)
        return weight / singular_value(matrix, self._u, self._v)

    def right_inverse(self, value: Tensor) -> Tensor:
        """Return the value itself, as PyTorch does: it may already have the norm 1."""
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value at each use.

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
        If there is no such tensor, or `n_power_iterations` is not positive.

    Notes
    -----
    Source: Miyato et al. 2018, "Spectral normalization for generative adversarial networks", algorithm 1.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ArgumentError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    made = _SpectralNorm(weight, n_power_iterations, spectral_dim(module) if dim is None else dim, eps)
    return register_parametrization(module, name, made)


def orthogonal(module: Module, name: str = "weight", orthogonal_map: str | None = None, **options: Any) -> Module:
    """Raise UnsupportedError: there is no such parametrization here.

    Parameters
    ----------
    module : Module
        Module that has the weight.
    name : str, default "weight"
        Name of the weight.
    orthogonal_map : str, optional
        PyTorch's name of a way to make a matrix orthogonal.
    **options : object
        Further options of PyTorch's function.

    Raises
    ------
    UnsupportedError
        Always; its message says what to use instead.
    """
    raise UnsupportedError(
        "parametrizations.orthogonal: not here; give register_parametrization a module whose forward returns "
        "matrix_exp(A - A.mT) of a square weight A, which is orthogonal"
    )
