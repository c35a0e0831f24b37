"""How weights and optimizer state are stored, exactly or in fewer bits, and what that costs in accuracy."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.optim.state_formats import BF16, INT8
from spillgrad.spill.offload.master import NONE, WHOLE, round_at_random, to_bfloat16


class Measured(NamedTuple):
    """A held-out loss in nats per byte after a training, that of the exact training, and which training it was."""

    loss: float
    exact_loss: float
    training: str


_TRAINING = "240 steps of spillgrad train"
_TINY = f"{_TRAINING} --model tiny --batch 8 --context 128"
# By argument of `disk_offload` and its value. `docs/memory_methods.md` has the same numbers.
ACCURACY = {
    ("state", INT8): Measured(2.081, 2.098, _TRAINING),
    ("state", BF16): Measured(2.2977, 2.2974, _TINY),
    ("master", NONE): Measured(2.2958, 2.2925, f"{_TINY} --autocast"),
}


class Formats(NamedTuple):
    """The arguments `state` and `master` of `disk_offload`."""

    state: str | None = None
    master: str = WHOLE

    @property
    def in_words(self) -> str:
        """What the formats of fewer bits are."""
        return " and ".join(f"{name} {value}" for name, value in self._asdict().items() if (name, value) in ACCURACY)

    def in_ram(self, model: Module, make_optimizer: Callable[[list[Parameter]], Optimizer]) -> Optimizer:
        """Convert a model in RAM, and return its optimizer, so that they give the bits of one that is offloaded."""
        if self.master == NONE:
            to_bfloat16(model)
        optimizer = make_optimizer([each for each in model.parameters() if each.requires_grad])
        if self.state is not None:
            optimizer.set_state_format(self.state)
        if self.master == NONE:
            round_at_random(optimizer)
        return optimizer


EXACTLY = Formats()


def accuracy_of(formats: Formats) -> Iterator[str]:
    """Yield a line for each format of fewer bits: what it cost in accuracy in a training."""
    for name, value in formats._asdict().items():
        if (name, value) in ACCURACY:
            found = ACCURACY[name, value]
            yield (
                f"{name} {value}: after {found.training}, the held-out loss was {found.loss}; with exact numbers, "
                f"{found.exact_loss}"
            )


class Asked(NamedTuple):
    """The formats that a user has asked for; None leaves one to the plan.

    `has_choice` says whether `master` can be other than "whole": under `autocast`, in one process.
    """

    state: str | None = None
    master: str | None = None
    has_choice: bool = False

    @property
    def exact(self) -> Formats:
        """What was asked for; and nothing in fewer bits beside that."""
        return Formats(self.state, self.master or WHOLE)

    @property
    def may_split(self) -> bool:
        """Whether weights may be in two halves."""
        return self.has_choice and self.master is None

    def lossy(self, master: str | None = None) -> list[Formats]:
        """Return formats of fewer bits, from the most accurate one on; `master` may say how weights are stored else.

        State in 8 bits has lost no accuracy to state in 16, and takes half of it, so the latter is not among them.
        """
        states = [None, INT8] if self.state is None else [self.state]
        usual = self.exact.master if master is None else master
        masters = [usual, NONE] if self.may_split else [usual]
        return [Formats(state, each) for each in masters for state in states][1:]

    def least(self) -> Formats | None:
        """Return the format that takes the least memory; None if there is none of fewer bits than was asked for."""
        return next(reversed(self.lossy()), None)
