"""Ways to train a model, and the one with the shortest step within a given memory.

In each phase of a step the disk works in parallel with the processor, so a phase takes as long as the slower of the
two. Writes and reads share the disk. Moving a byte also takes time of the processor. So a phase takes
max(computing + copying, writing + reading).
"""

import abc
import bisect
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from spillgrad.spill.planning.choose import WORTH_SHARE, Choice, choices
from spillgrad.spill.planning.machine import Machine
from spillgrad.spill.planning.profile import in_steps
from spillgrad.spill.planning.record import Unit
from spillgrad.storage.residency import belady
from spillgrad.storage.residency.belady import PHASES

NOTHING = Choice(frozenset(), 0, 0.0, 0.0)
# The share of the memory that a plan leaves unused, for errors of the prediction.
MARGIN_SHARE = 0.05
# The share that is enough where more is not to be had.
_LEAST_MARGIN_SHARE = 0.02
# By how much the memory of a process differs from one plan to the next: one by `train`, which has data, or for another
# size. The least memory that one says must do for the next, too.
DRIFT_BYTES = 8 << 20
# The difference between neighbouring budgets that are compared.
_BUDGET_STEP = 1 << 20
# The number of choices to compare, from recomputing nothing to recomputing everything.
_CHOICES = 9
_RAM_FACTORS = (0.5, 2.0, 4.0, 8.0, 16.0)


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted bytes and seconds of a training step.

    Parameters
    ----------
    budget_bytes : int
        The `ram_budget`.
    peak_bytes : int
        The most memory of the process.
    disk_bytes : int
        The most space on the disk. A store writes ahead of need, and all that is live where other programs hold it up.
    saved_bytes : int
        Bytes that one batch saves for backward; a step may have several batches.
    written_bytes : int
        Bytes written to disk.
    read_bytes : int
        Bytes read from disk.
    compute_s : float
        Seconds of computing, recomputation included.
    io_s : float
        Seconds of the disk.
    step_s : float
        Seconds of the step.
    """

    budget_bytes: int
    peak_bytes: int
    disk_bytes: int
    saved_bytes: int
    written_bytes: int
    read_bytes: int
    compute_s: float
    io_s: float
    step_s: float


@dataclasses.dataclass(frozen=True)
class Alternative:
    """The prediction for another amount of memory.

    Parameters
    ----------
    ram_bytes : int
        The memory in bytes.
    offload : bool
        Whether parameters and optimizer state are on disk too.
    step_s : float
        Seconds of a step.
    moved_bytes : int
        Bytes that a step writes to and reads from disk.
    """

    ram_bytes: int
    offload: bool
    step_s: float
    moved_bytes: int


class PhaseSeconds(NamedTuple):
    """How long the processor computes and copies in a phase of a step, and how long the disk works meanwhile."""

    processor_s: float
    disk_s: float


class Candidate(abc.ABC):
    """A way to train a model, for which a step can be predicted under any budget.

    Parameters
    ----------
    offload : bool
        Whether parameters and optimizer state are on disk too.
    least_budget : int
        The least budget in bytes with which the store works.
    machine : Machine
        The machine to predict for.
    """

    def __init__(self, offload: bool, least_budget: int, machine: Machine) -> None:
        self.offload, self.least_budget, self.machine = offload, least_budget, machine
        self.units: list[Unit] = []

    @property
    @abc.abstractmethod
    def parameter_bytes(self) -> int:
        """The bytes of all parameters."""

    @property
    @abc.abstractmethod
    def trained_bytes(self) -> int:
        """The bytes of the parameters that require gradients."""

    @property
    @abc.abstractmethod
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state."""

    @abc.abstractmethod
    def peak_bytes(self, budget_bytes: int, choice: Choice = NOTHING) -> int:
        """Return the peak memory of the process.

        Parameters
        ----------
        budget_bytes : int
            The `ram_budget`.
        choice : Choice, optional
            The modules to recompute; none, by default.

        Returns
        -------
        int
            Number of bytes.
        """

    @abc.abstractmethod
    def _moved(self, budget_bytes: int, choice: Choice, keeps: bool) -> belady.Traffic:
        """Return the traffic of the store in a step."""

    @abc.abstractmethod
    def _phase_s(self, choice: Choice) -> dict[str, float]:
        """Return the seconds of computing, by phase."""

    @abc.abstractmethod
    def _saved_bytes(self, choice: Choice) -> int:
        """Return the bytes that a batch saves for backward."""

    def predict(self, budget_bytes: int, choice: Choice = NOTHING, keeps: bool = False) -> Prediction:
        """Predict a step.

        Parameters
        ----------
        budget_bytes : int
            The `ram_budget`.
        choice : Choice, optional
            The modules to recompute; none, by default.
        keeps : bool, default False
            Whether all saved tensors stay in RAM, in addition to the budget.

        Returns
        -------
        Prediction
            Bytes and seconds.
        """
        moved = self._moved(budget_bytes, choice, keeps)
        kept_bytes = self._saved_bytes(choice) if keeps else 0
        phases = self._phases(moved, choice)
        return Prediction(
            budget_bytes=budget_bytes,
            peak_bytes=self.peak_bytes(max(budget_bytes, moved.ram_bytes) + kept_bytes, choice),
            # Up to half of the budget, nothing is written ahead.
            disk_bytes=moved.live_bytes if moved.live_bytes > budget_bytes // 2 else moved.disk_bytes,
            saved_bytes=self._saved_bytes(choice),
            written_bytes=moved.written_bytes,
            read_bytes=moved.read_bytes,
            compute_s=sum(self._phase_s(choice).values()),
            io_s=sum(phase.disk_s for phase in phases.values()),
            step_s=sum(map(max, phases.values())),
        )

    def phases(self, budget_bytes: int, choice: Choice = NOTHING) -> dict[str, PhaseSeconds]:
        """Return how long processor and disk work in each phase of a step; the phase takes the longer of the two.

        Parameters
        ----------
        budget_bytes : int
            The `ram_budget`.
        choice : Choice, optional
            The modules to recompute; none, by default.

        Returns
        -------
        dict
            By the name of the phase, the seconds of processor and disk.
        """
        return self._phases(self._moved(budget_bytes, choice, False), choice)

    def _phases(self, moved: belady.Traffic, choice: Choice) -> dict[str, PhaseSeconds]:
        compute_s, found = self._phase_s(choice), {}
        for phase in PHASES:
            written, read = moved.written[phase], moved.read[phase]
            busy_s = compute_s[phase] + self.machine.busy_s(written + read)
            found[phase] = PhaseSeconds(busy_s, self.machine.disk.seconds(moved.stored[phase], moved.fetched[phase]))
        return found

    def least_bytes(self) -> int:
        """Return the least memory in which the model can be trained.

        Returns
        -------
        int
            Bytes of the whole process.
        """
        everything = Choice(frozenset(unit.whole.path for unit in self.units), 0, 0.0, 0.0)
        ways = [(self.least_budget, NOTHING), (self.least_budget, everything), (self._saved_bytes(NOTHING), NOTHING)]
        return min(self.predict(max(budget, self.least_budget), choice).peak_bytes for budget, choice in ways)

    def budget_within(self, ram_bytes: int, choice: Choice = NOTHING) -> int | None:
        """Return the largest budget with which the process stays within a given memory.

        Parameters
        ----------
        ram_bytes : int
            Memory of the whole process in bytes.
        choice : Choice, optional
            The modules to recompute; none, by default.

        Returns
        -------
        int or None
            The budget in bytes; None if no budget will do.
        """
        least = self.least_budget
        most = max(ram_bytes, least)
        if self.peak_bytes(most, choice) <= ram_bytes:  # with nothing on disk, it may be less than with little
            return most
        if self.peak_bytes(least, choice) > ram_bytes:
            return None
        budgets = range(least, most + 1, _BUDGET_STEP)
        return budgets[bisect.bisect_right(budgets, ram_bytes, 1, key=lambda each: self.peak_bytes(each, choice)) - 1]

    def predict_within(self, ram_bytes: int, choice: Choice = NOTHING) -> Prediction | None:
        """Predict a step under the largest budget with which the process stays within a given memory.

        Parameters
        ----------
        ram_bytes : int
            Memory of the whole process in bytes.
        choice : Choice, optional
            The modules to recompute; none, by default.

        Returns
        -------
        Prediction or None
            Its `peak_bytes` are at most `ram_bytes`; None if no budget will do.
        """
        budget = self.budget_within(ram_bytes, choice)
        while budget is not None:
            found = self.predict(budget, choice)
            excess_bytes = found.peak_bytes - ram_bytes  # what one operation needs at once may exceed a budget
            if excess_bytes <= 0:
                return found
            smaller = max(self.least_budget, budget - max(excess_bytes, _BUDGET_STEP))
            budget = smaller if smaller < budget else None
        return None


