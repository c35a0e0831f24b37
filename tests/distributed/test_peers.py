"""What ranks tell each other beside collectives, without MPI."""

import numpy as np
import pytest

from spillgrad.distributed import collective_steps, protocol
from spillgrad.distributed.mpi import _gone_after_s
from spillgrad.distributed.peers import Departed, Kind, Peers
from spillgrad.errors import ArgumentError, DistributedError
from tests.distributed.network import Network, protocols, run


class Ring:
    """Ranks that look every 0.05 s, as `mpi.py` does while nothing is under way."""

    def __init__(self, size: int, gone_after_s: float = 60.0) -> None:
        self.peers = [Peers(rank, size, f"host{rank}", 0.0, gone_after_s) for rank in range(size)]
        self.now_s = 0.0
        self.sent = 0

    def look(self, seconds: float, without: tuple[int, ...] = ()) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            for peer in self.peers:
                if peer.rank not in without:
                    self.deliver(peer.rank, peer.letters(self.now_s, f"step {self.now_s:.0f}"), without)

    def deliver(self, source: int, letters, without: tuple[int, ...] = ()) -> None:
        for target, letter in letters:
            self.sent += 1
            if target not in without:
                self.peers[target].hear(source, letter, self.now_s)


@pytest.mark.parametrize("size", [2, 3, 1000])
def test_each_rank_gives_one_sign_of_life_every_five_seconds_however_many_there_are(size: int):
    ring = Ring(size)
    ring.look(11.0)
    assert ring.sent == 3 * size


@pytest.mark.parametrize("size, lost", [(2, (1,)), (4, (2,)), (8, (3, 4, 5))])
def test_one_rank_says_that_its_neighbour_is_gone(size: int, lost: tuple[int, ...]):
    ring = Ring(size)
    ring.look(7.0)
    ring.look(58.0, without=lost)
    told = rf"rank {lost[0]} on host{lost[0]} is gone: it was silent for 6\d s; its last known collective: step 5"
    with pytest.raises(Departed, match=told):
        ring.look(4.0, without=lost)


def test_a_rank_that_answers_again_in_time_is_not_gone():
    ring = Ring(3)
    for _ in range(3):
        ring.look(5.0)
        ring.look(54.0, without=(1,))
    ring.look(120.0)


def test_the_time_in_which_a_rank_stood_still_itself_does_not_count():
    ring = Ring(3)
    ring.look(6.0)
    ring.now_s += 3600.0  # the machine slept
    ring.look(60.0)
    with pytest.raises(Departed):
        ring.look(61.0, without=(1,))


def test_no_limit_is_no_limit():
    ring = Ring(2, gone_after_s=float("inf"))
    ring.look(10.0)
    ring.now_s += 0.9
    ring.look(1000.0, without=(1,))


@pytest.mark.parametrize("given", ["soon", "-1", "0", "nan", ""])
def test_a_limit_that_is_no_time_is_a_mistake(given: str):
    with pytest.raises(
        ArgumentError, match=rf"SPILLGRAD_GONE_AFTER_S: got '{given}'; give seconds, such as 60, or inf"
    ):
        _gone_after_s({"SPILLGRAD_GONE_AFTER_S": given})


def test_a_rank_alone_sends_nothing():
    assert Peers(0, 1, "a", 0.0).letters(1e9, "") == ()


def test_a_failure_is_told_in_the_same_words_and_names_a_rank():
    ring = Ring(3)
    said = DistributedError("collective 7 differs between ranks: rank 0: ...")
    assert ring.peers[1].failed(said) == str(said)
    ring.deliver(1, ring.peers[1].to_all(Kind.FAILED, ring.peers[1].failed(MemoryError("no memory"))))
    assert str(ring.peers[0].failure) == str(ring.peers[2].failure) == "rank 1 on host1: MemoryError('no memory')"
    assert ring.peers[1].failure is None


def test_a_call_fails_if_a_rank_has_left_without_it(monkeypatch: pytest.MonkeyPatch):
    now_s = [0.0]
    monkeypatch.setattr(protocol.time, "monotonic", lambda: now_s[0])
    network = Network()
    ranks = protocols(network, 3)
    x = [np.ones(10, np.float32) for _ in range(3)]
    calls = [
        ranks[rank].begin("sum", "a.py:1", collective_steps.all_reduce(rank, 3, x[rank], np.add)) for rank in (0, 2)
    ]
    run(network, ranks)
    left = {1: ("host1", 0.0)}
    now_s[0] = 0.5  # what rank 1 sent may be on its way
    ranks[0].require_present(left)
    assert not calls[0].is_done
    now_s[0] = 1.5
    ranks[0].require_present(left)
    with pytest.raises(DistributedError, match=r"sum, a.py:1: rank 1 on host1 has ended without it; call the same"):
        calls[0].wait(0)


def test_a_call_goes_on_if_a_rank_has_called_it_and_left(monkeypatch: pytest.MonkeyPatch):
    network = Network()
    ranks = protocols(network, 2)
    x = [np.ones(10_000, np.float32) for _ in range(2)]
    calls = [
        ranks[rank].begin("sum", "a.py:1", collective_steps.all_reduce(rank, 2, x[rank], np.add)) for rank in (0, 1)
    ]
    while calls[0]._exchange is None:
        ranks[0].advance()
        ranks[1].advance()
        network.deliver()
    ranks[0].require_present({1: ("host1", -1e9)})
    run(network, ranks)
    calls[0].wait(0)
    assert (x[0] == 2).all()
