"""Large gradients and state in pieces, so that an update needs little of them in RAM at once.

An optimizer that updates every element by a formula can update a parameter piece by piece, to the same bits. Whoever
reads such a tensor, as a checkpoint does, gets the whole, which counts in the RAM budget until its last alias dies.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from spillgrad.device.device import CPU
from spillgrad.errors import SpillError
from spillgrad.ops.complex_numbers import is_conj, is_neg
from spillgrad.ops.elementwise import accumulate
from spillgrad.optim.formula_optimizer import FormulaOptimizer
from spillgrad.spill.offload.store_over import StoreOver
from spillgrad.spill.offload.tensors import KINDS, OffloadedStorage, TensorResidents, become
from spillgrad.storage.disk.spans import copy_spans
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Storage
from spillgrad_kernels.cpu.optim import CHUNK
from spillgrad_kernels.memory import buffers

# Small enough that the pieces of an update are little beside a layer; large enough to cost no time.
PIECE_BYTES = 8 << 20


def elements_of_pieces(tensor: Tensor) -> int:
    """Return how many elements a piece of a tensor has; 0 if the tensor is too small to be cut."""
    # Norms are sums of squares of chunks of elements: those of pieces are those of the whole.
    return PIECE_BYTES // (tensor.itemsize * CHUNK) * CHUNK if tensor.nbytes >= 2 * PIECE_BYTES else 0


def piece_elements(optimizer: Any, param: Tensor) -> int:
    """Return how many elements of a parameter an optimizer may update at once; 0 if it must update all together."""
    can_be_cut = isinstance(optimizer, FormulaOptimizer) and param.device is CPU and not param.is_complex()
    return elements_of_pieces(param) if can_be_cut else 0


class Errors:
    """Errors of a disk, such as a full one. The store has the values then, in RAM; so other pieces can go on."""

    def __init__(self) -> None:
        self.first: SpillError | None = None

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """Context manager: keep an error instead of raising it."""
        try:
            yield
        except SpillError as error:
            self.first = self.first or error


@contextlib.contextmanager
def raised_at_end() -> Iterator[Errors]:
    """Context manager: raise the first of the errors that were postponed, after all pieces."""
    errors = Errors()
    yield errors
    if errors.first is not None:
        raise errors.first


class Whole(Handle):
    """The name of an array that is in pieces: offloaded tensors of one dimension.

    `rounded` is the first plane of a parameter in two planes, which is whole; see `planes.py`.
    """

    __slots__ = ("changing", "pieces", "rounded")

    def __init__(self, array: np.ndarray, sequence: int, label: Label, pieces: Sequence[Tensor]) -> None:
        super().__init__(array, sequence, label)
        self.pieces = pieces
        self.changing: np.ndarray | None = None  # the whole array, while it is changed
        self.rounded: Tensor | None = None


class Joining(StoreOver):
    """The store of whole arrays that are in pieces."""

    _made = 0

    def new_handle(self, array: np.ndarray, label: Label, pieces: Sequence[Tensor]) -> Whole:
        """Return the name of a whole array, of which only shape and dtype matter."""
        self._made += 1
        return Whole(array, self._made, label, pieces)

    def get(self, handle: Whole) -> np.ndarray:
        """Return the whole array."""
        array = self.empty(handle.shape, handle.dtype)
        _copy_pieces(handle.pieces, array, _read)
        return array

    def read_spans(self, handle: Whole, spans: np.ndarray, into: np.ndarray) -> None:
        """Fill an array with spans of the elements; each piece is asked for its own."""
        begin = done = 0
        for piece in handle.pieces:
            end = begin + piece.numel()
            inside = np.clip(spans, begin, end) - begin
            inside = inside[inside[:, 0] < inside[:, 1]]
            count = int((inside[:, 1] - inside[:, 0]).sum())
            if count:
                _read_spans(piece, inside, into[done : done + count])
            begin, done = end, done + count

    def relabel(self, handle: Whole, label: Label) -> None:
        """Replace the label of an array."""
        handle.label = label
        for piece in handle.pieces:
            if isinstance(piece._storage, OffloadedStorage):
                piece._storage.relabel(label)

    def end_change(self, handle: Whole, changed: bool) -> None:
        """Store the new values, piece by piece."""
        array, handle.changing = handle.changing, None
        if changed and array is not None:
            # The plane that the pieces share is stored once, after all of them.
            held = None if handle.rounded is None else handle.rounded._array
            with raised_at_end() as errors:

                def overwrite(piece: Tensor, part: np.ndarray) -> None:
                    with errors.postponed():
                        _overwrite(piece, part)

                _copy_pieces(handle.pieces, array, overwrite)
            del held


class PiecedStorage(OffloadedStorage):
    """The memory of an offloaded tensor that is in pieces, and of its views."""

    _store: Joining
    _handle: Whole
    _residents: "PiecingResidents"

    @property
    def pieces(self) -> Sequence[Tensor] | None:
        """The pieces; None while anything refers to the whole array, which may have other values, and must get them."""
        self._residents.return_changed(with_last=True)
        return self._handle.pieces if self._alive() is None else None

    @property
    def reads_rows(self) -> bool:
        return True

    @property
    def rounded(self) -> Tensor | None:  # type: ignore[override]
        """The first plane, of a parameter in two planes."""
        return self._handle.rounded

    def begin_change(self) -> None:
        super().begin_change()
        if self._handle.rounded is not None:
            Storage.begin_change(self._handle.rounded._storage)

    def begin_change_of_pieces(self) -> object:
        """Count a change that is made to each of the pieces; return what the caller must hold until all are changed."""
        Storage.begin_change(self)
        rounded = self._handle.rounded
        if rounded is None:
            return None
        rounded._storage.begin_change()
        return rounded._array

    def each(self, pieces: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the pieces; each is in RAM while it is used, until the next one is asked for."""
        for piece in pieces:
            with self._residents.using(id(piece)):
                yield piece

    def accumulate(self, total: Tensor, gradient: Tensor) -> bool:
        """Add a gradient piece by piece, unless the whole is in use."""
        array, pieces = gradient._array, self.pieces
        is_alike = array.shape == self._shape and array.dtype == self._dtype and array.flags.c_contiguous
        if not is_alike or total.shape != self._shape or is_conj(gradient) or is_neg(gradient) or pieces is None:
            return False
        flat, start = gradient.detach().reshape(-1), 0
        for piece in self.each(pieces):
            accumulate(piece, flat[start : start + piece.numel()])
            start += piece.numel()
        self.norm = self.squares = None
        Storage.begin_change(self)
        return True


