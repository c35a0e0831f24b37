"""Bring arrays back before they are asked for."""

import functools
from collections.abc import Iterable

from spillgrad.storage.residency.entry import Entry
from spillgrad.storage.state import Account
from spillgrad.storage.threads.loader import Loader

# Loads under way: while one waits for the disk, the next one's checksum is verified.
_LOADING_MAX = 2


class Prefetcher:
    """Loads what was asked for in advance, then what the schedule expects next.

    It loads only what fits the budget without evicting what is needed sooner, or, where a plan is known, what stays;
    and then no further ahead than the plan leaves room for. Everything is guarded by the account's lock.
    """

    def __init__(self, account: Account, loader: Loader) -> None:
        self._account = account
        self._loader = loader
        self._requested: dict[Entry, None] = {}  # in the order asked for
        self._loading = 0

    def request(self, entries: Iterable[Entry]) -> None:
        """Load these next, in this order."""
        self._requested.update(dict.fromkeys(entries))
        self.start_loads()

    def start_loads(self) -> None:
        """Have I/O threads load what there is room for. Who makes room later calls this again: `loads_wait` says so."""
        account = self._account
        while self._loading < _LOADING_MAX:
            entry = self._next()
            account.loads_wait = entry is not None  # from before it looks for room: some may be made meanwhile
            # Who waits for room goes first: else what is evicted for him is loaded again, before he has all he needs.
            if entry is None or account.waiting_puts:
                return
            if not account.cache.make_room(self._room_for(entry), for_rank=entry.rank):
                return
            account.loads_wait = False
            self._loader.begin(entry, pinned=False)
            self._loading += 1
            account.submit(functools.partial(self._load, entry))

    def _room_for(self, entry: Entry) -> int:
        """Return the room to wait for: what is put before a step's arrays are asked for would make them leave again."""
        was_asked_for = entry in self._requested
        schedule = self._account.cache.schedule
        waits = schedule.follows_plan and not (entry.lasting or was_asked_for)
        return _needs(entry) + (schedule.coming_bytes() if waits else 0)

    def _load(self, entry: Entry) -> None:
        self._loader.prefetch(entry)
        with self._account.lock:
            self._loading -= 1
            if not self._account.closing:
                self.start_loads()

    def _next(self) -> Entry | None:
        cache = self._account.cache
        while self._requested:
            wanted = next(iter(self._requested))
            if wanted.on_disk_only and wanted.references > 0 and _needs(wanted) <= cache.budget_bytes:
                return wanted
            del self._requested[wanted]
        cursor = cache.schedule.cursor
        if cursor is None:
            return None
        entry = cache.absent.below(cursor)
        while entry is not None and _needs(entry) > cache.budget_bytes:
            entry = cache.absent.below(entry.rank)
        return entry if entry is not None and cache.schedule.is_near(entry) else None


def _needs(entry: Entry) -> int:
    return entry.nbytes + entry.staging_bytes
