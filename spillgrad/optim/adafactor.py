"""Adafactor: Adam's second moment by rows and columns alone."""

import math

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, ComplexDtypeError
from spillgrad.ops import creation
from spillgrad.ops.norms import vector_norm
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor


class Adafactor(Optimizer):
    """Scale each element's step by the mean squares of its row and of its column; of a vector, by its own.

    Its state of a matrix is one row and one column.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-2
        Largest learning rate; it also falls with the root of the number of steps.
    beta2_decay : float, default -0.8
        Exponent of the number of steps in the share of a new gradient; not positive.
    eps : tuple, default (None, 1e-3)
        Least root mean square of gradients (None means the machine epsilon of the dtype) and of parameters, which scale
        the step.
    d : float, default 1.0
        Largest root mean square of an update, from 1 on.
    weight_decay : float, default 0.0
        Share of a parameter that a step takes away, as a multiple of the learning rate.
    foreach : bool, optional
        Accepted for PyTorch's programs.
    maximize : bool, default False
        Whether to step along the gradient instead of against it.

    Raises
    ------
    ArgumentError
        If an option is out of its range.
    DtypeError
        For complex parameters.

    Notes
    -----
    Source: Shazeer, Stern 2018, "Adafactor: adaptive learning rates with sublinear memory cost", algorithm 4.
    """

    state_has_dtype_of_parameter = True
    numbers_in_state = ("step",)

    def __init__(
        self, params: ParameterList, lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        options = checked_options("Adafactor", lr=lr, weight_decay=weight_decay)
        checked_options("Adafactor", epsilon1=eps[0] or 0.0, epsilon2=eps[1])
        if not beta2_decay <= 0:
            raise ArgumentError(f"Adafactor: beta2_decay should be <= 0 but is: {beta2_decay}")
        if not d >= 1:
            raise ArgumentError(f"Adafactor: Clipping threshold d should be >= 1 but is: {d}")
        options |= {"beta2_decay": beta2_decay, "eps": tuple(eps), "d": d, "maximize": maximize}
        super().__init__(params, options)

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
                f"Adafactor: got {param.dtype}; Adafactor does not support complex parameters; give it to another "
                "optimizer"
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
            Those of a row and a column of each matrix; of a vector, its own.
        """
        if param.ndim < 2 or not param.numel():
            return int(param.nbytes)
        rows, columns = param.shape[-2:]
        return int(param.nbytes // (rows * columns) * (rows + columns))

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
            if grad.ndim > 1:
                shape = tuple(grad.shape)
                state["row_var"] = creation.zeros((*shape[:-1], 1), dtype=grad.dtype, device=grad.device)
                state["col_var"] = creation.zeros((*shape[:-2], 1, shape[-1]), dtype=grad.dtype, device=grad.device)
            else:
                state["variance"] = creation.zeros_like(grad)
        state["step"] += 1
        grad = -grad if group["maximize"] else grad
        eps1, eps2 = group["eps"]
        eps1 = float(dtypes.finfo(param.dtype).eps) if eps1 is None else eps1
        share = state["step"] ** group["beta2_decay"]
        lr = float(group["lr"])
        rate = max(eps2, _root_mean_square(param)) * min(lr, state["step"] ** -0.5)
        if group["weight_decay"]:
            param.mul_(1 - lr * group["weight_decay"])
        squares = grad * grad
        if grad.ndim > 1:
            rows, columns = state["row_var"], state["col_var"]
            rows.lerp_(squares.mean(-1, keepdim=True), share)
            columns.lerp_(squares.mean(-2, keepdim=True), share)
            variance = rows @ columns / rows.mean(-2, keepdim=True).clamp(min=eps1)
        else:
            variance = state["variance"].lerp_(squares, share)
        step = variance.clamp(min=eps1 * eps1).rsqrt() * grad
        param.add_(step, alpha=-rate / max(1.0, _root_mean_square(step) / group["d"]))


def _root_mean_square(x: Tensor) -> float:
    return float(vector_norm(x)) / math.sqrt(max(1, x.numel()))
