"""`DataParallel` and `DistributedDataParallel`, for one process and one device: modules around a module.

The parameters of the wrapped module have the prefix "module." in state dicts, as in PyTorch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spillgrad.distributed.process_group import member
from spillgrad.errors import DeviceError, DistributedError
from spillgrad.nn.module import Module

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
    """Call the wrapped `module`; its gradients are those of the one process, so that there is nothing to reduce.

    All options of PyTorch are accepted. `require_backward_grad_sync` tells, as there, whether gradients would be
    reduced: it is False within `no_sync`.
    Raises DistributedError before `init_process_group`, and for a module without parameters that require gradients.
    Raises DeviceError for other devices than the first.
    """

    module: Module

    def __init__(
        self, module: Module, device_ids: Any = None, output_device: Any = None, dim: int = 0,
        broadcast_buffers: bool = True, init_sync: bool = True, process_group: Any = None,
        bucket_cap_mb: float | None = None, find_unused_parameters: bool = False, check_reduction: bool = False,
        gradient_as_bucket_view: bool = False, static_graph: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        self.process_group = member(process_group)
        _require_first("DistributedDataParallel", device_ids)
        if not any(parameter.requires_grad for parameter in module.parameters()):
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

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do not reduce the gradients of passes within the block; with one process, this changes no gradient."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @contextmanager
    def join(self, divide_by_initial_world_size: bool = True, enable: bool = True, **options: Any) -> Iterator[None]:
        """Allow processes to have different numbers of batches; with one process, this changes nothing."""
        yield

    def register_comm_hook(self, state: Any, hook: Any) -> None:
        """Accept a hook on the reduction of gradients; it is not called, as nothing is reduced."""
