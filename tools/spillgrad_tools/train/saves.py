"""The checkpoints of a run: when a checkpoint is saved, whether there is room for it, and what happens if not."""

import time
from collections.abc import Callable
from pathlib import Path

from spillgrad.errors import CheckpointError
from spillgrad.storage.disk.file_system import free_bytes
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.train.training import Training

# The default interval between checkpoints, and the largest share of the time that saving may take.
EVERY_S = 600.0
MOST_SHARE = 0.05


class Saves:
    """Saves a checkpoint every `every` steps, every ten minutes if `every` is None, or only at the end if it is 0.

    The former checkpoint is removed only when the new one is whole, so two need room at the same time. If there is
    room for only one and `every` is None, the run saves only at the end. If a checkpoint cannot be written, `say` is
    called with a line and training goes on; at the end, the error is raised. Line and error name the checkpoint that
    stays. Of several processes, all call the methods, and the first one decides.
    Raises CheckpointError before training if the disk has too little room.
    """

    def __init__(self, training: Training, out: Path, every: int | None, say: Callable[[str], None]) -> None:
        self._training, self._out, self._every, self._say = training, out, every, say
        # The step of the checkpoint in the folder; None if there is none.
        self.saved = training.first_step if (out / "checkpoint.json").exists() else None
        self._ended_s = time.monotonic()  # the last save, or the beginning
        self._last_s = 0.0
        self.count = 0
        self.seconds = 0.0
        self._require_room()

    @property
    def what_stays(self) -> str:
        """What is in the folder, in words."""
        if self.saved is None:
            return "no checkpoint is there yet"
        return f"the checkpoint of step {self.saved} stays"

    def after_step(self) -> None:
        """Save a checkpoint if one is due."""
        ranks = self._training.ranks
        if not ranks.firsts(self._is_due()):
            return
        lack = ranks.firsts(self._lack(self._bytes_for_another()))
        try:
            if lack is not None:
                raise CheckpointError(f"a checkpoint needs {lack}; free space there")
            self._save()
        except CheckpointError as error:
            self._ended_s = time.monotonic()
            self._say(f"step {self._training.step}: not saved: {error}. Training goes on; {self.what_stays}")

    def at_end(self) -> None:
        """Save a checkpoint, unless the last step is saved. Raises CheckpointError if it cannot be written."""
        if self.saved == self._training.step:
            return
        try:
            self._save()
        except CheckpointError as error:
            raise CheckpointError(f"{error}; step {self._training.step} is not saved, {self.what_stays}") from error

    def _is_due(self) -> bool:
        training = self._training
        if training.step >= training.settings.steps:  # `at_end` saves
            return False
        if self._every is not None:
            return self._every > 0 and training.step % self._every == 0
        return time.monotonic() - self._ended_s >= max(EVERY_S, self._last_s * (1 / MOST_SHARE - 1))

    def _save(self) -> None:
        began_s = time.monotonic()
        try:
            self._training.save(self._out)
        finally:
            self._ended_s = time.monotonic()
            self._last_s = self._ended_s - began_s
            self.seconds += self._last_s
        self.count += 1
        self.saved = self._training.step
        steps = self._training.settings.steps
        self._say(f"step {self.saved}/{steps}  checkpoint saved in {self._last_s:.1f} s")

    def _require_room(self) -> None:
        lack = self._lack(self._training.checkpoint_bytes)
        if lack is not None:
            raise CheckpointError(f"train: a checkpoint needs {lack}; free space there, or name another --out")
        lack = self._lack(self._bytes_for_another())
        if lack is None or self._every == 0:
            return
        if self._every is not None:
            mend = "free space there, name another --out, or save at the end alone with --save-every 0"
            got = f"got --save-every {self._every}, but a checkpoint and the next one need {lack}"
            raise CheckpointError(f"train: {got}; {mend}")
        self._say(f"a checkpoint is saved at the end alone: it and the next one would need {lack}")

    def _bytes_for_another(self) -> int:
        """Return the bytes needed for a further checkpoint, or for two if there is no checkpoint in the folder yet."""
        return self._training.checkpoint_bytes * (2 if self.saved is None else 1)

    def _lack(self, wanted_bytes: int) -> str | None:
        """Return in words how many bytes are wanted and how many are free; None if enough are free."""
        free = free_bytes(self._out)
        if free >= wanted_bytes:
            return None
        return f"{format_bytes(wanted_bytes)}, and {self._out} has {format_bytes(free)} free"
