"""Stochastic gradient descent."""

from spillgrad.errors import ArgumentError
from spillgrad.ops import creation
from spillgrad.optim.arrays import Pending
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import optim as kernels


class SGD(Optimizer):
    """Step against the gradient; with `momentum`, against its running sum.

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", in PyTorch's
    form: the velocity is a sum of gradients, scaled by the learning rate when it is used.
    """

    def __init__(
        self,
        params: ParameterList,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        options = checked_options("SGD", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ArgumentError(
                f"SGD: got momentum {momentum} and dampening {dampening}; nesterov needs momentum, and dampening 0"
            )
        super().__init__(params, options | {"dampening": dampening, "nesterov": nesterov})

    def state_tensors(self, group: Group) -> int:
        return 1 if group["momentum"] else 0

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending:
        first = not state
        if first and group["momentum"]:
            state["momentum_buffer"] = creation.zeros_like(param)
        options = [group[name] for name in ("lr", "momentum", "dampening", "weight_decay", "nesterov")]
        buffer = state["momentum_buffer"] if group["momentum"] else None
        return Pending(kernels.sgd, param, grad, (buffer,), (*options, first))
