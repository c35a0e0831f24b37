"""The sampler of one process among several that train on the same dataset."""

import math
from collections.abc import Iterator
from typing import Any

from spillgrad.data.sampler import Sampler
from spillgrad.errors import ArgumentError
from spillgrad.generator import Generator
from spillgrad.ops.creation import randperm

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[int]):
    """Every `num_replicas`-th index from `rank` on, of an order that depends on the seed and the epoch.

    So processes get the same number of indices each. `set_epoch` before each pass gives it another order.

    Parameters
    ----------
    dataset : Dataset or sequence
        The dataset.
    num_replicas : int, optional
        Number of processes; by default, that of the group that `distributed.init_process_group` made. Without a group,
        this process is the only one, where PyTorch raises.
    rank : int, optional
        Number of this process; by default, that in the group.
    shuffle : bool, default True
        Whether the order is random.
    seed : int, default 0
        Seed of the order, the same in all processes.
    drop_last : bool, default False
        Whether to leave out the last indices; otherwise, the first ones are repeated until all processes get as many.

    Raises
    ------
    ArgumentError
        For a rank that is not below the number of processes.
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, shuffle: bool = True,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        from spillgrad.distributed import process_group

        grouped = process_group.is_initialized()
        if num_replicas is None:
            num_replicas = process_group.get_world_size() if grouped else 1
        if rank is None:
            rank = process_group.get_rank() if grouped else 0
        self.num_replicas, self.rank = num_replicas, rank
        if not 0 <= self.rank < self.num_replicas:
            raise ArgumentError(
                f"DistributedSampler: Invalid rank {self.rank}, rank should be in the interval [0, "
                f"{self.num_replicas - 1}]"
            )
        self.dataset, self.epoch, self.shuffle, self.seed, self.drop_last = dataset, 0, shuffle, seed, drop_last
        size = len(dataset)
        self.num_samples = size // self.num_replicas if drop_last else math.ceil(size / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        generator = Generator(self.seed + self.epoch)
        indices = randperm(size, generator=generator).tolist() if self.shuffle else list(range(size))
        if size and size < self.total_size:
            indices *= math.ceil(self.total_size / size)
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass.

        Parameters
        ----------
        epoch : int
            Number of the pass.
        """
        self.epoch = epoch
