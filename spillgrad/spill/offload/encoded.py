"""Arrays that are float32 numbers in RAM while they are used, and fewer bits in a store: an optimizer's state.

Optimizers of PyTorch and Paddle (`spillgrad.interop`) keep their state in this way. Those of spillgrad do not need it,
because their own updates decode and encode.
"""

import numpy as np
import xxhash

from spillgrad.optim.state_formats import scale_name
from spillgrad.spill.offload.store_over import StoreOver
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label
from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.cpu.stochastic_rounding import round_stochastically
from spillgrad_kernels.memory.holder import Holder
from spillgrad_kernels.tables.state_codes import Encoded


class EncodedHandle(Handle):
    """The name of an array: of its codes, and of the scales of its blocks if it has any. They are dropped with it."""

    __slots__ = ("changing", "codes", "scales", "targets")

    def __init__(self, array: np.ndarray, label: Label, codes: Holder, scales: Holder | None) -> None:
        super().__init__(array, codes.held.sequence, label)
        self.codes, self.scales = codes, scales
        self.changing: np.ndarray | None = None  # the numbers, while they are changed
        self.targets: list[np.ndarray] = []  # the codes and scales in RAM, which will be overwritten

    @property
    def parts(self) -> list[Handle]:
        """The names of the codes and of the scales, in the order of `Encoded`."""
        return [holder.held for holder in (self.codes, self.scales) if holder is not None]


class EncodingStore(StoreOver):
    """The store of float32 arrays whose codes, of a kind of `KINDS`, are in the store `over`."""

    def __init__(self, over: DiskStore, kind: str) -> None:
        super().__init__(over)
        self._kind = kind

    def put(self, array: np.ndarray, *, label: Label, persistent: bool) -> EncodedHandle:
        """Store the codes of a float32 array, which is not kept. Raises the errors of `Store.put`."""
        encoded = state_codes.empty(self._kind, array.shape)
        self._encode(array, encoded)
        _, codes, scales = encoded

        def held(part: np.ndarray, label: Label) -> Holder:
            return Holder(self.over.drops.append, self.over.put(part, label=label, persistent=persistent))

        of_codes = held(codes, label)
        return EncodedHandle(array, label, of_codes, None if scales is None else held(scales, _of_scales(label)))

    def get(self, handle: EncodedHandle) -> np.ndarray:
        """Return the numbers, which the store counts until they die."""
        return state_codes.decode(self._encoded([self.over.get(part) for part in handle.parts]), self.empty)

    def use(self, handle: EncodedHandle) -> None:
        """Record that a caller who already holds the numbers uses them again."""
        for part in handle.parts:
            self.over.use(part)

    def relabel(self, handle: EncodedHandle, label: Label) -> None:
        """Replace the label of an array."""
        handle.label = label
        for part, of_part in zip(handle.parts, (label, _of_scales(label)), strict=False):  # some have no scales
            self.over.relabel(part, of_part)

    def begin_change(self, handle: EncodedHandle, array: np.ndarray) -> None:
        """Keep `array` until the change has ended, and its codes, so that it can end whatever the disk does then."""
        targets: list[np.ndarray] = []
        try:
            for part in handle.parts:
                held = self.over.held(part)
                target = self.over.get(part) if held is None else held
                self.over.begin_change(part, target)
                targets.append(target)
        except BaseException:
            for part, _ in zip(handle.parts, targets, strict=False):  # those that were begun
                self.over.end_change(part, changed=False)
            raise
        handle.targets = targets
        super().begin_change(handle, array)

    def end_change(self, handle: EncodedHandle, changed: bool) -> None:
        """Store the codes of the new numbers."""
        array, handle.changing = handle.changing, None
        targets, handle.targets = handle.targets, []
        if changed and array is not None:
            self._encode(array, self._encoded(targets))
        del array, targets  # to end a change may wait for room
        codes, *scales = handle.parts
        try:
            self.over.end_change(codes, changed)
        finally:  # codes that the disk has refused are in RAM: the scales must be theirs
            for part in scales:
                self.over.end_change(part, changed)

    def _encoded(self, parts: list[np.ndarray]) -> Encoded:
        return Encoded(self._kind, parts[0], parts[1] if len(parts) > 1 else None)

    def _encode(self, array: np.ndarray, into: Encoded) -> None:
        if self._kind == "random":
            # By a seed that the numbers decide: a run that repeats or resumes rounds in the same way.
            seed = xxhash.xxh3_64_intdigest(array.reshape(-1).view(np.uint8).data)
            round_stochastically(array, into.codes, 0, seed, 0, 0)
        else:
            state_codes.encode(array, self._kind, into, recovers_scales=True)


class StateStores:
    """The stores of state that is encoded, by kind, over one store."""

    def __init__(self, over: DiskStore) -> None:
        self._over = over
        self._stores: dict[str, EncodingStore] = {}

    def of(self, kind: str | None) -> EncodingStore | None:
        """Return the store of state that is encoded as `kind`; None for None."""
        return None if kind is None else self._stores.setdefault(kind, EncodingStore(self._over, kind))


def _of_scales(label: Label) -> Label:
    return Label(label.op, scale_name(label.slot or ""), label.module)
