"""A caching allocator of device memory. An allocation by the driver would take a millisecond and wait for all work.

The allocator keeps freed blocks for later requests. It splits a block that is much too large, and joins adjacent free
blocks. All kernels run in order on one stream, so a block may be reused while an earlier kernel still reads the block.
A copy on another stream keeps its memory until the copy is done (see `driver.Stream`).
"""

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

# The numbers are the same as in PyTorch's allocator. Sizes are multiples of `ROUND_BYTES`. Requests up to `SMALL_BYTES`
# share segments of 2 MiB, larger requests share segments of 20 MiB, and requests from 10 MiB get a segment each, a
# multiple of 2 MiB.
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_OWN_SEGMENT_BYTES = 10 << 20
_OWN_SEGMENT_ROUND_BYTES = 2 << 20


def _readable(nbytes: int) -> str:
    """Return `nbytes` as text, in the format of `spillgrad.storage.sizes.format_bytes`."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"


class OutOfMemory(MemoryError):
    """Raised if the device has no room for an allocation.

    Parameters
    ----------
    asked : int
        Bytes of the allocation.
    free : int
        Bytes of the device's free memory.
    held : int
        Bytes of live arrays.
    cached : int
        Bytes that the allocator keeps unused.
    """

    def __init__(self, asked: int, free: int, held: int, cached: int) -> None:
        self.asked, self.free, self.held, self.cached = asked, free, held, cached
        super().__init__(
            f"cuda: asked for {_readable(asked)} of device memory; {_readable(free)} are free, {_readable(held)} held "
            f"by live arrays, {_readable(cached)} cached between them; let go of arrays, take a smaller batch, or keep "
            "saved tensors elsewhere (save_on_disk, checkpoint); a CUDA device's memory is shared with other processes"
        )


@dataclass(slots=True)
class MemoryStats:
    """Statistics of an allocator.

    `live_bytes` is the memory of live arrays, and `reserved_bytes` the live and cached memory together. The fields
    `peak_...` are the largest values of both. `allocations` counts the allocations so far, `allocated_bytes` is the sum
    of their sizes, and `blocks` counts the live blocks. `segments` counts the pieces of memory that the allocator holds
    from the device, `retries` the requests for which it waited for copies or gave cached memory back, and `failures`
    the requests that failed.
    """

    live_bytes: int = 0
    reserved_bytes: int = 0
    peak_live_bytes: int = 0
    peak_reserved_bytes: int = 0
    allocated_bytes: int = 0
    blocks: int = 0
    allocations: int = 0
    segments: int = 0
    retries: int = 0
    failures: int = 0


class Block:
    """A part of a segment, linked with the parts before and after it in memory."""

    __slots__ = ("address", "after", "before", "is_free", "nbytes", "small")

    def __init__(self, address: int, nbytes: int, small: bool) -> None:
        self.address, self.nbytes, self.small = address, nbytes, small
        self.is_free = True
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """An allocator of blocks of device memory, which keeps freed blocks for later requests.

    `reserve(nbytes)` gets a segment from the device and returns its address, or None if there is no room.
    `give_back(address)` gives the segment back to the device. `free_bytes()` returns the device's free memory.
    `drop_copied(waits)` drops the arrays of finished copies or, if `waits`, waits for all copies and drops their
    arrays.

    Invariant: the blocks of a segment follow each other without gaps, and no two adjacent blocks are free. The lock
    guards blocks and counters. An array may die in a thread that holds the lock, so `release` only appends the array's
    block to `_returned`, without the lock.
    """

    def __init__(
        self, reserve: Callable[[int], int | None], give_back: Callable[[int], None], free_bytes: Callable[[], int],
        drop_copied: Callable[[bool], None] = lambda waits: None,
    ) -> None:  # fmt: skip
        self._reserve, self._give_back, self._free_bytes = reserve, give_back, free_bytes
        self._drop_copied = drop_copied
        self._lock = threading.Lock()
        # Free blocks of small segments (True) and of other segments, sorted by size, then address: bisection finds the
        # best fit.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._returned: list[Block] = []
        # Called with a block when its array dies. The method is C code and takes no lock, as an array may die anywhere.
        self.release: Callable[[Block], None] = self._returned.append
        self._stats = MemoryStats()

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least `nbytes` bytes, or raise OutOfMemory and leave all blocks as they are."""
        wanted = -(-nbytes // ROUND_BYTES) * ROUND_BYTES or ROUND_BYTES
        small = wanted <= SMALL_BYTES
        with self._lock:
            if self._returned:
                self._drain()
            block, stats = self._best_fit(wanted, small) or self._make_room(wanted, small), self._stats
            if block is None:
                stats.failures += 1
                held = stats.live_bytes
                raise OutOfMemory(nbytes, self._free_bytes(), held, stats.reserved_bytes - held)
            if block.nbytes > wanted:
                self._split(block, wanted)
            block.is_free = False
            taken = block.nbytes
            stats.live_bytes += taken
            if stats.live_bytes > stats.peak_live_bytes:
                stats.peak_live_bytes = stats.live_bytes
            stats.allocated_bytes += taken
            stats.allocations += 1
            stats.blocks += 1
            return block

    def _make_room(self, wanted: int, small: bool) -> Block | None:
        """Make room for a block of `wanted` bytes and return the block, or None if the device has no room.

        Try, in this order: free the memory of finished copies; reserve a new segment; wait for all copies and free
        their memory; give cached memory back to the device and reserve a new segment.
        """
        self._take_back(waits=False)
        block = self._best_fit(wanted, small) or self._segment(wanted, small)
        if block is None:
            self._stats.retries += 1
            self._take_back(waits=True)
            block = self._best_fit(wanted, small)
        if block is None:
            self._give_back_idle()
            block = self._segment(wanted, small)
        return block

    def give_back_idle(self) -> None:
        """Give every segment without a live array back to the device."""
        with self._lock:
            self._take_back(waits=False)
            self._give_back_idle()

    def stats(self) -> MemoryStats:
        """Return the allocator's statistics."""
        with self._lock:
            self._take_back(waits=False)
            return replace(self._stats)

    def reset_peaks(self) -> None:
        """Set the peaks in the statistics to the present values."""
        with self._lock:
            self._take_back(waits=False)
            stats = self._stats
            stats.peak_live_bytes, stats.peak_reserved_bytes = stats.live_bytes, stats.reserved_bytes

    def _take_back(self, waits: bool) -> None:
        """Drop the arrays of finished copies or, with `waits`, of all copies; then free the blocks of dead arrays."""
        self._drop_copied(waits)
        self._drain()

    def _drain(self) -> None:
        while self._returned:
            block = self._returned.pop()
            self._stats.live_bytes -= block.nbytes
            self._stats.blocks -= 1
            self._join(block)

    def _best_fit(self, wanted: int, small: bool) -> Block | None:
        free = self._free[small]
        at = bisect.bisect_left(free, (wanted,))
        return free.pop(at)[2] if at < len(free) else None

    def _segment(self, wanted: int, small: bool) -> Block | None:
        if small:
            nbytes = _SMALL_SEGMENT_BYTES
        elif wanted < _OWN_SEGMENT_BYTES:
            nbytes = _LARGE_SEGMENT_BYTES
        else:
            nbytes = -(-wanted // _OWN_SEGMENT_ROUND_BYTES) * _OWN_SEGMENT_ROUND_BYTES
        address = self._reserve(nbytes)
        if address is None:
            return None
        stats = self._stats
        stats.segments += 1
        stats.reserved_bytes += nbytes
        stats.peak_reserved_bytes = max(stats.peak_reserved_bytes, stats.reserved_bytes)
        return Block(address, nbytes, small)

    def _split(self, block: Block, wanted: int) -> None:
        left = block.nbytes - wanted
        # The rest of a large segment serves only large requests: a small block could keep the whole segment reserved.
        if left < (ROUND_BYTES if block.small else SMALL_BYTES):
            return
        rest = Block(block.address + wanted, left, block.small)
        rest.before, rest.after = block, block.after
        if rest.after is not None:
            rest.after.before = rest
        block.nbytes, block.after = wanted, rest
        self._keep(rest)

    def _keep(self, block: Block) -> None:
        block.is_free = True
        bisect.insort(self._free[block.small], (block.nbytes, block.address, block))

    def _forget(self, block: Block) -> None:
        free = self._free[block.small]
        del free[bisect.bisect_left(free, (block.nbytes, block.address))]

    def _join(self, block: Block) -> None:
        """Mark `block` as free, and join it with the free blocks before and after it."""
        before, after = block.before, block.after
        if after is not None and after.is_free:
            self._forget(after)
            block.nbytes += after.nbytes
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        if before is not None and before.is_free:
            self._forget(before)
            before.nbytes += block.nbytes
            before.after = block.after
            if before.after is not None:
                before.after.before = before
            block = before
        self._keep(block)

    def _give_back_idle(self) -> None:
        for small, free in self._free.items():
            whole = [block for _, _, block in free if block.before is None and block.after is None]
            self._free[small] = [entry for entry in free if entry[2] not in whole]
            for block in whole:
                self._give_back(block.address)
                self._stats.segments -= 1
                self._stats.reserved_bytes -= block.nbytes
