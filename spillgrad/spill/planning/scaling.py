"""Predict the steps of several processes that train one model together.

Forward computes, and nothing travels. Backward computes, and sums of gradients travel as they are ready, bucket by
bucket, as `DistributedDataParallel` sends them; then the process waits for what is still under way. Messages also take
time of the processor, which the computation loses. Each process has a machine such as the one that was measured.

Where processes share parameters, too (`shard="all"`), forward and backward bring each large one together, one ahead.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from spillgrad.distributed import traffic
from spillgrad.distributed.link import Link
from spillgrad.distributed.lockstep import Collective, Lockstep
from spillgrad.distributed.wires import EXACT, Wire
from spillgrad.nn.parallel.gradient_buckets import Kind, bucket_places, default_bucket_bytes
from spillgrad.spill.offload.needs import ALONE, Sharing
from spillgrad.spill.planning.candidate import NOTHING, PhaseSeconds
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.predict import Whole

# The share of its speed that each process must keep, so that a number of processes is recommended.
WORTH_EFFICIENCY = 0.8
# Each step, `spillgrad train` gathers the losses, and whether a process is to stop: pickles of about this size.
_GATHERED, _PICKLE_BYTES = 2, 60


@dataclasses.dataclass(frozen=True)
class Scaling:
    """The prediction of a step with a number of processes.

    Parameters
    ----------
    ranks : int
        Number of processes.
    batches : int
        Number of batches in a step, of all processes together.
    step_s : float
        Seconds of the step.
    compute_s : float
        Seconds in which the processor of each process computes.
    disk_s : float
        Seconds in which its disk writes and reads.
    network_s : float
        Seconds in which the network works.
    exposed_s : float
        Seconds that the network and its messages add to the step.
    sent_bytes : int
        Bytes that each process sends.
    sent_messages : int
        Messages that each process sends.
    peak_bytes : int
        The most memory of each process.
    efficiency : float
        Tokens a second, divided by those of as many single processes.
    """

    ranks: int
    batches: int
    step_s: float
    compute_s: float
    disk_s: float
    network_s: float
    exposed_s: float
    sent_bytes: int
    sent_messages: int
    peak_bytes: int
    efficiency: float


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: elements, bytes of each, parameters, and the share of backward before them.

    `is_of_part` says whether it is the gradient of a parameter in parts.
    """

    ready_share: float
    count: int
    itemsize: int
    parts: int
    is_of_part: bool = False

    def traffic(self, size: int, is_sharded: bool, wire: Wire = EXACT) -> Iterator[traffic.Traffic]:
        """Yield the exchanges of their sum; where it is sharded, each rank keeps a piece of it."""
        return traffic.sum_of_gradients(size, self.count, self.itemsize, self.parts, not is_sharded, wire)


@dataclasses.dataclass(frozen=True)
class Gathered:
    """A parameter in parts: its elements, bytes of each, and the shares of forward and backward before it travels."""

    forward_share: float
    backward_share: float
    count: int
    itemsize: int

    def traffic(self, size: int) -> Iterator[traffic.Traffic]:
        """Yield the exchanges that bring it together."""
        return traffic.pieces_to_all(size, self.count, self.itemsize)


def gathered(whole: Whole, sharing: Sharing) -> list[Gathered]:
    """Return the parameters that are in parts, in the order in which backward uses them; forward uses the last first.

    Each begins to travel when the use of the one before begins.
    """
    used = whole.uses()
    done = [0.0, 0.0, *(each.ready_share for each in used), 1.0]  # before the use of one, and after the last
    return [
        Gathered(1 - done[place + 3], done[place], each.count, each.dtype.itemsize)
        for place, each in enumerate(used)
        if sharing.cuts(each.count * each.dtype.itemsize)
    ]


def buckets(whole: Whole, ranks: int, sharing: Sharing = ALONE) -> list[Bucket]:
    """Return the buckets of a model's gradients with so many processes, in the order in which they travel.

    The gradient of a parameter in parts travels alone.
    """
    gradients = whole.gradients()
    sizes = [each.count * each.dtype.itemsize for each in gradients]
    kinds = [Kind(each.dtype, nbytes, sharing.cuts(nbytes)) for each, nbytes in zip(gradients, sizes, strict=True)]
    found = []
    ready_share = 0.0
    for places in bucket_places(kinds, default_bucket_bytes(sum(kind.nbytes for kind in kinds), ranks)):
        inside = [gradients[place] for place in places]
        ready_share = max(ready_share, *(each.ready_share for each in inside), 0.0)  # those before travel first
        count, is_of_part = sum(each.count for each in inside), kinds[places[0]].goes_alone
        found.append(Bucket(ready_share, count, inside[0].dtype.itemsize, len(inside), is_of_part))
    return found


def numbers_up_to(ranks: int) -> list[int]:
    """Return 1, 2, 4, 8 and so on up to a number, and that number."""
    powers = itertools.takewhile(lambda power: power < ranks, (1 << bit for bit in itertools.count()))
    return [*powers, ranks]


