"""The memory and the disk space that training needs when its model lives on disk."""

from collections.abc import Iterator
from typing import NamedTuple

from spillgrad.nn.module import Module
from spillgrad.optim.optimizer import Group, Optimizer
from spillgrad.spill.module_paths import around
from spillgrad.storage.sizes import format_bytes
from spillgrad.tensor import Tensor


class Need(NamedTuple):
    """A number of bytes that must be in RAM, or on the device, at once; `why` names the tensors and their use."""

    nbytes: int
    why: str


class Needs(NamedTuple):
    """The needs of RAM (`ram`), of the device (`device`), and of one place that has all tensors (`at_once`)."""

    ram: Need
    device: Need
    at_once: Need


def needs_of(model: Module, optimizer: Optimizer | None, copies_gradients: bool = False) -> Needs:
    """Return the least budgets of RAM and device. With `copies_gradients`, updates scale a copy of the gradient.

    If all tensors are on a device, RAM must hold only the largest, because tensors pass through RAM one at a time.
    """
    at_once = largest_need(model, optimizer, copies_gradients)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    there = [tensor.is_cuda for _, tensor in tensors]
    if not any(there):
        return Needs(at_once, Need(0, "no tensor is on a device"), at_once)
    if not all(there):
        return Needs(at_once, at_once, at_once)
    name, largest = max(tensors, key=lambda named: named[1].nbytes)
    alone = Need(largest.nbytes, f"{name}, of {format_bytes(largest.nbytes)}, passes through RAM to the device")
    return Needs(alone, at_once, at_once)


def largest_need(model: Module, optimizer: Optimizer | None, copies_gradients: bool = False) -> Need:
    """Return the largest need of one layer's call, forward or backward, and of one parameter's update.

    An update uses the parameter, its gradient and its state, and with `copies_gradients` a scaled copy of the gradient.
    A layer may use all of its own tensors, and the tensors of the modules around it. Parameters of a module without a
    forward are used one by one.
    """
    return max(
        (*_of_layers(model), *_of_updates(model, optimizer, copies_gradients)),
        default=Need(0, "the model has no parameters"),
    )


class DiskNeed(NamedTuple):
    """The numbers of bytes that will be stored."""

    parameters: int
    gradients: int
    state: int

    def __str__(self) -> str:
        parts = {"parameters and buffers": self.parameters, "gradients": self.gradients, "optimizer state": self.state}
        return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)


def disk_need(model: Module, optimizer: Optimizer | None, gradients: bool) -> DiskNeed:
    """Return the bytes that a model and its optimizer's state need on disk, with gradients if `gradients` is True."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}.values()
    state = 0 if optimizer is None else sum(state_bytes_of(optimizer, *member) for member in members(optimizer))
    return DiskNeed(
        sum(tensor.nbytes for tensor in tensors),
        sum(tensor.nbytes for tensor in tensors if tensor.requires_grad) if gradients else 0,
        state,
    )


def _of_layers(model: Module) -> Iterator[Need]:
    # If a module has several paths, only the first path counts, with the modules around that path.
    for path, module in model.named_modules():
        own = _own(module)
        outside = map(model.get_submodule, around(path))
        shared = {id(tensor): tensor for outer in outside if _runs(outer) for tensor in _own(outer)}
        used_at_once = [own] if _runs(module) else [[tensor] for tensor in own]
        for used in used_at_once:
            nbytes = sum(tensor.nbytes for tensor in {**shared, **{id(tensor): tensor for tensor in used}}.values())
            yield Need(nbytes, f"{path or type(model).__name__} needs {format_bytes(nbytes)} of parameters and buffers")


def _runs(module: Module) -> bool:
    return type(module).forward is not Module.forward


def _own(module: Module) -> list[Tensor]:
    return [tensor for _, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))]


def _of_updates(model: Module, optimizer: Optimizer | None, copies_gradients: bool) -> Iterator[Need]:
    names = {id(param): name for name, param in model.named_parameters()}
    if optimizer is None:
        return
    for param, group in members(optimizer):
        if param.requires_grad and id(param) in names:
            state_bytes = state_bytes_of(optimizer, param, group)
            nbytes = (3 if copies_gradients else 2) * param.nbytes + state_bytes
            state = f" and {format_bytes(state_bytes)} of {type(optimizer).__name__}'s state" if state_bytes else ""
            yield Need(
                nbytes,
                f"{names[id(param)]} needs {format_bytes(nbytes)} when it is updated: {format_bytes(param.nbytes)} "
                f"itself, as much for its gradient{', as much for that clipped' if copies_gradients else ''}{state}",
            )


def members(optimizer: Optimizer) -> Iterator[tuple[Tensor, Group]]:
    """Yield the parameters of an optimizer, each with its group."""
    return ((param, group) for group in optimizer.param_groups for param in group["params"])


def state_bytes_of(optimizer: Optimizer, param: Tensor, group: Group) -> int:
    """Return the bytes of a parameter's state, including state that its first update will make."""
    there = [value.nbytes for value in optimizer.state.get(param, {}).values() if isinstance(value, Tensor)]
    expected = param.nbytes * optimizer.state_tensors(group) if param.requires_grad else 0
    return max(sum(there), expected)
