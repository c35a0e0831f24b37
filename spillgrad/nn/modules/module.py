"""PyTorch's module `torch.nn.modules.module`: the base class of layers, and registration hooks."""

from spillgrad.nn.module import Module
from spillgrad.nn.registration import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

__all__ = [
    "Module", "register_module_buffer_registration_hook", "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]  # fmt: skip
