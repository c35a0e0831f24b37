"""Lion: steps by the sign of a momentum."""

from spillgrad.ops import creation
from spillgrad.optim.arrays import Pending
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor
from spillgrad_kernels.cpu import optim as kernels


class Lion(Optimizer):
    """Move each element by the learning rate, in the direction of its momentum; weights decay apart from the gradient.

    Its state is half of Adam's. It needs about a tenth of Adam's learning rate and ten times its weight decay.
    Source: Chen et al. 2023, "Symbolic discovery of optimization algorithms", algorithm 2.
    """

    def __init__(
        self,
        params: ParameterList,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, checked_options("Lion", lr=lr, betas=betas, weight_decay=weight_decay))

    def state_tensors(self, group: Group) -> int:
        return 1

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> Pending:
        if not state:
            state["exp_avg"] = creation.zeros_like(param)
        beta1, beta2 = group["betas"]
        options = (group["lr"], beta1, beta2, group["weight_decay"])
        return Pending(kernels.lion, param, grad, (state["exp_avg"],), options)
