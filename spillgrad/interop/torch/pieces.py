"""Pieces of a large parameter, which an optimizer updates one after another, so that little of its state is in RAM.

This needs an optimizer that computes each element's update from that element's value, gradient and state alone.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from spillgrad.interop.torch.memory import is_plain
from spillgrad.interop.torch.offloaded_tensor import OffloadedTensor
from spillgrad.interop.torch.stored_tensor import StoredTensor, on_disk
from spillgrad.spill.offload.pieces import PIECE_BYTES
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label

_ELEMENTWISE = frozenset([
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
])  # fmt: skip


class Piece(NamedTuple):
    """The elements from `start` to `stop` of a parameter; `param` is a parameter over their memory."""

    number: int
    start: int
    stop: int
    param: Any


class StoredPieces:
    """A contiguous tensor in a store, in pieces of `count` elements each; the last one may be shorter."""

    def __init__(self, pieces: list[StoredTensor], shape: Any, count: int) -> None:
        self.pieces, self._shape, self.count = pieces, shape, count

    def __repr__(self) -> str:
        return f"<{self.label}, {tuple(self._shape)}, in {len(self.pieces)} pieces>"

    @property
    def label(self) -> Label:
        """Where the tensor comes from."""
        return self.pieces[0].label

    @property
    def nbytes(self) -> int:
        """The size of the tensor in bytes."""
        return sum(piece.nbytes for piece in self.pieces)

    def copy(self) -> Any:
        """Return a copy of the tensor in memory of its own."""
        whole = torch.empty(math.prod(self._shape), dtype=self.pieces[0].dtype)
        for part, piece in zip(whole.split(self.count), self.pieces, strict=True):
            part.copy_(piece.tensor())
        return whole.view(self._shape)

    def copy_on_disk(self) -> Any:
        """Return a copy of the tensor in a file without a name; see `StoredTensor.copy_on_disk`."""
        first = self.pieces[0]
        content = on_disk((piece.array for piece in self.pieces), self.nbytes, first)
        return content.view(first.dtype).view(self._shape)


def piece_elements(kind: type, param: Any) -> int:
    """Return how many elements of a parameter an optimizer of the class `kind` may update at once.

    This is 0 if it must update all together, or if the parameter is small.
    """
    is_apart = kind in _ELEMENTWISE and param.nbytes >= 2 * PIECE_BYTES and param.is_cpu and param.is_contiguous()
    return PIECE_BYTES // param.element_size() if is_apart else 0


def can_be_cut(gradient: Any) -> bool:
    """Return whether a gradient can be cut into pieces as its parameter can."""
    return (isinstance(gradient, OffloadedTensor) or is_plain(gradient)) and gradient.is_contiguous()


def pieces_of(param: Any, count: int) -> Iterator[Piece]:
    """Yield the pieces, of `count` elements each, of a contiguous parameter in RAM with a contiguous gradient."""
    flat, gradient = _memory(param).view(-1), _memory(param.grad).view(-1)
    for number, start in enumerate(range(0, flat.numel(), count)):
        stop = min(start + count, flat.numel())
        piece = torch.nn.Parameter(flat[start:stop])
        piece.grad = gradient[start:stop]
        yield Piece(number, start, stop, piece)


def _memory(tensor: Any) -> Any:
    return tensor._stored.memory if isinstance(tensor, OffloadedTensor) else tensor.detach()


def stored_in_pieces(
    residents: Residents, tensor: Any, count: int, label: Label, store: Any = None
) -> StoredPieces:  # fmt: skip
    """Move a contiguous tensor to a store, as `StoredTensor` does, in pieces of `count` elements each."""
    pieces = [StoredTensor(residents, part, label, store) for part in tensor.view(-1).split(count)]
    return StoredPieces(pieces, tensor.shape, count)
