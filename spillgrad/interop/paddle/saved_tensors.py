"""Hooks that spill what Paddle saves for backward to HDF5 files under a RAM budget."""

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any

import numpy as np
import paddle
from paddle.autograd.py_layer import PyLayerContext
from paddle.base.framework import _dygraph_tracer

from spillgrad.autograd.core import hooks
from spillgrad.errors import ArgumentError, SavedTensorError
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.arrays import dtype_and_shape
from spillgrad.interop.context import FrameworkContext
from spillgrad.interop.paddle.memory import (
    Memory,
    OwnMemory,
    ReturnedMemory,
    Version,
    alias,
    changes_of,
    layout_of,
    memory_of,
    placed,
    register,
    same_bytes,
)
from spillgrad.interop.paddle.stored_parameter import SavedParameter, open_memory
from spillgrad.interop.running_module import RunningModule
from spillgrad.spill import saved_memory
from spillgrad.spill.keep_or_spill import Outcome, outcome_in_ram
from spillgrad.spill.offload.owner import OffloadOwner
from spillgrad.spill.saved_memory import Kept, Layout, Packed, SavedMemory, note_view, present_label
from spillgrad.spill.small_tensors import Place
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle
from spillgrad.storage.threads.interrupts import keep_whole
from spillgrad_kernels.device_array import address_of
from spillgrad_kernels.memory import buffers

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


_running = RunningModule(
    paddle.nn.Layer._dygraph_call_func.__code__, lambda layer: layer.named_sublayers(include_self=True)
)


class Spilled(saved_memory.Spilled):
    """A spilled tensor of Paddle. Its layout is for the whole memory, although the store may have only a part of it."""

    __slots__ = ("_altered_by", "_begin", "_original", "_version")

    def __init__(
        self,
        store: DiskStore,
        handle: Handle,
        key: Hashable,
        layout: Layout,
        altered_by: Hashable | None,
        begin: int,
        version: Version,
        original: OwnMemory | ReturnedMemory,
    ) -> None:
        super().__init__(store, store, handle, key, layout)
        self._altered_by, self._begin, self._version = altered_by, begin, version
        self._original = weakref.ref(original)

    def tensor(self) -> Any:
        """Return the tensor; its memory keeps this object alive."""
        array = self._source.get(self.held)
        begin, end = self._begin, self._begin + array.nbytes
        original = self._original()
        if original is not None and original.address + begin == address_of(array):
            array = original.array
        else:
            array = array.reshape(-1).view(np.uint8)
            if begin:  # Paddle expects the bytes where they were in its memory
                array = placed(array, begin)
        returned = ReturnedMemory(array, begin, end, self._key, self._altered_by, self._version, self)
        return self._version.over(register(returned).array, self._layout)


class SpilledSmall(saved_memory.SpilledSmall):
    """A small saved tensor of Paddle; several of them share an array of the store."""

    __slots__ = ("_version",)

    def __init__(self, place: Place, layout: Layout, version: Version) -> None:
        super().__init__(place, layout)
        self._version = version

    def tensor(self) -> Any:
        """Return the tensor; its memory keeps this object alive."""
        own = buffers.copy(self._place.read())
        return self._version.over(Memory(address_of(own), own.nbytes, (own, self)).array, self._layout)


class Releasable(Packed):
    """The object that a graph keeps for a spilled tensor; it drops the `spilled` object once the graph has unpacked it.

    A node keeps the unpacked memory, and so the `spilled` object, until the node cannot run again. The node keeps this
    object longer, until the node dies.
    """

    __slots__ = ("_by_layer", "_held", "_spilled")

    def __init__(self, spilled: Spilled | SpilledSmall, by_layer: bool) -> None:
        self._spilled = weakref.ref(spilled)
        self._held: Spilled | SpilledSmall | None = spilled
        self._by_layer = by_layer

    @property
    def spilled(self) -> Spilled | SpilledSmall:
        """The object that refers to the spilled tensor. Raises SavedTensorError if the object was freed."""
        spilled = self._spilled()
        if spilled is None:
            raise SavedTensorError(
                "save_on_disk: what was saved is freed, as backward ran or failed; run forward again"
            )
        return spilled

    def tensor(self, for_node: bool = False) -> Any:
        """Return the tensor. With `for_node`, a node of the graph takes the tensor, and this object drops `spilled`.

        Raises SavedTensorError if the tensor was changed or freed.
        """
        spilled = self.spilled
        if not self._by_layer:  # for a tensor that a PyLayer saved, the store has the old values, or raises
            spilled._version.require(spilled._layout)
        tensor = spilled.tensor()
        if not self._by_layer:
            spilled._version.require(spilled._layout)
        if for_node:
            self.free()
        return tensor

    def free(self) -> None:
        """Drop the `spilled` object."""
        self._held = None

    def __repr__(self) -> str:
        return f"<Releasable {self._spilled()!r}>"


