"""Averages of a model's weights over training, and the schedule that leads to their learning rate."""

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import ArgumentError
from spillgrad.nn.batch_norm import _BatchNorm
from spillgrad.nn.module import Module
from spillgrad.ops import creation
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler, numbers_for_groups
from spillgrad.optim.optimizer import Optimizer
from spillgrad.tensor import Tensor

__all__ = [
    "SWALR", "AveragedModel", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
    "update_bn",
]  # fmt: skip

Average = Callable[[Tensor, Tensor, Any], Tensor]
AverageOfMany = Callable[[list[Tensor], list[Tensor], Any], None]


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return a function of an average, a tensor and a count: the average's share `decay` of both."""
    if not 0 <= decay <= 1:
        raise ArgumentError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
    return lambda averaged, current, count: decay * averaged + (1 - decay) * current


def get_swa_avg_fn() -> Average:
    """Return a function of the average of `count` tensors, a tensor and the count: the average of all of them."""
    return lambda averaged, current, count: averaged + (current - averaged) / (count + 1)


def _in_place(average: Average) -> AverageOfMany:
    def update(averaged: list[Tensor], current: list[Tensor], count: Any) -> None:
        with no_grad():
            for tensor, new in zip(averaged, current, strict=True):
                tensor.copy_(average(tensor, new, count))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageOfMany:
    """Return `get_ema_avg_fn(decay)` as a function of lists of averages and of tensors; it changes the averages."""
    return _in_place(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageOfMany:
    """Return `get_swa_avg_fn()` as a function of lists of averages and of tensors; it changes the averages."""
    return _in_place(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model whose parameters are averages: of all that `update_parameters` was given, or by a function.

    `avg_fn(average, parameter, n_averaged)` returns the new average; `multi_avg_fn` gets lists of tensors of one dtype
    and device, and changes the averages in place. With `use_buffers`, buffers are averaged too, else copied. The state
    dict does not have the functions.
    Raises ArgumentError if both functions are given.
    Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization".
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Average | None = None,
        multi_avg_fn: AverageOfMany | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ArgumentError("AveragedModel: Only one of avg_fn and multi_avg_fn should be provided")
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", creation.tensor(0, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the averaged model computes."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of a model into the averages; the first ones are copied."""
        with no_grad():
            self._average(self._tensors(self.module), self._tensors(model))
            if not self.use_buffers:
                for buffer, current in zip(self.module.buffers(), model.buffers(), strict=True):
                    buffer.copy_(current)
            self.n_averaged += 1

    def _average(self, own: list[Tensor], new: list[Tensor]) -> None:
        count = self.n_averaged
        if count == 0:
            for averaged, current in zip(own, new, strict=True):
                averaged.copy_(current)
        elif self.multi_avg_fn is None:
            average = self.avg_fn or get_swa_avg_fn()
            for averaged, current in zip(own, new, strict=True):
                averaged.copy_(average(averaged, current.to(averaged.device), count.to(averaged.device)))
        else:
            groups: defaultdict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for averaged, current in zip(own, new, strict=True):
                groups[averaged.device, averaged.dtype].append((averaged, current.to(averaged.device)))
            for (device, _), pairs in groups.items():
                averages, currents = (list(tensors) for tensors in zip(*pairs, strict=True))
                self.multi_avg_fn(averages, currents, count.to(device))

    def _tensors(self, model: Module) -> list[Tensor]:
        buffers = model.buffers() if self.use_buffers else ()
        return [tensor.detach() for tensor in itertools.chain(model.parameters(), buffers)]


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the statistics of a model's layers of batch normalization anew, in one pass over data.

    Each batch is a tensor, or a list or tuple whose first element is the model's input.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return
    momenta, was_training = [layer.momentum for layer in layers], model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # averages of all batches
    with no_grad():
        for batch in loader:
            given = batch[0] if isinstance(batch, list | tuple) else batch
            model(given if device is None else given.to(device))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Go from the present learning rate to `swa_lr` in `anneal_epochs` steps, and stay there.

    `anneal_strategy` is "cos" or "linear". Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and
    better generalization".
    """

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        rates = numbers_for_groups("SWALR", "swa_lr", swa_lr, optimizer.param_groups)
        for rate, group in zip(rates, optimizer.param_groups, strict=True):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentError(
                f"SWALR: anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ArgumentError(f"SWALR: anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self.anneal_epochs, self._anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """Return the share of `swa_lr` in the rate at a step; the rest is of the rate at the beginning."""
        done = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return done if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * done)) / 2

    def get_lr(self) -> list[float]:
        self._warn_unless_in_step()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        share, share_before = self._share(step), self._share(step - 1)
        rates = []
        for group in self.optimizer.param_groups:
            swa_lr, present = group["swa_lr"], group["lr"]
            first = swa_lr if share_before == 1 else (present - share_before * swa_lr) / (1 - share_before)
            rates.append(swa_lr * share + first * (1 - share))
        return rates
