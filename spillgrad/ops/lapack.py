"""NumPy's LAPACK functions in the precision of the operands, and the checks that functions of matrices share."""

from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad.errors import LinAlgError, ShapeError
from spillgrad.ops.arithmetic import div
from spillgrad.ops.array_casts import on_floats, require_inexact, require_one_dtype
from spillgrad.ops.clamp_where import where
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.shape import transpose
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import NotOnDevice, beside, is_on_device


def lapack(name: str, function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a NumPy function on arrays and return its results as arrays; half precision is computed in float32.

    Raises LinAlgError if the function does, with advice in the message; NotOnDevice if an array is on a device.
    """
    if any([is_on_device(array) for array in arrays]):
        raise NotOnDevice(f"{name}: no kernel of the device does this")

    def as_arrays(*operands: Any) -> Any:
        results = function(*operands)
        return tuple(map(np.asarray, results)) if isinstance(results, tuple) else np.asarray(results)

    try:
        return as_arrays(*arrays) if arrays[0].dtype.kind == "c" else on_floats(as_arrays, *arrays)
    except np.linalg.LinAlgError as error:
        raise LinAlgError(f"{name}: {error}; {_ADVICE.get(str(error), 'check the matrix')}") from error


_ADVICE = {
    "Singular matrix": "the inversion could not be completed because the input matrix is singular: use linalg.pinv or "
    "linalg.lstsq",
    "Matrix is not positive definite": "the factorization could not be completed because the input is not "
    "positive-definite: add a multiple of the identity",
    "SVD did not converge": "the input may hold NaN or infinite elements",
    "Eigenvalues did not converge": "the input may hold NaN or infinite elements",
}


def require_matrices(name: str, *matrices: Tensor) -> None:
    """Raise ShapeError for fewer than two dimensions, DtypeError unless all have one float or complex dtype."""
    for matrix in matrices:
        if matrix.ndim < 2:
            raise ShapeError(f"{name}: The input tensor A must have at least 2 dimensions, got {matrix.shape}")
        require_inexact(name, matrix.dtype)
        require_one_dtype(name, A=matrices[0], B=matrix)


def require_square(name: str, matrix: Tensor) -> None:
    """Raise ShapeError unless the last two dimensions are equal; raise all errors of `require_matrices`, too."""
    require_matrices(name, matrix)
    if matrix.shape[-2] != matrix.shape[-1]:
        raise ShapeError(
            f"{name}: A must be batches of square matrices, but they are {matrix.shape[-2]} by {matrix.shape[-1]} "
            "matrices"
        )


def mT(matrix: Tensor) -> Tensor:
    """Return a view with the last two dimensions swapped."""
    return transpose(matrix, -2, -1)


def mH(matrix: Tensor) -> Tensor:
    """Return the conjugate transposes over the last two dimensions; a view, if the matrix is real."""
    return conjugate(transpose(matrix, -2, -1))


def identity_like(matrix: Tensor) -> Tensor:
    """Return the identity matrix with as many rows as `matrix` has, in the dtype of `matrix`."""
    identity = np.eye(matrix.shape[-2], dtype=np.float64).astype(matrix.dtype)
    return Tensor.wrap(beside(matrix.array, identity))


def quotient(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, but 0 where both are 0.

    Derivatives divide by the distance of two eigenvalues or singular values. If that distance is 0, the derivative
    is right if it is the same for every basis of the space that belongs to the two values, and infinite otherwise.
    """
    both = Tensor.wrap((numerator.array == 0) & (denominator.array == 0))
    return div(numerator, where(both, 1.0, denominator))
