"""Choose arrays of which a sample is compressed, so that the journal shows how many bytes a codec would save."""

import collections
import dataclasses
import random
import time

import numpy as np

from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.store import Label

# The first arrays of each origin are sampled, then fewer and fewer, at random: each step stores the same arrays in the
# same order, so that every eighth array, for example, might always be the same one.
_FIRST = 8
# Beyond the first arrays of each origin, samples take at most this share of the time. One takes 0.3 ms.
_MOST_SHARE = 0.02
_AT_ONCE_S = 0.05
_ORIGINS_MAX = 500  # more are too many to read


class ShrinkSamples:
    """Chooses arrays of which a sample is compressed. The store's lock guards everything."""

    def __init__(self) -> None:
        self._seen: collections.Counter[tuple[Label, np.dtype]] = collections.Counter()
        self._random = random.Random(0)
        self._began_s = time.perf_counter()
        self._spent_s = 0.0

    def is_due(self, entry: DiskEntry) -> bool:
        """Return whether to compress a sample of the array of `entry`. Called with the lock held."""
        origin = dataclasses.replace(entry.label, step=None), entry.dtype
        if not entry.nbytes or (len(self._seen) >= _ORIGINS_MAX and origin not in self._seen):
            return False
        self._seen[origin] += 1
        seen = self._seen[origin]
        may_spend_s = _AT_ONCE_S + _MOST_SHARE * (time.perf_counter() - self._began_s)
        return seen == 1 or (self._spent_s < may_spend_s and self._random.random() * seen < _FIRST)

    def took(self, seconds: float) -> None:
        """Record how long a sample took. Called with the lock held."""
        self._spent_s += seconds
