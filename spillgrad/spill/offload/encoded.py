"""Arrays in RAM as float32 numbers while they are used, and in a store in fewer bits: an optimizer's state.

Nothing here knows a tensor: PyTorch's and Paddle's optimizers (`spillgrad.interop`) keep state so. Optimizers of
spillgrad need no such arrays, because their updates decode and encode by themselves.
"""

import collections
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.optim.state_formats import scale_name
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.cpu.stochastic_rounding import round_stochastically
from spillgrad_kernels.memory.holder import Holder
from spillgrad_kernels.tables.state_codes import Encoded


class EncodedHandle(Handle):
    """The name of an array: of its codes, and of the scales of its blocks if it has any. They are dropped with it."""

    __slots__ = ("changes", "changing", "codes", "scales")

    def __init__(self, array: np.ndarray, label: Label, codes: Holder, scales: Holder | None) -> None:
        super().__init__(array, codes.held.sequence, label)
        self.codes, self.scales = codes, scales
        self.changing: np.ndarray | None = None  # the numbers, while they are changed
        self.changes = 0

    @property
    def parts(self) -> list[Handle]:
        """The names of the codes and of the scales, in the order of `Encoded`."""
        return [holder.held for holder in (self.codes, self.scales) if holder is not None]


class EncodingStore:
    """Encodes arrays for a store, as a kind of `KINDS`, and decodes them. To a `Resident`, it is their store."""

    def __init__(self, store: DiskStore, kind: str) -> None:
        self.drops: collections.deque[Handle] = collections.deque(maxlen=0)  # codes are dropped with their handle
        self._store, self._kind = store, kind

    @property
    def budget_bytes(self) -> int:
        """The most bytes that the running modules and updates keep."""
        return self._store.ram_budget

    def put(self, array: np.ndarray, *, label: Label, persistent: bool) -> EncodedHandle:
        """Store the codes of a float32 array. Raises the errors of `Store.put`."""
        _, codes, scales = state_codes.encode(array, self._kind, self._store.empty, again=True)

        def held(part: np.ndarray, label: Label) -> Holder:
            return Holder(self._store.drops.append, self._store.put(part, label=label, persistent=persistent))

        of_codes = held(codes, label)
        return EncodedHandle(array, label, of_codes, None if scales is None else held(scales, _of_scales(label)))

    def get(self, handle: EncodedHandle) -> np.ndarray:
        """Return the numbers, which the store counts until they die."""
        codes, *scales = [self._store.get(part) for part in handle.parts]
        return state_codes.decode(Encoded(self._kind, codes, scales[0] if scales else None), self.empty)

    def use(self, handle: EncodedHandle) -> None:
        """Record that a caller who already holds the numbers uses them again."""
        for part in handle.parts:
            self._store.use(part)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, which the store counts until it dies."""
        return self._store.counted_empty(shape, dtype)

    def relabel(self, handle: EncodedHandle, label: Label) -> None:
        """Replace the label of an array."""
        handle.label = label
        for part, of in zip(handle.parts, (label, _of_scales(label)), strict=False):
            self._store.relabel(part, of)

    def begin_change(self, handle: EncodedHandle, array: np.ndarray) -> None:
        """Keep `array`, the numbers, until the change has ended."""
        handle.changing = array

    def end_change(self, handle: EncodedHandle, changed: bool) -> None:
        """Store the codes of the new numbers."""
        array, handle.changing = handle.changing, None
        if not changed or array is None:
            return
        handle.changes += 1
        parts, made = handle.parts, self._encoded(array, handle)
        for part, codes in zip(parts, made, strict=False):
            self._store.begin_change(part, codes)
        del made, codes  # else the store would have to keep them in RAM
        # If the disk refuses the codes, the store has them in RAM: the scales must be theirs.
        try:
            self._store.end_change(parts[0])
        finally:
            for part in parts[1:]:
                self._store.end_change(part)

    def _encoded(self, array: np.ndarray, handle: EncodedHandle) -> Sequence[np.ndarray]:
        if self._kind != "random":
            return state_codes.encode(array, self._kind, self._store.empty, again=True)[1:]
        rounded = self._store.empty(array.shape, np.dtype(ml_dtypes.bfloat16))
        round_stochastically(array, rounded, 0, 0, handle.sequence % (1 << 32), handle.changes % (1 << 32))
        return [rounded]


class StateStores:
    """The stores of state of every kind, over one store."""

    def __init__(self, store: DiskStore) -> None:
        self._exact = store
        self._encoding: dict[str, EncodingStore] = {}

    def of(self, kind: str | None) -> DiskStore | EncodingStore:
        """Return the store of state that is encoded as `kind`; with None, of state that is exact."""
        if kind is None:
            return self._exact
        return self._encoding.setdefault(kind, EncodingStore(self._exact, kind))


def _of_scales(label: Label) -> Label:
    return Label(label.op, scale_name(label.slot or ""), label.module)
