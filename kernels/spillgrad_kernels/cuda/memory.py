"""Device memory: a caching allocator, since the driver's own takes a millisecond and waits for all work.

What is freed is kept and handed out again, split where it is much too large, and joined with free neighbours. All
work runs in order on one stream, so that memory may be handed out again while what was there is still being read.
"""

import bisect
import threading
from collections.abc import Callable
from dataclasses import dataclass

# As in PyTorch's allocator, whose figures have proved themselves: sizes are multiples of the first; small requests
# share segments of 2 MiB, larger ones of 20, and the largest have one of their own, in whole pairs of MiB.
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
_SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
_OWN_SEGMENT_BYTES = 10 << 20
_OWN_SEGMENT_ROUND_BYTES = 2 << 20


class OutOfMemory(MemoryError):
    """The device has no room: `asked`, `free` on the device, `held` by live arrays, `cached` for later ones; bytes."""

    def __init__(self, asked: int, free: int, held: int, cached: int) -> None:
        self.asked, self.free, self.held, self.cached = asked, free, held, cached
        super().__init__(f"asked for {asked} bytes; {free} are free, {held} held, {cached} cached")


@dataclass(frozen=True)
class MemoryStats:
    """Bytes: lent to live arrays, reserved from the device for them and for later ones, and the peaks of both.

    `segments` is how many pieces the device gave, `allocations` how many requests there were, and `retries` how many of
    them were met only after idle memory went back.
    """

    live_bytes: int
    reserved_bytes: int
    peak_live_bytes: int
    peak_reserved_bytes: int
    segments: int
    allocations: int
    retries: int


class Block:
    """A piece of a segment, between the pieces before and after it in memory."""

    __slots__ = ("address", "after", "before", "is_free", "nbytes", "small")

    def __init__(self, address: int, nbytes: int, small: bool) -> None:
        self.address, self.nbytes, self.small = address, nbytes, small
        self.is_free = True
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """Blocks of device memory; `reserve(nbytes)` asks the device for a segment and returns its address, or None.

    `give_back(address)` returns one, and `free_bytes()` says what the device has left.

    Invariant: the blocks of a segment follow each other without gaps, and no two free ones do. The lock guards the
    blocks and counters; an array's death may come inside this lock's own section, so it posts to `_returned`.
    """

    def __init__(
        self, reserve: Callable[[int], int | None], give_back: Callable[[int], None], free_bytes: Callable[[], int]
    ) -> None:
        self._reserve, self._give_back, self._free_bytes = reserve, give_back, free_bytes
        self._lock = threading.Lock()
        # Free blocks of small segments and of others, by size, then address: the best fit is found by bisection.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._returned: list[Block] = []
        self._live = self._reserved = self._peak_live = self._peak_reserved = 0
        self._segments = self._allocations = self._retries = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least so many bytes. Raises OutOfMemory, which leaves everything as it was."""
        wanted = max(ROUND_BYTES, -(-nbytes // ROUND_BYTES) * ROUND_BYTES)
        small = wanted <= SMALL_BYTES
        with self._lock:
            self._drain()
            self._allocations += 1
            block = self._best_fit(wanted, small) or self._segment(wanted, small)
            if block is None:
                self._give_back_idle()
                self._retries += 1
                block = self._segment(wanted, small)
            if block is None:
                raise OutOfMemory(nbytes, self._free_bytes(), self._live, self._reserved - self._live)
            self._split(block, wanted)
            block.is_free = False
            self._live += block.nbytes
            self._peak_live = max(self._peak_live, self._live)
            return block

    def release(self, block: Block) -> None:
        """Take back a block; takes no lock, as an array may die anywhere."""
        self._returned.append(block)

    def give_back_idle(self) -> None:
        """Return to the device every segment that no live array has a part of."""
        with self._lock:
            self._drain()
            self._give_back_idle()

    def stats(self) -> MemoryStats:
        """Return the allocator's bytes now."""
        with self._lock:
            self._drain()
            return MemoryStats(
                self._live, self._reserved, self._peak_live, self._peak_reserved, self._segments, self._allocations,
                self._retries,
            )  # fmt: skip

    def _drain(self) -> None:
        while self._returned:
            block = self._returned.pop()
            self._live -= block.nbytes
            self._join(block)

    def _best_fit(self, wanted: int, small: bool) -> Block | None:
        free = self._free[small]
        at = bisect.bisect_left(free, wanted, key=lambda entry: entry[0])
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
        self._segments += 1
        self._reserved += nbytes
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return Block(address, nbytes, small)

    def _split(self, block: Block, wanted: int) -> None:
        left = block.nbytes - wanted
        # The rest of a large segment serves large requests only: a small one would keep all of it from going back.
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
        del free[bisect.bisect_left(free, (block.nbytes, block.address), key=lambda entry: entry[:2])]

    def _join(self, block: Block) -> None:
        """Make a block free, as one with its free neighbours."""
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
                self._segments -= 1
                self._reserved -= block.nbytes
