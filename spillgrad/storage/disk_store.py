"""The store that spills: the newest arrays are in RAM, the others in HDF5 files, under a byte-exact budget."""

import collections
import contextlib
import functools
import math
import os
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from spillgrad import user_line
from spillgrad.errors import ArgumentError, OperandError, SpillCorruptionError, SpillError
from spillgrad.storage.codecs import codec_named
from spillgrad.storage.counters import StepTraffic
from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.disk.file_part import FilePart
from spillgrad.storage.disk.segment_set import SEGMENT_BYTES, SegmentSet
from spillgrad.storage.disk.source_file import NO_VALUES, SourceExtent, can_read
from spillgrad.storage.disk.spans import copy_spans, digest_bytes
from spillgrad.storage.encryption import Encrypted
from spillgrad.storage.journal.writer import Journal
from spillgrad.storage.residency.residence import BELOW, CHANGING
from spillgrad.storage.runs.begin_run import about_process, make_run
from spillgrad.storage.runs.lifecycle import Lifecycle
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.state import StoreState
from spillgrad.storage.store import NO_LABEL, Handle, Label, Remote, StoreStats, dense_copy, may_be_kept, storable
from spillgrad.storage.threads.full_disk import FullDisk
from spillgrad.storage.threads.interrupts import keep_whole, protect
from spillgrad.storage.threads.loader import Loader
from spillgrad.storage.threads.prefetcher import Prefetcher
from spillgrad.storage.threads.room import Room
from spillgrad.storage.threads.writer import Writer
from spillgrad.storage.tiered_store import TieredStore
from spillgrad_kernels.memory import buffers

protect(__name__.rpartition(".")[0])


