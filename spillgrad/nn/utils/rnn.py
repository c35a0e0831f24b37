"""Batches of sequences of different lengths: padded to one length, or packed without padding."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.ops import creation
from spillgrad.ops.indexing import index_select
from spillgrad.ops.join_split import cat, narrow, stack
from spillgrad.ops.padding import pad
from spillgrad.ops.shape import reshape, transpose
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import beside

__all__ = [
    "PackedSequence", "invert_permutation", "pack_padded_sequence", "pack_sequence", "pad_packed_sequence",
    "pad_sequence", "unpack_sequence", "unpad_sequence",
]  # fmt: skip


class PackedSequence(NamedTuple):
    """Sequences in descending order of length, without padding: all first elements, all second elements, and so on.

    Parameters
    ----------
    data : Tensor
        The elements, of shape (sum of lengths, ...).
    batch_sizes : Tensor
        The number of sequences with an element at each time step: int64, of shape (longest length,), always in the
        host's memory.
    sorted_indices : Tensor, optional
        The user's index of each packed sequence; None if the sequences are in the user's order.
    unsorted_indices : Tensor, optional
        The inverse permutation of `sorted_indices`.
    """

    data: Tensor
    batch_sizes: Tensor
    sorted_indices: Tensor | None = None
    unsorted_indices: Tensor | None = None

    def to(self, *args: Any, **kwargs: Any) -> "PackedSequence":
        """Return the sequences with the data converted to a device or dtype, and the indices moved to its device.

        Parameters
        ----------
        *args, **kwargs : Any
            Arguments of `Tensor.to`.

        Returns
        -------
        PackedSequence
            The same object if the data is already of that device and dtype.
        """
        data = self.data.to(*args, **kwargs)
        if data is self.data:
            return self
        indices = [x if x is None else x.to(data.device) for x in (self.sorted_indices, self.unsorted_indices)]
        return PackedSequence(data, self.batch_sizes, *indices)

    def double(self) -> "PackedSequence":
        """Return the sequences as float64.

        Returns
        -------
        PackedSequence
            The same object if the data is of float64.
        """
        return self.to("float64")

    def float(self) -> "PackedSequence":
        """Return the sequences as float32.

        Returns
        -------
        PackedSequence
            The same object if the data is of float32.
        """
        return self.to("float32")

    def cpu(self) -> "PackedSequence":
        """Return the sequences in the host's memory.

        Returns
        -------
        PackedSequence
            The same object if the data is in the host's memory.
        """
        return self.to("cpu")

    def cuda(self) -> "PackedSequence":
        """Return the sequences on a CUDA device.

        Returns
        -------
        PackedSequence
            The same object if the data is on the CUDA device.

        Raises
        ------
        DeviceError
            If there is no CUDA device.
        """
        return self.to("cuda")


def invert_permutation(permutation: Tensor | None) -> Tensor | None:
    """Return the inverse of a permutation.

    Parameters
    ----------
    permutation : Tensor or None
        The indices 0 to n - 1 in any order, of shape (n,).

    Returns
    -------
    Tensor or None
        Of shape (n,); for None, None.
    """
    return None if permutation is None else Tensor.wrap(np.argsort(permutation.array, kind="stable"))


def _as_lengths(name: str, lengths: Any) -> np.ndarray:
    found = lengths.host_array() if isinstance(lengths, Tensor) else np.asarray(lengths)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise OperandError(f"{name}: got lengths {lengths!r}; wanted a vector of integers")
    return found.astype(np.int64)


def pack_padded_sequence(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> PackedSequence:
    """Pack padded sequences that are in descending order of length or, without `enforce_sorted`, in any order.

    Parameters
    ----------
    input : Tensor
        Of shape (T, N, ...), or (N, T, ...) with `batch_first`.
    lengths : Tensor or sequence of int
        Lengths of the N sequences, from 1 to T.
    batch_first : bool, default False
        Whether the batch is the first dimension of `input`, not the second.
    enforce_sorted : bool, default True
        Whether the sequences must be in descending order of length; if False, they are sorted.

    Returns
    -------
    PackedSequence
        The sequences, without padding.

    Raises
    ------
    OperandError
        If `lengths` is not a vector of integers.
    ArgumentError
        For wrong lengths or, with `enforce_sorted`, a wrong order.

    Examples
    --------
    >>> import spillgrad as sg
    >>> from spillgrad.nn.utils.rnn import pack_padded_sequence
    >>> packed = pack_padded_sequence(sg.tensor([[1, 2, 3], [4, 5, 0]]), [3, 2], batch_first=True)
    >>> packed.data.tolist(), packed.batch_sizes.tolist()
    ([1, 4, 2, 5, 3], [2, 2, 1])
    """
    name = "pack_padded_sequence"
    sizes = _as_lengths(name, lengths)
    padded = transpose(input, 0, 1) if batch_first else input
    sorted_indices = None
    if not enforce_sorted:
        order = np.argsort(-sizes, kind="stable")
        sizes = sizes[order]
        sorted_indices = Tensor.wrap(beside(input.array, order))
        padded = index_select(padded, 1, sorted_indices)
    steps, batch = padded.shape[:2]
    if len(sizes) != batch:
        raise ArgumentError(
            f"{name}: Expected `len(lengths)` to be equal to batch_size, but got {len(sizes)} (batch_size={batch})"
        )
    if not batch or sizes[-1] < 1 or sizes.max() > steps:
        raise ArgumentError(
            f"{name}: Length of all samples has to be greater than 0 and at most {steps}, but got {sizes.tolist()}"
        )
    if (np.diff(sizes) > 0).any():
        raise ArgumentError(
            f"{name}: `lengths` array must be sorted in decreasing order when `enforce_sorted` is True; pass "
            "enforce_sorted=False to take any order"
        )
    times, sequences = np.nonzero(np.arange(sizes[0])[:, None] < sizes)
    rows = reshape(padded, (steps * batch, *padded.shape[2:]))
    data = index_select(rows, 0, Tensor.wrap(beside(input.array, times * batch + sequences)))
    batch_sizes = Tensor.wrap(np.bincount(times))
    return PackedSequence(data, batch_sizes, sorted_indices, invert_permutation(sorted_indices))


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return packed sequences in the user's order, padded to one length; and their lengths.

    Parameters
    ----------
    sequence : PackedSequence
        The N sequences.
    batch_first : bool, default False
        Whether the batch is the first dimension of the result, not the second.
    padding_value : float, default 0.0
        Value of the elements after the end of a sequence.
    total_length : int, optional
        Length T to pad to; by default, that of the longest sequence.

    Returns
    -------
    padded : Tensor
        Of shape (T, N, ...), or (N, T, ...) with `batch_first`.
    lengths : Tensor
        Lengths of the sequences, of shape (N,).

    Raises
    ------
    ArgumentError
        If `total_length` is less than the longest length.
    """
    counts = sequence.batch_sizes.host_array()
    steps, batch = len(counts), int(counts[0])
    if total_length is not None and total_length < steps:
        raise ArgumentError(
            f"pad_packed_sequence: Expected total_length to be at least the length of the longest sequence in input, "
            f"but got total_length={total_length} and max sequence length being {steps}"
        )
    data = sequence.data
    # One extra row holds the padding value; all missing elements are taken from it.
    places = np.full((steps if total_length is None else total_length, batch), data.shape[0], np.int64)
    runs = np.arange(batch) < counts[:, None]
    places[:steps][runs] = np.arange(data.shape[0])
    lengths = runs.sum(0)
    if sequence.unsorted_indices is not None:
        order = sequence.unsorted_indices.host_array()
        places, lengths = places[:, order], lengths[order]
    padding = creation.full((1, *data.shape[1:]), padding_value, dtype=data.dtype, device=data.device)
    places = np.ascontiguousarray(places.T if batch_first else places)
    rows = index_select(cat([data, padding]), 0, Tensor.wrap(beside(data.array, places.reshape(-1))))
    return reshape(rows, (*places.shape, *data.shape[1:])), Tensor.wrap(lengths)


