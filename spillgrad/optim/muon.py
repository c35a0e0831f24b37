"""Muon: steps of matrices along orthogonal matrices."""

import math

from spillgrad.errors import ArgumentError, ComplexDtypeError
from spillgrad.ops import creation
from spillgrad.ops.norms import vector_norm
from spillgrad.optim.optimizer import Group, Optimizer, ParameterList, State, checked_options
from spillgrad.tensor import Tensor

_RULES = (None, "original", "match_rms_adamw")


class Muon(Optimizer):
    """Step against the orthogonal matrix that is nearest to the momentum of a gradient; weights decay apart from it.

    That matrix is found in bfloat16, by iterations of Newton and Schulz with a polynomial; its singular values end near
    1. The parameters are matrices: give others to another optimizer.

    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or groups: dicts of "params" and options of their own.
    lr : float, default 1e-3
        Learning rate.
    weight_decay : float, default 0.1
        Share of a parameter that a step takes away, as a multiple of the learning rate.
    momentum : float, default 0.95
        Share that the running mean of gradients keeps at each step.
    nesterov : bool, default True
        Whether to mix the momentum with the gradient once more, as Nesterov does.
    ns_coefficients : tuple of float, default (3.4445, -4.775, 2.0315)
        The three coefficients of the polynomial.
    eps : float, default 1e-7
        Least norm to divide by.
    ns_steps : int, default 5
        Number of iterations, below 100.
    adjust_lr_fn : {"original", "match_rms_adamw"}, optional
        How the step depends on the shape: "match_rms_adamw" is for AdamW's learning rates; "original" is the default.

    Raises
    ------
    ArgumentError
        For parameters that are no matrices, and for an option out of its range.
    DtypeError
        For complex parameters.

    Notes
    -----
    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
    """

    state_has_shape_of_parameter = True
    state_has_dtype_of_parameter = True

    def __init__(
        self, params: ParameterList, lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7, ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        options = checked_options("Muon", lr=lr, momentum=momentum, weight_decay=weight_decay)
        if adjust_lr_fn not in _RULES:
            raise ArgumentError(f"Muon: Adjust learning rate function {adjust_lr_fn} is not supported")
        if len(ns_coefficients) != 3:
            raise ArgumentError("Muon: Coefficients must be a tuple of exactly 3 values")
        if ns_steps >= 100:
            raise ArgumentError("Muon: Number of steps must be less than 100 for computational efficiency")
        options |= {
            "nesterov": nesterov, "ns_coefficients": tuple(ns_coefficients), "eps": eps, "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }  # fmt: skip
        super().__init__(params, options)

    def check_parameter(self, param: Tensor) -> None:
        """Raise an error for a parameter that is no real matrix.

        Parameters
        ----------
        param : Tensor
            A parameter that is being added.

        Raises
        ------
        ArgumentError
            For a parameter that is no matrix.
        DtypeError
            For a complex parameter.
        """
        if param.ndim != 2:
            raise ArgumentError(
                "Muon only supports 2D parameters whereas we found a parameter with size: "
                f"{tuple(param.shape)}; give it to another optimizer"
            )
        if param.is_complex():
            raise ComplexDtypeError(
                f"Muon: got {param.dtype}; Muon does not support complex parameters; give it to another optimizer"
            )

    def state_tensors(self, group: Group) -> int:
        """Return how many tensors of a parameter's size the state of each parameter of a group will hold.

        Parameters
        ----------
        group : dict
            Options of the group.

        Returns
        -------
        int
            The number.
        """
        return 1

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
            state["momentum_buffer"] = creation.zeros_like(grad)
        buffer, momentum, lr = state["momentum_buffer"], group["momentum"], float(group["lr"])
        buffer.lerp_(grad, 1 - momentum)
        step = _orthogonal(grad.lerp(buffer, momentum) if group["nesterov"] else buffer, group)
        rows, columns = param.shape
        if group["adjust_lr_fn"] == "match_rms_adamw":
            ratio = 0.2 * math.sqrt(max(rows, columns))
        else:
            ratio = math.sqrt(max(1, rows / columns))
        param.mul_(1 - lr * group["weight_decay"])
        param.add_(step.to(param.dtype), alpha=-lr * ratio)


def _orthogonal(matrix: Tensor, group: Group) -> Tensor:
    """Return a matrix with the singular vectors of another one, whose singular values are near 1.

    They are numbers of bfloat16.
    """
    a, b, c = group["ns_coefficients"]
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.to("bfloat16")
    x = x.T if is_tall else x
    x = (x / vector_norm(x).clamp(min=group["eps"])).to("float32")
    for _ in range(group["ns_steps"]):
        gram = _rounded(x @ x.T)
        x = _rounded(a * x + _rounded(b * gram + c * (gram @ gram)) @ x)
    return x.T if is_tall else x


def _rounded(x: Tensor) -> Tensor:
    """Return float32 numbers rounded to bfloat16's, as PyTorch rounds each product once it is added to its addend."""
    rounded: Tensor = x.to("bfloat16").to("float32")
    return rounded
