"""The benchmarked operations in PyTorch on a CUDA device."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

from spillgrad_tools.bench import torch as bench_torch
from spillgrad_tools.bench.cuda_cases import GPT_CONFIG, gpt_weights
from spillgrad_tools.bench.gpt_torch import Training
from spillgrad_tools.bench.operations import Operation, chains, layers
from spillgrad_tools.bench.step_runner import BETAS, LR, WEIGHT_DECAY

# None where PyTorch finds no device.
VERSION = f"{bench_torch.VERSION}, CUDA {torch.version.cuda}" if torch.cuda.is_available() else None

set_num_threads = torch.set_num_threads
no_grad = torch.no_grad
release_memory = torch.cuda.empty_cache

# float32 is float32: no product of 19 bits.
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand on the device."""
    if operand.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(operand.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(operand)
    return tensor.cuda().requires_grad_(requires_grad)


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array of the host."""
    if isinstance(result, float):
        return np.asarray(result)
    result = result.detach()
    array: np.ndarray = (result.float() if result.dtype == torch.bfloat16 else result).cpu().numpy()
    return array


def seconds_of(calls: int, call: Callable[[], Any]) -> float:
    """Return how long the device takes for so many calls."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def _gpt_step(tokens: Any) -> Callable[[], Any]:
    given = tokens.cpu().numpy()
    training = Training(GPT_CONFIG, gpt_weights(GPT_CONFIG), LR, BETAS, WEIGHT_DECAY, device="cuda")
    inputs, targets = (np.ascontiguousarray(part) for part in (given[:, :-1], given[:, 1:]))

    def step() -> float:
        with torch.enable_grad():
            return training.step(inputs, targets)

    return step


# What only we do is not here.
OPERATIONS: dict[str, Operation] = {
    **{
        name: bench_torch.OPERATIONS[name] for name in ("matmul", "exp", "gelu_tanh", "add", "mul", "copy", "copy out=")
    },
    **layers(functional, torch.autograd.grad),
    **chains(lambda function: function, torch.autograd.grad),
    "gpt step": _gpt_step,
}
