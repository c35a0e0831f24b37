"""The formats in which gradients travel: what arrives is close, and the same however a bucket is cut."""

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.distributed import collective_steps, traffic
from spillgrad.distributed.wires import EXACT, WIRES, Wire
from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.nn.parallel.gradient_sums import Former
from tests.distributed.network import Network, call_all, gradient_sums, protocols, run

LOSSY = [pytest.param(wire, id=name) for name, wire in WIRES.items() if wire is not EXACT]
SIZES = [7, 0, 4993, 1, 128, 14_999]
PARTS = [slice(*pair) for pair in itertools.pairwise(np.cumsum([0, *SIZES]).tolist())]


def values(seed: int, count: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=count) * 10.0 ** rng.integers(-4, 4, count)).astype(np.float32)


def arrived(wire: Wire, flat: np.ndarray, parts: list[slice]) -> np.ndarray:
    """Return what arrives of a whole bucket."""
    whole = slice(0, flat.size)
    with np.errstate(all="ignore"):
        packed = wire.pack(flat, parts)
        return wire.unpack(packed.values, packed.scales_in(packed.scales, whole, whole))


def test_bfloat16_rounds_to_nearest():
    flat = values(0, 10_000)
    wanted = flat.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert arrived(WIRES["bfloat16"], flat, [slice(0, flat.size)]).tobytes() == wanted.tobytes()


def test_int8_is_within_half_a_level_of_its_block():
    flat = values(0, PARTS[-1].stop)
    found = arrived(WIRES["int8"], flat, PARTS)
    for part in PARTS:
        for start in range(part.start, part.stop, 128):
            block = slice(start, min(start + 128, part.stop))
            largest = np.abs(flat[block]).max()
            assert np.abs(found[block] - flat[block]).max() <= largest / 127 * 0.5001
            assert np.abs(found[block]).max() == pytest.approx(largest, rel=1e-6)


def test_what_is_not_finite_arrives_as_such_and_spoils_its_block_alone():
    flat = np.ones(400, np.float32)
    flat[[5, 299]] = np.inf, np.nan
    found = arrived(WIRES["bfloat16"], flat, [slice(0, 400)])
    assert np.isinf(found[5]) and np.isnan(found[299]) and np.isfinite(found).sum() == 398
    found = arrived(WIRES["int8"], flat, [slice(0, 400)])
    assert np.isnan(found[:128]).all() and np.isnan(found[256:384]).all()
    assert (found[128:256] == 1).all() and (found[384:] == 1).all()


