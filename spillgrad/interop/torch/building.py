"""Building a model of PyTorch whose parameters go to a store one by one."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from spillgrad.errors import ArgumentError
from spillgrad.interop.torch.offloaded_tensor import OffloadedTensor, offload_tensor
from spillgrad.spill.module_paths import around
from spillgrad.spill.offload.residents import Residents
from spillgrad.storage.store import Label


@contextlib.contextmanager
def offloading_what_is_registered(residents: Residents) -> Iterator[None]:
    """Context manager: move parameters to the store as soon as this thread's modules register them.

    A parameter on the meta device has no values yet; one that takes its place is moved.
    """
    thread = threading.get_ident()

    def offload(module: Any, name: str, param: Any) -> None:
        if type(param) is torch.nn.Parameter and not param.is_meta and threading.get_ident() == thread:
            residents.return_changed(with_last=True)  # the parameters registered before have their first values
            offload_tensor(residents, param, Label("parameter", None, f"{type(module).__name__}.{name}"))

    handle = register_module_parameter_registration_hook(offload)
    try:
        yield
    finally:
        handle.remove()


def require_offloadable(model: Any, residents: Residents | None) -> None:
    """Raise ArgumentError if a model has parts that cannot be offloaded, or are offloaded, but not to `residents`."""
    who = "disk_offload"
    if _is_compiled(model):
        raise ArgumentError(
            f"{who}: the model is compiled by torch.compile as a whole, and would need all of its parameters in RAM at "
            "once; compile its parts: model.part = torch.compile(model.part)"
        )
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ArgumentError(
                f"{who}: {path or 'the model'} is a ScriptModule, whose code does not ask Python for its parameters; "
                "give the module that was scripted"
            )
        if getattr(module, "_compiled_call_impl", None) is not None:
            raise ArgumentError(
                f"{who}: {path or 'the model'} was compiled by its compile(), whose code does not ask Python for its "
                "parameters; use model.part = torch.compile(model.part) instead, before you offload the model"
            )
    compiled = [path for path, module in model.named_modules(remove_duplicate=False) if _is_compiled(module)]
    inside = {id(model.get_submodule(path)) for path in compiled if any(map(_is_compiled, _outer(model, path)))}
    for path in compiled:
        if id(model.get_submodule(path)) in inside and not any(map(_is_compiled, _outer(model, path))):
            raise ArgumentError(
                f"{who}: {path} is compiled by torch.compile, and is part of another compiled part, too; compile the "
                "outer part only"
            )
    owners: dict[int, str] = {}
    names = {id(param): name for name, param in model.named_parameters()}
    for name, param in model.named_parameters():
        if torch.nn.parameter.is_lazy(param):
            raise ArgumentError(f"{who}: {name} has no shape yet; call the model once before you offload it")
        if param.device.type != "cpu":
            raise ArgumentError(
                f"{who}: {name} is on {param.device}; wanted a model on the CPU; move it with .to('cpu'), or, from "
                "meta, give a function that builds it"
            )
        if isinstance(param, OffloadedTensor):
            if param._stored._residents is not residents:
                raise ArgumentError(f"{who}: {name} is offloaded already; offload a model once")
            other = names.get(id(param._stored.copy_of()), name)
        else:
            other = owners.setdefault(param.untyped_storage().data_ptr() or id(param), name)
        if other != name:
            raise ArgumentError(f"{who}: {name} and {other} share memory; clone() one, or register one parameter")
    for name, buffer in model.named_buffers():
        is_plain_memory = type(buffer) is torch.Tensor and buffer.layout is torch.strided and buffer.nbytes
        other = owners.get(buffer.untyped_storage().data_ptr(), name) if is_plain_memory else name
        if other != name:
            raise ArgumentError(
                f"{who}: {name} and {other} share memory, and a buffer does not change with an offloaded parameter; "
                "clone() the buffer"
            )


def _is_compiled(module: Any) -> bool:
    return isinstance(module, torch._dynamo.OptimizedModule)


def _outer(model: Any, path: str) -> list[Any]:
    """Return the modules around that at `path`, but for the model."""
    return [model.get_submodule(outer) for outer in around(path) if outer]


def require_own_parameters(who: str, model: Any, optimizer: Any) -> None:
    """Raise ArgumentError if an optimizer has a parameter that is not the model's."""
    own = {id(param) for param in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, param in enumerate(group["params"]):
            if id(param) not in own:
                raise ArgumentError(
                    f"{who}: parameter {place} of the optimizer's group {number}, of shape "
                    f"{tuple(param.shape)}, is not the model's; give an optimizer of the model's parameters"
                )
