"""Bytes in files: the same ones past the page cache and through it, wherever they lie."""

import contextlib
import mmap
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from spillgrad.storage.disk import direct_io, segment_set
from spillgrad.storage.disk.chunks import PAGE_BYTES
from spillgrad.storage.disk.direct_io import Speed, Speeds
from spillgrad.storage.disk.payload import _COPIED_BYTES, PayloadFile
from spillgrad.storage.disk.segment_set import SegmentSet
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import NO_LABEL
from spillgrad_kernels.memory import buffers
from spillgrad_kernels.memory.buffers import POOLED_MIN_BYTES
from spillgrad_kernels.memory.system_memory import SystemMemory

RNG = np.random.default_rng(0)
CAPACITY = 8 * PAGE_BYTES


def pages(lead: int = 0) -> np.ndarray:
    """Random bytes that begin `lead` bytes behind a page's address."""
    memory = np.frombuffer(mmap.mmap(-1, CAPACITY + PAGE_BYTES), np.uint8)[lead : lead + CAPACITY]
    memory[:] = RNG.integers(0, 256, CAPACITY, np.uint8)
    return memory


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    found = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield found
    os.close(found)


@pytest.mark.parametrize(("direct", "cached"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("lead", [0, 24])
@pytest.mark.parametrize("file_offset", [0, 5 * PAGE_BYTES, 777])
@pytest.mark.parametrize("nbytes", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES + 100])
def test_what_is_written_is_read_back(
    tmp_path: Path, descriptor: int, direct: bool, cached: bool, lead: int, file_offset: int, nbytes: int
):
    file = PayloadFile(str(tmp_path / "file"), descriptor, direct)
    written, read = pages(lead), pages(lead)
    before = read.copy()
    start = PAGE_BYTES
    file.write(written, start, nbytes, file_offset, cached)
    assert os.pread(descriptor, nbytes, file_offset) == written[start : start + nbytes].tobytes()
    assert file.read(read, start, nbytes, file_offset, not cached) == nbytes  # whichever way it was written
    file.close()
    before[start : start + nbytes] = written[start : start + nbytes]
    np.testing.assert_array_equal(read, before)  # and nothing around it


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_ends_early_gives_what_there_is(tmp_path: Path, descriptor: int, direct: bool):
    written, read = pages(), pages()
    os.pwrite(descriptor, written[:5000], 0)
    file = PayloadFile(str(tmp_path / "file"), descriptor, direct)
    assert file.read(read, 0, CAPACITY, 0) == 5000
    file.close()
    np.testing.assert_array_equal(read[:5000], written[:5000])


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_cannot_grow_raises(tmp_path: Path, direct: bool):
    (tmp_path / "file").touch()
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    file = PayloadFile(str(tmp_path / "file"), descriptor, direct)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(pages(24), 0, 100, 0)
    file.close()
    os.close(descriptor)


def test_a_file_system_without_direct_files_is_used_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_io, "O_DIRECT", 0)
    monkeypatch.setattr(direct_io, "_known", {})
    assert direct_io.open_direct(tmp_path, os.O_RDONLY) is None
    found = direct_io.speeds(tmp_path)
    assert found.cached is not None
    assert found.direct is None
    assert not found.direct_io_pays


def test_a_file_system_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_io, "_known", {})
    (tmp_path / "other").mkdir()
    first = direct_io.speeds(tmp_path)
    monkeypatch.setattr(direct_io, "_measure", lambda directory: pytest.fail("measured again"))
    assert direct_io.speeds(tmp_path / "other") is first
    assert list(tmp_path.iterdir()) == [tmp_path / "other"]


@pytest.mark.parametrize(
    ("direct", "pays"),
    [
        (Speed(1e9, 1e9, 1e-10), True),
        (Speed(1e9, 1e9, 3e-10), False),  # takes more of the processor
        (Speed(1e8, 1e8, 1e-10), False),  # a disk so slow that the page cache had better hide it
        (None, False),
    ],
)
def test_direct_files_are_used_where_they_take_less_of_the_processor_and_the_disk_is_fast(
    direct: Speed | None, pays: bool
):
    assert Speeds(Speed(4e9, 4e9, 2e-10), direct).direct_io_pays is pays


def test_going_through_the_page_cache_costs_what_it_takes_more_of_the_processor():
    slower, faster = Speed(1e9, 1e9, 1e-10), Speed(1e9, 1e9, 3e-10)
    assert Speeds(faster, slower).cache_costs_s(10**9) == pytest.approx(0.2)
    assert Speeds(slower, faster).cache_costs_s(10**9) == 0
    assert Speeds(slower, None).cache_costs_s(10**9) == 0


def test_waits_that_cost_less_than_the_page_cache_would_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Speeds(Speed(1e9, 1e9, 3e-10), Speed(1e9, 1e9, 1e-10))
    monkeypatch.setattr(direct_io, "_known", {os.stat(tmp_path).st_dev: known})
    monkeypatch.setattr(direct_io, "_slow_steps", Counter())
    segments = SegmentSet(tmp_path, tmp_path.stat().st_dev, 1 << 20, direct_io=None, checksums=True)
    segments.free(segments.place(np.ones(1000), 0, NO_LABEL, []))
    for waited_s in (0.19, 0.19, 0.21):
        segments.note_step(1.0, waited_s, 10**9)
    assert not segments.goes_through_cache(True, 10**9)
    segments.note_step(1.0, 0.21, 10**9)
    assert segments.goes_through_cache(True, 10**9)
    segments.close()


