"""Hooks that spill what Paddle saves for backward to HDF5 files under a RAM budget."""

import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from types import FrameType, TracebackType
from typing import Any, cast

import numpy as np
import paddle
from paddle.autograd.py_layer import PyLayerContext
from paddle.base.framework import _dygraph_tracer

from spillgrad import labels
from spillgrad.autograd import hooks
from spillgrad.errors import ArgumentError, OperandError, SavedTensorError
from spillgrad.interop.arrays import ALIGNMENT_BYTES, SHARE_STORED_WHOLE, changed_error, dtype_and_shape
from spillgrad.interop.paddle.memory import (
    Layout,
    Lent,
    Origin,
    Seen,
    Version,
    address_of,
    alias,
    lend,
    memory_of,
    placed,
    same_bytes,
)
from spillgrad.spill.small_tensors import Place, SmallTensors
from spillgrad.storage.budget import parse_bytes
from spillgrad.storage.codecs import is_lossy
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.interrupts import keep_whole
from spillgrad.storage.owner import MAX_VIEWS, MIN_BYTES, StoreOwner
from spillgrad.storage.store import Handle, Label
from spillgrad.storage.store_lock import is_interrupted
from spillgrad_kernels import memory
from spillgrad_kernels.holder import Holder

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True


class _Stored(Holder):
    """A reference to what a store has, which goes with it."""

    __slots__ = ("__weakref__", "store")

    def __init__(self, store: DiskStore, handle: Handle) -> None:
        super().__init__(store.drops.append, handle)
        self.store = store

    @property
    def handle(self) -> Handle:
        """What the store calls it."""
        return cast(Handle, self.held)


class _InStore:
    """What a tensor that a store has leaves in the graph; its bytes are freed when the last one over them dies.

    Or before: a node keeps the memory that it got until it cannot run again, but not what it got it for until it dies.
    """

    __slots__ = ("_by_layer", "_held", "_stored", "_version")

    def __init__(self, stored: Any, version: Version, by_layer: bool) -> None:
        self._stored = weakref.ref(stored)
        self._held = stored
        self._version, self._by_layer = version, by_layer

    def tensor(self, for_node: bool = False) -> Any:
        """Return the tensor; `for_node` says that a node of the graph keeps it for as long as it may run again."""
        stored = self._live()
        if not self._by_layer:  # else the store has the old values, or raises
            self._version.require()
        memory = self._memory(stored)
        if not self._by_layer:
            self._version.require()
        tensor = self._version.over(memory)
        if for_node:
            self.free()
        return tensor

    def free(self) -> None:
        """Let go of what is stored."""
        self._held = None

    def _memory(self, stored: Any) -> Seen:
        """Return memory with the bytes, which holds what is stored."""
        raise NotImplementedError

    def _live(self) -> Any:
        stored = self._stored()
        if stored is None:
            raise SavedTensorError(
                "save_on_disk: what was saved is freed, as backward ran or failed; run forward again"
            )
        return stored

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._stored()!r}>"


class Spilled(_InStore):
    """What a spilled tensor leaves in the graph."""

    __slots__ = ("_altered_by", "_begin", "_key", "_origin")

    def __init__(
        self,
        stored: _Stored,
        key: Hashable,
        altered_by: Hashable | None,
        begin: int,
        version: Version,
        origin: Origin | Lent,
        by_layer: bool,
    ) -> None:
        super().__init__(stored, version, by_layer)
        self._key, self._altered_by, self._begin = key, altered_by, begin
        self._origin = weakref.ref(origin)

    @property
    def handle(self) -> Handle:
        """What the store calls it."""
        return cast(_Stored, self._live()).handle

    def _memory(self, stored: _Stored) -> Seen:
        array = stored.store.get(stored.handle)
        begin, end = self._begin, self._begin + array.nbytes
        origin = self._origin()
        if origin is not None and origin.address + begin == address_of(array):
            array = origin.array
        else:
            array = array.reshape(-1).view(np.uint8)
            if begin:  # Paddle looks for it where it was in its memory
                array = placed(array, begin)
        return lend(Lent(array, begin, end, self._key, self._altered_by, self._version, stored))


