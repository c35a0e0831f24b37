"""Measure the network between the processes of a group, with the sums of gradients that training sends."""

import statistics
import time

import numpy as np

from spillgrad.distributed import collective_steps, traffic
from spillgrad.distributed.link import LOOK_S, Link
from spillgrad.distributed.process_group import ProcessGroup, Work, begin, run
from spillgrad.errors import DistributedError
from spillgrad.nn.parallel.gradient_buckets import BUCKET_BYTES
from spillgrad.nn.parallel.gradient_sums import reduce_gradients

# How many buckets are under way at once, as in backward.
_AT_ONCE = 3
_SMALL = 15
# An exchange of headers, and one of data.
_EXCHANGES_OF_SMALL = 2


def measure_link(group: ProcessGroup, seconds: float = 2.0) -> Link:
    """Measure the network between the processes of a group, all of which call this.

    Parameters
    ----------
    group : ProcessGroup
        The processes.
    seconds : float, default 2.0
        How long.

    Returns
    -------
    Link
        The same on all processes: the slowest one's.

    Raises
    ------
    DistributedError
        If there is one process.
    """
    size = group.size()
    if size < 2:
        raise DistributedError("measure_link: got one process; start several with spillgrad launch -n 2")
    latencies = []
    for _ in range(_SMALL):
        began_s = time.perf_counter()
        run(group, "measuring the latency", collective_steps.all_reduce(group.rank(), size, np.ones(1), np.add))
        latencies.append(time.perf_counter() - began_s)
    latency_s = max(0.0, statistics.median(latencies) / _EXCHANGES_OF_SMALL - LOOK_S)
    rates: list[float] = []
    per_bytes: list[float] = []
    began_s = time.perf_counter()
    while True:
        has_time = np.array([float(time.perf_counter() - began_s < seconds)])
        run(group, "measuring for longer", collective_steps.all_reduce(group.rank(), size, has_time, np.minimum))
        if rates and not has_time[0]:
            break
        rate, per_byte = _rate(group)
        rates.append(rate)
        per_bytes.append(per_byte)
    mine = (statistics.median(rates), latency_s, statistics.median(per_bytes))
    steps = collective_steps.all_gather_object(size, collective_steps.pickled(mine))
    found = list(zip(*run(group, "comparing measurements", steps), strict=True))
    return Link(min(found[0]), max(found[1]), max(found[2]))


def _rate(group: ProcessGroup) -> tuple[float, float]:
    """Return how many bytes a second this process sends while it sums buckets, and the time of a core for each byte."""
    size, count = group.size(), BUCKET_BYTES // 4
    gradients = [np.ones(count, np.float32) for _ in range(_AT_ONCE)]
    began_s, busy_s = time.perf_counter(), time.process_time()
    works: list[tuple[Work, np.ndarray, np.ndarray]] = []
    for gradient in gradients:
        flat = np.zeros(count, np.float32)  # as the reducer: gradients go into the bucket, and back
        flat[:] = gradient
        runs = collective_steps.cut(count, size)
        steps = reduce_gradients(
            group.rank(), flat, runs, flat[runs[group.rank()]], [slice(0, count)], np.ones(1, bool), [None], 1.0
        )
        works.append((begin(group, "measuring the rate", steps), flat, gradient))
    for work, flat, gradient in works:
        work.wait()
        np.copyto(gradient, flat)
    took_s, busy_s = time.perf_counter() - began_s, time.process_time() - busy_s
    sent = traffic.total(list(traffic.sum_of_gradients(size, count, 4, 1))).nbytes * _AT_ONCE
    return sent / took_s, busy_s / sent
