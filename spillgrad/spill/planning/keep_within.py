"""Watch the memory of the process, and give some back before the system ends the process."""

import threading
import time
import warnings
from collections.abc import Callable
from typing import Self

from spillgrad import user_line
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.storage.store_owner import StoreOwner
from spillgrad_kernels.memory import buffers

# Memory counts as scarce when less than this share, or than these bytes, is left: what a thread may take between two
# looks.
_LEFT_SHARE, _LEFT_BYTES = 0.03, 16 << 20
_LOOK_EVERY_S = 0.004
# Where no budget can fall, idle buffers go so often: they are wanted again soon, and then cost page faults.
_RELEASE_EVERY_S = 0.1
# A budget falls by at least this share of the first one, as each budget is simulated once.
_LEAST_FALL_SHARE = 1 / 16


class keep_within:
    """Keep the process within `ram` of memory, as far as memory can be given back.

    A context manager for the training. A thread looks at the memory of the process every four milliseconds. If little
    is left, it gives idle buffers back to the system; if that is not enough, the store's budget falls, and the store
    writes more to disk. It tells that once, in one line. No number of the training changes.

    Parameters
    ----------
    ram : int or str
        Memory of the whole process in bytes, or a size such as "4GiB".
    owner : disk_offload or save_on_disk, optional
        Whose budget may fall, to a sixteenth, but that of a `disk_offload` to no less than its `least_budget`. Without
        one, only idle buffers go.
    tell : callable, optional
        Function of the line; it is called in the thread. By default, the line is a warning.

    Raises
    ------
    BudgetError
        If the size does not parse.

    Notes
    -----
    The budget never rises again. What other libraries take, and what the model itself needs, cannot be given back:
    if that is too much, the process ends as it would have.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Linear(64, 64)
    >>> spill = sg.save_on_disk(ram_budget="1MiB")
    >>> with sg.planning.keep_within("4GiB", spill):
    ...     with spill:
    ...         loss = model(sg.ones(256, 64)).square().mean()
    ...     loss.backward()
    """

    def __init__(
        self, ram: int | str, owner: StoreOwner | None = None, tell: Callable[[str], None] | None = None
    ) -> None:
        self._ram_bytes = parse_bytes(ram)
        self._near_bytes = self._ram_bytes - max(int(self._ram_bytes * _LEFT_SHARE), _LEFT_BYTES)
        self._store: DiskStore | None = None if owner is None else owner._store
        self._first_budget = 0 if self._store is None else self._store.ram_budget
        # Not to nothing: a store that holds little at one moment would spill all from then on.
        least_bytes = int(self._first_budget * _LEAST_FALL_SHARE)
        self._least_budget = max(getattr(owner, "least_budget", 0), least_bytes)
        self._tell = self._warn if tell is None else tell
        self._place = "?", 0
        self._refused: Warning | None = None
        self._told = False
        self._next_release_s = 0.0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._done.clear()
        self._place = user_line.position()
        self._thread = threading.Thread(target=self._watch, name="spillgrad-keep-within", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
        if self._refused is not None:
            raise self._refused

    def _warn(self, line: str) -> None:
        """Warn at the line that began the watch; where warnings are errors, the end of the watch raises this one."""
        try:
            warnings.warn_explicit(line, UserWarning, *self._place)
        except UserWarning as error:
            self._refused = error

    def _watch(self) -> None:
        while not self._done.wait(_LOOK_EVERY_S):
            if rss_bytes() <= self._near_bytes or time.monotonic() < self._next_release_s:
                continue
            buffers.empty_cache()
            excess_bytes = rss_bytes() - self._near_bytes
            if self._store is None or self._store.ram_budget <= self._least_budget:
                self._next_release_s = time.monotonic() + _RELEASE_EVERY_S
            elif excess_bytes > 0:
                self._tighten(self._store, excess_bytes)

    def _tighten(self, store: DiskStore, excess_bytes: int) -> None:
        budget_bytes, used_bytes = store.ram_budget, store.ram_bytes
        if not used_bytes or used_bytes > budget_bytes:
            return  # the store has nothing to give, or has yet to follow the last fall
        fall_bytes = min(max(excess_bytes, int(self._first_budget * _LEAST_FALL_SHARE)), used_bytes)
        store.allow(max(self._least_budget, min(budget_bytes, used_bytes) - fall_bytes))
        buffers.empty_cache()
        if not self._told:
            self._told = True
            self._tell(
                f"memory: {format_bytes(self._near_bytes + excess_bytes)} of {format_bytes(self._ram_bytes)} were "
                f"taken; the store's budget fell from {format_bytes(budget_bytes)} to {format_bytes(store.ram_budget)}"
            )
