"""Hooks that spill what PyTorch saves for backward to HDF5 files under a RAM budget."""

import dataclasses
import os
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks

from spillgrad.autograd.core import hooks
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.interop.arrays import dtype_and_shape
from spillgrad.interop.context import FrameworkContext
from spillgrad.interop.running_module import RunningModule
from spillgrad.interop.torch import device_memory
from spillgrad.interop.torch.cross_entropy import LeanCrossEntropy
from spillgrad.interop.torch.disk_offload import disk_offload
from spillgrad.interop.torch.memory import (
    Identity,
    Version,
    bytes_of,
    changes_of,
    identity_of,
    is_of_leaf,
    is_plain,
    layout_of,
    over,
    tensor_of_bytes,
)
from spillgrad.interop.torch.offloaded_tensor import saved_name
from spillgrad.interop.torch.optimizer import OffloadedOptimizer
from spillgrad.spill import saved_memory
from spillgrad.spill.context import DEVICE_BUDGET
from spillgrad.spill.disk_offload import OffloadStats
from spillgrad.spill.keep_or_spill import Outcome, outcome_in_ram
from spillgrad.spill.saved_memory import Kept, Layout, Packed, SavedMemory, note_view, present_label
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import Handle, Label, nobody
from spillgrad.storage.store_owner import MIN_BYTES, StoreOwner
from spillgrad.storage.threads.interrupts import keep_whole
from spillgrad_kernels.device_array import address_of

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


_lean_cross_entropy = LeanCrossEntropy()
_running = RunningModule(torch.nn.Module._call_impl.__code__, torch.nn.Module.named_modules)


class Spilled(saved_memory.Spilled):
    """The object that a graph keeps for a spilled tensor of PyTorch."""

    __slots__ = ("_altered_by", "_device", "_earlier", "_version", "waiting")

    def __init__(
        self,
        spill: "save_on_disk",
        handle: Handle,
        memory: SavedMemory,
        altered_by: Hashable | None,
        device: Any,
        version: Version,
        earlier: "Spilled | None",
    ) -> None:
        super().__init__(spill._store, spill, handle, memory.key, memory.layout)
        self._altered_by, self._device, self._version = altered_by, device, version
        self._earlier = nobody if earlier is None else weakref.ref(earlier)  # the last one over the same stored bytes
        self.waiting: Any = None  # the storage that `_hold` keeps for this tensor

    def tensor(self) -> Any:
        """Return the tensor, over memory that it shares with all other tensors of its storage.

        Raises SavedTensorError if the saved tensor, or that memory, was modified in place.
        """
        self._version.require(self._layout)
        storage, memory = self._source._memory_of(self.held, self._key, self._altered_by, self._copied)
        memory.version.require(self._layout)
        if memory.arriving is not None:
            memory.arriving.wait()
        earlier = self._earlier()
        if earlier is not None:
            self._source._hold(earlier, storage)
        return over(storage, self._layout, memory.version, memory.begin)

    def _copied(self, array: np.ndarray) -> Any:
        return tensor_of_bytes(array) if self._device is None else device_memory.to_device(array, self._device)

    def copy_ahead(self) -> Any:
        """Begin to copy the bytes to the device, if they are not there; return the storage that has them then."""

        def begin_copy(array: np.ndarray) -> device_memory.Arriving:
            return device_memory.Arriving(array, self._device)

        return self._source._memory_of(self.held, self._key, self._altered_by, begin_copy)[0]


class SpilledSmall(saved_memory.SpilledSmall):
    """The object that a graph keeps for a small saved tensor of PyTorch; several share an array of the store."""

    __slots__ = ()

    def tensor(self) -> Any:
        """Return the tensor, over memory of its own."""
        original: Any = self._place.original
        if original is not None:
            original.version.require(self._layout)
        whole = torch.from_numpy(self._place.read()).clone()
        return over(whole.untyped_storage(), self._layout, Version(whole))


