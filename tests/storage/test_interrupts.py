"""Ctrl-C comes between the things a store does, and where it waits."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.interrupts import keep_whole


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


def test_who_handles_interrupts_already_goes_on_doing_so():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    keep_whole()
    interrupt()
    assert seen == [signal.SIGINT]


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
