"""The allocator of device memory, over a device that is a number: what it holds; and the cache of pinned memory."""

import collections
import gc
import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from spillgrad_kernels.cuda.driver.failures import CudaError, Launches
from spillgrad_kernels.cuda.driver.memory import Block, CachingAllocator, MemoryStats, OutOfMemory
from spillgrad_kernels.memory.pinned import PinnedMemory

MIB = 1 << 20


class Device:
    """Segments of memory, by address, of so many bytes in all."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.segments: dict[int, int] = {}
        self.next_address = 1 << 40

    def reserve(self, nbytes: int) -> int | None:
        if nbytes > self.free_bytes():
            return None
        address, self.next_address = self.next_address, self.next_address + nbytes + 4096
        self.segments[address] = nbytes
        return address

    def give_back(self, address: int) -> None:
        del self.segments[address]

    def free_bytes(self) -> int:
        return self.nbytes - sum(self.segments.values())


def made(nbytes: int = 100 * MIB) -> tuple[CachingAllocator, Device]:
    device = Device(nbytes)
    return CachingAllocator(device.reserve, device.give_back, device.free_bytes), device


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 3 * MIB), st.integers(1, 30 * MIB), st.integers(-40, -1)), max_size=60))
def test_blocks_never_overlap_and_nothing_is_lost(actions):
    allocator, device = made()
    live = []
    for action in actions:
        if action < 0 and live:
            allocator.release(live.pop(action % len(live)))
        elif action > 0:
            try:
                live.append(allocator.allocate(action))
            except OutOfMemory as error:
                assert error.asked == action
                assert error.held + error.cached + error.free == device.nbytes
                continue
            assert live[-1].nbytes >= action
        pieces = sorted((block.address, block.address + block.nbytes) for block in live)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(pieces))
        assert all(any(s <= begin and end <= s + n for s, n in device.segments.items()) for begin, end in pieces)
        stats = allocator.stats()
        assert stats.live_bytes == sum(block.nbytes for block in live)
        assert stats.reserved_bytes == sum(device.segments.values())
    for block in live:
        allocator.release(block)
    allocator.give_back_idle()
    assert device.segments == {}
    assert allocator.stats().reserved_bytes == 0


def test_what_is_freed_is_handed_out_again():
    allocator, device = made()
    first = allocator.allocate(5 * MIB)
    address = first.address
    allocator.release(first)
    assert allocator.allocate(5 * MIB).address == address
    assert len(device.segments) == 1


def test_small_requests_share_a_segment():
    allocator, device = made()
    blocks = [allocator.allocate(1000) for _ in range(100)]
    assert len(device.segments) == 1
    assert {block.nbytes for block in blocks} == {1024}


def test_a_request_that_idle_memory_stands_in_the_way_of_gets_it():
    allocator, _ = made(40 * MIB)
    allocator.release(allocator.allocate(15 * MIB))
    assert allocator.allocate(30 * MIB).nbytes == 30 * MIB
    assert allocator.stats().retries == 1


def test_who_asks_for_too_much_hears_how_much_there_is_and_may_go_on():
    allocator, _ = made(40 * MIB)
    held = allocator.allocate(15 * MIB)
    says = (
        "cuda: asked for 30.0 MiB of device memory; 24.0 MiB are free, 15.0 MiB held by live arrays, 1.0 MiB cached "
        "between them; let go of arrays"
    )
    with pytest.raises(OutOfMemory, match=says) as caught:
        allocator.allocate(30 * MIB)
    assert (caught.value.asked, caught.value.held) == (30 * MIB, 15 * MIB)
    assert (caught.value.free, caught.value.cached) == (24 * MIB, 1 * MIB)
    allocator.release(held)
    assert allocator.allocate(30 * MIB).nbytes == 30 * MIB
    assert (allocator.stats().failures, allocator.stats().allocations) == (1, 2)


class Copies:
    """Copies that hold blocks, and let them go in their order."""

    def __init__(self) -> None:
        self.held: collections.deque[Block] = collections.deque()
        self.finished = 0
        self.release = None

    def settle(self, waits: bool) -> None:
        for _ in range(len(self.held) if waits else self.finished):
            self.release(self.held.popleft())
        self.finished = 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("aadhhf"), st.integers(1, 30 * MIB)), max_size=60))
def test_what_copies_hold_is_nobody_else_s_until_they_are_done(actions):
    device, copies = Device(100 * MIB), Copies()
    allocator = CachingAllocator(device.reserve, device.give_back, device.free_bytes, copies.settle)
    copies.release = allocator.release
    live = []
    for action, number in actions:
        if action == "a":
            try:
                live.append(allocator.allocate(number))
            except OutOfMemory as error:
                assert not copies.held  # they were waited for
                assert error.held == sum(block.nbytes for block in live)
        elif action == "d" and live:
            allocator.release(live.pop(number % len(live)))
        elif action == "h" and live:  # an array dies while it is copied
            copies.held.append(live.pop(number % len(live)))
        elif action == "f":
            copies.finished = number % (len(copies.held) + 1)
        pieces = sorted((block.address, block.address + block.nbytes) for block in [*live, *copies.held])
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(pieces))


def test_the_figures_of_an_allocator_are_what_was_asked_of_it():
    allocator, _ = made()
    assert allocator.stats() == MemoryStats()
    blocks = [allocator.allocate(2 * MIB) for _ in range(3)]
    allocator.release(blocks.pop())
    assert allocator.stats() == MemoryStats(4 * MIB, 20 * MIB, 6 * MIB, 20 * MIB, 6 * MIB, 2, 3, 1)
    allocator.reset_peaks()
    assert allocator.stats().peak_live_bytes == 4 * MIB


class Host:
    """A system that pins so many bytes."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.pinned: dict[int, np.ndarray] = {}

    def pin(self, nbytes: int) -> int | None:
        if nbytes + sum(memory.nbytes for memory in self.pinned.values()) > self.nbytes:
            return None
        memory = np.empty(nbytes, np.uint8)
        self.pinned[memory.ctypes.data] = memory
        return memory.ctypes.data

    def unpin(self, address: int) -> None:
        del self.pinned[address]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-20, 300_000), max_size=40))