class SpilledSmall(_InStore):
    """What a small tensor leaves in the graph."""

    __slots__ = ()

    def _memory(self, stored: Place) -> Seen:
        own = memory.copy(stored.read())
        return Seen(address_of(own), own.nbytes, (own, stored))


class _Recent:
    """Small memory that was copied a moment ago: nobody else gets it, so that it is known when it is saved again."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Seen) -> None:
        self._memory = memory

    def is_over(self) -> bool:
        """Return whether nothing of it matters any more."""
        return True


class Kept:
    """What a tensor that stays in RAM leaves in the graph."""

    __slots__ = ("_number", "_tensor")

    def __init__(self, tensor: Any, by_layer: bool) -> None:
        self._tensor = tensor
        # Paddle itself does not look whether what a PyLayer saved was changed.
        self._number = tensor.inplace_version if tensor.is_dense() and not by_layer else None

    def tensor(self, for_node: bool = False) -> Any:
        """Return the tensor."""
        tensor = self._tensor
        if self._number is not None and tensor.inplace_version != self._number:
            raise changed_error(tensor.dtype, tensor.shape, tensor.inplace_version, self._number)
        return tensor


class _Saved(hooks.SavedValue):
    @property
    def nbytes(self) -> int:
        return int(self.tensor.numel()) * int(self.tensor.element_size())


class save_on_disk(StoreOwner):
    """Keep what Paddle saves for backward inside on disk, and at most `ram_budget` bytes of it in RAM.

        with save_on_disk("spill/", ram_budget="2GiB"):
            loss = model(x)
        loss.backward()

    Gradients are the same, bit for bit. Leaving the context only stops packing: backward may run later. Files are
    removed when the last graph that uses them dies, or at process exit. Re-enterable, in any thread, and cheap to make
    anew for each step. `pack_hook` and `unpack_hook` are the ready-made pair, usable in
    `paddle.autograd.saved_tensors_hooks(...)` too.

    These contexts nest, and are each for the thread that entered it. But Paddle has one pair of hooks at a time:
    within other hooks this context raises, and other hooks raise within it, such as those of `recompute` with
    `use_reentrant=False`; its default works.

    Memory is stored once, however many nodes and views save it, unless it left RAM in between. Not spilled are
    parameters and other leaves that require a gradient, which stay in RAM anyway; what spans fewer than `min_bytes`;
    what `only` (see `saved_tensors_hooks` of `spillgrad.autograd`; of a saved value it gets `tensor` and `nbytes`) does
    not take; and what is not dense, or not in host memory. With a `min_bytes` below 4096, smaller memory is copied into
    arrays that many share, as by `spillgrad.save_on_disk`.

    A saved tensor that was modified in place raises in backward, as it does without hooks; of what a PyLayer saved, the
    old values come back, or it raises. Only Paddle's version counters tell.

    While a graph is retained, or `paddle.grad` has run through it, Paddle keeps what it got back in RAM.

    What goes wrong in a hook reaches callers as Paddle's OSError, which has the message; once that leaves the context,
    it is the error itself.

    `direct_io`, `checksums`, `on_full`, `codec`, `encrypt` and `keep_journal`, as well as `stats()`, `flush()`,
    `preflight()` and `directory`, are those of `spillgrad.save_on_disk`.

    Units: `ram_budget` and `min_bytes` are bytes, or a size such as "64MiB". Without `directory`, a temporary one is
    used.
    Raises BudgetError for a size that does not parse, ArgumentError for an unknown word, without a package it needs,
    without `ram_budget`, or within other hooks; SpillError for a directory that cannot be used, a journal of another
    object that lives, and, where something is saved, for a disk that refuses.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str | None = None,
        min_bytes: int | str = MIN_BYTES,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        codec: str | None = None,
        encrypt: bool = False,
        keep_journal: str | os.PathLike[str] | None = None,
        only: hooks.Predicate | None = None,
    ) -> None:
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._min_bytes = parse_bytes(min_bytes)
        self._codec_mark = object() if is_lossy(codec) else None
        self._open_store(
            "save_on_disk",
            directory,
            ram_budget,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
        )
        self._small = SmallTensors(self._store)
        self._handles: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()

    def __enter__(self) -> "save_on_disk":
        keep_whole()
        _enter()
        _thread.contexts.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        _thread.contexts.pop()
        _leave()
        failure, _thread.failure = _thread.failure, None
        if failure is not None and isinstance(error, Exception) and str(failure) in str(error):
            try:
                raise failure from error
            finally:
                del failure, error, trace  # which would hold this frame, that holds them, and the graph

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )

    def pack_hook(self, tensor: Any) -> Any:
        """Hand a tensor's memory to the store; return what `unpack_hook` takes."""
        return _answer(self._pack, tensor, sys._getframe(1))

    def unpack_hook(self, packed: Any) -> Any:
        """Return the tensor that `pack_hook` packed."""
        return _answer(_unpacked, packed, sys._getframe(1))

    def _pack(self, tensor: Any, caller: FrameType) -> Any:
        by_layer = _is_of_layers(caller)
        if not isinstance(tensor, paddle.Tensor):
            return tensor  # a PyLayer may save None
        if by_layer:
            _refuse_lists(caller)
        if tensor.persistable or (tensor.is_leaf and not tensor.stop_gradient):
            return Kept(tensor, by_layer)
        plain = tensor.is_dense() and not tensor.is_dist() and tensor.place.is_cpu_place() and 0 not in tensor.shape
        taken = self.only is None or self.only(_Saved(tensor, "", "", ""))
        if not plain or not taken or is_interrupted():
            return Kept(alias(tensor, by_layer), by_layer)
        layout = Layout.of(tensor)
        if layout.span_bytes < max(1, self._min_bytes):
            return Kept(_without_the_rest(tensor, layout, by_layer), by_layer)
        version, origin = Version(tensor, layout, by_layer), memory_of(tensor)
        begin, end = 0, origin.nbytes
        if self._small.takes(end):
            return self._pack_small(origin, version, layout, by_layer)
        # What a lossy codec makes of bytes depends on what they are.
        altered_by = None if self._codec_mark is None else (self._codec_mark, layout.dtype)
        if isinstance(origin, Lent) and origin.altered_by == altered_by:
            key, begin, end = origin.key, origin.begin, origin.end
        else:
            key = (origin.number, version.number, altered_by)
            if layout.span_bytes < SHARE_STORED_WHOLE * end and key not in self._handles:
                begin = layout.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES
                end = layout.offset + layout.span_bytes
                key = (key, begin, end)
        dtype, shape = dtype_and_shape(layout.dtype, layout.itemsize, layout.size, layout.stride, end - begin)
        source = origin.array[begin:end]
        handle = self._store.put(
            source.view(dtype).reshape(shape),
            key=key,
            label=Label(None, None, labels.current.module, labels.current.step),
            unchanged=same_bytes(source, version) if by_layer else version.holds,
        )
        stored = _Stored(self._store, handle)
        if len(handle.views) < MAX_VIEWS:
            handle.views.append(layout.view(-begin))
        self._handles[key] = handle
        return Spilled(stored, key, altered_by, begin, version, origin, by_layer)

    def _pack_small(self, origin: Origin | Lent, version: Version, layout: Layout, by_layer: bool) -> SpilledSmall:
        place = self._small.known(origin, version.number)
        if place is None:
            place = self._small.add(origin, version.number, origin.array, labels.current.step, _Recent(origin))
        if len(place.views) < MAX_VIEWS:
            place.views.append(layout.view(place.start))
        return SpilledSmall(place, version, by_layer)

    def flush(self) -> None:
        """Return when every live spilled tensor is in the files, and all that happened in the journal.

        Raises SpillError when a tensor could not be written.
        """
        self._small.end_batch()
        super().flush()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.contexts: list[save_on_disk] = []
        self.failure: BaseException | None = None  # what Paddle makes an error of its own of


