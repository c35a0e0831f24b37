"""What the planner says of several processes: their traffic, their time, and how many are worth it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributed.link import Link, parse_latency, parse_link
from spillgrad.distributed.wires import EXACT, WIRES, Wire
from spillgrad.errors import ArgumentError
from spillgrad.nn.parallel.gradient_buckets import buckets_of, default_bucket_bytes
from spillgrad.nn.parallel.gradient_reducer import MOST_COPIES_BYTES
from spillgrad.spill.offload.needs import Sharing
from spillgrad.spill.planning.plan import plan
from spillgrad.spill.planning.predict import Whole
from spillgrad.spill.planning.profile import OUTSIDE, Profile, profile
from spillgrad.spill.planning.record import Part, Unit
from spillgrad.spill.planning.scaling import Bucket, Scaling, buckets, gathered, numbers_up_to, recommended, scale
from spillgrad.storage.residency.belady import Item

FLOAT = np.dtype(np.float32)
QUICK = sg.planning.Machine(2, 1e11, sg.planning.Disk(1e12, 1e12, 0.0, 1 << 40))
IDX = np.random.default_rng(0).integers(0, 256, (2, 33))
MIB = 1 << 20
# Only bytes take time: 100 MiB/s.
BARE = Link(100 * MIB, 0.0, 0.0, 0.0, 0.0)
CORES = 2
# Parameters of a layer, of the embedding before and of the norm behind all layers, in elements.
LAYER, EMBEDDING, NORM = 10 * MIB // 4, 20 * MIB // 4, 1024 // 4
FORWARD_S, BACKWARD_S, UPDATE_S = 1.0, 4.0, 0.5


def made_up(offload: bool = False, accumulate: int = 1) -> Profile:
    """Return a model of layers that take a second of backward each, and whose head takes two."""
    return Profile(
        layers="h",
        offload=offload,
        parameter_bytes={OUTSIDE: (EMBEDDING + NORM) * 4, 0: LAYER * 4, 1: LAYER * 4},
        trained_bytes={OUTSIDE: (EMBEDDING + NORM) * 4, 0: LAYER * 4, 1: LAYER * 4},
        items=[], units=[], freed_by=[], events=[],
        phase_s={"forward": FORWARD_S, "backward": BACKWARD_S, "update": UPDATE_S},
        layer_s={"forward": 0.25, "backward": 1.0},
        recomputable=[Unit(Part(f"h.{number}", 10, 1.0)) for number in range(2)],
        held={("update", OUTSIDE): 1000},
        least_budget=0,
        state_bytes={OUTSIDE: (EMBEDDING + NORM) * 8, 0: LAYER * 8, 1: LAYER * 8},
        base_bytes=10_000,
        mapped_per_live=1.0,
        accumulate=accumulate,
        trained=((OUTSIDE, FLOAT, EMBEDDING), (0, FLOAT, LAYER), (1, FLOAT, LAYER), (OUTSIDE, FLOAT, NORM)),
    )  # fmt: skip


def scaled(ranks: list[int], depth: int = 2, link: Link = BARE, wire: Wire = EXACT, **about: object) -> list[Scaling]:
    whole = Whole(made_up(**about), depth, QUICK)  # type: ignore[arg-type]
    return scale(whole, 0, link, CORES, ranks, wire=wire)


def test_gradients_are_ready_from_the_last_layer_on():
    found = Whole(made_up(), 4, QUICK).gradients()
    assert [each.count for each in found] == [EMBEDDING, *[LAYER] * 4, NORM]
    # Backward takes 6 s: 2 of the head, and one of each layer.
    assert [each.ready_share for each in found] == pytest.approx([1.0, 6 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6])


def test_a_layers_gradients_are_ready_one_after_the_other():
    whole = Whole(dataclasses.replace(made_up(), trained=((0, FLOAT, 1), (1, FLOAT, 100), (1, FLOAT, 300))), 2, QUICK)
    # The last layer begins after half of backward; its second parameter is three quarters of it.
    assert [each.ready_share for each in whole.gradients()] == pytest.approx([1.0, 0.75, 0.5 + 0.25 * 0.75])


def test_a_model_without_layers_is_ready_evenly():
    parameters = ((OUTSIDE, FLOAT, 100), (OUTSIDE, FLOAT, 300))
    whole = Whole(dataclasses.replace(made_up(), layers=None, trained=parameters), 1, QUICK)
    assert [each.ready_share for each in whole.gradients()] == [1.0, 0.75]


def test_the_buckets_are_those_of_distributed_data_parallel(tmp_path: Path):
    def build(layers: int) -> sg.nn.Module:
        return sg.models.build("small", n_layer=layers)

    found = profile(
        build, 10, lambda model: model(IDX[:, :-1], IDX[:, 1:])[1], lambda these: sg.optim.SGD(these, lr=0.1),
        tmp_path, ram_budget=1 << 30, offload=False,
    )  # fmt: skip
    planned = buckets(Whole(found, 10, QUICK), 3)
    parameters = list(build(10).parameters())
    real = buckets_of(parameters, default_bucket_bytes(sum(parameter.nbytes for parameter in parameters), 3))
    assert len(planned) > 2
    assert [(each.count, each.parts) for each in planned] == [(each.size, len(each.places)) for each in real]
    shares = [each.ready_share for each in planned]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.5
    assert shares[-1] == 1


def test_one_process_takes_the_time_of_a_plan_and_sends_nothing():
    (alone,) = scaled([1])
    assert alone.step_s == pytest.approx(FORWARD_S + BACKWARD_S + UPDATE_S)
    assert (alone.network_s, alone.exposed_s, alone.sent_bytes, alone.efficiency) == (0, 0, 0, 1)


def test_what_travels_while_backward_computes_costs_nothing_and_the_rest_is_exposed():
    """Each of six layers travels alone; the last one is ready with the embedding, at the end of backward."""
    _, two = scaled([1, 2], depth=6)
    total = 4 * (6 * LAYER + EMBEDDING + NORM)
    assert two.sent_bytes == pytest.approx(total, rel=1e-3)  # headers and digests are the rest
    assert two.network_s == pytest.approx(total / BARE.bytes_per_s, rel=1e-3)
    assert two.exposed_s == pytest.approx(4 * (LAYER + EMBEDDING) / BARE.bytes_per_s, rel=1e-2)
    assert two.step_s == pytest.approx(two.compute_s + two.exposed_s)
    assert two.efficiency == pytest.approx(two.compute_s / two.step_s)


def test_the_processes_share_the_batches_of_a_step():
    rows = scaled([1, 2, 4, 8], accumulate=4)
    assert [row.batches for row in rows] == [4, 4, 4, 8]
    computing = [4 * 5.0, 2 * 5.0, 5.0, 5.0]
    assert [row.step_s - row.exposed_s for row in rows] == pytest.approx([each + UPDATE_S for each in computing])
    assert rows[1].sent_bytes == pytest.approx(2 * scaled([1, 2])[1].sent_bytes, rel=1e-3)  # in each of two rounds
    assert rows[0].efficiency > rows[1].efficiency > rows[2].efficiency


def test_a_slow_network_and_many_messages_cost_more():
    fast, slow = (scaled([1, 8], link=Link(rate, 1e-4))[1] for rate in (1e9, 1e7))
    assert slow.step_s > fast.step_s
    cheap, dear = (scaled([1, 500], link=Link(1e9, 1e-4, 0.0, busy_s))[1] for busy_s in (0.0, 1e-4))
    assert dear.sent_messages == cheap.sent_messages > 499 * 12
    assert dear.exposed_s > cheap.exposed_s + 0.5 * dear.sent_messages * 1e-4 / CORES


def test_sharded_state_sends_as_much_and_updates_a_part():
    whole = scaled([1, 4])[1]
    alone, sharded = scaled([1, 4], offload=True)
    assert sharded.sent_bytes == pytest.approx(whole.sent_bytes, rel=1e-2)
    # In a step of several rounds, gradients go one way in each, and parameters once.
    more = [scaled([1, 2], offload=is_sharded, accumulate=8)[1].sent_bytes for is_sharded in (False, True)]
    assert more[1] / more[0] == pytest.approx((4 + 1) / (4 + 4), rel=1e-2)
    assert sharded.compute_s == pytest.approx(alone.compute_s - UPDATE_S * 3 / 4)


def test_the_gradients_that_travel_take_memory():
    alone, two = scaled([1, 2])
    assert two.peak_bytes == alone.peak_bytes
    alone, two = scaled([1, 2], accumulate=4)
    assert two.peak_bytes - alone.peak_bytes == min(MOST_COPIES_BYTES, 4 * (2 * LAYER + EMBEDDING + NORM))


def test_numbers_are_powers_of_two_and_the_last_one():
    assert [numbers_up_to(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_as_many_are_recommended_as_keep_four_fifths_of_their_speed():
    rows = [dataclasses.replace(scaled([1])[0], ranks=ranks, efficiency=share) for ranks, share in
            ((1, 1.0), (2, 0.9), (4, 0.8), (8, 0.7))]  # fmt: skip
    assert recommended(rows) == 4
    assert recommended(rows[:1]) == 1
    assert recommended([rows[0], rows[3]]) == 1


def test_a_bucket_is_summed_by_all():
    sent = list(Bucket(0.5, 1000, 4, 3).traffic(4, is_sharded=False))
    assert [each[0].nbytes for each in sent] == [416, 11, 1008, 1008]


def test_a_plan_for_several_processes_says_what_each_number_does(tmp_path: Path):
    found = plan("tiny", 2, 32, "2GiB", tmp_path, machine=QUICK, ranks=6, link=Link(1e9, 1e-5))
    assert [row.ranks for row in found.scaling] == [1, 2, 4, 6]
    assert found.scaling[0].step_s == pytest.approx(found.prediction.step_s)
    assert found.recommended_ranks in (1, 2, 4, 6)
    told = found.as_dict()
    assert told["link"]["bytes_per_s"] == 1e9
    assert set(told["scaling"][1]) == {field.name for field in dataclasses.fields(Scaling)}
    alone = plan("tiny", 2, 32, "2GiB", tmp_path, machine=QUICK)
    assert (alone.link, alone.scaling, alone.recommended_ranks) == (None, (), 1)


def test_several_processes_without_a_network_are_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="got ranks 2; wanted the network between them"):
        plan("tiny", 2, 32, "2GiB", tmp_path, machine=QUICK, ranks=2)
    with pytest.raises(ArgumentError, match="got ranks 0; wanted at least 1"):
        plan("tiny", 2, 32, "2GiB", tmp_path, machine=QUICK, ranks=0)


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("1Gbit", 1e9 / 8 * 1448 / 1538), ("100 Mbit/s", 1e8 / 8 * 1448 / 1538), ("10gbps", 1e10 / 8 * 1448 / 1538),
        ("117MB/s", 117e6), ("1.5GB", 1.5e9), ("500 bytes/s", 500),
    ],
)  # fmt: skip
def test_speeds_are_bits_of_the_wire_or_bytes_of_data(text: str, wanted: float):
    assert parse_link(text) == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["", "1", "Gbit", "0Gbit", "-1Gbit", "1Gb", "1Gbit/h", "1 GiB", "1e9bit"])
def test_what_is_no_speed_is_refused(text: str):
    with pytest.raises(ArgumentError, match=r"link: got .*; wanted a speed such as '1Gbit'"):
        parse_link(text)


@pytest.mark.parametrize("text, wanted", [("50us", 5e-5), ("50 µs", 5e-5), ("0.2ms", 2e-4), ("1s", 1.0), ("0ns", 0.0)])
def test_latencies_have_units(text: str, wanted: float):
    assert parse_latency(text) == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["", "50", "ms", "-1ms", "1h"])
def test_what_is_no_latency_is_refused(text: str):
    with pytest.raises(ArgumentError, match=r"latency: got .*; wanted a time such as '50us'"):
        parse_latency(text)


@pytest.mark.parametrize("name, share", [("bfloat16", 1 / 2), ("int8", 0.379)])
def test_fewer_bits_send_less_and_hide_better(name: str, share: float):
    exact, fewer = (scaled([1, 2], wire=wire)[1] for wire in (EXACT, WIRES[name]))
    assert fewer.sent_bytes / exact.sent_bytes == pytest.approx(share, rel=0.01)
    assert fewer.exposed_s / exact.exposed_s == pytest.approx(share, rel=0.02)
    assert fewer.peak_bytes - exact.peak_bytes == 4 * (2 * LAYER + EMBEDDING + NORM) // 2  # the exact sums
    state = [scaled([1, 2], offload=True, wire=wire)[1].sent_bytes for wire in (EXACT, WIRES[name])]
    assert state[1] / state[0] == pytest.approx((WIRES[name].value_bytes + 4) / 8, rel=0.01)  # parameters are whole


@pytest.mark.parametrize("total, ranks, most", [(1, 2, MIB), (600 << 12, 2, 600 << 11), (1 << 40, 2, 25 * MIB),
                                                (1 << 40, 1000, 1000 << 16), (1, 100, 100 << 16)])  # fmt: skip
def test_small_models_have_small_buckets_and_many_processes_large_ones(total: int, ranks: int, most: int):
    assert default_bucket_bytes(total, ranks) == most


def test_parameters_in_parts_travel_in_forward_and_backward():
    """A forward gathers them; a backward gathers them and sums gradients; an update sends nothing but the norm."""
    all_, state = (
        scale(Whole(made_up(offload=True), 6, QUICK), 0, BARE, CORES, [1, 2], cuts_parameters=cuts)[1]
        for cuts in (True, False)
    )
    large, norm = 4 * (6 * LAYER + EMBEDDING), 4 * NORM
    assert all_.sent_bytes == pytest.approx((3 * large + 2 * norm) / 2, rel=1e-3)
    assert state.sent_bytes == pytest.approx(large + norm, rel=1e-3)
    # Forward takes 2 s, and its gathers 0.4; what backward has at its end is the sum of the embedding and one layer.
    assert all_.network_s == pytest.approx(1.5 * large / BARE.bytes_per_s, rel=1e-2)
    assert all_.exposed_s == pytest.approx(2 * (LAYER + EMBEDDING) / BARE.bytes_per_s, rel=5e-2)


def test_a_parameter_travels_while_the_one_before_is_used():
    whole = Whole(made_up(offload=True), 4, QUICK)
    parts = gathered(whole, Sharing(2, EXACT, cuts_parameters=True))
    # Backward takes 6 s: 2 of the head and one of each layer; with the first layer, the embedding is finished.
    assert [each.count for each in parts] == [LAYER] * 4 + [EMBEDDING]
    assert [each.backward_share for each in parts] == pytest.approx([0, 2 / 6, 3 / 6, 4 / 6, 5 / 6])
    assert [each.forward_share for each in parts] == pytest.approx([2 / 6, 1 / 6, 0, 0, 0], abs=1e-9)
    assert gathered(whole, Sharing(2, EXACT)) == []
    assert gathered(whole, Sharing(1, EXACT, cuts_parameters=True)) == []


def test_frozen_parameters_in_parts_travel_without_gradients():
    about = dataclasses.replace(
        made_up(offload=True), trained=((0, FLOAT, 10), (1, FLOAT, 10)), frozen=((0, FLOAT, LAYER), (1, FLOAT, LAYER))
    )
    _, two = scale(Whole(about, 2, QUICK), 0, BARE, CORES, [1, 2], cuts_parameters=True)
    assert two.sent_bytes == pytest.approx(2 * 4 * 2 * LAYER / 2, rel=1e-3)


def test_only_parts_of_arrays_that_live_on_are_moved():
    items = [Item(4 * MIB, persistent=True), Item(4 * MIB), Item(4000, persistent=True)]
    whole = Whole(dataclasses.replace(made_up(offload=True), items=items, units=[0, 1, 1]), 2, QUICK)
    found = whole.in_parts(Sharing(4, EXACT, cuts_parameters=True)).profile.items
    assert [item.nbytes for item in found] == [MIB, 4 * MIB, 4000]
