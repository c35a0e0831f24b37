"""Convert parameters to one vector, and a vector to parameters."""

import math
from collections.abc import Iterable

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ShapeError
from spillgrad.ops import join_split
from spillgrad.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return all parameters, flattened, in one vector.

    Parameters
    ----------
    parameters : iterable of Tensor
        The parameters.

    Returns
    -------
    Tensor
        A vector of all elements in order.
    """
    return join_split.cat([parameter.reshape(-1) for parameter in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Copy a vector of the form that `parameters_to_vector` returns into the parameters.

    Parameters
    ----------
    vec : Tensor
        The vector.
    parameters : iterable of Tensor
        The parameters to fill.

    Raises
    ------
    ShapeError
        If the vector has another number of elements than the parameters.
    """
    parameters = list(parameters)
    sizes = [math.prod(parameter.shape) for parameter in parameters]
    if tuple(vec.shape) != (sum(sizes),):
        raise ShapeError(f"vector_to_parameters: got shape {tuple(vec.shape)}, wanted ({sum(sizes)},)")
    with no_grad():
        for parameter, part in zip(parameters, vec.detach().split(sizes), strict=True):
            parameter.copy_(part.reshape(parameter.shape))
