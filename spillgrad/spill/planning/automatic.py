"""The policy "auto": spill everything at first, then recompute layers if steps wait for the disk."""

import collections
import dataclasses
import functools
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from spillgrad.autograd.core.grad_mode import is_recording
from spillgrad.autograd.recompute.region import checkpoint, is_in_region
from spillgrad.fork_safe_lock import ForkSafeLock
from spillgrad.nn.module import Module
from spillgrad.spill.planning.choose import choose
from spillgrad.spill.planning.record import Recorder
from spillgrad.storage.counters import StepTraffic
from spillgrad.storage.disk_store import DiskStore
from spillgrad.tensor import Tensor

# In the first step kernels compile, and memory is touched for the first time, so its times are not used.
_MEASURED_STEPS = 2
# If a step waits for the disk for less than this share of its time, there is nothing to gain. A longer wait may be
# chance, unless the step before waited too, or the share is more than `_LONG_WAIT_SHARE`.
_WAIT_SHARE = 0.05
_LONG_WAIT_SHARE = 0.25
# A choice is given up if it made steps longer by more than this share, which is more than noise.
_WORSE_SHARE = 0.05
# The first step after a choice is not judged: it still follows the schedule of the steps before.
_JUDGED_STEPS = 3


@dataclasses.dataclass(eq=False)
class _Run:
    """What one thread has recorded in the present step, which began when the store was last empty."""

    known: "_Known"
    recorder: Recorder | None
    recomputed: frozenset[str]
    forward_s: float = 0.0
    is_over: bool = False


