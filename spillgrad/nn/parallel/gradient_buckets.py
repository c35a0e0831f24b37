"""Which gradients travel together: the buckets of a model's gradients."""

import collections
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from spillgrad.device.device import CPU, moved
from spillgrad.distributed.process_group import Work
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import buffers

# The first bucket is small, so that sending begins early. Both numbers are PyTorch's.
_FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
# What is in the last bucket cannot hide behind backward, but each bucket costs about 5 ms, in which a network of
# 1 Gbit/s sends this much. Of S bytes, buckets of b cost the time of b + S / b times this: least where both are equal.
_SENT_IN_THE_TIME_OF_A_BUCKET = 600 << 10
_LEAST_BUCKET_BYTES = 1 << 20
# With many processes, smaller pieces of a bucket would take less time to send than their messages take to prepare.
_PIECE_BYTES = 64 << 10


class Bucket:
    """Gradients that are sent together: those of some parameters, of one dtype, one behind the other."""

    def __init__(self, places: Sequence[int], parameters: Sequence[Tensor]) -> None:
        self.places = list(places)
        self.sizes = [parameters[place].numel() for place in places]
        bounds = np.cumsum([0, *self.sizes]).tolist()
        self.parts = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
        self.size = bounds[-1]
        self.dtype = parameters[places[0]].numpy_dtype
        self.begin()

    def begin(self) -> None:
        """Forget what was reduced."""
        self.waits_for = set(self.places)
        self.flat: np.ndarray | None = None
        self.own: set[int] = set()  # the parameters whose gradients are in `flat` alone
        self.present = np.zeros(len(self.places), bool)
        self.work: Work | None = None
        self.found: np.ndarray = self.present  # which gradients any process has, when the work has ended

    def put(self, place: int, array: np.ndarray) -> np.ndarray:
        """Copy a gradient into the bucket, and return the copy, which is flat."""
        if self.flat is None:
            self.flat = buffers.empty((self.size,), self.dtype)
        number = self.places.index(place)
        copy = self.flat[self.parts[number]]
        copy[:] = moved(array, CPU).reshape(-1)
        self.present[number] = True
        return copy

    def lend(self, array: np.ndarray) -> None:
        """Use the memory of the only gradient as that of the bucket."""
        self.flat = array.reshape(-1)
        self.present[:] = True

    def complete(self) -> np.ndarray:
        """Return the bucket, with zeros in place of the gradients that it has not got."""
        if self.flat is None:
            self.flat = buffers.empty((self.size,), self.dtype)
        for part, is_there in zip(self.parts, self.present, strict=True):
            if not is_there:
                self.flat[part] = 0
        return self.flat

    def take(self, found: np.ndarray) -> None:
        """Take the result of a sum."""
        self.found = found


def buckets_of(
    parameters: Sequence[Tensor], bucket_bytes: int, goes_alone: Callable[[Tensor], bool] = lambda parameter: False
) -> list[Bucket]:  # fmt: skip
    """Put parameters into buckets of at most so many bytes, but for larger ones; backward reaches the first one first.

    A parameter for which `goes_alone` returns true has a bucket of its own.
    """
    kinds = [Kind(parameter.numpy_dtype, parameter.nbytes, goes_alone(parameter)) for parameter in parameters]
    return [Bucket(places, parameters) for places in bucket_places(kinds, bucket_bytes)]


def default_bucket_bytes(total_bytes: int, ranks: int) -> int:
    """Return how many bytes of a model's gradients travel together."""
    least_bytes = max(_LEAST_BUCKET_BYTES, ranks * _PIECE_BYTES)
    return max(least_bytes, min(BUCKET_BYTES, math.isqrt(total_bytes * _SENT_IN_THE_TIME_OF_A_BUCKET)))


class Kind(NamedTuple):
    """What decides on the bucket of a parameter's gradient."""

    dtype: np.dtype
    nbytes: int
    goes_alone: bool = False


def bucket_places(kinds: Sequence[Kind], bucket_bytes: int) -> list[list[int]]:
    """Put parameters into buckets, the last one first, as backward reaches it first.

    Return the parameters' numbers, bucket by bucket.
    """
    buckets: list[list[int]] = []
    filling: dict[Any, list[int]] = collections.defaultdict(list)
    for place in reversed(range(len(kinds))):
        dtype, nbytes, goes_alone = kinds[place]
        if goes_alone:
            buckets.append([place])
            continue
        places = filling[dtype]
        limit_bytes = bucket_bytes if buckets else min(_FIRST_BUCKET_BYTES, bucket_bytes)
        if places and sum(kinds[other].nbytes for other in places) + nbytes > limit_bytes:
            buckets.append(places)
            places = filling[dtype] = []
        places.append(place)
    return [*buckets, *(places for places in filling.values() if places)]
