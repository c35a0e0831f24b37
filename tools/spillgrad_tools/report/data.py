"""The data of a report's plots: memory and disk over time, and bytes by module."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from spillgrad.inspection.printable import printable
from spillgrad.inspection.records import Run, Sample
from spillgrad.storage.origin_counters import Origin, OriginCounters, total
from spillgrad_tools.inspect.words import RAM_PARTS, ram_parts

# The most samples that a page draws: a screen has fewer pixels in a row.
MOST_SAMPLES = 4_000
# The most tiles of a treemap, and its deepest level: a journal may hold forged module paths.
MOST_TILES = 1_000
DEEPEST = 12
ROOT, NO_MODULE, OTHERS = "everything", "(none)", "(others)"


def memory(run: Run, most_samples: int = MOST_SAMPLES) -> dict[str, Any]:
    """Return the bytes of each category that the store held over time, as columns. Units: microseconds and bytes.

    If there are more than `most_samples` samples, return only the extremes of each stretch of time.
    """
    samples = run.samples if len(run.samples) <= most_samples else _extremes(run.samples, most_samples)
    columns: dict[str, Any] = {"t": [round(sample.t * 1e6) for sample in samples]}
    parts = [ram_parts(sample) for sample in samples]
    columns |= {name: [each[name] for each in parts] for name in RAM_PARTS}
    for name in ("ram", "rss", "live", "disk"):
        columns[name] = [getattr(sample, f"{name}_bytes") for sample in samples]
    return {**columns, "budget": run.settings.budget_bytes, "samples": len(run.samples)}


def _extremes(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Return the samples with the largest or smallest values of each stretch of time, and the first and last sample."""
    held = np.array([[s.ram_bytes, s.hot_bytes, s.live_bytes, s.disk_bytes, s.rss_bytes] for s in samples])
    kept = {0, len(samples) - 1}
    stretches = max(1, (most - 2) // (2 * held.shape[1]))
    for places in np.array_split(np.arange(len(samples)), stretches):
        stretch = held[places]
        kept.update((places[0] + np.concatenate([stretch.argmax(0), stretch.argmin(0)])).tolist())
    return [samples[place] for place in sorted(kept)]


Path = tuple[str, ...]


def modules(origins: dict[Origin, OriginCounters], most_tiles: int = MOST_TILES) -> dict[str, Any]:
    """Return the counters of modules and operations as columns of a tree: module paths are split at dots.

    `parent` is the row of the parent, or -1 for the root. If there are more than `most_tiles` operations, the smallest
    share one tile. Units: bytes and microseconds.
    """
    leaves: dict[Path, list[OriginCounters]] = {}
    for origin, moved in origins.items():
        parts = origin.module.split(".", DEEPEST - 1) if origin.module else [NO_MODULE]
        leaves.setdefault((*parts, f"{origin.op or 'array'}()"), []).append(moved)
    sums = {path: total(parts) for path, parts in leaves.items()}
    largest = sorted(sums, key=lambda path: -sums[path].packed_bytes)
    tree: dict[Path, list[int]] = {(): [0, 0, 0, 0]}
    for rank, leaf in enumerate(largest):
        path = leaf if rank < most_tiles else (OTHERS,)
        moved = sums[leaf]
        values = (moved.packed_bytes, moved.written_bytes, moved.read_bytes, round(moved.wait_s * 1e6))
        for depth in range(len(path) + 1):
            node = tree.setdefault(path[:depth], [0, 0, 0, 0])
            node[:] = [former + value for former, value in zip(node, values, strict=True)]
    kept = _without_chains(tree)
    number = {path: place for place, path in enumerate(kept)}
    packed, written, read, waited = (list(column) for column in zip(*(tree[path] for path in kept), strict=True))
    return {
        "parent": [number[parent] if parent is not None else -1 for parent in kept.values()],
        "label": [_label(path, parent) for path, parent in kept.items()],
        "path": [printable(".".join(path)) if path else ROOT for path in kept],
        "packed": packed,
        "written": written,
        "read": read,
        "waited": waited,
        "left_out": max(0, len(largest) - most_tiles),
    }


def _without_chains(tree: Iterable[Path]) -> dict[Path, Path | None]:
    """Return a dictionary from each path to show to its parent; a module that holds only one module is left out."""
    children: dict[Path, list[Path]] = {path: [] for path in tree}
    for path in children:
        if path:
            children[path[:-1]].append(path)
    kept: dict[Path, Path | None] = {(): None}
    for path in children:
        if path and not (len(children[path]) == 1 and children[children[path][0]]):
            parent = path[:-1]
            while parent not in kept:
                parent = parent[:-1]
            kept[path] = parent
    return kept


def _label(path: Path, parent: Path | None) -> str:
    """Return a tile's label: the part of `path` below `parent`; if it begins with a number, also the name before."""
    if parent is None:
        return ROOT
    begin = len(parent)
    if path[begin].isdigit() and begin:
        begin -= 1
    return printable(".".join(path[begin:]), 60)
