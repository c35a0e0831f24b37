"""Plan a training run: choose what to keep, spill and recompute, and predict its memory, disk space and time."""

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from spillgrad.distributed.link import Link
from spillgrad.distributed.wires import wire_named
from spillgrad.errors import ArgumentError, BudgetError, UnsupportedError
from spillgrad.models import catalogue
from spillgrad.models.gpt import GPTConfig
from spillgrad.nn.lora import lora as with_adapters
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.quantized import quantized_numbers
from spillgrad.optim.adam import AdamW
from spillgrad.optim.optimizer import Optimizer
from spillgrad.optim.state_formats import require_format
from spillgrad.spill.module_paths import pattern
from spillgrad.spill.offload.master import SPLIT, WHOLE, require_master
from spillgrad.spill.offload.needs import Sharing
from spillgrad.spill.planning.candidate import Prediction, TrainingPlan, alternatives
from spillgrad.spill.planning.choose import Choice
from spillgrad.spill.planning.formats import Asked, Formats, accuracy_of
from spillgrad.spill.planning.machine import Machine
from spillgrad.spill.planning.planned_training import PlannedTraining
from spillgrad.spill.planning.predict import Whole
from spillgrad.spill.planning.scaling import Scaling, numbers_up_to, recommended, scale
from spillgrad.spill.planning.ways import Ways, quickest
from spillgrad.storage.sizes import format_bytes, parse_bytes
from spillgrad.tensor import Tensor
from spillgrad_kernels.threads.dispatch import get_num_threads

