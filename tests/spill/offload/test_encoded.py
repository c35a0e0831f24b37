"""Arrays whose codes are in a store: the numbers of codes and scales that belong together, whatever the disk does."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad.errors import SpillError
from spillgrad.spill.offload.encoded import EncodingStore
from spillgrad.spill.offload.residents import Resident, Residents
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
from spillgrad_kernels.cpu.state_codes import decode, encode

LABEL = Label("state", "exp_avg", "layer.weight")
SHAPE = (40, 300)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    with contextlib.closing(DiskStore(tmp_path, ram_budget="1MiB")) as opened:
        yield opened


def numbers(seed: int) -> np.ndarray:
    return np.abs(np.random.default_rng(seed).standard_normal(SHAPE, np.float32))


def resident(store: DiskStore, kind: str, array: np.ndarray) -> Resident:
    over, found = EncodingStore(store, kind), Resident()
    found.place(Residents(store), over, over.put(array, label=LABEL, persistent=True), array)
    return found


def change(one: Resident, to: np.ndarray) -> None:
    one.begin_change()
    one.array[:] = to
    one._residents.return_changed(with_last=True)


@pytest.mark.parametrize("kind", ["signed", "unsigned", "nearest"])
def test_numbers_are_those_of_the_codes_before_and_after_a_change(kind: str, store: DiskStore) -> None:
    one = resident(store, kind, numbers(0))
    np.testing.assert_array_equal(one.array, decode(encode(numbers(0), kind)))
    change(one, numbers(1))
    np.testing.assert_array_equal(one.array, decode(encode(numbers(1), kind)))
    store.flush()
    encoded = encode(numbers(1), kind)
    assert store.live_bytes == encoded.codes.nbytes + (0 if encoded.scales is None else encoded.scales.nbytes)


def test_random_rounding_depends_on_the_numbers_alone(store: DiskStore) -> None:
    first, second = resident(store, "random", numbers(0)), resident(store, "random", numbers(1))
    once = first.array.copy()
    change(second, numbers(0))
    np.testing.assert_array_equal(second.array, once)
    change(second, once)  # which bfloat16 has
    np.testing.assert_array_equal(second.array, once)
    between = numbers(0)
    assert (once > between).any() and (once < between).any()
    assert abs(once - between).max() < between.max() / 128


@pytest.mark.parametrize("refused", [0, 1])
def test_a_change_that_cannot_begin_leaves_the_former_numbers(
    refused: int, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = resident(store, "signed", numbers(0))
    wanted, begin, calls = one.array.copy(), store.begin_change, []

    def begin_change(handle: Any, array: np.ndarray) -> None:
        calls.append(handle)
        if len(calls) == 1 + refused:
            raise SpillError("refused")
        begin(handle, array)

    monkeypatch.setattr(store, "begin_change", begin_change)
    with pytest.raises(SpillError, match="refused"):
        change(one, numbers(1))
    np.testing.assert_array_equal(one.array, wanted)
    store.flush()  # which nothing that still changes holds up
    assert store.stats().peak_ram_bytes <= 1 << 20
    change(one, numbers(1))
    np.testing.assert_array_equal(one.array, decode(encode(numbers(1), "signed")))


@pytest.mark.parametrize("refused", [0, 1])
def test_codes_and_scales_stay_a_pair_where_the_end_of_a_change_raises(
    refused: int, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = resident(store, "unsigned", numbers(0))
    end, calls = store.end_change, []

    def end_change(handle: Any, changed: bool = True) -> None:
        end(handle, changed)  # the store has the values, and says that the disk has refused something
        calls.append(handle)
        if len(calls) == 1 + refused:
            raise SpillError("refused")

    monkeypatch.setattr(store, "end_change", end_change)
    with pytest.raises(SpillError, match="refused"):
        change(one, numbers(1))
    np.testing.assert_array_equal(one.array, decode(encode(numbers(1), "unsigned")))


def test_codes_are_dropped_with_their_array(store: DiskStore) -> None:
    one = resident(store, "signed", numbers(0))
    assert store.live_bytes > 0
    del one
    store.see_to_drops()
    assert store.live_bytes == 0


def test_labels_are_those_by_which_inspect_knows_codes(store: DiskStore) -> None:
    one = resident(store, "signed", numbers(0))
    one.relabel(Label("state", "exp_avg", "other.weight"))
    codes, scales = one._handle.parts  # type: ignore[attr-defined]
    assert (codes.label.slot, scales.label.slot) == ("exp_avg", "exp_avg_scale")
    assert codes.label.module == scales.label.module == "other.weight"
