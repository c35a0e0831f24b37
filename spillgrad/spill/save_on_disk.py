"""Ready-made hooks that spill saved tensors to HDF5 files under a RAM budget: `save_on_cpu`'s sibling for disks."""

import dataclasses
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spillgrad import labels
from spillgrad.autograd.core import hooks
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.nn.module_calls import around_forward
from spillgrad.ops.array_casts import cast
from spillgrad.ops.autocast import Conversion
from spillgrad.spill.context import SpillContext
from spillgrad.spill.disk_offload import OffloadStats, disk_offload
from spillgrad.spill.keep_or_spill import Outcome, become, made_ahead
from spillgrad.spill.offload.residents import OffloadedView
from spillgrad.spill.planning.automatic import Automatic
from spillgrad.spill.policy import Chooser, Policy
from spillgrad.spill.saved_memory import Kept, Packed, note_view, present_label
from spillgrad.spill.tensor_memory import Spilled, SpilledSmall, in_memory_order, layout_of, memory_of
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store_owner import MIN_BYTES
from spillgrad.storage.threads.interrupts import keep_whole
from spillgrad.tensor import Tensor

if TYPE_CHECKING:
    from spillgrad.spill.device_store import DeviceStore

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# Two of the largest tensors that a layer of GPT-2 saves at 4 × 512 tokens: enough to copy one while another is used.
DEVICE_BUDGET = "64MiB"


@dataclass(frozen=True)
class SpillStats(OffloadStats):
    """The counters of a store, and `kept_bytes`, which the policy or a loss keeps in RAM beside the budget."""

    kept_bytes: int = 0


