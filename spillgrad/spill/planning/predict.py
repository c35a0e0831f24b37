"""Predict a training step of the whole model from a profile of a shallow one, for a machine, a budget and a choice.

The prediction assumes that all layers are alike. The phases forward, backward and update follow each other.

The memory of the process is the memory without arrays, plus the arrays in the store (at most the budget), plus all
other arrays, plus what HDF5 takes for arrays on disk. If the model lives in RAM, its parameters, gradients and
optimizer state are among the other arrays; so are the saved tensors of a layer while it is recomputed. In the first
step the store does not know the order of use, so it writes arrays until half the budget is free.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from spillgrad.nn.parallel.gradient_buckets import default_bucket_bytes
from spillgrad.nn.parallel.gradient_reducer import MOST_COPIES_BYTES
from spillgrad.spill.offload.master import SPLIT
from spillgrad.spill.offload.needs import ALONE, Sharing, part_bytes, reduced_bytes
from spillgrad.spill.planning.candidate import NOTHING, Candidate
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.machine import Machine
from spillgrad.spill.planning.profile import HEAD, OUTSIDE, Profile
from spillgrad.spill.planning.record import Part, Unit
from spillgrad.storage.disk.segment_set import SEGMENT_BYTES
from spillgrad.storage.residency import belady
from spillgrad.storage.residency.belady import PHASES, Event, Item

# The most batches of a step that are simulated. Each further batch moves as many bytes as the last one simulated.
_PASSES = 3
# The number of layers that a profile runs.
_SHALLOW = 2
_FLOAT_BYTES = 4
# The memory that a store takes for each array on disk: HDF5's B-tree of a dataset (17 KiB), and Python's objects.
_STORED_BYTES = 20 << 10
# The memory that HDF5 takes for each open file.
_FILE_BYTES = 560 << 10


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient's dtype and number of elements, and after which share of backward it is finished."""

    ready_share: float
    dtype: np.dtype
    count: int


