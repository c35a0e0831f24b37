"""Profiles: how long operations, backward, kernels and a program's own labels take; PyTorch's module `torch.profiler`.

A profile notes four kinds of events: *labels* of `record_function`; recorded *operations*; nodes that run in
*backward*; and *kernels*, runs of compiled code. The time between kernels is Python's. Times are those of the thread
that calls a kernel; kernels on a GPU run on after their launch, so their times are not in a profile.
"""

import dataclasses
import gzip
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ContextDecorator
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Self

from spillgrad import labels
from spillgrad.autograd.core import grad_mode, profiling
from spillgrad.errors import ArgumentError, GraphError, UnsupportedError
from spillgrad_kernels.threads.dispatch import observe_launches

__all__ = [
    "ProfilerAction", "ProfilerActivity", "profile", "record_function", "schedule", "supported_activities",
    "tensorboard_trace_handler",
]  # fmt: skip

_LABEL, _OPERATION, _BACKWARD, _KERNEL = "label", "operation", "backward", "kernel"
# What kernels compute, by the module of the kernel's name; other kernels mostly move memory.
_CATEGORIES = {
    "product": "matrix products", "conv_product": "convolutions", "depthwise": "convolutions",
    "attention": "attention", "attention_backward": "attention", "optim": "optimizer",
}  # fmt: skip
OTHER_KERNELS, PYTHON = "other kernels", "Python"
_SORTED_BY = {
    "cpu_time_total": "total_ns", "self_cpu_time_total": "self_ns", "cpu_time": "average_ns", "count": "count",
}  # fmt: skip


class ProfilerActivity(Enum):
    """The kinds of work that PyTorch's profiler records."""

    CPU = 0
    CUDA = 1
    XPU = 2


class ProfilerAction(Enum):
    """What a profile does during a step."""

    NONE = 0
    WARMUP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3


def supported_activities() -> set[ProfilerActivity]:
    """Return the kinds of work whose times a profile has: those of the CPU."""
    return {ProfilerActivity.CPU}


class Event(NamedTuple):
    """A span of time in a thread. `kind` is "label", "operation", "backward" or "kernel"; `module` is a module's path.

    Times are in nanoseconds of `time.perf_counter_ns`.
    """

    name: str
    kind: str
    thread: int
    began_ns: int
    ended_ns: int
    module: str

    @property
    def ns(self) -> int:
        """The duration in nanoseconds."""
        return self.ended_ns - self.began_ns


@dataclasses.dataclass
class Average:
    """All events of a name. Times are in microseconds, as in PyTorch; `self` times are without events within."""

    key: str
    count: int = 0
    total_ns: int = 0
    self_ns: int = 0

    @property
    def average_ns(self) -> float:
        """The mean duration in nanoseconds."""
        return self.total_ns / max(self.count, 1)

    @property
    def cpu_time_total(self) -> float:
        """The time of all events, in microseconds."""
        return self.total_ns / 1e3

    @property
    def self_cpu_time_total(self) -> float:
        """The time of all events without that of events within, in microseconds."""
        return self.self_ns / 1e3

    @property
    def cpu_time(self) -> float:
        """The mean time of an event, in microseconds."""
        return self.average_ns / 1e3


class Averages(list[Average]):
    """The events of a profile by name."""

    def table(self, sort_by: str | None = None, row_limit: int = 100, **_: Any) -> str:
        """Return the averages as a table.

        Parameters
        ----------
        sort_by : str, optional
            "cpu_time_total", "self_cpu_time_total", "cpu_time" or "count", the largest first; by default, names are in
            the order in which they first appeared.
        row_limit : int, default 100
            Most rows; -1 for all.

        Returns
        -------
        str
            The table.

        Raises
        ------
        ArgumentError
            If there is no such column.
        """
        rows: Sequence[Average] = self
        if sort_by is not None:
            if sort_by not in _SORTED_BY:
                raise ArgumentError(f"table: got sort_by={sort_by!r}; sort by one of {', '.join(_SORTED_BY)}")
            rows = sorted(self, key=lambda row: -getattr(row, _SORTED_BY[sort_by]))
        whole = sum(row.self_ns for row in self) or 1
        cells = [("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")]
        cells += [
            (
                row.key, f"{row.self_ns / whole:.2%}", _shown(row.self_ns), f"{row.total_ns / whole:.2%}",
                _shown(row.total_ns), _shown(row.average_ns), str(row.count),
            )
            for row in (rows if row_limit == -1 else rows[:row_limit])
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in cells
        ]
        rule = "-" * len(lines[0])
        return "\n".join([rule, lines[0], rule, *lines[1:], rule, f"Self CPU time total: {_shown(whole)}"]) + "\n"


