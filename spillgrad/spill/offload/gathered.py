"""Parameters of which each process of a group has a part in its store; the whole is in RAM while it is used.

At each use by a module, or by an operation of backward, the processes send each other their parts. Which uses these are
follows from the program alone, which is the same in all processes, and never from what one of them still has in RAM.

Source: ZeRO's third stage (Rajbhandari et al. 2020, section 5.3), PyTorch's `fully_shard`.
"""

import collections
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from spillgrad.device.device import CPU
from spillgrad.distributed import collective_steps
from spillgrad.distributed.process_group import ProcessGroup, Work, begin, run
from spillgrad.distributed.sharded_tensor import ShardedTensor, parts_of
from spillgrad.generator import default_generator
from spillgrad.nn.parameter import Parameter
from spillgrad.spill.offload.needs import Sharing
from spillgrad.spill.offload.residents import Resident
from spillgrad.spill.offload.tensors import OffloadedStorage, TensorResidents
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor

_NOTHING_YET = (-1, -1)
# Who keeps the last array that was used outside of modules, and those that wait for backward.
_LAST, BACKWARD = "last", "backward"
# How many models of each group are in parts.
_models_of: "weakref.WeakKeyDictionary[ProcessGroup, int]" = weakref.WeakKeyDictionary()


class Parts(Handle):
    """The name of an array of which each process has a part."""

    __slots__ = ("changes", "changing", "in_parts")

    def __init__(self, array: np.ndarray, sequence: int, label: Label, in_parts: ShardedTensor) -> None:
        super().__init__(array, sequence, label)
        self.in_parts = in_parts
        self.changing: np.ndarray | None = None  # the whole array, while it is changed
        self.changes = 0  # how often it was changed, in the program's order