class Whole(Candidate):
    """The events, bytes and times of the whole model, derived from a profile of two layers.

    Parameters
    ----------
    profile : Profile
        What was measured.
    depth : int
        Number of layers of the whole model.
    machine : Machine
        The machine to predict for.
    sharing : Sharing, optional
        The processes of which this is one; their sums of gradients count in its memory.
    """

    def __init__(self, profile: Profile, depth: int, machine: Machine, sharing: Sharing = ALONE) -> None:
        super().__init__(profile.offload, profile.least_budget, machine)
        self.profile = profile
        self.sharing = sharing
        self._more = 0 if profile.layers is None else depth - 2  # the layers that the profile did not run
        self._prefix = f"{profile.layers}." if profile.layers else ""
        self.units = self._units()
        self._sums_bytes = self._bytes_of_sums()
        self._structure_bytes = self._bytes_of_structure()

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return self._sum(self.profile.parameters)

    @property
    def parameter_bytes(self) -> int:
        """The bytes of all parameters and buffers."""
        return self._sum(self.profile.parameter_bytes)

    @property
    def trained_bytes(self) -> int:
        """The bytes of the parameters that require gradients."""
        return self._sum(self.profile.trained_bytes)

    @property
    def state_bytes(self) -> int:
        """The bytes of the optimizer's state."""
        return self._sum(self.profile.state_bytes)

    def with_batches(self, count: int) -> "Whole":
        """Return the same model with another number of batches in a step.

        Parameters
        ----------
        count : int
            Number of batches.

        Returns
        -------
        Whole
            It shares what was measured.
        """
        return self._changed(accumulate=count)

    def with_speed(self, times: float) -> "Whole":
        """Return the same model on a machine that computes faster.

        Parameters
        ----------
        times : float
            How many times as fast.

        Returns
        -------
        Whole
            It shares what was measured.
        """
        phase_s, layer_s = (
            {phase: seconds / times for phase, seconds in taken.items()}
            for taken in (self.profile.phase_s, self.profile.layer_s)
        )
        return self._changed(phase_s=phase_s, layer_s=layer_s)

    def _changed(self, **fields: Any) -> "Whole":
        return Whole(dataclasses.replace(self.profile, **fields), self._more + _SHALLOW, self.machine, self.sharing)

    def in_parts(self, sharing: Sharing) -> "Whole":
        """Return the same model where each of several processes stores a part of large arrays that live on.

        Parameters
        ----------
        sharing : Sharing
            The processes, and which arrays they cut.

        Returns
        -------
        Whole
            It shares what was measured.
        """
        items = [
            item._replace(nbytes=-(-item.nbytes // sharing.ranks))
            if item.persistent and sharing.cuts(item.nbytes)
            else item
            for item in sums_of(self.profile.items, sharing)
        ]
        return self._changed(items=items)

    def gradients(self) -> list[Gradient]:
        """Return when backward finishes the gradient of each trained parameter, in the model's order.

        A layer finishes the gradients of its parameters one after the other, from the last one on, each after a time
        that its size tells. What stands before the layers is finished at the end of backward, and what stands behind
        them before all layers.

        Returns
        -------
        list of Gradient
            One for each parameter.
        """
        return self._finished(self.profile.trained)

    def uses(self) -> list[Gradient]:
        """Return when backward has used each parameter, also a frozen one, from the first one used on.

        Returns
        -------
        list of Gradient
            One for each parameter. Its share is that of its gradient, if it has one.
        """
        found = [*self._finished(self.profile.trained), *self._finished(self.profile.frozen)]
        return sorted(reversed(found), key=lambda each: each.ready_share)  # of two, the later one in the model first

    def _finished(self, parameters: Sequence[tuple[int, np.dtype, int]]) -> list[Gradient]:
        profile, layers = self.profile, self._more + _SHALLOW
        layer_s = profile.layer_s["backward"] if profile.layers is not None else 0.0
        whole_s = max(1e-9, profile.phase_s["backward"] + self._more * profile.layer_s["backward"])
        layer_share = min(layer_s / whole_s, 1 / layers)
        groups = [list(group) for _, group in itertools.groupby(parameters, key=lambda kind: kind[0])]
        if profile.layers is None:
            return list(_spread([(dtype, count) for _, dtype, count in parameters], 0.0, 1.0))
        head_share = 1 - layers * layer_share
        found: list[Gradient] = []
        for group in groups:
            unit, kinds = group[0][0], [(dtype, count) for _, dtype, count in group]
            if unit == OUTSIDE:
                at = head_share if found else 1.0
                found += [Gradient(at, *kind) for kind in kinds]
                continue
            for number in range(1, layers) if unit == 1 else [0]:
                begin = head_share + (layers - 1 - number) * layer_share
                found += _spread(kinds, begin, begin + layer_share)
        return found

    def events(
        self, choice: Choice = NOTHING, passes: int | None = None, keeps: bool = False
    ) -> tuple[list[Item], list[Event]]:
        """Return what happens to arrays in a step of the whole model.

        Parameters
        ----------
        choice : Choice, optional
            The modules to recompute; none, by default.
        passes : int, optional
            Number of batches; by default, as in the profile.
        keeps : bool, default False
            Whether saved tensors have no events, because they never reach the store.

        Returns
        -------
        tuple of list
            The arrays (items), and the events.
        """
        copies = _Copies(self.profile, self._more, self._prefix, choice.paths)
        count = self.profile.accumulate if passes is None else passes
        events: list[Event] = []
        for number in range(count):
            copies.begin_pass()
            of_pass = self._first_pass() if number == 0 and count > 1 else self.profile.events
            for phase in PHASES if number == count - 1 else PHASES[:-1]:
                events += copies.of_phase([event for event in of_pass if event.phase == phase], phase)
        kept = {event.item for event in events if event.kind == "put" and event.phase == "forward"} if keeps else set()
        return copies.items, [event for event in events if event.item not in kept]

    def _first_pass(self) -> list[Event]:
        """Return the events of a step's first batch, which stores new gradients; later batches add to them."""
        found: list[Event] = []
        seen: set[int] = set()
        for event in self.profile.events:
            if event.item not in self.profile.accumulated:
                found.append(event)
            elif event.item not in seen:
                seen.add(event.item)
                found.append(event._replace(kind="put"))
        return found

    def _moved(self, budget_bytes: int, choice: Choice, keeps: bool) -> belady.Traffic:
        passes = self.profile.accumulate
        followed = min(passes, _PASSES)
        moved, _ = belady.of_store(*self.events(choice, followed, keeps), budget_bytes)
        if passes > followed:
            fewer, _ = belady.of_store(*self.events(choice, followed - 1, keeps), budget_bytes)
            for mine, its in zip(moved.by_phase, fewer.by_phase, strict=True):
                for phase in PHASES[:-1]:
                    mine[phase] += (passes - followed) * max(0, mine[phase] - its[phase])
        return moved

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
        arrays = max(self._arrays_bytes(phase, unit, budget_bytes, choice) for phase, unit in self.profile.held)
        arrays += self._sums_bytes
        arrays = int(arrays * self.profile.mapped_per_live)
        goes_to_disk = self.offload or budget_bytes < self._saved_bytes(choice)
        return self.profile.base_bytes + arrays + (self._structure_bytes if goes_to_disk else 0)

    def copies_bytes(self, sharing: Sharing) -> int:
        """Return what processes that share a model in RAM keep beside its gradients.

        Parameters
        ----------
        sharing : Sharing
            The processes.

        Returns
        -------
        int
            In later batches of a step, sums are beside the gradients that were there. Where they are rounded, exact
            sums are kept.
        """
        is_later = sharing.ranks > 1 and self.profile.accumulate > 1
        copies_bytes = min(self.trained_bytes, MOST_COPIES_BYTES) if is_later else 0
        return copies_bytes + (0 if sharing.wire.is_exact else -(-self.trained_bytes // sharing.ranks))

    def _bytes_of_sums(self) -> int:
        """Return the bytes that sums of gradients take beside them; those of an offloaded model are in its budget."""
        sharing, trained_bytes = self.sharing, self.trained_bytes
        if self.offload or not sharing.sums:
            return 0
        gradients = [each.dtype.itemsize * each.count for each in self.gradients()]
        bucket_bytes = min(trained_bytes, default_bucket_bytes(trained_bytes, sharing.ranks))
        largest = max(bucket_bytes, *gradients, 0)
        part = part_bytes(largest, _FLOAT_BYTES, sharing.ranks)
        return sum(reduced_bytes(largest, part, sharing)) + self.copies_bytes(sharing)

    def _bytes_of_structure(self) -> int:
        """Return the memory for arrays on disk, of the layers that the profile did not run, if none is recomputed."""
        pairs = zip(self.profile.items, self.profile.units, strict=True)
        of_layer = [item.stored_bytes for item, unit in pairs if unit == 1 and not item.in_place]
        return self._more * (len(of_layer) * _STORED_BYTES + sum(of_layer) * _FILE_BYTES // SEGMENT_BYTES)

    def _sum(self, by_unit: dict[int, int]) -> int:
        return sum(by_unit.values()) + self._more * by_unit.get(1, 0)

    def _units(self) -> list[Unit]:
        units = self.profile.recomputable
        if not self._more:
            return units
        template = units[-1]
        path = f"{self._prefix}1"

        def moved(part: Part, number: int) -> Part:
            return dataclasses.replace(part, path=f"{self._prefix}{number}{part.path[len(path) :]}")

        return [
            Unit(moved(template.whole, number), tuple(moved(child, number) for child in template.children))
            for number in range(self._more + 2)
        ]

    def _phase_s(self, choice: Choice) -> dict[str, float]:
        profile = self.profile
        trained = sum(profile.trained_bytes.values())
        forward_s, backward_s = (
            profile.phase_s[phase] + self._more * profile.layer_s[phase] for phase in ("forward", "backward")
        )
        return {
            "forward": profile.accumulate * forward_s,
            "backward": profile.accumulate * (backward_s + choice.seconds),
            "update": profile.phase_s["update"] * self.trained_bytes / max(1, trained),
        }

    def _saved_bytes(self, choice: Choice) -> int:
        return self._saved(choice)[0]

    def _saved(self, choice: Choice) -> tuple[int, int]:
        """Return the bytes that a batch saves in the whole model, and in one layer."""
        items, units = self.profile.items, self.profile.units
        put = {event.item for event in self.profile.events if event.kind == "put" and event.phase == "forward"}
        total = sum(items[item].nbytes for item in put)
        layer = sum(items[item].nbytes for item in put if units[item] == 1)
        return max(0, total + self._more * layer - choice.freed_bytes), layer

    def _arrays_bytes(self, phase: str, unit: int, budget_bytes: int, choice: Choice) -> int:
        """Return the peak bytes of all arrays while a unit (a layer's number, OUTSIDE or HEAD) runs in a phase."""
        profile = self.profile
        held = profile.held[phase, unit]
        if phase == "backward" and unit != HEAD and choice.paths:
            held += self._recomputed_at_once(choice)
        saved_bytes, layer_bytes = self._saved(choice)
        if profile.offload:
            persistent = self.parameter_bytes + self.trained_bytes + self.state_bytes
            # What is made from two planes is beside them, and the least budget has room for it.
            joined_bytes = self.least_budget if profile.formats.master == SPLIT else 0
            return held + min(budget_bytes, persistent + saved_bytes + joined_bytes)
        parameters, trained = profile.parameter_bytes.get(1, 0), profile.trained_bytes.get(1, 0)
        held += self._more * (parameters + profile.state_bytes.get(1, 0))
        if profile.accumulate > 1 and phase in ("forward", "backward"):
            # All gradients exist while a further batch runs forward, and backward up to the last layer.
            left = (
                saved_bytes if phase == "forward" or unit in (HEAD, 1) else saved_bytes - (self._more + 1) * layer_bytes
            )
            return held + self._more * trained + min(budget_bytes, max(0, left))
        if phase in ("forward", "end") or (phase, unit) == ("backward", HEAD):
            return held + min(budget_bytes, saved_bytes)
        if (phase, unit) == ("backward", 1):
            done = range(self._more + 1)  # how many layers have their gradients, and dropped their saved tensors
            return held + max(
                number * trained + min(budget_bytes, max(0, saved_bytes - number * layer_bytes)) for number in done
            )
        left = saved_bytes - (self._more + 1) * layer_bytes if phase == "backward" else 0
        return held + self._more * trained + min(budget_bytes, max(0, left))

    def _recomputed_at_once(self, choice: Choice) -> int:
        """Return the most saved bytes that recomputing one layer frees; recomputation needs that much memory again."""
        parts = [[unit.whole, *unit.children] for unit in self.units]
        return max(sum(part.freed_bytes for part in each if part.path in choice.paths) for each in parts)


def sums_of(items: Sequence[Item], sharing: Sharing) -> list[Item]:
    """Return the arrays of a process among others: the sum of their gradients is no bfloat16 number."""
    return [item if sharing.ranks == 1 or item.persistent else item._replace(in_halves=False) for item in items]


def _spread(kinds: Sequence[tuple[np.dtype, int]], begin: float, end: float) -> list[Gradient]:
    """Return gradients that are finished between two shares of backward, the last one first."""
    sizes = [dtype.itemsize * count for dtype, count in kinds]
    total, behind, found = max(1, sum(sizes)), 0, []
    for (dtype, count), nbytes in zip(reversed(kinds), reversed(sizes), strict=True):
        behind += nbytes
        found.append(Gradient(begin + (end - begin) * behind / total, dtype, count))
    return found[::-1]


class _Copies:
    """Copies the events of the profile's last layer for all layers that the profile did not run."""

    def __init__(self, profile: Profile, more: int, prefix: str, recomputed: frozenset[str]) -> None:
        self.items: list[Item] = []
        self._profile, self._more, self._prefix = profile, more, prefix
        self._recomputed = recomputed
        self._made = {event.item for event in profile.events if event.kind == "put"}
        self._passes = 0
        self._numbers: dict[tuple[int, int, int], int] = {}

    def begin_pass(self) -> None:
        """Begin another batch, whose saved arrays become new items."""
        self._passes += 1

    def of_phase(self, events: Sequence[Event], phase: str) -> list[Event]:
        """Return a phase's events for all layers, one layer after another; backward begins with the last layer."""
        units = self._profile.units
        found: list[Event] = []
        of_last = [event for event in events if units[event.item] == 1] if self._more else []
        layers = range(1, self._more + 2)
        for event in events:
            if not self._more or units[event.item] != 1:
                found += self._copy([event], max(units[event.item], OUTSIDE))
            elif of_last:
                for number in reversed(layers) if phase == "backward" else layers:
                    found += self._copy(of_last, number)
                of_last = []
        return found

    def _copy(self, events: Sequence[Event], layer: int) -> list[Event]:
        return [
            Event(kind, self._number(item, layer), phase)
            for kind, item, phase in events
            if not self._is_freed(item, layer)
        ]

    def _number(self, item: int, layer: int) -> int:
        key = item, layer, self._passes if item in self._made else 0
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.items)
            self.items.append(self._profile.items[item])
        return number

    def _is_freed(self, item: int, layer: int) -> bool:
        if not self._recomputed:
            return False
        template = f"{self._prefix}1"
        for path in self._profile.freed_by[item]:
            if self._more and path.startswith(template) and layer >= 1:
                path = f"{self._prefix}{layer}{path[len(template) :]}"
            if path in self._recomputed:
                return True
        return False
