"""Writes the results of benchmarks to JSON files, of which the site's pages are made."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write(folder: Path, benchmark: str, command: str, about: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Path:
    """Write the rows of a benchmark to a file in `folder`, and return its path.

    The file's name has the benchmark and the machine, so that each kind of machine has a file of its own. `about`
    describes the machine and the options. Raises OSError if the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{benchmark}-{slug(about)}.json"
    content = {"benchmark": benchmark, "command": command, "about": about, "rows": [_without_bars(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _without_bars(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its bars: they are this project's own goals, and no result."""
    return {key: value for key, value in row.items() if key != "bars"}


def slug(about: dict[str, Any]) -> str:
    """Return the machine's name for a file: its GPU, or its processor and the number of threads."""
    name = about.get("gpu") or f"{about['processor']} {about.get('threads', about['cores'])} threads"
    return re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")
