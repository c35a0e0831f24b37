"""What a run knows of its evaluations; this module imports nothing heavy."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class BestSoFar:
    """The best evaluation of a run, which a checkpoint holds. Units: nats per token."""

    loss: float | None = None
    """None before the first evaluation."""
    step: int = 0
    since: int = 0
    """How many evaluations after it were no better."""

    def after(self, loss: float, step: int) -> "BestSoFar":
        """Return what is known after one more evaluation; a loss that is not finite is no better than any."""
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            return BestSoFar(loss, step)
        return dataclasses.replace(self, since=self.since + 1)

    def ends(self, patience: int | None) -> bool:
        """Return whether a run with this patience ends here."""
        return patience is not None and self.since >= patience


def has_ended(state: Mapping[str, Any]) -> bool:
    """Return whether a run, whose checkpoint holds `state`, has done all its steps, or has ended early."""
    settings, best = state["extra"]["settings"], state["extra"].get("best")
    ended = best is not None and BestSoFar(**best).ends(settings.get("patience"))
    return bool(ended or state["step"] >= settings["steps"])
