"""spillgrad on a CUDA device."""

import ctypes
import tempfile
from typing import Any

import numpy as np

import spillgrad as sg
from spillgrad_kernels.cuda.driver import driver
from spillgrad_kernels.cuda.driver.availability import SIMULATED
from spillgrad_tools.bench.operations import Call, Operation
from spillgrad_tools.bench.ours import Spillgrad

# Saved tensors of the spilled step beyond the device's budget go to pinned memory: the step measures copies, not a
# disk. The simulator's step is so small that its budget must be 0 for any tensor to be copied.
SPILL_OPTIONS: dict[str, Any] = (
    {"device_budget": 0, "spill_budget": "1MiB", "min_bytes": 1}
    if SIMULATED
    else {"device_budget": "512MiB", "spill_budget": "8GiB"}
)
if SIMULATED:

    def _device_copy(target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

else:
    from cuda.bindings import driver as _cuda

    def _device_copy(target: int, source: int, nbytes: int) -> None:
        (status,) = _cuda.cuMemcpyDtoDAsync(target, source, nbytes, driver.compute().handle)
        if status != _cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"bench: a copy on the device: got {status.name}")


class SpillgradOnCuda(Spillgrad):
    """spillgrad on a CUDA device."""

    def about(self) -> dict[str, Any]:
        """Return the name and memory of the device."""
        return {"gpu": sg.cuda.get_device_name(), "gpu_bytes": sg.cuda.mem_get_info()[1]}

    def release_memory(self) -> None:
        """Give the unused memory of the library's pool back to the device."""
        sg.cuda.empty_cache()

    def prepare(self, operand: np.ndarray, requires_grad: bool) -> Any:
        """Return the operand as a tensor on the device."""
        return sg.tensor(operand, device="cuda", requires_grad=requires_grad)

    def seconds_of(self, calls: int, call: Call) -> float:
        """Make a call `calls` times, and return the seconds that the device took for all calls."""
        begin, end = driver.Event(timed=True), driver.Event(timed=True)
        begin.record(driver.compute())
        for _ in range(calls):
            call()
        end.record(driver.compute()).synchronize()
        return begin.elapsed_ms(end) / 1e3

    def into(self, operation: Operation, *operands: Any) -> Call:
        """Return a function that copies the first operand with the driver's own copy, to measure the memory's speed."""
        x = operands[0]
        made: list[Any] = []

        def copy() -> Any:
            if not made:
                made.append(sg.empty_like(x))
            _device_copy(made[0].data_ptr(), x.data_ptr(), x.nbytes)
            return made[0]

        return copy

    def spilled_gpt_step(self, tokens: Any) -> Call:
        """Return a function that makes a training step with few of its saved tensors kept on the device."""
        directory = tempfile.TemporaryDirectory()
        step = self.gpt_step(tokens, directory=directory.name, **SPILL_OPTIONS)
        return lambda: directory and step()  # the folder lives as long as the call


LIBRARY = SpillgradOnCuda
