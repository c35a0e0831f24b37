"""PyTorch's package `torch.distributed.fsdp`: each process has a part of parameters, gradients and optimizer state."""

import weakref
from typing import Any, cast

from spillgrad.distributed.process_group import ProcessGroup, member
from spillgrad.distributed.wires import wire_named
from spillgrad.errors import UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.spill.offload.in_ram import RamResidents, RamTraining
from spillgrad.spill.offload.needs import Sharing
from spillgrad_kernels.memory import buffers

__all__ = ["FSDPModule", "fully_shard"]


def fully_shard(
    module: Module, *, mesh: None = None, reshard_after_forward: bool | None = None,
    process_group: ProcessGroup | None = None, wire: str = "float32",
) -> Any:  # fmt: skip
    """Give each process a part of a module's parameters, of their gradients and of the optimizer's state, in RAM.

    When a module or a backward uses a parameter, the processes send each other their parts of it, and the whole is in
    RAM until that use has ended. Backward adds up the gradients of all processes in the order of the ranks, and divides
    the sums by the number of processes: the bits are those of one process, as with `DistributedDataParallel`. An
    optimizer that is made afterwards updates this process's parts.

    Parameters
    ----------
    module : Module
        The model, or a part of it, which is changed in place. PyTorch's programs call this for each layer, and then for
        the model. Here the call for the model is enough, and takes over what others have begun.
    mesh : None
        PyTorch's groups of devices are not supported; see `process_group`.
    reshard_after_forward : bool, optional
        Whether the wholes go when forward has used them, which is the default. With False they stay until backward has
        ended: more memory, and a third less to send.
    process_group : ProcessGroup, optional
        The processes; all, by default.
    wire : {"float32", "bfloat16", "int8"}, default "float32"
        The format in which float32 gradients travel; see `disk_offload`.

    Returns
    -------
    FSDPModule
        The module.

    Raises
    ------
    DistributedError
        Before `init_process_group`; for a module without parameters that require gradients; or if the processes have
        different modules.
    ArgumentError
        For another `wire`, or if two parameters share memory, but are not the same.
    UnsupportedError
        For a `mesh`, and for an offloaded module or one on a CUDA device.

    See Also
    --------
    disk_offload : With ``shard="all"``, the same on disk.
    spillgrad.nn.parallel.DistributedDataParallel : All parameters are in each process.

    Notes
    -----
    Parameters of at least 64 KiB for each process are in parts, which are runs of elements; PyTorch cuts all along the
    first dimension. ``param.grad`` is a `ShardedTensor`: ``shard`` is this process's part, and ``full_tensor()``,
    called by all, the whole. A parameter may be used as before, by all processes together: they use the same ones in
    the same order, also when they evaluate, generate or save. Otherwise all raise DistributedError. An array that
    ``numpy()`` has returned is the parameter's memory until the next update, and a copy from then on; so are views.

    Examples
    --------
    In each process that ``spillgrad launch`` starts::

        sg.distributed.init_process_group("mpi")
        model = sg.distributed.fully_shard(sg.models.build("small"))
        optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
        model(x, y)[1].backward()
        sg.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    """
    if mesh is not None:
        raise UnsupportedError(f"fully_shard: got mesh={mesh!r}; leave it out, or give a process_group")
    group = member(process_group)
    sharing = Sharing(group.size(), wire_named(wire, "fully_shard"), cuts_parameters=True)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_cuda or (tensor.storage.offloaded and tensor.storage.in_parts is None):
            raise UnsupportedError(
                f"fully_shard: {name} is {'on a device' if tensor.is_cuda else 'offloaded'}; shard a model in RAM, or "
                'give disk_offload shard="all"'
            )
    training = None
    if sharing.sums:
        for inner in module.modules():
            if isinstance(inner, FSDPModule) and inner._fully_sharded is not None:
                inner._fully_sharded.release()
        residents = RamResidents(group, sharing)
        training = RamTraining(residents, False, None, group, sharing.wire, residents.store.ram_budget)
        training.take_model(module)
        for inner in module.modules():
            if isinstance(inner, FSDPModule):
                inner._fully_sharded = training
        for parameter in module.parameters():
            parameter._take_optimizer = weakref.WeakMethod(training.take_optimizer)
        buffers.empty_cache()  # the wholes are gone
    if not isinstance(module, FSDPModule):
        kind = type(module)
        # The name stays: a checkpoint holds it.
        module.__class__ = type(kind.__name__, (FSDPModule, kind), {"__module__": kind.__module__, "_of": kind})
    sharded = cast(FSDPModule, module)
    sharded._fully_sharded = training
    if reshard_after_forward is not None:
        sharded.set_reshard_after_forward(reshard_after_forward)
    return sharded


def _new(kind: type[Module]) -> Module:
    return kind.__new__(kind)


class FSDPModule:
    """A module that `fully_shard` has changed."""

    _fully_sharded: RamTraining | None
    _of: type[Module]

    def __reduce_ex__(self, protocol: Any) -> Any:  # copies and pickles are whole modules, as before
        whole = _new(self._of)
        whole.__dict__ = {key: value for key, value in vars(self).items() if key != "_fully_sharded"}
        return _new, (self._of,), *whole.__reduce_ex__(protocol)[2:]

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Choose whether backward adds up the gradients of all processes, or those of this one alone.

        Parameters
        ----------
        requires_gradient_sync : bool
            Whether it adds up those of all, as at first: that of the next forwards, until this is set again. Set it
            before the last forward of a step.
        recurse : bool, default True
            Accepted for PyTorch's programs: all parameters of the module are meant.
        """
        if self._fully_sharded is not None:
            self._fully_sharded.is_in_step = requires_gradient_sync

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide each process's gradients by a number of its own; 1 gives their sum.

        Parameters
        ----------
        factor : float
            The number; that of the processes, by default. See `DistributedDataParallel`.
        """
        if self._fully_sharded is not None:
            self._fully_sharded.reducer.divisor = float(factor)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Choose whether the wholes go when forward has used them; see `fully_shard`.

        Parameters
        ----------
        reshard_after_forward : bool
            Whether they go.
        recurse : bool, default True
            Accepted for PyTorch's programs: all parameters of the module are meant.
        """
        if self._fully_sharded is not None:
            self._fully_sharded.keep_until_backward(not reshard_after_forward)

    def contribute_nothing(self) -> None:
        """Take part in the sums of a backward that other processes run, where this one has no batch."""
        if self._fully_sharded is not None:
            self._fully_sharded.contribute_nothing()

    def unshard(self, async_op: bool = False) -> None:
        """Bring all parameters of the module together, until `reshard`, or until an optimizer updates them.

        Parameters
        ----------
        async_op : bool, default False
            Accepted for PyTorch's programs.
        """
        if self._fully_sharded is not None:
            self._fully_sharded.keep(self, list(cast(Module, self).parameters()))

    def reshard(self) -> None:
        """Let the wholes go that `unshard` has brought together."""
        if self._fully_sharded is not None:
            self._fully_sharded.keep(self, [])