def _shown(ns: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3f}{unit}"
    return f"{ns / 1e3:.3f}us"


_running: "profile | None" = None


class profile:
    """Context manager: note how long what runs within it takes.

    Parameters
    ----------
    activities : iterable of ProfilerActivity, optional
        Accepted; what runs on the CPU is noted.
    schedule : callable, optional
        Function from a step's number to a `ProfilerAction`, such as the result of `schedule`. By default, all is noted.
    on_trace_ready : callable, optional
        Function that is called with the profile when the steps to record are over.
    record_shapes, profile_memory, with_stack, with_flops : bool, default False
        Not supported.
    with_modules : bool, default False
        Accepted; events always have their module.

    Raises
    ------
    UnsupportedError
        For an option that is not supported.
    GraphError
        On entry, if another profile is running.

    Examples
    --------
    >>> import spillgrad as sg
    >>> with sg.profiler.profile() as prof:
    ...     loss = sg.nn.Linear(300, 400)(sg.ones(500, 300)).sum()
    ...     loss.backward()
    >>> print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=5))  # doctest: +SKIP
    """

    def __init__(
        self, *, activities: Iterable[ProfilerActivity] | None = None,
        schedule: Callable[[int], ProfilerAction] | None = None,
        on_trace_ready: Callable[["profile"], Any] | None = None, record_shapes: bool = False,
        profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False, with_modules: bool = False,
        acc_events: bool = False,
    ) -> None:  # fmt: skip
        asked = {
            "record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack,
            "with_flops": with_flops,
        }  # fmt: skip
        for option, wanted in asked.items():
            if wanted:
                raise UnsupportedError(
                    f"profile: got {option}=True; a profile has times, names and modules: leave {option} out"
                )
        self._schedule = schedule or (lambda step: ProfilerAction.RECORD)
        self._on_trace_ready = on_trace_ready
        self.step_num = 0
        self._action = ProfilerAction.NONE
        self._began_ns = self._ended_ns = self._step_began_ns = 0
        self._events: list[Event] = []
        self._kernels: dict[int, list[Event]] = {}
        # For each thread, the kernels of the operation that runs, if it will be recorded.
        self._open: dict[int, list[Event]] = {}
        self._modules: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._main = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin the first step."""
        global _running
        if _running is not None:
            raise GraphError("profile: another profile is running; leave it first")
        action = self._schedule(self.step_num)
        _running = self
        self._enter(action)

    def stop(self) -> None:
        """End the last step; if it was recorded, call `on_trace_ready`. Do nothing if the profile is not running."""
        global _running
        if _running is not self:
            return
        was = self._action
        self._enter(ProfilerAction.NONE)
        _running = None
        if was in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE) and self._on_trace_ready:
            self._on_trace_ready(self)

    def step(self) -> None:
        """End a step, and begin the next one."""
        was = self._action
        if self._records(was):
            now = time.perf_counter_ns()
            thread = threading.get_ident()
            self._events.append(Event(f"ProfilerStep#{self.step_num}", _LABEL, thread, self._step_began_ns, now, ""))
        self.step_num += 1
        if was is ProfilerAction.RECORD_AND_SAVE:
            self._enter(ProfilerAction.NONE)
            if self._on_trace_ready:
                self._on_trace_ready(self)
        self._enter(self._schedule(self.step_num))

    @staticmethod
    def _records(action: ProfilerAction) -> bool:
        return action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)

    def _enter(self, action: ProfilerAction) -> None:
        recorded, records = self._records(self._action), self._records(action)
        self._action = action
        now = self._step_began_ns = time.perf_counter_ns()
        if records and not recorded:
            self._events, self._kernels, self._open = [], {}, {}
            self._began_ns, self._ended_ns, self._main = now, 0, threading.get_ident()
            profiling.set_recorder(self)
            observe_launches(self._launched)
        elif recorded and not records:
            observe_launches(None)
            profiling.set_recorder(None)
            self._ended_ns = now

    # --- What kernels, operations and backward report, in any thread --------------------------------------------------

    def _launched(self, name: str, began_ns: int, ended_ns: int) -> None:
        thread = threading.get_ident()
        event = Event(name, _KERNEL, thread, began_ns, ended_ns, labels.current.module or "")
        self._kernels.setdefault(thread, []).append(event)
        if grad_mode.state.enabled:  # what runs under `no_grad` is part of no recorded operation
            self._open.setdefault(thread, []).append(event)

    def operation_ended(self, node: Any) -> None:
        """Note that an operation has just run, and was recorded as `node`."""
        thread, now, module = threading.get_ident(), time.perf_counter_ns(), labels.current.module or ""
        self._modules[node] = module
        own = [kernel for kernel in self._open.pop(thread, ()) if kernel.module == module]
        operation = getattr(type(node), "operation", None)
        name = node.name().removesuffix("Backward") if operation is None else operation.name
        self._events.append(Event(name, _OPERATION, thread, own[0].began_ns if own else now, now, module))

    def node_ended(self, node: Any, began_ns: int) -> None:
        """Note that backward has just run `node`, which began at the time `began_ns`."""
        thread, now = threading.get_ident(), time.perf_counter_ns()
        self._open.pop(thread, None)
        self._events.append(Event(node.name(), _BACKWARD, thread, began_ns, now, self._modules.get(node, "")))

    def label_ended(self, name: str, began_ns: int) -> None:
        """Note that the code under a label of `record_function` has ended."""
        module = labels.current.module or ""
        self._open.pop(threading.get_ident(), None)
        self._events.append(Event(name, _LABEL, threading.get_ident(), began_ns, time.perf_counter_ns(), module))

    # --- What was found -----------------------------------------------------------------------------------------------

    @property
    def duration_ns(self) -> int:
        """The time that was recorded, in nanoseconds."""
        return (self._ended_ns or time.perf_counter_ns()) - self._began_ns if self._began_ns else 0

    def events(self) -> list[Event]:
        """Return all events, in the order of their beginnings; an event comes before those within it.

        Returns
        -------
        list of Event
            The events. A kernel in backward has the module of the operation whose gradient it computes.
        """
        every = [*self._events, *(kernel for kernels in self._kernels.values() for kernel in kernels)]
        every.sort(key=lambda event: (event.began_ns, -event.ended_ns, event.kind == _KERNEL))
        found = []
        for event, around in _nested(every):
            backward = next((outer for outer in reversed(around) if outer.kind == _BACKWARD), None)
            found.append(event._replace(module=backward.module) if event.kind == _KERNEL and backward else event)
        return found

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
        """Return the events by name: their number, and their times with and without those of events within.

        Parameters
        ----------
        group_by_input_shape : bool, default False
            Not supported: a profile has no shapes.
        group_by_stack_n : int, default 0
            Not supported: a profile has no call stacks.

        Returns
        -------
        Averages
            A list of averages, with the method `table`.
        """
        if group_by_input_shape or group_by_stack_n:
            raise UnsupportedError("key_averages: a profile has neither shapes nor call stacks; group by name alone")
        found: dict[str, Average] = {}
        for event, around in _nested(self.events()):
            average = found.setdefault(event.name, Average(event.name))
            average.count += 1
            average.self_ns += event.ns
            if all(outer.name != event.name for outer in around):
                average.total_ns += event.ns
            if around:
                found[around[-1].name].self_ns -= event.ns
        return Averages(found.values())

    def by_category(self) -> dict[str, float]:
        """Return the seconds of the thread that entered the profile, by what it did; they add up to `duration_ns`.

        Returns
        -------
        dict
            Seconds of matrix products, convolutions, attention, the optimizer's kernels, other kernels, and of Python,
            which is what is left.
        """
        found = dict.fromkeys((*_CATEGORIES.values(), OTHER_KERNELS, PYTHON), 0.0)
        for kernel in self._kernels.get(self._main, ()):
            found[_CATEGORIES.get(kernel.name.partition(".")[0], OTHER_KERNELS)] += kernel.ns / 1e9
        found[PYTHON] = max(0.0, self.duration_ns / 1e9 - sum(found.values()))
        return found

    def by_module(self) -> dict[str, dict[str, float]]:
        """Return the seconds of kernels by module and category, in forward and backward together.

        Returns
        -------
        dict
            For each module's path, in the order in which they ran, seconds by category. The empty path stands for what
            no module did, such as the loss and the optimizer.
        """
        found: dict[str, dict[str, float]] = {}
        for event in self.events():
            if event.kind == _KERNEL and event.thread == self._main:
                of_module = found.setdefault(event.module, {})
                category = _CATEGORIES.get(event.name.partition(".")[0], OTHER_KERNELS)
                of_module[category] = of_module.get(category, 0.0) + event.ns / 1e9
        return found

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the events to a file that Perfetto (https://ui.perfetto.dev) and chrome://tracing show as a timeline.

        Parameters
        ----------
        path : str or PathLike
            File to write; it is compressed if its name ends with ".gz".

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        threads = {thread: number for number, thread in enumerate(dict.fromkeys(e.thread for e in self.events()))}
        trace = [
            {
                "ph": "X", "cat": event.kind, "name": event.name, "pid": os.getpid(), "tid": threads[event.thread],
                "ts": (event.began_ns - self._began_ns) / 1e3, "dur": event.ns / 1e3, "args": {"module": event.module},
            }
            for event in self.events()
        ]  # fmt: skip
        text = json.dumps({"displayTimeUnit": "ms", "traceEvents": trace}).encode()
        Path(path).write_bytes(gzip.compress(text) if str(path).endswith(".gz") else text)


def _nested(events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Yield each event with the events of its thread that it lies within, the outermost first."""
    stacks: dict[int, list[Event]] = {}
    for event in events:
        stack = stacks.setdefault(event.thread, [])
        while stack and stack[-1].ended_ns < event.ended_ns:
            stack.pop()
        while stack and stack[-1].ended_ns <= event.began_ns and event.ns:
            stack.pop()
        yield event, stack
        stack.append(event)


