"""The largest singular value of a matrix, by power iteration, and norms along all dimensions but one.

Source: Miyato et al. 2018, "Spectral normalization for generative adversarial networks", algorithm 1; Salimans and
Kingma 2016, "Weight normalization", equation 2.
"""

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.nn.conv import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from spillgrad.nn.module import Module
from spillgrad.ops.distance import normalize
from spillgrad.ops.matrix_products import dot, mv
from spillgrad.ops.norms import vector_norm
from spillgrad.ops.shape import reshape
from spillgrad.tensor import Tensor


def spectral_dim(module: Module) -> int:
    """Return the dimension of a layer's outputs in its weight."""
    return 1 if isinstance(module, ConvTranspose1d | ConvTranspose2d | ConvTranspose3d) else 0


def as_matrix(weight: Tensor, dim: int) -> Tensor:
    """Return a weight as a matrix whose rows are its dimension `dim`."""
    if dim != 0:
        weight = weight.permute(dim, *(d for d in range(weight.ndim) if d != dim))
    return reshape(weight, weight.shape[0], -1)


def iterate(matrix: Tensor, first: Tensor, second: Tensor, iterations: int, eps: float) -> None:
    """Improve the singular vectors of the largest singular value, in place; rows match `first`, columns `second`."""
    with no_grad():
        for _ in range(iterations):
            first.copy_(normalize(mv(matrix, second), dim=0, eps=eps))
            second.copy_(normalize(mv(matrix.t(), first), dim=0, eps=eps))


def singular_value(matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return u · matrix v; copies of `u` and `v` are saved, so that later iterations do not change what is saved."""
    return dot(u.clone(), mv(matrix, v.clone()))


def norm_except_dim(v: Tensor, pow: int = 2, dim: int = 0) -> Tensor:
    """Return the norm of order `pow` along all dimensions but one, which all keep size 1; for dim -1, along all."""
    if dim == -1:
        return vector_norm(v, pow)
    return vector_norm(v, pow, tuple(d for d in range(v.ndim) if d != dim), keepdim=True)
