"""What the protocol tells of collectives: their bytes, their time, and for whom the program stood still."""

import threading
import time

import pytest

from spillgrad import communication
from spillgrad.communication import Collective
from spillgrad.distributed import collective_steps as steps
from spillgrad.errors import DistributedError
from tests.distributed.network import Network, call_all, protocols, run


class Heard:
    """Collects what was told, for as long as it lives."""

    def __init__(self) -> None:
        self.told: list[Collective] = []
        communication.listen(self)

    def note_collective(self, collective: Collective) -> None:
        self.told.append(collective)


def test_the_bytes_are_those_that_the_network_carried():
    network, heard = Network(), Heard()
    ranks = protocols(network, 3)
    call_all(ranks, "all_reduce of float32 (1000,) SUM", lambda rank: steps.barrier())
    run(network, ranks)
    assert [each.what for each in heard.told] == ["all_reduce of float32"] * 3  # without sizes
    assert sorted(each.sent_bytes for each in heard.told) == sorted(network.sent_bytes.values())
    assert sum(each.received_bytes for each in heard.told) == sum(network.sent_bytes.values())


def test_the_rank_that_calls_last_is_told_and_how_long_it_was_awaited():
    network, heard = Network(), Heard()
    ranks = protocols(network, 3)
    for rank in (0, 1):
        ranks[rank].begin("barrier", "test", steps.barrier())
    run(network, ranks)
    time.sleep(0.05)
    ranks[2].begin("barrier", "test", steps.barrier())
    run(network, ranks)
    early = [each for each in heard.told if each.took_s >= 0.05]
    assert [each.slowest for each in early] == [2, 2]
    assert all(each.slowest_s >= 0.05 for each in early)
    assert all(each.waited_s == 0 for each in heard.told)  # nobody asked for a result
    (late,) = (each for each in heard.told if each not in early)
    assert late.slowest in (0, 1)
    assert late.slowest_s < 0.05


def test_only_the_time_in_which_the_program_stands_still_is_waited():
    network, heard = Network(), Heard()
    ranks = protocols(network, 2)
    calls = [ranks[0].begin("barrier", "test", steps.barrier())]
    run(network, ranks)
    time.sleep(0.1)  # the program goes on
    with pytest.raises(DistributedError, match="is not done after"):
        calls[0].wait(0.02)
    waiting = threading.Thread(target=calls[0].wait)
    waiting.start()
    time.sleep(0.05)
    calls.append(ranks[1].begin("barrier", "test", steps.barrier()))
    run(network, ranks)
    waiting.join()
    (told,) = (each for each in heard.told if each.waited_s)
    assert 0.07 <= told.waited_s <= told.took_s - 0.1
    assert calls[1].wait() is None
    assert len(heard.told) == 2  # to ask for a result that is there tells nothing


def test_a_collective_that_fails_is_told_and_one_without_haste_is_not():
    network, heard = Network(), Heard()
    ranks = protocols(network, 2)
    ranks[0].begin("the end of the program", "", steps.barrier(), is_quiet=True)
    ranks[1].begin("the end of the program", "", steps.barrier(), is_quiet=True)
    run(network, ranks)
    assert heard.told == []
    for rank, what in enumerate(("barrier", "all_gather")):
        ranks[rank].begin(what, "test", steps.barrier())
    run(network, ranks)
    assert sorted(each.what for each in heard.told) == ["all_gather", "barrier"]


def test_a_listener_that_is_gone_hears_nothing():
    network, heard = Network(), Heard()
    told = heard.told
    del heard
    ranks = protocols(network, 2)
    call_all(ranks, "barrier", lambda rank: steps.barrier())
    run(network, ranks)
    assert told == []