def pieces_of(tensor: Tensor, count: int | None = None) -> Sequence[Tensor] | None:
    """Return the pieces that a tensor is in, of `count` elements if given.

    Return None for a tensor that is not in such pieces, and while anything refers to the whole array.
    """
    storage = tensor._storage
    pieces = storage.pieces if isinstance(storage, PiecedStorage) else None
    return pieces if pieces is None or count is None or pieces[0].numel() == count else None


def _copy_pieces(
    pieces: Sequence[Tensor], array: np.ndarray, copy: Callable[[Tensor, np.ndarray], None]
) -> None:  # fmt: skip
    flat, start = array.reshape(-1), 0
    for piece in pieces:
        stop = start + piece.numel()
        copy(piece, flat[start:stop])
        start = stop


def _read_spans(piece: Tensor, spans: np.ndarray, into: np.ndarray) -> None:
    if isinstance(piece._storage, OffloadedStorage):
        piece._storage.read_spans(spans, into)
    else:  # the disk refused it
        copy_spans(piece.array, spans, into)


def _read(piece: Tensor, part: np.ndarray) -> None:
    if isinstance(piece._storage, OffloadedStorage):
        piece._storage.copy_to(part)
    else:  # the disk refused it
        np.copyto(part, piece.array)


def _overwrite(piece: Tensor, part: np.ndarray) -> None:
    target = piece.array_to_overwrite()
    piece._storage.begin_change()
    np.copyto(target, part)
    del target
    if isinstance(piece._storage, OffloadedStorage):
        piece._storage._residents.return_changed(with_last=True)


class PiecingResidents(TensorResidents):
    """Decides which offloaded tensors are in RAM; some are in pieces."""

    @contextlib.contextmanager
    def using(self, owner: int) -> Iterator[None]:
        """Context manager: what is used is in RAM until the end."""
        self.enter(owner)
        try:
            yield
        finally:
            self.leave(owner)

    def __init__(self, store: DiskStore) -> None:
        super().__init__(store)
        self._joining = Joining(store)

    def offload_in_pieces(self, tensor: Tensor, count: int, label: Label) -> None:
        """Move the memory of a leaf tensor to the store, in pieces of `count` elements; the last one may be shorter.

        If `count` is 0, or not less than all elements, it stays whole. Do nothing if the tensor is in a store, or of a
        class that cannot be.
        """
        storage = tensor._storage
        if not 0 < count < tensor.numel():
            self.offload(tensor, label)
            return
        if type(tensor) not in KINDS or isinstance(storage, OffloadedStorage) or tensor._array is not storage.array:
            return
        flat = np.ascontiguousarray(tensor._array).reshape(-1)
        pieces = []
        for start in range(0, flat.size, count):
            pieces.append(piece := Tensor.wrap(buffers.copy(flat[start : start + count])))
            self.offload(piece, label)
        self._join(tensor, pieces, label)

    def joined(self, pieces: Sequence[Tensor], shape: tuple[int, ...], label: Label) -> Tensor:
        """Return an offloaded tensor that is in these pieces."""
        tensor = Tensor.wrap(np.broadcast_to(np.empty((), pieces[0].numpy_dtype), shape))  # a shape without memory
        self._join(tensor, pieces, label)
        return tensor

    def _join(self, tensor: Tensor, pieces: Sequence[Tensor], label: Label) -> Whole:
        handle = self._joining.new_handle(tensor._array, label, pieces)
        become(tensor, PiecedStorage, self, self._joining, handle)
        return handle
