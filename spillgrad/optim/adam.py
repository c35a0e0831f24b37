"""Adam, and Adam with decoupled weight decay."""

from collections.abc import Callable
from typing import ClassVar

from spillgrad.ops import creation
from spillgrad.optim.arrays import Pending
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import optim as kernels
from spillgrad_kernels.tables.optim import Update


class Adam(Optimizer):
    """Scale each element's step by running moments of its gradient; weight decay is added to the gradient.

    Source: Kingma, Ba 2014, "Adam: a method for stochastic optimization", algorithm 1.
    """

    _kernel: ClassVar[Callable[..., Update]] = staticmethod(kernels.adam)

    def __init__(
        self,
        params: ParameterList,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        name = type(self).__name__
        super().__init__(params, checked_options(name, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    def state_tensors(self, group: Group) -> int:
        return 2

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending:
        if not state:
            state.update(step=0, exp_avg=creation.zeros_like(param), exp_avg_sq=creation.zeros_like(param))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        options = (group["lr"], beta1, beta2, group["eps"], group["weight_decay"], state["step"])
        return Pending(self._kernel, param, grad, (state["exp_avg"], state["exp_avg_sq"]), options)


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters directly, apart from the gradient.

    Source: Loshchilov, Hutter 2017, "Decoupled weight decay regularization", algorithm 2.
    """

    _kernel: ClassVar[Callable[..., Update]] = staticmethod(kernels.adamw)

    def __init__(
        self,
        params: ParameterList,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)