Way = TypeVar("Way", bound=Candidate)


def best(ways: Sequence[Way], ram_bytes: int) -> tuple[Way, Choice, Prediction] | None:
    """Return the choice with the shortest step within `ram_bytes`; of similar steps, the one that recomputes least.

    It leaves the margin of a plan, or a smaller one where the memory is about the least that works.
    """
    limits = (int(ram_bytes * (1 - share)) for share in (MARGIN_SHARE, _LEAST_MARGIN_SHARE))
    return next((found for limit in limits if (found := _best_within(ways, limit)) is not None), None)


def _best_within(ways: Sequence[Way], ram_bytes: int) -> tuple[Way, Choice, Prediction] | None:
    shortest: tuple[Way, Choice, Prediction] | None = None
    for way in ways:
        every = list(choices(way.units, lambda freed_bytes, seconds: 0.0)) or [NOTHING]
        last = len(every) - 1
        for number in sorted({round(last * i / (_CHOICES - 1)) for i in range(_CHOICES)}):
            choice = every[number]
            prediction = way.predict_within(ram_bytes, choice)
            if prediction is None:
                continue
            if shortest is None and not (choice.paths or prediction.written_bytes or prediction.read_bytes):
                return way, choice, prediction  # nothing else can be faster, except by noise of the measurements
            if shortest is None or prediction.step_s < shortest[2].step_s * (1 - WORTH_SHARE):
                shortest = way, choice, prediction
    return shortest


