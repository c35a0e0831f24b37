"""Choose what happens to a saved tensor, such as staying in RAM or being spilled; `save_on_disk` carries it out."""

import enum
import weakref

from spillgrad import labels
from spillgrad.autograd.core import hooks
from spillgrad.ops.autocast import CastOf
from spillgrad.ops.linear_cross_entropy import MADE_AHEAD
from spillgrad.spill.planning.automatic import Automatic
from spillgrad.spill.policy import Policy
from spillgrad.spill.saved_memory import Kept
from spillgrad.spill.small_tensors import SmallTensors
from spillgrad.spill.tensor_memory import in_memory_order
from spillgrad.storage.threads.store_lock import is_interrupted
from spillgrad.tensor import Tensor
from spillgrad_kernels.device_array import is_on_device

# Signal handlers run before or after this code: `storage/threads/interrupts.py`.
SIGNALS_WAIT = True

# If a small tensor's memory is more than this many times larger than the tensor, a copy of the tensor is kept instead.
_MUCH_LARGER = 2


class Outcome(enum.Enum):
    """What happens to a saved tensor, and why."""

    OFFLOADED = "its memory is in a store already: backward reads it again"
    LEAF = "it stays: it is, or is a view of, a leaf that requires a gradient, which is in RAM anyway"
    TOO_SMALL = "it stays: it is smaller than min_bytes"
    STORE_IS_BUSY = "it stays: this thread is in the middle of the store's work, and cannot wait for that"
    COPIED = "a copy stays: it is smaller than min_bytes, but a view of much larger memory"
    KEPT = "it stays: the policy says so"
    MADE_AHEAD = "it stays: it is a gradient that forward made in advance, with which backward begins"
    CONVERTED = "backward converts the parameter again that it is the conversion of"
    ON_DEVICE = "it is spilled from a device"
    SMALL = "it is copied to an array of the store that small tensors share"
    SPILLED = "its memory goes to the store"


# For each slot of gradients made in advance, the gradient that stays in RAM. Backward needs this gradient first, and
# would otherwise allocate as much. Further gradients, of graphs that wait for their backward, are spilled.
made_ahead: "weakref.WeakValueDictionary[str, Kept]" = weakref.WeakValueDictionary()


def become(tensor: Tensor, min_bytes: int, policy: Policy | Automatic | None, small: SmallTensors) -> Outcome:
    """Choose what happens to `tensor`, which an operation of this thread is saving for backward."""
    storage = tensor._storage
    if storage.offloaded:
        return Outcome.OFFLOADED
    if storage.trainable:
        return Outcome.LEAF
    memory = storage.array
    memory_bytes, nbytes = memory.nbytes, tensor._array.nbytes
    # An expanded tensor has more elements than its memory.
    stays = outcome_in_ram(nbytes if nbytes < memory_bytes else memory_bytes, memory_bytes, min_bytes)
    if stays is not None:
        return stays
    operation, slot = hooks.packing()
    if policy is not None and policy.keeps(operation, labels.current.module or ""):
        return Outcome.KEPT
    if slot in MADE_AHEAD and slot not in made_ahead:
        return Outcome.MADE_AHEAD
    if isinstance(storage, CastOf) and not storage.version:
        return Outcome.CONVERTED
    if is_on_device(memory):
        return Outcome.ON_DEVICE
    if small.takes(memory_bytes) and in_memory_order(memory).flags.carray:
        return Outcome.SMALL
    return Outcome.SPILLED


def outcome_in_ram(nbytes: int, memory_bytes: int, min_bytes: int) -> Outcome | None:
    """Return the outcome for a tensor that stays in RAM because it is small or the store is busy; else None.

    The tensor has `nbytes`, and its memory `memory_bytes`. A tensor without elements is small whatever `min_bytes` is.
    """
    is_small = nbytes < min_bytes or not nbytes
    if is_small and memory_bytes <= _MUCH_LARGER * nbytes:
        return Outcome.TOO_SMALL
    if is_interrupted():
        return Outcome.STORE_IS_BUSY
    return Outcome.COPIED if is_small else None
