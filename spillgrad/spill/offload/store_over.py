"""The base of what is the store of a `Resident` whose array is made from others, such as pieces or codes."""

import collections
from typing import Any

import numpy as np

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Handle, Label


class StoreOver:
    """To a `Resident`, the store of arrays that are made from those in the store `over`, whose budget they share."""

    def __init__(self, over: DiskStore) -> None:
        self.over = over
        self.drops: collections.deque[Handle] = collections.deque(maxlen=0)  # a handle holds what it is made from

    @property
    def budget_bytes(self) -> int:
        """The most bytes that the running modules keep."""
        return self.over.ram_budget

    def get(self, handle: Any) -> np.ndarray:
        """Make the array."""
        raise NotImplementedError

    def use(self, handle: Any) -> None:
        """Do nothing: the array is in RAM, and no order of use is known of it."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Return an uninitialized array, which the store counts until its last alias dies."""
        return self.over.counted_empty(shape, dtype)

    def relabel(self, handle: Any, label: Label) -> None:
        """Replace the label of an array."""
        raise NotImplementedError

    def begin_change(self, handle: Any, array: np.ndarray) -> None:
        """Keep `array` until the change has ended."""
        handle.changing = array

    def end_change(self, handle: Any, changed: bool) -> None:
        """Store what the new values are made from."""
        raise NotImplementedError


def store_in_ram(store: Any) -> Any:
    """Return the store whose budget counts the arrays of `store`."""
    return store.over if isinstance(store, StoreOver) else store