def scale(
    whole: Whole, budget_bytes: int, link: Link, cores: int, ranks: Sequence[int], choice: Choice = NOTHING,
    wire: Wire = EXACT, cuts_parameters: bool = False,
) -> list[Scaling]:  # fmt: skip
    """Predict a step with each number of processes.

    A step has as many batches as that of `whole`, and at least one for each process. The optimizer's state of an
    offloaded model is sharded: each process updates its part of the parameters, and gets the rest from the others; at
    once, or, with `cuts_parameters`, whenever it uses them.

    Parameters
    ----------
    whole : Whole
        The model, on one machine.
    budget_bytes : int
        The `ram_budget` of each process.
    link : Link
        The network.
    cores : int
        Cores of each process.
    ranks : sequence of int
        Numbers of processes, of which the first is 1.
    choice : Choice, optional
        The modules to recompute; none, by default.
    wire : Wire, optional
        The format in which gradients travel.
    cuts_parameters : bool, default False
        Whether each process of an offloaded model stores only a part of every large parameter.

    Returns
    -------
    list of Scaling
        One for each number.
    """
    found: list[Scaling] = []
    for size in ranks:
        batches = max(whole.profile.accumulate, size)
        alone = found[0] if found else None
        sharing = Sharing(size, wire, cuts_parameters and whole.offload)
        found.append(_step(whole, budget_bytes, link, cores, sharing, batches, choice, alone))
    return found


def recommended(rows: Sequence[Scaling]) -> int:
    """Return the largest number of processes of which each keeps at least 80 % of its speed."""
    return max(row.ranks for row in rows if row.efficiency >= WORTH_EFFICIENCY or row.ranks == 1)


def _step(
    whole: Whole, budget_bytes: int, link: Link, cores: int, sharing: Sharing, batches: int, choice: Choice,
    alone: Scaling | None,
) -> Scaling:  # fmt: skip
    size, wire = sharing.ranks, sharing.wire
    rounds = -(-batches // size)
    is_sharded = whole.offload
    mine = whole.with_batches(rounds)
    if sharing.cuts_parameters:
        mine = mine.in_parts(sharing)
    phases = mine.phases(budget_bytes, choice)
    forward, backward, update = phases["forward"], phases["backward"], phases["update"]
    if is_sharded:
        is_cut = sharing.cuts_parameters and size > 1  # what it moves are parts already
        update = PhaseSeconds(update.processor_s / size, update.disk_s / (1 if is_cut else size))
    sent, parts = buckets(whole, size, sharing), gathered(whole, sharing)
    of_round: list[traffic.Traffic] = []
    of_step: list[traffic.Traffic] = []
    after_s = network_s = 0.0
    forward_s, backward_s = max(forward) / rounds, max(backward) / rounds
    if size > 1:
        of_round = [each for part in (*parts, *parts) for each in part.traffic(size)]
        of_round += [each for bucket in sent for each in bucket.traffic(size, is_sharded, wire)]
        after = [list(traffic.objects_to_all(size, _PICKLE_BYTES)) for _ in range(_GATHERED)]
        if is_sharded:
            whole_ones = [bucket for bucket in sent if not bucket.is_of_part]
            after += [list(traffic.pieces_to_all(size, bucket.count, bucket.itemsize)) for bucket in whole_ones]
        of_step = list(itertools.chain(*after))
        # One after the other where the program waits for each; parameters follow each other without waiting.
        after_s = sum(Lockstep(link, cores).run(0.0, [Collective(0.0, each)]) for each in after[:_GATHERED])
        after_s += Lockstep(link, cores).run(0.0, [Collective(0.0, each) for each in after[_GATHERED:]])

        def of_forward(seconds: float) -> float:
            collectives = [Collective(part.forward_share * seconds, part.traffic(size)) for part in reversed(parts)]
            return Lockstep(link, cores).run(seconds, collectives)

        def of_backward(seconds: float) -> float:
            collectives = [Collective(part.backward_share * seconds, part.traffic(size)) for part in parts]
            collectives += [
                Collective(bucket.ready_share * seconds, bucket.traffic(size, is_sharded, wire)) for bucket in sent
            ]
            return Lockstep(link, cores).run(seconds, sorted(collectives, key=lambda each: each.ready_s))

        network_s = rounds * (of_forward(0.0) + of_backward(0.0)) + after_s
        forward_s, backward_s = of_forward(forward_s), of_backward(backward_s)
    computing_s = max(forward) + max(backward) + max(update)
    step_s = rounds * (forward_s + backward_s) + max(update) + after_s
    per_round, per_step = traffic.total(of_round), traffic.total(of_step)
    copies_bytes = 0 if is_sharded else mine.copies_bytes(sharing)
    per_s = batches / step_s
    return Scaling(
        ranks=size,
        batches=batches,
        step_s=step_s,
        compute_s=sum(phase.processor_s for phase in (forward, backward, update)),
        disk_s=sum(phase.disk_s for phase in (forward, backward, update)),
        network_s=network_s,
        exposed_s=step_s - computing_s,
        sent_bytes=round(rounds * per_round.nbytes + per_step.nbytes),
        sent_messages=round(rounds * per_round.count + per_step.count),
        peak_bytes=mine.peak_bytes(budget_bytes, choice) + copies_bytes,
        efficiency=1.0 if alone is None else per_s * alone.step_s / alone.batches / size,
    )
