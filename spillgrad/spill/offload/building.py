"""Building a model whose tensors go to a store one by one."""

import contextlib
import threading
from collections.abc import Iterator

from spillgrad.nn import init
from spillgrad.nn.module import Module
from spillgrad.nn.registration import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from spillgrad.spill.offload.tensors import TensorResidents
from spillgrad.storage.store import Label
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import buffers

# The bytes of idle memory that the buffer pool may keep while a model is built.
_IDLE_BYTES = 64 << 20


@contextlib.contextmanager
def offloading_what_is_registered(residents: TensorResidents) -> Iterator[None]:
    """Context manager: move parameters and buffers to the store as soon as this thread's modules register them."""
    thread = threading.get_ident()

    def offload(module: Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and threading.get_ident() == thread:
            residents.return_changed(with_last=True)  # the tensors registered before have their first values
            label = Label("parameter", None, f"{type(module).__name__}.{name}")
            if init.values_come_later():
                residents.offload_unset(tensor, label)
            else:
                residents.offload(tensor, label)
            if buffers.memory_stats().idle_bytes > _IDLE_BYTES:
                buffers.empty_cache()

    with register_module_parameter_registration_hook(offload), register_module_buffer_registration_hook(offload):
        yield
