"""`spillgrad inspect --json`: the records of an inspection as JSON, which `FORMAT.md` describes."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spillgrad.storage.inspection.records import Inspection, Run
from spillgrad.storage.moved import Origin
from spillgrad_tools.inspect_groups import Groups, choose

FORMAT = 1


def of_runs(found: Inspection, by: str, sort: str | None, top: int | None) -> dict[str, Any]:
    """Return the runs that were found, each with its groups."""
    return {"path": plain(found.path), "runs": [_of_run(run, choose(run, by, sort, top)) for run in found.runs]}


def _of_run(run: Run, groups: Groups) -> dict[str, Any]:
    # No key of a JSON object is an origin.
    origins = [{**plain(origin), **plain(moved)} for origin, moved in run.origins.items()]
    return {**plain(run), "origins": origins, "groups": plain(groups)}


def text(document: Mapping[str, Any]) -> str:
    """Return a document as strict JSON, with the version of what it looks like."""
    return json.dumps({"format": FORMAT, **document}, indent=2, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return a record as what JSON has: its fields by name, and null for a number that is not finite."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Origin):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
