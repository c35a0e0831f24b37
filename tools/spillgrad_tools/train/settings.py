"""What a user of `spillgrad train` may choose; imports nothing heavy, so that `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Any

DEFAULT_RAM_BUDGET = "64MiB"


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What, together with the text, decides every number of a run; a checkpoint carries it."""

    model: str = "small"
    weights: str | None = None
    """A file or folder of weights to begin with, whose config then says the model; None draws them."""
    steps: int = 240
    batch: int = 16
    context: int = 256
    lr: float | None = None
    """None chooses by the model's width."""
    seed: int = 1
    accumulate: int = 1
    """Batches of each step: gradients are those of one `accumulate` times as large."""
    lora: int | None = None
    """The rank of adapters, which are trained in place of the model; None trains that."""
    autocast: bool = False


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """A command line: the settings named on it, and places and limits, which change no number of a run.

    `spill` goes to `save_on_disk` as it is; only a lossy codec there changes numbers.
    """

    settings: dict[str, Any]
    data: Path | None = None
    out: Path | None = None
    spill_dir: Path | None = None
    resume: Path | None = None
    device: str = "cpu"
    """Where the model is and computes; numbers of another device differ by rounding."""
    ram_budget: str | None = None
    """None is `DEFAULT_RAM_BUDGET`; with `offload`, a quarter of the memory that is available."""
    keep_saved: bool = False
    """Whether saved tensors stay in RAM."""
    offload: bool = False
    """Whether parameters, gradients and optimizer state live on disk."""
    save_every: int | None = None
    """Steps from one checkpoint to the next; None is ten minutes, 0 the end alone."""
    spill: dict[str, Any] = dataclasses.field(default_factory=dict)
    report: bool = False
    """Whether to write a page about the run beside its checkpoint."""
