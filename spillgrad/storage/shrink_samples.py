"""What lossless compression would make of arrays that are stored as they are: for who looks at the journal."""

import collections
import dataclasses

import numpy as np

from spillgrad.storage.codecs import Lossless
from spillgrad.storage.entry import Entry
from spillgrad.storage.journal import Journal
from spillgrad.storage.store import Label

# Of the arrays of one origin the first is sampled, the eighth, and so on: 0.3 ms each, some more where it would pay.
_FACTOR = 8
_ORIGINS_MAX = 500  # nobody reads many more


class ShrinkSamples:
    """Tells the journal, of some arrays, what a sample shrinks to. Any thread may call it."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._seen: collections.Counter[tuple[Label, np.dtype]] = collections.Counter()

    def see(self, entry: Entry, array: np.ndarray) -> None:
        """Sample the array of an entry, if one like it is due."""
        origin = dataclasses.replace(entry.label, step=None), array.dtype
        if len(self._seen) >= _ORIGINS_MAX and origin not in self._seen:
            return
        self._seen[origin] += 1
        seen = self._seen[origin]
        while seen % _FACTOR == 0:
            seen //= _FACTOR
        if seen == 1:
            sampled, shrunk = Lossless().sample(array)
            self._journal.note("shrink", entry.sequence, f', "sampled": {sampled}, "shrunk": {shrunk}')
