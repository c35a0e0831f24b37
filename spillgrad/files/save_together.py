"""A checkpoint that several processes save together.

The first process lays out the files, and tells the others what to do. Where all see its folder, as on one machine or on
a shared file system, each process writes its ranges of the files. Elsewhere, the first process writes all, and the
others send their parts.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, run
from spillgrad.distributed.sharded_tensor import ShardedTensor, parts_of
from spillgrad.errors import CheckpointError, DistributedError, SpillError, SpillgradError
from spillgrad.files import checkpoint_directory, safetensors_io
from spillgrad.files.safetensors_io import Place, Range
from spillgrad.tensor import Tensor

T = TypeVar("T")

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

        Return, in the first process, the checksums that each one has of its ranges; None, in all, if one cannot open
        the files. Raises SpillError or CheckpointError, in all processes, if one cannot read or write.
        """
        numbers = [number for number in places if self._part(number).start < self._part(number).stop]
        if not all(self.told("whether all see the checkpoint", _can_write(folder, places.values()))):
            return None

        def written() -> list[bytes]:
            try:
                return safetensors_io.write_ranges(folder, [self._range(number, places[number]) for number in numbers])
            except SpillError:
                raise
            except OSError as error:
                raise checkpoint_directory.not_written(folder.parent, error) from error

        checksums = self._by_all("whether all have written", written)
        mine = collective_steps.pickled(dict(zip(numbers, checksums, strict=True)))
        steps = collective_steps.gather_object(self.group.rank(), self.group.size(), 0, mine)
        return run(self.group, "checksums", steps) or []

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
        part = self._by_all(f"whether all have their parts of a tensor of shape {tensor.shape}", tensor.part)
        longest = max(piece.stop - piece.start for piece in tensor.parts)
        steps = collective_steps.gather(self.group.size(), 0, part, arrays, longest)
        run(self.group, f"a tensor of shape {tensor.shape} to save", steps)

    def _by_all(self, what: str, own: Callable[[], T]) -> T:
        """Return what `own` returns, or raise the error of the first process in which it fails.

        SpillError and CheckpointError are raised as such in all. Another error, such as an interrupt, stays what it is
        in its process.
        """
        error: BaseException | None = None
        try:
            result = own()
        except BaseException as raised:
            error = raised
        known = isinstance(error, SpillError | CheckpointError)
        told = error if error is None or known else CheckpointError(str(error) or repr(error))
        errors = self.told(what, told)
        if error is not None and not known:
            raise error
        for rank, each in zip(self.group.ranks, errors, strict=True):
            if each is not None:
                raise type(each)(f"rank {rank}: {each}")
        return result


def _below(directory: Any, version: str) -> Path:
    """Return the folder of a version in a directory; a path that does not exist if this process cannot say."""
    try:
        return safetensors_io.absolute(directory) / version
    except (SpillgradError, TypeError, ValueError):  # a current directory that is gone; what is no path
        return Path(os.devnull) / version


def _can_write(folder: Path, places: Iterable[Place]) -> bool:
    """Return whether this process sees the folder that the first one has made, and can write its files."""
    if not checkpoint_directory.is_begun(folder):
        return False
    try:
        for name in {place.file for place in places}:
            safetensors_io.open_for_writing(folder / name).close()
    except OSError:
        return False
    return True


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


def follow(group: ProcessGroup, tensors: Sequence[Tensor], directory: str | os.PathLike[str]) -> str:
    """Do what the first process wants until it has saved to the directory that this one calls `directory`.

    Return the leader's result. Raises CheckpointError if the first process could not save.
    """
    together = _Together(group, tensors)
    own: BaseException | None = None
    while (number := together.next()) != _SAVED:
        try:
            if number == _WRITE:
                version, places = together.told("what to write")[0]
                together.write(_below(directory, version), places)
            else:
                tensor = tensors[number]
                assert isinstance(tensor, ShardedTensor)
                together.bring(tensor)
        except DistributedError:
            raise
        except (SpillError, CheckpointError):
            pass  # the first process has it, too, and ends with it
        except BaseException as raised:
            own = raised  # after all have ended
    error, result = together.told("whether all is saved")[0]
    if own is not None:
        raise own
    if error is not None:
        raise CheckpointError(error)
    return str(result)
