"""Read a journal that this user's run wrote, line by line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spillgrad.storage.format_version import check_version
from spillgrad.storage.journal.files import FORMAT_VERSION, JOURNAL_NAME, has_others_beside, is_of, old_path


def read_journal(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's journal as dicts, those of the older file first.

    Lines that were cut off, or are not JSON objects, are left out, and so is an older file of another run.

    Parameters
    ----------
    run : Path
        The run's directory, or the path of the journal.

    Yields
    ------
    dict
        A line.

    Raises
    ------
    SpillFormatError
        For a file of an unknown version.
    OSError
        If a file cannot be read.
    """
    directory = run if run.is_dir() else None
    journal = run if directory is None else Path(os.path.realpath(run / JOURNAL_NAME))
    is_alone = journal.exists() and has_others_beside(journal)
    for path in (journal,) if is_alone else (old_path(journal), journal):
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            continue
        for line in text.splitlines():
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                if "format" in found:
                    check_version(path, found["format"], FORMAT_VERSION)
                    if directory is not None and not is_of(directory, found.get("run")):
                        break
                yield found
