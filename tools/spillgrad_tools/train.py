"""The training loop: settings and text in, one record per step out; prints nothing."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import xxhash

import spillgrad as sg
from spillgrad import labels
from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad_tools.train_settings import TrainSettings

BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
MAX_GRADIENT_NORM = 1.0
SAMPLE_PROMPT = b"The "
# The learning rate rises for this share of the steps.
WARMUP_SHARE = 0.1


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One optimizer step; `written_bytes` counts from the start of the process."""

    step: int
    loss: float
    tokens: int
    duration_s: float
    waited_s: float
    rss_bytes: int
    written_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Return how many bytes of text the step went through in a second."""
        return self.tokens / self.duration_s

    @property
    def wait_share(self) -> float:
        """Return the share of the step that the training thread spent waiting for the disk."""
        return self.waited_s / self.duration_s


class Training:
    """A byte-level GPT in training; saved and resumed, it goes through the same numbers, bit for bit.

    `spill`, which may be set at any time, takes what steps save for backward.
    Raises CheckpointError when the checkpoint to resume from is of another model or was trained on another text.
    """

    def __init__(self, settings: TrainSettings, text: bytes, resume_from: Path | None = None) -> None:
        sg.manual_seed(settings.seed)
        self.settings = settings
        self.spill: sg.save_on_disk | None = None
        self.step = 0
        # A step's batches lie in one, so that steps, their data and resuming know nothing of them.
        step_batch = settings.batch * settings.accumulate
        self.data = sg.data.ByteDataset(text, settings.context, step_batch, settings.seed)
        self.model = sg.models.build(settings.model, context=settings.context, vocab_size=256)
        self.optimizer = sg.optim.AdamW(self.model.parameters(), lr=settings.lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
        warmup_steps = round(settings.steps * WARMUP_SHARE)
        self.schedule = sg.optim.lr_scheduler.CosineWithWarmup(self.optimizer, warmup_steps, settings.steps)
        self._text_hash = xxhash.xxh3_128_hexdigest(text)
        self._process = psutil.Process()
        if resume_from:
            self._resume(resume_from)

    def steps(self) -> Iterator[StepRecord]:
        """Train through the steps that are left and yield a record of each.

        Raises ArgumentError when the loss is no longer finite.
        """
        batches = self.data.train_batches(self.step)
        while self.step < self.settings.steps:
            yield self._advance(*next(batches))

    def held_out_loss(self) -> float:
        """Return the mean loss, in nats per byte, on the text kept out of training."""
        total, count = 0.0, 0
        self.model.eval()
        with sg.no_grad():
            for batch in self.data.held_out_batches():
                for x, y in self._parts(*batch):
                    _, loss = self.model(x, y)
                    total += loss.item() * y.size
                    count += y.size
        self.model.train()
        return total / count

    def sample(self, length: int) -> str:
        """Return `length` bytes that the model makes up after a first word, as text."""
        prompt = np.frombuffer(SAMPLE_PROMPT, np.uint8).astype(np.int64)[np.newaxis]
        made = self.model.generate(prompt, length, temperature=0.8, top_k=40, seed=self.settings.seed)
        return bytes(made.numpy()[0].astype(np.uint8)).decode(errors="replace")

    def save(self, directory: Path) -> None:
        """Write a checkpoint to resume from.

        Raises CheckpointError when it cannot be written.
        """
        extra = {"settings": dataclasses.asdict(self.settings), "text": self._text_hash}
        sg.save_checkpoint(directory, self.model, self.optimizer, scheduler=self.schedule, step=self.step, extra=extra)

    @staticmethod
    def settings_of(directory: Path) -> TrainSettings:
        """Return the settings of the run whose checkpoint is in `directory`.

        Raises CheckpointError when there is none, or none of a run.
        """
        extra = sg.load_checkpoint(directory)["extra"]
        if not {"settings", "text"} <= extra.keys():
            raise CheckpointError(
                f"resume: {directory} holds a model, but no run; give a folder that a run has saved to"
            )
        return TrainSettings(**extra["settings"])

    def _resume(self, directory: Path) -> None:
        state = sg.load_checkpoint(directory)
        if state["extra"]["text"] != self._text_hash:
            raise CheckpointError(f"resume: {directory} was trained on another text; name that one with --data")
        sg.load_checkpoint(directory, self.model, self.optimizer, scheduler=self.schedule)
        self.step = state["step"]

    def _advance(self, x: np.ndarray, y: np.ndarray) -> StepRecord:
        started, waited_before_s = time.perf_counter(), self._waited_s()
        self.optimizer.zero_grad()
        value = 0.0
        for part_x, part_y in self._parts(x, y):
            with labels.step_scope(self.step + 1), self.spill or contextlib.nullcontext():
                _, loss = self.model(part_x, part_y)
            share = part_x.shape[0] / x.shape[0]
            (loss if share == 1 else loss * share).backward()
            value += loss.item() * share
        sg.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        if not math.isfinite(value):
            raise ArgumentError(
                f"train: got a loss of {value} in step {self.step}, wanted a finite one; lower --lr {self.settings.lr}"
            )
        return StepRecord(
            step=self.step,
            loss=value,
            tokens=x.size,
            duration_s=time.perf_counter() - started,
            waited_s=self._waited_s() - waited_before_s,
            rss_bytes=self._process.memory_info().rss,
            written_bytes=self.spill.stats().written_bytes if self.spill else 0,
        )

    def _parts(self, x: np.ndarray, y: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the batches, one after the other, of which the model sees one at a time."""
        size = self.settings.batch
        return ((x[start : start + size], y[start : start + size]) for start in range(0, len(x), size))

    def _waited_s(self) -> float:
        if self.spill is None:
            return 0.0
        stats = self.spill.stats()
        return stats.wait_write_s + stats.wait_read_s
