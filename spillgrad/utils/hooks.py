"""PyTorch's module `torch.utils.hooks`: the handle that registered hooks return."""

from spillgrad.autograd.core.node import RemovableHandle as RemovableHandle
