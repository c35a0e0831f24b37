"""The processes that train one model together: which batches each computes, and what they tell each other."""

import dataclasses
import secrets
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import spillgrad as sg
from spillgrad import communication, distributed
from spillgrad.distributed.process_group import ProcessGroup, launched, member
from spillgrad.errors import ArgumentError, DistributedError
from spillgrad.nn.parallel import DistributedDataParallel
from spillgrad.storage.counters import rss_bytes
from spillgrad_kernels.cpu.product_tile import VECTOR_BYTES
from spillgrad_tools.train.options import TrainSettings

Item = TypeVar("Item")
Parallel = DistributedDataParallel | sg.disk_offload
# How often the ranks meet to compare their clocks: the meeting that took least says most.
_MEETINGS = 16


class Ranks:
    """The processes of this run, of which this one is number `rank` of `size`; alone if no launcher started several."""

    def __init__(self) -> None:
        self.mpi_bytes = 0
        """The memory that MPI has taken in this process."""
        if launched() > 1 and not distributed.is_initialized():  # it refuses launchers that are not MPI's
            before_bytes = rss_bytes()
            distributed.init_process_group("mpi")
            self.mpi_bytes = max(0, rss_bytes() - before_bytes)
        self.rank, self.size = (
            (distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else (0, 1)
        )

    def share_clock(self) -> None:
        """Have the journals of all processes name one group, and tell times by the clock of rank 0.

        No process leaves a meeting of all before the last has come. So each has left after each other has come, which
        bounds how far their clocks are apart.
        """
        if self.size == 1:
            return
        group = self.firsts(secrets.token_hex(8))
        meetings = []
        for _ in range(_MEETINGS):
            came_s = time.perf_counter()
            distributed.barrier()
            meetings.append((came_s, time.perf_counter()))
        firsts_clock_s = self.firsts(time.time() - time.perf_counter())
        firsts = self.firsts(meetings)
        least_s = max(came_s - left_s for (came_s, _), (_, left_s) in zip(meetings, firsts, strict=True))
        most_s = min(left_s - came_s for (_, left_s), (came_s, _) in zip(meetings, firsts, strict=True))
        ahead_s, error_s = ((least_s + most_s) / 2, (most_s - least_s) / 2) if self.rank else (0.0, 0.0)
        communication.join(communication.Member(self.rank, self.size, group, firsts_clock_s - ahead_s, error_s))

    @property
    def is_first(self) -> bool:
        """Whether this process prints and saves."""
        return self.rank == 0

    def everyones(self, item: Item) -> list[Item]:
        """Return what each process gives, in the order of the ranks."""
        found = [item] * self.size
        if self.size > 1:
            distributed.all_gather_object(found, item)
        return found

    def firsts(self, item: Item) -> Item:
        """Return what the first process gives."""
        found = [item]
        if self.size > 1:
            distributed.broadcast_object_list(found, src=0)
        return found[0]

    def in_order(self, mine: Sequence[Item], count: int) -> list[Item]:
        """Return the items of all `count` batches in their order; this process has computed `mine` of them."""
        each = self.everyones(list(mine))
        return [each[number % self.size][number // self.size] for number in range(count)]

    def batches(self, items: Sequence[Item]) -> Iterator[tuple[int, Item] | None]:
        """Yield this process's items and their numbers; None where others have one more."""
        for start in range(0, len(items), self.size):
            number = start + self.rank
            yield (number, items[number]) if number < len(items) else None

    def by_machine(self, item: Item) -> list[list[Item]]:
        """Return what each process gives, in a list for each machine; this one's is the first."""
        found: dict[str, list[Item]] = {(here := socket.gethostname()): []}
        for host, each in self.everyones((here, item)):
            found.setdefault(host, []).append(each)
        return list(found.values())

    def require_batches(self, accumulate: int) -> None:
        """Raise ArgumentError if a step has fewer batches than there are processes."""
        if accumulate < self.size:
            raise ArgumentError(
                f"train: got --accumulate {accumulate} with {self.size} processes; give --accumulate {self.size} or a "
                "multiple: the batches of a step, of which each process computes its share"
            )

    def require_same(self, about: Mapping[str, Any]) -> None:
        """Raise DistributedError if the processes differ in what decides the numbers of a run; name each difference."""
        found = self.everyones(dict(about))
        for rank, other in enumerate(found):
            for what, value in found[0].items():
                if other[what] != value:
                    raise DistributedError(
                        f"train: rank 0 has {what} {value}, rank {rank} has {other[what]}; make them the same on all"
                    )

    def warn_of_other_processors(self) -> None:
        """Warn, once for all processes, if their processors have vectors of other lengths, and so round otherwise."""
        found = self.everyones(VECTOR_BYTES)
        others = [rank for rank, nbytes in enumerate(found) if nbytes != found[0]]
        if others and self.is_first:
            warnings.warn(
                f"the processors of rank 0 and of {', '.join(map(str, others))} compute with vectors of "
                f"{found[0]} and {found[others[0]]} bytes: losses differ from those of one process by rounding",
                stacklevel=2,
            )

    def parallel(self, model: sg.nn.Module, offload: sg.disk_offload | None, wire: str) -> Parallel | None:
        """Have backward add up the gradients of all processes, in a model in RAM or on disk.

        A model on disk is not wrapped. Return None for one process, if it has nothing to round.
        """
        if self.size == 1 and wire == "float32":
            return None
        group = member() if self.size > 1 else ProcessGroup("alone")
        parallel = DistributedDataParallel(model, process_group=group, wire=wire) if offload is None else offload
        parallel.set_gradient_divide_factor(1)
        return parallel


def settings_in_words(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings by the names of their options."""
    return {f"--{name.replace('_', '-')}": value for name, value in dataclasses.asdict(settings).items()}
