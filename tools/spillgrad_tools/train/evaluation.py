"""Evaluation every few steps of a run: the held-out loss, the best so far, and an early end."""

import time
from collections.abc import Callable
from pathlib import Path

from spillgrad.errors import ArgumentError, CheckpointError
from spillgrad_tools.train.metrics import Metrics
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

BEST = "best"


class Evaluations:
    """Computes the held-out loss every `--eval-every` steps, and says when a run with `--patience` ends.

    An evaluation changes no number of the training, and what is known of it is in the checkpoint. With `keeps_best`,
    the checkpoint of the best evaluation is in the folder `best` beside the last one; if it cannot be written, `say` is
    called with a line and training goes on. Of several processes, all call the methods, and compute their shares.
    """

    def __init__(
        self, training: Training, out: Path, keeps_best: bool, metrics: Metrics, say: Callable[[str], None]
    ) -> None:  # fmt: skip
        self._training, self._metrics, self._say = training, metrics, say
        self._folder = out / BEST if keeps_best else None
        self._kept: int | None = None

    def after_step(self) -> None:
        """Evaluate if that is due, print a line, and keep the model if it is the best."""
        training = self._training
        settings, step = training.settings, training.step
        if settings.eval_every is None or step % settings.eval_every:
            return
        began_s = time.perf_counter()
        found = training.held_out_loss(settings.eval_batches)
        seconds = time.perf_counter() - began_s
        training.best = best = training.best.after(found.loss, step)
        self._metrics.evaluated(step, found, seconds)
        so_far = "the best so far"
        if best.step != step:
            so_far = "none so far is finite" if best.loss is None else f"best {best.loss:.4f} at step {best.step}"
        self._say(
            f"step {step}/{settings.steps}  held-out loss {found.loss:.4f} ({found.batches} of {found.all_batches} "
            f"batches), {so_far}"
        )
        if best.step == step:
            self._keep()

    @property
    def end_run(self) -> bool:
        """Whether the run ends after this step, because its evaluations became no better."""
        return self._training.best.ends(self._training.settings.patience)

    @property
    def best_in_words(self) -> str | None:
        """The best evaluation, with its step and its folder; None if there was none."""
        best = self._training.best
        if best.loss is None:
            return None
        kept = f", kept in {self._folder}" if self._folder is not None and self._is_kept(best.step) else ""
        return f"{best.loss:.4f} nats/{self._training.source.unit} at step {best.step}{kept}"

    def _keep(self) -> None:
        if self._folder is None:
            return
        step = self._training.step
        try:
            self._training.save(self._folder)
        except CheckpointError as error:
            self._say(f"step {step}: the best model is not kept: {error}. Training goes on")
        else:
            self._kept = step

    def _is_kept(self, step: int) -> bool:
        """Whether the folder holds the model of this step, which the run that this one resumes may have saved."""
        if self._kept is not None or self._folder is None:
            return self._kept == step
        try:
            return Training.settings_of(self._folder)[1] == step
        except CheckpointError:
            return False


def require_not_ended(resumed: Path, settings: TrainSettings) -> None:
    """Raise ArgumentError if the run whose checkpoint is in a folder has ended early, and would with `settings`."""
    best = Training.best_of(resumed)
    if best.ends(settings.patience):
        raise ArgumentError(
            f"train: {resumed} has ended early: {best.since} evaluations after step {best.step} were no better; give "
            "--patience a larger number to go on"
        )
