"""`spillgrad inspect --json`: the records of an inspection as JSON, as `docs/how_it_works/files.md` describes."""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from spillgrad.inspection.ranks import distributed_runs
from spillgrad.inspection.records import Inspection
from spillgrad.storage.origin_counters import Origin
from spillgrad_tools.inspect import ranks
from spillgrad_tools.inspect.groups import choose
from spillgrad_tools.paged import write

FORMAT = 1
# The number of pieces of text written at a time.
_AT_ONCE = 1000
_encode = json.JSONEncoder(allow_nan=False).encode


def of_runs(found: Inspection, by: str, sort: str | None, top: int | None) -> dict[str, Any]:
    """Return a document for `show` with the runs of an inspection; `by`, `sort` and `top` choose each run's groups."""
    runs = []
    for run in found.runs:
        # An origin cannot be the key of a JSON object.
        origins = [{**origin._asdict(), **_fields(moved)} for origin, moved in run.origins.items()]
        runs.append({**_fields(run), "origins": origins, "groups": choose(run, by, sort, top)})
    return {"path": found.path, "runs": runs, "distributed": [*map(ranks.as_dict, distributed_runs(found.runs))]}


def show(document: Mapping[str, Any]) -> None:
    """Print a document as strict JSON, with the format's version. Raises typer.Exit if the reader closed the pipe."""
    left = pieces(document)
    while some := "".join(itertools.islice(left, _AT_ONCE)):
        write(some)


def pieces(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text that `show` prints, in pieces; each record of a list has a line of its own."""
    yield from _lines({"format": FORMAT, **document}, "\n")
    yield "\n"


def _lines(value: Any, margin: str) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        value = _fields(value)
    inner = margin + "  "
    before = inner
    if isinstance(value, Mapping) and value:
        yield "{"
        for key, each in value.items():
            yield f"{before}{_encode(str(key))}: "
            yield from _lines(each, inner)
            before = "," + inner
        yield margin + "}"
    elif isinstance(value, list | tuple) and value:
        yield "["
        for each in value:
            yield before
            yield from _lines(each, inner) if isinstance(each, Mapping) else (_encode(plain(each)),)
            before = "," + inner
        yield margin + "]"
    else:
        yield _encode(plain(value))


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def plain(value: Any) -> Any:
    """Convert a record to JSON values: its fields become a dictionary, and numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int | str):  # most values are: checked early
        return value
    if dataclasses.is_dataclass(value):
        return plain(_fields(value))
    if isinstance(value, Origin):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value
