"""Read arrays back before callers ask for them."""

import functools
from collections.abc import Iterable

from spillgrad.storage.disk.entry import DiskEntry
from spillgrad.storage.state import StoreState
from spillgrad.storage.threads.loader import Loader
from spillgrad.storage.threads.room import Room

# How many arrays are loaded at once: while one waits for the disk, the checksum of the other is verified.
_LOADING_MAX = 2
# How many arrays in a row that are larger than the whole budget are passed over. Without a limit, each use of an array
# would look at all others if the budget is 0.
_PASSED_OVER_MAX = 16


class Prefetcher:
    """Loads the arrays that were requested, then the arrays that the schedule expects next.

    It loads only what fits the budget without evicting an array that is needed sooner. If a plan is known, it evicts no
    array that stays until its next use, and loads only as early as the plan leaves room. The store's lock guards
    everything.
    """

    def __init__(self, state: StoreState, loader: Loader, room: Room) -> None:
        self._state = state
        self._loader = loader
        self._room = room
        self._requested: dict[DiskEntry, None] = {}  # in the order of the requests
        self._loading = 0

    def request(self, entries: Iterable[DiskEntry]) -> None:
        """Load `entries` next, in this order."""
        self._requested.update(dict.fromkeys(entries))
        self.start_loads()

    def start_loads(self) -> None:
        """Have I/O threads load what fits. Sets `load_waits` if an array waits: call this again once there is room."""
        state = self._state
        while self._loading < _LOADING_MAX:
            entry = self._next()
            state.load_waits = entry is not None  # set before the search for room: room may be made meanwhile
            # Callers that wait come first. Otherwise an array evicted for one of them would be loaded again at once.
            if entry is None or self._room.waiting_puts:
                return
            if not state.tier.make_room(self._room_for(entry), for_rank=entry.rank):
                return
            state.load_waits = False
            self._loader.begin(entry, pinned=False)
            self._loading += 1
            state.submit(functools.partial(self._load, entry))

    def _room_for(self, entry: DiskEntry) -> int:
        """Return how many bytes must be free before an entry is loaded.

        Arrays that will be put before the step uses any array would evict the entry again, so they need room too; so
        does what callers will count for themselves before they use the entry.
        """
        schedule = self._state.schedule
        if entry in self._requested or not schedule.follows_plan:
            return entry.loading_bytes
        coming_bytes = 0 if entry.persistent else schedule.coming_bytes()
        return entry.loading_bytes + schedule.room_bytes(entry) + coming_bytes

    def _load(self, entry: DiskEntry) -> None:
        self._loader.prefetch(entry)
        with self._state.lock:
            self._loading -= 1
            if not self._state.closing:
                self.start_loads()

    def _next(self) -> DiskEntry | None:
        tier, schedule = self._state.tier, self._state.schedule
        while self._requested:
            wanted = next(iter(self._requested))
            if wanted.is_below_only and wanted.loading_bytes <= tier.budget_bytes:
                return wanted
            del self._requested[wanted]
        if schedule.cursor is None:
            return None
        entry = tier.absent.below(schedule.cursor)
        for _ in range(_PASSED_OVER_MAX):
            if entry is None:
                return None
            if entry.loading_bytes <= tier.budget_bytes:
                return entry if schedule.is_near(entry) else None
            entry = tier.absent.below(entry.rank)
        return None
