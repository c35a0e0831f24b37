"""Building a model whose tensors go to a store one by one."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from spillgrad.errors import ArgumentError
from spillgrad.nn.module import Module
from spillgrad.nn.registration import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.tensors import OffloadedStorage, TensorResidents
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import buffers

# The bytes of idle memory that the buffer pool may keep while a model is built.
_IDLE_BYTES = 64 << 20


@contextlib.contextmanager
def _offloading_what_is_registered(residents: TensorResidents) -> Iterator[None]:
    """Context manager: move parameters and buffers to the store as soon as this thread's modules register them."""
    thread = threading.get_ident()

    def offload(module: Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and threading.get_ident() == thread:
            residents.return_changed(with_last=True)  # the tensors registered before have their first values
            residents.offload(tensor, Label("parameter", None, f"{type(module).__name__}.{name}"))
            if buffers.memory_stats().idle_bytes > _IDLE_BYTES:
                buffers.empty_cache()

    with register_module_parameter_registration_hook(offload), register_module_buffer_registration_hook(offload):
        yield


def built_model(given: Any, residents: TensorResidents | None) -> Module:
    """Return the module `given`; with `residents`, call `given` to build it, and move its new tensors to the store.

    Raises ArgumentError if there is no module, or if one of its tensors is offloaded already.
    """
    model = given
    if residents is not None:
        if not callable(given):
            raise ArgumentError(
                f"disk_offload: got {type(given).__name__} as model; wanted a Module, or a function that returns one"
            )
        with _offloading_what_is_registered(residents):
            model = given()
        if not isinstance(model, Module):
            raise ArgumentError(f"disk_offload: the function returned {type(model).__name__}; it must return a Module")
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        storage = tensor.storage
        if isinstance(storage, OffloadedStorage) and storage._residents is not residents:
            raise ArgumentError(f"disk_offload: {name} is offloaded already; offload a model once")
    return model  # type: ignore[no-any-return]


def built_optimizer(given: Any, model: Module) -> Optimizer | None:
    """Return the optimizer `given`, or call `given` with the parameters that require gradients to make it.

    Return None for None. Raises ArgumentError if there is no optimizer, or if it belongs to another offload.
    """
    optimizer = given
    if given is not None and not isinstance(given, Optimizer):
        if not callable(given):
            raise ArgumentError(
                f"disk_offload: got {type(given).__name__} as optimizer; wanted an Optimizer, or a function from "
                "parameters to one, or None; the directory comes after it"
            )
        optimizer = given([parameter for parameter in model.parameters() if parameter.requires_grad])
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"disk_offload: the function returned {type(optimizer).__name__}; it must return an Optimizer"
            )
    if optimizer is not None and "step_context" in vars(optimizer):
        raise ArgumentError(
            "disk_offload: the optimizer is that of another offload already; offload models that share one together, "
            "in a ModuleList"
        )
    return optimizer  # type: ignore[no-any-return]