class _Known:
    """The measured steps, and the modules to recompute, for one combination of model, input size, budget and disk.

    To keep steps alike, the choice changes at most twice: first, from recomputing nothing to recomputing some modules;
    then, if this made steps longer, back to recomputing nothing, for good.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.recomputed: frozenset[str] = frozenset()
        self.settled = False
        self._budget_bytes = budget_bytes
        self._steps = self._waiting_steps = 0
        self._step_s: list[float] = []  # the times of the measured steps with the present choice
        self._former_s = 0.0

    def learn(self, run: _Run, step: StepTraffic) -> None:
        """Record the time of a finished step, and update the choice of modules to recompute."""
        if self.settled or run.recomputed != self.recomputed:
            return
        self._steps += 1
        if self._steps < _MEASURED_STEPS:
            return
        self._step_s.append(step.seconds)
        if self.recomputed:
            if len(self._step_s) == _JUDGED_STEPS:
                self._judge(min(self._step_s))
            return
        waited_share = step.waited_s / step.seconds
        self._waiting_steps = self._waiting_steps + 1 if waited_share > _WAIT_SHARE else 0
        if run.recorder is not None and (self._waiting_steps > 1 or waited_share > _LONG_WAIT_SHARE):
            self._choose(run.recorder, run.forward_s, step)

    def _choose(self, recorder: Recorder, forward_s: float, step: StepTraffic) -> None:
        spilled_bytes = max(0, recorder.saved_bytes - self._budget_bytes)
        write_rate = step.written_bytes / step.writing_s if step.writing_s else float("inf")
        read_rate = step.read_bytes / step.reading_s if step.reading_s else float("inf")
        backward_s = max(0.0, step.seconds - step.waited_s - forward_s)

        def step_s(freed_bytes: int, seconds: float) -> float:
            nbytes = max(0, spilled_bytes - freed_bytes)
            return max(forward_s, nbytes / write_rate) + max(backward_s + seconds, nbytes / read_rate)

        self.recomputed = choose(recorder.units(), step_s).paths
        self._former_s = min(self._step_s)
        self._step_s.clear()

    def _judge(self, step_s: float) -> None:
        if step_s > self._former_s * (1 + _WORSE_SHARE):
            self.recomputed = frozenset()
        self.settled = True


class _Thread(threading.local):
    run: _Run | None = None
    entered_s = 0.0
    depth = 0


# The measured steps of each model, by its first sub-module; and finished steps that `begin` has not evaluated yet.
_known: "weakref.WeakKeyDictionary[Module, dict[Hashable, _Known]]" = weakref.WeakKeyDictionary()
_lock = ForkSafeLock()
_finished: collections.deque[tuple[_Run, StepTraffic]] = collections.deque()


class Automatic:
    """The policy "auto" of `save_on_disk`: recompute nothing at first, then the modules that measured steps suggest.

    A step is a forward and a backward; it ends when the store is empty again. An update may follow several steps. From
    the second step on, the policy measures the bytes that each module saves, the time of its forward, the speed of the
    disk, and the time for which the step waits for the disk. If steps wait, `choose` decides which modules to
    recompute. If this makes steps slower, nothing is recomputed any more. A step of several threads is not measured.
    """

    def __init__(self, store: DiskStore, device: int) -> None:
        self._store = store
        self._device = device
        self._thread = _Thread()
        self._runs: collections.deque[_Run] = collections.deque()  # of all threads, in the present step

    def keeps(self, operation: str, path: str) -> bool:
        """Return False: this policy keeps no tensor in RAM in addition to the budget."""
        return False

    def begin(self) -> None:
        """Begin to measure, when this thread enters `save_on_disk`; first evaluate the steps that have finished."""
        with _lock:
            while _finished:
                run, step = _finished.popleft()
                run.known.learn(run, step)
        thread = self._thread
        thread.depth += 1
        if thread.depth == 1:
            thread.entered_s = self._now_s()

    def end(self) -> None:
        """Stop measuring, when this thread leaves `save_on_disk`."""
        thread = self._thread
        thread.depth = max(0, thread.depth - 1)
        if thread.depth == 0 and thread.run is not None:
            thread.run.forward_s += self._now_s() - thread.entered_s

    def _now_s(self) -> float:
        """Return a time in seconds that does not advance while a thread waits for the disk."""
        return time.perf_counter() - self._store.waited_s

    def saved(self, path: str, key: Hashable, nbytes: int) -> None:
        """Record that an operation in the module at `path` saves `nbytes` of memory, which `key` identifies."""
        run = self._thread.run
        if run is not None and run.recorder is not None:
            run.recorder.save(path, key, nbytes)

    def around(self, path: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the forward of the module at `path`; if the module was chosen, let backward recompute the forward."""
        if not is_recording():
            return forward(*args, **kwargs)
        run = self._thread.run
        if run is None or run.is_over:
            run = self._begin_run(path, forward, args)
        if run is not None and path in run.recomputed and not is_in_region():
            return checkpoint(forward, *args, **kwargs)
        if run is None or run.recorder is None:
            return forward(*args, **kwargs)
        return run.recorder.forward(path, forward, args, kwargs, self._now_s)

    def _begin_run(self, path: str, forward: Callable[..., Any], args: tuple[Any, ...]) -> _Run | None:
        first = getattr(forward, "__self__", None)
        if not isinstance(first, Module):
            return None
        shapes = tuple(tensor.shape for tensor in args if isinstance(tensor, Tensor))
        key = (path, shapes, self._store.ram_budget, self._device)
        with _lock:
            known = _known.setdefault(first, {}).setdefault(key, _Known(self._store.ram_budget))
        recorder = None if known.settled or known.recomputed else Recorder()
        run = self._thread.run = _Run(known, recorder, known.recomputed)
        self._runs.append(run)
        self._store.at_step_end(functools.partial(_end_step, self._runs))  # does not refer to the store
        return run


def _end_step(runs: "collections.deque[_Run]", step: StepTraffic) -> None:
    """Mark a step's runs as over; if there is one run, queue it and the step's counters for `begin`. Takes no lock."""
    ended = [runs.popleft() for _ in range(len(runs))]
    for run in ended:
        run.is_over = True
    if len(ended) == 1:
        _finished.append((ended[0], step))
