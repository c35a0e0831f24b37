"""Train a PyTorch model whose parameters, gradients and optimizer state do not fit in RAM: they live on disk."""

import contextlib
import functools
from typing import Any

import torch

from spillgrad.interop.encoded_state import EXACT_STATE
from spillgrad.interop.torch.building import (
    offloading_what_is_registered,
    require_offloadable,
    require_own_parameters,
)
from spillgrad.interop.torch.optimizer import encoding_of, offloaded_class, require_optimizer
from spillgrad.interop.torch.state_sizes import state_bytes_of, updated_state_bytes_of
from spillgrad.interop.torch.training import FRAMEWORK, OffloadedTraining, TorchResidents
from spillgrad.spill.offload.owner import OffloadOwner
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store_owner import MIN_BYTES

# Their weights' updates are sparse, so that one block may have state of very different sizes.
_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class disk_offload(OffloadOwner):
    """Keep a PyTorch model's parameters, their gradients and the optimizer's state on disk.

    A parameter is read when a function uses it; once a step has shown the order of use, parameters are read ahead of
    time. After a change a parameter is written back. The model, the optimizer and the training loop stay as they are,
    and all values are bit for bit those of training in RAM, unless `state` asks for fewer bits.

    Parameters
    ----------
    model : torch.nn.Module or callable
        The model, on the CPU. If it is too large for RAM, a function without arguments that builds it: parameters then
        go to disk one by one, as modules register them in this thread.
    optimizer : torch.optim.Optimizer or callable, optional
        The optimizer of the model's parameters, or a function that makes it from the list of parameters that require
        gradients. Without one, the parameters and their gradients are offloaded.
    directory : str or path, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files.
    ram_budget : int or str
        The most bytes of parameters, gradients and state in RAM, or a size such as "3GiB". The least budget holds what
        one layer or one update needs at once. What functions of PyTorch allocate comes on top.
    step_in_backward : bool, default False
        Whether the optimizer updates each parameter as soon as backward has its gradient, and frees the gradient.
        ``optimizer.step()`` then has nothing to do, and each backward pass is a step of its own. Otherwise, gradients
        go to disk too.
    max_grad_norm : float, optional
        Clips gradients as ``clip_grad_norm_(model.parameters(), max_grad_norm)`` does. Not negative. By default,
        gradients are not clipped.
    direct_io : bool, optional
        Whether to bypass the page cache, if the file system can. With None, a short measurement decides.
    checksums : bool, default True
        Whether to take a checksum of each array that is written, and to compare it when the array is read.
    on_full : {"raise", "ram"}, default "raise"
        What happens when the disk is full or reports an error: raise SpillError, or warn once and keep arrays in RAM
        beyond the budget until the disk accepts them again.
    keep_journal : str or path, optional
        File for the journal, which `spillgrad inspect` reads.
    state : {"float32", "bf16", "int8"}, optional
        The format in which the state of `Adam`, `AdamW` or `SGD` is stored; see Notes. By default, float32.

    Attributes
    ----------
    model : torch.nn.Module
        The offloaded model.
    optimizer : torch.optim.Optimizer or None
        The offloaded optimizer.
    directory : Path
        The folder of this object's files.
    least_budget : int
        The least `ram_budget` in bytes.

    Raises
    ------
    BudgetError
        If a size does not parse, or is below its least budget.
    ArgumentError
        If a parameter is not on the CPU, shares memory with another one, or is offloaded already; if the model is
        compiled as a whole, or has parts that are scripted, or that ``compile()`` compiled; if the optimizer has
        parameters that are not the model's, or updates all parameters together, as LBFGS does; if `max_grad_norm` is
        negative; if `step_in_backward`, `max_grad_norm` or `state` is given without an optimizer; or if the optimizer
        has no state in this format. At the call of the model, if a parameter was replaced, or has another shape, or if
        a part was compiled since.
    GraphError
        In backward, if `step_in_backward` is given and the backward runs another one inside, as
        ``checkpoint(use_reentrant=True)`` does, so that it is not known which gradients are complete.
    SpillError
        If the directory cannot be used, or if the disk lacks room for all that will be stored and `on_full` is not
        "ram".

    See Also
    --------
    save_on_disk : Spills what functions save for backward; it takes an offload in place of a directory.
    spillgrad.disk_offload : The same for spillgrad's own models.

    Notes
    -----
    **Saved tensors.** ``with save_on_disk(offload)`` puts what functions save for backward into the same store, under
    the same budget.

    **What stays in RAM.** Parameters and gradients of less than 64 KiB, buffers, and gradients that are sparse, part of
    a graph, or given by a caller as views of other memory.

    **Clipping.** ``optimizer.step()`` clips just before each update: it scales a copy, and the gradients on disk stay
    unchanged. With `step_in_backward`, gradients go to disk first, and the updates follow when backward ends.

    **State in fewer bits.** With ``state="int8"``, moments and momentum of float32 parameters are stored in 8 bits, in
    blocks of 256 elements with a scale each [1]_; with "bf16", in 16. They are float32 in RAM for the update of a
    parameter, in pieces of 8 MiB if it is large and contiguous, and in state dicts. State of embeddings, of parameters
    of fewer than 4096 elements, of those with fewer than two dimensions, and of those that have ``exact_state = True``
    stays exact: ``optimizer.state_formats()`` shows which.

    **State dicts.** The tensors of ``model.state_dict()`` and ``optimizer.state_dict()`` are copies in files without a
    name, which the system reads as they are used: ``torch.save`` and ``save_file`` need little RAM. In RAM, the tensors
    of a state dict would change with the model. ``load_state_dict()`` loads parameter by parameter.

    **Parameters.** Between two functions a parameter has no memory. Code that reads it other than by PyTorch's
    functions in Python sees NaN, or the least integer: ``torch.tensor(parameter)``, `torch.func.grad`. A view of a
    parameter keeps the memory in RAM. Memory that is assigned to ``parameter.data`` is copied. Copies and pickles of
    the model are refused; copy the state dict.

    **Compiled parts.** Compile parts of the model before you offload it: ``model.part = torch.compile(model.part)``.
    All parameters of such a part are in RAM during its call. A part that is compiled later is refused at its call.

    **Not the same as in RAM.** In evaluation, `nn.TransformerEncoder` and `nn.MultiheadAttention` do not take their
    fast paths, whose results differ in the last digits, and in rows that are masked.
    ``checkpoint(..., use_reentrant=False)`` raises CheckpointError if a parameter is among its arguments; let the
    function read the parameter.

    References
    ----------
    .. [1] Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", arXiv 2110.02861.

    Examples
    --------
    >>> import torch
    >>> from spillgrad.interop.torch import disk_offload, save_on_disk
    >>> model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    >>> offload = disk_offload(model, lambda params: torch.optim.AdamW(params, lr=1e-3), ram_budget="8MiB")
    >>> for _ in range(2):
    ...     with save_on_disk(offload):
    ...         loss = model(torch.ones(64, 256)).square().mean()
    ...     loss.backward()
    ...     offload.optimizer.step()
    ...     offload.optimizer.zero_grad()
    >>> offload.stats().peak_ram_bytes <= 8 << 20
    True

    A model that is too large for RAM is built on disk::

        offload = disk_offload(lambda: GPT2LMHeadModel(config), torch.optim.AdamW, "spill/", ram_budget="2GiB")
        model, optimizer = offload.model, offload.optimizer
    """

    _framework = FRAMEWORK
    _optimizer_class = torch.optim.Optimizer
    _hands_gradients_over = True
    _copied_instead = "model.state_dict() and optimizer.state_dict()"
    _residents: TorchResidents
    _encoding = EXACT_STATE

    def _residents_of(self, store: DiskStore) -> TorchResidents:
        return TorchResidents(store)

    def _offloading_what_is_registered(self, residents: TorchResidents) -> contextlib.AbstractContextManager[None]:
        return offloading_what_is_registered(residents)

    def _require_free(self, model: Any, residents: TorchResidents | None) -> None:
        require_offloadable(model, residents)

    def _require_free_optimizer(self, optimizer: Any) -> None:
        require_optimizer("disk_offload", optimizer)
        require_own_parameters("disk_offload", self.model, optimizer)

    def _set_state_format(self, optimizer: Any, state_format: str) -> None:
        embeddings = (each for each in self.model.modules() if isinstance(each, _EMBEDDINGS))
        sensitive = {id(param) for each in embeddings for param in each.parameters(recurse=False)}
        self._encoding = encoding = encoding_of("disk_offload", state_format, optimizer, sensitive=sensitive)
        self._framework = FRAMEWORK._replace(
            state_bytes_of=functools.partial(state_bytes_of, encoding=encoding),
            updated_state_bytes_of=functools.partial(updated_state_bytes_of, encoding=encoding),
        )

    def _begin_training(self) -> OffloadedTraining:
        training = OffloadedTraining(self._residents, self._step_in_backward, self._max_grad_norm)
        training.take_model(self.model)
        if self.optimizer is not None:
            with offloaded_class("disk_offload", self.optimizer):
                self.optimizer._store = self._store
            training.take_optimizer(self.optimizer)
            self.optimizer._take_state(training, MIN_BYTES, self._encoding)
        return training
