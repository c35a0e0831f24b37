"""Plan the training of a PyTorch model within a given memory."""

import contextlib
import dataclasses
import gc
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spillgrad.errors import ArgumentError, BudgetError
from spillgrad.interop.torch.building import require_own_parameters
from spillgrad.interop.torch.optimizer import require_optimizer
from spillgrad.interop.torch.planning.shadow import Shadows, resident_bytes
from spillgrad.interop.torch.planning.speeds import Speeds
from spillgrad.interop.torch.planning.step import Trace, TracedStep, without_repeats
from spillgrad.interop.torch.training import FRAMEWORK
from spillgrad.spill.offload.needs import DiskNeed, disk_need, largest_need
from spillgrad.spill.planning.candidate import (
    NOTHING,
    Candidate,
    TrainingPlan,
    alternatives,
    best,
    least_bytes,
)
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.machine import Machine, measure_disk
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.residency import belady
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.storage.store_owner import MIN_BYTES

# glibc's malloc keeps dead arrays of less than 32 MiB; where a store spills, they go back to the system.
_HEAP_SHARE = 1.15
# A process with PyTorch takes some MiB more from one plan to the next.
_DRIFT_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Plan(TrainingPlan):
    """The plan of a training run of a PyTorch model; `str` says it, and the code that follows it.

    Parameters
    ----------
    ram_bytes : int
        Memory of the process that the plan stays within.
    least_bytes : int
        The least memory in which the model can be trained.
    parameter_bytes : int
        Bytes of all parameters.
    trained_bytes : int
        Bytes of the parameters that require gradients.
    state_bytes : int
        Bytes of the optimizer's state.
    offload : bool
        Whether parameters, gradients and optimizer state are on disk too, by `disk_offload`.
    policy : {"keep", "spill"}
        Whether saved tensors stay in RAM, or `save_on_disk` takes them.
    prediction : Prediction
        Bytes and seconds of a step.
    machine : Machine
        The machine that the plan is for.
    alternatives : tuple of Alternative
        Predictions for less and for more memory.
    model : str
        Name of the model's class.
    step_in_backward : bool
        The argument of `disk_offload`.
    max_grad_norm : float or None
        The argument of `disk_offload`.
    """

    model: str
    step_in_backward: bool
    max_grad_norm: float | None

    @property
    def code(self) -> str:
        """Lines of Python that train as planned; `make_optimizer` is the function that the plan was given."""
        budget = f'"{self.prediction.budget_bytes >> 20}MiB"'
        if self.offload:
            options = f", max_grad_norm={self.max_grad_norm}" if self.max_grad_norm is not None else ""
            return (
                f"offload = disk_offload(model, make_optimizer, directory, ram_budget={budget}, "
                f"step_in_backward={self.step_in_backward}{options})\n"
                "with save_on_disk(offload):\n    loss = ..."
            )
        if self.policy == "spill":
            return f"with save_on_disk(directory, ram_budget={budget}):\n    loss = ..."
        return "loss = ...  # all of it fits"

    def __str__(self) -> str:
        found, disk = self.prediction, self.machine.disk
        where = "all of it in RAM"
        if self.offload:
            where = "all of it on disk, and in RAM while it is used"
        elif self.policy == "spill":
            where = "the model in RAM, saved tensors on disk"
        lines = [
            f"{self.model}: parameters {format_bytes(self.parameter_bytes)}, gradients "
            f"{format_bytes(self.trained_bytes)}, optimizer state {format_bytes(self.state_bytes)}, saved for backward "
            f"{format_bytes(found.saved_bytes)}",
            f"in {format_bytes(self.ram_bytes)} of RAM: {where}; peak {format_bytes(found.peak_bytes)}, the least that "
            f"works {format_bytes(self.least_bytes)}",
            f"a step: about {found.step_s:.3g} s; {found.compute_s:.3g} s of it computing, "
            f"{format_bytes(found.written_bytes)} written, {format_bytes(found.read_bytes)} read, "
            f"{format_bytes(found.disk_bytes)} of {format_bytes(disk.free_bytes)} on disk",
            *(
                f"  with {format_bytes(other.ram_bytes)}: about {other.step_s:.3g} s, "
                f"{format_bytes(other.moved_bytes)} written and read"
                for other in self.alternatives
            ),
        ]
        return "\n".join(lines) + "\n\n" + self.code


