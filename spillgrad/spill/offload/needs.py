"""The memory and the disk space that training needs when its model lives on disk.

Nothing here is of one framework: `Framework` says what differs between them.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from spillgrad.distributed.collective_steps import at_once_bytes
from spillgrad.distributed.wires import EXACT, Wire
from spillgrad.spill.module_paths import around
from spillgrad.storage.sizes import format_bytes
from spillgrad_kernels.cpu.optim import CHUNK


class Need(NamedTuple):
    """A number of bytes that must be in RAM, or on the device, at once; `why` names the tensors and their use."""

    nbytes: int
    why: str


def members(optimizer: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the parameters of an optimizer, each with its group."""
    return ((param, group) for group in optimizer.param_groups for param in group["params"])


class GroupFinder:
    """Finds the group of a parameter in an optimizer, whose groups may change."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}

    def of(self, optimizer: Any, param: Any) -> Any:
        """Return the group that has the parameter; None if there is none."""
        groups = optimizer.param_groups
        number = self._numbers.get(id(param), len(groups))
        if number >= len(groups) or not any(member is param for member in groups[number]["params"]):
            self._numbers = {id(member): number for number, group in enumerate(groups) for member in group["params"]}
            number = self._numbers.get(id(param), len(groups))
        return groups[number] if number < len(groups) else None


def _named_tensors(module: Any, recurse: bool) -> list[tuple[str, Any]]:
    return [*module.named_parameters(recurse=recurse), *module.named_buffers(recurse=recurse)]


class Framework(NamedTuple):
    """What differs between frameworks. Defaults are for spillgrad and PyTorch, which have the same names for things.

    `module` is the base class of modules. `state_bytes_of` takes an optimizer, a parameter and its group, and counts
    state that the first update will make; `updated_state_bytes_of` counts the state that an update needs in RAM at
    once. `updated_gradient_bytes_of` takes an optimizer, a parameter and the bytes of its gradient, and returns how
    many of them an update needs at once; `updated_parameter_bytes_of` takes the bytes of the parameter, likewise.
    `planes_bytes_of` returns the bytes that are in RAM beside a tensor while it is made from two planes.
    `members` yields an optimizer's parameters, each with its group.
    `named_tensors` takes a module, and whether to go through the modules inside; it returns the tensors that an offload
    stores, which are of the `kinds`. `nbytes_of` returns the bytes of a tensor that are stored. `holds_lists` says
    whether the parameters of a module without a forward, such as a list, are used at once; otherwise, one by one.
    `is_in_place` says of a tensor whether it is read from a file that is not of the store.
    `is_compiled` says whether a module uses the parameters of all modules inside it at once.
    `checksum_bytes_of` takes a model, and returns the bytes of the checksums that stay in RAM for tables of which rows
    are read.
    """

    module: type
    state_bytes_of: Callable[[Any, Any, Any], int]
    updated_state_bytes_of: Callable[[Any, Any, Any], int]
    members: Callable[[Any], Iterable[tuple[Any, Any]]] = members
    named_tensors: Callable[[Any, bool], list[tuple[str, Any]]] = _named_tensors
    nbytes_of: Callable[[Any], int] = operator.attrgetter("nbytes")
    updated_gradient_bytes_of: Callable[[Any, Any, int], int] = lambda optimizer, param, nbytes: nbytes
    updated_parameter_bytes_of: Callable[[Any, Any, int], int] = lambda optimizer, param, nbytes: nbytes
    planes_bytes_of: Callable[[Any], int] = lambda tensor: 0
    kinds: str = "parameters and buffers"
    holds_lists: bool = False
    is_compiled: Callable[[Any], bool] = lambda module: False
    is_in_place: Callable[[Any], bool] = lambda tensor: False
    checksum_bytes_of: Callable[[Any], int] = lambda model: 0

    def runs(self, module: Any) -> bool:
        """Return whether a module has a forward; a list of modules has none."""
        return self.is_compiled(module) or type(module).forward is not self.module.forward  # type: ignore[attr-defined]


# Of smaller parameters, each process has the whole: their parts would take less time to send than to prepare.
_LEAST_PART_BYTES = 64 << 10


class Sharing(NamedTuple):
    """How many processes share gradients and optimizer state, and the format in which gradients travel to be summed.

    With `cuts_parameters`, each process also has only a part of every large parameter.
    """

    ranks: int = 1
    wire: Wire = EXACT
    cuts_parameters: bool = False

    @property
    def sums(self) -> bool:
        """Whether gradients are added up apart from where backward leaves them."""
        return self.ranks > 1 or not self.wire.is_exact

    def cuts(self, nbytes: int) -> bool:
        """Return whether each process has only a part of a parameter of so many bytes."""
        return self.cuts_parameters and self.ranks > 1 and nbytes >= self.ranks * _LEAST_PART_BYTES


ALONE = Sharing()


class Needs(NamedTuple):
    """The needs of RAM (`ram`), of the device (`device`), and of one place that has all tensors (`at_once`)."""

    ram: Need
    device: Need
    at_once: Need


def needs_of(
    framework: Framework, model: Any, optimizer: Any, gradients: int = 1, sharing: Sharing = ALONE, clips: bool = False
) -> Needs:
    """Return the least budgets of RAM and device; `largest_need` explains the other arguments.

    If all tensors are on a device, RAM must hold only the largest, because tensors pass through RAM one at a time.
    """
    at_once = largest_need(framework, model, optimizer, gradients, sharing, clips)
    tensors = framework.named_tensors(model, True)
    there = [tensor.is_cuda for _, tensor in tensors]
    if not any(there):
        return Needs(at_once, Need(0, "no tensor is on a device"), at_once)
    if not all(there):
        return Needs(at_once, at_once, at_once)
    name, largest = max(tensors, key=lambda named: named[1].nbytes)
    alone = Need(largest.nbytes, f"{name}, of {format_bytes(largest.nbytes)}, passes through RAM to the device")
    return Needs(alone, at_once, at_once)


def largest_need(
    framework: Framework, model: Any, optimizer: Any, gradients: int = 1, sharing: Sharing = ALONE, clips: bool = False
) -> Need:
    """Return the largest need of one layer's call, forward or backward, and of one parameter's update.

    An update uses the parameter, its state, and as many arrays of the store for its gradient as `gradients` says: none
    if backward hands the gradient to the update, one, or two if the update scales a copy. An update that `clips` scales
    copies of pieces in any case. Of state and gradient, each process has a part, as `sharing` says; a gradient is whole
    when it is added up over all processes.
    A layer may use all of its own tensors, and the tensors of the modules around it. Parameters of a module without a
    forward are used one by one, unless the framework holds lists.
    """
    updates = _of_updates(framework, model, optimizer, gradients, sharing, clips)
    needs = [*_of_layers(framework, model, sharing), *updates]
    if sharing.sums:
        needs += _of_sums(framework, model, sharing)
    largest = max(needs, key=lambda need: need.nbytes, default=Need(0, "the model has no parameters"))
    checksum_bytes = framework.checksum_bytes_of(model)
    if not checksum_bytes:
        return largest
    why = f"{largest.why}, beside {format_bytes(checksum_bytes)} of checksums of the rows of tables"
    return Need(largest.nbytes + checksum_bytes, why)


def part_bytes(nbytes: int, itemsize: int, ranks: int) -> int:
    """Return the bytes of the largest part of a tensor that `ranks` processes share, in whole chunks of elements."""
    chunk_bytes = CHUNK * itemsize
    return min(nbytes, -(-nbytes // (chunk_bytes * ranks)) * chunk_bytes)


def reduced_bytes(whole: int, part: int, sharing: Sharing, tensors: int = 1) -> tuple[int, int, int]:
    """Return what adding up gradients takes: the gradients, a process's part of the sum, and what arrives for it.

    Gradients of several `tensors` may be added up together. In fewer bits, they are there twice; so is what arrives.
    """
    packed_bytes = sharing.wire.packed_bytes
    arrives = min(at_once_bytes(sharing.ranks), (part + packed_bytes(part, tensors)) * sharing.ranks)
    return whole + packed_bytes(whole, tensors), part, arrives


class DiskNeed(NamedTuple):
    """The numbers of bytes that will be stored; `parameters` counts buffers, too, where the framework stores them."""

    parameters: int
    gradients: int
    state: int

    def listed(self, framework: Framework) -> str:
        """Return the numbers as text, except those that are 0."""
        parts = {framework.kinds: self.parameters, "gradients": self.gradients, "optimizer state": self.state}
        return ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in parts.items() if nbytes)


def disk_need(
    framework: Framework, model: Any, optimizer: Any, gradients: bool, sharing: Sharing = ALONE
) -> DiskNeed:  # fmt: skip
    """Return the bytes that a model and its optimizer's state need on disk, with gradients if `gradients` is True.

    Frozen tensors that are read where they lie need none.
    Of gradients and state, each of several processes has a part; of large parameters, as `sharing` says.
    """
    tensors = {id(tensor): tensor for _, tensor in framework.named_tensors(model, True)}.values()
    updated = [] if optimizer is None else framework.members(optimizer)
    cut, ranks = _cut(framework, model, sharing), sharing.ranks
    stored = (
        -(-framework.nbytes_of(tensor) // (ranks if id(tensor) in cut else 1))
        for tensor in tensors
        if tensor.requires_grad or not framework.is_in_place(tensor)
    )
    return DiskNeed(
        sum(stored),
        -(-sum(framework.nbytes_of(tensor) for tensor in tensors if tensor.requires_grad) // ranks) if gradients else 0,
        -(-sum(framework.state_bytes_of(optimizer, *member) for member in updated) // ranks),
    )


def in_place_bytes(framework: Framework, model: Any) -> int:
    """Return the bytes of frozen tensors that are read where they lie, and not stored."""
    tensors = {id(tensor): tensor for _, tensor in framework.named_tensors(model, True)}.values()
    frozen = (tensor for tensor in tensors if not tensor.requires_grad and framework.is_in_place(tensor))
    return sum(map(framework.nbytes_of, frozen))


def _cut(framework: Framework, model: Any, sharing: Sharing) -> set[int]:
    """Return the ids of the parameters of which each process has only a part."""
    return {id(param) for _, param in model.named_parameters() if sharing.cuts(framework.nbytes_of(param))}


def _of_layers(framework: Framework, model: Any, sharing: Sharing) -> Iterator[Need]:
    cut = _cut(framework, model, sharing)
    for path, tensors in _used_at_once(framework, model):
        nbytes = sum(map(framework.nbytes_of, tensors))
        parts = [
            part_bytes(framework.nbytes_of(tensor), tensor.itemsize, sharing.ranks)
            for tensor in tensors
            if id(tensor) in cut
        ]
        text = f"{path or type(model).__name__} needs {format_bytes(nbytes)} of {framework.kinds}"
        beside = f", and this process's part of one, {format_bytes(max(parts))}" if parts else ""
        planes_bytes = max(map(framework.planes_bytes_of, tensors), default=0)
        beside += f", and the planes of one, {format_bytes(planes_bytes)}" if planes_bytes else ""
        yield Need(nbytes + max(parts, default=0) + planes_bytes, text + beside)


def largest_whole_bytes(framework: Framework, model: Any, sharing: Sharing) -> int:
    """Return the most bytes of parameters of which each process has a part that one layer's call uses at once."""
    cut = _cut(framework, model, sharing)
    used = (tensors for _, tensors in _used_at_once(framework, model))
    return max((sum(framework.nbytes_of(each) for each in some if id(each) in cut) for some in used), default=0)


