"""Paths of modules in a model, such as `layers.3.attention`: which contain others, and which are alike."""

import re
from collections.abc import Iterator


def pattern(path: str) -> str:
    """Return a path with a star for each number, so that layers of one list have the same pattern."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def is_within(path: str, outer: str) -> bool:
    """Return whether the module at `path` is the module at `outer`, or inside that module."""
    return not outer or path == outer or path.startswith(outer + ".")


def around(path: str) -> Iterator[str]:
    """Yield the paths of the modules that contain the module at `path`, inner ones first; "" is the model's path."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def is_numbered(path: str) -> bool:
    """Return whether the module at `path` is an entry of a list of modules, such as a layer."""
    return path.rpartition(".")[2].isdigit()
