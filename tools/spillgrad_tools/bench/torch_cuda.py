"""PyTorch on a CUDA device."""

from typing import Any

import ml_dtypes
import numpy as np
import torch

from spillgrad_tools.bench.operations import Call
from spillgrad_tools.bench.torch import PyTorch

# Products of float32 use all bits, and not the 19 of TF32.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


class PyTorchOnCuda(PyTorch):
    """PyTorch on a CUDA device; `version` is None if PyTorch finds no device."""

    version = f"{PyTorch.version}, CUDA {torch.version.cuda}" if torch.cuda.is_available() else None

    def release_memory(self) -> None:
        """Give the unused memory of the library's pool back to the device."""
        torch.cuda.empty_cache()

    def prepare(self, operand: np.ndarray, requires_grad: bool) -> Any:
        """Return the operand as a tensor on the device."""
        if operand.dtype == ml_dtypes.bfloat16:
            tensor = torch.from_numpy(operand.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(operand)
        return tensor.cuda().requires_grad_(requires_grad)

    def seconds_of(self, calls: int, call: Call) -> float:
        """Make a call `calls` times, and return the seconds that the device took for all calls."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


LIBRARY = PyTorchOnCuda