def _used_at_once(framework: Framework, model: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the tensors that one layer's call uses, and the layer's path."""
    # If a module has several paths, only the first path counts, with the modules around that path.
    modules = dict(model.named_modules())
    own = {
        path: [tensor for _, tensor in framework.named_tensors(module, framework.is_compiled(module))]
        for path, module in modules.items()
    }
    for path, module in modules.items():
        # Not every prefix of a path is a module's path: Paddle allows dots in names.
        shared = [own[outer] for outer in around(path) if outer in modules and framework.runs(modules[outer])]
        is_at_once = framework.holds_lists or framework.runs(module)
        for used in [own[path]] if is_at_once else [[tensor] for tensor in own[path]]:
            yield path, list({id(tensor): tensor for some in (*shared, used) for tensor in some}.values())


_GRADIENTS = (", as much for its gradient", ", as much for that clipped")
_PIECES_OF_GRADIENTS = (", {} for a piece of its gradient", ", as much for that clipped")
_PARTS_OF_GRADIENTS = (", {} for this process's part of its gradient", ", as much for that clipped")


def _of_updates(
    framework: Framework, model: Any, optimizer: Any, gradients: int, sharing: Sharing, clips: bool
) -> Iterator[Need]:  # fmt: skip
    cut, ranks = _cut(framework, model, sharing), sharing.ranks
    names = {id(param): name for name, param in model.named_parameters()}
    if optimizer is None:
        return
    for param, group in framework.members(optimizer):
        if param.requires_grad and id(param) in names:
            own_bytes, count = framework.nbytes_of(param), gradients
            if sharing.sums:
                texts = _PARTS_OF_GRADIENTS if ranks > 1 else _GRADIENTS
                wholes = own_bytes, framework.state_bytes_of(optimizer, param, group)
                grad_bytes, state_bytes = (part_bytes(each, param.itemsize, ranks) for each in wholes)
            else:
                grad_bytes = framework.updated_gradient_bytes_of(optimizer, param, own_bytes)
                state_bytes = framework.updated_state_bytes_of(optimizer, param, group)
                texts = _GRADIENTS if grad_bytes == own_bytes else _PIECES_OF_GRADIENTS
                count = max(gradients, 2) if clips and grad_bytes < own_bytes else gradients
                own_bytes = framework.updated_parameter_bytes_of(optimizer, param, own_bytes)
            own_bytes, itself = (grad_bytes, "its part") if id(param) in cut else (own_bytes, "itself")
            itself += " and its planes" if framework.planes_bytes_of(param) else ""
            nbytes = own_bytes + count * grad_bytes + state_bytes
            state = f" and {format_bytes(state_bytes)} of {type(optimizer).__name__}'s state" if state_bytes else ""
            of_gradients = "".join(text.format(format_bytes(grad_bytes)) for text in texts[:count])
            yield Need(
                nbytes,
                f"{names[id(param)]} needs {format_bytes(nbytes)} when it is updated: {format_bytes(own_bytes)} "
                f"{itself}{of_gradients}{state}",
            )


def _of_sums(framework: Framework, model: Any, sharing: Sharing) -> Iterator[Need]:
    """Yield the need of adding up each gradient over all ranks: the gradient, and what arrives for this rank's part."""
    for name, param in model.named_parameters():
        if param.requires_grad:
            own_bytes = framework.nbytes_of(param)
            part = part_bytes(own_bytes, param.itemsize, sharing.ranks)
            of_param = sharing._replace(wire=sharing.wire.of(param.numpy_dtype))
            nbytes = sum(reduced_bytes(own_bytes, part, of_param)) + part  # the sum that was there
            yield Need(
                nbytes,
                f"the gradient of {name} needs {format_bytes(nbytes)} when it is added up: {format_bytes(own_bytes)} "
                "itself, and the parts that arrive",
            )
