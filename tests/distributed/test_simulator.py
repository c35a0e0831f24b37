"""The protocol of many ranks on a simulated network: its times, its bits, and the model that needs no messages."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributed import collective_steps, traffic
from spillgrad.distributed.link import Link
from spillgrad.distributed.lockstep import Collective, Lockstep
from spillgrad.distributed.protocol import Steps
from spillgrad.distributed.simulator import Simulation, run_together
from tests.distributed.network import gradient_sums

# 10 Gbit/s, and nothing but the bytes takes time.
BARE = Link(bytes_per_s=1.177e9, latency_s=50e-6, busy_s_per_byte=0.0, busy_s_per_message=0.0, look_s=0.0)
LINKS = [BARE, Link(1.177e8, 50e-6), Link(1e10, 1e-3, 2e-9, 1e-4)]
CORES = 2


def sums(size: int, count: int, flats: Sequence[np.ndarray] | None = None) -> Callable[[int], Steps]:
    given = flats or [np.ones(count, np.float32) for _ in range(size)]
    parts = [slice(0, count // 2), slice(count // 2, count)]
    return lambda rank: gradient_sums(rank, size, given[rank], parts, np.ones(2, bool), [None, None], 1.0)


def simulated_s(link: Link, size: int, calls: Sequence[tuple[float, int]]) -> float:
    simulation = Simulation(size, link)
    for number, (at_s, count) in enumerate(calls):
        simulation.begin(at_s, f"sum {number}", sums(size, count))
    return simulation.run()


@pytest.mark.parametrize("size", [2, 3, 8, 16])
@pytest.mark.parametrize("count", [3, 1000, 100_003])
def test_the_model_sends_the_messages_and_bytes_of_the_protocol(size: int, count: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_steps, "AT_ONCE_BYTES", 1 << 17)  # several exchanges
    simulation = Simulation(size, BARE)
    simulation.begin(0.0, "sum", sums(size, count))
    simulation.run()
    told = traffic.total(list(traffic.sum_of_gradients(size, count, 4, 2)))
    assert sum(simulation.sent_messages) == round(size * told.count)
    assert sum(simulation.sent_bytes) == round(size * told.nbytes)


@pytest.mark.parametrize("size", [2, 5])
def test_other_collectives_are_modelled_with_the_same_messages(size: int):
    cases: list[tuple[Callable[[int], Steps], list[traffic.Traffic]]] = []
    item = collective_steps.pickled("a text")
    cases.append((
        lambda rank: collective_steps.all_gather_object(size, item), list(traffic.objects_to_all(size, item.nbytes))
    ))  # fmt: skip
    array = np.zeros(100_000, np.float32)
    pieces = [array[piece] for piece in collective_steps.cut(array.size, size)]
    cases.append((
        lambda rank: collective_steps.all_gather(pieces[rank], pieces),
        list(traffic.pieces_to_all(size, array.size, array.itemsize)),
    ))  # fmt: skip
    for steps, exchanges in cases:
        simulation = Simulation(size, BARE)
        simulation.begin(0.0, "collective", steps)
        simulation.run()
        told = traffic.total(exchanges)
        assert sum(simulation.sent_messages) == round(size * told.count)
        assert sum(simulation.sent_bytes) == round(size * told.nbytes)


# Pieces of one size are sent at one time by all ranks. Where a piece has an element more, a rank looks earlier or later
# than others, which the model does not know.
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("size", [2, 4, 16])
@pytest.mark.parametrize(
    "calls, within",
    [
        ([(0.0, 128_000)], 1e-6),
        ([(0.0, 128_000)] * 3, 1e-6),
        ([(0.0, 256_000), (0.002, 3_200), (0.003, 64_000)], 1e-6),
        ([(0.0, 200_001), (0.002, 4_003), (0.003, 90_001)], 0.05),
    ],
)
def test_the_model_takes_the_time_of_the_protocol(link: Link, size: int, calls: list[tuple[float, int]], within: float):
    collectives = [Collective(at_s, traffic.sum_of_gradients(size, count, 4, 2)) for at_s, count in calls]
    endless_cores = 1 << 40  # the simulation computes nothing
    found_s = Lockstep(link, endless_cores).run(0.0, collectives)
    assert found_s == pytest.approx(simulated_s(link, size, calls), rel=within)


@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_large_sums_take_what_a_ring_takes(size: int):
    nbytes = 25 << 20
    taken_s = Lockstep(BARE, CORES).run(0.0, [Collective(0.0, traffic.sum_of_gradients(size, nbytes // 4, 4, 1))])
    ring_s = 2 * nbytes * (size - 1) / size / BARE.bytes_per_s
    assert ring_s < taken_s < ring_s * 1.02 + 4 * BARE.latency_s


def test_ranks_that_all_sent_to_one_first_would_take_longer():
    """Ranks send to the next one first. In the order of the ranks, the first would receive while others wait."""
    size, count = 8, 400_000
    usual_s = simulated_s(BARE, size, [(0.0, count)])
    simulation = Simulation(size, BARE)
    for protocol in simulation.protocols:
        protocol._others.sort()
    simulation.begin(0.0, "sum", sums(size, count))
    assert simulation.run() > 1.3 * usual_s


def test_a_busy_thread_takes_its_time_from_the_computation_of_one_core_and_half_of_that_from_two():
    link = Link(1e12, 0.0, 0.0, busy_s_per_message=0.01, look_s=0.0)
    exchanges = list(traffic.sum_of_gradients(2, 1000, 4, 1))  # a header, and three exchanges
    for cores, lost_s in ((1, 0.04), (2, 0.02)):
        assert Lockstep(link, cores).run(1.0, [Collective(0.0, exchanges)]) == pytest.approx(1 + lost_s)


def test_what_is_ready_late_ends_after_the_computation():
    exchanges = list(traffic.sum_of_gradients(4, 1 << 20, 4, 1))
    alone_s = Lockstep(BARE, CORES).run(0.0, [Collective(0.0, exchanges)])
    assert Lockstep(BARE, CORES).run(1.0, [Collective(0.0, exchanges)]) == pytest.approx(1.0)
    assert Lockstep(BARE, CORES).run(1.0, [Collective(1.0, exchanges)]) == pytest.approx(1.0 + alone_s)


def test_sums_on_the_simulated_network_are_those_in_order():
    size, count = 64, 1003
    flats = [np.random.default_rng(rank).normal(size=count).astype(np.float32) for rank in range(size)]
    wanted = flats[0].copy()
    for flat in flats[1:]:
        wanted = wanted + flat
    simulation = Simulation(size, LINKS[1])
    calls = simulation.begin(0.0, "sum", sums(size, count, flats))
    simulation.run()
    assert [call.wait(0).tolist() for call in calls] == [[True, True]] * size
    assert {flat.tobytes() for flat in flats} == {wanted.tobytes()}


@pytest.mark.parametrize("size", [64, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_gradients_of_a_model_are_those_of_one_process_that_adds_in_order(size: int):
    sg.manual_seed(0)
    model = sg.nn.Sequential(sg.nn.Linear(8, 16), sg.nn.Tanh(), sg.nn.Linear(16, 1))
    parameters = list(model.parameters())
    flats = []
    for rank in range(size):
        x = sg.randn(4, 8, generator=sg.Generator(rank))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / size
        flats.append(np.concatenate([gradient.numpy().reshape(-1) for gradient in sg.grad(loss, parameters)]))
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean() / size
        loss.backward()  # one process, which adds each to those before
    wanted = np.concatenate([parameter.grad.numpy().reshape(-1) for parameter in parameters])
    bounds = np.cumsum([0, *(parameter.numel() for parameter in parameters)]).tolist()
    parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
    present, before = np.ones(len(parts), bool), [None] * len(parts)
    run_together([gradient_sums(rank, size, flats[rank], parts, present, before, 1.0) for rank in range(size)])
    assert {flat.tobytes() for flat in flats} == {wanted.tobytes()}


def test_a_damaged_message_is_found_on_the_simulated_network():
    simulation = Simulation(3, BARE)
    arrays = [np.ones(10_000, np.float32) for _ in range(3)]
    match = simulation._match

    def damage(key: tuple[int, int, int]) -> None:
        for end in simulation._arrived[key]:
            if key[:2] == (1, 2) and end.array.nbytes > 1000:
                end.array = end.array.copy()
                end.array[3] += 1
        match(key)

    simulation._match = damage  # type: ignore[method-assign]
    calls = simulation.begin(0.0, "sum", lambda rank: collective_steps.all_reduce(rank, 3, arrays[rank], np.add))
    simulation.run()
    errors = [str(call.error) for call in calls if call.error is not None]
    assert any("rank 2 received damaged bytes from rank 1" in error for error in errors)
