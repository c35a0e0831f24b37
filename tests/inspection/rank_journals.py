"""Journals of ranks, written by hand."""

import json
from pathlib import Path
from typing import Any

ZERO_S = 1_795_862_060.0  # 2026-11-28 10:34:20 UTC
DURATION_S = 10.0
COMMAND = "spillgrad train --model tiny"


def write_journal(
    path: Path, rank: int | None, ranks: int = 3, waited: tuple[tuple[int, float], ...] = (), group: str | None = "g",
    zero_s: float | None = ZERO_S, error: float | None = 0.001, began: str = "2026-11-28T10:34:20+00:00",
    more: tuple[str, ...] = (), end: bool = True, **head: Any,
) -> Path:  # fmt: skip
    """Write the journal of a rank that sends 1000 bytes in collectives of a second, for which it waits for others."""
    told: list[dict[str, Any]] = [
        {"format": 2, "began": began, "host": "mill", "process": 100 + (rank or 0), "command": COMMAND,
         "version": "0.1.0", "budget": 1 << 20, **head},
    ]  # fmt: skip
    if rank is not None:
        told.append({"event": "rank", "rank": rank, "ranks": ranks, "group": group, "zero": zero_s, "error": error})
    told.append({"event": "phase", "phase": "forward", "t": 1.0})
    told.append({"event": "phase", "phase": None, "t": 2.0})
    told.append({"event": "sample", "ram": 1000 + (rank or 0), "peak_ram": 2000 + (rank or 0), "rss": 5000, "t": 2.0})
    for number, (other, waited_s) in enumerate(waited):
        told.append({
            "event": "collective", "what": f"gradients {number + 1} of {len(waited)}", "sent": 1000, "received": 500,
            "took": 1.0, "waited": waited_s, "slowest": other, "behind": 0.9, "t": 3.0 + 2 * number,
        })  # fmt: skip
    told.append({"event": "step", "took": 9.0, "number": 7, "step": 7, "moved": [1, 2, 3, 4, 5, 6, 7, 0, 0], "t": 9.5})
    lines = [*map(json.dumps, told), *more]
    if end:
        lines.append(json.dumps({"event": "end", "t": DURATION_S}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_ranks(folder: Path, ranks: int = 3) -> Path:
    """Write the journals of a run of three ranks, of which the last is slow and begins half a second later."""
    for rank in range(ranks):
        name = "journal.jsonl" if rank == 0 else f"journal-r{rank:03}.jsonl"
        slow = ranks - 1
        waited = ((0, 0.1), (1, 0.1)) if rank == slow else ((slow, 0.5), (slow, 0.75))
        write_journal(folder / name, rank, ranks, waited, zero_s=ZERO_S + 0.5 * (rank == slow))
    return folder