class Memory(Protocol):
    """What has the parts: a store."""

    @property
    def ram_budget(self) -> int:
        """The most bytes in RAM."""

    def counted_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, which counts until it dies."""


class _Gathered(NamedTuple):
    """An array whose parts are on their way."""

    handle: Parts
    array: np.ndarray
    work: Work


class Gathering:
    """Brings the parts of arrays together. To a `Resident`, it is the store of the whole arrays.

    Attributes
    ----------
    budget_bytes : int
        The most bytes that the running modules keep.
    ahead_bytes : int
        The largest array that is brought together before it is needed. Both numbers are the same in all processes.
    kept : dict
        Whole arrays, by whoever keeps them in memory beyond the running modules: lists.
    record : list or None
        Gets the number of each array that is brought together.
    """

    def __init__(self, store: Memory, group: ProcessGroup) -> None:
        self.group = group
        self.budget_bytes, self.ahead_bytes = store.ram_budget, 0
        self.kept: dict[object, list[np.ndarray]] = {}
        self.keeps_until_backward = False  # whether arrays that forward uses are kept for backward
        self.record: list[Any] | None = None
        self.drops: collections.deque[Handle] = collections.deque(maxlen=0)  # a part is dropped with its tensor
        self._store = store
        self._number = _models_of.get(group, 0)
        _models_of[group] = self._number + 1
        self._made = 0
        self._handles: weakref.WeakValueDictionary[int, Parts] = weakref.WeakValueDictionary()
        self._runs_ahead = True  # False between a change by the program and the next update
        # The numbers of the last two arrays, and of those that followed on each such pair when it was last seen.
        self._lately = _NOTHING_YET
        self._following: dict[tuple[int, int], int] = {}
        self._ahead: _Gathered | None = None

    def new_handle(self, array: np.ndarray, label: Label, in_parts: ShardedTensor) -> Parts:
        """Return the name of a whole array."""
        handle = Parts(array, self._made, label, in_parts)
        self.adopt(handle)
        return handle

    def adopt(self, handle: Parts) -> None:
        """Bring an array together from now on that another one has brought together before."""
        handle.sequence = self._made
        self._handles[self._made] = handle
        self._made += 1

    def gather(self, handle: Parts, array: np.ndarray | None = None) -> np.ndarray:
        """Return the whole array, in `array` if it is given. All processes call it."""
        if self.record is not None:
            self.record.append(handle.sequence)
        self.kept.pop(_LAST, None)
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.handle is not handle:
            ahead.work.wait()
            ahead = None
        if ahead is None:
            ahead = self._begin(handle, array)
        ahead.work.wait()
        found = ahead.array
        del ahead
        if array is not None and found is not array:
            np.copyto(array, found)
            found = array
        self._following[self._lately] = handle.sequence
        self._lately = (self._lately[1], handle.sequence)
        following = self._handles.get(self._following.get(self._lately, -1))
        if self._runs_ahead and following is not None and following.nbytes <= self.ahead_bytes:
            self._ahead = self._begin(following, None)
        return found

    def _begin(self, handle: Parts, array: np.ndarray | None) -> _Gathered:
        if array is None:
            array = self.empty(handle.shape, handle.dtype)
        flat, whole = array.reshape(-1), handle.in_parts
        pieces = [flat[part] for part in whole.parts]
        own = pieces[self.group.rank()]
        np.copyto(own, whole.shard.array)
        words = (
            f"{handle.label.module} ({flat.size} {flat.dtype}), parameter {handle.sequence} of model {self._number} of "
            f"the group, after {handle.changes} changes"
        )
        return _Gathered(handle, array, begin(self.group, words, collective_steps.all_gather(own, pieces)))

    def gather_again(self, number: int) -> None:
        """Take part in bringing together an array that this process does not need."""
        self.gather(self._handles[number])

    def begin_updates(self) -> None:
        """Let go of all that will have other values. All processes call it, before an optimizer changes parts."""
        self.kept.clear()
        self._forget_ahead()
        self._runs_ahead = True

    def _forget_ahead(self) -> None:
        self._following.pop(self._lately, None)  # next time, it is not brought together so early
        self._lately = _NOTHING_YET
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.work.wait()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, which the store counts until it dies."""
        return self._store.counted_empty(shape, dtype)

    def relabel(self, handle: Parts, label: Label) -> None:
        """Replace the label of an array."""
        handle.label = label
        storage = handle.in_parts.shard._storage
        if isinstance(storage, OffloadedStorage):
            storage.relabel(label)

    def begin_change(self, handle: Parts, array: np.ndarray) -> None:
        """Keep `array`, the whole, until the change has ended."""
        handle.changing = array
        handle.changes += 1
        self.kept.pop(_LAST, None)
        self._forget_ahead()  # it may have old values, and so may what follows until all changes have ended
        self._runs_ahead = False

    def end_change(self, handle: Parts, changed: bool) -> None:
        """Store this process's part of the new values."""
        if changed:
            self.store_part(handle)
        handle.changing = None

    def store_part(self, handle: Parts) -> None:
        """Store this process's part of what a program has changed so far."""
        array = handle.changing
        if array is None:
            return
        part = handle.in_parts.parts[self.group.rank()]
        shard = handle.in_parts.shard
        target = shard.array_to_overwrite()
        shard._storage.begin_change()
        np.copyto(target, array.reshape(-1)[part])
        del target, array
        if isinstance(shard._storage, OffloadedStorage):
            shard._storage._residents.return_changed(with_last=True)


class GatheredStorage(OffloadedStorage):
    """The memory of a parameter of which each process has a part, and of its views."""

    _store: Gathering
    _handle: Parts
    # Whether the array in memory has no values yet, but will be overwritten.
    _is_overwritten = False

    @property
    def in_parts(self) -> ShardedTensor:
        """The parameter as a tensor in parts."""
        return self._handle.in_parts

    @property
    def array(self) -> np.ndarray:  # type: ignore[override]
        """The whole array, which all processes ask for together, unless it is kept for them all, or being changed."""
        array = self._alive()
        if array is not None and (self._changing or self._is_overwritten or self._is_kept(array)):
            return array
        in_a_module = self._residents.frame.number is not None
        if in_a_module:
            self._residents.make_room(self._handle.nbytes, self._store)
        with self._residents.lock:
            array = self._store.gather(self._handle, array)
            self._alive = weakref.ref(array)
            self._is_overwritten = False
        self.hold(array)
        if not in_a_module:  # an operation asks for it several times
            self._store.kept[_LAST] = [array]
        elif self._store.keeps_until_backward and self._store.record is not None:
            self._store.kept.setdefault(BACKWARD, []).append(array)
        return array

    def parts_now(self) -> ShardedTensor:
        """Return the parameter in parts, with what a program has changed so far."""
        self._residents.return_changed(with_last=True)
        self._store.store_part(self._handle)
        return self._handle.in_parts

    def count_change(self) -> None:
        super().count_change()
        self._handle.changes += 1

    def move_to(self, residents: "GatheringResidents") -> None:
        """Have other residents decide when the whole is in RAM."""
        self.parts_now()
        self.let_go()
        self._residents, self._store = residents, residents.gathering
        residents.gathering.adopt(self._handle)

    def let_go(self) -> None:
        """Store what a program has changed; an array that it still holds is the parameter's no more."""
        with self._residents.lock:
            self._store.end_change(self._handle, self._mark is None or self._mark != self.mark())
            self._changing, self._mark, self._is_overwritten = False, None, False
            self._alive = weakref.ref(np.empty(0))  # none

    def _is_kept(self, array: np.ndarray) -> bool:
        held = (frame.held.get(self._store, ()) for frame in self._residents.thread.frames)
        return any(kept is array for some in (*held, *self._store.kept.values()) for kept in some)

    def array_to_overwrite(self) -> np.ndarray:
        array = super().array_to_overwrite()
        self._is_overwritten = True
        return array

    def end_change(self) -> bool:
        has_ended = super().end_change()
        self._is_overwritten = self._is_overwritten and not has_ended
        return has_ended