_BYTES = 256
Model = str | os.PathLike[str] | catalogue.Config | Callable[[int], Module]


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What happens to the tensors that some modules save.

    Parameters
    ----------
    modules : str
        Path of one layer; or, for several neighbours, the path of the first and the number of the last.
    kept_bytes : int
        Bytes that stay in RAM.
    spilled_bytes : int
        Bytes that go to disk.
    recomputed_bytes : int
        Bytes that are not saved, but recomputed.
    """

    modules: str
    kept_bytes: int
    spilled_bytes: int
    recomputed_bytes: int


@dataclasses.dataclass(frozen=True)
class Plan(TrainingPlan):
    """The plan of a training run; `str` gives a summary in one line.

    Parameters
    ----------
    ram_bytes : int
        Memory of the process that the plan stays within.
    least_bytes : int
        The least memory in which the model can be trained.
    parameter_bytes : int
        Bytes of all parameters and buffers, among them the codes of quantized weights.
    trained_bytes : int
        Bytes of the parameters that require gradients.
    state_bytes : int
        Bytes of the optimizer's state.
    offload : bool
        Whether parameters and optimizer state are on disk too, by `disk_offload`.
    policy : str
        The argument of `save_on_disk`.
    prediction : Prediction
        Bytes and seconds of a step.
    machine : Machine
        The machine that the plan is for.
    alternatives : tuple of Alternative
        Predictions for less and for more memory, with formats that are as exact.
    model : str
        Name of the model.
    batch : int
        Number of sequences in a batch.
    context : int
        Number of tokens in a sequence.
    accumulate : int
        Number of batches in a step.
    recomputed : tuple of str
        Paths of the modules to recompute.
    treatments : tuple of Treatment
        What happens to the tensors that each layer saves.
    link : Link, optional
        The network between the processes, if the plan is for several.
    scaling : tuple of Scaling
        A step with 1, 2, 4 and more processes, up to as many as the plan is for; empty if it is for one.
    recommended_ranks : int
        The most processes of which each keeps at least 80 % of the speed that it has alone.
    wire : str
        The format in which gradients travel between them.
    shard : str
        What they share of an offloaded model: "state", or "all".
    parameters : int
        Number of parameters, quantized ones included.
    state : str, optional
        The format of the optimizer's state; None is the optimizer's own.
    master : str
        How weights are stored: "whole", "split" or "none", as in `disk_offload`.
    accuracy : tuple of str
        What formats with fewer bits cost in accuracy, as measured; empty for exact ones.
    """

    model: str
    batch: int
    context: int
    accumulate: int
    recomputed: tuple[str, ...]
    treatments: tuple[Treatment, ...]
    link: Link | None = None
    scaling: tuple[Scaling, ...] = ()
    recommended_ranks: int = 1
    wire: str = "float32"
    shard: str = "state"
    parameters: int = 0
    state: str | None = None
    master: str = WHOLE
    accuracy: tuple[str, ...] = ()

    def apply(
        self, model: Module | Callable[[], Module], optimizer: Callable[[list[Parameter]], Optimizer],
        directory: str | os.PathLike[str] | None = None, **options: Any,
    ) -> PlannedTraining:  # fmt: skip
        """Return a model and its optimizer as the plan has them, for a training loop of your own.

        Parameters
        ----------
        model : Module or callable
            The model; or, if it is too large for RAM, a function without arguments that builds it.
        optimizer : callable
            Function that makes the optimizer from the list of parameters that require gradients.
        directory : str or path, optional
            Folder for what goes to disk; by default, one in the directory for temporary files.
        **options : object
            Options of `disk_offload`; with one batch a step, the plan counts on ``step_in_backward=True``.

        Returns
        -------
        PlannedTraining
            `model`, `optimizer`, and the context managers of the training and of its forward passes.

        Raises
        ------
        BudgetError
            If the model needs a larger budget than the one that was planned for.
        SpillError
            If the directory cannot be used, or the disk lacks room.

        Examples
        --------
        >>> import spillgrad as sg
        >>> plan = sg.planning.plan("tiny", batch=4, context=32, ram="8GiB")
        >>> tokens = sg.zeros(4, 32, dtype="int64")
        >>> with plan.apply(sg.models.build("tiny"), sg.optim.AdamW) as training:
        ...     with training.forward():
        ...         _, loss = training.model(tokens, tokens)
        ...     loss.backward()
        ...     training.optimizer.step()
        """
        return PlannedTraining(self, model, optimizer, directory, options, Formats(self.state, self.master))

    def __str__(self) -> str:
        found = self.prediction
        times = f" x {self.accumulate}" if self.accumulate > 1 else ""
        fewer_bits = Formats(self.state, self.master).in_words
        return (
            f"{self.model}, batch {self.batch} x {self.context}{times}, in {format_bytes(self.ram_bytes)}: "
            f"{'offloaded, ' if self.offload else ''}{fewer_bits}{', ' if fewer_bits else ''}policy {self.policy}, "
            f"ram_budget {format_bytes(found.budget_bytes)}: peak {format_bytes(found.peak_bytes)}, "
            f"{format_bytes(found.written_bytes)} written and {format_bytes(found.read_bytes)} read a step, "
            f"{found.step_s:.3g} s a step"
        )


def plan(
    model: Model,
    batch: int,
    context: int,
    ram: int | str,
    directory: str | os.PathLike[str] | None = None,
    *,
    depth: int | None = None,
    accumulate: int = 1,
    lora: int | None = None,
    autocast: bool = False,
    offload: bool | None = None,
    optimizer: Callable[[list[Parameter]], Optimizer] = AdamW,
    loss: Callable[[Module], Tensor] | None = None,
    machine: Machine | None = None,
    ranks: int = 1,
    link: Link | None = None,
    wire: str = "float32",
    shard: str = "state",
    processes: int = 1,
    beside_bytes: int = 0,
    state: str | None = None,
    master: str | None = None,
    lossy: bool = False,
) -> Plan:
    """Plan how to train a model in a process with `ram` of memory, and predict the run's memory, disk space and time.

    This builds two layers of the model and trains them for a few steps, with batches of the planned size; it builds
    nothing larger.

    Parameters
    ----------
    model : str, path, GPTConfig, DecoderConfig or callable
        Name of a model of the catalogue, or its sizes, or the `Path` of weights as `sg.models.from_safetensors` takes
        it, or a function that builds a model with a given number of layers.
    batch : int
        Number of sequences in a batch.
    context : int
        Number of tokens in a sequence.
    ram : int or str
        Memory of the whole process in bytes, or a size such as "4GiB".
    directory : str or path, optional
        Folder for the spill files; by default, the directory for temporary files.
    depth : int, optional
        Number of layers of the whole model; 1, by default. Only for a function.
    accumulate : int, default 1
        Number of batches in a training step, which ends with one update.
    lora : int, optional
        Rank of adapters, which are trained instead of the model; none, by default.
    autocast : bool, default False
        Whether products are computed in bfloat16.
    offload : bool, optional
        Whether parameters and optimizer state are on disk too. With None, the plan decides.
    optimizer : callable, optional
        Function from the list of trained parameters to the optimizer; by default, `AdamW`.
    loss : callable, optional
        Function from the model to the loss of a batch. Needed if `model` is a function.
    machine : Machine, optional
        Result of `sg.planning.measure`; by default, this machine is measured.
    ranks : int, default 1
        The most processes that train together, each on a machine such as this one. A step then has at least one batch
        for each.
    link : Link, optional
        The network between them. Needed for several.
    wire : {"float32", "bfloat16", "int8"}, default "float32"
        The format in which gradients travel.
    shard : {"state", "all"}, default "state"
        What processes share of an offloaded model: the optimizer's state, or all large parameters, too, as
        `disk_offload` does. With "all", the model is offloaded.
    processes : int, default 1
        Number of processes that train together, each within `ram`. The plan is for one of them; `machine` is its share
        of one. Of `accumulate` batches, it has its share.
    beside_bytes : int, default 0
        Memory that the process will have and this one has not, such as its data.
    state : {"float32", "bf16", "int8"}, optional
        The format of the optimizer's state; by default, the optimizer's own, or with `lossy` what the plan chooses.
    master : {"whole", "split", "none"}, optional
        How weights are stored, as in `disk_offload`. By default, the plan chooses: whole, or with `autocast` in two
        halves if that is quicker; with `lossy` and `autocast`, perhaps as bfloat16 alone.
    lossy : bool, default False
        Whether the plan may choose formats with fewer bits where these make a step quicker, or fit at all. Its
        `accuracy` says what they cost.

    Returns
    -------
    Plan
        The policy and the budget of the fastest step, and what they lead to.

    Raises
    ------
    BudgetError
        If `ram` is too small; the message says the least memory that works, also with `lossy`.
    ArgumentError
        For arguments that contradict each other.
    UnsupportedError
        For weights that are not whole in several processes, or with a `wire` of fewer bits.
    SpillError
        If the directory cannot be written.
    MissingFileError, CheckpointError
        For a path without weights, or with damaged ones.

    Notes
    -----
    The plan counts the memory of a process like this one. A process that has compiled a kernel keeps the compiler's
    200 MiB. So if kernels were not cached on disk, plan again in a new process.

    Examples
    --------
    A plan takes some seconds::

        plan = sg.planning.plan("gpt2", batch=4, context=512, ram="4GiB", directory="spill/", offload=False)
        print(plan)
        with sg.save_on_disk("spill/", ram_budget=plan.prediction.budget_bytes, policy=plan.policy):
            ...
    """
    ram_bytes = parse_bytes(ram)
    if accumulate < 1:
        raise ArgumentError(f"plan: got accumulate {accumulate}; a step takes at least 1 batch")
    if ranks < 1 or (ranks > 1 and link is None):
        wanted = "at least 1" if ranks < 1 else "the network between them, too: give link=Link(bytes_per_s, latency_s)"
        raise ArgumentError(f"plan: got ranks {ranks}; wanted {wanted}")
    if processes < 1 or processes > accumulate or (processes > 1 and (ranks > 1 or shard == "all")):
        raise ArgumentError(
            f"plan: got processes {processes} with accumulate {accumulate}, ranks {ranks} and shard {shard!r}; wanted "
            "at least 1, a batch of the step for each, and neither ranks nor shard='all' beside several"
        )
    format_ = wire_named(wire, "plan")
    if shard not in ("state", "all") or (shard == "all" and offload is False):
        raise ArgumentError(
            f"plan: got shard {shard!r} and offload={offload}; wanted 'state', or 'all' of an offloaded model"
        )
    offload = True if shard == "all" else offload
    is_alone = ranks == processes == 1 and format_.is_exact
    if state is not None:
        require_format("plan", state)
    if master is not None:
        _require_master(master, offload, is_alone)
    build, layers, name = _builder(model, context, depth, lora)
    loss = _loss(model, batch, context) if loss is None else loss
    ways = Ways(
        build, layers, loss, optimizer, ram_bytes, None if directory is None else Path(directory),
        accumulate=accumulate, offload=offload, autocast=autocast, machine=machine,
        sharing=Sharing(processes, format_), beside_bytes=beside_bytes,
    )  # fmt: skip
    asked = Asked(state, master, has_choice=autocast and is_alone)
    found = quickest(ways, asked, lossy)
    if found is None:
        raise _too_little(ways, asked, lossy, f"{name}, batch {batch} x {context}", format_bytes(ram_bytes))
    whole, choice, prediction = found
    formats = whole.profile.formats
    as_exact = [way for way in ways.all if way.profile.formats.in_words == formats.in_words]
    scaling: list[Scaling] = []
    if link is not None:
        numbers = numbers_up_to(ranks)
        scaling = scale(
            whole, prediction.budget_bytes, link, get_num_threads(), numbers, choice, format_, shard == "all"
        )
    return Plan(
        model=name,
        batch=batch,
        context=context,
        accumulate=accumulate,
        ram_bytes=ram_bytes,
        least_bytes=min(ways.least_bytes() or ram_bytes, ram_bytes),  # whose margin may be the smaller one
        parameter_bytes=whole.parameter_bytes,
        trained_bytes=whole.trained_bytes,
        state_bytes=whole.state_bytes,
        offload=whole.profile.offload,
        policy=_policy(whole, choice, prediction),
        recomputed=tuple(sorted(choice.paths, key=_by_number)),
        treatments=tuple(_treatments(whole, choice, prediction)),
        prediction=prediction,
        machine=whole.machine,
        alternatives=tuple(alternatives(as_exact, ram_bytes)),
        link=link,
        scaling=tuple(scaling),
        recommended_ranks=recommended(scaling) if scaling else 1,
        wire=wire,
        shard=shard,
        parameters=whole.parameters,
        state=formats.state,
        master=formats.master,
        accuracy=tuple(accuracy_of(formats)),
    )


def _require_master(master: str, offload: bool | None, is_alone: bool) -> None:
    """Raise ArgumentError or UnsupportedError for weights that cannot be stored as `master` says."""
    require_master(master, "plan")
    if master != WHOLE and not is_alone:
        raise UnsupportedError(
            f"plan: got master={master!r} for several processes, or a wire of fewer bits, where parameters are whole; "
            "leave it out"
        )
    if master == SPLIT and offload is False:
        raise ArgumentError("plan: got master='split' and offload=False; parameters in RAM are whole: leave one out")


def _too_little(ways: Ways, asked: Asked, lossy: bool, what: str, given: str) -> BudgetError:
    """Return the error that no way fits; it says the least memory that works, and what fewer bits would change."""
    least = ways.least_bytes()
    is_kept_in_ram = ways.offload is False
    with_fewer_bits = "" if lossy else _with_fewer_bits(ways, asked, least)
    if least is None:
        return BudgetError(f"{ways.error}{with_fewer_bits}")
    return BudgetError(
        f"plan: got {given} for {what}{', not offloaded' if is_kept_in_ram else ''}; the least that works is "
        f"{least >> 20} MiB: give that, or a smaller batch or context"
        f"{', or leave --no-offload out' if is_kept_in_ram else ''}{with_fewer_bits}"
    )


def _with_fewer_bits(ways: Ways, asked: Asked, least: int | None) -> str:
    """Return words about the least memory that works with fewer bits; none if that is not less."""
    formats = asked.least()
    if formats is None or not ways.try_to_add(formats):
        return ""
    found = ways.least_bytes(formats)
    return (
        ""
        if found is None or (least is not None and found >= least)
        else f", or --lossy: with {formats.in_words} the least is {found >> 20} MiB"
    )


def observe(
    model: str, batch: int, context: int, ram: int | str, directory: str | os.PathLike[str], *, offload: bool,
    accumulate: int = 1,
) -> Whole:  # fmt: skip
    """Profile two layers of a model, trained by AdamW as in `plan`.

    Parameters
    ----------
    model : str
        Name of a model of the catalogue.
    batch : int
        Number of sequences in a batch.
    context : int
        Number of tokens in a sequence.
    ram : int or str
        Memory of the whole process in bytes, or a size such as "4GiB".
    directory : str or path
        Folder for the spill files.
    offload : bool
        Whether parameters and optimizer state are on disk too.
    accumulate : int, default 1
        Number of batches in a training step.

    Returns
    -------
    Whole
        Predicts steps of the whole model. To predict for another machine, set its attribute `machine`.

    Raises
    ------
    BudgetError
        If `ram` is too small.
    ArgumentError
        For arguments that contradict each other.
    """
    build, layers, _ = _builder(model, context, None, None)
    loss = _loss(model, batch, context)
    return Ways(
        build, layers, loss, AdamW, parse_bytes(ram), Path(directory), accumulate=accumulate, offload=offload
    ).profiled(offload)


def _builder(
    model: Model, context: int, depth: int | None, lora: int | None
) -> tuple[Callable[[int], Module], int, str]:
    """Return (function that builds the model with n layers, number of layers of the whole model, name of the model)."""
    bare: Callable[[int], Module]
    if isinstance(model, os.PathLike):
        path, name = model, os.fspath(model)
        if depth is not None:
            raise ArgumentError(
                f"plan: got depth {depth} with the weights in {name}, which have their own; leave it out"
            )
        sizes = catalogue.config_of(path)
        if context > sizes.context:
            raise ArgumentError(f"plan: got context {context}; {name} has {sizes.context} positions at most")
        layers = sizes.n_layer if isinstance(sizes, GPTConfig) else sizes.num_hidden_layers
        bare = lambda count: _of_weights(path, count, lora)  # noqa: E731
    elif not callable(model):
        name = model if isinstance(model, str) else type(model).__name__.removesuffix("Config")
        if depth is not None:
            raise ArgumentError(f"plan: got depth {depth} with the model {name}, which has its own; leave it out")
        config = catalogue.config(model)
        is_published = config.vocab_size > _BYTES  # it keeps its own number of positions, as in training
        if is_published and context > config.context:
            raise ArgumentError(f"plan: got context {context}; {name} has {config.context} positions at most")
        positions = None if is_published else context
        field = "n_layer" if isinstance(config, GPTConfig) else "num_hidden_layers"
        layers = getattr(config, field)
        bare = lambda count: catalogue.build(config, positions, **{field: count})  # noqa: E731
    else:
        bare, layers, name = model, 1 if depth is None else depth, getattr(model, "__name__", "a model")
    if lora is None:
        return bare, layers, name
    rank = lora
    return lambda count: with_adapters(bare(count), rank), layers, f"{name} with adapters of rank {rank}"


def _of_weights(path: os.PathLike[str], count: int, lora: int | None) -> Module:
    """Return a model with the first layers of weights in files, as training begins with it."""
    model = catalogue.first_layers(path, count).train()
    if lora is None and any(map(quantized_numbers, model.modules())):
        raise ArgumentError(
            f"plan: the weights in {os.fspath(path)} are quantized; adapters are trained beside them: give their rank "
            "as lora"
        )
    return model


def _loss(model: Model, batch: int, context: int) -> Callable[[Module], Tensor]:
    """Return a function that takes a language model and returns its loss on a batch of random bytes."""
    if callable(model):
        raise ArgumentError("plan: got a function that builds a model, but no loss; give a function of the model")
    drawn = np.random.default_rng(0).integers(0, _BYTES, (batch, context + 1))

    def loss(model: Module) -> Tensor:
        return model(drawn[:, :-1], drawn[:, 1:])[1]  # type: ignore[no-any-return]

    return loss


def _policy(whole: Whole, choice: Choice, prediction: Prediction) -> str:
    if choice.paths:
        everything = choice.paths >= {unit.whole.path for unit in whole.units}
        return "recompute" if everything and whole.profile.layers is not None else "auto"
    return "keep" if not prediction.written_bytes and not whole.profile.offload else "spill"


def _treatments(whole: Whole, choice: Choice, prediction: Prediction) -> Iterable[Treatment]:
    """Yield the treatments of layers in order; neighbours that are treated alike share one treatment.

    The newest saved tensors, which are those of the last layers, stay in RAM, up to the budget.
    """
    remaining = max(0, prediction.saved_bytes - _spilled(prediction, whole))
    layers: list[Treatment] = []
    for unit in reversed(whole.units):
        parts = [unit.whole, *unit.children]
        recomputed = sum(part.freed_bytes for part in parts if part.path in choice.paths)
        left = max(0, unit.whole.freed_bytes - recomputed)
        kept = min(left, remaining)
        remaining -= kept
        layers.append(Treatment(unit.whole.path, kept, left - kept, recomputed))
    for _, alike in itertools.groupby(reversed(layers), _kind):
        group = list(alike)
        first, last = group[0].modules, group[-1].modules
        name = first if len(group) == 1 else f"{first} … {last.rpartition('.')[2]}"
        kept, spilled = sum(layer.kept_bytes for layer in group), sum(layer.spilled_bytes for layer in group)
        yield Treatment(name, kept, spilled, sum(layer.recomputed_bytes for layer in group))


def _kind(layer: Treatment) -> tuple[str, bool, bool, bool]:
    """Return a key that is equal for neighbouring layers that share a treatment."""
    return pattern(layer.modules), bool(layer.kept_bytes), bool(layer.spilled_bytes), bool(layer.recomputed_bytes)


def _spilled(prediction: Prediction, whole: Whole) -> int:
    """Return how many of the bytes that a batch saves go to disk."""
    if whole.profile.offload:
        return max(0, prediction.saved_bytes - prediction.budget_bytes)
    return min(prediction.written_bytes // whole.profile.accumulate, prediction.saved_bytes)


def _by_number(path: str) -> list[Any]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.split(".")]
