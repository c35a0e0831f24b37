"""Choose the run to watch: the newest live run and, after its end, the next run that begins."""

import contextlib
import os
import time
from pathlib import Path
from typing import Self

from spillgrad.errors import SpillError
from spillgrad.inspection.records import Run
from spillgrad.inspection.runs import RunReader, find_runs, goes_on
from spillgrad.storage.runs.run_directory import LOCK_NAME
from spillgrad_tools.inspect.watch_view import Watched
from spillgrad_tools.inspect.words import died, swept_by


class Follower:
    """Follows a run by reading the new lines of its journal, and opens no other file.

    When the run has ended and another run at the path is live, the follower switches to the other run.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader: RunReader | None = None
        self._last: Watched | None = None
        self._news_s = 0.0  # when the journal last grew, by `time.monotonic`

    def look(self) -> Watched | None:
        """Read the new lines, and return the present state of the run; None while there is no run.

        Raises OSError if a file cannot be read. Raises SpillFormatError if it is no journal, or is of a newer version.
        """
        if self._reader is not None:
            self._last = self._take_in(self._reader)
        if self._reader is None:
            self._find()
        return self._last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _take_in(self, reader: RunReader) -> Watched:
        """Read the new lines and return the present state of the run; close the reader if the run has ended."""
        with contextlib.suppress(FileNotFoundError):  # the journal was removed
            if reader.read():
                self._news_s = time.monotonic()
        run = reader.run()
        now_s = run.duration_s + (time.monotonic() - self._news_s if run.state == "live" else 0.0)
        watched = Watched(run, now_s, reader.phase, _ended(run), reader.step)
        if watched.ended is not None:
            self._let_go()
        return watched

    def _find(self) -> None:
        """Follow the newest live run. If no run is live and none was shown yet, show how the newest run ended."""
        places = self._places()
        place = next(filter(goes_on, places), None)
        if place is None:
            if self._last is not None or not places:
                return
            place = places[0]
        try:
            self._reader = RunReader(place)
        except FileNotFoundError:  # the journal was removed meanwhile: the next look searches again
            return
        self._news_s = time.monotonic()
        found = self._take_in(self._reader)
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
