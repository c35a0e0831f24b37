"""Train a Paddle model whose parameters, gradients and optimizer state do not fit in RAM: they live in a store."""

import contextlib
import functools
from typing import Any

import paddle
from paddle.nn.clip import ClipGradByGlobalNorm

from spillgrad.errors import ArgumentError, OperandError
from spillgrad.interop.arrays import MIN_BYTES
from spillgrad.interop.encoded_state import EXACT_STATE, encoding_for
from spillgrad.interop.paddle import frames
from spillgrad.interop.paddle.building import (
    offloading_what_is_registered,
    require_offloadable,
    require_own_parameters,
)
from spillgrad.interop.paddle.needs import FRAMEWORK, members, state_bytes_of, updated_state_bytes_of
from spillgrad.interop.paddle.optimizer import ENCODABLE, clips_of, offload_optimizer, require_optimizer
from spillgrad.interop.paddle.training import OffloadedTraining
from spillgrad.spill.offload.owner import OffloadOwner
from spillgrad.spill.offload.residents import Residents

_NO_NORM = (
    "with a clip by global norm, which is known only when backward has ended, and Paddle does not tell an outer "
    "backward from those that recompute runs inside it; leave out step_in_backward"
)


class disk_offload(OffloadOwner):
    """Keep a Paddle model's parameters, their gradients and the optimizer's state on disk.

    A layer's parameters are read before the layer runs; once a step has shown the order of use, they are read ahead of
    time. After an update they are written back. The model, the optimizer and the training loop stay as they are, and
    all values are bit for bit those of training in RAM, unless `state` asks for fewer bits.

    Parameters
    ----------
    model : paddle.nn.Layer or callable
        The model, in host memory. If it is too large for RAM, a function without arguments that builds it: parameters
        then go to disk one by one, as layers create them in this thread.
    optimizer : paddle.optimizer.Optimizer or callable, optional
        The optimizer of the model's parameters, which may have a state already. Or a function that makes it from the
        list of parameters that require gradients. Without one, the parameters and their gradients are offloaded.
    directory : str or path, optional
        Folder for the files, which is made if it does not exist. By default, a folder of this user in the directory for
        temporary files.
    ram_budget : int or str
        The most bytes of parameters, gradients and state in RAM, or a size such as "512MiB". The least budget holds
        what one layer or one update needs at once.
    step_in_backward : bool, default False
        Whether the optimizer updates each parameter as soon as backward has its gradient, and frees the gradient.
        ``optimizer.step()`` then has nothing to do, and each backward pass is a step of its own. Not with a clip by
        global norm, and not with a GradScaler. Otherwise, gradients go to disk too.
    max_grad_norm : float, optional
        Clips gradients as `paddle.nn.ClipGradByGlobalNorm` does, over all parameters that the optimizer updates. Not
        negative. By default, the optimizer's own `grad_clip` applies.
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
        The format in which the state of `Adam`, `AdamW` or `Momentum` is stored; see Notes. By default, float32.

    Attributes
    ----------
    model : paddle.nn.Layer
        The offloaded model.
    optimizer : paddle.optimizer.Optimizer or None
        The offloaded optimizer: the same object. Its new class derives from its former class.
    directory : Path
        The folder of this object's files.
    least_budget : int
        The least `ram_budget` in bytes.

    Raises
    ------
    BudgetError
        If a size does not parse, or is below the least budget.
    ArgumentError
        If `model` is no layer, or `optimizer` no optimizer; if a parameter shares memory with another one, or is
        offloaded already; if the optimizer has parameters that the model lacks, updates its parameters together as
        LBFGS does, has another way to clip than Paddle's, or no state in the format `state`; if `max_grad_norm` is
        negative; or if arguments exclude each other.
    OperandError
        If a parameter is not in host memory.
    SpillError
        If the directory cannot be used, or if the disk lacks room for all that will be stored and `on_full` is not
        "ram".

    See Also
    --------
    save_on_disk : Spills what Paddle saves for backward; it takes an offload in place of a directory.

    Notes
    -----
    **What goes to disk.** Parameters of 64 KiB and more, their gradients, and tensors of the optimizer's state of that
    size. Smaller ones stay in RAM, and so do buffers and gradients of `Embedding` with ``sparse=True``.

    **When a parameter has its memory.** While its layer runs; while a layer runs that has taken it from its layer, as
    with ``self.embedding.weight``; during each call of one of its methods, such as ``parameter.numpy()`` and
    ``parameter * 2``; and inside `in_ram`. At other times it has none. A function that gets it then, such as
    ``paddle.norm(parameter)``, raises Paddle's error "Tensor holds no memory"; within a parallel loop, as in
    ``paddle.argmax(parameter)``, Paddle ends the process with this error.

    **Hooks.** While a layer runs, Paddle's hooks on saved tensors are in use. Paddle has one pair at a time: other
    hooks around or inside the model raise an error, and so does `recompute` with ``use_reentrant=False``; its default
    works.

    **In-place changes.** If a parameter that a graph has saved is changed before backward, backward raises an error;
    Paddle itself would compute with the new values. This holds for updates with `step_in_backward`, too.

    **State in fewer bits.** With ``state="int8"``, moments and velocities are stored in 8 bits, in blocks of 256
    elements with a scale each [1]_; with "bf16", in 16. They are float32 in RAM for the update of their parameter, and
    in state dicts. State of embeddings, of parameters with fewer than two dimensions, of those that have ``exact_state
    = True``, and state of less than 64 KiB stays exact: ``optimizer.state_formats()`` shows which.

    **State dicts.** ``model.state_dict()`` has the parameters themselves, which `paddle.save` and ``set_state_dict()``
    read one by one. ``optimizer.state_dict()`` has copies in RAM. The model, the optimizer and this object cannot be
    copied or pickled.

    **Not supported.** Devices other than the host, `paddle.jit.to_static`, ``use_multi_tensor=True`` and distributed
    parameters.

    References
    ----------
    .. [1] Dettmers et al. 2022, "8-bit optimizers via block-wise quantization", arXiv 2110.02861.

    Examples
    --------
    >>> import paddle
    >>> from spillgrad.interop.paddle import disk_offload, save_on_disk
    >>> model = paddle.nn.Sequential(paddle.nn.Linear(256, 1024), paddle.nn.GELU(), paddle.nn.Linear(1024, 256))
    >>> optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters())
    >>> offload = disk_offload(model, optimizer, ram_budget="8MiB")
    >>> for _ in range(2):
    ...     with save_on_disk(offload):
    ...         loss = model(paddle.ones([64, 256])).square().mean()
    ...     loss.backward()
    ...     optimizer.step()
    ...     optimizer.clear_grad()
    >>> offload.stats().peak_ram_bytes <= 8 << 20
    True

    A model that is too large for RAM is built on disk::

        offload = disk_offload(
            lambda: GPT(layers=48), lambda parameters: paddle.optimizer.AdamW(1e-4, parameters=parameters), "spill/",
            ram_budget="2GiB",
        )
        model, optimizer = offload.model, offload.optimizer
    """

    _framework = FRAMEWORK
    _optimizer_class = paddle.optimizer.Optimizer
    _clips_copies = False
    _copied_instead = "state_dict() of the model and of the optimizer"
    _training: OffloadedTraining
    _encoding = EXACT_STATE

    def _require_options(self, has_optimizer: bool) -> None:
        super()._require_options(has_optimizer)
        if self._step_in_backward and self._max_grad_norm is not None:
            raise ArgumentError(f"disk_offload: got step_in_backward=True and max_grad_norm, {_NO_NORM}")

    def _offloading_what_is_registered(self, residents: Residents) -> contextlib.AbstractContextManager[None]:
        return offloading_what_is_registered(residents)

    def _require_free(self, model: Any, residents: Residents | None) -> None:
        require_offloadable(model, residents)

    def _require_free_optimizer(self, optimizer: Any) -> None:
        require_optimizer(optimizer)
        require_own_parameters(self.model, optimizer)
        clips = clips_of(optimizer)
        if clips and self._max_grad_norm is not None:
            raise ArgumentError(
                f"disk_offload: got max_grad_norm={self._max_grad_norm}, and an optimizer with "
                f"{type(clips[0]).__name__} as grad_clip; give one of the two"
            )
        if self._step_in_backward and any(isinstance(clip, ClipGradByGlobalNorm) for clip in clips):
            raise ArgumentError(f"disk_offload: got step_in_backward=True {_NO_NORM}")

    def _set_state_format(self, optimizer: Any, state_format: str) -> None:
        embeddings = (each for each in self.model.sublayers(True) if isinstance(each, paddle.nn.Embedding))
        sensitive = {id(each.weight) for each in embeddings}
        self._encoding = encoding = encoding_for(
            "disk_offload", state_format, optimizer, ENCODABLE, (parameter for parameter, _ in members(optimizer)),
            lambda parameter: parameter.dtype == paddle.float32 or getattr(optimizer, "_multi_precision", False),
            sensitive=sensitive, least_bytes=MIN_BYTES,
        )  # fmt: skip
        self._framework = FRAMEWORK._replace(
            state_bytes_of=functools.partial(state_bytes_of, encoding=encoding),
            updated_state_bytes_of=functools.partial(updated_state_bytes_of, encoding=encoding),
        )

    def _begin_training(self) -> OffloadedTraining:
        training = OffloadedTraining(self._residents, self._step_in_backward)
        training.take_model(self.model)
        if self.optimizer is not None:
            offload_optimizer(self.optimizer, training, self._max_grad_norm, self._encoding)
            training.take_optimizer(self.optimizer)
        # If a backward fails, Paddle keeps the hook for its end, and with that hook the store, which must close.
        self._store.retire_with(self.model)
        return training

    def in_ram(self, *parameters: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which parameters have their memory, for functions outside of layers.

        Parameters
        ----------
        *parameters : Parameter
            Parameters of the model. The budget should hold them together.

        Returns
        -------
        context manager
            The graph that functions record inside may be used after it.

        Raises
        ------
        OperandError
            If something else is given.

        Examples
        --------
        >>> import paddle
        >>> from spillgrad.interop.paddle import disk_offload
        >>> model = paddle.nn.Linear(256, 256)
        >>> offload = disk_offload(model, ram_budget="1MiB")
        >>> with offload.in_ram(model.weight):
        ...     penalty = paddle.norm(model.weight)
        >>> penalty.backward()
        """
        for parameter in parameters:
            if not isinstance(parameter, paddle.Tensor) or id(parameter) not in self._training.names:
                raise OperandError(
                    f"in_ram: got {type(parameter).__name__}, which is no parameter of this model; give some of "
                    "model.parameters(), one by one"
                )
        return frames.in_ram(self._residents, parameters)
