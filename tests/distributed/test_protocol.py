"""The protocol without MPI: in whatever order messages arrive, results are the same, and no damage is used."""

import functools

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributed import collective_steps, protocol
from spillgrad.distributed.protocol import Steps, alone
from spillgrad.errors import DistributedError
from spillgrad.nn.parallel.gradient_buckets import Bucket
from spillgrad.nn.parallel.gradient_sums import Former, sum_runs
from spillgrad.spill.offload.shards import ranges
from spillgrad_kernels.cpu.optim import CHUNK
from tests.distributed.network import Network, call_all, gradient_sums, protocols, run

SIZES = [1, 2, 3, 5, 8]


def values(rank: int, count: int) -> np.ndarray:
    return np.random.default_rng((rank, count)).normal(size=count).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 3, 4099, 100_003])
def test_sums_are_those_in_the_order_of_the_ranks(size: int, count: int, seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_steps, "AT_ONCE_BYTES", 1 << 17)  # several exchanges
    network = Network(seed)
    ranks = protocols(network, size)
    arrays = [values(rank, count) for rank in range(size)]
    wanted = arrays[0].copy()
    for array in arrays[1:]:
        wanted = wanted + array
    calls = call_all(ranks, "sum", lambda rank: collective_steps.all_reduce(rank, size, arrays[rank], np.add))
    run(network, ranks)
    for call, array in zip(calls, arrays, strict=True):
        call.wait(0)
        assert array.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_each_rank_sends_no_more_than_in_a_ring(size: int):
    network = Network()
    ranks = protocols(network, size)
    arrays = [values(rank, 1 << 20) for rank in range(size)]
    nbytes = arrays[0].nbytes
    call_all(ranks, "sum", lambda rank: collective_steps.all_reduce(rank, size, arrays[rank], np.add))
    run(network, ranks)
    ring = 2 * nbytes * (size - 1) / size
    assert max(network.sent_bytes.values()) < ring * 1.01


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("count", [3, 50_000])
def test_a_broadcast_reaches_all(size: int, source: int, count: int):
    source %= size
    network = Network(1)
    ranks = protocols(network, size)
    arrays = [values(rank, count) for rank in range(size)]
    call_all(ranks, "broadcast", lambda rank: collective_steps.broadcast(rank, size, source, arrays[rank]))
    run(network, ranks)
    assert {array.tobytes() for array in arrays} == {values(source, count).tobytes()}
    assert network.sent_bytes[source] <= 2 * count * 4 + 1000 * size


def test_many_calls_at_once_do_not_mix():
    network = Network(2)
    ranks = protocols(network, 3)
    arrays = [[values(10 * rank + number, 5000 + number) for number in range(100)] for rank in range(3)]
    wanted = [np.add(np.add(*pair), third) for *pair, third in zip(*arrays, strict=True)]
    for number in range(100):  # more than there are tags
        call_all(
            ranks, f"sum {number}", lambda rank, n=number: collective_steps.all_reduce(rank, 3, arrays[rank][n], np.add)
        )
    run(network, ranks)
    for found in arrays:
        assert all(one.tobytes() == other.tobytes() for one, other in zip(found, wanted, strict=True))


def test_different_calls_are_one_error_on_all_ranks_and_end_the_group():
    network = Network()
    ranks = protocols(network, 3)
    arrays = [values(rank, 10) for rank in range(3)]
    before = [array.copy() for array in arrays]
    calls = [
        ranks[0].begin("sum of 10", "a.py:1", collective_steps.all_reduce(0, 3, arrays[0], np.add)),
        ranks[1].begin("barrier", "b.py:2", collective_steps.barrier()),
        ranks[2].begin("sum of 10", "a.py:1", collective_steps.all_reduce(2, 3, arrays[2], np.add)),
    ]
    run(network, ranks)
    told = "collective 1 differs between ranks: ranks 0, 2: sum of 10, a.py:1; rank 1: barrier, b.py:2. Call the same"
    for call in calls:
        with pytest.raises(DistributedError, match=told):
            call.wait(0)
    assert all((one == other).all() for one, other in zip(arrays, before, strict=True))
    with pytest.raises(DistributedError, match="collective 1 differs"):
        ranks[0].begin("barrier", "a.py:2", collective_steps.barrier())


def test_a_failure_ends_what_was_begun_and_not_yet_sent():
    (alone_of_two, _) = protocols(Network(), 2)
    call = alone_of_two.begin("barrier", "a.py:1", collective_steps.barrier())
    alone_of_two.fail(DistributedError("the group has ended"))
    with pytest.raises(DistributedError, match="the group has ended"):
        call.wait(0)


def test_damaged_bytes_are_an_error_and_are_not_added():
    network = Network()
    ranks = protocols(network, 2)
    arrays = [values(rank, 10_000) for rank in range(2)]
    before = arrays[1].copy()

    def damage(source: int, target: int, received: np.ndarray) -> None:
        if target == 1 and received.nbytes > 1000:
            received[17] ^= 1

    network.damage = damage
    calls = call_all(ranks, "sum", lambda rank: collective_steps.all_reduce(rank, 2, arrays[rank], np.add))
    run(network, ranks)
    with pytest.raises(
        DistributedError, match="sum, test: rank 1 received damaged bytes from rank 0; check the network"
    ):
        calls[1].wait(0)
    assert (arrays[1] == before).all()


