"""Train a model whose parameters, gradients and optimizer state do not fit in RAM: they live in a spill store."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spillgrad.distributed.process_group import ProcessGroup, is_initialized, member
from spillgrad.distributed.wires import wire_named
from spillgrad.errors import ArgumentError, UnsupportedError
from spillgrad.nn.module import Module
from spillgrad.nn.parameter import Parameter
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.offload.building import offloading_what_is_registered
from spillgrad.spill.offload.gathered import GatheringResidents
from spillgrad.spill.offload.master import (
    NONE,
    SPLIT,
    WHOLE,
    require_master,
    require_optimizer,
    require_parameters,
    round_at_random,
    to_bfloat16,
)
from spillgrad.spill.offload.needs import Needs, Sharing, largest_whole_bytes
from spillgrad.spill.offload.owner import OffloadOwner, require_enough
from spillgrad.spill.offload.pieces import PiecingResidents
from spillgrad.spill.offload.planes import SPLIT_FRAMEWORK, SplittingResidents
from spillgrad.spill.offload.sharded_training import ShardedTraining
from spillgrad.spill.offload.tensors import OffloadedStorage, TensorResidents
from spillgrad.spill.offload.training import FRAMEWORK, OffloadedTraining
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.sizes import parse_bytes
from spillgrad.storage.store import StoreStats

# The number of layers that the default `device_budget` holds: while one is used, the next is copied.
_LAYERS_ON_DEVICE = 2


@dataclass(frozen=True)
class OffloadStats(StoreStats):
    """The counters of a store, and the number of its bytes on a CUDA device: now, and the most so far."""

    device_bytes: int = 0
    peak_device_bytes: int = 0


class disk_offload(OffloadOwner):
    """Keep a model's parameters and buffers, their gradients and the optimizer's state on disk.

    A tensor is read when something uses it; once a step has shown the order of use, tensors are read ahead of time.
    After a change a tensor is written back. The model, the optimizer and the training loop stay as they are, and all
    values are bit for bit those of training in RAM.

    Parameters
    ----------
    model : Module or callable
        The model, whose parameters and buffers go to disk. If it is too large for RAM, a function without arguments
        that builds it: parameters and buffers then go to disk one by one, as modules register them in this thread.
    optimizer : Optimizer or callable, optional
        The optimizer of the model's parameters, or a function that makes it from the list of parameters that require
        gradients. Without one, the parameters and their gradients are offloaded.
    directory : str or path, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files.
    ram_budget : int or str
        The most bytes of parameters, buffers, gradients and state in RAM, or a size such as "512MiB". The least budget
        holds what one layer or one update needs at once.
    device_budget : int or str, optional
        The most bytes that stay on a CUDA device while they are not used: those that are needed soonest. Bytes, or a
        size. By default, twice what one layer or one update needs at once.
    step_in_backward : bool, default False
        Whether the optimizer updates each parameter as soon as backward has its gradient, and frees the gradient.
        ``optimizer.step()`` then has nothing to do, and each backward pass is a step of its own. Otherwise, gradients
        go to disk too.
    max_grad_norm : float, optional
        Clips gradients as `clip_grad_norm_` does, over all parameters that the optimizer updates. Not negative. By
        default, gradients are not clipped.
    direct_io : bool, optional
        Whether to bypass the page cache; see `save_on_disk`.
    checksums : bool, default True
        Whether to take and compare checksums of what is written and read; see `save_on_disk`.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk is full or reports an error: raise SpillError, or warn once and keep arrays in RAM
        beyond the budget until the disk accepts them again.
    keep_journal : str or path, optional
        File for the journal, which `spillgrad inspect` reads; see `save_on_disk`.
    shard : {"state", "all"} or None, default "state"
        What the processes of a group share, if `spillgrad.distributed` has one: with "state", they train together. Each
        has all parameters on its disk, and a part of every gradient and of the optimizer's state. With "all", each has
        only a part of every large parameter, too, and gets the other parts when it uses the parameter. With None, this
        process trains alone.
    process_group : ProcessGroup, optional
        The processes; all, by default.
    wire : {"float32", "bfloat16", "int8"}, default "float32"
        The format in which float32 gradients travel to be added up. Each backward's gradient is rounded to bfloat16, or
        to 255 levels that 128 neighbours share; the sums are made in float32. A process alone rounds likewise, so the
        bits are those of any number of processes.
    state : {"float32", "bf16", "int8"}, optional
        The format of the optimizer's state, which is converted if it exists: as `state` of `AdamW`, `Adam`, `Lion` and
        `SGD`. Small and sensitive parameters keep exact state; ``optimizer.state_formats()`` shows which. By default,
        the optimizer's own format.
    master : {"whole", "split", "none"}, default "whole"
        How float32 parameters are stored. With "split", in two halves: bfloat16 numbers, which are all that forward and
        backward read under `autocast`, and the bits that are missing for the exact float32 number. Results are the
        same, bit for bit. With "none", parameters become bfloat16, and their updates are rounded at random.

    Attributes
    ----------
    model : Module
        The offloaded model.
    optimizer : Optimizer or None
        The offloaded optimizer.
    directory : Path
        The folder of this object's files.
    least_budget : int
        The least `ram_budget` in bytes.
    least_device_budget : int
        The least `device_budget` in bytes.

    Raises
    ------
    BudgetError
        If a size does not parse, or is below its least budget.
    ArgumentError
        If a parameter shares memory with another tensor, or is offloaded already; if `max_grad_norm` is negative; if
        `step_in_backward`, `max_grad_norm` or `state` is given without an optimizer; if `state` is no format of the
        optimizer's; or if `master` is for parameters of another dtype than those of the model.
    DistributedError
        If the processes of the group have different models.
    UnsupportedError
        If processes are to share the state of an optimizer whose updates need whole parameters, such as `Muon`; or if
        they are to share a model on a CUDA device. If `master` is "split" or "none" for a model on a CUDA device, in
        several processes, or with a `wire` of fewer bits; or "none" for an optimizer that cannot round at random.
    SpillError
        If the directory cannot be used, or if the disk lacks room for all that will be stored and `on_full` is not
        "ram".

    Warns
    -----
    UserWarning
        If the directory for temporary files, which is used by default, is a RAM disk: offloading frees no memory then.
        If other users can remove or replace files in `directory`.

    See Also
    --------
    save_on_disk : Spills what operations save for backward; it takes an offload in place of a directory.
    spillgrad.planning.plan : Says whether a model needs to be offloaded within a given memory.
    save_checkpoint : Writes an offloaded model and its optimizer, tensor by tensor.

    Notes
    -----
    **Files.** ``preflight()`` returns the free space and the measured speed of the disk, as `sg.storage.preflight`
    does.

    **Saved tensors.** ``with sg.save_on_disk(offload)`` puts what operations save for backward into the same store,
    under the same budget.

    **Clipping.** ``optimizer.step()`` clips just before each update: it scales a copy, and the gradients on disk stay
    unchanged. With `step_in_backward`, gradients go to disk first, and the updates follow when backward ends. Each
    gradient is read once, because its norm is taken when backward finishes it.

    **Updates in pieces.** Gradients and state of parameters of at least 16 MiB are stored, and used by an update, in
    pieces of 8 MiB, to the same bits. This holds for optimizers that update each element by a formula: all but
    `Muon`, `Adafactor`, `APOLLOAdamW` and `LBFGS`. Whoever reads such a gradient or state gets the whole.

    **Weights in files.** What `from_safetensors` loads is not copied: until it is changed, it is read in the
    safetensors files, which stay as they are. Weights that stay frozen need no disk. If such a file is overwritten
    meanwhile, the next read raises SpillCorruptionError. Files of float16 or bfloat16 do for float32 weights.

    **Rows of tables.** A lookup in an embedding of more than 2 MiB reads the rows that the indices name, unless another
    module has the table as a parameter, or all parameters, gradients and state fit `ram_budget`. `least_budget` counts
    the table, which state dicts, checkpoints and other operations read whole, and the checksums of its pages, which
    stay in RAM. What the lookup returns is memory of the caller.

    **Parameters in halves.** With ``master="split"``, float32 parameters of at least 4096 elements are split; others
    stay whole, as do parameters of other dtypes, and frozen ones that are read in files. ``numpy()``, state dicts,
    checkpoints, and operations that are no products under `autocast` read both halves. An update of a parameter in
    pieces makes float32 numbers of one piece at a time.

    **Parameters without their last bits.** With ``master="none"``, gradients and new state are bfloat16 too, unless the
    optimizer says otherwise: half of everything. The optimizer computes updates in float32 and rounds parameters and
    state up or down at random, so that small updates are not lost; see `round_stochastically` of the optimizers, which
    this calls with the seed of the default generator. Checkpoints keep the seed. Training in RAM gives the same bits:
    ``model.bfloat16()``, and an optimizer that rounds likewise. Use it with `autocast`: otherwise, all is computed in
    bfloat16, losses too.

    **Arrays and copies.** The array that ``numpy()`` returns for an offloaded tensor may be written to. If it was, its
    values are stored again once no reference to the array is left. Copies and pickles of the model and of the optimizer
    are in RAM, and independent of this object. This object itself cannot be copied or pickled.

    **CUDA devices.** A model on a CUDA device, its gradients and the optimizer's state live on disk too. They are on
    the device while they are used. They are copied through pinned memory, which counts in `ram_budget`, while kernels
    run.

    **Several processes.** Each runs batches of its own. Backward adds the gradients of all processes up in the order of
    the ranks, and divides them by the number of processes, as `DistributedDataParallel` does; the methods
    `no_sync`, `contribute_nothing` and `set_gradient_divide_factor` are the same, too. Each process updates its part of
    every parameter, and gets the other parts from the others. All call `save_checkpoint`; the first one writes it, and
    any number of processes can load it. With `step_in_backward`, updates follow when backward ends. Gradients and state
    are `ShardedTensor` objects: ``shard`` is this process's part, and ``full_tensor()``, called by all, the whole. The
    optimizer, and a model that has gradients, cannot be copied or pickled then. The same holds for one process with a
    `wire` of fewer bits.

    **Parameters in parts.** With ``shard="all"``, parameters of at least 64 KiB for each process are in parts. They
    travel in each forward and backward, so this is for small disks and fast networks. All processes use the
    same parameters in the same order, also when they evaluate, generate or read weights; otherwise all raise
    DistributedError. A process without a batch calls `contribute_nothing`, which repeats the uses of its last one. A
    function that builds the model runs with the first process's random state. An array that ``numpy()`` has returned is
    the parameter's memory until the next update, and a copy from then on; so are views.

    Examples
    --------
    >>> import spillgrad as sg
    >>> model = sg.nn.Sequential(sg.nn.Linear(256, 1024), sg.nn.GELU(), sg.nn.Linear(1024, 256))
    >>> optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    >>> offload = sg.disk_offload(model, optimizer, ram_budget="8MiB")
    >>> for _ in range(2):
    ...     with sg.save_on_disk(offload):
    ...         loss = model(sg.ones(64, 256)).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> stats = offload.stats()
    >>> stats.peak_ram_bytes <= 8 << 20
    True

    The smallest budget for this model is the memory of one update of its largest parameter, with its gradient and
    state:

    >>> sg.storage.format_bytes(offload.least_budget)
    '4 MiB'

    A model that is too large for RAM is built on disk::

        offload = sg.disk_offload(
            lambda: sg.models.build("gpt2-xl"), lambda params: sg.optim.AdamW(params), "spill/", ram_budget="2GiB"
        )
        model, optimizer = offload.model, offload.optimizer
    """

    _framework = FRAMEWORK
    _optimizer_class = Optimizer
    _copied_instead = "the model and the optimizer, which are in RAM then, or use save_checkpoint()"
    _residents: TensorResidents
    _training: OffloadedTraining

    def __init__(
        self,
        model: Module | Callable[[], Module],
        optimizer: Optimizer | Callable[[list[Parameter]], Optimizer] | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        ram_budget: int | str,
        device_budget: int | str | None = None,
        step_in_backward: bool = False,
        max_grad_norm: float | None = None,
        direct_io: bool | None = None,
        checksums: bool = True,
        on_full: str = "raise",
        keep_journal: str | os.PathLike[str] | None = None,
        shard: str | None = "state",
        process_group: ProcessGroup | None = None,
        wire: str = "float32",
        state: str | None = None,
        master: str = "whole",
    ) -> None:
        if shard not in ("state", "all", None):
            raise ArgumentError(f"disk_offload: got shard={shard!r}; wanted 'state', 'all' or None")
        require_master(master)
        if master == NONE and isinstance(optimizer, Optimizer):
            require_optimizer(optimizer)  # before parameters lose digits
        self._master = master
        if master == SPLIT:
            self._framework = SPLIT_FRAMEWORK
        self._device_budget = device_budget
        together = shard is not None and (process_group is not None or is_initialized())
        group = member(process_group) if together else ProcessGroup("alone")
        self._sharing = Sharing(group.size(), wire_named(wire, "disk_offload"), shard == "all")
        self._group = group if self._sharing.sums else None
        if master != WHOLE and self._group is not None:
            how = f"{group.size()} processes" if group.size() > 1 else f"wire={wire!r}"
            raise UnsupportedError(
                f"disk_offload: got master={master!r} with {how}; parameters are whole where processes train together: "
                'leave it out, or train in each process alone, with shard=None and wire="float32"'
            )
        super().__init__(
            model,
            optimizer,
            directory,
            ram_budget=ram_budget,
            step_in_backward=step_in_backward,
            max_grad_norm=max_grad_norm,
            on_full=on_full,
            direct_io=direct_io,
            checksums=checksums,
            keep_journal=keep_journal,
            state=state,
        )

    def _built_model(self, given: Any, residents: Any) -> Module:
        model: Module = super()._built_model(given, residents)
        require_parameters(model, self._master)
        if self._master == NONE:
            to_bfloat16(model)
        return model

    def _built_optimizer(self, given: Any) -> Any:
        optimizer: Any = super()._built_optimizer(given)
        if self._master == NONE and optimizer is not None:
            round_at_random(optimizer)
        return optimizer

    def _set_state_format(self, optimizer: Any, state_format: str) -> None:
        optimizer.set_state_format(state_format)

    def _residents_of(self, store: DiskStore) -> TensorResidents:
        if self._group is None:
            return SplittingResidents(store) if self._master == SPLIT else PiecingResidents(store)
        cuts = self._sharing.cuts_parameters
        return GatheringResidents(store, self._group, self._sharing) if cuts else TensorResidents(store)

    @contextlib.contextmanager
    def _offloading_what_is_registered(self, residents: TensorResidents) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if isinstance(residents, GatheringResidents):
                stack.enter_context(residents.building())
            stack.enter_context(offloading_what_is_registered(residents))
            yield

    def _require_free(self, model: Module, residents: TensorResidents | None) -> None:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            storage = tensor.storage
            if isinstance(storage, OffloadedStorage) and storage._residents is not residents:
                raise ArgumentError(f"disk_offload: {name} is offloaded already; offload a model once")

    def _require_free_optimizer(self, optimizer: Optimizer) -> None:
        if "step_context" in vars(optimizer):
            raise ArgumentError(
                "disk_offload: the optimizer is that of another offload already; offload models that share one "
                "together, in a ModuleList"
            )

    def _require_budgets(self, ram_budget_bytes: int) -> Needs:
        needs = super()._require_budgets(ram_budget_bytes)
        if self._group is not None and needs.device.nbytes:
            raise UnsupportedError(
                f"disk_offload: got a model on a CUDA device with {self._sharing.ranks} processes and "
                f'wire="{self._sharing.wire.name}"; use DistributedDataParallel, or give shard=None and wire="float32"'
            )
        self.least_device_budget = needs.device.nbytes
        if self._device_budget is None:
            self._device_budget_bytes = _LAYERS_ON_DEVICE * needs.at_once.nbytes
        else:
            self._device_budget_bytes = parse_bytes(self._device_budget)
            require_enough("device_budget", self._device_budget_bytes, needs.device)
        return needs

    def _begin_training(self) -> OffloadedTraining:
        self._residents.allow_on_device(self._device_budget_bytes)
        common = (self._residents, self._step_in_backward, self._max_grad_norm)
        if self._group is None:
            training = OffloadedTraining(*common)
        else:
            spare_bytes = self._residents.store.ram_budget - self.least_budget
            if isinstance(self._residents, GatheringResidents):
                # The same in all processes, as what modules keep decides what is brought together.
                self._residents.gathering.budget_bytes = largest_whole_bytes(FRAMEWORK, self.model, self._sharing)
            training = ShardedTraining(*common, self._group, self._sharing.wire, spare_bytes)
        training.take_model(self.model)
        if self.optimizer is not None:
            training.take_optimizer(self.optimizer)
        return training

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients in this process alone within the block; a later backward outside adds up those of all.

        Yields
        ------
        None
            While backward adds up in this process alone.
        """
        training = self._training
        if not isinstance(training, ShardedTraining):
            yield
            return
        before, training.is_in_step = training.is_in_step, False
        try:
            yield
        finally:
            training.is_in_step = before

    def contribute_nothing(self) -> None:
        """Take part in the sums of a backward that other processes run, where this one has no batch."""
        if isinstance(self._training, ShardedTraining):
            self._training.contribute_nothing()

    def set_gradient_divide_factor(self, factor: float) -> None:
        """Divide each process's gradients by a number of its own; 1 gives their sum.

        Parameters
        ----------
        factor : float
            The number; that of the processes, by default. See `DistributedDataParallel`.
        """
        if isinstance(self._training, ShardedTraining):
            self._training.reducer.divisor = float(factor)

    def stats(self) -> OffloadStats:
        """Return the store's counters, and the bytes of parameters, gradients and state on a device.

        Returns
        -------
        OffloadStats
            A `StoreStats` with two further attributes: `device_bytes`, the bytes on a CUDA device now, and
            `peak_device_bytes`, the most so far.
        """
        return OffloadStats(**dataclasses.asdict(super().stats()), **self._residents.device_stats())
