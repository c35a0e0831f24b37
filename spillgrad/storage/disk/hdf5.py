"""h5py's low-level modules (`h5f h5d h5p h5s h5t h5a h5fd`), loaded on first use so that imports are quick."""

from typing import Any


def load() -> Any:
    """Import h5py and return it."""
    import h5py

    return h5py


def __getattr__(name: str) -> Any:
    if not name.startswith("h5"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = globals()[name] = getattr(load(), name)  # found at once from now on
    return module
