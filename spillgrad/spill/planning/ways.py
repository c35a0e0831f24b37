"""The ways in which a plan may train: the model in RAM or offloaded, with weights and state in formats."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from spillgrad.errors import ArgumentError, BudgetError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.master import SPLIT, WHOLE
from spillgrad.spill.offload.needs import ALONE, Sharing
from spillgrad.spill.planning.candidate import Prediction, best, least_bytes
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.formats import EXACTLY, Asked, Formats
from spillgrad.spill.planning.machine import Machine, measure
from spillgrad.spill.planning.predict import Whole, sums_of
from spillgrad.spill.planning.profile import Profile, profile
from spillgrad.storage.sizes import format_bytes
from spillgrad.tensor import Tensor

# The share of the memory that the store gets while two layers are measured, or what a layer needs, if that is more; but
# no more than the second share: the rest is for what the store does not hold.
_PROFILE_SHARE, _MOST_PROFILE_SHARE = 0.25, 0.6


class Ways:
    """Profiles a model, in RAM and offloaded, in one format after another.

    Parameters
    ----------
    build : callable
        Function that builds the model with a given number of layers.
    depth : int
        Number of layers of the whole model.
    loss : callable
        Function from the model to the loss of a batch.
    optimizer : callable
        Function from the list of trained parameters to the optimizer.
    ram_bytes : int
        Memory of the process.
    place : path, optional
        Folder for the spill files.
    accumulate : int, default 1
        Number of batches in a step.
    offload : bool, optional
        Whether the model is offloaded; by default, there are ways of both kinds.
    autocast : bool, default False
        Whether products are computed in bfloat16.
    machine : Machine, optional
        The machine; by default, this one is measured.
    sharing : Sharing, optional
        The processes that train together.
    beside_bytes : int, default 0
        Memory that the process will have and this one has not.
    """

    def __init__(
        self, build: Callable[[int], Module], depth: int, loss: Callable[[Module], Tensor],
        optimizer: Callable[[list[Parameter]], Optimizer], ram_bytes: int, place: Path | None = None, *,
        accumulate: int = 1, offload: bool | None = None, autocast: bool = False, machine: Machine | None = None,
        sharing: Sharing = ALONE, beside_bytes: int = 0,
    ) -> None:  # fmt: skip
        self._build, self._depth, self._loss, self._optimizer = build, depth, loss, optimizer
        self._ram_bytes, self._accumulate, self._autocast = ram_bytes, accumulate, autocast
        self._place = (Path(tempfile.gettempdir()) if place is None else place).absolute()
        self._machine = measure(self._place) if machine is None else machine
        self.offload, self._sharing, self._beside_bytes = offload, sharing, beside_bytes
        self._known: dict[bool, Profile] = {}  # the first profile, by whether it was offloaded
        self.all: list[Whole] = []
        # Why a way cannot be: the error of the first one that takes more memory than there is.
        self.error: BudgetError | None = None

    def add(self, formats: Formats) -> None:
        """Add the ways to train in some formats; in RAM, only if that may be possible."""
        try:
            self.all += self._made(formats)
        except BudgetError as error:
            self.error = self.error or error

    def try_to_add(self, formats: Formats) -> bool:
        """Add ways as `add` does, and return True; False if the optimizer has no such state or updates."""
        try:
            self.add(formats)
        except (ArgumentError, UnsupportedError):
            return False
        return True

    def best(self) -> tuple[Whole, Choice, Prediction] | None:
        """Return the quickest way, with what it recomputes and its step; None if there is none."""
        return best(self.all, self._ram_bytes)

    def least_bytes(self, formats: Formats | None = None) -> int | None:
        """Return the least memory that one of the ways takes, or one in some formats; None if there is none."""
        some = [way for way in self.all if formats in (None, way.profile.formats)]
        return least_bytes(some) if some else None

    def _made(self, formats: Formats) -> list[Whole]:
        if self.offload is not None:
            return [self.profiled(self.offload, formats)]
        offloaded = self.profiled(True, formats)
        whole_bytes = offloaded.parameter_bytes + offloaded.trained_bytes + offloaded.state_bytes
        may_fit = offloaded.profile.base_bytes + whole_bytes < self._ram_bytes
        # In RAM, weights are whole where they are split on disk.
        other = formats._replace(master=WHOLE) if formats.master == SPLIT else formats
        is_new = all(way.offload or way.profile.formats != other for way in self.all)
        return [self.profiled(False, other), offloaded] if may_fit and is_new else [offloaded]

    def profiled(self, offload: bool, formats: Formats = EXACTLY) -> Whole:
        """Return the way to train in a store if `offload` is true, else in RAM.

        Raises BudgetError if a layer needs more than there is.
        """
        budget_bytes = int(self._ram_bytes * _PROFILE_SHARE)
        for _ in range(2):
            try:
                found = profile(
                    self._build,
                    self._depth,
                    self._loss,
                    self._optimizer,
                    self._place,
                    ram_budget=budget_bytes,
                    offload=offload,
                    mixed_precision=self._autocast,
                    accumulate=-(-self._accumulate // self._sharing.ranks),
                    busy_s_per_byte=self._machine.busy_s(1),
                    sharing=self._sharing,
                    steps_in_backward=self._accumulate == 1,
                    formats=formats,
                    like=self._known.get(offload),
                )
            except BudgetError as error:
                refused, budget_bytes = error, error.least_bytes
                if not 0 < budget_bytes <= self._ram_bytes * _MOST_PROFILE_SHARE:
                    break
            else:
                items = sums_of(found.items, self._sharing)
                found = dataclasses.replace(found, base_bytes=found.base_bytes + self._beside_bytes, items=items)
                self._known.setdefault(offload, found)
                return Whole(found, self._depth, self._machine, self._sharing)
        raise BudgetError(
            f"plan: got {format_bytes(self._ram_bytes)} for the whole process, which is too little: {refused}"
        )


def quickest(ways: Ways, asked: Asked, lossy: bool) -> tuple[Whole, Choice, Prediction] | None:
    """Return the quickest way that fits, with what it recomputes and its step; None if none fits.

    Exact formats come first, and others only if `lossy`: such a way must be quicker by more than noise. Formats are not
    tried once a way keeps all in RAM.
    """
    exact = asked.exact
    ways.add(exact)
    if asked.may_split and ways.all and ways.offload is not False and not _is_all_in_ram(ways.best()):
        ways.add(exact._replace(master=SPLIT))
    if lossy:
        found = ways.best()
        master = exact.master if found is None else found[0].profile.formats.master
        for formats in asked.lossy(master):
            if _is_all_in_ram(ways.best()):
                break
            ways.try_to_add(formats)
    return ways.best()


def _is_all_in_ram(found: tuple[Whole, Choice, Prediction] | None) -> bool:
    """Return whether nothing can be quicker than a way: it moves nothing, and recomputes nothing."""
    if found is None:
        return False
    _, choice, prediction = found
    return not (choice.paths or prediction.written_bytes or prediction.read_bytes)
