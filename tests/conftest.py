"""Every test leaves the process as it found it: no thread, no open HDF5 file, no saved-tensor hook."""

import gc
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from spillgrad_kernels.jit.compile import counts

# What needs the extra `cuda`, which may not be installed: none of it can even be imported then.
NEEDS_CUDA = (
    "cuda/*",
    *(f"kernels/cuda/test_{name}.py" for name in ("code", "integers", "machine_code")),
    *(f"kernels/cuda/driver/test_{name}.py" for name in ("availability", "driver")),
)
HAS_CUDA = importlib.util.find_spec("numba_cuda") is not None
collect_ignore_glob = [] if HAS_CUDA else list(NEEDS_CUDA)

# The kernels' thread team and the stores' I/O threads live as long as the process, and so does the thread of tqdm, by
# which PyTorch's compiler shows its progress where it is installed.
LASTING_THREADS = ("spillgrad-kernel-", "spillgrad-io-", "tqdm_monitor")
# A thread told to stop needs a moment to do so.
GRACE_S = 2.0


def threads() -> set[str]:
    return {
        f"thread {thread.name}"
        for thread in threading.enumerate()
        if not (thread.daemon and thread.name.startswith(LASTING_THREADS))
    }


def open_hdf5_objects() -> set[str]:
    if "h5py" not in sys.modules:
        return set()
    h5f = sys.modules["h5py"].h5f
    kinds = h5f.OBJ_FILE | h5f.OBJ_DATASET | h5f.OBJ_GROUP | h5f.OBJ_ATTR
    return {f"open HDF5 {type(found).__name__} {found.id}" for found in h5f.get_obj_ids(types=kinds)}


def saved_tensor_hooks() -> set[str]:
    hooks = sys.modules.get("spillgrad.autograd.core.hooks")
    return {f"saved-tensor hooks {level}" for level in range(hooks.depth())} if hooks else set()


WATCHED: tuple[Callable[[], set[str]], ...] = (threads, open_hdf5_objects, saved_tensor_hooks)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect tests without garbage collections, which would take a quarter of the time: all tests live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_kernels_seen = 0


def freeze_compiled() -> None:
    """Keep what Numba made out of later collections: it lives as long as the process, and there are millions of it."""
    global _kernels_seen
    kernels = counts.compiled + counts.loaded
    if kernels > _kernels_seen:
        _kernels_seen = kernels
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    freeze_compiled()
    before = {watch: watch() for watch in WATCHED}
    yield
    deadline, pause_s = time.monotonic() + GRACE_S, 0.01
    while left := set().union(*(watch() - before[watch] for watch in WATCHED)):
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: {', '.join(sorted(left))}")
        gc.collect()  # graphs in reference cycles hold files until they are collected
        time.sleep(pause_s)
        pause_s *= 2  # a collection holds the GIL, which a thread that is to end needs


def pytest_report_header() -> str | None:
    return None if HAS_CUDA else f"the extra cuda is not installed: {', '.join(NEEDS_CUDA)} are left out"
