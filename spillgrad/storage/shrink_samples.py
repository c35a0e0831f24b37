"""What lossless compression would make of arrays that are stored as they are: for who looks at the journal."""

import collections
import dataclasses
import random
import time

import numpy as np

from spillgrad.storage.codecs import Lossless
from spillgrad.storage.entry import Entry
from spillgrad.storage.journal import Journal
from spillgrad.storage.store import Label

# Of one origin the first arrays are sampled, then fewer and fewer, at random: what a step stores comes in the same
# order each time, so that every eighth array, say, may always be the same one.
_FIRST = 8
# Beyond the first of each origin, samples take no more than this share of the time, at 0.3 ms each.
_MOST_SHARE = 0.02
_AT_ONCE_S = 0.05
_ORIGINS_MAX = 500  # nobody reads many more


class ShrinkSamples:
    """Tells the journal, of some arrays, what a sample shrinks to. Any thread may call it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: collections.Counter[tuple[Label, np.dtype]] = collections.Counter()
        self._random = random.Random(0)
        self._began_s = time.perf_counter()
        self._spent_s = 0.0

    def see(self, entry: Entry, array: np.ndarray) -> None:
        """Sample the array of an entry, if one like it is due."""
        origin = dataclasses.replace(entry.label, step=None), array.dtype
        if len(self._seen) >= _ORIGINS_MAX and origin not in self._seen:
            return
        self._seen[origin] += 1
        seen = self._seen[origin]
        began_s = time.perf_counter()
        may_spend_s = _AT_ONCE_S + _MOST_SHARE * (began_s - self._began_s)
        if seen == 1 or (self._spent_s < may_spend_s and self._random.random() * seen < _FIRST):
            sampled, shrunk = Lossless().sample(array)
            self._journal.note("shrink", entry.sequence, f', "sampled": {sampled}, "shrunk": {shrunk}')
            self._spent_s += time.perf_counter() - began_s
