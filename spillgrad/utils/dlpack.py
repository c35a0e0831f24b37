"""PyTorch's module `torch.utils.dlpack`: tensors over the memory of other libraries, and the other way round."""

from typing import Any

from spillgrad.ops.creation import from_dlpack
from spillgrad.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """Return a DLPack capsule over the tensor's memory, which one consumer may take."""
    return tensor.__dlpack__()
