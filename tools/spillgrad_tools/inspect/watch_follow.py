"""Choose the run to watch: the newest live run and, after its end, the next run that begins."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from spillgrad.errors import SpillError
from spillgrad.inspection.ranks import distributed_runs
from spillgrad.inspection.records import Run
from spillgrad.inspection.runs import RunReader, find_runs, goes_on
from spillgrad.storage.runs.run_directory import LOCK_NAME
from spillgrad_tools.inspect.watch_view import Watched
from spillgrad_tools.inspect.words import died, swept_by

# How often to look for further ranks of a run, while some are missing.
_SEARCH_EVERY_S = 1.0


class Follower:
    """Follows a run, all ranks of it, by reading the new lines of its journals, and opens no other file.

    When the run has ended and another run at the path is live, the follower switches to the other run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._readers: dict[Path, RunReader] = {}  # of one run: one reader for each rank that was found
        self._last: Watched | None = None
        self._news_s: dict[Path, float] = {}  # when each journal last grew, by `time.monotonic`
        self._search_at_s = 0.0  # when to look for more ranks

    def look(self) -> Watched | None:
        """Read the new lines, and return the present state of the run; None while there is no run.

        Raises OSError if a file cannot be read. Raises SpillFormatError if it is no journal, or is of a newer version.
        """
        if self._readers:
            self._last = self._take_in_all()
        if not self._readers:
            self._find()
        return self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        self._news_s.clear()

    def _take_in_all(self) -> Watched:
        """Return the present state of the lowest rank that lives, with all ranks; let go of a run that has ended."""
        found = [self._take_in(reader) for reader in self._readers.values()]
        if time.monotonic() >= self._search_at_s:
            found += self._further_ranks(found)
            self._search_at_s = time.monotonic() + _SEARCH_EVERY_S
        ranks = distributed_runs(watched.run for watched in found)
        by_path = {watched.run.path: watched for watched in found}
        together = [by_path[run.path] for run in ranks[0].ranks.values()] if ranks else found[:1]
        shown = next((each for each in together if each.ended is None), together[0])
        if shown.ended is not None:
            self._let_go()
        return dataclasses.replace(shown, ranks=ranks[0] if ranks else None)

    def _take_in(self, reader: RunReader) -> Watched:
        """Read the new lines of a journal, and return the present state of its run."""
        with contextlib.suppress(FileNotFoundError):  # the journal was removed
            if reader.read():
                self._news_s[reader.path] = time.monotonic()
        run = reader.run()
        waited_s = time.monotonic() - self._news_s[reader.path] if run.state == "live" else 0.0
        return Watched(run, run.duration_s + waited_s, reader.phase, _ended(run), reader.step)

    def _further_ranks(self, found: Sequence[Watched]) -> list[Watched]:
        """Follow ranks of the same run that are not followed yet, and return their present state."""
        first = found[0].run
        if first.rank is None or len(found) >= first.rank.ranks:
            return []
        ranks = {watched.run.rank.rank for watched in found if watched.run.rank is not None}
        further = []
        for place in self._places():
            if place in self._readers or (reader := self._open(place)) is None:
                continue
            watched = self._take_in(reader)
            rank = watched.run.rank
            together = distributed_runs([first, watched.run])
            if rank is None or rank.rank in ranks or len(together) != 1 or len(together[0].ranks) != 2:
                reader.close()
                continue
            self._readers[place] = reader
            ranks.add(rank.rank)
            further.append(watched)
        return further

    def _open(self, place: Path) -> RunReader | None:
        """Begin to follow a run; return None if its journal was removed meanwhile."""
        try:
            reader = RunReader(place)
        except FileNotFoundError:
            return None
        self._news_s[place] = time.monotonic()
        return reader

    def _find(self) -> None:
        """Follow the newest live run. If no run is live and none was shown yet, show how the newest run ended."""
        places = self._places()
        place = next(filter(goes_on, places), None)
        if place is None:
            if self._last is not None or not places:
                return
            place = places[0]
        reader = self._open(place)
        if reader is None:  # the next look searches again
            return
        self._readers[place] = reader
        self._search_at_s = 0.0
        found = self._take_in_all()
        if found.ended is None or self._last is None:
            self._last = found

    def _places(self) -> list[Path]:
        """Return the directories or journals of all runs at the path, the newest first."""
        try:
            found = find_runs(self._path)
        except (FileNotFoundError, SpillError):  # there is no run
            return []
        return sorted((place for place in found if place.exists()), key=_began_ns, reverse=True)


def _began_ns(place: Path) -> int:
    """Return a time to sort runs by, in ns: when the run began or, for a journal, when it was last written."""
    try:
        return os.stat(place / LOCK_NAME if place.is_dir() else place).st_mtime_ns
    except FileNotFoundError:
        return 0


def _ended(run: Run) -> str | None:
    """Return in words how a run ended; None while the run is live."""
    if run.state == "live":
        return None
    if run.state == "finished":
        return "it finished: its store was closed"
    if not run.path.exists():
        return "it ended, and its files are gone"
    return f"its process died{swept_by(run)}" if run.folder is not None else died(run)
