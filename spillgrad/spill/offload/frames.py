"""Frames: the offloaded tensors that each running module or update has used, per thread."""

import collections
import threading

import numpy as np

from spillgrad.device.device import Device, device_of
from spillgrad.tensor import Tensor

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True


class Frame:
    """The arrays that a running module or update has used, and may use again.

    `number` is None in the frame outside of all modules, which keeps nothing.
    """

    def __init__(self, number: int | None, owner: int | None = None) -> None:
        self.number = number
        self.owner = owner
        self.arrays: dict[Device, collections.deque[np.ndarray | Tensor]] = collections.defaultdict(collections.deque)

    def hold(self, used: np.ndarray | Tensor) -> None:
        """Keep an array, or a tensor that was made from one."""
        self.arrays[used.device if isinstance(used, Tensor) else device_of(used)].append(used)


class ThreadFrames(threading.local):
    """The frames that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.frames = [Frame(None)]
        # The array that a caller is about to change; the caller may not hold it yet.
        self.last_changed: np.ndarray | None = None