class GatheringResidents(TensorResidents):
    """Decides which offloaded tensors are in RAM. Of large parameters, the store has this process's part alone."""

    def __init__(self, store: DiskStore, group: ProcessGroup, sharing: Sharing) -> None:
        super().__init__(store)
        self.gathering = Gathering(store, group)
        self._group, self._sharing = group, sharing
        self._is_building = False

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Context manager: all processes make the same values. Parameters are cut as soon as modules register them."""
        size, mine = self._group.size(), default_generator.get_state()
        steps = collective_steps.all_gather_object(size, collective_steps.pickled(mine))
        first = run(self._group, "the random state in which a model is built", steps)[0]
        default_generator.set_state(first)
        self._is_building = True
        try:
            yield
        finally:
            self._is_building = False
            if mine != first:
                default_generator.set_state(mine)

    def offload(self, tensor: Tensor, label: Label) -> None:
        super().offload(tensor, label)
        if self._is_building:
            self.cut(tensor, label)

    def cut(self, tensor: Tensor, label: Label) -> None:
        """Keep only this process's part of an offloaded tensor that all processes have, if it is a large parameter."""
        storage = tensor._storage
        if self.cuts(tensor) and isinstance(storage, OffloadedStorage):
            array, former = storage.array, storage._handle
            handle = self._parts_of(array, label)
            storage.__class__ = GatheredStorage
            Resident.place(storage, self, self.gathering, handle, array)
            self.store.drop(former)

    def make_room(self, nbytes: int, store: Any) -> None:
        super().make_room(nbytes, store)
        gathered, held = ([frame.held[each] for frame in self.thread.frames] for each in (self.gathering, self.store))
        excess = nbytes - self.store.budget_bytes + sum(used.nbytes for some in (*gathered, *held) for used in some)
        for arrays in held:
            while excess > 0 and arrays:
                excess -= arrays.popleft().nbytes

    def leave(self, owner: int) -> None:
        self.forget_last()
        super().leave(owner)

    def enter(self, owner: int, begins_step: bool = False) -> None:
        self.forget_last()
        super().enter(owner, begins_step)

    def begin_updates(self) -> None:
        """Before an optimizer changes parts: end all changes by the program, whatever it still holds."""
        self.return_changed(with_last=True)
        with self.lock:
            held = [resident for known in self.changing if isinstance(resident := known(), GatheredStorage)]
            for storage in held:
                storage.let_go()
            self.changing = collections.deque(known for known in self.changing if known() not in held)
        self.gathering.begin_updates()

    def forget_last(self) -> None:
        """Let go of the last array that was used outside of modules."""
        self.gathering.kept.pop(_LAST, None)

    def cuts(self, tensor: Tensor) -> bool:
        """Return whether a tensor, which is whole, is to be in parts."""
        is_whole = tensor._storage.in_parts is None and tensor.device is CPU
        return is_whole and isinstance(tensor, Parameter) and self._sharing.cuts(tensor.nbytes)

    def _keep_part(self, shard: Tensor, label: Label) -> None:
        super().offload(shard, label)

    def _parts_of(self, array: np.ndarray, label: Label) -> Parts:
        """Copy this process's part of an array, and return the name of the whole."""
        (parts,) = parts_of([array.size], self._group.size())
        shard = Tensor.wrap(array.reshape(-1)[parts[self._group.rank()]].copy())
        self._keep_part(shard, label)
        return self.gathering.new_handle(array, label, ShardedTensor.of(self._group, parts, shard, array.shape))
