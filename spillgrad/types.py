"""PyTorch's module `torch.types`: names for annotations."""

import builtins
import os
from collections.abc import Sequence
from typing import Any

from spillgrad.data_type import dtype
from spillgrad.device.device import Device as device
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Size

__all__ = ["Device", "FileLike", "Number", "Storage"]

_TensorOrTensors = Tensor | Sequence[Tensor]
_TensorOrTensorsOrGradEdge = Any
_dtype, _device, _size = dtype, device, Size | list[int] | tuple[int, ...]
_int, _float, _bool, _complex = builtins.int, builtins.float, builtins.bool, builtins.complex
_Number = (int, float, bool)
_layout = _qscheme = Any
Number = int | float | bool
Device = device | str | int | None
FileLike = str | os.PathLike[str] | Any
Storage = Any
PathLike = str | os.PathLike[str]
