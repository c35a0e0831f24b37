"""The allocator of device memory, over a device that is a number: what it holds."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from spillgrad_kernels.cuda.memory import CachingAllocator, OutOfMemory

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
    with pytest.raises(OutOfMemory, match="asked for") as caught:
        allocator.allocate(30 * MIB)
    assert (caught.value.asked, caught.value.held) == (30 * MIB, 15 * MIB)
    assert (caught.value.free, caught.value.cached) == (24 * MIB, 1 * MIB)
    allocator.release(held)
    assert allocator.allocate(30 * MIB).nbytes == 30 * MIB
