"""Where a stored array is, as one enumeration, and how it may go from one place to another."""

import enum


class Residence(enum.IntEnum):
    """Where the bytes of a stored array are, and what is being done with them."""

    NEW = 0  # entered, not placed yet
    RAM = 1  # in RAM only
    WRITING = 2  # in RAM; a thread is writing it
    CALLERS = 3  # in the memory of a caller, who waits in `put` until it is written
    CALLERS_WRITING = 4  # the same; a thread is writing it
    BOTH = 5  # in RAM and on disk
    LENT = 6  # on disk; callers hold the copy in RAM, the store does not
    DISK = 7  # on disk only
    LOADING = 8  # on disk; a thread is reading it
    UNREADABLE = 9  # on disk only; the last read failed, so it is not prefetched again
    CHANGING = 10  # in RAM; a caller is modifying it
    LOST = 11  # the values are lost, as its error says
    GONE = 12  # the last reference was dropped, and the store holds none of its bytes


# As names of this module they take a quarter of the time to look up.
NEW, RAM, WRITING, CALLERS, CALLERS_WRITING, BOTH, LENT = list(Residence)[:7]
DISK, LOADING, UNREADABLE, CHANGING, LOST, GONE = list(Residence)[7:]

# The places that an array may go to, by where it is. The tests of the store check every move against this table.
ALLOWED = {
    NEW: {RAM, CALLERS, CHANGING, GONE},
    RAM: {WRITING, CHANGING, LOST, GONE},
    WRITING: {BOTH, RAM, LOST, GONE},  # dropped meanwhile: gone only when the write has ended
    CALLERS: {CALLERS_WRITING, RAM, LOST, GONE},
    CALLERS_WRITING: {DISK, CALLERS, LOST, GONE},
    BOTH: {LENT, DISK, CHANGING, GONE},
    LENT: {DISK, LOADING, CHANGING, GONE},
    DISK: {LOADING, CHANGING, GONE},
    LOADING: {BOTH, LENT, UNREADABLE, GONE},  # dropped meanwhile: gone only when the read has ended
    UNREADABLE: {LOADING, CHANGING, GONE},
    CHANGING: {RAM, BOTH, GONE},
    LOST: {GONE},
    GONE: set(),
}
