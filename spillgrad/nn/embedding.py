"""Embedding layers."""

from typing import Any, Self

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.ops import embedding
from spillgrad.tensor import Tensor

__all__ = ["Embedding", "EmbeddingBag"]


class _Table(Module):
    """The base of embedding layers: the table, its initial values, and the options of the lookup of rows."""

    weight: Parameter
    _shown: tuple[str, ...] = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None,
        norm_type: float = 2.0, scale_grad_by_freq: bool = False, sparse: bool = False, _weight: Tensor | None = None,
        _freeze: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        name = type(self).__name__
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ArgumentError(f"{name}: got padding_idx {padding_idx}; the table has {num_embeddings} rows")
            padding_idx %= num_embeddings
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is not None and _weight.shape != (num_embeddings, embedding_dim):
            raise ShapeError(
                f"{name}: Shape of weight {_weight.shape} does not match num_embeddings and embedding_dim: wanted "
                f"{(num_embeddings, embedding_dim)}"
            )
        table = (
            init.uninitialised(num_embeddings, embedding_dim, device=device, dtype=dtype)
            if _weight is None
            else _weight
        )
        self.weight = Parameter(table, requires_grad=not _freeze)
        self.weight.exact_state = True  # rows that are seldom used have large gradients when they are
        if _weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from N(0, 1); the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx].zero_()

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> Self:
        """Return a layer with a given table.

        Parameters
        ----------
        embeddings : Tensor
            Of shape (num_embeddings, embedding_dim): the table, whose memory is shared.
        freeze : bool, default True
            Whether the table requires no gradient.
        **options : object
            Further options of the constructor.

        Returns
        -------
        Module
            A layer of this class.

        Raises
        ------
        ShapeError
            If `embeddings` has another number of dimensions than two.
        """
        if embeddings.ndim != 2:
            raise ShapeError(
                f"{cls.__name__}: Embeddings parameter is expected to be 2-dimensional, got {embeddings.shape}"
            )
        rows, width = embeddings.shape
        return cls(rows, width, _weight=embeddings, _freeze=freeze, **options)

    def extra_repr(self) -> str:
        plain = {"padding_idx": None, "max_norm": None, "norm_type": 2.0, "scale_grad_by_freq": False, "sparse": False}
        shown = [f"{name}={getattr(self, name)!r}" for name in self._shown if getattr(self, name) != plain.get(name)]
        return ", ".join([f"{self.num_embeddings}, {self.embedding_dim}", *shown])


class Embedding(_Table):
    """Look up rows of a table by integer index.

    The table `weight` has shape (num_embeddings, embedding_dim).

    Parameters
    ----------
    num_embeddings : int
        Number of rows of the table.
    embedding_dim : int
        Size of a row.
    padding_idx : int, optional
        Row that begins as zeros and gets no gradient; it may count from the end.
    max_norm : float, optional
        Largest norm of a row: rows that are looked up are first scaled down to it, in place.
    norm_type : float, default 2.0
        The p of the norm that `max_norm` limits.
    scale_grad_by_freq : bool, default False
        Whether to divide the gradient of a row by how often the row was looked up.
    sparse : bool, default False
        Accepted for PyTorch's programs: gradients are dense.
    _weight : Tensor, optional
        Of shape (num_embeddings, embedding_dim): the table; by default, it is drawn from N(0, 1).
    _freeze : bool, default False
        Whether the table requires no gradient.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.

    Raises
    ------
    ArgumentError
        If `padding_idx` is no row of the table.
    ShapeError
        If `_weight` has another shape.

    Examples
    --------
    >>> import spillgrad as sg
    >>> table = sg.nn.Embedding(10, 4)
    >>> table(sg.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def forward(self, index: Tensor) -> Tensor:
        """Return the rows at the indices.

        Parameters
        ----------
        index : Tensor
            Integers of any shape, from 0 on and below `num_embeddings`.

        Returns
        -------
        Tensor
            Of shape ``(*index.shape, embedding_dim)``.
        """
        return embedding.embedding(
            index, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        )


class EmbeddingBag(_Table):
    """Look up bags of rows of a table; return the sum, mean or maximum of each bag.

    Parameters
    ----------
    num_embeddings : int
        Number of rows of the table.
    embedding_dim : int
        Size of a row.
    max_norm : float, optional
        Largest norm of a row: rows that are looked up are first scaled down to it, in place.
    norm_type : float, default 2.0
        The p of the norm that `max_norm` limits.
    scale_grad_by_freq : bool, default False
        Whether to divide the gradient of a row by how often the row was looked up.
    mode : {"sum", "mean", "max"}, default "mean"
        What is computed of the rows of a bag.
    sparse : bool, default False
        Accepted for PyTorch's programs: gradients are dense.
    _weight : Tensor, optional
        Of shape (num_embeddings, embedding_dim): the table; by default, it is drawn from N(0, 1).
    include_last_offset : bool, default False
        Whether the last offset only ends the last bag.
    padding_idx : int, optional
        Row that begins as zeros and is left out of bags; it may count from the end.
    device : device, optional
        Where the parameters are; by default, the default device.
    dtype : dtype, optional
        Data type of the parameters; by default, the default data type.
    _freeze : bool, default False
        Whether the table requires no gradient.

    Raises
    ------
    ArgumentError
        If `padding_idx` is no row of the table.
    ShapeError
        If `_weight` has another shape.
    """

    _shown = ("max_norm", "norm_type", "scale_grad_by_freq", "mode", "padding_idx")

    def __init__(
        self, num_embeddings: int, embedding_dim: int, max_norm: float | None = None, norm_type: float = 2.0,
        scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, _weight: Tensor | None = None,
        include_last_offset: bool = False, padding_idx: int | None = None, device: Any = None, dtype: Any = None,
        *, _freeze: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse, _weight,
            _freeze, device, dtype,
        )  # fmt: skip
        self.mode = mode
        self.include_last_offset = include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the sum, mean or maximum of each bag; zeros for an empty bag.

        Parameters
        ----------
        input : Tensor
            Indices of shape (B, n), each row a bag, or (n,) with `offsets`.
        offsets : Tensor, optional
            Of shape (B,): where in a vector `input` each bag begins; it ends before the next one.
        per_sample_weights : Tensor, optional
            Of the shape of `input`: factors of the rows of a sum.

        Returns
        -------
        Tensor
            Of shape (B, embedding_dim).
        """
        return embedding.embedding_bag(
            input, self.weight, offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, self.sparse,
            per_sample_weights, self.include_last_offset, self.padding_idx,
        )  # fmt: skip