def test_the_page_cache_is_left_alone_where_it_has_no_room_for_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = Speeds(Speed(1e9, 1e9, 3e-10), Speed(1e9, 1e9, 1e-10))
    monkeypatch.setattr(direct_io, "_known", {os.stat(tmp_path).st_dev: known})
    monkeypatch.setattr(direct_io, "_slow_steps", Counter())
    monkeypatch.setattr(segment_set, "system_memory", lambda: SystemMemory(10**9, 10**10))
    segments = SegmentSet(tmp_path, tmp_path.stat().st_dev, 1 << 20, direct_io=None, checksums=True)
    segments.free(segments.place(np.ones(1000), 0, NO_LABEL, []))
    for _ in range(3):
        segments.note_step(1.0, 0.5, 10**9)
    assert not segments.goes_through_cache(True, 10**8)
    assert not segments.goes_through_cache(False, 10**9)
    monkeypatch.setattr(segment_set, "_ROOM_EVERY_S", 0.0)
    assert segments.goes_through_cache(False, 10**8)
    monkeypatch.setattr(segment_set, "_ROOM_EVERY_S", 1e9)  # those under way take their part of 3.75e8
    assert [segments.goes_through_cache(False, 10**8) for _ in range(4)] == [True, True, False, False]
    for _ in range(2):
        segments.note_step(1.0, 0.5, 10**8)
    assert segments.goes_through_cache(True, 10**8)
    segments.close()


def test_only_steps_in_succession_say_that_a_disk_is_awaited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(direct_io, "_slow_steps", Counter())
    for waited in (True, False, True, False):
        direct_io.note_step(1, waited)
        direct_io.note_step(2, True)
    assert not direct_io.is_awaited(1)
    assert direct_io.is_awaited(2)
    direct_io.note_step(2, False)
    assert direct_io.is_awaited(2)  # it is the page cache that is not waited for now


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each write of the test, whether it went through the page cache, on a disk for direct I/O."""
    known = Speeds(Speed(1e9, 1e9, 3e-10), Speed(1e9, 1e9, 1e-10))
    monkeypatch.setattr(direct_io, "_known", {os.stat(tmp_path).st_dev: known})
    monkeypatch.setattr(direct_io, "_slow_steps", Counter())
    used: list[bool] = []
    write = PayloadFile.write

    def watched(self: PayloadFile, array: np.ndarray, start: int, nbytes: int, offset: int, cached: bool) -> None:
        used.append(cached)
        write(self, array, start, nbytes, offset, cached)

    monkeypatch.setattr(PayloadFile, "write", watched)
    return used


def step(store: DiskStore) -> None:
    for handle in [store.put(np.full(10_000, 1.0)) for _ in range(3)]:
        assert (store.get(handle) == 1).all()
        store.drop(handle)
    assert store.stats().live_bytes == 0


def test_two_steps_that_waited_for_direct_io_are_followed_by_steps_through_the_page_cache(
    tmp_path: Path, used: list[bool]
):
    one_fits = 90_000  # so puts and gets wait
    asked_for = DiskStore(tmp_path, ram_budget=one_fits, direct_io=True)
    step(asked_for)
    step(asked_for)
    asked_for.close()
    chosen = DiskStore(tmp_path, ram_budget=one_fits)
    in_ram = DiskStore(tmp_path, ram_budget="1MiB")
    step(chosen)
    step(in_ram)  # says nothing of the disk
    assert len(used) >= 6
    assert not any(used)
    step(chosen)
    in_ram.close()
    chosen.close()
    used.clear()
    another = DiskStore(tmp_path, ram_budget=one_fits)
    step(another)
    another.close()
    assert used
    assert all(used)


def test_what_does_not_fit_the_budget_goes_through_the_page_cache_at_once(tmp_path: Path, used: list[bool]):
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0)) as store:
        step(store)
    assert used == [True] * 3
    used.clear()
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0, direct_io=True)) as asked_for:
        step(asked_for)
    assert used == [False] * 3


@pytest.mark.parametrize("nbytes", [POOLED_MIN_BYTES - 1, POOLED_MIN_BYTES, 2 * _COPIED_BYTES + PAGE_BYTES + 5])
def test_what_another_library_allocated_goes_past_the_page_cache_too(
    tmp_path: Path, descriptor: int, monkeypatch: pytest.MonkeyPatch, nbytes: int
):
    moved: Counter[int] = Counter()
    pwritev = os.pwritev

    def watched(to: int, buffers: list[memoryview], offset: int) -> int:
        count = pwritev(to, buffers, offset)
        moved[to] += count
        return count

    monkeypatch.setattr(os, "pwritev", watched)
    array = RNG.integers(0, 256, nbytes + PAGE_BYTES, np.uint8)
    at_page = -array.ctypes.data % PAGE_BYTES
    array = array[(at_page + 64) % PAGE_BYTES :][:nbytes]  # as PyTorch's tensors lie
    file = PayloadFile(str(tmp_path / "file"), descriptor, direct=True)
    file.write(array, 0, nbytes, 0)
    read = buffers.empty((nbytes,), np.uint8)
    assert file.read(read, 0, nbytes, 0) == nbytes
    file.close()
    np.testing.assert_array_equal(read, array)
    assert moved.total() == nbytes
    assert moved[descriptor] == (nbytes if nbytes < POOLED_MIN_BYTES else nbytes % PAGE_BYTES)


def test_waits_for_what_goes_through_the_page_cache_anyway_say_nothing_of_direct_io(tmp_path: Path, used: list[bool]):
    with contextlib.closing(DiskStore(tmp_path, ram_budget=0)) as store:
        step(store)
        step(store)
        assert store.waited_s > 0
        step(store)
    assert not direct_io.is_awaited(os.stat(tmp_path).st_dev)
    assert used == [True] * 9
