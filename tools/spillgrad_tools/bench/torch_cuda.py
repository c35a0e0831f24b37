"""PyTorch on a CUDA device."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from spillgrad_tools.bench.operations import Call
from spillgrad_tools.bench.torch import PyTorch

# float32 is float32: no product of 19 bits.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


class PyTorchOnCuda(PyTorch):
    """PyTorch on a CUDA device; its version is None where it finds none."""

    version = f"{PyTorch.version}, CUDA {torch.version.cuda}" if torch.cuda.is_available() else None

    def release_memory(self) -> None:
        """Give unused memory of the device back."""
        torch.cuda.empty_cache()

    def prepare(self, operand: np.ndarray, requires_grad: bool) -> Any:
        """Return the operand on the device."""
        if operand.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(operand.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(operand)
        return tensor.cuda().requires_grad_(requires_grad)

    def seconds_of(self, calls: int, call: Call) -> float:
        """Return how long the device takes for so many calls."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


LIBRARY = PyTorchOnCuda
