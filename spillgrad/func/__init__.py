"""Transforms of functions under PyTorch's names: their derivatives, and their map over a batch."""

from spillgrad.func.derivatives import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vjp
from spillgrad.func.vmap import vmap
from spillgrad.nn.utils.stateless import functional_call

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]
