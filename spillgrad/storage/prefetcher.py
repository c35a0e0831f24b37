"""Bring arrays back before they are asked for."""

from collections.abc import Iterable

from spillgrad.storage.account import Account
from spillgrad.storage.entry import Entry
from spillgrad.storage.loader import Loader
from spillgrad.storage.worker import Worker


class Prefetcher:
    """Loads what was asked for in advance, then the newest array put before the one that was got last.

    It loads only what fits the budget without evicting anything that is needed sooner. Everything is guarded by the
    account's lock.
    """

    def __init__(self, account: Account, loader: Loader) -> None:
        self._account = account
        self._loader = loader
        self._requested: dict[Entry, None] = {}  # in the order asked for
        self.worker = Worker("spillgrad-prefetcher", account, self._loop)

    def request(self, entries: Iterable[Entry]) -> None:
        """Load these next, in this order."""
        self._requested.update(dict.fromkeys(entries))
        self.wake()

    def wake(self) -> None:
        """Start loading if there is anything to load."""
        if self._requested or (self._account.cache.cursor is not None and self._account.cache.absent):
            self.worker.start()
            self._account.prefetcher_bell.ring()

    def _loop(self) -> None:
        account = self._account
        while True:
            with account.lock:
                account.drain()
                if account.closing:
                    return
                entry = self._next()
                if entry is not None:
                    self._loader.begin(entry, pinned=False)
            if entry is None:
                account.prefetcher_bell.wait()
            else:
                self._loader.prefetch(entry)

    def _next(self) -> Entry | None:
        cache = self._account.cache
        while self._requested:
            wanted = next(iter(self._requested))
            if wanted.on_disk_only and wanted.references > 0 and wanted.nbytes <= cache.budget_bytes:
                return wanted if cache.make_room(wanted.nbytes, for_sequence=wanted.sequence) else None
            del self._requested[wanted]
        if cache.cursor is None:
            return None
        entry = cache.absent.before(cache.cursor)
        while entry is not None and entry.nbytes > cache.budget_bytes:
            entry = cache.absent.before(entry.sequence)
        if entry is None or not cache.make_room(entry.nbytes, for_sequence=entry.sequence):
            return None
        return entry
