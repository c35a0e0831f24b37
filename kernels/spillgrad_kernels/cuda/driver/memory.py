"""Device memory: a caching allocator, since the driver's own takes a millisecond and waits for all work.

What is freed is kept and handed out again, split where it is much too large, and joined with free neighbours. All
kernels run in order on one stream, so that memory may be handed out again while what was there is still being read.
Copies on other streams hold what they read or write until they are done (`driver.Stream`).
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


def _readable(nbytes: int) -> str:
    """Return a number of bytes as text, as `spillgrad.storage.sizes.format_bytes` does."""
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"


class OutOfMemory(MemoryError):
    """The device has no room: `asked`, `free` on the device, `held` by live arrays, `cached` for later ones; bytes."""

    def __init__(self, asked: int, free: int, held: int, cached: int) -> None:
        self.asked, self.free, self.held, self.cached = asked, free, held, cached
        super().__init__(
            f"cuda: asked for {_readable(asked)} of device memory; {_readable(free)} are free, {_readable(held)} held "
            f"by live arrays, {_readable(cached)} cached between them; let go of arrays, take a smaller batch, or keep "
            "saved tensors elsewhere (save_on_disk, checkpoint); a CUDA device's memory is shared with other processes"
        )


@dataclass(frozen=True)
class MemoryStats:
    """Bytes: lent to live arrays, reserved from the device for them and for later ones, and the peaks of both.

    `allocated_bytes` were lent in all; `blocks` are lent now, of `allocations` in all. `segments` is how many pieces
    the device gave, `retries` how many requests took idle memory's going back, and `failures` how many were not met.
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
    """A piece of a segment, between the pieces before and after it in memory."""

    __slots__ = ("address", "after", "before", "is_free", "nbytes", "small")

    def __init__(self, address: int, nbytes: int, small: bool) -> None:
        self.address, self.nbytes, self.small = address, nbytes, small
        self.is_free = True
        self.before: Block | None = None
        self.after: Block | None = None


class CachingAllocator:
    """Blocks of device memory; `reserve(nbytes)` asks the device for a segment and returns its address, or None.

    `give_back(address)` returns one, and `free_bytes()` says what the device has left. `settle(waits)` has copies let
    go of the arrays that they are done with; where it waits, of all.

    Invariant: the blocks of a segment follow each other without gaps, and no two free ones do. The lock guards the
    blocks and counters; an array's death may come inside this lock's own section, so it posts to `_returned`.
    """

    def __init__(
        self, reserve: Callable[[int], int | None], give_back: Callable[[int], None], free_bytes: Callable[[], int],
        settle: Callable[[bool], None] = lambda waits: None,
    ) -> None:  # fmt: skip
        self._reserve, self._give_back, self._free_bytes, self._settle = reserve, give_back, free_bytes, settle
        self._lock = threading.Lock()
        # Free blocks of small segments and of others, by size, then address: the best fit is found by bisection.
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._returned: list[Block] = []
        # Takes back a block; it is C code and takes no lock, as an array may die anywhere.
        self.release: Callable[[Block], None] = self._returned.append
        self._live = self._reserved = self._peak_live = self._peak_reserved = 0
        self._allocated_bytes = self._blocks = self._allocations = self._segments = self._retries = self._failures = 0

    def allocate(self, nbytes: int) -> Block:
        """Return a block of at least so many bytes. Raises OutOfMemory, which leaves everything as it was."""
        wanted = -(-nbytes // ROUND_BYTES) * ROUND_BYTES or ROUND_BYTES
        small = wanted <= SMALL_BYTES
        with self._lock:
            if self._returned:
                self._drain()
            block = self._best_fit(wanted, small) or self._found(wanted, small)
            if block is None:
                self._failures += 1
                raise OutOfMemory(nbytes, self._free_bytes(), self._live, self._reserved - self._live)
            if block.nbytes > wanted:
                self._split(block, wanted)
            block.is_free = False
            taken = block.nbytes
            self._live += taken
            if self._live > self._peak_live:
                self._peak_live = self._live
            self._allocated_bytes += taken
            self._allocations += 1
            self._blocks += 1
            return block

    def _found(self, wanted: int, small: bool) -> Block | None:
        """Return a block where none was free: of what copies are done with, or of a new segment, or of idle memory."""
        self._settled(waits=False)
        block = self._best_fit(wanted, small) or self._segment(wanted, small)
        if block is None:
            self._retries += 1
            self._settled(waits=True)
            block = self._best_fit(wanted, small)
        if block is None:
            self._give_back_idle()
            block = self._segment(wanted, small)
        return block

    def give_back_idle(self) -> None:
        """Return to the device every segment that no live array has a part of."""
        with self._lock:
            self._settled(waits=False)
            self._give_back_idle()

    def stats(self) -> MemoryStats:
        """Return the allocator's bytes now."""
        with self._lock:
            self._settled(waits=False)
            return MemoryStats(
                self._live, self._reserved, self._peak_live, self._peak_reserved, self._allocated_bytes, self._blocks,
                self._allocations, self._segments, self._retries, self._failures,
            )  # fmt: skip

    def reset_peaks(self) -> None:
        """Let the peaks be those from now on."""
        with self._lock:
            self._settled(waits=False)
            self._peak_live, self._peak_reserved = self._live, self._reserved

    def _settled(self, waits: bool) -> None:
        self._settle(waits)
        self._drain()

    def _drain(self) -> None:
        while self._returned:
            block = self._returned.pop()
            self._live -= block.nbytes
            self._blocks -= 1
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
        del free[bisect.bisect_left(free, (block.nbytes, block.address))]

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
