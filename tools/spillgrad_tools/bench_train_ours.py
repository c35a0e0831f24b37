"""A GPT and its training step in spillgrad."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad_tools.bench_ours import VERSION, set_num_threads

__all__ = ["VERSION", "Training", "set_num_threads"]


class Training:
    """A model with given parameters, and its optimizer."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: Mapping[str, np.ndarray],
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        self.model = sg.models.GPT(sg.models.GPTConfig(**config))
        with sg.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(sg.from_numpy(weights[name]))
        self.optimizer = sg.optim.AdamW(self.model.parameters(), lr=lr, betas=betas, weight_decay=weight_decay)

    def step(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        """Go forward, backward and one step on; return the loss."""
        self.optimizer.zero_grad()
        loss = self.model(inputs, targets)[1]
        loss.backward()
        self.optimizer.step()
        value: float = loss.item()
        return value
