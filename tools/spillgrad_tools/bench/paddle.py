"""Run Paddle on the CPU as a peer: train a GPT-2 written in Paddle, its saved tensors in RAM or on disk."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional

from spillgrad.interop.paddle import save_on_disk
from spillgrad_tools.bench.gpt import BETAS, LR, WEIGHT_DECAY, GPTFunctions, GPTTraining, Spilling, gpt_weights
from spillgrad_tools.bench.operations import Library


class Training(GPTTraining):
    """A GPT-2 with its optimizer, in training; its parameters are `weights`, or random if `weights` is None.

    Saved tensors beyond `spill_budget` go to `directory`; if `spill_budget` is None, all stay in RAM.
    """

    functions = GPTFunctions(
        functional.embedding, lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        functional.linear, partial(functional.gelu, approximate=True),
        lambda qkv: functional.scaled_dot_product_attention(*qkv.unbind(2), is_causal=True),
        partial(paddle.matmul, transpose_y=True), functional.cross_entropy,
    )  # fmt: skip

    def __init__(
        self, config: Mapping[str, Any], weights: Mapping[str, np.ndarray] | None, directory: str,
        spill_budget: int | str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config)
        self.parameters = {}
        for name, array in (gpt_weights(config) if weights is None else weights).items():
            self.parameters[name] = paddle.create_parameter(array.shape, "float32")
            self.parameters[name].set_value(array)
        self.optimizer = paddle.optimizer.AdamW(
            LR, *BETAS, parameters=list(self.parameters.values()), weight_decay=WEIGHT_DECAY
        )
        self.spill = None if spill_budget is None else Spilling(save_on_disk(directory, ram_budget=spill_budget))

    def tensor(self, array: np.ndarray) -> Any:
        """Return an array as a tensor."""
        return paddle.to_tensor(array)

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        self.optimizer.clear_grad(set_to_zero=False)


class Paddle(Library):
    """Paddle; only its training is timed."""

    version = f"Paddle {paddle.__version__}"
    training = Training

    def set_num_threads(self, count: int) -> None:
        """Set the number of threads that the library uses."""
        paddle.set_flags({"FLAGS_paddle_num_threads": count})


LIBRARY = Paddle
