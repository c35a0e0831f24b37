"""`spillgrad verify`: check that the stored bytes are the bytes that were written."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.text import Text

from spillgrad.inspection.printable import printable
from spillgrad.inspection.verify import Problem, Verification, verify
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect import json_output
from spillgrad_tools.paged import show
from spillgrad_tools.quantities import many

_PATH_LENGTH = 4096


def run(path: Path, as_json: bool) -> bool:
    """Verify the files at a path and print the result; return False for a problem. Raises the errors of `verify`."""
    console = Console()
    with Console(stderr=True).status("") as status:
        found = verify(path, lambda file: status.update(Text(f"reading {printable(str(file))}")))
    if as_json:
        json_output.show(as_dict(found))
    else:
        show(console, Group(*(Text(line, style, no_wrap=True, overflow="ignore") for line, style in _lines(found))))
    return not found.problems


def as_dict(found: Verification) -> dict[str, object]:
    """Return a verification as `--json` prints it."""

    def listed(problems: list[Problem]) -> list[dict[str, str | None]]:
        return [{**vars(one), "path": str(one.path)} for one in problems]

    lists = {name: listed(getattr(found, name)) for name in ("problems", "changed", "notes")}
    counts = {name: value for name, value in vars(found).items() if name != "path" and name not in lists}
    return {"path": str(found.path), "ok": not found.problems, **counts, **lists}


def _lines(found: Verification) -> Iterator[tuple[str, str]]:
    """Yield the lines to print, each with its style: problems, notes, and how much was checked."""
    for title, problems in (("wrong", found.problems), ("changed meanwhile", found.changed), ("note", found.notes)):
        for one in problems:
            place = printable(str(one.path), _PATH_LENGTH) + (f"/{printable(one.key)}" if one.key is not None else "")
            yield f"{title}: {place}: {printable(one.what, _PATH_LENGTH)}", ""
    told = {"with a verified checksum": found.verified, "encrypted, as they were stored": found.encrypted}
    told["without a checksum"] = found.unverified
    parts = ", ".join(f"{count:,} {what}" for what, count in told.items() if count)
    arrays = f"{many(found.arrays, 'array')} in {many(found.segments, 'segment')}{parts and ': '}{parts}"
    lines = f"{many(found.journal_lines, 'line')} in {many(found.journals, 'journal')}"
    yield f"checked {arrays}; {format_bytes(found.checked_bytes)} read; {lines}", ""
    wrong = len(found.problems)
    yield (many(wrong, "problem"), "bold red") if wrong else ("nothing is wrong", "green")