def test_who_waits_long_says_for_whom_and_gives_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    network = Network()
    ranks = protocols(network, 3)
    now_s = [0.0]
    monkeypatch.setattr(protocol.time, "monotonic", lambda: now_s[0])
    calls = [ranks[rank].begin("barrier", "a.py:1", collective_steps.barrier()) for rank in (0, 2)]
    run(network, ranks)
    now_s[0] = 31.0
    run(network, ranks)
    told = [f"spillgrad: rank {rank} has waited for rank 1 for 31 s: barrier, a.py:1\n" for rank in (0, 2)]
    assert sorted(capsys.readouterr().err.splitlines(keepends=True)) == told
    now_s[0] = 59.0
    run(network, ranks)
    assert capsys.readouterr().err == ""
    now_s[0] = 400.0
    run(network, ranks)
    with pytest.raises(
        DistributedError, match=r"rank 0 has waited for rank 1 for 400 s: .*; the time-out of the group is 60"
    ):
        calls[0].wait(0)


def test_an_error_in_one_call_reaches_who_waits():
    def broken():
        raise MemoryError("no memory")
        yield

    network = Network()
    ranks = protocols(network, 2)
    calls = call_all(ranks, "sum", lambda rank: broken())
    run(network, ranks)
    with pytest.raises(DistributedError, match=r"sum: MemoryError\('no memory'\)"):
        calls[0].wait(0)


def gradients(size: int, divisor: float, has: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    parts = [slice(0, 7), slice(7, 5000), slice(5000, 5001), slice(5001, 20_000)]
    before = [None, Former(7, values(90, 4993)), Former(5000, values(91, 1)), None]
    flats = [values(rank, 20_000) for rank in range(size)]
    wanted = np.zeros(20_000, np.float32)
    for number, part in enumerate(parts):
        former = before[number]
        terms = [] if former is None else [former.array]
        terms += [flats[rank][part] / np.float32(divisor) for rank in range(size) if has[rank, number]]
        for place, term in enumerate(terms):
            wanted[part] = term if place == 0 else wanted[part] + term
    network = Network(size)
    ranks = protocols(network, size)
    calls = call_all(
        ranks, "gradients", lambda rank: gradient_sums(rank, size, flats[rank], parts, has[rank], before, divisor)
    )  # fmt: skip
    run(network, ranks)
    for call in calls:
        assert call.wait(0).tolist() == has.any(0).tolist()
    return flats, wanted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_gradients_add_up_on_top_of_those_before_as_far_as_ranks_have_them(size: int, divisor: float):
    has = np.random.default_rng(size).random((size, 4)) < 0.7
    flats, wanted = gradients(size, divisor, has)
    there = np.repeat(has.any(0) | [False, True, True, False], [7, 4993, 1, 14_999])
    for flat in flats:
        assert flat[there].tobytes() == wanted[there].tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_each_rank_has_a_run_of_whole_chunks_of_a_bucket(size: int):
    parameters = [sg.zeros(*shape) for shape in ((7,), (100, 123), (), (3 * CHUNK,), (0,), (CHUNK + 1,))]
    bucket = Bucket(range(6), parameters)
    runs, parts = ranges(bucket, size)
    assert np.concatenate([np.arange(bucket.size)[each] for each in runs]).tolist() == list(range(bucket.size))
    chunks = [sum(-(-(of[rank].stop - of[rank].start) // CHUNK) for of in parts) for rank in range(size)]
    assert max(chunks) - min(chunks) <= 1
    for parameter, part, of_ranks in zip(parameters, bucket.parts, parts, strict=True):
        assert sum(each.stop - each.start for each in of_ranks) == parameter.numel()
        for each, of_bucket in zip(of_ranks, runs, strict=True):
            assert each.start % CHUNK == 0 or each.start == each.stop
            if each.start < each.stop:
                assert of_bucket.start <= part.start + each.start
                assert part.start + each.stop <= of_bucket.stop


@pytest.mark.parametrize("size", SIZES)
def test_each_rank_gets_its_part_of_the_sum_of_gradients(size: int):
    parameters = [sg.zeros(count) for count in (7, 3 * CHUNK + 5, 1, CHUNK)]
    bucket = Bucket(range(4), parameters)
    runs, parts = ranges(bucket, size)
    has = np.random.default_rng(size).random((size, 4)) < 0.7
    flats = [values(rank, bucket.size) for rank in range(size)]
    sums = values(90, bucket.sizes[1])
    totals = [np.full(each.stop - each.start, np.nan, np.float32) for each in runs]

    def steps(rank: int) -> Steps:
        own = parts[1][rank]
        before = [None, Former(bucket.parts[1].start + own.start, sums[own]), None, None]
        return sum_runs(rank, flats[rank], runs, totals[rank], bucket.parts, has[rank], before, 2.0)

    network = Network(size)
    ranks = protocols(network, size)
    calls = call_all(ranks, "gradients", steps)
    run(network, ranks)
    for call in calls:
        assert call.wait(0).tolist() == has.any(0).tolist()
    found = np.concatenate(totals)
    for number, part in enumerate(bucket.parts):
        terms = [sums] if number == 1 else []
        terms += [flats[rank][part] / np.float32(2) for rank in range(size) if has[rank, number]]
        if terms:
            assert found[part].tobytes() == functools.reduce(np.add, terms).tobytes()


def test_a_process_alone_does_the_same_steps():
    array = values(0, 100_000)
    alone(collective_steps.all_reduce(0, 1, array, np.add))
    assert (array == values(0, 100_000)).all()
    item = collective_steps.pickled("x")
    assert alone(collective_steps.all_gather_object(1, item)) == ["x"]
    assert alone(collective_steps.scatter_object(1, 0, [item])) == "x"
    assert alone(collective_steps.gather_object(0, 1, 0, item)) == ["x"]
