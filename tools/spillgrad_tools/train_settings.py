"""What a user of `spillgrad train` may choose; imports nothing heavy, so that `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class TrainSettings:
    """What, together with the text, decides every number of a run; a checkpoint carries it."""

    model: str = "small"
    steps: int = 240
    batch: int = 16
    context: int = 256
    lr: float = 2e-3
    seed: int = 1
    accumulate: int = 1
    """Batches of each step: gradients are those of one `accumulate` times as large."""


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
    ram_budget: str | None = None
    """None keeps every saved tensor in RAM."""
    spill: dict[str, Any] = dataclasses.field(default_factory=dict)
