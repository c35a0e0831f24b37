"""APOLLO: AdamW whose moments are those of a random projection, and say only by how much to scale the gradient."""

import math
from typing import Any

import numpy as np

from spillgrad.dtypes import DType, float32
from spillgrad.errors import ArgumentError, ComplexDtypeError
from spillgrad.generator import Generator
from spillgrad.ops import creation
from spillgrad.ops.norms import vector_norm
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor

_SCALES = ("channel", "tensor")
# The norm of an update may grow by this factor at each step.
_GROWTH = 1.01
_LEAST_NORM = 1e-8


class APOLLOAdamW(Optimizer):
    """Scale the gradients of matrices as AdamW would scale their random projections; update others as AdamW does.

    The moments of a matrix of m × n elements, m ≥ n, have m × `rank` elements. The projection is not kept: it is drawn
    again from its seed. With `rank` 1 and ``scale_type="tensor"``, this is APOLLO-Mini: the state is two vectors.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    betas : tuple of float, default (0.9, 0.999)
        Shares that the running means of gradients and of their squares keep at each step.
    eps : float, default 1e-6
        Added to the root of the mean squares.
    weight_decay : float, default 0.0
        Share of a parameter that a step takes away, as a multiple of the learning rate.
    correct_bias : bool, default True
        Whether to correct the means for their start at zero.
    scale_front : bool, default False
        Whether the growth of updates is limited after `scale`, not before.
    disable_nl : bool, default False
        Whether the norm of a matrix's update may grow by more than 1 % at a step.
    rank : int, optional
        Rows of the projection of a group's matrices. Without it, all parameters are updated as AdamW does.
    scale : float, default 1.0
        The square of a factor of the updates of matrices: 1 with ranks of a quarter of the width, 128 with rank 1.
    scale_type : {"channel", "tensor"}, default "channel"
        Whether each row or column of a matrix along its longer side has a factor of its own, or the matrix one.
    update_proj_gap : int, default 200
        Steps after which another projection is drawn.
    seed : int, default 0
        Seed of the projections.

    Raises
    ------
    ArgumentError
        For an option out of its range, and for a projection by singular vectors.
    DtypeError
        For complex parameters.

    Notes
    -----
    In a group, "proj" and "proj_type" may be "random" and "std", as groups for the package ``apollo-torch`` have them.

    Source: Zhu et al. 2024, "APOLLO: SGD-like memory, AdamW-level performance", algorithm 1.

    Examples
    --------
    Matrices of the layers have a `rank`; embeddings, the head and vectors are updated as AdamW does:

    >>> import spillgrad as sg
    >>> model = sg.models.build("tiny")
    >>> layers = [p for name, p in model.named_parameters() if ".h." in name and p.ndim == 2]
    >>> others = [p for p in model.parameters() if not any(p is each for each in layers)]
    >>> groups = [{"params": others}, {"params": layers, "rank": 8}]
    >>> optimizer = sg.optim.APOLLOAdamW(groups, lr=1e-2)
    """

    numbers_in_state = ("step",)

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.0, correct_bias: bool = True, scale_front: bool = False, disable_nl: bool = False, *,
        rank: int | None = None, scale: float = 1.0, scale_type: str = "channel", update_proj_gap: int = 200,
        seed: int = 0,
    ) -> None:  # fmt: skip
        options = checked_options("APOLLOAdamW", betas=betas, lr=lr, eps=eps, weight_decay=weight_decay)
        options |= {
            "correct_bias": correct_bias, "scale_front": scale_front, "disable_nl": disable_nl, "rank": rank,
            "scale": scale, "scale_type": scale_type, "update_proj_gap": update_proj_gap, "seed": seed,
        }  # fmt: skip
        super().__init__(params, options)

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own.

        Parameters
        ----------
        param_group : dict
            Has "params", a tensor or an iterable of tensors, and options; the optimizer's defaults fill in the rest.

        Raises
        ------
        ArgumentError
            As by the constructor.
        """
        if isinstance(param_group, dict):
            _require_options({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def check_parameter(self, param: Tensor) -> None:
        """Raise an error for a parameter that is complex.

        Parameters
        ----------
        param : Tensor
            A parameter that is being added.

        Raises
        ------
        DtypeError
            For a complex parameter.
        """
        if param.is_complex():
            raise ComplexDtypeError(
                f"APOLLOAdamW: got {param.dtype}; its numbers are real; give complex parameters to another optimizer"
            )

    def state_bytes(self, param: Tensor, group: Group) -> int:
        """Return how many bytes the state of a parameter will hold.

        Parameters
        ----------
        param : Tensor
            The parameter.
        group : dict
            Options of the group.

        Returns
        -------
        int
            The number of bytes.
        """
        elements = param.numel()
        if _is_projected(param, group):
            elements = max(param.shape) * group["rank"]
        return int(2 * elements * _dtype_of(param).itemsize)

    def projection(self, seed: int, place: int, number: int, shape: tuple[int, int]) -> Tensor:
        """Return a random matrix, of which a gradient's product is taken.

        Parameters
        ----------
        seed : int
            The seed of the parameter's group.
        place : int
            The place of the parameter in the optimizer, from 1 on.
        number : int
            How many projections the parameter had before.
        shape : tuple of int
            The rank, and the shorter side of the parameter.

        Returns
        -------
        Tensor
            Draws from a normal distribution of variance 1 / rank, the same for the same arguments.
        """
        (mixed,) = np.random.SeedSequence([seed, place, number]).generate_state(1, np.uint64)
        return creation.randn(*shape, generator=Generator(int(mixed))) / math.sqrt(shape[0])

    def update(self, param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update one parameter in place.

        Parameters
        ----------
        param : Tensor
            The parameter.
        grad : Tensor
            Its gradient.
        state : dict
            Its state; empty at its first update.
        group : dict
            Options of the group.
        """
        if not state:
            state["step"] = 0
            state["place"] = self._place(param)
        grad = grad.to(_dtype_of(param))
        is_projected = _is_projected(param, group)
        low = self._projected(grad, state, group) if is_projected else grad
        if "exp_avg" not in state:
            state["exp_avg"], state["exp_avg_sq"] = creation.zeros_like(low), creation.zeros_like(low)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean, squares = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(low, alpha=1 - beta1)
        squares.mul_(beta2).addcmul_(low, low, value=1 - beta2)
        step = mean / (squares.sqrt().add_(group["eps"]))
        lr = rate = float(group["lr"])
        if group["correct_bias"]:
            rate = lr * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
        if is_projected:
            step, factor = self._scaled(grad, low, step, state, group)
            rate *= factor
        param.add_(step, alpha=-rate)
        if group["weight_decay"]:
            param.add_(param, alpha=-lr * group["weight_decay"])

    def _projected(self, grad: Tensor, state: State, group: Group) -> Tensor:
        """Return the product of a gradient and a random matrix along its shorter side."""
        rows, columns = grad.shape
        number = state["step"] // group["update_proj_gap"]
        matrix = self.projection(group["seed"], state["place"], number, (group["rank"], min(rows, columns)))
        matrix = matrix.to(dtype=grad.dtype, device=grad.device)
        product: Tensor = grad @ matrix.T if rows >= columns else matrix @ grad
        return product

    def _scaled(
        self, grad: Tensor, low: Tensor, low_step: Tensor, state: State, group: Group
    ) -> tuple[Tensor, float]:  # fmt: skip
        """Return a gradient scaled as its projection `low` is by AdamW, and a further factor."""
        by: dict[str, Any] = {}
        if group["scale_type"] == "channel":
            by = {"dim": 1 if grad.shape[0] >= grad.shape[1] else 0, "keepdim": True}
        step = grad * (vector_norm(low_step, **by) / (vector_norm(low, **by) + _LEAST_NORM))
        scale, limiter = math.sqrt(group["scale"]), 1.0
        if not group["disable_nl"]:
            norm = float(vector_norm(step)) * (scale if group["scale_front"] else 1.0)
            if "norm" in state:
                limiter = max(norm / (state["norm"] + _LEAST_NORM), _GROWTH) / _GROWTH
            state["norm"] = norm / limiter
        return step, scale / limiter

    def _place(self, param: Tensor) -> int:
        """Return the place of a parameter in the optimizer, from 1 on."""
        params = (each for group in self.param_groups for each in group["params"])
        return next((number for number, each in enumerate(params, 1) if each is param), 0)


