"""The training loop: trains with given settings on given data, and yields a record of each step; it prints nothing."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil

import spillgrad as sg
from spillgrad import labels
from spillgrad.device.device import as_device
from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad.files import safetensors_io
from spillgrad.files.checkpoint import dataclass_of
from spillgrad.generator import GeneratorState
from spillgrad.models import pretrained
from spillgrad.models.catalogue import Config
from spillgrad.nn import init
from spillgrad.nn.quantized import QuantizedWeight
from spillgrad.profiler import record_function
from spillgrad.spill.offload.master import to_bfloat16
from spillgrad.spill.offload.needs import disk_need, in_place_bytes
from spillgrad.spill.offload.training import FRAMEWORK
from spillgrad.storage.store import StoreStats
from spillgrad_tools.train.best_so_far import BestSoFar
from spillgrad_tools.train.data import BYTES, Batch, TrainingData
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.ranks import Parallel, Ranks, settings_in_words
from spillgrad_tools.train.schedule import require_consistent, schedule_of

BETAS = (0.9, 0.95)
# The default learning rate of a model with 256 features; wider models get less: GPT-2 gets 7e-4, and its largest size
# 3e-4. GPT-3's models of these sizes have 6e-4 and 2.5e-4 (Brown et al. 2020, table 2.1).
LR, LR_WIDTH = 2e-3, 256
# Each batch has random numbers of its own, from a place on in the stream of the seed; the first are for the weights.
_DRAWS_OF_BATCH = 1 << 40
_MOST_BATCHES = 1 << 24

MakeOffload = Callable[..., sg.disk_offload]


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """The record of one optimizer step. Bytes count from the start of training.

    `stored_bytes` and `fetched_bytes` are what the written and the read arrays take on disk.
    """

    step: int
    loss: float
    tokens: int
    """Positions, whether they have a loss or not."""
    duration_s: float
    waited_s: float
    rss_bytes: int
    written_bytes: int
    read_bytes: int = 0
    stored_bytes: int = 0
    fetched_bytes: int = 0
    lr: float = 0.0
    grad_norm: float | None = None
    """Before clipping."""

    @property
    def tokens_per_s(self) -> float:
        """Return the number of tokens that the step trained on per second."""
        return self.tokens / self.duration_s

    @property
    def wait_share(self) -> float:
        """Return the share of the step's time in which the training thread waited for the disk."""
        return self.waited_s / self.duration_s


class Evaluation(NamedTuple):
    """A mean loss over `batches` batches, out of `all_batches`. Units: nats per token."""

    loss: float
    batches: int
    all_batches: int