class _Counted(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array that a caller has made, whose bytes count until it dies."""

    __slots__ = ("all", "end")
    all: "dict[int, _Counted]"  # holds this by its id
    end: Callable[[], None]

    def drop(self) -> None:
        """Stop counting. Called with the store's lock held, when the array has died."""
        del self.all[id(self)]
        self.end()


class DiskStore(TieredStore[DiskEntry]):
    """Store that keeps arrays in RAM up to `ram_budget` bytes, and the others in HDF5 files.

    `save_on_disk` and `disk_offload` put tensors into such a store; programs may put NumPy arrays. It has all methods
    of `Store`.

    Parameters
    ----------
    directory : str or path, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files.
    ram_budget : int or str
        The most bytes of arrays in RAM, or a size such as "512MiB".
    segment_bytes : int, default 268435456
        Size at which a file is full, and another is begun.
    direct_io : bool, optional
        Whether to bypass the page cache, if the file system can. With None, a short measurement decides; then arrays
        that do not fit the budget go through the page cache, and so do all arrays once two steps in succession waited
        for the disk.
    checksums : bool, default True
        Whether to take a checksum of each array that is written, and to compare it when the array is read.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk refuses a write. With "raise", `put` raises. With "ram", `put` warns once, and the
        store keeps arrays in RAM beyond the budget until the disk takes them.
    codec : {"lossless", "bf16", "int8"}, optional
        How arrays are encoded in the files; as they are, by default, or, if that loses nothing, as bfloat16. Arrays
        that are still in RAM come back exact.

        * "lossless": HDF5's shuffle and zstd filters, for arrays of which a sample compresses well (masks, ReLU's
          outputs, indices).
        * "bf16": float32 and float64 rounded to bfloat16, each value within 1/256 of itself (or 2⁻¹³⁴, if that is
          more); values beyond 3.39e38 become infinite.
        * "int8": float32 and float64 in blocks of 128 values that share a scale, each value within 0.4 % of the largest
          of its block. An array is stored unencoded if a value is not finite or is beyond 3.4e38, or if all values of a
          block are nearer to 0 than 1.5e-36 and not all are 0.

        No codec changes arrays below 16 KiB, and the lossy codecs leave integers and bools alone too.
    encrypt : bool, default False
        Whether to encrypt the arrays in the files with a key that only this object has. The files hold no labels then,
        but sizes, shapes and dtypes can be read. Needs the package cryptography.
    keep_journal : str or path, optional
        Path of the journal, which then stays when the store is closed, for `spillgrad inspect`. It replaces the journal
        of a closed store. By default, the journal is removed with the other files.

    Raises
    ------
    BudgetError
        If the budget cannot be parsed.
    ArgumentError
        For an unknown word, or if a needed package is missing.
    SpillError
        If `directory` cannot be used, or if `keep_journal` is the journal of a live store.

    Notes
    -----
    Each store has a thread, the writer, which alone touches the structure of the files. For the writer, I/O threads,
    which all stores of the process share, write the oldest arrays to disk. Once callers ask for arrays again, the I/O
    threads read back the newest arrays on disk. Callers and all these threads share a state, guarded by its lock; I/O
    and callbacks of callers run without the lock.

    `ram_bytes` counts the arrays that the store holds. Arrays that the store made (copies, arrays read back) or took
    over (persistent arrays) count until their last alias dies. Any other array, which a caller made, stops counting
    once the store lets go of it.

    Invariants: `ram_bytes` never exceeds the budget, with three exceptions. A `get` that must read the disk evicts what
    it can, and then adds its own array. A `put` of an array that does not fit and must be copied adds the copy. If
    nothing else can make room, one array at a time is encoded beyond the budget. Methods wait only for the writer and
    the I/O threads, which wait for no caller.

    A store closes when no reference to it is left, or when the process ends. A forked child cannot use the stores of
    its parent.

    Examples
    --------
    >>> import numpy as np
    >>> import spillgrad as sg
    >>> store = sg.storage.DiskStore(ram_budget="1MiB")
    >>> handles = [store.put(np.full(100_000, i)) for i in range(4)]
    >>> store.get(handles[0])[:3]
    array([0, 0, 0])
    >>> store.stats().live_bytes
    3200000
    >>> store.close()
    """

    _state: StoreState

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        segment_bytes: int = SEGMENT_BYTES,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        codec: str | None = None,
        encrypt: bool = False,
        keep_journal: str | os.PathLike[str] | None = None,
    ) -> None:
        if on_full not in ("raise", "ram"):
            raise ArgumentError(f"spill: got on_full={on_full!r}; wanted 'raise' or 'ram'")
        budget_bytes = parse_bytes(ram_budget)
        coding = codec_named(codec)
        if encrypt:
            coding = Encrypted(coding)
        if keep_journal is not None and not isinstance(keep_journal, str | os.PathLike):
            raise OperandError(f"spill: got {type(keep_journal).__name__} as keep_journal; wanted a path")
        keep_whole()
        run = make_run(directory)
        with contextlib.ExitStack() as undo:
            undo.callback(run.remove)
            about = {
                **about_process(),
                "run": os.fspath(run.path),
                "budget": budget_bytes,
                "codec": codec,
                "encrypt": encrypt,
                "checksums": checksums,
                "on_full": on_full,
            }
            if encrypt:
                del about["command"]  # it may hold secrets
            journal = Journal(run.path, about, not encrypt, None if keep_journal is None else Path(keep_journal))
            undo.callback(journal.close)
            self._segments = SegmentSet(run.path, run.device, segment_bytes, direct_io=direct_io, checksums=checksums)
            undo.pop_all()
        self._state = StoreState(budget_bytes, run.path, journal)
        self._lifecycle = Lifecycle(self._state, self._segments, run)
        self._loader = Loader(self._state, coding)
        self._full_disk = FullDisk(self._state, on_full)
        self._room = Room(self._state, self._full_disk)
        self._counted: dict[int, _Counted] = {}
        self._prefetcher = Prefetcher(self._state, self._loader, self._room)
        self._writer = Writer(self._state, self._segments, self._prefetcher, self._room, self._full_disk, coding)
        self._state.on_step = self._segments.note_step
        self._state.on_room = self._prefetcher.start_loads
        self._state.close_with(self)
        self._lifecycle.begin(self._writer.run)
        self._state.listen()

    @property
    def directory(self) -> Path:
        """The directory of the files of this store's run."""
        return self._state.directory

    @property
    def drops(self) -> "collections.deque[Any]":
        """The queue to which finalizers append handles to drop; the store drops them at its next call or soon after."""
        return self._state.posted

    def see_to_drops(self) -> None:
        """Free the arrays that were dropped so far, unless a thread has the lock. Calls that use arrays do so first."""
        self._state.try_drain_posts()

    def watch_drops(self, callback: Callable[[Handle], None] | None) -> None:
        """Call a function whenever the last reference to an array is released.

        Parameters
        ----------
        callback : callable or None
            Function of a handle. It is called in any thread, with locks held. None stops the calls.
        """
        with self._state.lock:
            self._state.on_drop = callback

    @property
    def ram_budget(self) -> int:
        """The budget in bytes."""
        return self._state.tier.budget_bytes

    def put(
        self, array: np.ndarray | Remote, *, key: Hashable | None = None, label: Label | None = None,
        unchanged: Callable[[], bool] | None = None, watcher: object | None = None, persistent: bool = False,
    ) -> Handle:  # fmt: skip
        """Keep `array` and return its handle, as `Store.put` does.

        Waits for the writer while the budget is full. An array that cannot fit is written straight from the caller's
        memory before `put` returns.

        Parameters
        ----------
        array : ndarray or Remote
            The array.
        key : hashable, optional
            Identity of the array. With the key of a live handle, that handle is returned again, with one more
            reference.
        label : Label, optional
            Where the array comes from.
        unchanged : callable, optional
            Function that returns False once the caller has modified the array.
        watcher : object, optional
            Object that counts the changes of the array, to which the handle refers weakly.
        persistent : bool, default False
            Whether the array lives longer than a training step.

        Returns
        -------
        Handle
            For the other methods.

        Raises
        ------
        SpillError
            If this write or an earlier one failed, or if the array cannot be stored.
        """
        array = storable(array)
        state = self._state
        with state.lock:
            self._begin_put("put")
            entry, fits = state.known(key), True
            if entry is None:
                fits = self._room.wait_for(self._writer.needs(array), label or NO_LABEL, array.dtype)
                entry = state.known(key)  # another thread may have put it meanwhile
            if entry is None and may_be_kept(array):
                entry = state.enter(cast(np.ndarray, array), key, label, unchanged, persistent)
                self._keep(entry, cast(np.ndarray, array), fits, watcher)
            if entry is None:
                state.tier.reserve(array.nbytes)
            else:
                warning = self._end_put()
        if entry is None:
            entry, warning = self._put_copy(array, fits, key, label, watcher, persistent)
        self._warn(warning, entry)
        return entry

    def _warn(self, warning: str | None, entry: DiskEntry | None = None) -> None:
        """Issue `warning`, if any; if a warning filter makes it an error, drop `entry`. Called without the lock."""
        if warning is not None:
            try:
                user_line.warn(warning)
            except Warning:  # a filter makes it an error: the caller gets no handle
                if entry is not None:
                    self.drop(entry)
                raise

    def begin(self, array: np.ndarray, label: Label) -> Handle:
        """Keep an array that the caller is about to fill; it stays in RAM until `end_change`.

        Waits as `put` does.

        Parameters
        ----------
        array : ndarray
            The array.
        label : Label
            Where it comes from.

        Returns
        -------
        Handle
            For the other methods.

        Raises
        ------
        SpillError
            If an earlier write failed.
        """
        state = self._state
        with state.lock:
            self._begin_put("begin")
            self._room.wait_for(self._writer.needs(array), label, array.dtype, until_all_left=True)
            entry = state.enter(array, None, label, None, persistent=False)
            state.tier.begin_change(entry, array)
            warning = self._end_put()
        self._warn(warning, entry)
        return entry

    def count_with(self, handle: Handle, nbytes: int) -> None:
        """Count bytes that a caller holds in addition to an array, as long as the handle is live.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        nbytes : int
            The bytes.
        """
        with self._state.lock:
            entry = self._state.open_entry("count_with", handle)
            entry.beside_bytes += nbytes
            self._state.tier.reserve(nbytes, pinned=True, entry=entry)

    def _begin_put(self, who: str) -> None:
        """Raise SpillError if the store is closed or a write failed. Called with the lock held."""
        self._state.require_open(who)
        self._full_disk.answer_failures()
        self._state.schedule.pause()

    def _end_put(self) -> str | None:
        """Return the text of a warning for the caller, or None. Called with the lock held."""
        self._tell()
        return self._full_disk.warning()

    def _put_copy(
        self, array: np.ndarray | Remote, fits: bool, key: Hashable | None, label: Label | None, watcher: object | None,
        persistent: bool,
    ) -> tuple[DiskEntry, str | None]:  # fmt: skip
        """Keep a copy of `array`, for which the caller has reserved room; return its entry, and a warning or None.

        Called without the lock.
        """
        state = self._state
        try:
            copy, arrival = dense_copy(array)
        except BaseException:
            with state.lock:
                state.tier.unreserve(array.nbytes)
            raise
        with state.lock:
            try:
                self._begin_put("put")
                entry = state.known(key)  # another thread may have put it meanwhile
            finally:  # from here on the copy itself counts; no other thread took its room
                state.tier.unreserve(array.nbytes)
            if entry is None:
                entry = state.enter(copy, key, label, None, persistent)
                entry.arrival = arrival
                self._keep(entry, copy, fits, watcher, is_copy=True)
            return entry, self._end_put()

    def _keep(
        self, entry: DiskEntry, array: np.ndarray, fits: bool, watcher: object | None, is_copy: bool = False
    ) -> None:  # fmt: skip
        """Hold the array of a new entry in RAM if it `fits`, else write it to disk. Called with the lock held."""
        if watcher is not None:
            entry.watcher = weakref.ref(watcher)
        try:
            if fits:
                self._state.tier.keep(entry, array, is_copy=entry.persistent or is_copy)
                self._writer.wake_if_behind()
            else:
                self._writer.write_through(entry, array, is_copy=is_copy)
        except BaseException:
            self._state.release(entry)
            raise

    def end_change(self, handle: Handle, changed: bool = True) -> None:
        """Announce that an array has its new values, as `Store.end_change` does; wait while the budget is exceeded.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        changed : bool, default True
            Whether the array has new values.
        """
        super().end_change(handle, changed)
        with self._state.lock:
            warning = self._full_disk.warning()
        self._warn(warning)

    def replace(self, handle: Handle, array: Remote) -> None:
        """Store the values of a remote array under a handle, as `Store.replace` does.

        Waits as `put` does. The copy is made without the lock. If the copy fails, the former values stay.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        array : Remote
            Array outside of the host's memory, of the same shape and dtype.
        """
        state, tier = self._state, self._state.tier
        with state.lock:
            entry = state.open_entry("replace", handle)
            self._wait_until_idle("replace", entry)
            while entry.array is None:
                self._room.wait_for(entry.nbytes, entry.label, entry.dtype)
                if not entry.is_in_use:
                    break
                self._wait_until_idle("replace", entry)  # another array may have taken the room meanwhile
            has_former = entry.array is not None
            if has_former:  # it stays meanwhile; a local name would keep it counted afterwards
                tier.begin_change(entry, cast(np.ndarray, entry.array))
            else:
                tier.reserve(entry.nbytes, entry=entry)
        copied = None
        try:
            copied = array.fetch()
        finally:
            with state.lock:
                try:
                    if copied is not None:
                        state.open_entry("replace", handle)
                        self._wait_until_idle("replace", entry)
                finally:  # not earlier: the values on disk would be loaded into the room
                    if not has_former:
                        tier.unreserve(entry.nbytes, entry=entry)
                    elif entry.residence is CHANGING:
                        tier.end_change(entry)
                if copied is not None:
                    kept, entry.arrival = copied
                    tier.begin_change(entry, kept)
                    self._end_change(entry, changed=True)
                    warning = self._full_disk.warning()
        self._warn(warning)

    def put_unset(self, shape: tuple[int, ...], dtype: np.dtype[Any], label: Label) -> Handle:
        """Enter a persistent array that gets its values later; until then, it takes no memory and no disk.

        Parameters
        ----------
        shape : tuple of int
            The shape of the array.
        dtype : dtype
            The type of its elements.
        label : Label
            Where the array comes from.

        Returns
        -------
        Handle
            For the other methods. `get` returns zeros.
        """
        form = np.broadcast_to(np.empty((), dtype), shape)
        state = self._state
        with state.lock:
            self._begin_put("put_unset")
            entry = state.enter(cast(np.ndarray, storable(form)), None, label, None, persistent=True)
            entry.extent = NO_VALUES
            state.tier.enter_unset(entry)
            warning = self._end_put()
        self._warn(warning, entry)
        return entry

    def read_from(self, handle: Handle, part: FilePart) -> None:
        """Replace the values of an array by those in a file that is not of this store, and read them there.

        The file is read when the array is needed, and is never written. It stays open until the array is changed or
        dropped; changed values go to the files of the store.

        Parameters
        ----------
        handle : Handle
            The handle of the array, which must not be in use.
        part : FilePart
            The elements in the file, of which `can_read` says that they are those of the array.

        Raises
        ------
        SpillError
            As by `get`; if the array is being changed; or if the file cannot be opened.
        SpillCorruptionError
            If the file was changed since its header was read.
        """
        state = self._state
        extent: SourceExtent | None = self._segments.source(part)
        try:
            with state.lock:
                entry = state.open_entry("read_from", handle)
                self._wait_until_idle("read_from", entry)
                if entry.residence is CHANGING or not can_read(part, entry.shape, entry.dtype):
                    raise SpillError(
                        f"read_from: got {part.dtype.name} {part.shape} in {part.path} for {entry.label}, which is "
                        f"{entry.dtype.name} {entry.shape}, or is being changed; put the values of the file instead"
                    )
                state.note_change(entry)
                entry.extent, extent = extent, None
                if entry.residence is not BELOW:
                    state.tier.forget(entry)
        finally:
            if extent is not None:
                self._segments.free(extent)

    def is_read_in_place(self, handle: Handle) -> bool:
        """Return whether the values of an array are read from a file that is not of this store.

        Parameters
        ----------
        handle : Handle
            The handle of the array.

        Returns
        -------
        bool
            True from `read_from` until the array is changed.
        """
        with self._state.lock:
            return isinstance(self._state.live_entry("is_read_in_place", handle).extent, SourceExtent)

    def read_spans(self, handle: Handle, spans: np.ndarray, into: np.ndarray) -> None:
        """Fill an array with parts of a stored one, of which no others are read from the disk, if that can be.

        The whole is read if it will stay in RAM, because all persistent arrays fit the budget, and if a codec encoded
        it. What is read is verified as a whole array is: pages of it have checksums, which take 1/512 of the array's
        bytes, counted until the array is dropped. Unlike `get`, this is no use of the array that later steps are to
        expect.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        spans : ndarray
            Integers of shape (n, 2): the elements, in row-major order, at which each part begins and ends; in order.
        into : ndarray
            Array of one dimension, C-contiguous and of the dtype of the stored one, for the elements of all parts.

        Raises
        ------
        SpillError
            As by `get`.
        SpillCorruptionError
            If the bytes on disk are not those that were written, or read before.
        """
        array = self.held(handle)
        if array is None and self.keeps_all:
            array = self.get(handle)
        if array is None and (entry := self._begin_spans(handle)) is not None:
            self._loader.read_spans(entry, spans, into)
            return
        copy_spans((self.get(handle) if array is None else array).reshape(-1), spans, into)

    @property
    def keeps_all(self) -> bool:
        """Whether all persistent arrays that `expect` announced fit the budget together."""
        return 0 < self._state.schedule.expected_bytes <= self.ram_budget

    def _begin_spans(self, handle: Handle) -> DiskEntry | None:
        """Return an entry whose parts can be read, after `begin_spans` of the loader; or None."""
        with self._state.lock:
            entry = self._state.open_entry("get", handle)
            if entry.is_absent and not entry.digest_bytes:
                self._room.wait_for(digest_bytes(entry.nbytes), entry.label, entry.dtype, raises=entry.persistent)
                entry = self._state.open_entry("get", handle)
            return entry if self._loader.begin_spans(entry) else None

    def expect(self, nbytes: int) -> None:
        """Announce persistent arrays: arrays that fit beside them are not written early.

        Parameters
        ----------
        nbytes : int
            Bytes of these arrays in total.
        """
        with self._state.lock:
            self._state.schedule.expected_bytes = nbytes

    def begin_step(self) -> None:
        """Note that a training step begins; see `Store.begin_step`."""
        keep_whole()  # again: handlers may have been replaced, as in each cell of a notebook
        with self._state.lock:
            self._state.require_open("begin_step")
            self._state.schedule.begin_step()
            self._state.counters.begin_phase("forward")

    def begin_phase(self, name: str | None) -> None:
        """Record that a phase of a step begins.

        Without this call, the forward phase begins with the first `put`, the backward phase with the first `get`.

        Parameters
        ----------
        name : {"forward", "backward", "update"} or None
            The phase; None is the time between steps.
        """
        with self._state.lock:
            self._state.counters.begin_phase(name)
            self._tell()

    def relabel(self, handle: Handle, label: Label) -> None:
        """Give an array another label.

        Parameters
        ----------
        handle : Handle
            The handle of the array.
        label : Label
            The new label.

        Raises
        ------
        SpillError
            If the handle was dropped.
        """
        with self._state.lock:
            entry = self._state.live_entry("relabel", handle)
            entry.label = label
            self._state.counters.relabeled(entry)

    def note_kept(self, nbytes: int, label: Label, dtype: np.dtype[Any]) -> None:
        """Record in the journal that an array stays in RAM outside the store.

        Parameters
        ----------
        nbytes : int
            Bytes of the array.
        label : Label
            Where the array comes from.
        dtype : dtype
            Data type of the array.
        """
        with self._state.lock:
            self._state.counters.kept(nbytes, label, dtype)
            self._tell()

    @property
    def ram_bytes(self) -> int:
        """The bytes that the budget bounds, as in `stats()`, without waiting for the lock."""
        return self._state.tier.used_bytes

    @property
    def live_bytes(self) -> int:
        """The bytes of all arrays in the store, as in `stats()`, without waiting for the lock."""
        return self._state.counters.live_bytes

    @property
    def waited_s(self) -> float:
        """The seconds that callers have waited so far."""
        return self._state.counters.total.wait_s

    def at_step_end(self, callback: Callable[[StepTraffic], None]) -> None:
        """Call a function once, at the end of the step.

        Parameters
        ----------
        callback : callable
            Function of a `StepTraffic`, which says what the step moved. It is called in any thread, with locks held, so
            it must be quick.
        """
        with self._state.lock:
            self._state.at_step_end.append(callback)

    def prefetch(self, handles: Iterable[Handle]) -> None:
        """Load arrays, as `Store.prefetch` does.

        Parameters
        ----------
        handles : iterable of Handle
            The handles of the arrays, in the order in which to load them.
        """
        state = self._state
        with state.lock:
            state.require_open("prefetch")
            self._prefetcher.request([state.live_entry("prefetch", handle) for handle in handles])

    def flush(self) -> None:
        """Wait until plain h5py can read every live array from the files, and the journal has every event so far."""
        state = self._state
        with state.lock:
            state.require_open("flush")
            self._writer.flush()
        self._lifecycle.write_journal()

    def stats(self) -> StoreStats:
        """Return the present counters.

        Returns
        -------
        StoreStats
            Bytes and seconds, so far and now.
        """
        state = self._state
        with state.lock:
            state.drain_posts()
            stats = state.counters.stats(*self._segments.disk_usage())
        return stats

    def check(self) -> list[SpillCorruptionError]:
        """Read every array that is on disk, one at a time, and compare its checksum.

        Returns
        -------
        list of SpillCorruptionError
            An error for each damaged array.
        """
        state = self._state
        with state.lock:
            state.require_open("check")
            entries = list(state.entries.values())
        damaged = []
        for entry in entries:
            with state.lock:
                state.require_open("check")
                if entry.references <= 0 or entry.extent is None:
                    continue
                self._loader.begin_read(entry, pinned=True)
            try:
                self._loader.read(entry)
            except SpillCorruptionError as error:
                damaged.append(error.with_traceback(None))  # which holds the array
            finally:
                with state.lock:
                    state.tier.unreserve(entry.nbytes, pinned=True, entry=entry)
                    self._loader.end_read(entry)
        return damaged

    def retire(self) -> None:
        """Close as soon as no handle is live; see `Store.retire`."""
        self._state.retire()

    def retire_with(self, owner: object) -> None:
        """Close as soon as an object is dead and no handle is live.

        Parameters
        ----------
        owner : object
            The object, to which the store refers weakly.
        """
        self._state.retire_with(owner)

    def close(self) -> None:
        """Stop the threads, free everything and remove the files.

        Raises
        ------
        SpillError
            If files cannot be removed.
        """
        self._lifecycle.close()

    def _tell(self) -> None:
        """Wake the writer if many journal lines wait, or if one waits too long. Called with the lock held."""
        if self._state.journal.is_behind and not self._state.closing:
            self._state.bell.ring()

    # RAM as the tier, and the disk as the tier below

    def own(self, array: np.ndarray) -> np.ndarray:
        """Return an array that the store can take over as a persistent one.

        Parameters
        ----------
        array : ndarray
            The array to keep.

        Returns
        -------
        ndarray
            `array` itself, or a C-contiguous copy where it is a view or lies in another order.
        """
        # The memory of a view would outlive the array; and arrays come back from the disk C-contiguous.
        is_view = isinstance(array.base, np.ndarray)
        return buffers.copy(array) if is_view or not array.flags.c_contiguous else array

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, which a caller can fill and give to `begin_change`.

        Parameters
        ----------
        shape : tuple of int
            The shape of the array.
        dtype : dtype
            The type of its elements.

        Returns
        -------
        ndarray
            The array, in memory of the buffer pool.
        """
        # The buffer pool keeps what was ever in use at a time: arrays that give way must be gone before.
        with self.room(math.prod(shape) * dtype.itemsize):
            return buffers.empty(shape, dtype)

    def counted_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, whose bytes count until its last alias dies; first wait as in `room`.

        Parameters
        ----------
        shape : tuple of int
            The shape of the array.
        dtype : dtype
            The type of its elements.

        Returns
        -------
        ndarray
            The array, in memory of the buffer pool.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        with self._state.lock:
            room = self._begin_room(nbytes)
            try:
                array = buffers.empty(shape, dtype)
            except MemoryError:
                self._state.tier.end_room(nbytes, room)
                raise
            counted = _Counted(array, self._state.posted.append)
            counted.end, counted.all = functools.partial(self._state.tier.end_room, nbytes, room), self._counted
            self._counted[id(counted)] = counted
        return array

    def _wait_for_room(
        self, nbytes: int, label: Label, dtype: np.dtype[Any] | None, raises: bool = True
    ) -> bool:  # fmt: skip
        return self._room.wait_for(nbytes, label, dtype, raises=raises)

    def _begin_load(self, entry: DiskEntry) -> None:
        self._loader.begin(entry, pinned=True)

    def _load(self, entry: DiskEntry) -> np.ndarray:
        return self._loader.load(entry)

    def _wait_for_load(self, entry: DiskEntry) -> None:
        started = time.perf_counter()
        super()._wait_for_load(entry)
        self._state.counters.waited_to_get(started, entry)

    def _note_use(self, entry: DiskEntry, is_here: bool) -> None:
        self._state.counters.used(entry, is_here)
        self._prefetcher.start_loads()

    def _begin_change(self, entry: DiskEntry) -> None:
        self._room.wake_waiting()  # their room may come from callers only now

    def _end_change(self, entry: DiskEntry, changed: bool) -> None:
        state = self._state
        if changed:
            state.note_change(entry)
        state.tier.end_change(entry)
        self._room.wake_waiting()
        self._full_disk.answer_failures()
        self._writer.wake_if_behind()
        self._room.wait_for(0, entry.label, entry.dtype, until_all_left=True)