def pad_sequence(
    sequences: Sequence[Tensor], batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    """Return sequences of different lengths padded to the longest and stacked.

    Parameters
    ----------
    sequences : sequence of Tensor
        N tensors of shape (t, ...), each of its own length t.
    batch_first : bool, default False
        Whether the batch is the first dimension of the result, not the second.
    padding_value : float, default 0.0
        Value of the added elements.
    padding_side : {"right", "left"}, default "right"
        Whether elements are added after or before a sequence.

    Returns
    -------
    Tensor
        Of shape (T, N, ...), or (N, T, ...) with `batch_first`, where T is the longest length.

    Raises
    ------
    ArgumentError
        If there are no sequences, or `padding_side` is another word.

    Examples
    --------
    >>> import spillgrad as sg
    >>> from spillgrad.nn.utils.rnn import pad_sequence
    >>> pad_sequence([sg.tensor([1, 2, 3]), sg.tensor([4])], batch_first=True).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    if padding_side not in ("left", "right"):
        raise ArgumentError(f'pad_sequence: Expected padding_side to be "left" or "right", but got {padding_side!r}')
    tensors = list(sequences)
    if not tensors:
        raise ArgumentError("pad_sequence: got no sequences; give at least one")
    longest = max(x.shape[0] for x in tensors)
    padded = []
    for x in tensors:
        missing = longest - x.shape[0]
        widths = (missing, 0) if padding_side == "left" else (0, missing)
        padded.append(pad(x, (0, 0) * (x.ndim - 1) + widths, value=padding_value) if missing else x)
    return stack(padded, 0 if batch_first else 1)


def unpad_sequence(padded_sequences: Tensor, lengths: Any, batch_first: bool = False) -> list[Tensor]:
    """Return the sequences of a padded batch, without their padding.

    Parameters
    ----------
    padded_sequences : Tensor
        Of shape (T, N, ...), or (N, T, ...) with `batch_first`; padded on the right.
    lengths : Tensor or sequence of int
        Lengths of the N sequences.
    batch_first : bool, default False
        Whether the batch is the first dimension of `padded_sequences`, not the second.

    Returns
    -------
    list of Tensor
        The N sequences, each of shape (length, ...).

    Raises
    ------
    OperandError
        If `lengths` is not a vector of integers.
    ArgumentError
        If there is not one length for each sequence.
    """
    batch = padded_sequences if batch_first else transpose(padded_sequences, 0, 1)
    each = _as_lengths("unpad_sequence", lengths)
    if len(each) != len(batch):
        raise ArgumentError(f"unpad_sequence: got {len(each)} lengths for a batch of {len(batch)}; give one for each")
    return [narrow(x, 0, 0, int(length)) for x, length in zip(batch, each, strict=True)]


def pack_sequence(sequences: Sequence[Tensor], enforce_sorted: bool = True) -> PackedSequence:
    """Pack sequences that are in descending order of length or, without `enforce_sorted`, in any order.

    Parameters
    ----------
    sequences : sequence of Tensor
        Tensors of shape (t, ...), each of its own length t.
    enforce_sorted : bool, default True
        Whether the sequences must be in descending order of length; if False, they are sorted.

    Returns
    -------
    PackedSequence
        The sequences, without padding.

    Raises
    ------
    ArgumentError
        If there are no sequences, one is empty or, with `enforce_sorted`, the order is wrong.
    """
    lengths = [x.shape[0] for x in sequences]
    return pack_padded_sequence(pad_sequence(sequences), lengths, enforce_sorted=enforce_sorted)


def unpack_sequence(packed_sequences: PackedSequence) -> list[Tensor]:
    """Return the sequences of a packed batch in the user's order.

    Parameters
    ----------
    packed_sequences : PackedSequence
        The N sequences.

    Returns
    -------
    list of Tensor
        The N sequences, each of shape (length, ...).
    """
    padded, lengths = pad_packed_sequence(packed_sequences, batch_first=True)
    return unpad_sequence(padded, lengths, batch_first=True)