def alternatives(ways: Sequence[Candidate], ram_bytes: int) -> Iterable[Alternative]:
    """Yield predictions for other amounts of memory, up to an amount with which no tensor goes to disk."""
    for factor in _RAM_FACTORS:
        other = int(ram_bytes * factor)
        found = best(ways, other)
        if found is None:
            continue
        way, _, prediction = found
        moved = prediction.written_bytes + prediction.read_bytes
        yield Alternative(other, way.offload, prediction.step_s, moved)
        if moved == 0 and factor > 1:
            return


def least_bytes(ways: Sequence[Candidate], drift_bytes: int = DRIFT_BYTES) -> int:
    """Return the least memory in which one of the ways trains, with the margin of a plan, and what processes differ."""
    return in_steps(min(way.least_bytes() for way in ways) / (1 - MARGIN_SHARE) + drift_bytes)


@dataclasses.dataclass(frozen=True)
class TrainingPlan:
    """What the plan of every training run says; `Plan` documents the fields."""

    ram_bytes: int
    least_bytes: int
    parameter_bytes: int
    trained_bytes: int
    state_bytes: int
    offload: bool
    policy: str
    prediction: Prediction
    machine: Machine
    alternatives: tuple[Alternative, ...]

    @property
    def fits_disk(self) -> bool:
        """Whether the disk has room for all bytes that the run stores on it."""
        return self.prediction.disk_bytes <= self.machine.disk.free_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as a dictionary that JSON can represent.

        Returns
        -------
        dict
            The fields by name.
        """
        return dataclasses.asdict(self)
