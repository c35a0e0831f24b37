"""Of which arrays, stored as they are, it is tried what lossless compression makes: for who looks at the journal."""

import collections
import dataclasses
import random
import time

import numpy as np

from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.store import Label

# Of one origin the first arrays are sampled, then fewer and fewer, at random: what a step stores comes in the same
# order each time, so that every eighth array, say, may always be the same one.
_FIRST = 8
# Beyond the first of each origin, samples take no more than this share of the time, at 0.3 ms each.
_MOST_SHARE = 0.02
_AT_ONCE_S = 0.05
_ORIGINS_MAX = 500  # nobody reads many more


class ShrinkSamples:
    """Chooses arrays of which a sample is compressed. The choice is guarded by the store's lock."""

    def __init__(self) -> None:
        self._seen: collections.Counter[tuple[Label, np.dtype]] = collections.Counter()
        self._random = random.Random(0)
        self._began_s = time.perf_counter()
        self._spent_s = 0.0

    def is_due(self, entry: Entry) -> bool:
        """Return whether a sample of this array is wanted. Called with the lock held."""
        origin = dataclasses.replace(entry.label, step=None), entry.dtype
        if not entry.nbytes or (len(self._seen) >= _ORIGINS_MAX and origin not in self._seen):
            return False
        self._seen[origin] += 1
        seen = self._seen[origin]
        may_spend_s = _AT_ONCE_S + _MOST_SHARE * (time.perf_counter() - self._began_s)
        return seen == 1 or (self._spent_s < may_spend_s and self._random.random() * seen < _FIRST)

    def took(self, seconds: float) -> None:
        """Note how long a sample took. Called with the lock held."""
        self._spent_s += seconds
