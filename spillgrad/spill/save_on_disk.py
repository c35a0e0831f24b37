"""Ready-made hooks that spill saved tensors to HDF5 files under a RAM budget: `save_on_cpu`'s sibling for disks."""

import dataclasses
import math
import os
import threading
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from spillgrad import labels
from spillgrad.autograd import hooks
from spillgrad.errors import SavedTensorError
from spillgrad.nn.module import around_forward
from spillgrad.ops.autocast import CastOf, Conversion
from spillgrad.ops.losses import MADE_AHEAD
from spillgrad.ops.numeric import cast, contiguous
from spillgrad.spill.disk_offload import OffloadStats, disk_offload
from spillgrad.spill.offload.tensors import OffloadedView
from spillgrad.spill.planning.automatic import Automatic
from spillgrad.spill.policy import Chooser, Policy
from spillgrad.spill.small_tensors import Layout, SmallTensors, SpilledSmall, layout_of
from spillgrad.storage.budget import parse_bytes
from spillgrad.storage.codecs import LOSSY_DTYPES, is_lossy
from spillgrad.storage.interrupts import keep_whole
from spillgrad.storage.owner import MAX_VIEWS, MIN_BYTES, StoreOwner
from spillgrad.storage.store import Handle, Label, View
from spillgrad.storage.store_lock import is_interrupted
from spillgrad.tensor import Storage, Tensor
from spillgrad_kernels.device_array import address_of, is_on_device, placed
from spillgrad_kernels.holder import Holder

if TYPE_CHECKING:
    from spillgrad.spill.saved_on_device import DeviceCache, Stored

# Signal handlers run before or after what is done here: `storage/interrupts.py`.
SIGNALS_WAIT = True

# Two of the largest tensors that a layer of GPT-2 saves at 4 × 512 tokens: enough to copy one while another is used.
DEVICE_BUDGET = "64MiB"


class Copy(Storage):
    """The storage over an array made for or by the store; while nobody changes it, it is what was put under `key`.

    Where a codec may have altered it, it is so for the store with that codec alone, whose mark `altered_by` is.
    """

    __slots__ = ("altered_by", "key")

    def __init__(self, array: np.ndarray, key: Hashable, altered_by: object) -> None:
        super().__init__(array)
        self.key, self.altered_by = key, altered_by

    def is_unchanged(self) -> bool:
        """Return whether nobody changed the array since it was read."""
        return not self.version


class Spilled(Holder):
    """What a spilled tensor leaves in the graph: its storage's handle and where in that storage it lies.

    The storage's bytes are freed when the last such object dies.
    """

    __slots__ = ("__weakref__", "_dtype", "_key", "_offset", "_shape", "_spill", "_strides")

    def __init__(
        self,
        spill: "save_on_disk",
        stored: "Handle | Stored",
        key: Hashable,
        array: np.ndarray,
        offset: int,
        strides: tuple[int, ...],
    ) -> None:
        super().__init__(spill._store.drops.append, stored)
        self._spill = spill
        self._key = key
        self._dtype = array.dtype
        self._shape = array.shape
        self._strides = strides
        self._offset = offset

    @property
    def stored(self) -> "Handle | Stored":
        """What the memory is stored as."""
        return self.held  # type: ignore[no-any-return]

    def tensor(self) -> Tensor:
        """Return the tensor, over memory it shares with all others of its storage."""
        dense, storage = self._spill._memory_of(self.stored, self._key)
        return Tensor.wrap(placed(dense, self._offset, self._shape, self._dtype, self._strides), storage)

    def __repr__(self) -> str:
        return f"<Spilled {self.stored!r}>"


class _Kept:
    """What a tensor that stays in RAM leaves in the graph: itself."""

    __slots__ = ("__weakref__", "_tensor")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def storage(self) -> Storage:
        """The memory that stays."""
        return self._tensor.storage

    def tensor(self) -> Tensor:
        """Return the tensor."""
        return self._tensor


@dataclass(frozen=True)
class SpillStats(OffloadStats):
    """What the store did and holds; `kept_bytes` are in RAM beside the budget: by the policy, or a loss's gradients."""

    kept_bytes: int = 0


# Of each slot of gradients that an operation made ahead, what stays in RAM: backward needs it first of all, and then
# it is what backward makes. Further ones, of graphs that wait, are spilled.
_nearest: weakref.WeakValueDictionary[str, _Kept] = weakref.WeakValueDictionary()


