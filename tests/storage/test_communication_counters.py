"""The sums of collectives: overlapping ones are busy together, and each wait is of the rank that came last."""

import numpy as np
import pytest

from spillgrad.storage.communication_counters import CommunicationSum


def test_the_busy_time_is_that_in_which_any_collective_is_under_way():
    draw = np.random.default_rng(0)
    for _ in range(50):
        ended = np.sort(draw.uniform(0, 10, 40))
        took = draw.uniform(0, 1, 40)
        added = CommunicationSum()
        for end, length in zip(ended, took, strict=True):
            added.add(end, length, 0.0, 1, 2, None, 0.0)
        covered = np.zeros(120_000, bool)
        for end, length in zip(ended, took, strict=True):
            covered[round((end - length + 1) * 1e4) : round((end + 1) * 1e4)] = True
        assert added.counters.busy_s == pytest.approx(covered.sum() / 1e4, abs=0.01)
        assert (added.counters.collectives, added.counters.sent_bytes, added.counters.received_bytes) == (40, 40, 80)


def test_hidden_is_what_is_not_exposed():
    added = CommunicationSum()
    added.add(1.0, 1.0, 0.25, 0, 0, 3, 0.9)
    added.add(1.5, 1.0, 0.5, 0, 0, 2, 0.1)
    assert added.counters.busy_s == 1.5
    assert added.counters.exposed_s == 0.75
    assert added.counters.hidden_s == 0.75
    assert added.counters.waited_for_s == {3: 0.25, 2: 0.1}  # no longer than the rank was awaited, or the program
