"""Saved tensors of a CUDA device: the newest stay on the device within a budget, the others go to a store and back.

Bytes go to the store through pinned memory, on a stream beside the kernels. Backward needs the newest first; as it
uses them up, the ones that it needs next are copied back beside its kernels.
"""

import collections
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from spillgrad.errors import SavedTensorError, SpillError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.torch.memory import bytes_of, view_of_bytes
from spillgrad.spill.saved_memory import Kept, Layout, Packed
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad_kernels.memory.holder import finalizer, later

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class OnDevice:
    """Bytes on a CUDA device, to be put into a store; the store calls `fetch` once it has room for them."""

    def __init__(self, storage: Any, begin: int, dtype: "np.dtype[Any]", shape: tuple[int, ...], nbytes: int) -> None:
        self._source = bytes_of(storage, begin, nbytes)
        self.dtype, self.shape, self.nbytes = dtype, shape, nbytes

    def fetch(self) -> tuple[np.ndarray, Callable[[], None]]:
        """Begin to copy the bytes to pinned memory; return the pinned array, and a function that waits for the copy.

        The copy runs after the kernels launched so far.
        """
        host = torch.empty(self.nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        stream = _stream_beside(self._source.device)
        stream.wait_stream(torch.cuda.current_stream(self._source.device))
        with torch.cuda.stream(stream):
            host.copy_(self._source, non_blocking=True)
            done = stream.record_event()
        self._source.record_stream(stream)  # if freed, the memory is not reused before the copy ends
        return host.numpy().view(self.dtype).reshape(self.shape), done.synchronize


def is_on_device(tensor: Any) -> bool:
    """Return whether a tensor is on a device, whose saved tensors have a budget of their own."""
    return bool(tensor.is_cuda)


def to_device(array: np.ndarray, device: Any) -> Any:
    """Copy an array's bytes to a device. Kernels on its current stream may use them; the array may be freed at once."""
    return view_of_bytes(array).to(device)


class Arriving:
    """An array's bytes on their way to a device, beside its kernels: `tensor` has them after `wait`."""

    def __init__(self, array: np.ndarray, device: Any) -> None:
        stream = _stream_beside(device)
        with torch.cuda.stream(stream):
            self.tensor = view_of_bytes(array).to(device, non_blocking=True)
            self._done = stream.record_event()
        self._array: np.ndarray | None = array  # it must stay until it was copied

    def wait(self) -> None:
        """Wait for the bytes; kernels of the current stream may use them then."""
        self._done.synchronize()
        self._array = None
        # If freed, the memory is not reused before those kernels end.
        self.tensor.record_stream(torch.cuda.current_stream(self.tensor.device))


@functools.cache
def _stream_beside(device: Any) -> Any:
    return torch.cuda.Stream(device)


class _Memory:
    """A storage of a device that saved tensors have: its bytes, and those tensors, weakly."""

    __slots__ = ("has_place", "nbytes", "tensors")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.has_place = True  # whether its bytes on the device count in the budget
        self.tensors: list[weakref.ref[OnDeviceOrSent]] = []

    def living(self) -> "list[OnDeviceOrSent]":
        """Return the saved tensors that a graph still has."""
        found = [tensor for reference in self.tensors if (tensor := reference()) is not None]
        self.tensors = [weakref.ref(tensor) for tensor in found]
        return found


class OnDeviceOrSent(Packed):
    """The object that a graph keeps for a saved tensor of a device.

    `kept` is the tensor while it stays on the device. After that, `sent` names its bytes in the store, and `ahead` is
    the storage to which they are copied before they are used.
    """

    __slots__ = ("__weakref__", "_drop", "ahead", "kept", "label", "layout", "memory", "newest", "sent")
    __del__ = finalizer

    def __init__(self, newest: "NewestOnDevice", memory: _Memory, kept: Kept, layout: Layout, label: Label) -> None:
        self.newest, self.memory, self.kept, self.layout, self.label = newest, memory, kept, layout, label
        self.sent: Any = None
        self.ahead: Any = None
        self._drop = later(newest.ended.append, memory)

    def tensor(self) -> Any:
        """Return the saved tensor. Raises SavedTensorError if it was modified in place, or the store's errors."""
        return self.newest.use(self)


class NewestOnDevice:
    """Keeps the newest saved tensors of a device there, within `budget_bytes`, and sends the others to a store.

    Parameters
    ----------
    store : DiskStore
        The store.
    budget_bytes : int
        The most bytes of saved tensors on the device. A tensor that its caller uses, too, counts in full.
    send : callable
        Puts the bytes of a tensor with a layout and a label into the store, and returns what names them there.
    """

    def __init__(self, store: DiskStore, budget_bytes: int, send: Callable[[Any, Layout, Label], Any]) -> None:
        self._store, self._budget_bytes, self._send_bytes = store, budget_bytes, send
        self._lock = ForkSafeLock()
        # By storage, the oldest first: those that count in the budget, and those that were sent.
        self._here: collections.OrderedDict[int, _Memory] = collections.OrderedDict()
        self._away: dict[int, _Memory] = {}  # by id
        self.held_bytes = self.peak_bytes = 0
        self.ended: collections.deque[_Memory] = collections.deque()  # of saved tensors that graphs gave up

    def keep(self, storage: Any, kept: Kept, layout: Layout, label: Label) -> OnDeviceOrSent:
        """Keep a tensor over `storage` that is saved now; send the oldest if the budget is exceeded.

        Raises the store's errors.
        """
        with self._lock:
            self._forget_ended()
            memory = self._here.get(storage._cdata)
            if memory is not None and not memory.living():  # it was of a storage that died
                self._give_place_up(memory)
                memory = None
            if memory is None:
                memory = self._here[storage._cdata] = _Memory(storage.nbytes())
                self._hold(memory)
            self._here.move_to_end(storage._cdata)
            saved = OnDeviceOrSent(self, memory, kept, layout, label)
            memory.tensors.append(weakref.ref(saved))
        while (oldest := self._oldest_in_excess()) is not None:
            self._send(oldest)
        return saved

    def use(self, saved: OnDeviceOrSent) -> Any:
        """Return a saved tensor, and begin to copy back those that backward will need next."""
        with self._lock:
            kept, sent = saved.kept, saved.sent
        tensor = kept.tensor() if sent is None else sent.tensor()
        self._copy_ahead(saved.memory)
        return tensor

    def flush(self) -> None:
        """Send all to the store. Raises the store's errors."""
        while self._here:
            with self._lock:
                memory = next(iter(self._here.values()), None)
                if memory is not None:
                    self._give_place_up(memory)
            if memory is not None:
                self._send(memory)

    def count(self) -> int:
        """Return the bytes of saved tensors on the device now."""
        with self._lock:
            self._forget_ended()
            return self.held_bytes

    def _hold(self, memory: _Memory) -> None:
        self.held_bytes += memory.nbytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def _forget_ended(self) -> None:
        """Stop counting memory of which graphs have no saved tensor any more. Called with the lock held."""
        while self.ended:
            memory = self.ended.popleft()
            if not memory.living():
                self._away.pop(id(memory), None)
                if memory.has_place:
                    self._give_place_up(memory)

    def _give_place_up(self, memory: _Memory) -> None:
        memory.has_place = False
        self.held_bytes -= memory.nbytes
        for address in [address for address, each in self._here.items() if each is memory]:
            del self._here[address]

    def _oldest_in_excess(self) -> _Memory | None:
        """If the budget is exceeded, take the oldest memory from those that are here, and return it."""
        with self._lock:
            self._forget_ended()
            if self.held_bytes <= self._budget_bytes or not self._here:
                return None
            memory = next(iter(self._here.values()))
            self._give_place_up(memory)
            return memory

    def _send(self, memory: _Memory) -> None:
        for saved in memory.living():
            try:
                sent = self._send_bytes(saved.kept.tensor(), saved.layout, saved.label)
            except SavedTensorError:
                continue  # it was modified; its use will say so
            with self._lock:
                saved.sent, saved.kept = sent, _GONE
        with self._lock:
            if memory.living():
                self._away[id(memory)] = memory

    def _copy_ahead(self, used: _Memory) -> None:
        """Begin to copy back what was sent last before `used`, as far as the budget has room."""
        with self._lock:
            self._forget_ended()
            away = list(self._away.values())
            place = away.index(used) if id(used) in self._away else len(away)
            following = away[max(0, place - _AHEAD) : place][::-1]
        for memory in following:
            saved = next(iter(memory.living()), None)
            if saved is None or saved.sent is None:
                continue
            handle: Handle = saved.sent.held
            if not self._store.is_here(handle):
                self._store.prefetch([handle])
                return
            with self._lock:
                if memory.has_place:
                    continue
                if self.held_bytes + memory.nbytes > self._budget_bytes:
                    return
                memory.has_place = True
                self._hold(memory)
            try:
                saved.ahead = saved.sent.copy_ahead()
            except BaseException as error:
                with self._lock:
                    self._give_place_up(memory)
                if isinstance(error, SpillError | MemoryError | torch.OutOfMemoryError):
                    return  # its use tries again, and raises the error
                raise


# How many storages are looked at when backward has used one.
_AHEAD = 8
_GONE = Kept(None)
