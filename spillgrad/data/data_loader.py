"""Batches of a dataset, in this process or fetched ahead by others."""

import dataclasses
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from spillgrad.data.collate import default_collate, default_convert
from spillgrad.data.dataset import IterableDataset
from spillgrad.data.fetching import End, Fetcher, Source
from spillgrad.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from spillgrad.errors import ArgumentError, StateDictError
from spillgrad.generator import Generator, GeneratorState, Replay, default_generator

if TYPE_CHECKING:
    from spillgrad.data.workers import Workers


# Attributes that cannot be set later, as others follow from them.
_FIXED = {"batch_size", "batch_sampler", "drop_last", "dataset", "persistent_workers", "sampler"}


class DataLoader:
    """Iterate over a dataset in batches; each iteration is a pass.

    Samples may be tensors, arrays, numbers, strings, and lists or mappings of them; a batch has their structure,
    stacked. A pass is a function of its seed: samplers and iterable datasets that draw from the default generator, and
    workers, draw from the pass's seed. Several passes may go on at once.

    Parameters
    ----------
    dataset : Dataset or sequence
        Samples by index, or an `IterableDataset`.
    batch_size : int or None, default 1
        Number of samples in a batch; None yields samples.
    shuffle : bool, optional
        Whether each pass has a random order; by default, the order is that of the dataset.
    sampler : iterable, optional
        Indices in the order of a pass.
    batch_sampler : iterable, optional
        Lists of indices, each of a batch.
    num_workers : int, default 0
        Number of processes that fetch batches; with 0, this process does.
    collate_fn : callable, optional
        Makes a batch of a list of samples; by default, `default_collate`.
    pin_memory : bool, default False
        Accepted for PyTorch's programs: batches are in pageable memory.
    drop_last : bool, default False
        Whether to leave out a last batch that is smaller.
    timeout : float, default 0
        Seconds to wait for a batch of a worker; 0 waits without end.
    worker_init_fn : callable, optional
        Called in each worker with its number, before it fetches.
    multiprocessing_context : str or context, optional
        How workers are started, as in Python's `multiprocessing`.
    generator : Generator, optional
        Where the seeds of passes come from; by default, the generator of `manual_seed`.
    prefetch_factor : int, optional
        Number of batches that each worker fetches ahead; by default, 2.
    persistent_workers : bool, default False
        Whether workers stay between passes.
    pin_memory_device : str, default ""
        Accepted for PyTorch's programs.
    in_order : bool, default True
        Accepted for PyTorch's programs: batches always come in order.
    seed : int, optional
        If given, the seed of a pass follows from (seed, epoch).

    Attributes
    ----------
    epoch : int
        Number of passes begun; it may be set.

    Raises
    ------
    ArgumentError
        For options that exclude each other or are out of their range.
    WorkerError
        In an iteration, if a worker dies. What a worker raised is raised, too, with its traceback in the message.

    Examples
    --------
    >>> import spillgrad as sg
    >>> dataset = sg.utils.data.TensorDataset(sg.arange(6.0).reshape(3, 2), sg.tensor([0, 1, 0]))
    >>> for x, y in sg.utils.data.DataLoader(dataset, batch_size=2):
    ...     print(x.tolist(), y.tolist())
    [[0.0, 1.0], [2.0, 3.0]] [0, 1]
    [[4.0, 5.0]] [0]
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
        if multiprocessing_context is not None:
            from spillgrad.data.workers import check_context

            check_context(num_workers, multiprocessing_context)
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
        self._workers_are_busy = False
        self._next: tuple[int | None, int] = (None, 0)  # the seed and the first batch of the next pass
        self._reported: int | None = None  # the length of an iterable dataset, once `len` has asked for it
        self._latest: _Pass | None = None  # the pass that gave the last batch, and has not ended
        self._is_set_up = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and vars(self).get("_is_set_up"):
            raise ArgumentError(
                f"{name} attribute should not be set after {type(self).__name__} is initialized; make a new one"
            )
        super().__setattr__(name, value)

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
        self._reported = samples
        return samples // size if self.drop_last else -(-samples // size)

    def __iter__(self) -> Iterator[Any]:
        (seed, first), self._next = self._next, (None, 0)
        if seed is None:
            seed = self._new_seed()
        self._latest = _Pass(seed, self.epoch, first, self._reported)
        self.epoch += 1
        return self._batches(self._latest)

    def _new_seed(self) -> int:
        """Return the seed of the next pass."""
        if self.seed is None:
            seed, offset = (self.generator or default_generator).take(1)
            entropy = [seed, offset]
        else:
            entropy = [self.seed % 2**64, self.epoch]
        return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _batches(self, this: "_Pass") -> Iterator[Any]:
        requests, seed, first = self._requests(this), this.seed, this.taken
        # Workers' random numbers go on from batch to batch, so they fetch those before the first one, too.
        to_skip = first if self.num_workers or self._is_iterable else 0
        if not to_skip:
            requests = itertools.islice(requests, first, None)
        fetched = self._fetched_by_workers(requests, seed) if self.num_workers else self._fetched_here(requests, seed)
        for batch in itertools.islice(fetched, to_skip, None):
            this.taken += 1
            self._latest = this
            if this.reported is not None and this.taken > this.reported:
                warnings.warn(self._too_long(this), stacklevel=2)
            yield batch
        if self._latest is this:
            self._latest = None

    def _too_long(self, this: "_Pass") -> str:
        advice = (
            "For multiprocessing data-loading, this could be caused by not properly configuring the IterableDataset "
            "replica at each worker: divide the samples by get_worker_info()."
        )
        return (
            f"Length of IterableDataset {self.dataset} was reported to be {this.reported} (when accessing "
            f"len(dataloader)), but {this.taken} samples have been fetched. {advice if self.num_workers else ''}"
        )

    def _requests(self, this: "_Pass") -> Iterator[Any]:
        """Yield what to fetch; samplers that draw from the default generator draw from the pass's seed."""
        if self._is_iterable:
            yield from itertools.repeat(self.batch_size or 1)  # without end: the dataset's end ends the pass
        this.generators = self._generator_states()
        sampler: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
        stream = _stream(this.seed)
        with stream:
            order = iter(sampler)
        while True:
            with stream:
                request = next(order, End)
            if request is End:
                return
            yield request

    def _generators(self) -> list[Generator]:
        """Return the generators that passes draw from, except the default one."""
        samplers = (self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.sampler)
        found = [self.generator, *[getattr(sampler, "generator", None) for sampler in samplers]]
        return list({id(each): each for each in found if isinstance(each, Generator)}.values())

    def _generator_states(self) -> list[list[int]]:
        states = [generator.get_state() for generator in self._generators()]
        return [[state.seed, state.offset] for state in states]

    @property
    def _source(self) -> Source:
        return Source(self.dataset, self.collate_fn, self._batched, self.drop_last)

    def _fetched_here(self, requests: Iterator[Any], seed: int) -> Iterator[Any]:
        if not self._is_iterable:
            fetcher = Fetcher(self._source)
            yield from map(fetcher.fetch, requests)
            return
        stream = _stream(seed)  # so that a resumed pass, which fetches from its beginning, draws the same
        with stream:
            fetcher = Fetcher(self._source)
        for request in requests:
            with stream:
                batch = fetcher.fetch(request)
            if isinstance(batch, End):
                return
            yield batch

    def _fetched_by_workers(self, requests: Iterator[Any], seed: int) -> Iterator[Any]:
        from spillgrad.data.workers import Workers

        assert self.prefetch_factor is not None
        stay = self.persistent_workers and not self._workers_are_busy  # another pass needs workers of its own
        workers = self._workers if stay else None
        if workers is None:
            init, context = self.worker_init_fn, self.multiprocessing_context
            workers = Workers(self._source, self.num_workers, init, context, self.timeout)
            if stay:
                self._workers = workers
                weakref.finalize(self, workers.close)
        if stay:
            self._workers_are_busy = True
        try:
            yield from workers.batches(requests, seed, self.prefetch_factor)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # the pass failed: what workers do now is of no use
                if stay:
                    self._workers = None
                workers.close(kill=True)
            raise
        finally:
            if stay:
                self._workers_are_busy = False
            if self._workers is not workers:
                workers.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for copies and pickles, which start workers of their own."""
        return {**vars(self), "_workers": None, "_workers_are_busy": False}

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch: in the latest pass, or at the start of another if that has ended.

        Returns
        -------
        dict
            The position, and the state of `generator` and of samplers' attribute `generator`.
        """
        latest, generators = self._latest, self._generator_states()
        if latest is None or self._has_ended(latest.taken):
            seed, batch = self._next
            state: dict[str, Any] = {"epoch": self.epoch, "batch": batch, "seed": seed}
        else:
            state = {"epoch": latest.epoch, "batch": latest.taken, "seed": latest.seed}
            generators = generators if latest.generators is None else latest.generators
        return {**state, "generators": generators} if generators else state

    def _has_ended(self, taken: int) -> bool:
        if self._is_iterable:  # its workers may have more batches between them than its length says
            return False
        try:
            return taken >= len(self)
        except TypeError:  # of unknown length
            return False

    def check_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Raise an error when a state dict has other generators than this loader.

        Parameters
        ----------
        state_dict : mapping
            State of a loader.

        Raises
        ------
        StateDictError
            If the numbers of generators differ, or a generator's state is none.
        """
        wanted, states = len(self._generators()), state_dict.get("generators", [])
        if len(states) != wanted:
            raise StateDictError(
                f"DataLoader.load_state_dict: got the state of {len(states)} generators, wanted {wanted}; give the "
                "state of the same loader"
            )
        for state in states:
            if len(state) != 2 or not all(isinstance(number, int) and 0 <= number < 2**64 for number in state):
                raise StateDictError(
                    f"DataLoader.load_state_dict: got {str(state)[:80]} as the state of a generator; give seed, offset"
                )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next pass begin at a position that `state_dict` returned; later passes begin at their start.

        Parameters
        ----------
        state_dict : mapping
            State of a loader; generators continue from their states.

        Raises
        ------
        StateDictError
            For the state of a loader with more or fewer generators.
        """
        self.check_state_dict(state_dict)
        for generator, state in zip(self._generators(), state_dict.get("generators", []), strict=True):
            generator.set_state(GeneratorState(*state))
        self.epoch, self._latest = state_dict["epoch"], None
        self._next = (state_dict["seed"], state_dict["batch"])


@dataclasses.dataclass
class _Pass:
    """A pass: its seed, the epochs before it, the batches taken, and its generators' states as it began to draw.

    `reported` is the length of an iterable dataset, if it was asked for before the pass.
    """

    seed: int
    epoch: int
    taken: int
    reported: int | None
    generators: list[list[int]] | None = None


def _stream(seed: int) -> Replay:
    """Return the context in which code that draws from the default generator draws from the stream of `seed`."""
    return default_generator.replay(GeneratorState(seed, 0))