class _Recent:
    """Keeps recently copied small memory known, so that the copy is found if the memory is saved again."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def is_over(self) -> bool:
        """Return True: the copy does not need the memory."""
        return True


class _Saved(hooks.SavedValue):
    @property
    def nbytes(self) -> int:
        return int(self.tensor.numel()) * int(self.tensor.element_size())


class save_on_disk(FrameworkContext):
    """Spill what Paddle saves for backward to disk, and keep at most `ram_budget` bytes of it in RAM.

    A context manager for the forward pass::

        with save_on_disk("spill/", ram_budget="2GiB"):
            loss = model(x)
        loss.backward()

    Gradients are the same, bit for bit, unless `codec` rounds. `spillgrad.save_on_disk` says when the files are
    removed.

    Parameters
    ----------
    directory : str, path or disk_offload, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files. Or what `disk_offload` returned: the saved tensors then share its store and budget.
    ram_budget : int or str, optional
        The most bytes of saved tensors in RAM, or a size such as "2GiB". Required, except with an offload.
    min_bytes : int or str, default 4096
        Tensors that span less than this stay in RAM. Bytes, or a size.
    direct_io : bool, optional
        Whether to bypass the page cache, if the file system can. With None, a short measurement decides.
    checksums : bool, default True
        Whether to take a checksum of each array that is written, and to compare it when the array is read.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk is full or reports an error: raise SpillError, or warn once and keep tensors in RAM
        beyond the budget until the disk accepts them again.
    codec : {"lossless", "bf16", "int8"}, optional
        How tensors are encoded in the files; as they are, by default. `spillgrad.save_on_disk` says how exact each is.
    encrypt : bool, default False
        Whether to encrypt the files, with a key that only this object has. Needs the package cryptography.
    keep_journal : str or path, optional
        File that records what is packed, written, read and waited for; `spillgrad inspect` reads it. Give each object a
        file of its own.
    only : callable, optional
        Function of an object with `tensor` and `nbytes` that returns whether to spill the tensor. By default, all are
        spilled.

    Raises
    ------
    BudgetError
        If a size does not parse.
    ArgumentError
        For an unknown word, a missing package or a missing `ram_budget`; when it is entered, inside other hooks.
    SpillError
        If the directory cannot be used, or if the journal belongs to another living object; when a tensor is saved or
        read, if the disk is full or fails.

    Notes
    -----
    The same object can be entered again, in any thread. These contexts can be nested, and each affects the thread that
    entered it. But Paddle has only one pair of hooks at a time: entering this context inside other hooks raises an
    error, and so do other hooks inside this context. `recompute` with ``use_reentrant=False`` has such hooks; its
    default works. `pack_hook` and `unpack_hook` can be passed to ``paddle.autograd.saved_tensors_hooks(...)`` too.

    **What stays in RAM.** Memory is stored once, however many nodes and views save it, unless it left RAM in between.
    These tensors stay in RAM: parameters and other leaves that require a gradient, because they are in RAM anyway;
    tensors smaller than `min_bytes`; tensors that `only` rejects; and tensors that are not dense, or not in host
    memory. Paddle keeps unpacked tensors in RAM while a graph is retained, or after `paddle.grad` has run through the
    graph.

    **In-place changes.** A saved tensor that was modified in place raises an error in backward, as it does without
    hooks. If a PyLayer saved the tensor, backward gets the old values, or raises an error. Only Paddle's version
    counters show such changes.

    **Errors.** An error in a hook reaches the caller as Paddle's OSError with the same message. When that OSError
    leaves the context, the context raises the original error.
    """

    _shared = ("disk_offload", (OffloadOwner,))

    def __enter__(self) -> "save_on_disk":
        keep_whole()
        enter_hooks("save_on_disk")
        _thread.contexts.append(self)
        return self

    def __exit__(self, kind: Any = None, error: BaseException | None = None, trace: Any = None) -> None:
        _thread.contexts.pop()
        leave_hooks()
        failure, _thread.failure = _thread.failure, None
        if failure is not None and isinstance(error, Exception) and str(failure) in str(error):
            try:
                raise failure from error
            finally:
                del failure, error, trace  # they refer to this frame: the cycle would keep the graph alive

    def pack_hook(self, tensor: Any) -> Any:
        """Give a tensor's memory to the store, or keep the tensor.

        Parameters
        ----------
        tensor : paddle.Tensor
            The tensor that an operation saves.

        Returns
        -------
        object
            What `unpack_hook` takes.
        """
        return _answer(self._pack, tensor, sys._getframe(1))

    def unpack_hook(self, packed: Any) -> Any:
        """Return the tensor that `pack_hook` packed.

        Parameters
        ----------
        packed : object
            What `pack_hook` returned.

        Returns
        -------
        paddle.Tensor
            Of the same shape, dtype and values, as far as the codec is exact.
        """
        return _answer(_unpacked, packed, sys._getframe(1))

    def _pack(self, tensor: Any, caller: FrameType) -> Any:
        by_layer = _is_of_layers(caller)
        if not isinstance(tensor, paddle.Tensor):
            return tensor  # a PyLayer may save None
        if by_layer:
            _refuse_lists(caller)
        if tensor.persistable or (tensor.is_leaf and not tensor.stop_gradient):
            return _kept(tensor, by_layer)
        plain = tensor.is_dense() and not tensor.is_dist() and tensor.place.is_cpu_place() and 0 not in tensor.shape
        taken = self.only is None or self.only(_Saved(tensor, "", "", ""))
        if not plain or not taken:
            return _kept(alias(tensor, by_layer), by_layer)
        layout = layout_of(tensor)
        outcome = outcome_in_ram(layout.span_bytes, tensor._holder_size(), self._min_bytes)
        if outcome is Outcome.COPIED or (outcome is Outcome.TOO_SMALL and by_layer):  # a PyLayer may change it
            return _kept(_copied(tensor, layout, by_layer), by_layer)
        if outcome is not None:
            return _kept(alias(tensor, by_layer), by_layer)
        version, original = Version(tensor, by_layer), memory_of(tensor)
        spill = self._spill_small if self._small.takes(original.nbytes) else self._spill
        return Releasable(spill(layout, version, original, by_layer), by_layer)

    def _spill(self, layout: Layout, version: Version, original: OwnMemory | ReturnedMemory, by_layer: bool) -> Spilled:
        altered_by = self._altered_by(layout)
        if isinstance(original, ReturnedMemory) and original.altered_by == altered_by:
            key, begin, end = original.key, original.begin, original.end
        else:
            whole = (original.number, version.number, altered_by)
            key, begin, end = self._part(whole, layout, original.nbytes)
        dtype, shape = dtype_and_shape(layout, end - begin)
        source = original.array[begin:end]
        is_unchanged = same_bytes(source, version) if by_layer else version.is_unchanged
        stored_layout = layout._replace(offset=layout.offset - begin)
        handle = self._put(
            SavedMemory(key, source.view(dtype).reshape(shape), stored_layout, is_unchanged),
            present_label(module=_running.path()),
        )
        self._stored[key] = handle
        return Spilled(self._store, handle, key, layout, altered_by, begin, version, original)

    def _spill_small(
        self, layout: Layout, version: Version, original: OwnMemory | ReturnedMemory, by_layer: bool
    ) -> SpilledSmall:
        place = self._small.known(original, version.number)
        if place is None:
            place = self._small.add(original, version.number, original.array, _Recent(original))
        note_view(place.views, layout, start=place.start)
        return SpilledSmall(place, layout, version)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.contexts: list[save_on_disk] = []
        self.failure: BaseException | None = None  # the error that Paddle replaces by its own


_thread = _Thread()
_entered = 0  # the number of entered contexts, in all threads
_entered_lock = ForkSafeLock()


def _pack(tensor: Any) -> Any:
    """Pack a tensor with the innermost context of this thread; if the thread is in no context, keep the tensor."""
    caller = sys._getframe(1)
    by_layer = _is_of_layers(caller)
    stored = open_memory(tensor) if isinstance(tensor, paddle.Tensor) else None
    if stored is not None:
        return SavedParameter(stored, tensor, by_layer)
    if not _thread.contexts:
        return _kept(alias(tensor, by_layer), by_layer) if isinstance(tensor, paddle.Tensor) else tensor
    try:
        return _answer(_thread.contexts[-1]._pack, tensor, caller)
    except BaseException:
        if not by_layer:
            # After an error Paddle keeps this object for ever, and the object holds all of the graph so far.
            tensor.reconstruct_from_(paddle.empty([0]))
        raise


def _unpack(packed: Any) -> Any:
    return _answer(_unpacked, packed, sys._getframe(1))


# Paddle has one pair of hooks at a time, for all threads.
_hooks = paddle.autograd.saved_tensors_hooks(_pack, _unpack)


def enter_hooks(who: str) -> None:
    """Let Paddle call the hooks until `leave_hooks`. Raises ArgumentError, whose message begins with `who`."""
    global _entered
    with _entered_lock:
        if not _entered:
            try:
                _hooks.__enter__()
            except ValueError as error:
                raise ArgumentError(
                    f"{who}: Paddle has one pair of hooks at a time, and other ones are active; leave their "
                    "context first (recompute has some with use_reentrant=False: leave that out)"
                ) from error
        _entered += 1


def leave_hooks() -> None:
    """End what `enter_hooks` began."""
    global _entered
    with _entered_lock:
        _entered -= 1
        if not _entered:
            _hooks.__exit__()


def _answer(hook: Callable[[Any, FrameType], Any], value: Any, caller: FrameType) -> Any:
    """Return `hook(value)`; store its error for the context, because Paddle raises another error in its place."""
    try:
        return hook(value, caller)
    except BaseException as error:
        if not _is_of_layers(caller):
            _dygraph_tracer()._has_grad = True  # Paddle turned it off for the hook, and after an error leaves it so
        if _thread.contexts:
            _thread.failure = error
        raise


def _unpacked(packed: Any, caller: FrameType) -> Any:
    if not isinstance(packed, Packed):
        return packed
    # Paddle's own functions unpack for nodes of the graph. Any other caller may unpack again.
    for_node = _module(caller).startswith("paddle.") and not _is_of_layers(caller)
    try:
        return packed.tensor(for_node) if isinstance(packed, Releasable) else packed.tensor()
    except BaseException:
        if isinstance(packed, Releasable | SavedParameter):
            packed.free()  # after an error Paddle keeps `packed` for ever
        raise


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_of_layers(caller: FrameType) -> bool:
    """Return whether the hook was called for a PyLayer's saved tensor, not for a node of the graph."""
    return bool(_module(caller) == PyLayerContext.__module__)


def _refuse_lists(caller: FrameType) -> None:
    if any(isinstance(saved, list) for saved in caller.f_locals.get("tensors", ())):
        raise ArgumentError(
            "save_for_backward: got a list, with which Paddle crashes under hooks; pass its tensors one by one"
        )


def _kept(tensor: Any, by_layer: bool) -> Kept:
    # Paddle itself does not check whether a tensor that a PyLayer saved was changed.
    return Kept(tensor, changes_of if tensor.is_dense() and not by_layer else None)


def _copied(tensor: Any, layout: Layout, by_layer: bool) -> Any:
    """Return a copy of `tensor` over a copy of only its own bytes, with the counter of changes of `tensor`."""
    copy = placed(memory_of(tensor).array[layout.offset : layout.offset + layout.span_bytes], layout.offset)
    return Version(tensor, by_layer).over(copy, layout)