class save_on_disk(SpillContext, hooks.saved_tensors_hooks):
    """Spill what operations inside save for backward to disk, and keep at most `ram_budget` bytes of it in RAM.

        with sg.save_on_disk("spill/", ram_budget="512MiB") as spill:
            loss = model(x)
        loss.backward()

    After the context has ended, no more tensors are spilled; backward may run later. The files are removed when the
    last graph that uses them is gone, or when the process ends. The same object can be entered again, and it is cheap
    to make a new one for each step. `pack_hook` and `unpack_hook` can be passed to `saved_tensors_hooks(...)` and
    `register_hooks(...)` too.

    In place of a directory it takes the `disk_offload` of a model. Saved tensors then go to the same store as
    parameters, gradients and optimizer state. They share its budget and its options, and `stats()` counts both.

    Each storage is stored once, however many nodes and views save it. These tensors stay in RAM:
    views of leaves that require a gradient, because these are in RAM anyway; tensors smaller than `min_bytes`; and the
    gradients of one loss that `linear_cross_entropy` computed in forward, because backward begins with them.
    `stats().kept_bytes` counts the last. If a saved tensor is modified in place, backward gets its old values or raises
    an error; it never computes with the new ones.

    With a `min_bytes` below 4096, storages smaller than that are copied into arrays that many of them share. Such an
    array is freed when the last tensor in it is. Each tensor takes about 240 bytes of RAM, which count in the budget.
    A budget below 32 KiB has no room for such arrays: each storage is then stored on its own.

    When the disk is full or reports an error, saving raises SpillError. With `on_full="ram"` it warns
    once instead, and keeps tensors in RAM beyond the budget until the disk accepts them again. No tensor is lost, and
    later steps run. `direct_io` says whether to bypass the page cache, where the file system can. None decides by a
    short measurement; it uses the page cache for arrays that do not fit the budget, and after two steps in a row that
    waited for the disk. `checksums=False` saves 0.1 s of processor time per GiB written and read; damage on the disk
    then goes unnoticed.

    `codec` says how tensors are encoded in the files. A tensor that is still in RAM comes back exact.

    * "lossless": HDF5's shuffle and zstd filters, for tensors of which a sample shrinks: masks, ReLU's outputs,
      indices. A thread compresses 0.2 GB/s, so it is worth it on slow or small disks.
    * "bf16": float32 and float64 are rounded to bfloat16. The error is at most 1/256 of the value, or 4.6e-41 if that
      is larger. Values beyond 3.39e38 become infinite.
    * "int8": the error of float32 and float64 is at most 0.4 % of the largest of 128 neighbours. A tensor stays exact
      if it has a value that is not finite, a value beyond 3.4e38, or 128 neighbours all closer to 0 than 1.5e-36.

    "bf16" and "int8" leave all other dtypes as they are, and views of floats as other dtypes. Gradients become as
    inexact as the tensors that they are computed from.

    `encrypt=True` encrypts the files with a key that only this object has. It needs the package cryptography.

    `only` chooses by operation, module or size which tensors are spilled; see `saved_tensors_hooks`.
    `policy` then chooses one of three treatments:

    * "spill" is the default;
    * "keep" leaves a tensor in RAM, beside the budget (`stats().kept_bytes`);
    * "recompute" saves only the arguments of a module, and runs its forward again in backward, as `checkpoint` does.
      Given alone, it applies to the layers that a `ModuleList` or `Sequential` repeats.

    Or it is a mapping, or a function, from module paths (patterns of `fnmatch`) and operation names to these words:

        policy={"h.*.mlp": "recompute", "h.0": "keep", "softmax": "keep"}

    The choice for an operation takes precedence, then that for the innermost module. Of a mapping's patterns, the first
    that fits counts. Whatever has no choice is spilled. A single operation cannot be recomputed. Gradients are the
    same, bit for bit.

    "auto" spills everything in the first steps, and measures. If the steps wait for the disk, it recomputes from then
    on those layers, or parts of layers, that are quicker to compute again than to write and read (`sg.planning`). It
    decides once for a model and the shapes of its inputs, from the steps inside `with`, and goes back if steps do not
    become shorter. While backward is in a layer that is recomputed, the tensors which that layer saves are in RAM
    beside the budget.

    `keep_journal` names a file that records what is packed, written, read and waited for. It stays when
    the spill files go. `spillgrad inspect` and `sg.storage.inspect` read it, also while it is being written. A journal
    belongs to one object for as long as the object, or a graph that uses it, lives: give each object a file of its own.

    Up to `device_budget` bytes of a device's tensors stay there: those that backward needs soonest, by the order of the
    last step, or in a first step the newest. The others are copied to pinned memory, which counts in `ram_budget`, and
    from there to the disk, while kernels run. They are copied back before
    backward needs them. Two things come on top of the budgets: 16 MiB through which data from the disk are copied to
    the device, and the tensors that the backward of one operation uses.

    Units: `ram_budget`, `device_budget` and `min_bytes` are bytes, or a size such as "64MiB". Without `directory`, a
    temporary one is used.
    Raises BudgetError for a size that does not parse; ArgumentError for an unknown word, for a missing package, without
    `ram_budget`, or for an option that the offload has already; SpillError for a directory that cannot be used, or a
    journal that belongs to another living object.
    """

    # Gradients that forward makes in advance may stay in RAM.
    sees_gradients = False
    _shared = ("disk_offload", disk_offload)
    _stacklevel = 4  # one more than by default, for `__init__` below

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
        self._policy: Policy | Automatic | None = None if policy in ("spill", "auto") else Policy(policy)
        self._kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._device_budget = parse_bytes(device_budget)
        self._device_store: DeviceStore | None = None  # made when a tensor of a device is saved
        self._making_device_store = ForkSafeLock()
        super().__init__(
            directory,
            ram_budget=ram_budget,
            min_bytes=min_bytes,
            direct_io=direct_io,
            checksums=checksums,
            on_full=on_full,
            codec=codec,
            encrypt=encrypt,
            keep_journal=keep_journal,
            only=only,
        )
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

    def __exit__(self, *_: object) -> None:
        around_forward(self, None).__exit__()
        if self._auto is not None:
            self._auto.end()
        super().__exit__()

    def pack_hook(self, tensor: Tensor) -> Any:
        """Give a tensor's storage to the store, or keep the tensor; return the object that `unpack_hook` takes."""
        match become(tensor, self._min_bytes, self._policy, self._small):
            case Outcome.TOO_SMALL | Outcome.LEAF | Outcome.STORE_IS_BUSY:
                return tensor
            case Outcome.SPILLED:
                return self._spill(tensor, self._store)
            case Outcome.SMALL:
                return self._spill_small(tensor)
            case Outcome.ON_DEVICE:
                return self._spill(tensor, self._on_device())
            case Outcome.COPIED:
                return Tensor.wrap(cast(tensor.array, tensor.array.dtype))
            case Outcome.KEPT:
                return self._keep(tensor)
            case Outcome.MADE_AHEAD:
                made_ahead[hooks.packing()[1]] = kept = self._keep(tensor)
                return kept
            case Outcome.OFFLOADED | Outcome.CONVERTED:
                return tensor.storage.view_of(tensor)

    def unpack_hook(self, packed: Any) -> Tensor:
        """Return the tensor that `pack_hook` packed."""
        return packed.tensor() if isinstance(packed, _PACKED) else packed

    def _spill(self, tensor: Tensor, store: "DiskStore | DeviceStore") -> Spilled:
        if self._auto is not None:
            _note(self._auto, tensor)
        memory = memory_of(tensor, self._codec_mark)
        handle = self._put(memory, present_label(*hooks.packing()), store)
        return Spilled(store, self, handle, memory)

    def _spill_small(self, tensor: Tensor) -> SpilledSmall:
        if self._auto is not None:
            _note(self._auto, tensor)
        storage, layout = tensor._storage, layout_of(tensor)
        place = self._small.known(storage, storage.version)
        if place is None:
            dense = in_memory_order(storage.array)
            place = self._small.add(storage, storage.version, dense)
        note_view(place.views, layout, *hooks.packing(), place.start)
        return SpilledSmall(place, layout)

    def _keep(self, tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        self._store.note_kept(tensor.array.nbytes, present_label(*hooks.packing()), tensor.array.dtype)
        self._kept.add(kept)
        return kept

    def stats(self) -> SpillStats:
        """Return the store's counters: bytes packed, deduplicated, written, read, live and in RAM; seconds waited.

        `kept_bytes` counts what stays in RAM beside the budget now, each memory once.
        """
        kept = {id(storage): storage.array.nbytes for storage in [entry.tensor().storage for entry in list(self._kept)]}
        stats = dataclasses.asdict(self._store.stats())
        if self._device_store is not None:
            stats |= self._device_store.stats()
        return SpillStats(**stats, kept_bytes=sum(kept.values()))

    def flush(self) -> None:
        """Wait until every live spilled tensor is in the files, and every event in the journal.

        Raises SpillError when a tensor could not be written.
        """
        if self._device_store is not None:
            self._device_store.flush()
        super().flush()

    def _on_device(self) -> "DeviceStore":
        """Return the store of saved tensors on a device."""
        with self._making_device_store:
            if self._device_store is None:
                from spillgrad.spill.device_store import DeviceStore  # it needs a driver

                self._device_store = DeviceStore(self._store, self._device_budget)
        return self._device_store


def _note(auto: Automatic, tensor: Tensor) -> None:
    auto.saved(labels.current.module or "", tensor.storage.uid, tensor.storage.array.nbytes)


_PACKED = (Packed, Conversion, OffloadedView)
