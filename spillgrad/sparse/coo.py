"""Sparse tensors in coordinate form, for products with dense matrices: what graph networks need.

A `SparseTensor` is no `Tensor`: it has the methods below, and anything else is refused with advice to use `to_dense()`.
Gradients flow to its values, and to the dense operand of a product.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from spillgrad import dtypes
from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.device.device import Device
from spillgrad.errors import ArgumentError, DimensionError, DtypeError, GraphError, OperandError, ShapeError
from spillgrad.ops.arithmetic import mul
from spillgrad.ops.complex_views import conjugate
from spillgrad.ops.convert import clone, to_device
from spillgrad.ops.creation import as_tensor
from spillgrad.ops.declaration import named
from spillgrad.ops.indexing import index_select, summed_at
from spillgrad.ops.join_split import cat
from spillgrad.ops.operation import operation
from spillgrad.ops.reduce import sum
from spillgrad.ops.shape import reshape, transpose
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Size
from spillgrad_kernels.cpu.indexing import embedding_backward
from spillgrad_kernels.device_array import NotOnDevice, is_on_device

__all__ = ["DoubleTensor", "FloatTensor", "SparseTensor", "mm", "sparse_coo_tensor", "spmm", "to_sparse"]


def _product(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, dense: np.ndarray, size: int) -> np.ndarray:
    """Return the sums over the places (row, column) of value × dense[column], added to `size` rows of zeros."""
    if is_on_device(values):
        raise NotOnDevice("a product with a sparse matrix has no device kernel")
    terms = values[:, None] * dense[columns]
    if values.dtype in (dtypes.float32, dtypes.float64):
        return np.asarray(embedding_backward(terms, rows, size))
    sums = np.zeros((size, dense.shape[1]), np.float32 if values.dtype in dtypes.HALF else values.dtype)
    np.add.at(sums, rows, terms)
    return sums.astype(values.dtype)


def _value_gradient(g: Tensor, rows: np.ndarray, columns: np.ndarray, dense: Tensor) -> Tensor:
    picked = index_select(g, 0, Tensor.wrap(rows)), index_select(dense, 0, Tensor.wrap(columns))
    return sum(mul(picked[0], conjugate(picked[1])), 1)


_mm: Callable[..., Tensor] = operation(
    "sparse_mm", _product,
    values=_value_gradient,
    dense=lambda g, values, rows, columns, dense_shape: _mm(conjugate(values), columns, rows, g, dense_shape[0]),
)  # fmt: skip


class SparseTensor:
    """A tensor of zeros but for `values` at the positions `indices`; values at equal positions add up.

    `sparse_coo_tensor` makes one.

    Parameters
    ----------
    indices : Tensor
        Positions, of shape (dimensions, count), int64.
    values : Tensor
        Of shape (count,).
    shape : tuple of int
        Size of each dimension.
    is_coalesced : bool, default False
        Whether the positions are known to be in order, each once.
    """

    is_sparse = True
    grad = None
    is_leaf = property(lambda self: self._of_values.is_leaf)

    def __init__(self, indices: Tensor, values: Tensor, shape: tuple[int, ...], is_coalesced: bool = False) -> None:
        self._of_indices, self._of_values, self._shape, self._coalesced = indices, values, tuple(shape), is_coalesced

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a sparse tensor has no {name!r}: it is made for products with dense matrices; use .to_dense() first"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def dtype(self) -> dtypes.DType:
        """The data type of the values."""
        return self._of_values.dtype

    @property
    def device(self) -> Device:
        """The device that the values are on."""
        return self._of_values.device

    @property
    def is_cuda(self) -> bool:
        """Whether the values are on a CUDA device."""
        return self._of_values.is_cuda

    @property
    def requires_grad(self) -> bool:
        """Whether the values require a gradient."""
        return self._of_values.requires_grad

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of one dimension.

        Parameters
        ----------
        dim : int, optional
            The dimension; None returns the shape.

        Returns
        -------
        Size or int
            The shape, or the size of `dim`.
        """
        return Size(self._shape) if dim is None else self._shape[dim]

    def dim(self) -> int:
        """Return the number of dimensions.

        Returns
        -------
        int
            Length of the shape.
        """
        return self.ndim

    def numel(self) -> int:
        """Return the number of elements, zeros included.

        Returns
        -------
        int
            Product of the shape.
        """
        return math.prod(self._shape)

    def _nnz(self) -> int:
        return self._of_values.shape[0]

    def is_coalesced(self) -> bool:
        """Return whether the positions are known to be in order, each once.

        Returns
        -------
        bool
            True after `coalesce`.
        """
        return self._coalesced

    def _indices(self) -> Tensor:
        return self._of_indices

    def _values(self) -> Tensor:
        return self._of_values.detach()

    def indices(self) -> Tensor:
        """Return the positions.

        Returns
        -------
        Tensor
            Of shape (dimensions, count), int64.

        Raises
        ------
        ArgumentError
            Before `coalesce`: positions may be there twice.
        """
        self._require_coalesced("indices")
        return self._of_indices

    def values(self) -> Tensor:
        """Return the values, with their graph.

        Returns
        -------
        Tensor
            Of shape (count,).

        Raises
        ------
        ArgumentError
            Before `coalesce`: positions may be there twice.
        """
        self._require_coalesced("values")
        return self._of_values

    def _require_coalesced(self, what: str) -> None:
        if not self._coalesced:
            raise ArgumentError(f"Cannot get {what} on an uncoalesced tensor, please call .coalesce() first")

    def _flat(self) -> Tensor:
        """Return the positions as numbers of elements, counted row by row."""
        flat = np.ravel_multi_index(tuple(self._of_indices.host_array()), self._shape)
        return to_device(Tensor.wrap(np.asarray(flat, np.int64)), self.device)

    def coalesce(self) -> "SparseTensor":
        """Return the tensor with its positions in order, each once, and the values at equal positions added.

        Returns
        -------
        SparseTensor
            The tensor itself, if it is coalesced.
        """
        if self._coalesced:
            return self
        flat, place = np.unique(self._flat().host_array(), return_inverse=True)
        indices = np.stack(np.unravel_index(flat, self._shape)).astype(np.int64)
        place_tensor = to_device(Tensor.wrap(place.reshape(-1).astype(np.int64)), self.device)
        values = reshape(summed_at(reshape(self._of_values, (-1, 1)), place_tensor, len(flat)), (-1,))
        return SparseTensor(to_device(Tensor.wrap(indices), self.device), values, self._shape, True)

    def to_dense(self) -> Tensor:
        """Return the tensor with all its zeros; gradients flow to the values.

        Returns
        -------
        Tensor
            Of the shape of this one.
        """
        return reshape(summed_at(reshape(self._of_values, (-1, 1)), self._flat(), self.numel()), self._shape)

    def to_sparse(self) -> "SparseTensor":
        """Return the tensor itself.

        Returns
        -------
        SparseTensor
            Not a copy.
        """
        return self

    def _with(self, values: Tensor) -> "SparseTensor":
        indices = to_device(self._of_indices, values.device)
        return SparseTensor(indices, values, self._shape, self._coalesced)

    def to(self, *arguments: Any, **options: Any) -> "SparseTensor":
        """Return the tensor with values of another dtype, or on another device.

        Parameters
        ----------
        *arguments : dtype or device
            As `Tensor.to` takes them.
        **options : object
            As `Tensor.to` takes them.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self._with(self._of_values.to(*arguments, **options))

    def cpu(self) -> "SparseTensor":
        """Return the tensor on the host.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self.to("cpu")

    def cuda(self, device: Any = None, non_blocking: bool = False) -> "SparseTensor":
        """Return the tensor on a CUDA device.

        Parameters
        ----------
        device : device, optional
            The device; "cuda", by default.
        non_blocking : bool, default False
            Accepted, as in PyTorch; it changes nothing.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self.to("cuda" if device is None else device)

    def float(self) -> "SparseTensor":
        """Return the tensor with values of float32.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self.to(dtypes.float32)

    def double(self) -> "SparseTensor":
        """Return the tensor with values of float64.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self.to(dtypes.float64)

    def is_floating_point(self) -> bool:
        """Return whether the values are floating-point numbers.

        Returns
        -------
        bool
            False for integers and complex numbers.
        """
        return bool(self._of_values.is_floating_point())

    def is_complex(self) -> bool:
        """Return whether the values are complex numbers.

        Returns
        -------
        bool
            True for complex64 and complex128.
        """
        return bool(self._of_values.is_complex())

    @property
    def data(self) -> "SparseTensor":
        """The tensor without a graph; a tensor set as `data` takes its place."""
        return self.detach()

    @data.setter
    def data(self, new: "SparseTensor") -> None:
        if not isinstance(new, SparseTensor) or new.shape != self.shape:
            raise OperandError(f"data: got {type(new).__name__}; wanted a sparse tensor of shape {self.shape}")
        self._of_indices, self._of_values, self._coalesced = new._of_indices, new._of_values, new._coalesced

    def detach(self) -> "SparseTensor":
        """Return the tensor with values that have no graph.

        Returns
        -------
        SparseTensor
            It shares memory with this one.
        """
        return self._with(self._of_values.detach())

    def clone(self) -> "SparseTensor":
        """Return a copy; gradients flow through.

        Returns
        -------
        SparseTensor
            Of the same positions.
        """
        return self._with(self._of_values.clone())

    def t(self) -> "SparseTensor":
        """Return the transposed matrix.

        Returns
        -------
        SparseTensor
            Of the same values.

        Raises
        ------
        ShapeError
            For other than two dimensions.
        """
        if self.ndim != 2:
            raise ShapeError(
                f"t: got a sparse tensor of {self.ndim} dimensions; wanted a matrix: use .to_dense() first"
            )
        return SparseTensor(self._of_indices.flip(0), self._of_values, self._shape[::-1])

    T = property(t)

    def transpose(self, dim0: int, dim1: int) -> "SparseTensor":
        """Return the matrix with two dimensions swapped.

        Parameters
        ----------
        dim0, dim1 : int
            The dimensions, which may be negative.

        Returns
        -------
        SparseTensor
            The transposed matrix; for equal dimensions, the tensor itself.

        Raises
        ------
        ShapeError
            If two different dimensions are swapped of a tensor that is no matrix.
        """
        dims = {dim % 2 for dim in (dim0, dim1)}
        return self.t() if dims == {0, 1} else self

    def _scaled(self, by: Any, function: Callable[[Any, Any], Tensor]) -> Any:
        is_number = isinstance(by, int | float | np.number) or (isinstance(by, Tensor) and not by.ndim)
        if not is_number:
            return NotImplemented
        return self._with(function(self._of_values, by))

    def __mul__(self, other: Any) -> Any:
        return self._scaled(other, lambda values, by: values * by)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._scaled(other, lambda values, by: values / by)

    def __neg__(self) -> "SparseTensor":
        return self._with(-self._of_values)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            return self.to_dense() + other
        if not isinstance(other, SparseTensor):
            return NotImplemented
        if other.shape != self.shape:
            raise ShapeError(f"sparse add: got {self.shape} and {other.shape}; wanted two sparse tensors of one shape")
        indices, values = cat([self._of_indices, other._of_indices], 1), cat([self._of_values, other._of_values])
        return SparseTensor(indices, values, self._shape).coalesce()

    def __radd__(self, other: Any) -> Any:
        return other + self.to_dense() if isinstance(other, Tensor) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, Tensor | SparseTensor) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return other - self.to_dense() if isinstance(other, Tensor) else NotImplemented

    def __rmatmul__(self, other: Any) -> Tensor:
        return self.dense_times(other)

    def __matmul__(self, other: Any) -> Tensor:
        return self.times_dense(other)

    matmul = mm = __matmul__

    def times_dense(self, dense: Any) -> Tensor:
        """Return the product with a dense matrix or vector; its terms take count × columns numbers for a while.

        Parameters
        ----------
        dense : Tensor
            Of shape (k, n) or (k,), where this tensor is (m, k), and of its dtype.

        Returns
        -------
        Tensor
            Of shape (m, n) or (m,).

        Raises
        ------
        OperandError
            For a sparse or other operand.
        ShapeError
            For sizes that do not fit.
        DtypeError
            For another dtype.
        """
        if not isinstance(dense, Tensor):
            raise OperandError(f"sparse mm: got {type(dense).__name__}; wanted a dense tensor: use .to_dense() on it")
        if self.ndim != 2 or dense.ndim not in (1, 2) or self._shape[1] != dense.shape[0]:
            raise ShapeError(f"sparse mm: got {self._shape} and {dense.shape}; wanted (m, k) and (k, n) or (k,)")
        if dense.dtype != self.dtype:
            raise DtypeError(
                f"sparse mm: expected m1 and m2 to have the same dtype, got {self.dtype} and {dense.dtype}"
            )
        rows, columns = self._of_indices.array
        matrix = dense if dense.ndim == 2 else reshape(dense, (-1, 1))
        product = _mm(self._of_values, rows, columns, matrix, self._shape[0])
        return product if dense.ndim == 2 else reshape(product, (-1,))

    def dense_times(self, dense: Any) -> Tensor:
        """Return the product of a dense matrix with this one.

        Parameters
        ----------
        dense : Tensor
            Of shape (m, k), where this tensor is (k, n), and of its dtype.

        Returns
        -------
        Tensor
            Of shape (m, n).

        Raises
        ------
        ShapeError
            For anything but a dense matrix, and for sizes that do not fit.
        DtypeError
            For another dtype.
        """
        if not isinstance(dense, Tensor) or dense.ndim != 2 or self.ndim != 2 or dense.shape[1] != self._shape[0]:
            got = tuple(dense.shape) if isinstance(dense, Tensor) else type(dense).__name__
            raise ShapeError(f"sparse mm: got {got} and {self._shape}; wanted a dense (m, k) and a sparse (k, n)")
        return transpose(self.t().times_dense(transpose(dense, 0, 1)), 0, 1)

    def __repr__(self) -> str:
        return f"sparse(indices={self._of_indices}, values={self._of_values}, size={self._shape}, nnz={self._nnz()})"


def sparse_coo_tensor(
    indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None, requires_grad: bool = False,
    check_invariants: bool | None = None, is_coalesced: bool | None = None,
) -> SparseTensor:  # fmt: skip
    """Return a sparse tensor of values at positions.

    Parameters
    ----------
    indices : Tensor or array
        Positions, of shape (dimensions, count). They are always checked.
    values : Tensor or array
        Of shape (count,).
    size : sequence of int, optional
        Size of each dimension; by default, the smallest that holds the positions.
    dtype : dtype, optional
        Data type of the result; by default, that of the values.
    device : device, optional
        Where the result is; by default, where the values are.
    requires_grad : bool, default False
        Only False is accepted.
    check_invariants : bool, optional
        Accepted, as in PyTorch; it changes nothing.
    is_coalesced : bool, optional
        Whether the positions are known to be in order, each once.

    Returns
    -------
    SparseTensor
        Of the given size; gradients flow to `values`.

    Raises
    ------
    ShapeError
        For other shapes.
    DimensionError
        For a position outside the size.
    ArgumentError
        For `requires_grad`: values that require a gradient get one.

    Examples
    --------
    >>> import spillgrad as sg
    >>> s = sg.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3))
    >>> s.to_dense()
    tensor([[0., 0., 3.],
            [4., 0., 0.]])
    >>> s @ sg.ones(3)
    tensor([3., 4.])
    """
    if requires_grad:
        raise ArgumentError("sparse_coo_tensor: got requires_grad=True; give values that require a gradient instead")
    found = as_tensor(values, dtype=dtype, device=device)
    places = clone(as_tensor(indices).detach().long())  # a later change in place must not reach a recorded product
    if found.ndim != 1 or places.ndim != 2 or places.shape[1] != found.shape[0]:
        raise ShapeError(
            f"sparse_coo_tensor: got indices of shape {places.shape} and values of shape {found.shape}; wanted "
            "(dimensions, count) and (count,)"
        )
    positions = places.host_array()
    least = tuple(int(n) + 1 for n in positions.max(1, initial=-1))
    shape = least if size is None else tuple(int(n) for n in size)
    if len(shape) != len(least):
        raise ShapeError(f"sparse_coo_tensor: got indices of {len(least)} dimensions for the size {shape}")
    if positions.size and (positions.min() < 0 or any(n > most for n, most in zip(least, shape, strict=True))):
        raise DimensionError(
            f"sparse_coo_tensor: size is inconsistent with indices: got positions up to {tuple(n - 1 for n in least)} "
            f"for the size {shape}"
        )
    return SparseTensor(to_device(places, found.device), found, shape, bool(is_coalesced))


def to_sparse(input: Tensor) -> SparseTensor:
    """Return the elements that are not 0 as a sparse tensor.

    Parameters
    ----------
    input : Tensor
        Of at least one dimension.

    Returns
    -------
    SparseTensor
        Of the shape of `input`, coalesced.

    Raises
    ------
    GraphError
        For a tensor that requires a gradient: that of its zeros would be lost.
    ShapeError
        For a tensor of no dimensions.
    """
    if input.requires_grad and is_recording():
        raise GraphError(
            "to_sparse: got a tensor that requires a gradient, of which that by the zeros would be lost; detach() it, "
            "or give sparse_coo_tensor values that require a gradient"
        )
    if not input.ndim:
        raise ShapeError("to_sparse: got a 0-d tensor; wanted at least one dimension")
    positions = np.stack(np.nonzero(input.host_array())).astype(np.int64)
    flat = np.ravel_multi_index(tuple(positions), input.shape)
    flat_tensor, places = (to_device(Tensor.wrap(np.asarray(a, np.int64)), input.device) for a in (flat, positions))
    return SparseTensor(places, index_select(reshape(input, (-1,)), 0, flat_tensor), input.shape, True)


def mm(sparse: Any, dense: Any) -> Tensor:
    """Return the product of a sparse matrix and a dense one.

    Parameters
    ----------
    sparse : SparseTensor
        Of shape (m, k).
    dense : Tensor
        Of shape (k, n) or (k,), of the dtype of `sparse`.

    Returns
    -------
    Tensor
        Of shape (m, n) or (m,).

    Raises
    ------
    OperandError
        Unless the first matrix is sparse, and the second dense.
    ShapeError
        For sizes that do not fit.
    DtypeError
        For different dtypes.
    """
    if not isinstance(sparse, SparseTensor):
        raise OperandError(f"sparse mm: got {type(sparse).__name__} as the first matrix; wanted a sparse one: use mm()")
    return sparse.times_dense(dense)


spmm = mm


def _typed(name: str, dtype: dtypes.DType) -> Callable[..., SparseTensor]:
    def function(indices: Any, values: Any, size: Any = None) -> SparseTensor:
        return sparse_coo_tensor(indices, values, size, dtype=dtype)

    doc = f"""Return a sparse tensor of {dtype}; see `sparse_coo_tensor`.

    Parameters
    ----------
    indices : Tensor or array
        Positions, of shape (dimensions, count).
    values : Tensor or array
        Of shape (count,); converted to {dtype}.
    size : sequence of int, optional
        Size of each dimension; by default, the smallest that holds the positions.

    Returns
    -------
    SparseTensor
        Of the given size; gradients flow to `values`.
    """
    return named(function, name, doc)


FloatTensor = _typed("FloatTensor", dtypes.float32)
DoubleTensor = _typed("DoubleTensor", dtypes.float64)
