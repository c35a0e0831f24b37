"""Ctrl-C comes between the things a store does, and where it waits."""

import asyncio
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.threads import interrupts
from spillgrad.storage.threads.interrupts import keep_whole
from spillgrad.storage.threads.store_lock import StoreLock


@pytest.fixture(autouse=True)
def python_handles_interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def in_storage(code: str) -> Callable[..., object]:
    """Return a function `work` that is part of the storage package."""
    names: dict[str, object] = {"__name__": "spillgrad.storage.example"}
    exec(code, names)
    return names["work"]  # type: ignore[return-value]


def interrupt_soon() -> None:
    def interrupt() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_what_a_store_does_is_done_before_the_interrupt_comes():
    keep_whole()
    done = []
    work = in_storage("def work(interrupt, done): interrupt(); sum(range(3_000_000)); done.append(True)")
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work(interrupt, done)
        time.sleep(10)
    assert done == [True]
    assert time.monotonic() - started < 5  # what sleeps by then is woken


def test_where_a_store_waits_it_is_interrupted():
    keep_whole()
    work = in_storage("def work(condition):\n    with condition:\n        condition.wait(10)")
    interrupt_soon()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work(threading.Condition())
    assert time.monotonic() - started < 5


def test_outside_of_stores_the_interrupt_comes_at_once():
    keep_whole()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_signals_that_come_faster_than_frames_are_walked_do_not_nest(monkeypatch: pytest.MonkeyPatch):
    """Each would walk the frames of all the others, until Python's recursion limit."""
    came = list[int]()
    before = signal.signal(signal.SIGALRM, lambda number, frame: came.append(number))
    walk = interrupts._may_be_left

    def interrupted_walk(frame: FrameType | None, is_patient: bool) -> bool:
        signal.raise_signal(signal.SIGALRM)
        return walk(frame, is_patient)

    monkeypatch.setattr(interrupts, "_may_be_left", interrupted_walk)
    try:
        keep_whole()
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert came == [signal.SIGALRM]


def test_who_handles_interrupts_already_goes_on_doing_so():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    keep_whole()
    interrupt()
    assert seen == [signal.SIGINT]


class Stop(Exception):
    pass


def stop(number: int, frame: FrameType | None) -> None:
    raise Stop


@pytest.fixture
def stops_at_sigusr1() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, stop)
    keep_whole()
    yield
    signal.signal(signal.SIGUSR1, before)


def raise_it() -> None:
    signal.raise_signal(signal.SIGUSR1)


def sleep_until_stopped() -> None:
    time.sleep(10)


def test_what_any_handler_raises_comes_after_what_a_store_does(stops_at_sigusr1: None):
    done = []
    work = in_storage("def work(raise_it, done): raise_it(); sum(range(1_000_000)); done.append(True)")
    with pytest.raises(Stop):
        work(raise_it, done)
        sleep_until_stopped()
    assert done == [True]


def test_a_module_of_the_library_that_is_being_imported_is_whole(stops_at_sigusr1: None):
    done = []
    names = {"__name__": "spillgrad_kernels.example", "raise_it": raise_it, "done": done}
    with pytest.raises(Stop):
        exec(compile("raise_it(); sum(range(1_000_000)); done.append(True)", "example", "exec"), names)
        sleep_until_stopped()
    assert done == [True]


class Finalized:
    def __init__(self, finalize: Callable[[], None]) -> None:
        self.finalize = finalize

    def __del__(self) -> None:
        self.finalize()


def finalize_in_del(finalize: Callable[[], None]) -> None:
    Finalized(finalize)


def finalize_in_a_weak_dictionary(finalize: Callable[[], None]) -> None:
    key = Finalized(lambda: None)
    known = weakref.WeakKeyDictionary({key: None})
    # What the dictionary calls when a key dies is Python too; here it takes long enough for a signal.
    known.data = type("Slow", (dict,), {"__delitem__": lambda self, key: finalize()})(known.data)
    del key


@pytest.mark.parametrize("die", [finalize_in_del, finalize_in_a_weak_dictionary])
def test_what_a_handler_raises_is_not_lost_in_a_finalizer(stops_at_sigusr1: None, die: Callable[..., None]):
    done = []

    def finalize() -> None:
        raise_it()
        sum(range(100_000))
        done.append(True)

    with pytest.raises(Stop):
        die(finalize)
        sleep_until_stopped()
    assert done == [True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_finalizer_that_hangs_is_interrupted_after_a_while(stops_at_sigusr1: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(interrupts, "_PATIENCE_S", 0.1)

    def hang() -> None:
        raise_it()
        time.sleep(60)

    started = time.monotonic()
    finalize_in_del(hang)
    assert time.monotonic() - started < 30


def test_what_a_condition_does_with_its_lock_held_is_no_wait(stops_at_sigusr1: None):
    """A handler that came as `wait` ends, with the store's lock, could not use the store."""
    work = in_storage(
        "def work(condition, told):\n    with condition:\n        condition.wait(0.2)\n        told.append(1)"
    )
    condition, told = threading.Condition(StoreLock()), list[int]()
    release = condition._acquire_restore  # type: ignore[attr-defined]

    def interrupted(state: object) -> None:
        release(state)
        raise_it()

    condition._acquire_restore = interrupted  # type: ignore[attr-defined]
    with pytest.raises(Stop):
        work(condition, told)
        sleep_until_stopped()
    assert told == [1]


class InterruptingKey:
    """A key at whose first look-up the user presses Ctrl-C: in the middle of `put`."""

    seen = False

    def __hash__(self) -> int:
        if not self.seen:
            self.seen = True
            interrupt()
        return 1


def test_a_store_works_after_an_interrupt_in_the_middle(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget="1MiB")
    handles = []
    with pytest.raises(KeyboardInterrupt):
        handles.append(store.put(np.arange(1000), key=InterruptingKey()))
        time.sleep(10)
    np.testing.assert_array_equal(store.get(handles.pop()), np.arange(1000))
    store.flush()
    store.close()


def test_a_step_takes_interrupts_over_again_as_each_cell_of_a_notebook_gives_them_to_python(tmp_path: Path):
    store = DiskStore(tmp_path, ram_budget="1MiB")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store.begin_step()
    assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    store.close()


def test_a_signal_that_comes_again_reaches_asyncio_once(tmp_path: Path):
    calls = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: calls.append(1))
        keep_whole()
        work = in_storage("def work(raise_it): raise_it(); sum(range(1_000_000))")
        work(raise_it)
        await asyncio.sleep(0.05)
        loop.remove_signal_handler(signal.SIGUSR1)

    asyncio.run(main())
    assert calls == [1]


def test_a_signal_that_is_put_off_ends_no_process_whose_handler_goes_meanwhile():
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: seen.append(number))
    keep_whole()
    work = in_storage("def work(come, go): come(); go()")
    work(lambda: signal.raise_signal(signal.SIGUSR2), lambda: signal.signal(signal.SIGUSR2, before))
    time.sleep(0.05)
    assert seen == []