def _is_projected(param: Tensor, group: Group) -> bool:
    return group["rank"] is not None and param.ndim == 2


def _dtype_of(param: Tensor) -> DType:
    """Return the dtype of a parameter's state: at least float32."""
    return param.numpy_dtype if param.itemsize >= float32.itemsize else float32


def _require_options(group: dict[str, Any]) -> None:
    rank, gap = group["rank"], group["update_proj_gap"]
    if rank is not None and (type(rank) is not int or rank < 1):
        raise ArgumentError(f"APOLLOAdamW: got rank {rank!r}; wanted a whole number from 1 on, or None")
    if type(gap) is not int or gap < 1:
        raise ArgumentError(f"APOLLOAdamW: got update_proj_gap {gap!r}; wanted a whole number from 1 on")
    if group["scale_type"] not in _SCALES:
        raise ArgumentError(f"APOLLOAdamW: got scale_type {group['scale_type']!r}; wanted {' or '.join(_SCALES)}")
    if not group["scale"] > 0:
        raise ArgumentError(f"APOLLOAdamW: got scale {group['scale']}; it must be above 0")
    if type(group["seed"]) is not int or group["seed"] < 0:
        raise ArgumentError(f"APOLLOAdamW: got seed {group['seed']!r}; wanted a whole number from 0 on")
    for key, known in (("proj", "random"), ("proj_type", "std")):
        if group.get(key, known) != known:
            raise ArgumentError(f"APOLLOAdamW: got {key} {group[key]!r}; only {known!r} is known")