class _Original:
    """A small storage that was copied, and its counter of in-place changes, read when it was copied."""

    __slots__ = ("_identity", "version")

    def __init__(self, identity: Identity, version: Version) -> None:
        self._identity, self.version = identity, version

    def is_over(self) -> bool:
        """Return whether the storage died, and was not changed after it was copied."""
        return self._identity.storage() is None and self.version.is_unchanged()


class _Memory(NamedTuple):
    """A storage whose bytes from byte `begin` on are those of a handle, while it lives and is not changed."""

    identity: Identity
    begin: int
    version: Version
    arriving: "device_memory.Arriving | None" = None


class save_on_disk(FrameworkContext, saved_tensors_hooks):  # type: ignore[misc]
    """Spill what PyTorch saves for backward to disk, and keep at most `ram_budget` bytes of it in RAM.

    A context manager for the forward pass::

        with save_on_disk("spill/", ram_budget="2GiB"):
            loss = model(x)
        loss.backward()

    Gradients are the same, bit for bit, unless `codec` rounds. `spillgrad.save_on_disk` says when the files are
    removed.

    Parameters
    ----------
    directory : str, path, disk_offload or optimizer, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files. In place of a folder, the offload that `disk_offload` returned, or the optimizer that
        `disk_offload_optimizer` returned: saved tensors then share its store, its budget and its options.
    ram_budget : int or str
        The most bytes of saved tensors in RAM, or a size such as "2GiB". Required, except with an offloaded optimizer.
    device_budget : int or str, default "64MiB"
        The most bytes of saved tensors that stay on a CUDA device: the newest. Bytes, or a size. Tensors of other
        devices all stay there.
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
        For an unknown word, a missing package, a missing `ram_budget`, or an option that the offload has already.
    SpillError
        If the directory cannot be used, or if the journal belongs to another living object; when a tensor is saved or
        read, if the disk is full or fails.

    Notes
    -----
    The same object can be entered again, in any thread. Like all hooks of PyTorch, it affects the thread that entered
    it. `pack_hook` and `unpack_hook` can be passed to ``saved_tensors_hooks(...)`` and ``register_hooks(...)`` too.

    **What stays in RAM.** Each storage is stored once, however many nodes and views save it. These tensors stay in RAM:
    parameters, other leaves that require a gradient, and views of both, because they are in RAM anyway (an offloaded
    parameter is read again in backward); tensors smaller than `min_bytes`; tensors that `only` rejects; and tensors
    that are not plain memory with strides: sparse, quantized, nested, meta and fake tensors, and subclasses.

    **In-place changes.** A saved tensor that was modified in place raises an error in backward, as it does without
    hooks. Only PyTorch's version counters show such changes: changes through ``.data``, ``.numpy()`` or other libraries
    go unnoticed, as they do without hooks. A saved tensor cannot be resized.

    **CUDA devices.** Of the saved tensors on a CUDA device, the oldest are copied to pinned memory, which counts in
    `ram_budget`, on a stream beside the kernels, as soon as `device_budget` is exceeded. From there they go to disk.
    Backward uses the newest first; as it gives memory up, those that it needs next are copied back beside its kernels.

    **Cross entropy.** For the cross entropy of large logits, as in language models, backward needs two tensors of their
    size at once, where PyTorch alone needs three. Losses and gradients stay the same, bit for bit.

    **Compilation.** `torch.compile` works inside: the hooks pack what the compiled forward saves. `torch.func.grad`,
    `vjp`, `jacrev` and `hessian` refuse all hooks.

    Examples
    --------
    >>> import torch
    >>> from spillgrad.interop.torch import save_on_disk
    >>> x = torch.ones(256, 256, requires_grad=True)
    >>> with save_on_disk(ram_budget="64KiB") as spill:
    ...     loss = x.exp().sum()
    >>> spill.stats().packed_bytes
    262144
    >>> loss.backward()
    """

    _shared = ("disk_offload or disk_offload_optimizer", (disk_offload, OffloadedOptimizer))

    @torch.compiler.disable
    def __init__(
        self, directory: str | os.PathLike[str] | StoreOwner | None = None, *, ram_budget: int | str | None = None,
        device_budget: int | str = DEVICE_BUDGET, min_bytes: int | str = MIN_BYTES, direct_io: bool | None = None,
        checksums: bool = True, on_full: str = "raise", codec: str | None = None, encrypt: bool = False,
        keep_journal: str | os.PathLike[str] | None = None, only: hooks.Predicate | None = None,
    ) -> None:  # fmt: skip
        self._device_budget = parse_bytes(device_budget)
        super().__init__(
            directory, ram_budget=ram_budget, min_bytes=min_bytes, direct_io=direct_io, checksums=checksums,
            on_full=on_full, codec=codec, encrypt=encrypt, keep_journal=keep_journal, only=only,
        )  # fmt: skip

    def _begin(self) -> None:
        super()._begin()
        self._newest_on_device = device_memory.NewestOnDevice(self._store, self._device_budget, self._spill)
        self._newest: weakref.WeakValueDictionary[Hashable, Spilled] = weakref.WeakValueDictionary()
        self._waiting: list[weakref.ref[Spilled]] = []
        self._waiting_of: int | None = None

    @torch.compiler.disable
    def __enter__(self) -> "save_on_disk":
        keep_whole()
        super().__enter__()
        _lean_cross_entropy.__enter__()
        return self

    @torch.compiler.disable
    def __exit__(self, *error: object) -> None:
        _lean_cross_entropy.__exit__()
        super().__exit__(*error)

    @torch.compiler.disable
    def pack_hook(self, tensor: Any) -> Any:
        """Give a tensor's storage to the store, or keep the tensor.

        Parameters
        ----------
        tensor : torch.Tensor
            The tensor that an operation saves.

        Returns
        -------
        object
            What `unpack_hook` takes.
        """
        named = saved_name(tensor)
        if named is not None:
            return named
        taken = self.only is None or self.only(hooks.SavedValue(tensor, "", "", ""))
        if not taken or not is_plain(tensor) or is_of_leaf(tensor):
            return _kept(tensor.detach())  # the tensor itself holds its node, which would then hold itself
        layout, storage = layout_of(tensor), tensor.untyped_storage()
        outcome = outcome_in_ram(layout.span_bytes, storage.nbytes(), self._min_bytes)
        if outcome is not None:
            return _kept(_copied(layout, storage) if outcome is Outcome.COPIED else tensor.detach())
        is_on_device = device_memory.is_on_device(tensor)
        if self._small.takes(storage.nbytes()) and not is_on_device:
            return self._spill_small(tensor, storage, layout)
        label = present_label(module=_running.path())
        if is_on_device:
            return self._newest_on_device.keep(storage, _kept(tensor.detach()), layout, label)
        return self._spill(tensor, layout, label)

    def stats(self) -> OffloadStats:
        """Return the counters of the store, and the bytes of saved tensors on a device.

        Returns
        -------
        OffloadStats
            The numbers by name.
        """
        there = self._newest_on_device
        counters = dataclasses.asdict(super().stats())
        return OffloadStats(**counters, device_bytes=there.count(), peak_device_bytes=there.peak_bytes)

    def flush(self) -> None:
        """Wait until all live spilled tensors are in the files, and all events are in the journal.

        Raises
        ------
        SpillError
            If a tensor could not be written.
        """
        self._newest_on_device.flush()
        super().flush()

    def _spill(self, tensor: Any, layout: Layout, label: Label) -> Spilled:
        storage = tensor.untyped_storage()
        version, identity = Version(tensor), identity_of(storage)
        altered_by = self._altered_by(layout)
        key, begin, end = self._part(identity.key(version.number, altered_by), layout, storage.nbytes())
        if begin:
            layout = layout._replace(offset=layout.offset - begin)
        dtype, shape = dtype_and_shape(layout, end - begin)
        array: Any
        if device_memory.is_on_device(tensor):
            array = device_memory.OnDevice(storage, begin, dtype, shape, end - begin)
        else:
            array = bytes_of(storage, begin, end - begin).numpy().view(dtype).reshape(shape)
        memory = SavedMemory(key, array, layout, version.is_unchanged)
        handle = self._put(memory, label)
        device = tensor.device if device_memory.is_on_device(tensor) else None
        spilled = Spilled(self, handle, memory, altered_by, device, version, self._newest.get(key))
        self._newest[key] = spilled
        self._stored[key] = handle
        with _memories_lock:
            _memories.setdefault(handle, _Memory(identity, begin, version))
        return spilled

    def _spill_small(self, tensor: Any, storage: Any, layout: Layout) -> SpilledSmall:
        identity, number = identity_of(storage), tensor._version
        place = self._small.known(identity, number)
        if place is None:
            array = bytes_of(storage, 0, storage.nbytes()).numpy()
            original = _Original(identity, Version(tensor))
            place = self._small.add(identity, number, array, original)
        note_view(place.views, layout, start=place.start)
        return SpilledSmall(place, layout)

    @torch.compiler.disable
    def unpack_hook(self, packed: Any) -> Any:
        """Return the tensor that `pack_hook` packed.

        Parameters
        ----------
        packed : object
            What `pack_hook` returned.

        Returns
        -------
        torch.Tensor
            Of the same shape, dtype, device and values, as far as the codec is exact.
        """
        return packed.tensor() if isinstance(packed, Packed) else packed

    def _memory_of(
        self, handle: Handle, key: Hashable, altered_by: Hashable | None, copied: Callable[[np.ndarray], Any]
    ) -> tuple[Any, _Memory]:
        """Return a storage that has the stored bytes, and its `_Memory`: a storage that lives, else a new copy.

        `copied` returns a tensor with an array's bytes, or what is on its way to become one.
        """
        storage, memory = _in_ram(handle)
        if memory is not None:
            self._store.use(handle)
            return storage, memory
        if self._waiting and self._waiting_of != _present_node():
            self._let_go()
        array = self._get(handle)
        made = copied(array)
        arriving = None if isinstance(made, torch.Tensor) else made
        tensor = made if arriving is None else arriving.tensor
        with _memories_lock:
            storage, memory = _in_ram(handle)  # another thread may have been quicker
            if memory is None:
                storage, version = tensor.untyped_storage(), Version(tensor)
                memory = _memories[handle] = _Memory(identity_of(storage, key, altered_by), 0, version, arriving)
                if storage.data_ptr() == address_of(array):
                    self._store.watch(handle, array, version, instead_of=handle.watcher())
        return storage, memory

    def _hold(self, spilled: Spilled, storage: Any) -> None:
        """Keep a storage of more bytes than the budget alive for `spilled`, until another node's backward has begun.

        Both `log_softmax` and `nll_loss` save the result of `log_softmax`; without this it would be read twice.
        """
        node = _present_node()
        if node is None or spilled.held.nbytes <= self._store.ram_budget:
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


def _present_node() -> int | None:
    """Return the number of the node whose backward this thread runs; None if there is no such node."""
    node = torch._C._current_autograd_node()
    return None if node is None else node._sequence_nr()


# By handle: the memory in RAM that has the handle's bytes. All tensors of a handle share this memory and its counter.
_memories: weakref.WeakKeyDictionary[Handle, _Memory] = weakref.WeakKeyDictionary()
_memories_lock = ForkSafeLock()


def _in_ram(handle: Handle) -> tuple[Any, _Memory | None]:
    memory = _memories.get(handle)
    storage = None if memory is None else memory.identity.storage()
    return storage, None if storage is None else memory


def _kept(tensor: Any) -> Kept:
    return Kept(tensor, None if tensor.is_inference() else changes_of)


def _copied(layout: Layout, storage: Any) -> Any:
    """Copy the bytes that `layout` spans in `storage`; return the tensor over the copy."""
    copy = bytes_of(storage, layout.offset, layout.span_bytes).clone()
    return over(copy.untyped_storage(), layout._replace(offset=0), Version(copy))
