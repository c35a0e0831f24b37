"""The places where a stored array can be, as one enumeration, and the moves between them that are allowed.

A store holds arrays in one tier, and keeps the others in the tier below: RAM over disk, or a device over RAM.
"""

import enum


class Residence(enum.IntEnum):
    """Where the bytes of a stored array are, and what is being done with them."""

    NEW = 0  # entered, not placed yet
    ABOVE = 1  # in the store's tier only
    WRITING = 2  # in the store's tier; a thread is writing it to the tier below
    CALLERS = 3  # in the memory of a caller, who waits in `put` until it is written
    CALLERS_WRITING = 4  # the same; a thread is writing it
    BOTH = 5  # in both tiers
    LENT = 6  # in the tier below; callers hold a copy in the store's tier, the store does not
    BELOW = 7  # in the tier below only
    LOADING = 8  # below; a thread is reading it
    UNREADABLE = 9  # below only, and not prefetched: the last read failed, or it has no values yet
    CHANGING = 10  # in the store's tier; a caller is modifying it
    LOST = 11  # the values are lost, as its error says
    GONE = 12  # the last reference was dropped, and the store holds none of its bytes


# A lookup of these names takes a quarter of the time of a lookup in `Residence`.
NEW, ABOVE, WRITING, CALLERS, CALLERS_WRITING, BOTH, LENT = list(Residence)[:7]
BELOW, LOADING, UNREADABLE, CHANGING, LOST, GONE = list(Residence)[7:]

# The residences that may follow each residence. The tests of the store check every move against this table.
ALLOWED = {
    NEW: {ABOVE, CALLERS, UNREADABLE, CHANGING, GONE},
    ABOVE: {WRITING, BELOW, CHANGING, LOST, GONE},
    WRITING: {BOTH, ABOVE, LOST, GONE},  # dropped meanwhile: gone only when the write has ended
    CALLERS: {CALLERS_WRITING, ABOVE, LOST, GONE},
    CALLERS_WRITING: {BELOW, CALLERS, LOST, GONE},
    BOTH: {LENT, BELOW, CHANGING, GONE},
    LENT: {BELOW, LOADING, CHANGING, GONE},
    BELOW: {LOADING, CHANGING, GONE},
    LOADING: {BOTH, LENT, UNREADABLE, GONE},  # dropped meanwhile: gone only when the read has ended
    UNREADABLE: {BELOW, LOADING, CHANGING, GONE},
    CHANGING: {ABOVE, BOTH, GONE},
    LOST: {GONE},
    GONE: set(),
}
