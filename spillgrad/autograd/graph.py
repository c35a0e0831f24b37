"""The public names for the graph: saved-tensor hooks, nodes and edges, under PyTorch's module name."""

from collections.abc import Iterable

from spillgrad.autograd.compose import compose
from spillgrad.autograd.core.hooks import SavedValue, disable_saved_tensors_hooks, saved_tensors_hooks
from spillgrad.autograd.core.node import GradientEdge, Node, RemovableHandle
from spillgrad.autograd.cpu_hooks import save_on_cpu
from spillgrad.autograd.multi_grad import register_multi_grad_hook
from spillgrad.autograd.mutation import allow_mutation_on_saved_tensors
from spillgrad.errors import GraphError
from spillgrad.spill.save_on_disk import save_on_disk
from spillgrad.tensor import Tensor

__all__ = [
    "GradientEdge",
    "Node",
    "RemovableHandle",
    "SavedValue",
    "allow_mutation_on_saved_tensors",
    "compose",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "increment_version",
    "register_multi_grad_hook",
    "save_on_cpu",
    "save_on_disk",
    "saved_tensors_hooks",
    "set_warn_on_accumulate_grad_stream_mismatch",
]


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return the edge to which a gradient of `tensor` flows.

    `grad` and `backward` accept the edge in place of the tensor, which may be freed before.

    Parameters
    ----------
    tensor : Tensor
        Of any shape.

    Returns
    -------
    GradientEdge
        A node (for a leaf, its accumulator) and an output number.

    Raises
    ------
    GraphError
        For a tensor that requires no gradient.
    """
    if not tensor.requires_grad:
        raise GraphError(
            "get_gradient_edge: It is not possible to get the gradient edge for a Tensor that does not require "
            "gradients; set requires_grad=True first"
        )
    return GradientEdge(*tensor.gradient_edge())


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Record that the memory of one or several tensors was changed outside spillgrad, for example through ``.numpy()``.

    Backward then raises an error if it needs the former values.

    Parameters
    ----------
    tensor : Tensor or iterable of Tensor
        The changed tensors.
    """
    for changed in [tensor] if isinstance(tensor, Tensor) else tensor:
        changed.bump_version()


def set_warn_on_accumulate_grad_stream_mismatch(enabled: bool) -> None:
    """Do nothing: the gradients of a leaf are added in the order of one stream, so that there is nothing to warn of.

    Parameters
    ----------
    enabled : bool
        Ignored.
    """