class record_function(ContextDecorator):
    """Context manager or decorator: a running profile notes the code under this label.

    Parameters
    ----------
    name : str
        Label.
    args : str, optional
        Accepted and not used.
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self._began_ns: list[int] = []

    def __enter__(self) -> "record_function":
        self._began_ns.append(time.perf_counter_ns())
        return self

    def __exit__(self, *exception: object) -> None:
        began_ns, running = self._began_ns.pop(), profiling.recorder
        if isinstance(running, profile):
            running.label_ended(self.name, began_ns)

    def _recreate_cm(self) -> "record_function":
        return record_function(self.name)  # threads may run a decorated function at once


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0, skip_first_wait: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a function from a step's number to what a profile does: skip, wait, warm up, record, and again.

    Parameters
    ----------
    wait : int
        Number of steps of a cycle that are not recorded.
    warmup : int
        Number of steps after these that are not recorded either.
    active : int
        Number of steps that are recorded then.
    repeat : int, default 0
        Number of cycles; 0 means until the end.
    skip_first : int, default 0
        Number of steps before the first cycle.
    skip_first_wait : int, default 0
        If not 0, the first cycle does not wait.

    Returns
    -------
    callable
        The function, for `profile(schedule=…)`.

    Raises
    ------
    ArgumentError
        If a number is negative, or no step is recorded.
    """
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise ArgumentError(
            f"schedule: got wait={wait}, warmup={warmup}, active={active}, repeat={repeat}, skip_first={skip_first}; "
            "none may be negative, and active must be at least 1"
        )

    def action(step: int) -> ProfilerAction:
        step -= skip_first
        if step >= 0 and skip_first_wait:
            step += wait
        cycle = wait + warmup + active
        if step < 0 or (repeat and step >= repeat * cycle):
            return ProfilerAction.NONE
        place = step % cycle
        if place < wait:
            return ProfilerAction.NONE
        if place < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if place == cycle - 1 else ProfilerAction.RECORD

    return action


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """Return a function for `profile(on_trace_ready=…)` that writes each trace to a file in a folder.

    Parameters
    ----------
    dir_name : str or PathLike
        Folder; it is made if missing.
    worker_name : str, optional
        Beginning of the files' names; by default, the process's number.
    use_gzip : bool, default False
        Whether the files are compressed.

    Returns
    -------
    callable
        The function.
    """

    def write(prof: profile) -> None:
        folder = Path(dir_name)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{worker_name or os.getpid()}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        prof.export_chrome_trace(folder / name)

    return write
