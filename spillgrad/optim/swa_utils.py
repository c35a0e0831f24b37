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
    """Return a function that lets an average decay: of the new average, it has the share `decay`.

    Parameters
    ----------
    decay : float, default 0.999
        Share that the average keeps, from 0 to 1.

    Returns
    -------
    callable
        Takes an average, a tensor and the number of tensors in the average; returns the new average.

    Raises
    ------
    ArgumentError
        If `decay` is out of its range.
    """
    if not 0 <= decay <= 1:
        raise ArgumentError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")
    return lambda averaged, current, count: decay * averaged + (1 - decay) * current


def get_swa_avg_fn() -> Average:
    """Return a function that averages all tensors alike.

    Returns
    -------
    callable
        Takes an average, a tensor and the number of tensors in the average; returns the new average.
    """
    return lambda averaged, current, count: averaged + (current - averaged) / (count + 1)


def _in_place(average: Average) -> AverageOfMany:
    def update(averaged: list[Tensor], current: list[Tensor], count: Any) -> None:
        with no_grad():
            for tensor, new in zip(averaged, current, strict=True):
                tensor.copy_(average(tensor, new, count))

    return update


def get_ema_multi_avg_fn(decay: float = 0.999) -> AverageOfMany:
    """Return ``get_ema_avg_fn(decay)`` as a function of lists that changes the averages.

    Parameters
    ----------
    decay : float, default 0.999
        Share that the average keeps, from 0 to 1.

    Returns
    -------
    callable
        Takes a list of averages, which it changes, a list of tensors, and the number of tensors in the averages.

    Raises
    ------
    ArgumentError
        If `decay` is out of its range.
    """
    return _in_place(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> AverageOfMany:
    """Return ``get_swa_avg_fn()`` as a function of lists that changes the averages.

    Returns
    -------
    callable
        Takes a list of averages, which it changes, a list of tensors, and the number of tensors in the averages.
    """
    return _in_place(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model whose parameters are averages: of all that `update_parameters` was given, or by a function.

    The state dict does not have the functions.

    Parameters
    ----------
    model : Module
        The model.
    device : device, optional
        Where the averages are; by default, where the model's parameters are.
    avg_fn : callable, optional
        ``avg_fn(average, parameter, n_averaged)`` returns the new average.
    multi_avg_fn : callable, optional
        Gets lists of averages and of parameters, of one dtype and device, and `n_averaged`; changes the averages in
        place.
    use_buffers : bool, default False
        Whether buffers are averaged, too; otherwise, they are copied.

    Raises
    ------
    ArgumentError
        If both functions are given.

    Notes
    -----
    Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization".

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Linear(1, 1, bias=False)
    >>> averaged = sg.optim.swa_utils.AveragedModel(model)
    >>> for value in [1.0, 3.0]:
    ...     _ = sg.nn.init.constant_(model.weight, value)
    ...     averaged.update_parameters(model)
    >>> averaged.module.weight.item()
    2.0
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
        """Return what the averaged model computes.

        Parameters
        ----------
        *args : object
            Arguments of the model.
        **kwargs : object
            Keyword arguments of the model.

        Returns
        -------
        object
            The averaged model's result.
        """
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the parameters of a model into the averages; the first ones are copied.

        Parameters
        ----------
        model : Module
            A model like the one that was copied.
        """
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

    Parameters
    ----------
    loader : iterable
        Batches: each is a tensor, or a list or tuple whose first element is the model's input.
    model : Module
        The model.
    device : device, optional
        Where inputs are moved; by default, they stay.
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
    """Go from the present learning rate to `swa_lr` in some steps, and stay there.

    Parameters
    ----------
    optimizer : Optimizer
        Optimizer whose learning rates are set.
    swa_lr : float or sequence of float
        Last rate, or one for each group.
    anneal_epochs : int, default 10
        Number of steps.
    anneal_strategy : {"cos", "linear"}, default "cos"
        Curve along which the rate goes.
    last_epoch : int, default -1
        Last step that was done, to go on from there; -1 begins anew.

    Raises
    ------
    ArgumentError
        For an unknown strategy, or a number of steps that is no integer from 0 on.

    Notes
    -----
    Source: Izmailov et al. 2018, "Averaging weights leads to wider optima and better generalization".
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
        """Return the learning rate of each group at step `last_epoch`; users call `get_last_lr`.

        Returns
        -------
        list of float
            A rate for each group.
        """
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
