"""A bell that nobody rings wakes its sleeper when the time has passed, whatever rings it heard before."""

import threading

from spillgrad.bell import Bell


def test_a_ring_ends_a_sleep_or_the_next_one():
    bell = Bell()
    assert not bell.wait(0.001)
    bell.ring()
    bell.ring()
    assert bell.wait()
    assert not bell.wait(0.001)
    threading.Timer(0.01, bell.ring).start()
    assert bell.wait(10)


def test_no_sleep_lasts_longer_than_its_time():
    # Python's own queue sleeps for ever here about once in a thousand times.
    slept = threading.Semaphore(0)

    def sleep_often() -> None:
        for _ in range(20_000):
            bell = Bell()
            bell.wait(1e-7)
            bell.ring()
            bell.wait()
            bell.wait(1e-7)
        slept.release()

    threading.Thread(target=sleep_often, daemon=True).start()
    assert slept.acquire(timeout=60)
