"""Batches of a dataset, in this process or fetched ahead by others."""

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spillgrad.data.collate import default_collate, default_convert
from spillgrad.data.dataset import IterableDataset
from spillgrad.data.fetching import End, Fetcher, Source
from spillgrad.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from spillgrad.errors import ArgumentError
from spillgrad.generator import Generator, GeneratorState, default_generator

if TYPE_CHECKING:
    from spillgrad.data.workers import Workers


class DataLoader:
    """Iterate over a dataset in batches; each iteration is a pass.

    Samples may be tensors, arrays, numbers, strings, and lists or mappings of them; a batch has their structure,
    stacked, or is what `collate_fn` makes of a list of samples. The order is that of the dataset, of `shuffle`, of
    `sampler` (indices) or of `batch_sampler` (lists of indices). `batch_size=None` yields samples. `num_workers`
    processes fetch `prefetch_factor` batches each ahead.

    A pass is a function of its seed: samplers that draw from the default generator, and workers, draw from the pass's
    seed. That is drawn from `generator` (by default the default one); with `seed`, it follows from (seed, epoch).
    `epoch` counts the passes begun, and may be set. `state_dict` says where the latest pass stands, to resume there.
    `pin_memory` and `in_order` are accepted for PyTorch's programs: batches always come in order, in pageable memory.

    Raises ArgumentError for options that exclude each other; iteration raises WorkerError if a worker dies.
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None, batch_sampler: Iterable[Any] | None = None, num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Callable[[int], Any] | None = None, multiprocessing_context: Any = None,
        generator: Generator | None = None, *, prefetch_factor: int | None = None, persistent_workers: bool = False,
        pin_memory_device: str = "", in_order: bool = True, seed: int | None = None,
    ) -> None:  # fmt: skip
        self._is_iterable = isinstance(dataset, IterableDataset)
        self._check_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        if num_workers < 0:
            raise ArgumentError(
                f"DataLoader: got num_workers {num_workers}; num_workers option should be non-negative; use "
                "num_workers=0 to disable multiprocessing."
            )
        if timeout < 0:
            raise ArgumentError(f"DataLoader: got timeout {timeout}; timeout option should be non-negative")
        if num_workers == 0 and prefetch_factor is not None:
            raise ArgumentError(
                "DataLoader: prefetch_factor option could only be specified in multiprocessing. let num_workers > 0 to "
                "enable multiprocessing, otherwise set prefetch_factor to None."
            )
        if num_workers == 0 and persistent_workers:
            raise ArgumentError("DataLoader: persistent_workers option needs num_workers > 0")
        if prefetch_factor is not None and prefetch_factor < 1:
            raise ArgumentError(f"DataLoader: got prefetch_factor {prefetch_factor}; at least 1 batch is needed")
        self.dataset = dataset
        if batch_sampler is not None:
            batch_size, drop_last = None, False
        elif sampler is None and not self._is_iterable:
            sampler = RandomSampler(self.dataset) if shuffle else SequentialSampler(self.dataset)
        if batch_sampler is None and batch_size is not None and sampler is not None:
            batch_sampler = BatchSampler(sampler, batch_size, drop_last)
        self.batch_size, self.drop_last, self.num_workers = batch_size, drop_last, num_workers
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._batched = batch_size is not None or batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if self._batched else default_convert)
        self.pin_memory, self.pin_memory_device, self.in_order = pin_memory, pin_memory_device, in_order
        self.timeout, self.worker_init_fn = timeout, worker_init_fn
        self.multiprocessing_context = multiprocessing_context
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.persistent_workers = persistent_workers
        self.generator, self.seed = generator, seed
        self.epoch = 0
        self._workers: Workers | None = None  # those that stay between passes
        self._next: tuple[int | None, int] = (None, 0)  # the seed and the first batch of the next pass
        self._latest: tuple[int | None, int] | None = None  # the seed and batches taken of a pass that has not ended

    def _check_order(
        self, batch_size: int | None, shuffle: bool | None, sampler: Any, batch_sampler: Any, drop_last: bool
    ) -> None:  # fmt: skip
        if self._is_iterable:
            for option, value in (("shuffle", shuffle), ("sampler", sampler), ("batch_sampler", batch_sampler)):
                if value not in (None, False):
                    raise ArgumentError(
                        f"DataLoader with IterableDataset: expected unspecified {option} option, but got "
                        f"{option}={value}"
                    )
        if sampler is not None and shuffle:
            raise ArgumentError("DataLoader: sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ArgumentError(
                "DataLoader: batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and "
                "drop_last"
            )
        if batch_size is None and drop_last:
            raise ArgumentError(
                "DataLoader: batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"DataLoader: got batch_size {batch_size}; at least 1 is needed")

    def __len__(self) -> int:
        """Return how many batches a pass has. Raises TypeError where the dataset or the sampler has no length."""
        if not self._is_iterable:
            order: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
            return len(order)
        samples, size = len(self.dataset), self.batch_size or 1
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> Iterator[Any]:
        (seed, first), self._next = self._next, (None, 0)
        if seed is None:
            seed = self._new_seed()
        self.epoch += 1
        self._latest = (seed, first)
        return self._batches(seed, first)

    def _new_seed(self) -> int:
        """Return the seed of the next pass."""
        if self.seed is None:
            seed, offset = (self.generator or default_generator).take(1)
            entropy = [seed, offset]
        else:
            entropy = [self.seed % 2**64, self.epoch]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _batches(self, seed: int, first: int) -> Iterator[Any]:
        requests = self._requests(seed)
        # Workers' random numbers go on from batch to batch, so they fetch those before the first one, too.
        to_skip = first if self.num_workers or self._is_iterable else 0
        if not to_skip:
            requests = itertools.islice(requests, first, None)
        fetched = self._fetched_by_workers(requests, seed) if self.num_workers else self._fetched_here(requests)
        for number, batch in enumerate(itertools.islice(fetched, to_skip, None), first + 1):
            self._latest = (seed, number)
            yield batch
        self._latest = None

    def _requests(self, seed: int) -> Iterator[Any]:
        """Yield what to fetch; samplers that draw from the default generator draw from the pass's seed."""
        if self._is_iterable:
            yield from itertools.repeat(self.batch_size or 1)  # without end: the dataset's end ends the pass
        sampler: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        order, state = None, GeneratorState(seed, 0)
        while True:
            with default_generator.replay(state):
                order = iter(sampler) if order is None else order
                request = next(order, End)
                state = default_generator.get_state()
            if request is End:
                return
            yield request

    @property
    def _source(self) -> Source:
        return Source(self.dataset, self.collate_fn, self._batched, self.drop_last)

    def _fetched_here(self, requests: Iterator[Any]) -> Iterator[Any]:
        fetcher = Fetcher(self._source)
        for request in requests:
            batch = fetcher.fetch(request)
            if isinstance(batch, End):
                return
            yield batch

    def _fetched_by_workers(self, requests: Iterator[Any], seed: int) -> Iterator[Any]:
        from spillgrad.data.workers import Workers

        assert self.prefetch_factor is not None
        workers = self._workers
        if workers is None:
            init, context = self.worker_init_fn, self.multiprocessing_context
            workers = Workers(self._source, self.num_workers, seed, init, context, self.timeout)
            if self.persistent_workers:
                self._workers = workers
                weakref.finalize(self, workers.close)
        try:
            yield from workers.batches(requests, seed, self.prefetch_factor)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # the pass failed: what workers do now is of no use
                self._workers = None
                workers.close(kill=True)
            raise
        finally:
            if self._workers is not workers:
                workers.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copies and pickles, which start workers of their own."""
        return {**vars(self), "_workers": None}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch: in the latest pass, or at the start of another if that has ended."""
        if self._latest is None or self._has_ended(self._latest[1]):
            seed, batch = self._next
            return {"epoch": self.epoch, "batch": batch, "seed": seed}
        seed, batch = self._latest
        return {"epoch": self.epoch - 1, "batch": batch, "seed": seed}

    def _has_ended(self, taken: int) -> bool:
        if self._is_iterable:  # its workers may have more batches between them than its length says
            return False
        try:
            return taken >= len(self)
        except TypeError:  # of unknown length
            return False

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass begin at a position that `state_dict` returned; later passes begin at their start."""
        self.epoch, self._latest = state_dict["epoch"], None
        self._next = (state_dict["seed"], state_dict["batch"])