class Training:
    """A language model in training; a run that is saved and resumed has bitwise the same numbers.

    `offload` is called like `disk_offload` and returns such an object, which keeps model and optimizer on disk. The
    attribute `spill`, which may be set at any time, is the context manager under which forward passes run. The numbers
    are the same for any number of `ranks`, which share the batches of each step.
    Raises CheckpointError if the checkpoint to resume from is of another model, or was trained on another text or on
    other weights. Raises ArgumentError if the context is longer than the model's. Raises DeviceError for a device that
    this machine does not have.
    """

    def __init__(
        self, settings: TrainSettings, data: TrainingData | bytes, resume_from: Path | None = None,
        offload: MakeOffload | None = None, device: str = "cpu", ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self.ranks = ranks or Ranks()
        require_consistent(settings)
        self.ranks.require_batches(settings.accumulate)
        self.device = as_device(device)
        sg.manual_seed(settings.seed)
        self.spill: sg.save_on_disk | None = None
        self.offload: sg.disk_offload | None = None
        self.step = 0
        state = None if resume_from is None else _state_of(resume_from)
        self.source = TrainingData.of_bytes(data) if isinstance(data, bytes) else data
        self._digest = self.source.digest
        self.best = BestSoFar() if state is None else _best_of(state)
        self._config = _checked_config(settings, self.source, self._digest, resume_from, state)
        width, _ = _width_and_layers(self._config)
        self.lr = LR * min(1.0, LR_WIDTH / width) if settings.lr is None else settings.lr
        self.settings = dataclasses.replace(settings, lr=self.lr)
        self.data = self.source.batches(settings)
        self._base = _checksums(settings)
        self.ranks.require_same({
            "spillgrad": sg.__version__, **settings_in_words(self.settings), "the data": self._digest,
            "the base weights": self._base, "a checkpoint of step": None if state is None else state["step"],
        })  # fmt: skip
        self.ranks.warn_of_other_processors()
        if state is not None and state["extra"].get("base") != self._base:
            raise CheckpointError(
                f"resume: {resume_from} holds adapters of other weights than those at {settings.weights}; name theirs "
                "with --weights"
            )

        def build() -> sg.models.LanguageModel:
            return self._build(is_new=state is None).to(self.device)

        if offload is None:
            model = build()
            if settings.master == "none":
                to_bfloat16(model)
            optimizer = self._make_optimizer([p for p in model.parameters() if p.requires_grad])
        else:
            # With several batches, gradients must accumulate before the step.
            master = {} if settings.master == "whole" else {"master": settings.master}  # else as a plan says
            found = self.offload = offload(
                build, self._make_optimizer, step_in_backward=settings.accumulate == 1, max_grad_norm=self._clip,
                wire=settings.wire, **master,
            )  # fmt: skip
            model, optimizer = cast(sg.models.LanguageModel, found.model), cast(sg.optim.Optimizer, found.optimizer)
        self.model, self.optimizer = model, optimizer
        self._parallel = self.ranks.parallel(model, self.offload, settings.wire)
        self.schedule = schedule_of(self.optimizer, settings)
        self._process = psutil.Process()
        if resume_from is not None:
            loaded = sg.load_checkpoint(resume_from, self.model, self.optimizer, scheduler=self.schedule)
            self.step = loaded["step"]
        self.first_step = self.step
        self._before = self.stats()

    def steps(self) -> Iterator[StepRecord]:
        """Train for the remaining steps, and yield a record of each step.

        Raises ArgumentError if the loss or the norm of the gradients is not finite.
        """
        batches = self.data.train_batches(self.step)
        while self.step < self.settings.steps:
            yield self._advance(next(batches))

    def held_out_loss(self, most_batches: int | None = None) -> Evaluation:
        """Return the mean loss on held-out data, over at most half as many batches as the run has steps, or as given.

        All processes call it, and compute their shares.
        """
        batches = min(most_batches or max(1, self.settings.steps // 2), self.data.held_out_count)
        held_out = itertools.islice(self.data.held_out_batches(), batches)
        parts = [part for batch in held_out for part in batch.parts(self.settings.batch)]
        losses = []
        self.model.eval()
        with sg.no_grad(), self._precision():
            for mine in self.ranks.batches(parts):
                # All take part in each forward: those with parameters in parts get them from each other.
                loss = self.model(*(parts[0] if mine is None else mine[1]))[1].item()
                if mine is not None:
                    losses.append(loss)
        self.model.train()
        total = 0.0
        for loss, part in zip(self.ranks.in_order(losses, len(parts)), parts, strict=True):
            counted = part.counted()
            total += loss * counted if counted else 0.0  # the loss of no token is NaN
        return Evaluation(total / sum(part.counted() for part in parts), batches, self.data.held_out_count)

    def sample(self, length: int) -> str:
        """Return a prompt, and at most `length` tokens that the model generates after it, in all processes.

        Each token takes a pass through the model. So the length is also bounded by the number of trained tokens and,
        for an offloaded model, by the number of steps: then the sample takes little time compared with the training.
        """
        trained_tokens = self.settings.steps * self.settings.accumulate * self.settings.batch * self.settings.context
        length = min(length, math.isqrt(trained_tokens // 8), self.settings.steps if self.offload else length)
        prompt = self.source.prompt(self._config.context // 2)[None]
        with self._precision():
            made = self.model.generate(
                prompt, length, temperature=0.8, top_k=40, seed=self.settings.seed, stop=self.source.stop
            )
        return self.source.decode(made.numpy(force=True)[0])

    def save(self, directory: Path) -> None:
        """Write a checkpoint to resume from; for a model with adapters, the checkpoint holds only the adapters.

        All processes call it, and the first one writes.
        Raises CheckpointError if the checkpoint cannot be written.
        """
        if self.offload is None and not self.ranks.is_first:
            return
        extra = {"settings": dataclasses.asdict(self.settings), "text": self._digest, "base": self._base,
                 "best": dataclasses.asdict(self.best)}  # fmt: skip
        sg.save_checkpoint(
            directory, self.model, self.optimizer, scheduler=self.schedule, step=self.step, extra=extra,
            trainable_only=self.settings.lora is not None,
        )  # fmt: skip

    @property
    def checkpoint_bytes(self) -> int:
        """Return the bytes of a checkpoint's tensors."""
        need = disk_need(FRAMEWORK, self.model, self.optimizer, gradients=True)
        # Only parameters with gradients are trained.
        whole_bytes = need.parameters + in_place_bytes(FRAMEWORK, self.model)
        return need.state + (whole_bytes if self.settings.lora is None else need.gradients)

    def stats(self) -> StoreStats:
        """Return the counters of the offload's store, which saved tensors share, or else of the store of `spill`."""
        stores = [store for store in (self.offload, self.spill) if store is not None]
        return stores[0].stats() if stores else StoreStats()

    @staticmethod
    def settings_of(directory: Path) -> tuple[TrainSettings, int]:
        """Return the settings of the run whose checkpoint is in `directory`, and the number of steps done so far.

        Raises CheckpointError if there is no checkpoint, or if no run has saved the checkpoint.
        """
        state = _state_of(directory)
        return dataclass_of(TrainSettings, state["extra"]["settings"], f"resume: {directory}"), state["step"]

    @staticmethod
    def best_of(directory: Path) -> BestSoFar:
        """Return what the run whose checkpoint is in `directory` knows of its evaluations.

        Raises CheckpointError as `settings_of` does.
        """
        return _best_of(_state_of(directory))

    @property
    def _clip(self) -> float:
        """The largest norm of the gradients; the norm is known even if none is too large."""
        return self.settings.clip or math.inf

    def _build(self, is_new: bool) -> sg.models.LanguageModel:
        """Build the model. A resumed model gets its weights later, except for the weights under adapters."""
        weights, rank = self.settings.weights, self.settings.lora
        if weights is not None and (is_new or rank is not None):
            model = sg.models.from_safetensors(weights).train()
            if rank is None and any(isinstance(layer, QuantizedWeight) for layer in model.modules()):
                raise ArgumentError(
                    f"train: the weights in {weights} are quantized; train adapters beside them with --lora"
                )
        else:
            with contextlib.nullcontext() if is_new or rank is not None else init.skipped():
                model = sg.models.build(self._config)
        return model if rank is None else sg.nn.lora(model, rank)  # type: ignore[return-value]

    def _make_optimizer(self, parameters: list[sg.nn.Parameter]) -> sg.optim.Optimizer:
        settings = self.settings
        optimizer = sg.optim.AdamW(
            parameters, lr=self.lr, betas=BETAS, weight_decay=settings.weight_decay, state=settings.state
        )
        if settings.master == "none":
            optimizer.round_stochastically(settings.seed)
        return optimizer

    def _precision(self) -> contextlib.AbstractContextManager[object]:
        return sg.autocast(self.device.type) if self.settings.autocast else contextlib.nullcontext()

    def _advance(self, batch: Batch) -> StepRecord:
        started, waited_before_s = time.perf_counter(), _waited_s(self.stats())
        self.optimizer.zero_grad()
        parts, counted = list(batch.parts(self.settings.batch)), batch.counted()
        values = []
        for mine in self.ranks.batches(parts):
            if mine is None:
                cast(Parallel, self._parallel).contribute_nothing()
                continue
            number, part = mine
            spilling = self.spill or contextlib.nullcontext()
            with record_function("forward"), labels.step_scope(self.step + 1), spilling, self._precision():
                _, loss = self._forward(number, part)
            share = part.counted() / counted
            with record_function("backward"):
                (loss if share == 1 else loss * share).backward()
            values.append(loss.item() * share)
        value = 0.0
        for number, part_value in enumerate(self.ranks.in_order(values, len(parts))):
            self._require_finite("loss", part_value, f"step {self.step + 1}, batch {number + 1} of {len(parts)}")
            value += part_value
        norm: float | None
        with record_function("optimizer"):
            if self.offload is None:
                norm = sg.nn.utils.clip_grad_norm_(self.model.parameters(), self._clip).item()
            self.optimizer.step()
            if self.offload is not None:
                found = self.offload.grad_norm
                norm = None if found is None else sg.tensor(found).item()  # float32, as in RAM
        lr = self.optimizer.param_groups[0]["lr"]
        self.schedule.step()
        self.step += 1
        # Raise before a checkpoint of such weights could be saved.
        self._require_finite("gradient norm", norm, f"step {self.step}")
        stats, before = self.stats(), self._before
        return StepRecord(
            step=self.step, loss=value, tokens=batch.x.size, duration_s=time.perf_counter() - started,
            waited_s=_waited_s(stats) - waited_before_s, rss_bytes=self._process.memory_info().rss,
            written_bytes=stats.written_bytes - before.written_bytes, read_bytes=stats.read_bytes - before.read_bytes,
            stored_bytes=stats.stored_bytes - before.stored_bytes,
            fetched_bytes=stats.fetched_bytes - before.fetched_bytes, lr=lr, grad_norm=norm,
        )  # fmt: skip

    def _forward(self, number: int, part: Batch) -> Any:
        """Compute the loss of a batch of the step. What it draws hangs on the batch's number alone."""
        batch = self.step * self.settings.accumulate + number
        drawn = GeneratorState(self.settings.seed, (batch + 1) % _MOST_BATCHES * _DRAWS_OF_BATCH)
        if not part.counted():  # the mean of no loss is NaN; the loss of any target, times 0, is none
            part = part._replace(y=part.x)
        with sg.default_generator.replay(drawn):
            return (self._parallel if isinstance(self._parallel, sg.nn.Module) else self.model)(*part)

    def _require_finite(self, what: str, found: float | None, where: str) -> None:
        if found is not None and not math.isfinite(found):
            raise ArgumentError(f"train: got a {what} of {found} in {where}, wanted a finite one; lower --lr {self.lr}")


def _state_of(directory: Path) -> dict[str, Any]:
    """Read the state of a checkpoint. Raises CheckpointError if there is no checkpoint, or if no run has saved it."""
    state = sg.load_checkpoint(directory)
    if not {"settings", "text"} <= state["extra"].keys():
        raise CheckpointError(f"resume: {directory} holds a model, but no run; give a folder that a run has saved to")
    return state


def _best_of(state: Mapping[str, Any]) -> BestSoFar:
    """Return what a checkpoint knows of evaluations; one of an earlier release knows nothing."""
    return dataclass_of(BestSoFar, state["extra"].get("best", {}), "resume: the checkpoint")


def config_of(settings: TrainSettings, source: TrainingData, resume_from: Path | None) -> Config:
    """Return the sizes of the model that a run trains. Raises what `Training` raises for a checkpoint or data."""
    state = None if resume_from is None else _state_of(resume_from)
    config = _checked_config(settings, source, source.digest, resume_from, state)
    source.batches(settings)
    return config


def _checked_config(
    settings: TrainSettings, source: TrainingData, digest: str, resume_from: Path | None,
    state: Mapping[str, Any] | None,
) -> Config:  # fmt: skip
    """Return the model's sizes. Raises CheckpointError if `state` is of other data, or of a model of other sizes.

    Raises ArgumentError if a token is none of the model's.
    """
    if state is not None and state["extra"]["text"] != digest:
        raise CheckpointError(
            f"resume: {resume_from} was trained on other data; name the same with --data and --eval-data"
        )
    config = _config(settings, state, source.vocab_size)
    source.require_tokens_of(config.vocab_size)
    if resume_from is not None:
        pretrained.require_layers(_width_and_layers(config)[1], pretrained.read(resume_from)[0], resume_from)
    return config


def _config(settings: TrainSettings, state: Mapping[str, Any] | None, vocab_size: int) -> Config:
    """Return the model's sizes: from the checkpoint's `state` if given, else from the weights or the named model.

    A named model of bytes gets as many tokens as the data has.
    """
    if state is not None:
        kind: type[Config] = sg.models.GPTConfig if state["model"] == "GPT" else sg.models.DecoderConfig
        return dataclass_of(kind, state["config"], "resume: the checkpoint")
    if settings.weights is not None:
        config, name = sg.models.config_of(settings.weights), settings.weights
    else:
        config, name = sg.models.config(settings.model), settings.model
        if config.vocab_size == BYTES or settings.context <= config.context:
            config = sg.models.config(config, context=settings.context)
        if config.vocab_size == BYTES:
            config = sg.models.config(config, vocab_size=vocab_size)
    if settings.context > config.context:
        raise ArgumentError(f"train: got --context {settings.context}; {name} has {config.context} positions at most")
    return config


def _width_and_layers(config: Config) -> tuple[int, int]:
    if isinstance(config, sg.models.GPTConfig):
        return config.n_embd, config.n_layer
    return config.hidden_size, config.num_hidden_layers


def _checksums(settings: TrainSettings) -> dict[str, str] | None:
    """Return the checksums of the base weights' files by name, for adapters; None if the run trains the whole model."""
    if settings.weights is None or settings.lora is None:
        return None
    return pretrained.load(
        settings.weights, lambda saved, _: safetensors_io.checksums({tensor.path for tensor in saved.values()})
    )


def _waited_s(stats: StoreStats) -> float:
    return stats.wait_write_s + stats.wait_read_s
