"""JSON that no program of ours wrote."""

import copy
import json
import random
from pathlib import Path
from typing import Any

import xxhash

HUGE = 10**400
JUNK = [
    None, True, -1, 0, 1, 2**31, 2**64, HUGE, 0.5, -0.0, 1e308, float("inf"), float("nan"), "", "x", "0", "1e9", "\0",
    "cuda:99", "../../x", [], [0], [[]], ["a", "b"], [[1, 2, 3]], {}, {"a": 1}, {"tensor": 0}, {"tensor": 99},
    {"dict": {"tensor": -1}}, {"a": 1, "b": 2},
]  # fmt: skip


def deep(levels: int) -> Any:
    """Return lists and objects in one another."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"dict": {"a": value}}
    return value


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a value read from JSON, as a container and a key."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            keys = list(each) if isinstance(each, dict) else range(len(each))
            found += [(each, key) for key in keys]
            waiting += [each[key] for key in keys]
    return found


def altered(value: Any, rng: random.Random) -> Any:
    """Return a copy of a value read from JSON, a few places of which hold something else, or are gone."""
    value = {"it": copy.deepcopy(value)}
    for _ in range(rng.choice((1, 1, 2, 4))):
        container, key = rng.choice(nodes(value))
        choice = rng.random()
        if choice < 0.15 and container is not value:
            del container[key]
        elif choice < 0.25:
            other, place = rng.choice(nodes(value))
            container[key] = copy.deepcopy(other[place])
        elif choice < 0.3:
            container[key] = deep(rng.choice((30, 120)))
        elif choice < 0.4 and isinstance(container, dict) and container is not value:
            container[rng.choice(("", "x", "00", "9" * 30, "array", "list"))] = container.pop(key)
        else:
            container[key] = copy.deepcopy(rng.choice(JUNK))
    return value["it"]


def rewrite(folder: Path, state: Any, **pointed: object) -> None:
    """Have a checkpoint's version's state, or JSON text, say something else, with the right checksum."""
    text = state if isinstance(state, str) else json.dumps(state)
    (folder / "state.json").write_text(text)
    pointer = json.loads((folder.parent / "checkpoint.json").read_text())
    checksum = xxhash.xxh3_128_hexdigest(text.encode())
    (folder.parent / "checkpoint.json").write_text(json.dumps({**pointer, "checksum": checksum, **pointed}))