@pytest.mark.parametrize("scale", [3e38, 1e-36, 1e-45, 0.0])
def test_the_largest_and_the_smallest_numbers_travel(scale: float):
    flat = np.full(300, scale, np.float32) * np.where(np.arange(300) % 2, 1, -1).astype(np.float32)
    found = arrived(WIRES["int8"], flat, [slice(0, 300)])
    assert found == pytest.approx(flat, rel=1e-6, abs=127 * 2.0**-126)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_sums_are_those_of_rounded_gradients_for_any_number_of_ranks(
    wire: Wire, size: int, divisor: float, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(collective_steps, "AT_ONCE_BYTES", 1 << 15)  # several exchanges
    count = PARTS[-1].stop
    has = np.random.default_rng(size).random((size, len(PARTS))) < 0.7
    before = [None, None, Former(7, values(90, 4993)), None, None, None]
    flats = [values(rank, count) for rank in range(size)]
    wanted = np.zeros(count, np.float32)
    for number, part in enumerate(PARTS):
        former = before[number]
        terms = [] if former is None else [former.array]
        terms += [
            arrived(wire, flats[rank], PARTS)[part] / np.float32(divisor) for rank in range(size) if has[rank, number]
        ]
        for place, term in enumerate(terms):
            wanted[part] = term if place == 0 else wanted[part] + term
    network = Network(size)
    ranks = protocols(network, size)
    calls = call_all(
        ranks,
        "gradients",
        lambda rank: gradient_sums(rank, size, flats[rank], PARTS, has[rank], before, divisor, wire),
    )
    run(network, ranks)
    for call in calls:
        assert call.wait(0).tolist() == has.any(0).tolist()
    there = np.repeat(has.any(0) | [former is not None for former in before], SIZES)
    for flat in flats:
        assert flat[there].tobytes() == arrived(wire.back, wanted, PARTS)[there].tobytes()


@pytest.mark.parametrize("wire", LOSSY)
@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_model_of_traffic_knows_how_many_bytes_travel(wire: Wire, size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collective_steps, "AT_ONCE_BYTES", 1 << 19)
    count = 100_003
    flats = [np.ones(count, np.float32) for _ in range(size)]
    network = Network()
    ranks = protocols(network, size)
    call_all(
        ranks,
        "gradients",
        lambda rank: gradient_sums(rank, size, flats[rank], [slice(0, count)], np.ones(1, bool), [None], 1.0, wire),
    )
    run(network, ranks)
    told = traffic.total(list(traffic.sum_of_gradients(size, count, 4, 1, wire=wire)))
    assert sum(network.sent_bytes.values()) == pytest.approx(size * told.nbytes, rel=0.001)
    exact = traffic.total(list(traffic.sum_of_gradients(size, count, 4, 1)))
    assert told.nbytes / exact.nbytes == pytest.approx({"bfloat16": 1 / 2, "int8": 0.379}[wire.name], rel=0.01)


@pytest.mark.parametrize("wire", LOSSY)
def test_other_dtypes_travel_as_they_are(wire: Wire):
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16, np.complex64):
        assert wire.of(np.dtype(dtype)) is EXACT
    flats = [np.full(1000, 1 / 3) for _ in range(2)]
    network = Network()
    ranks = protocols(network, 2)
    call_all(
        ranks,
        "gradients",
        lambda rank: gradient_sums(rank, 2, flats[rank], [slice(0, 1000)], np.ones(1, bool), [None], 1.0, EXACT),
    )
    run(network, ranks)
    assert (flats[0] == 2 / 3).all()


@pytest.mark.parametrize("wire", ["bfloat16", "int8"])
@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_an_offload_alone_rounds_gradients_as_several_processes_do(tmp_path: Path, wire: str, max_norm: float | None):
    def made() -> sg.nn.Module:
        sg.manual_seed(0)
        return sg.nn.Sequential(sg.nn.Linear(70, 50), sg.nn.GELU(), sg.nn.Linear(50, 3))

    offload = sg.disk_offload(made, sg.optim.AdamW, tmp_path, ram_budget="200KiB", max_grad_norm=max_norm, wire=wire)
    model = made()
    optimizer = sg.optim.AdamW(model.parameters())
    for _ in range(2):
        for number in range(2):
            x = sg.randn(4, 70, generator=sg.Generator(number))
            with sg.save_on_disk(offload):
                loss = offload.model(x).square().mean()
            loss.backward()
            gradients = sg.autograd.grad(model(x).square().mean(), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                flat = gradient.numpy().reshape(-1)
                term = sg.tensor(arrived(WIRES[wire], flat, [slice(0, flat.size)])).reshape(gradient.shape)
                parameter.grad = term if parameter.grad is None else parameter.grad + term
        if max_norm is not None:
            sg.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for each in (offload.optimizer, optimizer):
            each.step()
            each.zero_grad()
    for found, wanted in zip(offload.model.parameters(), model.parameters(), strict=True):
        assert found.numpy().tobytes() == wanted.numpy().tobytes()
    assert offload.stats().peak_ram_bytes <= 200 << 10
    assert {path.name for path in sg.save_checkpoint(tmp_path / "saved", offload.model, offload.optimizer).iterdir()}
    with pytest.raises(
        UnsupportedError, match='give another optimizer, such as AdamW, or shard=None and wire="float32"'
    ):
        sg.disk_offload(made, sg.optim.Adafactor, tmp_path, ram_budget="1MiB", wire=wire)


def test_other_names_are_refused():
    told = r"got wire='bf16'; wanted 'float32', 'bfloat16', 'int8'"
    with pytest.raises(ArgumentError, match=f"disk_offload: {told}"):
        sg.disk_offload(sg.nn.Linear(2, 2), ram_budget="1MiB", wire="bf16")
    with pytest.raises(ArgumentError, match=f"DistributedDataParallel: {told}"):
        sg.nn.parallel.DistributedDataParallel(sg.nn.Linear(2, 2), wire="bf16")
