"""Hooks that spill what PyTorch saves for backward to HDF5 files under a RAM budget."""

import os
import threading
import weakref
from collections.abc import Hashable
from typing import Any, cast

import torch
from torch.autograd.graph import saved_tensors_hooks

from spillgrad import labels
from spillgrad.autograd import hooks
from spillgrad.errors import OperandError
from spillgrad.interop.arrays import ALIGNMENT_BYTES, SHARE_STORED_WHOLE, changed_error
from spillgrad.interop.torch import cuda
from spillgrad.interop.torch.memory import (
    Layout,
    Origin,
    Version,
    bytes_of,
    dtype_and_shape,
    is_plain,
    origin_of,
    origin_of_copy,
    shared_layout,
    tensor_of_bytes,
)
from spillgrad.interop.torch.optimizer import OffloadedOptimizer
from spillgrad.spill.small_tensors import Place, SmallTensors
from spillgrad.storage.budget import parse_bytes
from spillgrad.storage.codecs import is_lossy
from spillgrad.storage.interrupts import keep_whole
from spillgrad.storage.owner import MAX_VIEWS, MIN_BYTES, StoreOwner
from spillgrad.storage.store import Handle, Label
from spillgrad.storage.store_lock import is_interrupted
from spillgrad_kernels.holder import Holder

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True


class Spilled(Holder):
    """What a spilled tensor leaves in the graph; its bytes are freed when the last such object over them dies."""

    __slots__ = (
        "__weakref__",
        "_altered_by",
        "_device",
        "_earlier",
        "_key",
        "_layout",
        "_spill",
        "_version",
        "waiting",
    )

    def __init__(
        self,
        spill: "save_on_disk",
        handle: Handle,
        key: Hashable,
        altered_by: Hashable | None,
        device: Any,
        layout: Layout,
        version: Version,
        earlier: "Spilled | None",
    ) -> None:
        super().__init__(spill._store.drops.append, handle)
        self._spill = spill
        self._key, self._altered_by = key, altered_by
        self._device = device
        self._layout = layout  # in what is stored
        self._version = version
        self._earlier = _nothing if earlier is None else weakref.ref(earlier)  # over the same storage
        self.waiting: Any = None  # the storage, if it waits for this node

    @property
    def handle(self) -> Handle:
        """What the store calls it."""
        return cast(Handle, self.held)

    def tensor(self) -> Any:
        """Return the tensor, over memory it shares with all others of its storage."""
        _require(self._version, self._layout)
        storage, memory = self._spill._memory_of(self.handle, self._key, self._altered_by, self._device)
        _require(memory.version, self._layout)
        earlier = self._earlier()
        if earlier is not None:
            self._spill._hold(earlier, storage)
        return self._layout.over(storage, memory.begin, memory.version)

    def __repr__(self) -> str:
        return f"<Spilled {self.handle!r}>"


class SpilledSmall:
    """What a small tensor leaves in the graph."""

    __slots__ = ("_layout", "_place")

    def __init__(self, place: Place, layout: Layout) -> None:
        self._place, self._layout = place, layout

    def tensor(self) -> Any:
        """Return the tensor, over memory of its own."""
        origin = self._place.origin
        if origin is not None:
            _require(origin.version, self._layout)
        whole = torch.from_numpy(self._place.read()).clone()
        return self._layout.over(whole.untyped_storage(), 0, Version(whole))


class _SmallOrigin:
    """A small storage that was copied, and how often it was changed then."""

    __slots__ = ("_origin", "version")

    def __init__(self, origin: Origin, version: Version) -> None:
        self._origin, self.version = origin, version

    def is_over(self) -> bool:
        """Return whether the storage is gone, and nobody changed it before."""
        return self._origin.storage() is None and self.version.is_unchanged()


class Kept:
    """What a tensor that stays in RAM leaves in the graph."""

    __slots__ = ("_number", "_tensor")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._number = None if tensor.is_inference() else tensor._version

    def tensor(self) -> Any:
        """Return the tensor."""
        tensor = self._tensor
        if self._number is not None and tensor._version != self._number:
            raise changed_error(tensor.dtype, tensor.shape, tensor._version, self._number)
        return tensor


class _Memory:
    """Where the bytes of a handle are: a storage, from byte `begin` on, while it lives and does not change."""

    __slots__ = ("begin", "origin", "version")

    def __init__(self, origin: Origin, begin: int, version: Version) -> None:
        self.origin, self.begin, self.version = origin, begin, version


