"""The graph's public face: saved-tensor hooks and nodes, under PyTorch's module name."""

from spillgrad.autograd.compose import compose
from spillgrad.autograd.cpu_hooks import save_on_cpu
from spillgrad.autograd.hooks import disable_saved_tensors_hooks, saved_tensors_hooks
from spillgrad.autograd.node import GradientEdge, Node, RemovableHandle
from spillgrad.save_on_disk import save_on_disk
from spillgrad.tensor import Tensor

__all__ = [
    "GradientEdge",
    "Node",
    "RemovableHandle",
    "compose",
    "disable_saved_tensors_hooks",
    "get_gradient_edge",
    "save_on_cpu",
    "save_on_disk",
    "saved_tensors_hooks",
]


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """Return where a gradient of `tensor` flows: its node (or its leaf's accumulator) and output number."""
    return GradientEdge(*tensor.gradient_edge())