_thread = _Thread()
_entered = 0  # contexts, in all threads
_entered_lock = threading.Lock()


def _pack(tensor: Any) -> Any:
    """Have the innermost context of this thread pack, where there is one."""
    caller = sys._getframe(1)
    if not _thread.contexts:
        by_layer = _is_of_layers(caller)
        return Kept(alias(tensor, by_layer), by_layer) if isinstance(tensor, paddle.Tensor) else tensor
    try:
        return _answer(_thread.contexts[-1]._pack, tensor, caller)
    except BaseException:
        if not _is_of_layers(caller):
            # Paddle never lets go of this object after an error, and it holds all of the graph so far.
            tensor.reconstruct_from_(paddle.empty([0]))
        raise


def _unpack(packed: Any) -> Any:
    return _answer(_unpacked, packed, sys._getframe(1))


# Paddle has one pair of hooks at a time, for all threads.
_hooks = paddle.autograd.saved_tensors_hooks(_pack, _unpack)


def _enter() -> None:
    global _entered
    with _entered_lock:
        if not _entered:
            try:
                _hooks.__enter__()
            except ValueError as error:
                raise ArgumentError(
                    "save_on_disk: Paddle has one pair of hooks at a time, and other ones are active; leave their "
                    "context first (recompute has some with use_reentrant=False: leave that out)"
                ) from error
        _entered += 1