def plan(
    model: Any,
    example_batch: Any,
    ram: int | str,
    directory: str | os.PathLike[str] | None = None,
    *,
    optimizer: Callable[[list[Any]], Any] = torch.optim.AdamW,
    loss: Callable[[Any, Any], Any] | None = None,
    step_in_backward: bool = True,
    max_grad_norm: float | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Plan how to train a PyTorch model in a process with `ram` of memory, and predict a step's memory and time.

    Steps of a copy of the model run on tensors without values: PyTorch says the shapes, and computes nothing. They need
    no memory for the model, and take some seconds. The model, the batch and the random numbers stay as they are; hooks
    of the model's modules are called.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, on the CPU or on the meta device, or a function without arguments that builds it. It is planned in
        the mode that it has: training, or evaluation.
    example_batch : mapping, tuple, list or object
        A batch of the planned size: a mapping is given to the model as keywords, a tuple or a list as arguments,
        anything else as the only argument.
    ram : int or str
        Memory of the whole process in bytes, or a size such as "4GiB".
    directory : str or path, optional
        Folder for the spill files; by default, the directory for temporary files.
    optimizer : callable, optional
        Function from the list of trained parameters to the optimizer, as `disk_offload` takes it; by default, AdamW.
        Its state is counted exact: with ``state="int8"``, `disk_offload` stores and moves less.
    loss : callable, optional
        Function from the model and the batch to the loss; contexts such as `torch.autocast` belong inside. By default,
        the attribute `loss` of what the model returns, or what it returns.
    step_in_backward : bool, default True
        Whether an offloaded model is updated in backward; see `disk_offload`. Not if gradients of several batches are
        added.
    max_grad_norm : float, optional
        Norm to which an offloaded model's gradients are clipped; see `disk_offload`.
    machine : spillgrad.planning.Machine, optional
        The machine to plan for; by default, this one is measured.

    Returns
    -------
    Plan
        Where tensors are in the fastest step, and what that leads to.

    Raises
    ------
    BudgetError
        If `ram` is too small; the message says the least memory that works.
    ArgumentError
        If the model asks for values of computed tensors; if it cannot be copied, or is offloaded, or is on
        another device; if the loss is not one number; or for an optimizer that `disk_offload` refuses.
    SpillError
        If the directory cannot be written.

    See Also
    --------
    disk_offload : Follows a plan with `offload`.
    save_on_disk : Takes what is saved for backward.

    Notes
    -----
    The plan counts the memory of this process, without the model: what is imported, and what else it keeps. Of the
    memory inside functions of PyTorch it knows nothing; convolutions need some. Times are estimates: of matrix
    products, convolutions and attention by their operations, of other functions by their bytes.

    Examples
    --------
    >>> import torch
    >>> from spillgrad.interop.torch import plan
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(24)))
    >>> found = plan(model, torch.ones(64, 4096), "2GiB", loss=lambda model, x: model(x).square().mean())
    >>> found.offload, found.parameter_bytes
    (True, 1611005952)
    """
    ram_bytes = parse_bytes(ram)
    place = Path(tempfile.gettempdir() if directory is None else directory).absolute()
    ways = traced_ways(model, example_batch, place, optimizer, loss, step_in_backward, max_grad_norm, machine)
    name = ways[0].name
    least = least_bytes(ways, _DRIFT_BYTES)
    found = best(ways, ram_bytes)
    if found is None:
        raise BudgetError(
            f"plan: got {format_bytes(ram_bytes)} for {name}; the least that works is {least >> 20} MiB: "
            "give that, or a smaller batch"
        )
    way, _, prediction = found
    spills = way.offload or prediction.written_bytes or prediction.peak_bytes * _HEAP_SHARE > ram_bytes
    if not spills:
        prediction = dataclasses.replace(prediction, peak_bytes=int(prediction.peak_bytes * _HEAP_SHARE))
    return Plan(
        model=name,
        ram_bytes=ram_bytes,
        least_bytes=least,
        parameter_bytes=way.parameter_bytes,
        trained_bytes=way.trained_bytes,
        state_bytes=way.state_bytes,
        offload=way.offload,
        policy="spill" if spills else "keep",
        step_in_backward=step_in_backward,
        max_grad_norm=max_grad_norm,
        prediction=prediction,
        machine=way.machine,
        alternatives=tuple(alternatives(ways, ram_bytes)),
    )


class Traced(Candidate):
    """A step that was traced without values."""

    def __init__(
        self, name: str, step: TracedStep, sizes: DiskNeed, offload: bool, least_budget: int, machine: Machine,
        speeds: Speeds, base_bytes: int,
    ) -> None:  # fmt: skip
        super().__init__(offload, least_budget, machine)
        self.name = name
        self._step, self._sizes, self._speeds, self.base_bytes = step, sizes, speeds, base_bytes
        self._moments = without_repeats(step.moments)

    @property
    def parameter_bytes(self) -> int:
        return self._sizes.parameters

    @property
    def trained_bytes(self) -> int:
        return self._sizes.gradients

    @property
    def state_bytes(self) -> int:
        return self._sizes.state

    def peak_bytes(self, budget_bytes: int, choice: Choice = NOTHING) -> int:
        tensors = max((moment.bytes_within(budget_bytes) for moment in self._moments), default=0)
        return self.base_bytes + self._step.resident_bytes + tensors

    def _moved(self, budget_bytes: int, choice: Choice, keeps: bool) -> belady.Traffic:
        return belady.of_store(self._step.items, self._step.events, budget_bytes)[0]

    def _phase_s(self, choice: Choice) -> dict[str, float]:
        return {phase: self._speeds.seconds(work) for phase, work in self._step.work.items()}

    def _saved_bytes(self, choice: Choice) -> int:
        return self._step.saved_bytes


def traced_ways(
    model: Any, example_batch: Any, place: Path, optimizer: Callable[[list[Any]], Any],
    loss: Callable[[Any, Any], Any] | None, step_in_backward: bool, max_grad_norm: float | None,
    machine: Machine | None,
) -> list[Traced]:  # fmt: skip
    """Trace a step of a model in RAM, and of the same model offloaded; `plan` describes the arguments."""
    speeds = Speeds()
    on = machine or Machine(os.cpu_count() or 1, speeds.flop_per_s(torch.float32), measure_disk(place))
    shadows = Shadows()
    with _as_it_was(), _explained():
        shadow = shadows.model(model)
    trained = [param for param in shadow.parameters() if param.requires_grad]
    if not trained:
        raise ArgumentError("plan: no parameter of the model requires a gradient")
    made = optimizer(trained)
    require_optimizer("plan", made)
    require_own_parameters("plan", shadow, made)
    clips = max_grad_norm is not None
    at_once = step_in_backward and not clips
    sizes = disk_need(FRAMEWORK, shadow, made, gradients=True)
    need = largest_need(FRAMEWORK, shadow, made, 2 if clips else 0 if step_in_backward else 1)

    def traced(offloads: bool) -> TracedStep:
        trace = Trace(shadows, shadow, made, offloads, at_once, MIN_BYTES)
        batch = shadows.batch(example_batch)
        return trace.run(lambda model: _loss(model, batch, loss))

    with _as_it_was(), _explained():
        traced(False)  # makes the optimizer's state, and what the model makes once
        in_ram, offloaded = traced(False), traced(True)
    base_bytes = _process_bytes(model, shadow)
    offloaded.work["backward" if at_once else "update"].add(in_ram.work["update"])
    name = type(shadow).__name__
    return [
        Traced(name, in_ram, sizes, False, 0, on, speeds, base_bytes),
        Traced(name, offloaded, sizes, True, need.nbytes, on, speeds, base_bytes),
    ]


def _loss(model: Any, batch: Any, loss: Callable[[Any, Any], Any] | None) -> Any:
    if loss is not None:
        return loss(model, batch)
    if isinstance(batch, Mapping):
        result = model(**batch)
    else:
        result = model(*batch) if isinstance(batch, tuple | list) else model(batch)
    found = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", result)
    if found is None:
        raise ArgumentError("plan: the model returned no loss; give it labels in the batch, or give plan a loss")
    return found


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Context manager: give all generators of random numbers the state back that they had."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Context manager: say of an error in the model's code that its tensors had no values."""
    try:
        yield
    except (ArgumentError, BudgetError):
        raise
    except Exception as error:
        error.add_note("plan: the model ran on tensors without values; does it train with this batch without plan?")
        raise


def _process_bytes(model: Any, shadow: Any) -> int:
    """Return the memory of this process, without that of the model's parameters, but with all of its buffers."""
    gc.collect()
    nbytes = rss_bytes()
    if isinstance(model, torch.nn.Module):
        nbytes -= sum(resident_bytes(param) for param in model.parameters() if not param.is_meta)
        missing = [buffer for buffer in model.buffers() if buffer.is_meta]
    else:
        missing = list(shadow.buffers())
    return max(0, nbytes) + sum(int(buffer.numel() * buffer.itemsize) for buffer in missing)
