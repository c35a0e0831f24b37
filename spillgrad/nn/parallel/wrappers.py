"""`DataParallel`, for one device, and `DistributedDataParallel`, for several processes: modules around a module.

The parameters of the wrapped module have the prefix "module." in state dicts, as in PyTorch.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from spillgrad.autograd.core.grad_mode import is_grad_enabled
from spillgrad.device.device import CPU, moved
from spillgrad.distributed import collective_steps
from spillgrad.distributed.collectives import put
from spillgrad.distributed.process_group import ProcessGroup, member, run
from spillgrad.distributed.wires import wire_named
from spillgrad.errors import DeviceError, DistributedError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.parallel.gradient_buckets import BUCKET_BYTES, default_bucket_bytes
from spillgrad.nn.parallel.gradient_reducer import GradientReducer
from spillgrad.nn.parallel.same_modules import require_same_modules
from spillgrad.tensor import Tensor

__all__ = ["DataParallel", "DistributedDataParallel"]


def _require_first(name: str, device_ids: Any) -> None:
    if device_ids is not None and any(str(device) not in ("0", "cpu", "cuda", "cuda:0") for device in device_ids):
        raise DeviceError(f"{name}: got device_ids={list(device_ids)}; of several GPUs the first is used: give [0]")


class DataParallel(Module):
    """Call the wrapped `module` on the device of its parameters; PyTorch splits a batch among several GPUs.

    Raises DeviceError for other devices than the first.
    """

    module: Module

    def __init__(self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        _require_first("DataParallel", device_ids)
        self.module = module
        self.dim = dim
        self.device_ids = [] if device_ids is None else list(device_ids)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


class DistributedDataParallel(Module):
    """Call the wrapped `module`; backward averages the gradients over all processes of the group.

    The processes begin with the parameters and buffers of the first. `bucket_cap_mb` says how many MiB of gradients
    travel together; by default, 1 to 25, more in a large model, and still more for hundreds of processes.
    Parameters that take no part in a batch contribute nothing, whatever `find_unused_parameters` says. PyTorch's other
    options are accepted. Sums are made in the order of the ranks, so that they are the bits of one process that runs
    all batches one after the other; see `set_gradient_divide_factor`.

    The gradients of a bucket share its memory: keep a copy of one, such as ``grad.clone()``, where the rest is to be
    freed.

    `wire` is the format in which float32 gradients travel. With "bfloat16", half as many bytes do: each backward's
    gradient is rounded to bfloat16, the sums are made in float32, and each sum is rounded once more for the way back.
    With "int8", three eighths do: each gradient is rounded to 255 levels that 128 neighbours share, and the sums to
    bfloat16. A process alone rounds likewise, so the bits are still those of any number of processes.

    Raises DistributedError before `init_process_group`, for a module without parameters that require gradients, and if
    the processes have different modules. Raises DeviceError for other devices than the first, and ArgumentError for
    another `wire`.
    """

    module: Module

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
        broadcast_buffers: bool = True, init_sync: bool = True, process_group: Any = None,
        bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
        gradient_as_bucket_view: bool = False, static_graph: bool = False, wire: str = "float32", **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        format_ = wire_named(wire, "DistributedDataParallel")
        self.process_group: ProcessGroup = member(process_group)
        _require_first("DistributedDataParallel", device_ids)
        trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not trained:
            raise DistributedError(
                "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a "
                "gradient."
            )
        self.module = module
        self.dim = dim
        self.device_ids = None if device_ids is None else list(device_ids)
        self.broadcast_buffers = broadcast_buffers
        self.find_unused_parameters = find_unused_parameters
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.static_graph = static_graph
        self.require_backward_grad_sync = True
        self._reducer: GradientReducer | None = None
        if self.process_group.size() > 1 or not format_.is_exact:
            tensors = [*module.named_parameters(), *module.named_buffers()]
            if any(tensor.storage.offloaded for _, tensor in tensors):
                raise UnsupportedError("DistributedDataParallel: got an offloaded module; wrap one in RAM")
            require_same_modules("DistributedDataParallel", self.process_group, trained, tensors)
            if init_sync:
                _broadcast(self.process_group, [tensor for _, tensor in tensors])
            total_bytes = sum(parameter.nbytes for _, parameter in trained)
            most_bytes = default_bucket_bytes(total_bytes, self.process_group.size())
            if bucket_cap_mb is not None:
                most_bytes = int(bucket_cap_mb * (1 << 20))
            self._reducer = GradientReducer(self.process_group, trained, most_bytes, format_)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._reducer is not None:
            self._share_buffers()
            if is_grad_enabled() and self.require_backward_grad_sync:
                self._reducer.arm()
            elif is_grad_enabled():
                self._reducer.disarm()
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients in this process alone within the block; a later backward outside averages the sums."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def contribute_nothing(self) -> None:
        """Take part in the sums of a backward that other processes run, where this one has no batch."""
        if self._reducer is not None:
            self._share_buffers()
            self._reducer.contribute_nothing()

    def _share_buffers(self) -> None:
        """Give all processes the first one's buffers, as PyTorch does before each forward, also in evaluation."""
        if self.broadcast_buffers and self.require_backward_grad_sync:
            _broadcast(self.process_group, list(self.module.buffers()))

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide each process's gradients by `factor` instead of by the number of processes; 1 gives their sum.

        Where each loss is already divided by the number of batches of a step, the sum is what one process computes, to
        the bit, for any number of processes.
        """
        if self._reducer is not None:
            self._reducer.divisor = float(factor)

    @contextmanager
    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True, **options: Any) -> Iterator[None]:
        """Allow processes to have different numbers of batches: only one process is supported.

        Raises UnsupportedError for several.
        """
        if enable and self.process_group.size() > 1:
            raise UnsupportedError("join: give all processes the same number of batches, as DistributedSampler does")
        yield

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Accept a hook on the reduction of gradients, which is not called in one process.

        Raises UnsupportedError for several.
        """
        if self.process_group.size() > 1:
            raise UnsupportedError(
                "register_comm_hook: the reduction of gradients calls no hooks; to send fewer bytes, create the "
                'DistributedDataParallel with wire="bfloat16"'
            )


def _broadcast(group: ProcessGroup, tensors: Sequence[Tensor]) -> None:
    """Copy tensors of the first process to the others, many small ones together."""
    together: list[Tensor] = []
    for tensor in tensors:
        together.append(tensor)
        if sum(other.nbytes for other in together) >= BUCKET_BYTES:
            _broadcast_together(group, together)
            together = []
    _broadcast_together(group, together)


def _broadcast_together(group: ProcessGroup, tensors: Sequence[Tensor]) -> None:
    arrays = [np.ascontiguousarray(moved(tensor.detach().array, CPU)).reshape(-1) for tensor in tensors]
    flat = np.concatenate([array.view(np.uint8) for array in arrays]) if arrays else np.empty(0, np.uint8)
    if not flat.size:
        return
    steps = collective_steps.broadcast(group.rank(), group.size(), 0, flat)
    run(group, f"broadcast of {flat.size} bytes of a module", steps)
    if group.rank() != 0:
        start = 0
        for tensor, array in zip(tensors, arrays, strict=True):
            put(tensor, flat[start : start + array.nbytes].view(array.dtype))
            start += array.nbytes
