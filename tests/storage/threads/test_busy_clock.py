"""The clock of what is being done, by however many threads."""

import threading
import time

from spillgrad.storage.threads.busy_clock import BusyClock


def test_time_inside_counts_once_however_many_are_inside_and_time_outside_does_not():
    clock = BusyClock()
    both, done = threading.Barrier(2), threading.Event()

    def work():
        with clock:
            both.wait()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    began_s = time.perf_counter()
    with clock:
        both.wait()
        time.sleep(0.05)
        assert clock.seconds >= 0.05  # looked at while somebody is inside
        done.set()
        thread.join()
    spent_s = time.perf_counter() - began_s
    seconds = clock.seconds
    assert 0.05 <= seconds < spent_s + 0.05
    time.sleep(0.02)
    assert clock.seconds == seconds
