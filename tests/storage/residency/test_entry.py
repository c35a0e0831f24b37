"""An entry knows what is still being copied into its array."""

import numpy as np

from spillgrad.storage.residency.entry import Entry


def test_bytes_that_come_while_a_thread_waits_for_former_ones_are_waited_for_too():
    entry, waited = Entry(np.zeros(1), 0, None), []

    def arrive() -> None:
        waited.append("former")
        entry.arrival = lambda: waited.append("present")  # another thread does this meanwhile

    entry.arrival = arrive
    for _ in range(3):
        entry.await_arrival()
    assert waited == ["former", "present"]
