"""Run the threads of a store one at a time, in an order that a seed decides."""

import random
import sys
import threading
import traceback
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import Any

import pytest

from spillgrad import bell
from spillgrad.storage import disk_store, state, tiered_store
from spillgrad.storage.journal import writer as journal
from spillgrad.storage.residency import budgeted_tier, step_plan, tier_state
from spillgrad.storage.runs import lifecycle
from spillgrad.storage.threads import io_threads, loader, prefetcher, writer

# At each line of these files another thread may go on.
_TRACED = {
    module.__file__
    for module in (
        state,
        tier_state,
        tiered_store,
        budgeted_tier,
        disk_store,
        io_threads,
        loader,
        prefetcher,
        lifecycle,
        writer,
    )
}
# After so many time-outs without an operation that ends, nothing but time-outs goes on: whoever waits is never woken.
_IDLE_TIMEOUTS = 50


class NobodyGoesOn(BaseException):
    """All threads wait for each other; the message has their stacks. No `except Exception` stops it."""


class _Thread:
    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.name = name
        self.may_run = threading.Semaphore(0)
        self.awaits: Callable[[], bool] | None = None
        self.has_timeout = self.timed_out = self.is_over = False
        self.stack = ""
        self.real: threading.Thread
        self.work = work


class Interleaving:
    """Threads, locks and queues of which exactly one thread runs, until it waits or a random line hands over.

    The same seed gives the same order. `patch` has the storage package make its threads, locks and queues here.
    """

    def __init__(self, seed: int, switch_share: float = 0.3, also_traced: Iterable[str] = ()) -> None:
        self._random = random.Random(seed)
        self._traced = _TRACED.union(also_traced)
        self._switch_share = switch_share
        self._threads: list[_Thread] = []
        self._present: _Thread | None = None
        self._idle_timeouts = 0
        self._over = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._is_ending = False

    # What a test calls

    def run(self, *works: Callable[[], None]) -> None:
        """Run these functions beside each other; return when all of them are through, or raise what one raised."""
        callers = [self._start(work, f"caller {number}") for number, work in enumerate(works)]
        self._callers = callers
        self._choose().may_run.release()
        self._over.acquire()
        self._is_ending = True
        for thread in self._threads:  # those of the store wait for more
            thread.may_run.release()
            thread.real.join()
        if self._failure is not None:
            raise self._failure

    def progressed(self) -> None:
        """Note that an operation ended."""
        self._idle_timeouts = 0

    @contextmanager
    def patch(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Have storage use these threads, locks and queues inside."""
        fake = types.SimpleNamespace(
            Lock=lambda: _Lock(self),
            RLock=lambda: _Lock(self),
            Condition=lambda lock: _Condition(self, lock),
            Event=lambda: _Event(self),
            Thread=lambda target, name, daemon, args=(): _Starter(self, lambda: target(*args), name),
            current_thread=lambda: self._present,
            excepthook=threading.excepthook,
            ExceptHookArgs=threading.ExceptHookArgs,
            get_ident=threading.get_ident,
            TIMEOUT_MAX=threading.TIMEOUT_MAX,
        )
        queues = types.SimpleNamespace(SimpleQueue=lambda: _Queue(self), Empty=Empty)
        with monkeypatch.context() as patched:
            for module in (tier_state, lifecycle, io_threads, journal):
                patched.setattr(module, "threading", fake)
            patched.setattr(tier_state, "StoreLock", fake.Lock)
            for module in (bell, io_threads):
                patched.setattr(module, "queue", queues)
            patched.setattr(io_threads, "_jobs", _Queue(self))
            patched.setattr(io_threads, "_starting", _Lock(self))
            patched.setattr(io_threads, "_started", False)
            patched.setattr(step_plan, "_plans", OrderedDict())  # nothing is known of earlier steps
            yield

    # What threads, locks and queues call

    def wait_until(self, holds: Callable[[], bool], has_timeout: bool = False) -> bool:
        """Let others go on until something holds; return False when a time-out came first."""
        if self._is_ending:
            raise NobodyGoesOn
        me = self._present
        assert me is not None
        me.awaits, me.has_timeout, me.timed_out = holds, has_timeout, False
        self._hand_over(me)
        return not me.timed_out

    def switch(self) -> None:
        """Let another thread go on, perhaps."""
        me = self._present
        if me is not None and not self._is_ending:
            self._hand_over(me)

    def _start(self, work: Callable[[], None], name: str) -> _Thread:
        thread = _Thread(work, name)
        self._threads.append(thread)
        thread.real = threading.Thread(target=self._main, args=(thread,), daemon=True, name=f"interleaved {name}")
        thread.real.start()
        return thread

    def _main(self, me: _Thread) -> None:
        me.may_run.acquire()
        try:
            if self._is_ending:
                return
            sys.settrace(self._trace)
            me.work()
        except NobodyGoesOn:
            pass
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            sys.settrace(None)
            me.is_over = True
            if self._failure is not None or all(caller.is_over for caller in self._callers):
                self._over.release()
            elif not self._is_ending:
                self._hand_over(me)

    def _hand_over(self, me: _Thread) -> None:
        try:
            following = self._choose()
        except NobodyGoesOn as error:
            self._failure = self._failure or error
            self._over.release()
            raise
        if following is not me:
            frame = sys._getframe(2)
            me.stack = "".join(traceback.format_stack(frame, 8))
            following.may_run.release()
            if not me.is_over:
                me.may_run.acquire()
                if self._is_ending:
                    raise NobodyGoesOn
        me.awaits = None

    def _choose(self) -> _Thread:
        """Choose who goes on. Raises NobodyGoesOn."""
        ready = [each for each in self._threads if not each.is_over and (each.awaits is None or each.awaits())]
        if not ready:
            ready = [each for each in self._threads if not each.is_over and each.has_timeout]
            self._idle_timeouts += 1
            if not ready or self._idle_timeouts > _IDLE_TIMEOUTS:
                stacks = (f"{each.name}:\n{each.stack}" for each in self._threads if not each.is_over)
                raise NobodyGoesOn("\n".join(stacks))
            chosen = self._random.choice(ready)
            chosen.timed_out = True
        else:
            chosen = self._random.choice(ready)
        self._present = chosen
        return chosen

    def _trace(self, frame: types.FrameType, event: str, value: Any) -> Any:
        return self._trace_lines if frame.f_code.co_filename in self._traced else None

    def _trace_lines(self, frame: types.FrameType, event: str, value: Any) -> Any:
        if event == "line" and self._random.random() < self._switch_share:
            self.switch()
        return self._trace_lines


class _Lock:
    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._taken = False
        self._owner: _Thread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._run._present is not None:  # else no thread runs yet: the test makes the store
            if blocking:
                self._run.wait_until(lambda: not self._taken)
            elif self._taken:
                return False
        self._taken, self._owner = True, self._run._present
        return True

    def release(self) -> None:
        assert self._taken
        self._taken, self._owner = False, None

    def forget(self) -> None:
        pass

    def is_mine(self) -> bool:
        return self._owner is not None and self._owner is self._run._present

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Condition:
    def __init__(self, run: Interleaving, lock: _Lock) -> None:
        self._run, self._lock = run, lock
        self._waiters: list[list[bool]] = []

    def wait(self, timeout: float | None = None) -> bool:
        notified = [False]
        self._waiters.append(notified)
        self._lock.release()
        came = self._run.wait_until(lambda: notified[0], timeout is not None)
        self._lock.acquire()
        return came

    def notify_all(self) -> None:
        for notified in self._waiters:
            notified[0] = True
        self._waiters.clear()


class _Event:
    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self._run.wait_until(lambda: self._is_set, timeout is not None)


class _Queue:
    def __init__(self, run: Interleaving) -> None:
        self._run = run
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if block and not self._items and not self._run.wait_until(lambda: bool(self._items), timeout is not None):
            raise Empty
        if not self._items:
            raise Empty
        return self._items.popleft()


class _Starter:
    """What `threading.Thread` makes."""

    def __init__(self, run: Interleaving, work: Callable[[], None], name: str) -> None:
        self._run, self._work, self._name = run, work, name
        self._thread: _Thread | None = None

    def start(self) -> None:
        self._thread = self._run._start(self._work, self._name)

    def join(self) -> None:
        thread = self._thread
        assert thread is not None
        self._run.wait_until(lambda: thread.is_over)
