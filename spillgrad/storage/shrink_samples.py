"""Of which arrays, stored as they are, it is tried what lossless compression makes: for who looks at the journal."""

import collections
import dataclasses

import numpy as np

from spillgrad.storage.entry import Entry
from spillgrad.storage.store import Label

# Of the arrays of one origin the first is sampled, the eighth, and so on: 0.3 ms each, some more where it would pay.
_FACTOR = 8
_ORIGINS_MAX = 500  # nobody reads many more


class ShrinkSamples:
    """Chooses arrays of which a sample is compressed. The choice is guarded by the store's lock."""

    def __init__(self) -> None:
        self._seen: collections.Counter[tuple[Label, np.dtype]] = collections.Counter()

    def is_due(self, entry: Entry) -> bool:
        """Return whether a sample of this array is wanted. Called with the lock held."""
        origin = dataclasses.replace(entry.label, step=None), entry.dtype
        if not entry.nbytes or (len(self._seen) >= _ORIGINS_MAX and origin not in self._seen):
            return False
        self._seen[origin] += 1
        seen = self._seen[origin]
        while seen % _FACTOR == 0:
            seen //= _FACTOR
        return seen == 1
