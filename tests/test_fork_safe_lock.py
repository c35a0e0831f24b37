"""Locks in a forked child, where the threads that had them do not exist."""

import ast
import os
import signal
import threading
from collections.abc import Callable

import pytest

import spillgrad as sg
from spillgrad import fork_safe_lock
from spillgrad.fork_safe_lock import ForkSafeLock
from tests.test_architecture import MODULES

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

# Locks of other kinds, each with the reason why no child waits for one.
OTHER_LOCKS = {
    "spillgrad.ops.intercept": "a fork takes it, so that no operation is in the middle of a change",
    "spillgrad.storage.disk.open_segments": "a fork takes it, so that the child knows all files that it must close",
    "spillgrad.storage.runs.file_lock": "a fork takes it, so that the child knows all files that it must close",
    "spillgrad.storage.disk.segment_set": "only threads of a store take it, and a child has none",
}


def holds_in_child(condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds in a forked child."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)  # ends a child that waits
        os._exit(7 if condition() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def can_all_be_taken(locks: list[ForkSafeLock]) -> bool:
    return all([lock.acquire(blocking=False) for lock in locks])


def while_held(locks: list[ForkSafeLock], act: Callable[[], bool]) -> bool:
    """Return what `act` returns while another thread has all locks."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        over.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    try:
        return act()
    finally:
        over.set()
        thread.join()


def test_all_locks_are_free_in_a_child_forked_while_another_thread_had_them():
    x = sg.ones(2, requires_grad=True)
    sg.storage.MemoryStore()
    (x * x).sum().backward()  # makes the lock of a leaf
    locks = [lock for reference in list(fork_safe_lock._all) if (lock := reference()) is not None]
    assert len(locks) > 5
    assert while_held(locks, lambda: not can_all_be_taken(locks) and holds_in_child(lambda: can_all_be_taken(locks)))
    assert can_all_be_taken(locks)
    for lock in locks:
        lock.release()


def test_what_the_thread_that_forks_has_it_has_in_the_child_too():
    lock = ForkSafeLock()
    with lock:
        assert holds_in_child(lock.is_mine)


def test_a_dead_lock_is_forgotten():
    before = len(fork_safe_lock._all)
    lock = ForkSafeLock()
    assert len(fork_safe_lock._all) == before + 1
    del lock
    assert len(fork_safe_lock._all) == before


def test_every_other_lock_has_a_reason():
    made = {
        name
        for name, path in MODULES.items()
        if name.startswith("spillgrad.")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("threading.Lock", "threading.RLock", "functools.cached_property")
        and name != fork_safe_lock.__name__
    }
    assert made == OTHER_LOCKS.keys()