def test_pinned_arrays_never_overlap_and_go_back(actions):
    host = Host(2 * MIB)
    memory = PinnedMemory(host.pin, host.unpin)
    live = []
    for action in actions:
        if action < 0 and live:
            live.pop(action % len(live))
        elif action >= 0:
            try:
                live.append(memory.empty(action))
            except MemoryError:
                continue
            assert live[-1].shape == (action,)
        for i in range(len(live)):
            live[i][:] = i
        assert all((array == i).all() for i, array in enumerate(live))
        assert len(host.pinned) >= len(live)
    memory.give_back_idle()
    assert len(host.pinned) == len(live)
    live.clear()
    memory.give_back_idle()
    assert host.pinned == {}


def test_pinned_memory_of_other_sizes_goes_back_before_there_is_none():
    host = Host(MIB)
    memory = PinnedMemory(host.pin, host.unpin)
    memory.empty(700_000)
    assert memory.empty(900_000).nbytes == 900_000
    with pytest.raises(MemoryError, match=r"asked for 2097152 bytes, and the system pins no more; keep less"):
        memory.empty(2 * MIB)


def test_a_view_keeps_pinned_memory():
    host = Host(MIB)
    memory = PinnedMemory(host.pin, host.unpin)
    view = memory.empty(8000).view(np.float32)[5:]
    gc.collect()
    memory.give_back_idle()
    assert len(host.pinned) == 1
    view[:] = 1
    del view
    memory.give_back_idle()
    assert host.pinned == {}


def test_launches_are_named_once_each_the_last_first_until_they_are_done():
    launches = Launches()
    for name in ("add", "mul", "add", "sub"):
        launches.add(name)
    assert launches.unfinished() == ("sub", "add", "mul")
    launches.are_done(2)
    assert launches.unfinished() == ("sub", "add")
    launches.are_done(1)
    assert launches.unfinished() == ("sub", "add")
    launches.are_done(launches.last)
    assert launches.unfinished() == ()


def test_a_failure_says_what_to_do():
    many = CudaError("wait", "CUDA_ERROR_LAUNCH_FAILED", "a failure", tuple("abcdefgh"))
    assert "from one of the kernels a, b, c, d, e, f and 2 others (launched last first); the device's" in str(many)
    assert many.is_sticky and many.kernels == tuple("abcdefgh")
    mild = CudaError("load a kernel", "CUDA_ERROR_NO_BINARY_FOR_GPU", "no image", ("a",))
    assert not mild.is_sticky
    assert str(mild).startswith(
        "cuda: load a kernel: got CUDA_ERROR_NO_BINARY_FOR_GPU (no image); NVIDIA's driver may be"
    )
