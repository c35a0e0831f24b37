"""The benchmarked operations in spillgrad on a CUDA device."""

import ctypes
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad.nn import functional
from spillgrad_kernels.cuda import driver
from spillgrad_kernels.cuda.availability import SIMULATED
from spillgrad_tools.bench import ours as bench_ours
from spillgrad_tools.bench.cuda_cases import GPT_CONFIG, SPILL_OPTIONS, gpt_weights
from spillgrad_tools.bench.gpt_ours import Training
from spillgrad_tools.bench.operations import Operation, chains, layers
from spillgrad_tools.bench.step_runner import BETAS, LR, WEIGHT_DECAY

VERSION = bench_ours.VERSION

set_num_threads = sg.set_num_threads
no_grad = sg.no_grad
release_memory = sg.cuda.empty_cache


def about() -> dict[str, Any]:
    """Return what a reader needs to place the numbers."""
    return {"gpu": sg.cuda.get_device_name(), "gpu_bytes": sg.cuda.mem_get_info()[1]}


def prepare(operand: np.ndarray, requires_grad: bool) -> Any:
    """Return the operand on the device."""
    return sg.tensor(operand, device="cuda", requires_grad=requires_grad)


def as_numpy(result: Any) -> np.ndarray:
    """Return a result as an array of the host."""
    if isinstance(result, float):
        return np.asarray(result)
    array: np.ndarray = result.detach().cpu().numpy()
    return array.astype(np.float32) if result.dtype == sg.bfloat16 else array


def seconds_of(calls: int, call: Callable[[], Any]) -> float:
    """Return how long the device takes for so many calls."""
    begin, end = driver.Event(timed=True), driver.Event(timed=True)
    begin.record(driver.compute())
    for _ in range(calls):
        call()
    end.record(driver.compute()).synchronize()
    return begin.elapsed_ms(end) / 1e3


if SIMULATED:

    def _copy(target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

else:
    from cuda.bindings import driver as _cuda

    def _copy(target: int, source: int, nbytes: int) -> None:
        (status,) = _cuda.cuMemcpyDtoDAsync(target, source, nbytes, driver.compute().handle)
        if status != _cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"bench: a copy on the device: got {status.name}")


def _driver_copy(x: Any, _: Any) -> Callable[[], Any]:
    """Return the driver's own copy of an operand, the yardstick of memory's speed."""
    made: list[Any] = []

    def copy() -> Any:
        if not made:
            made.append(sg.empty_like(x))
        _copy(made[0].data_ptr(), x.data_ptr(), x.nbytes)
        return made[0]

    return copy


def _gpt_step(tokens: Any, **options: Any) -> Callable[[], Any]:
    given = tokens.cpu().numpy()
    training = Training(GPT_CONFIG, gpt_weights(GPT_CONFIG), LR, BETAS, WEIGHT_DECAY, device="cuda", **options)
    inputs, targets = (np.ascontiguousarray(part) for part in (given[:, :-1], given[:, 1:]))

    def step() -> float:
        with sg.enable_grad():
            return training.step(inputs, targets)

    return step


def _spilled_step(tokens: Any) -> Callable[[], Any]:
    directory = tempfile.TemporaryDirectory()
    step = _gpt_step(tokens, directory=directory.name, **SPILL_OPTIONS)
    step.directory = directory  # type: ignore[attr-defined]
    return step


OPERATIONS: dict[str, Operation] = {
    **{name: bench_ours.OPERATIONS[name] for name in ("matmul", "exp", "gelu_tanh", "add", "mul", "copy")},
    **layers(functional, sg.grad),
    **chains(sg.fuse, sg.grad),
    "copy out=": _driver_copy,
    "gpt step": _gpt_step,
    "gpt step spilled": _spilled_step,
}