def _leave() -> None:
    global _entered
    with _entered_lock:
        _entered -= 1
        if not _entered:
            _hooks.__exit__()


def _answer(hook: Callable[[Any, FrameType], Any], value: Any, caller: FrameType) -> Any:
    """Return what a hook returns; note its error for the context, as Paddle raises another one with its message."""
    try:
        return hook(value, caller)
    except BaseException as error:
        if not _is_of_layers(caller):
            _dygraph_tracer()._has_grad = True  # Paddle turned it off for the hook, and after an error leaves it so
        if _thread.contexts:
            _thread.failure = error
        raise


def _unpacked(packed: Any, caller: FrameType) -> Any:
    if isinstance(packed, _InStore):
        # Paddle's own functions call for nodes of the graph; others may be anybody who calls again.
        for_node = _module(caller).startswith("paddle.") and not _is_of_layers(caller)
        try:
            return packed.tensor(for_node)
        except BaseException:
            packed.free()  # Paddle never lets go of it after an error
            raise
    return packed.tensor() if isinstance(packed, Kept) else packed


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _is_of_layers(caller: FrameType) -> bool:
    """Return whether a PyLayer saves, or asks for what it saved, rather than a node of the graph."""
    return bool(_module(caller) == PyLayerContext.__module__)


def _refuse_lists(caller: FrameType) -> None:
    if any(isinstance(saved, list) for saved in caller.f_locals.get("tensors", ())):
        raise ArgumentError(
            "save_for_backward: got a list, with which Paddle crashes under hooks; pass its tensors one by one"
        )


def _without_the_rest(tensor: Any, layout: Layout, by_layer: bool) -> Any:
    """Return a small tensor over memory of its own, or its own, unless a PyLayer may change it or it keeps much more.

    It counts changes with the one it was.
    """
    if not by_layer and tensor._holder_size() <= 2 * layout.span_bytes:
        return alias(tensor, by_layer)
    memory = memory_of(tensor).array[layout.offset : layout.offset + layout.span_bytes]
    copy = placed(memory, layout.offset)
    return Version(tensor, layout, by_layer).over(Seen(address_of(copy), copy.nbytes, copy))