class save_on_disk(StoreOwner, saved_tensors_hooks):  # type: ignore[misc]
    """Keep what PyTorch saves for backward inside on disk, and at most `ram_budget` bytes of it in RAM.

        with save_on_disk("spill/", ram_budget="2GiB"):
            loss = model(x)
        loss.backward()

    Gradients are the same, bit for bit. Leaving the context only stops packing: backward may run later. Files are
    removed when the last graph that uses them dies, or at process exit. Re-enterable, in any thread, and cheap to make
    anew for each step; as all hooks of PyTorch, it is for the thread that entered it. `pack_hook` and `unpack_hook` are
    the ready-made pair, usable in `saved_tensors_hooks(...)` and `register_hooks(...)` too.

    In place of a directory it takes what `disk_offload_optimizer` returned, and shares its store and budget.

    One storage is stored once, however many nodes and views save it. Not spilled are parameters and views of them or of
    other leaves that require a gradient, which stay in RAM anyway; what spans fewer than `min_bytes`; what `only`
    (see `saved_tensors_hooks` of `spillgrad.autograd`; of a saved value it gets `tensor` and `nbytes`) does not take;
    and what is not plain memory with strides: sparse, quantized, nested, meta and fake tensors, and subclasses. With a
    `min_bytes` below 4096, smaller storages are copied into arrays that many share, as by `spillgrad.save_on_disk`.

    A saved tensor that was modified in place raises in backward, as it does without hooks. Only PyTorch's version
    counters tell: changes through `.data`, `.numpy()` or other libraries go unnoticed, as they do without hooks. What
    was saved cannot be resized.

    Tensors on a CUDA device are copied to pinned memory, which counts as RAM here, on a stream beside the kernels, and
    copied back when backward asks for them.

    `torch.compile` works inside: the hooks pack what the compiled forward saves. `torch.func.grad`, `vjp`, `jacrev` and
    `hessian` refuse all hooks.

    `direct_io`, `checksums`, `on_full`, `codec`, `encrypt` and `keep_journal`, as well as `stats()`, `flush()`,
    `preflight()` and `directory`, are those of `spillgrad.save_on_disk`.

    Units: `ram_budget` and `min_bytes` are bytes, or a size such as "64MiB". Without `directory`, a temporary one is
    used.
    Raises BudgetError for a size that does not parse, ArgumentError for an unknown word, without a package it needs,
    without `ram_budget`, or for an option that is the optimizer's; SpillError for a directory that cannot be used, a
    journal of another object that lives, and, where something is saved, for a disk that refuses.
    """

    @torch.compiler.disable
    def __init__(
        self,
        directory: str | os.PathLike[str] | OffloadedOptimizer | None = None,
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
        # Not super().__init__(): it would store the bound hooks, and with them a reference cycle.
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._min_bytes = parse_bytes(min_bytes)
        self._codec_mark = object() if is_lossy(codec) else None
        self._open_store(
            "save_on_disk",
            directory,
            ram_budget,
            shared=("disk_offload_optimizer", OffloadedOptimizer),
            stacklevel=4,  # one more: what keeps the compiler out
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
        )
        self._small = SmallTensors(self._store)
        self._stored: weakref.WeakValueDictionary[Hashable, Handle] = weakref.WeakValueDictionary()
        self._newest: weakref.WeakValueDictionary[Hashable, Spilled] = weakref.WeakValueDictionary()
        self._waiting: list[weakref.ref[Spilled]] = []
        self._waiting_of: int | None = None

    @torch.compiler.disable
    def __enter__(self) -> "save_on_disk":
        keep_whole()
        super().__enter__()
        return self

    def __reduce__(self) -> Any:
        raise OperandError(
            "save_on_disk: cannot be copied or pickled, as its files are those of this process; make another one"
        )

    @torch.compiler.disable
    def pack_hook(self, tensor: Any) -> Any:
        """Hand a tensor's storage to the store; return what `unpack_hook` takes."""
        taken = self.only is None or self.only(hooks.SavedValue(tensor, "", "", ""))
        if not taken or not is_plain(tensor) or _stays(tensor) or is_interrupted():
            return Kept(tensor.detach())  # not itself: the node would hold what holds the node
        layout, storage = Layout.of(tensor), tensor.untyped_storage()
        if layout.span_bytes < max(1, self._min_bytes):
            return Kept(_without_the_rest(tensor, layout, storage))
        begin, nbytes = 0, storage.nbytes()
        if self._small.takes(nbytes) and not tensor.is_cuda:
            return self._pack_small(tensor, storage, shared_layout(layout))
        version, origin = Version(tensor), origin_of(storage)
        # What a lossy codec makes of bytes depends on what they are.
        altered_by = None if self._codec_mark is None else (self._codec_mark, layout.dtype)
        key = origin.key(version.number, altered_by)
        if layout.span_bytes < SHARE_STORED_WHOLE * nbytes and key not in self._stored:
            begin = layout.offset // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            nbytes = layout.offset + layout.span_bytes - begin
            layout = layout._replace(offset=layout.offset - begin)
            key = (key, begin, nbytes)
        dtype, shape = dtype_and_shape(layout, nbytes)
        source = bytes_of(storage, begin, nbytes)
        handle = self._store.put(
            cuda.OnDevice(source, dtype, shape) if tensor.is_cuda else source.numpy().view(dtype).reshape(shape),
            key=key,
            label=Label(None, None, labels.current.module, labels.current.step),
            unchanged=version.is_unchanged,
        )
        earlier = self._newest.get(key)
        spilled = Spilled(self, handle, key, altered_by, tensor.device, layout, version, earlier)
        self._newest[key] = spilled
        if len(handle.views) < MAX_VIEWS:
            handle.views.append(layout.view())
        self._stored[key] = handle
        with _memories_lock:
            _memories.setdefault(handle, _Memory(origin, begin, version))
        return spilled

    def _pack_small(self, tensor: Any, storage: Any, layout: Layout) -> SpilledSmall:
        origin, number = origin_of(storage), tensor._version
        place = self._small.known(origin, number)
        if place is None:
            array = bytes_of(storage, 0, storage.nbytes()).numpy()
            small_origin = _SmallOrigin(origin, Version(tensor))
            place = self._small.add(origin, number, array, labels.current.step, small_origin)
        if len(place.views) < MAX_VIEWS:
            place.views.append(layout.view(place.start))
        return SpilledSmall(place, layout)

    @torch.compiler.disable
    def unpack_hook(self, packed: Any) -> Any:
        """Return the tensor that `pack_hook` packed."""
        return packed.tensor() if isinstance(packed, Spilled | SpilledSmall | Kept) else packed

    def flush(self) -> None:
        """Return when every live spilled tensor is in the files, and all that happened in the journal.

        Raises SpillError when a tensor could not be written.
        """
        self._small.end_batch()
        super().flush()

    def _memory_of(
        self, handle: Handle, key: Hashable, altered_by: Hashable | None, device: Any
    ) -> tuple[Any, _Memory]:
        """Return the storage that has what is stored: any that lives, else one with a copy."""
        storage, memory = _in_ram(handle)
        if memory is not None:
            self._store.use(handle)
            return storage, memory
        if self._waiting and self._waiting_of != _present_node():
            self._let_go()
        array = self._store.get(handle)
        tensor = tensor_of_bytes(array) if device.type == "cpu" else cuda.to_device(array, device)
        with _memories_lock:
            storage, memory = _in_ram(handle)  # another thread may have been quicker
            if memory is None:
                storage, version = tensor.untyped_storage(), Version(tensor)
                memory = _memories[handle] = _Memory(origin_of_copy(storage, key, altered_by), 0, version)
                if storage.data_ptr() == array.__array_interface__["data"][0]:
                    self._store.watch(handle, array, version, instead_of=handle.watcher())
        return storage, memory

    def _hold(self, spilled: Spilled, storage: Any) -> None:
        """Have what the budget has no room for wait for the next node that saved it, unless other nodes come first.

        What `log_softmax` returned is saved by it and by `nll_loss`, and would be read for each.
        """
        node = _present_node()
        if node is None or spilled.handle.nbytes <= self._store.ram_budget:
            return
        torch.autograd.Variable._execution_engine.queue_callback(self._let_go)
        spilled.waiting = storage
        self._waiting.append(weakref.ref(spilled))
        self._waiting_of = node

    def _let_go(self) -> None:
        references, self._waiting = self._waiting, []
        for reference in references:
            spilled = reference()
            if spilled is not None:
                spilled.waiting = None


def _nothing() -> None:
    """Be the reference to no object."""


def _present_node() -> int | None:
    """Return the number of the node whose derivatives this thread computes."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


# Where in RAM what was stored is already. There is one for each handle, so that all count changes alike.
_memories: weakref.WeakKeyDictionary[Handle, _Memory] = weakref.WeakKeyDictionary()
_memories_lock = threading.RLock()


def _in_ram(handle: Handle) -> tuple[Any, _Memory | None]:
    memory = _memories.get(handle)
    storage = None if memory is None else memory.origin.storage()
    return storage, None if storage is None else memory


def _stays(tensor: Any) -> bool:
    """Return whether a tensor is, or is a view of, a parameter or another leaf that requires a gradient."""
    base = tensor if tensor._base is None else tensor._base
    return isinstance(base, torch.nn.Parameter) or (base.requires_grad and base.is_leaf)


def _without_the_rest(tensor: Any, layout: Layout, storage: Any) -> Any:
    """Return a small tensor over memory of its own, or its own, unless that keeps much more in memory."""
    if storage.nbytes() <= 2 * layout.span_bytes:
        return tensor.detach()
    copy = bytes_of(storage, layout.offset, layout.span_bytes).clone()
    return layout._replace(offset=0).over(copy.untyped_storage(), 0, Version(copy))


def _require(version: Version, layout: Layout) -> None:
    if not version.is_unchanged():
        raise changed_error(layout.dtype, layout.size, version.counter._version, version.number)
