"""PyTorch's optimizer for sparse gradients, which do not occur here."""

from typing import Any

from spillgrad.errors import UnsupportedError

__all__ = ["SparseAdam"]


class SparseAdam:
    """Raise UnsupportedError: the gradients of embeddings are dense here.

    Parameters
    ----------
    *arguments : object
        Those of PyTorch's optimizer.
    **options : object
        Those of PyTorch's optimizer.

    Raises
    ------
    UnsupportedError
        Always; its message says what to use instead.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise UnsupportedError(
            "SparseAdam: gradients are dense here, those of Embedding(sparse=True), too: use Adam, or Adam in "
            "disk_offload for a table that is larger than memory"
        )
