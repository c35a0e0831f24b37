"""Segments for tests: copies of what a store wrote, of all kinds of arrays."""

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label, View

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal((300, 500))

ARRAYS: dict[str, np.ndarray] = {
    "float32": np.maximum(NORMAL, 0).astype(np.float32),  # half of it compresses
    "float64": NORMAL[:100],
    "float16": NORMAL[:2].astype(np.float16),
    "bfloat16": NORMAL[:3].astype(ml_dtypes.bfloat16),
    "float8_e4m3fn": NORMAL[:3].astype(ml_dtypes.float8_e4m3fn),
    "int4": (NORMAL[0] * 2).clip(-8, 7).astype(np.int8).astype(ml_dtypes.int4),
    "big-endian": NORMAL[:3].astype(">f4"),
    "longdouble": NORMAL[:3].astype(np.longdouble),
    "int64": np.arange(70_000).reshape(7, 100, 100),
    "uint8": RNG.integers(0, 256, 1000, np.uint8),
    "bool": NORMAL[:5] > 0.5,
    "complex64": (NORMAL[:4] + 1j * NORMAL[4:8]).astype(np.complex64),
    "0-d": np.array(3.5),
    "empty": np.zeros((0, 4), np.float32),
    "dates": np.array(["2026-01-01", "NaT", "1969-07-20"], "M8[s]"),
    "spans": np.array([3, -1], "m8[ms]"),
    "text": np.array(["as it is", "\x1b[31mred"]),
    "bytes": np.array([b"ab", b"\x1bc"]),
    "records": np.array([(1, 2.0), (3, 4.0)], "i4,f8"),
    "not finite": np.array([np.nan, np.inf, -np.inf, 1.0, 2.0, np.nan]),
    "nothing finite": np.array([np.nan, np.inf]),
    "one value": np.full((3, 5), 7.25),
    "extremes": np.array([-1.7e308, 1.7e308, 1.6e308]),
}


def stored(place: Path, arrays: list[np.ndarray] | None = None, **options: Any) -> Path:
    """Return a copy of the one segment of a store that got `arrays`, or all of `ARRAYS`, in order."""
    store = DiskStore(place / "spill", ram_budget=0, **options)
    try:
        for number, array in enumerate(ARRAYS.values() if arrays is None else arrays):
            handle = store.put(array, label=Label("mul", "self", f"net.{number}", 3))
            handle.views.append(View("mul", "self", array.dtype.name, (1,), (array.itemsize,), 0))
        store.flush()
        (path,) = store.directory.glob("*.h5")
        return Path(shutil.copy(path, place / "segment-00000.h5"))
    finally:
        store.close()
