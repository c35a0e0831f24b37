"""A checkpoint that several processes save together.

The first process lays out the files, and tells the others what to do. Where all see its folder, as on one machine or on
a shared file system, each process writes its ranges of the files. Elsewhere, the first process writes all, and the
others send their parts.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.distributed.sharded_tensor import ShardedTensor, parts_of
from spillgrad.errors import CheckpointError, DistributedError, SpillError, SpillgradError
from spillgrad.files import checkpoint_directory, safetensors_io
from spillgrad.files.safetensors_io import Place, Range
from spillgrad.tensor import Tensor

# What the first process says in place of a tensor's number: all write, or all is saved.
_WRITE, _SAVED = -1, -2


class _Together:
    """The tensors that all processes of a group have, in the same order: each has a part of it, or all the whole."""

    def __init__(self, group: ProcessGroup, tensors: Sequence[Tensor]) -> None:
        self.group, self.tensors = group, tensors
        whole = [number for number, tensor in enumerate(tensors) if not isinstance(tensor, ShardedTensor)]
        parts = parts_of([tensors[number].numel() for number in whole], group.size())
        self._parts = dict(zip(whole, parts, strict=True))

    def next(self, number: int = 0) -> int:
        """Return the number that the first process gives."""
        given = np.array([number])
        steps = collective_steps.broadcast(self.group.rank(), self.group.size(), 0, given)
        run(self.group, "what to save next", steps)
        return int(given[0])

    def told(self, what: str, mine: Any = None) -> list[Any]:
        """Return what each process says."""
        steps = collective_steps.all_gather_object(self.group.size(), collective_steps.pickled(mine))
        return run(self.group, what, steps)  # type: ignore[no-any-return]

    def write(self, folder: Path, places: Mapping[int, Place]) -> list[dict[int, bytes]] | None:
        """Write this process's ranges of tensors, by number, into files of a folder.

        Return the checksums that each process has of its ranges; None, in all processes, if one does not see the
        folder. Raises SpillError or CheckpointError, in all processes, if one cannot read or write.
        """
        if not all(self.told("whether all see the checkpoint", checkpoint_directory.is_begun(folder))):
            return None
        numbers = [number for number in places if self._part(number).start < self._part(number).stop]
        checksums: list[bytes] = []
        error: SpillgradError | None = None
        try:
            ranges = [self._range(number, places[number]) for number in numbers]
            checksums = safetensors_io.write_ranges(folder, ranges)
        except SpillError as failed:
            error = failed
        except OSError as failed:
            error = checkpoint_directory.not_written(folder.parent, failed)
        self._raise_first("whether all have written", error)
        return self.told("checksums", dict(zip(numbers, checksums, strict=True)))

    def _part(self, number: int) -> slice:
        """Return the elements of a tensor that this process writes."""
        tensor = self.tensors[number]
        parts = tensor.parts if isinstance(tensor, ShardedTensor) else self._parts[number]
        return parts[self.group.rank()]

    def _range(self, number: int, place: Place) -> Range:
        tensor, part = self.tensors[number], self._part(number)

        def elements() -> np.ndarray:
            if isinstance(tensor, ShardedTensor):
                return tensor.part()
            return np.ascontiguousarray(tensor.host_array()).reshape(-1)[part]

        return Range(Place(place.file, place.offset + part.start * tensor.itemsize), elements)

    def bring(self, tensor: ShardedTensor, arrays: Sequence[np.ndarray] | None = None) -> None:
        """Copy the parts of all processes to the first one, into `arrays`.

        Raises SpillError, in all processes, if one cannot read its part.
        """
        part, error = np.empty(0, tensor.numpy_dtype), None
        try:
            part = tensor.part()
        except SpillError as failed:
            error = failed
        self._raise_first(f"whether all have their parts of a tensor of shape {tensor.shape}", error)
        longest = max(piece.stop - piece.start for piece in tensor.parts)
        steps = collective_steps.gather(self.group.size(), 0, part, arrays, longest)
        run(self.group, f"a tensor of shape {tensor.shape} to save", steps)

    def _raise_first(self, what: str, own: SpillgradError | None) -> None:
        """Raise, in all processes, the error of the first process that has one."""
        for rank, error in zip(self.group.ranks, self.told(what, own), strict=True):
            if error is not None:
                raise type(error)(f"rank {rank}: {error}")


class Leader:
    """What the first process saves with the others. `result` is what they learn at the end."""

    def __init__(self, together: _Together) -> None:
        self.result = ""
        self._together = together
        self._numbers = {id(tensor): number for number, tensor in enumerate(together.tensors)}

    def write_tensors(
        self, folder: Path, tensors: Mapping[str, Tensor], places: Mapping[str, Place]
    ) -> dict[str, bytes]:
        """Do as `safetensors_io.write_tensors` does, by all processes if they see the folder.

        Raises SpillError or CheckpointError if one of them cannot read or write.
        """
        numbers = {name: self._numbers[id(tensor)] for name, tensor in tensors.items() if id(tensor) in self._numbers}
        to_write = {number: places[name] for name, number in numbers.items()}
        self._together.next(_WRITE)
        self._together.told("what to write", (folder.name, to_write))
        found = self._together.write(folder, to_write)
        if found is None:
            return safetensors_io.write_tensors(folder, tensors, places)
        own = {name: place for name, place in places.items() if name not in numbers}
        checksums = safetensors_io.write_tensors(folder, tensors, own)
        for name, number in numbers.items():  # the parts are in the order of the ranks
            checksums[name] = b"".join(of_rank.get(number, b"") for of_rank in found)
        return checksums

    def whole(self, tensor: ShardedTensor) -> np.ndarray:
        """Return the whole of a tensor, whose parts the other processes send."""
        array = np.empty(math.prod(tensor.shape), tensor.numpy_dtype)
        self._together.next(self._numbers[id(tensor)])
        self._together.bring(tensor, [array[part] for part in tensor.parts])
        return array.reshape(tensor.shape)


@contextlib.contextmanager
def leading(group: ProcessGroup, tensors: Sequence[Tensor]) -> Iterator[Leader]:
    """Context manager for the first process: it saves, and the others `follow`.

    `host_array` of a tensor in parts returns the whole. An error that the block raises is that of all.
    """
    together = _Together(group, tensors)
    leader = Leader(together)
    in_parts = [tensor for tensor in tensors if isinstance(tensor, ShardedTensor)]
    for tensor in in_parts:
        tensor.whole = leader.whole
    error: BaseException | None = None
    try:
        yield leader
    except BaseException as raised:
        error = raised
        raise
    finally:
        for tensor in in_parts:
            tensor.whole = None
        if not isinstance(error, DistributedError):  # else nobody would hear it
            together.next(_SAVED)
            together.told("whether all is saved", (None if error is None else str(error) or repr(error), leader.result))


def follow(group: ProcessGroup, tensors: Sequence[Tensor], root: Path) -> str:
    """Do what the first process wants until it has saved to the directory that this one calls `root`.

    Return the leader's result. Raises CheckpointError if the first process could not save.
    """
    together = _Together(group, tensors)
    while (number := together.next()) != _SAVED:
        with contextlib.suppress(SpillError, CheckpointError):  # the first process ends with this error, and says so
            if number == _WRITE:
                version, places = together.told("what to write")[0]
                together.write(root / version, places)
            else:
                tensor = tensors[number]
                assert isinstance(tensor, ShardedTensor)
                together.bring(tensor)
    error, result = together.told("whether all is saved")[0]
    if error is not None:
        raise CheckpointError(error)
    return str(result)