class save_on_disk(StoreOwner, hooks.saved_tensors_hooks):
    """Keep what operations inside save for backward on disk, and at most `ram_budget` bytes of it in RAM.

    In place of a directory it takes the `disk_offload` of the model: saved tensors then go to that store, and share its
    budget and its options with parameters, gradients and optimizer state; `stats()` are of the one store.

        with sg.save_on_disk(offload):
            loss = model(x)

    Leaving the context only stops packing: backward may run later. Files are removed when the last graph that uses them
    dies, or at process exit. Re-enterable, and cheap to make anew for each step. `pack_hook` and `unpack_hook` are the
    ready-made pair, usable in `saved_tensors_hooks(...)` and `register_hooks(...)` too.

    One storage is stored once, however many nodes and views save it. Tensors that stay in RAM anyway (views of leaves
    that require a gradient) or are smaller than `min_bytes` are not spilled; nor are the gradients of one loss that
    `linear_cross_entropy` made in its forward, with which backward begins: `stats().kept_bytes`. A saved tensor
    modified in place later comes back as it was, or raises: never as something else. With a `min_bytes` below 4096,
    smaller storages are copied into arrays that many share, unless the budget is below 32 KiB; the memory of such an
    array is freed when the last of them is, and some 240 bytes that each takes beside its own count in the budget.

    When the disk is full, or refuses for another reason, saving raises SpillError; with `on_full="ram"` it warns once
    and keeps tensors in RAM beyond the budget until the disk takes them. Nothing is lost, and later steps run.
    `direct_io` says whether to go past the page cache where the file system can; None chooses by a short measurement,
    and goes through it with arrays that do not fit the budget, and once two steps in succession waited for the disk.
    `checksums=False` saves 0.1 s of processor time per GiB written and read, and no longer notices damage on the disk.

    `codec` says what tensors become in the files; one that is still in RAM comes back exact whatever it is. "lossless":
    HDF5's shuffle and zstd filters, where a sample says that they pay (masks, ReLU's outputs, indices; at 0.2 GB/s a
    thread they pay on slow or small disks). "bf16": float32 and float64 rounded to bfloat16, each value within 1/256 of
    itself (or 4.6e-41, if that is more); beyond 3.39e38, infinite. "int8": float32 and float64 within 0.4 % of the
    largest of 128 neighbours; a tensor with a value that is not finite, or beyond 3.4e38, stays exact, and so does one
    where 128 neighbours are all nearer to 0 than 1.5e-36. The lossy ones leave all other dtypes as they are, views of
    floats too; gradients are as inexact as what they come from. `encrypt=True` encrypts files with a key that only this
    object has; it needs the package cryptography.

    `only` chooses what is spilled by operation, module or size; see `saved_tensors_hooks`. Of that, `policy` says what
    becomes: "spill", "keep" (it stays in RAM, beside the budget: `stats().kept_bytes`), or "recompute" (not saved at
    all: a module's forward runs again in backward, as by `checkpoint`, and only its arguments are saved; alone it means
    the layers that a `ModuleList` or `Sequential` repeats). Or a mapping, or function, from the paths of modules
    (patterns, of `fnmatch`) and the names of operations to these:

        policy={"h.*.mlp": "recompute", "h.0": "keep", "softmax": "keep"}

    An operation's own choice goes first, then that of the innermost module; of a mapping's patterns the first that
    fits. What none names is spilled. Operations alone cannot be recomputed. Gradients are the same, bit for bit.

    "auto" spills all of it in the first steps, and measures: where they wait for the disk, it recomputes from then on
    the layers, or parts of them, that take less time to compute again than to write and read (`sg.planning`). That is
    decided once for a model and the shapes of its inputs, from what passes through `with`, and taken back if steps
    become no shorter. Each layer that is recomputed takes the memory of what it saves, beside the budget, while
    backward is in it.

    `keep_journal` names a file where the journal stays, of all that is packed, written, read and waited for, which
    `spillgrad inspect` and `sg.storage.inspect` read, also while it is written. One object has one, to itself for as
    long as it, or a graph that needs it, is there: who makes a new object for each step names a file for each.

    Of tensors on a CUDA device the newest stay there, up to `device_budget`; the others are copied to pinned memory,
    which counts as RAM here, and from there to the disk, while kernels run, and back before backward comes to them.
    Beyond the budgets are 16 MiB through which what comes from the disk is copied to the device, and the tensors that
    one operation's backward uses.

    Units: `ram_budget`, `device_budget` and `min_bytes` are bytes, or a size such as "64MiB". Without `directory`, a
    temporary one is used.
    Raises BudgetError for a size that does not parse, ArgumentError for an unknown word, without a package it needs,
    without `ram_budget`, or for an option that is the offload's; SpillError for a directory that cannot be used, or a
    journal of another object that lives.
    """

    sees_gradients = False

    def __init__(
        self,
        directory: str | os.PathLike[str] | disk_offload | None = None,
        *,
        ram_budget: int | str | None = None,
        device_budget: int | str = DEVICE_BUDGET,
        min_bytes: int | str = MIN_BYTES,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        codec: str | None = None,
        encrypt: bool = False,
        keep_journal: str | os.PathLike[str] | None = None,
        only: hooks.Predicate | None = None,
        policy: str | Mapping[str, str] | Chooser = "spill",
    ) -> None:
        # Not super().__init__(): it would store the bound hooks, and with them a reference cycle.
        self.only = hooks.checked_predicate("save_on_disk", only)
        self._policy: Policy | Automatic | None = None if policy in ("spill", "auto") else Policy(policy)
        self._kept: weakref.WeakSet[_Kept] = weakref.WeakSet()
        self._min_bytes = parse_bytes(min_bytes)
        self._device_budget = parse_bytes(device_budget)
        self._codec_mark = object() if is_lossy(codec) else None
        self._device_cache: DeviceCache | None = None  # once a tensor of a device was saved
        self._making_device_cache = threading.RLock()
        self._open_store(
            "save_on_disk",
            directory,
            ram_budget,
            shared=("disk_offload", disk_offload),
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
        )
        self._small = SmallTensors(self._store)
        self._auto: Automatic | None = None
        if policy == "auto":
            self._policy = self._auto = Automatic(self._store, os.stat(self._store.directory).st_dev)

    def __enter__(self) -> Any:
        keep_whole()
        super().__enter__()
        if self._auto is not None:
            self._auto.begin()
        around_forward(self, None if self._policy is None else self._policy.around).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        around_forward(self, None).__exit__()
        if self._auto is not None:
            self._auto.end()
        super().__exit__(kind, error, trace)

    def pack_hook(self, tensor: Tensor) -> Any:
        """Hand a tensor's storage to the store; return what `unpack_hook` takes."""
        storage = tensor.storage
        if storage.offloaded:
            return storage.view_of(tensor)
        array = tensor.array
        if storage.trainable or storage.array.nbytes < self._min_bytes or is_interrupted():
            return tensor
        if array.nbytes < self._min_bytes:
            return Tensor.wrap(cast(array, array.dtype))  # a view would keep its whole storage in RAM
        operation, slot = hooks.packing()
        if self._policy is not None and self._policy.keeps(operation, labels.current.module or ""):
            return self._keep(tensor, operation, slot)
        if slot in MADE_AHEAD and slot not in _nearest:
            kept = _nearest[slot] = self._keep(tensor, operation, slot)
            return kept
        offset = address_of(array) - address_of(storage.array) if array.size else 0
        if isinstance(storage, CastOf) and not storage.version:
            return storage.view_of(tensor)
        key, strides = _key(storage, self._codec_mark), array.strides
        if self._auto is not None:
            self._auto.saved(labels.current.module or "", storage.uid, storage.array.nbytes)
        stored = _as_it_lies(storage.array)
        is_kept = stored.flags.carray
        if is_kept and self._small.takes(stored.nbytes) and not is_on_device(stored):
            layout = layout_of(array.dtype, array.shape, strides, offset)
            return self._pack_small(storage, stored, layout, operation or None, slot or None)
        if not is_kept:
            # Memory with gaps, or read-only: the store copies what this view shows of it, when there is room.
            key = (key, offset, array.shape, strides, array.dtype)
            stored = array[tuple(slice(None if stride else 1) for stride in strides)]
            offset, strides = (
                0,
                tuple(inner if stride else 0 for stride, inner in zip(strides, _dense_strides(stored), strict=True)),
            )
        elif self._codec_mark is not None and array.dtype != stored.dtype and stored.dtype in LOSSY_DTYPES:
            # The codec keeps floats close: what looks at their bytes as something else has them stored as bytes.
            key, stored = (storage.uid, storage.version, np.uint8), stored.reshape(-1).view(np.uint8)
        label = _label(operation, slot)
        view = View(label.op, label.slot, array.dtype.name, array.shape, strides, offset)
        if is_on_device(stored):
            owner = storage if is_kept else None
            there = self._on_device().put(contiguous(stored), key, label, owner, view, MAX_VIEWS)
            return Spilled(self, there, key, array, offset, strides)
        version = storage.version
        # The store keeps `unchanged`, and so the storage, as long as it keeps the array in RAM: whoever gets the array
        # back from there gets this storage, and counts its changes there.
        watcher = storage if is_kept else None
        handle = self._store.put(
            stored, key=key, label=label, unchanged=lambda: storage.version == version, watcher=watcher
        )
        if len(handle.views) < MAX_VIEWS:
            handle.views.append(view)
        return Spilled(self, handle, key, array, offset, strides)

    def _pack_small(
        self, storage: Storage, dense: np.ndarray, layout: Layout, operation: str | None, slot: str | None
    ) -> SpilledSmall:
        place = self._small.known(storage, storage.version)
        if place is None:
            place = self._small.add(storage, storage.version, dense, labels.current.step)
        if len(place.views) < MAX_VIEWS:
            start = place.start + layout.offset
            place.views.append(View(operation, slot, layout.dtype.name, layout.shape, layout.strides, start))
        return SpilledSmall(place, layout)

    def unpack_hook(self, packed: Any) -> Tensor:
        """Return the tensor that `pack_hook` packed."""
        return (
            packed.tensor()
            if isinstance(packed, Spilled | SpilledSmall | _Kept | Conversion | OffloadedView)
            else packed
        )

    def _keep(self, tensor: Tensor, operation: str, slot: str) -> _Kept:
        kept = _Kept(tensor)
        self._store.note_kept(tensor.array.nbytes, _label(operation, slot), tensor.array.dtype)
        self._kept.add(kept)
        return kept

    def stats(self) -> SpillStats:
        """Return the store's counters: bytes packed, deduplicated, written, read, live and in RAM; seconds waited.

        And the bytes that stay in RAM beside the budget now, each memory once.
        """
        kept = {id(storage): storage.array.nbytes for storage in [entry.storage for entry in list(self._kept)]}
        stats = dataclasses.asdict(self._store.stats())
        device = self._device_cache
        if device is not None:
            stats |= {"device_bytes": device.resident_bytes, "peak_device_bytes": device.peak_resident_bytes}
        return SpillStats(**stats, kept_bytes=sum(kept.values()))

    def flush(self) -> None:
        """Return when every live spilled tensor is in the files, and all that happened in the journal.

        Raises SpillError when a tensor could not be written.
        """
        if self._device_cache is not None:
            self._device_cache.flush()
        self._small.end_batch()
        super().flush()

    def _on_device(self) -> "DeviceCache":
        """Return what keeps saved tensors of a device."""
        with self._making_device_cache:
            if self._device_cache is None:
                from spillgrad.spill.saved_on_device import DeviceCache

                self._device_cache = DeviceCache(self._store, self._device_budget)
        return self._device_cache

    def _memory_of(self, stored: "Handle | Stored", key: Hashable) -> tuple[np.ndarray, Storage]:
        """Return a stored array and the storage over it: the packed one while that is in memory, else a copy's."""
        # An array has one storage, or a change through one would go unnoticed by who holds the other.
        array = self._store.get(stored) if isinstance(stored, Handle) else stored.memory()
        storage = stored.watcher()
        while storage is None or address_of(storage.array) != address_of(array):
            copy = Copy(array, key, self._codec_mark)
            if isinstance(stored, Handle):
                storage = self._store.watch(stored, array, copy, instead_of=storage)
            else:
                storage = stored.cache.watch(stored, copy, instead_of=storage)
        if isinstance(storage, Copy) and storage.version:
            raise SavedTensorError(
                f"unpack: {stored.label} was modified in place after it was read back for another use; "
                f"clone() a saved tensor before changing it"
            )
        return array, storage


def _key(storage: Storage, codec_mark: object) -> Hashable:
    """Return what identifies the contents of a storage in the store of that mark: equal keys, equal bytes."""
    if isinstance(storage, Copy) and not storage.version and storage.altered_by in (None, codec_mark):
        return storage.key
    return storage.uid, storage.version


def _as_it_lies(array: np.ndarray) -> np.ndarray:
    """Return `array` with its axes in the order of its memory, which is C-contiguous then unless it has gaps."""
    if array.flags.c_contiguous:
        return array
    return array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis]))


def _dense_strides(array: np.ndarray) -> tuple[int, ...]:
    """Return the strides of a C-contiguous copy of `array`."""
    return tuple(array.itemsize * math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim))


def _label(operation: str, slot: str) -> Label:
    return Label(operation or None, slot or None, labels.current.module, labels.current.step)
