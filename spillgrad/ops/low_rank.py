"""The largest singular values of a matrix by products with random vectors, and principal components.

Source: Halko, Martinsson & Tropp 2011, "Finding structure with randomness", algorithms 4.4 and 5.1.
"""

from spillgrad import dtypes
from spillgrad.errors import ArgumentError
from spillgrad.ops.autocast import float32_in_autocast
from spillgrad.ops.convert import to_dtype
from spillgrad.ops.creation import randn
from spillgrad.ops.decompositions import qr
from spillgrad.ops.decompositions import svd as full_svd
from spillgrad.ops.lapack import mH
from spillgrad.ops.matrix_products import matmul
from spillgrad.ops.older_names import SVDWithV
from spillgrad.ops.reduce import mean
from spillgrad.tensor import Tensor

__all__ = ["pca_lowrank", "svd_lowrank"]


@float32_in_autocast
def svd_lowrank(A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None) -> SVDWithV:
    """Return the largest singular values of a matrix and their vectors: A is about ``U diag(S) Vᴴ``.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    q : int, default 6
        Number of singular values.
    niter : int, default 2
        Number of steps of a power iteration; more steps are more exact.
    M : Tensor, optional
        Subtracted from `A` first.

    Returns
    -------
    named tuple of Tensor
        U of shape (..., m, q), S of shape (..., q) and V of shape (..., n, q).

    Notes
    -----
    Random vectors follow `manual_seed`.
    """
    q, steps = 6 if q is None else q, 2 if niter is None else niter
    A = A if M is None else A - M
    wide = A.shape[-2] < A.shape[-1]
    tall = mH(A) if wide else A
    basis = qr(matmul(tall, randn(tall.shape[-1], q, dtype=A.dtype, device=A.device))).Q
    for _ in range(steps):
        basis = qr(matmul(tall, qr(matmul(mH(tall), basis)).Q)).Q
    u, s, vh = full_svd(matmul(mH(basis), tall), full_matrices=False)
    u, v = matmul(basis, u), mH(vh)
    return SVDWithV(v, s, u) if wide else SVDWithV(u, s, v)


def pca_lowrank(A: Tensor, q: int | None = None, center: bool = True, niter: int = 2) -> SVDWithV:
    """Return the largest principal components of the rows of a matrix.

    Parameters
    ----------
    A : Tensor
        Of shape (..., m, n).
    q : int, optional
        Number of components; by default 6, or the smaller of m and n if that is less.
    center : bool, default True
        Whether the mean row is subtracted first.
    niter : int, default 2
        Number of steps of a power iteration; more steps are more exact.

    Returns
    -------
    named tuple of Tensor
        U of shape (..., m, q), S of shape (..., q), and V of shape (..., n, q), whose columns are the directions of the
        components.

    Raises
    ------
    ArgumentError
        If `q` is larger than m or n, or a number is negative.

    Notes
    -----
    Random vectors follow `manual_seed`.
    """
    most = min(A.shape[-2:])
    q = min(6, most) if q is None else q
    if not 0 <= q <= most:
        raise ArgumentError(f"q(={q}) must be non-negative integer and not greater than min(m, n)={most}")
    if niter < 0:
        raise ArgumentError(f"niter(={niter}) must be non-negative integer")
    values = A if dtypes.is_floating_point(A.dtype) or A.is_complex() else to_dtype(A, dtypes.float32)
    return svd_lowrank(values - mean(values, -2, keepdim=True) if center else values, q, niter)
