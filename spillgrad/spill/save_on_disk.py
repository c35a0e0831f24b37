"""Hooks that spill saved tensors to HDF5 files under a RAM budget, as PyTorch's `save_on_cpu` moves them to RAM."""

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
from spillgrad.spill.context import DEVICE_BUDGET, SpillContext
from spillgrad.spill.disk_offload import OffloadStats, disk_offload
from spillgrad.spill.keep_or_spill import Outcome, become, made_ahead
from spillgrad.spill.offload.tensors import OffloadedView
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


@dataclass(frozen=True)
class SpillStats(OffloadStats):
    """The counters of a store. `kept_bytes` are the bytes that the policy or a loss keeps in RAM outside the budget."""

    kept_bytes: int = 0


class save_on_disk(SpillContext, hooks.saved_tensors_hooks):
    """Spill what operations save for backward to disk, and keep at most `ram_budget` bytes of it in RAM.

    A context manager for the forward pass::

        with sg.save_on_disk("spill/", ram_budget="512MiB") as spill:
            loss = model(x)
        loss.backward()

    After the context has ended, no more tensors are spilled; backward may run later. Tensors are read back ahead of
    their use. Gradients are the same as without the context, bit for bit, unless `codec` rounds.

    Parameters
    ----------
    directory : str, path or disk_offload, optional
        Folder for the files, which is made if it does not exist. Each object makes a folder of its own in it. By
        default, a folder of this user in the directory for temporary files. In place of a folder, the `disk_offload` of
        a model: saved tensors then go to the same store as parameters, gradients and optimizer state, share its budget
        and its options, and `stats()` counts both.
    ram_budget : int or str
        The most bytes of saved tensors in RAM, or a size such as "512MiB". Required, except with a `disk_offload`. A
        tensor that is larger than the budget goes straight to disk, and exceeds the budget while backward uses it.
    device_budget : int or str, default "64MiB"
        The most bytes of saved tensors that stay on a CUDA device, or a size. The tensors that backward needs soonest
        stay, by the order of the last step; in a first step, the newest stay. The others are copied to pinned memory,
        which counts in `ram_budget`, and from there to the disk, while kernels run. They are copied back before
        backward needs them.
    min_bytes : int or str, default 4096
        Tensors smaller than this stay in RAM. Bytes, or a size.
    direct_io : bool, optional
        Whether to bypass the page cache, if the file system can. With None, a short measurement decides; the page cache
        is used for arrays that do not fit the budget, and after two steps in a row that waited for the disk.
    checksums : bool, default True
        Whether to compute a checksum of each array that is written, and to compare it when the array is read. False
        saves 0.1 s of processor time per GiB written and read; damage on the disk then goes unnoticed.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk is full or reports an error. With "raise", saving raises SpillError. With "ram", it
        warns once, and keeps tensors in RAM beyond the budget until the disk accepts them again: no tensor is lost, and
        later steps run.
    codec : {"lossless", "bf16", "int8"}, optional
        How tensors are encoded in the files; as they are, by default. A tensor that is still in RAM comes back exact.

        * "lossless": HDF5's shuffle and zstd filters, for tensors of which a sample shrinks: masks, ReLU's outputs,
          indices. A thread compresses 0.2 GB/s, so "lossless" is worthwhile on slow or small disks.
        * "bf16": float32 and float64 are rounded to bfloat16. The error is at most 1/256 of the value, or 4.6e-41 if
          that is larger. Values beyond 3.39e38 become infinite.
        * "int8": the error of float32 and float64 is at most 0.4 % of the largest of 128 neighbours. A tensor stays
          exact if it has a value that is not finite, a value beyond 3.4e38, or 128 neighbours all closer to 0 than
          1.5e-36.

        "bf16" and "int8" leave tensors of all other dtypes exact, and views that read float memory as another dtype.
        Gradients become as inexact as the tensors that they are computed from.
    encrypt : bool, default False
        Whether to encrypt the files, with a key that only this object has. Needs the package cryptography.
    keep_journal : str or path, optional
        File that records what is packed, written, read and waited for. It stays when the spill files are removed.
        `spillgrad inspect` and `sg.storage.inspect` read it, also while it is being written. A journal belongs to one
        object for as long as the object, or a graph that uses it, lives: give each object a file of its own.
    only : callable, optional
        Function of a saved value that returns whether to spill it. It may use `saved.op`, `saved.slot`, `saved.module`,
        `saved.nbytes` and `saved.tensor`; see `saved_tensors_hooks`. By default, all are spilled.
    policy : str, mapping or callable, default "spill"
        How the tensors that `only` takes are treated: one word for all of them, or a word for each module or operation.
        The words are:

        * "spill" puts a tensor into the store.
        * "keep" leaves a tensor in RAM, outside the budget.
        * "recompute" saves only the arguments of a module, and runs its forward again in backward, as `checkpoint`
          does. Given alone, it applies to the layers that a `ModuleList` or `Sequential` repeats.

        A mapping leads from the paths of modules (patterns of `fnmatch`) and the names of operations to these words. A
        function takes a path or a name, and returns a word, or None for no choice. A fourth word, "auto", cannot be
        part of a mapping: it measures, and chooses what to recompute; see the Notes.

    Attributes
    ----------
    directory : Path
        The folder of this object's files.

    Raises
    ------
    BudgetError
        If a size does not parse.
    ArgumentError
        For an unknown word, a missing package, a missing `ram_budget`, or an option that the offload has already.
    SpillError
        If the directory cannot be used; if the journal belongs to another living object; or if the disk fails when a
        tensor is saved or read.

    Warns
    -----
    UserWarning
        If the directory for temporary files, which is used by default, is a RAM disk: spilling frees no memory then. If
        other users can remove or replace files in `directory`.

    See Also
    --------
    disk_offload : Keeps parameters, gradients and optimizer state on disk.
    spillgrad.planning.plan : Chooses a policy and a budget for a given memory, and predicts the time of a step.
    spillgrad.storage.inspect : Shows what a run wrote and read, and what it waited for.

    Notes
    -----
    **What stays in RAM.** Each storage is stored once, however many nodes and views save it. These tensors stay in RAM:
    views of leaves that require a gradient, because the leaves are in RAM anyway; tensors smaller than `min_bytes`; and
    the gradients of one loss that `linear_cross_entropy` computed in forward, because backward begins with these
    gradients. `stats().kept_bytes` counts these gradients, and what the policy keeps.

    **In-place changes.** If a saved tensor is modified in place, backward gets its old values or raises an error; it
    never computes with the new values.

    **Files.** They are removed when the last graph that uses them is gone, or when the process ends. The same object
    can be entered again, and it is cheap to make a new one for each step. `pack_hook` and `unpack_hook` can be passed
    to ``saved_tensors_hooks(...)`` and ``register_hooks(...)`` too. ``preflight()`` returns the free space and the
    measured speed of the disk, as `sg.storage.preflight` does.

    **Which choice of a policy counts.** The choice for an operation takes precedence over the choice for a module, and
    an inner module over an outer one. Of a mapping's patterns, the first that matches counts. A tensor without a choice
    is spilled. A single operation cannot be recomputed.

    **The policy "auto"** spills everything in the first steps, and measures. If the steps wait for the disk, it
    recomputes from then on those layers, or parts of layers, that are quicker to compute again than to write and read.
    It decides once for a model and the shapes of its inputs, from the steps inside ``with``, and spills everything
    again if the steps become more than 5 % longer. While backward is in a layer that is recomputed, the tensors that
    this layer saves are in RAM outside the budget.

    **Small tensors.** With a `min_bytes` below 4096, storages smaller than 4096 bytes are copied into arrays that many
    of them share. Such an array is freed with the last tensor in it. Each tensor takes about 240 bytes of RAM, which
    count in the budget. A budget below 32 KiB has no room for such arrays: each storage is then stored on its own.

    **CUDA devices.** Two things come on top of the budgets: 16 MiB through which data from the disk are copied to the
    device, and the tensors that the backward of one operation uses.

    Examples
    --------
    >>> import spillgrad as sg
    >>> layers = [sg.nn.Linear(256, 1024), sg.nn.GELU(), sg.nn.Linear(1024, 256)]
    >>> model, x = sg.nn.Sequential(*layers), sg.ones(512, 256)
    >>> with sg.save_on_disk(ram_budget="1MiB") as spill:
    ...     loss = model(x).square().mean()
    >>> sg.storage.format_bytes(spill.stats().packed_bytes)
    '5 MiB'
    >>> spill.stats().ram_bytes <= 1 << 20
    True
    >>> loss.backward()

    GELU's input stays in RAM, outside the budget; all else is spilled:

    >>> with sg.save_on_disk(ram_budget="1MiB", policy={"1": "keep"}) as spill:
    ...     loss = model(x).square().mean()
    >>> sg.storage.format_bytes(spill.stats().kept_bytes)
    '2 MiB'

    For a language model: recompute the MLPs, and keep what the first layer and all softmaxes save::

        policy = {"h.*.mlp": "recompute", "h.0": "keep", "softmax": "keep"}
    """

    # Gradients that forward makes in advance may stay in RAM.
    sees_gradients = False
    _shared = ("disk_offload", (disk_offload,))

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
        """Give a tensor's storage to the store, or keep the tensor.

        Parameters
        ----------
        tensor : Tensor
            The tensor that an operation saves.

        Returns
        -------
        object
            What `unpack_hook` takes.
        """
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
        """Return the tensor that `pack_hook` packed.

        Parameters
        ----------
        packed : object
            What `pack_hook` returned.

        Returns
        -------
        Tensor
            Of the same shape, dtype, device and values, as far as the codec is exact.
        """
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
        """Return the counters of the store.

        Returns
        -------
        SpillStats
            A `StoreStats`: bytes packed, deduplicated, written, read, live and in RAM; seconds waited. Further
            attributes are `device_bytes` and `peak_device_bytes`, the bytes on a CUDA device, and `kept_bytes`, the
            memory that stays in RAM outside the budget now, each storage once.
        """
        kept = {id(storage): storage.array.nbytes for storage in [entry.tensor().storage for entry in list(self._kept)]}
        stats = dataclasses.asdict(self._store.stats())
        if self._device_store is not None:
            stats |= self._device_store.stats()
        return SpillStats(**stats, kept_bytes=sum(kept.values()))

    def flush(self) -> None:
        """Wait until all live spilled tensors are in the files, and all events are in the journal.

        Raises
        ------
        SpillError
            If a tensor could not be written.
        """
        if self._device_store is not None:
            self._device_store.flush()
        super().flush()

    def _on_device(self) -> "DeviceStore":
        """Return the store for saved tensors on a device; the first call makes the store."""
        with self._making_device_store:
            if self._device_store is None:
                from spillgrad.spill.device_store import DeviceStore  # it needs a driver

                self._device_store = DeviceStore(self._store, self._device_budget)
        return self._device_store


def _note(auto: Automatic, tensor: Tensor) -> None:
    auto.saved(labels.current.module or "", tensor.storage.uid, tensor.storage.array.nbytes)


_PACKED = (Packed, Conversion, OffloadedView)
