"""How parameters are stored: whole, in two planes (`planes.py`), or as bfloat16 numbers alone, rounded at random."""

from spillgrad import dtypes
from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.generator import default_generator
from spillgrad.nn.module import Module
from spillgrad.ops.convert import to_dtype
from spillgrad.optim.formula_optimizer import FormulaOptimizer
from spillgrad.optim.optimizer import Optimizer

WHOLE, SPLIT, NONE = MASTERS = ("whole", "split", "none")


def require_master(master: str, who: str = "disk_offload") -> None:
    """Raise ArgumentError for an unknown word."""
    if master not in MASTERS:
        raise ArgumentError(f"{who}: got master={master!r}; wanted 'whole', 'split' or 'none'")


def require_parameters(model: Module, master: str) -> None:
    """Raise UnsupportedError or ArgumentError if a model's parameters cannot be stored as `master` says."""
    parameters = [*model.parameters()]
    if master == WHOLE or not parameters:
        return
    if any(parameter.is_cuda for parameter in parameters):
        raise UnsupportedError(
            f"disk_offload: got master={master!r} and a model on a CUDA device, where parameters are whole; leave "
            "master out, or move the model to the CPU"
        )
    wanted = {dtypes.float32} if master == SPLIT else {dtypes.float32, dtypes.bfloat16}
    found = {parameter.numpy_dtype for parameter in parameters}
    if found.isdisjoint(wanted):
        raise ArgumentError(
            f"disk_offload: got master={master!r} and parameters of {', '.join(sorted(map(str, found)))}; it is for "
            "float32 parameters: leave it out, or convert the model with .to(sg.float32)"
        )


def require_optimizer(optimizer: Optimizer) -> None:
    """Raise UnsupportedError if an optimizer cannot round its updates at random."""
    if not isinstance(optimizer, FormulaOptimizer):
        raise UnsupportedError(
            f"disk_offload: got master='none' with {type(optimizer).__name__}, whose updates are rounded to nearest, "
            "and so would mostly be lost; give master='split', or an optimizer such as AdamW"
        )


def to_bfloat16(model: Module) -> None:
    """Convert a model's float32 parameters and their gradients to bfloat16."""
    for parameter in model.parameters():
        if parameter.numpy_dtype == dtypes.float32:
            grad = parameter.grad
            parameter.data = to_dtype(parameter.detach(), dtypes.bfloat16)
            parameter.grad = None if grad is None else to_dtype(grad, dtypes.bfloat16)


def round_at_random(optimizer: Optimizer) -> None:
    """Have an optimizer round bfloat16 numbers at random, with the seed of the default generator, if it does not yet.

    Raises UnsupportedError if the optimizer cannot.
    """
    require_optimizer(optimizer)
    assert isinstance(optimizer, FormulaOptimizer)
    if any("rounding_seed" not in group for group in optimizer.param_groups):
        optimizer.round_stochastically(default_generator.initial_seed())
