"""Checkpoints of a training run: everything needed to resume it, bit for bit.

A version of a checkpoint is a sub-directory. It holds the tensors of model and optimizer as safetensors files
(`spillgrad.files.safetensors_io`), a `config.json` if Hugging Face's library has this kind of model, and `state.json`
with all other state and the checksums of these files. `spillgrad.files.checkpoint_directory` decides which version is
current and which process may save.
"""

import contextlib
import dataclasses
import json
import os
import reprlib
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spillgrad.data.data_loader import DataLoader
from spillgrad.distributed.sharded_tensor import ShardedTensor
from spillgrad.errors import (
    ArgumentError,
    CheckpointError,
    OperandError,
    SpillError,
    SpillgradError,
    StateDictError,
)
from spillgrad.files import checkpoint_directory, optimizer_state, safetensors_io
from spillgrad.files.checkpoint_directory import CONFIG, MODEL, OPTIMIZER
from spillgrad.files.safetensors_io import StoredTensor, damaged
from spillgrad.files.save_together import follow, leading
from spillgrad.generator import GeneratorState, default_generator
from spillgrad.nn.lora import adapter_options
from spillgrad.nn.module import Module
from spillgrad.optim.lr_scheduler.scheduler import LRScheduler
from spillgrad.optim.optimizer import Optimizer
from spillgrad.storage.sizes import parse_bytes
from spillgrad.tensor import Tensor

D = TypeVar("D")


def save_checkpoint(
    directory: str | os.PathLike[str], model: Module, optimizer: Optimizer | None = None, *,
    scheduler: LRScheduler | None = None, data: DataLoader | None = None, step: int = 0,
    extra: Mapping[str, Any] | None = None, max_shard_size: int | str = "5GB", trainable_only: bool = False,
) -> Path:  # fmt: skip
    """Write a checkpoint of a training run, which replaces the former checkpoint in the directory.

    Training resumes from it with `load_checkpoint`, bit for bit. Tensors are written one by one; saving needs memory
    for at most one further tensor, even if the model is on disk.

    Parameters
    ----------
    directory : str or path
        Folder of the checkpoint, which is made if needed. The former version's files are removed, with a warning if
        that fails; other files in the directory stay.
    model : Module
        The model. Its tensors are in `model.safetensors` or, if they exceed `max_shard_size`, in a sharded checkpoint
        as in Hugging Face's libraries. Shared tensors are stored once.
    optimizer : Optimizer, optional
        The optimizer, whose tensors are stored the same way.
    scheduler : LRScheduler, optional
        The learning-rate schedule.
    data : DataLoader, optional
        The loader, whose position is saved. If batches depend on the step alone, `step` is enough.
    step : int, default 0
        Number of the training step.
    extra : mapping, optional
        Further values: anything that JSON can hold.
    max_shard_size : int or str, default "5GB"
        The most bytes of tensors in a file, or a size.
    trainable_only : bool, default False
        Whether to leave out parameters that require no gradient, such as the base of adapters, and quantized weights;
        loading does not change them.

    Returns
    -------
    Path
        The sub-directory with the new files.

    Raises
    ------
    CheckpointError
        If the checkpoint cannot be written, or if another process is still saving; the former checkpoint then stays
        valid.
    ArgumentError
        If `max_shard_size` is less than one byte.
    BudgetError
        If `max_shard_size` does not parse.
    OperandError
        For values that JSON cannot hold.
    SpillError
        If an offloaded tensor cannot be read.

    Notes
    -----
    Where processes share the optimizer's state, as in `disk_offload`, all of them call this with the optimizer. If all
    see the directory, as on one machine or a shared file system, each writes a part of the parameters and of the
    optimizer's state. Otherwise, the first process writes all of it in its directory. What it knows besides, such as
    buffers and its random state, is what is saved. If one process cannot write, the error is that of all. Without the
    optimizer, one process alone calls this, or all of them, if parameters are in parts (``shard="all"``).

    The state of the default random generator is saved too. If another process is saving to the directory, this call
    waits for a few seconds.

    Examples
    --------
    >>> import tempfile
    >>> import spillgrad as sg
    >>> model = sg.nn.Linear(2, 2)
    >>> optimizer = sg.optim.AdamW(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = sg.save_checkpoint(folder, model, optimizer, step=100, extra={"loss": 0.5})
    ...     found = sg.load_checkpoint(folder, model, optimizer)
    >>> found["step"], found["extra"]
    (100, {'loss': 0.5})
    """
    group = None if optimizer is None else optimizer.step_context.group
    of_optimizer = None if optimizer is None else optimizer_state.split(optimizer)
    of_tensors = {} if of_optimizer is None else of_optimizer[1]
    tensors, others = _unique_state(model)
    if trainable_only:
        frozen = _frozen(model)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in frozen}
    for name, tensor in tensors.items():
        in_parts = tensor._storage.parts_now()
        tensors[name] = tensor if in_parts is None else in_parts
    every = [*of_tensors.values(), *tensors.values()]
    group = next((tensor.group for tensor in every if isinstance(tensor, ShardedTensor)), group)
    groups = [] if optimizer is None else optimizer.param_groups
    updated = {id(param) for each in groups for param in each["params"] if param.requires_grad}
    # What all have alike, as they update it together; of what else is whole, the first process's is saved.
    together = [tensor for tensor in every if isinstance(tensor, ShardedTensor) or id(tensor) in updated]
    if group is not None and group.rank() != 0:
        return Path(follow(group, together, directory))
    with contextlib.nullcontext() if group is None else leading(group, together) as leader:
        root = safetensors_io.absolute(directory)
        max_shard_bytes = parse_bytes(max_shard_size)
        if max_shard_bytes < 1:
            raise ArgumentError(f"save_checkpoint: got max_shard_size {max_shard_size!r}; it must be at least one byte")
        sets = {MODEL: tensors}
        state: dict[str, Any] = {
            "step": step,
            "model": type(model).__name__,
            "config": _config(model),
            "rng": dataclasses.asdict(default_generator.get_state()),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "data": None if data is None else data.state_dict(),
            "extra": dict(extra or {}),
            "model_extra": others,
            "trainable_only": trainable_only,
            "adapters": adapter_options(model),
        }
        if of_optimizer is not None:
            state["optimizer"], sets[OPTIMIZER] = of_optimizer
        _require_json(state)
        write_tensors = safetensors_io.write_tensors if leader is None else leader.write_tensors
        whole_model = None if trainable_only else model
        version = _save(root, directory, sets, state, max_shard_bytes, whole_model, write_tensors)
        if leader is not None:
            leader.result = str(version)
    return version


def _save(
    root: Path, directory: str | os.PathLike[str], sets: Mapping[str, Mapping[str, Tensor]], state: dict[str, Any],
    max_shard_bytes: int, model: Module | None, write_tensors: safetensors_io.WriteTensors,
) -> Path:  # fmt: skip
    """Write the files of a checkpoint into a new version of `root`, which a user calls `directory`; return the version.

    `model` is the whole model, for other libraries; None if it is not saved. `write_tensors` writes tensors to files.
    """
    try:
        with checkpoint_directory.only_writer(root):
            checkpoint_directory.remove_others(root)  # before writing, because they may fill the disk
            version = checkpoint_directory.new_version(root, state["step"])
            try:
                checkpoint_directory.begin(version)
                checksums: dict[str, str] = {}
                for stem, tensors in sets.items():
                    checksums |= safetensors_io.write(version, stem, tensors, max_shard_bytes, write_tensors)
                if model is not None and hasattr(model, "config") and hasattr(model.config, "to_hugging_face"):
                    checksums[CONFIG] = safetensors_io.write_json(version / CONFIG, model.config.to_hugging_face())
                checkpoint_directory.make_current(version, state | {"checksums": checksums})
            except BaseException:
                if not checkpoint_directory.is_current(version):  # an interrupt may come just after the rename
                    checkpoint_directory.remove(version)
                raise
            checkpoint_directory.remove_others(root)
    except SpillError:  # a tensor of an offloaded model could not be read, which has nothing to do with this directory
        raise
    except OSError as error:
        raise checkpoint_directory.not_written(directory, error) from error
    return version


def load_checkpoint(
    directory: str | os.PathLike[str], model: Module | None = None, optimizer: Optimizer | None = None, *,
    scheduler: LRScheduler | None = None, data: DataLoader | None = None, strict: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Load a checkpoint into the given objects, tensor by tensor, and return the rest of its content.

    Parameters
    ----------
    directory : str or path
        The directory that `save_checkpoint` wrote to. If another process replaces the checkpoint meanwhile, the new
        checkpoint is loaded.
    model : Module, optional
        The model to load the tensors into.
    optimizer : Optimizer, optional
        The optimizer to load the state into. The random state is restored with it, so that training can resume.
    scheduler : LRScheduler, optional
        The learning-rate schedule to load into.
    data : DataLoader, optional
        The loader that goes on at the saved position.
    strict : bool, default True
        Whether all tensors must fit. With False, all tensors that fit are loaded; the lists of the result name all
        others.

    Returns
    -------
    dict
        It has `step`, `model` (the name of its class), `config` and `extra`; and, if a model is given, three lists as
        in Hugging Face's loading info: `missing_keys`, `unexpected_keys`, and `mismatched_keys` with entries (name,
        shape in the file, shape in the model).

    Raises
    ------
    CheckpointError
        Before anything is changed, for a checkpoint that is missing, damaged or of another model. For another model,
        the error lists every tensor that is missing, unexpected or of another shape. It is a ValueError and a
        RuntimeError.
    """
    return checkpoint_directory.of_current(
        safetensors_io.absolute(directory),
        lambda current, state: _load(current, state, model, optimizer, scheduler, data, strict),
    )


def _load(
    current: Path, state: dict[str, Any], model: Module | None, optimizer: Optimizer | None,
    scheduler: LRScheduler | None, data: DataLoader | None, strict: bool,
) -> dict[str, Any]:  # fmt: skip
    directory = current.parent
    require_state(current, state)
    result = {key: state[key] for key in ("step", "model", "config", "extra")}
    saved = {} if model is None else _read(current, MODEL, state) | state.get("model_extra", {})
    of_optimizer = None if optimizer is None else _read_optimizer_state(current, state)
    if scheduler is not None and state["scheduler"] is None:
        raise CheckpointError(f"checkpoint: {directory} holds no schedule; load it without one")
    if data is not None and state.get("data") is None:
        raise CheckpointError(f"checkpoint: {directory} holds no position of the data; load it without data")
    with _of_this_run(directory):
        if scheduler is not None:
            _require_alike("the schedule", state["scheduler"], scheduler.state_dict())
            scheduler.check_state_dict(state["scheduler"])
        if optimizer is not None and of_optimizer is not None:
            optimizer.check_state_dict(of_optimizer)
            groups = zip(of_optimizer["param_groups"], optimizer.state_dict()["param_groups"], strict=True)
            for number, pair in enumerate(groups):
                _require_alike(f"group {number} of the optimizer", *pair)
        if data is not None:
            own = data.state_dict()
            _require_alike("the place in the data", state["data"], own)
            if hasattr(data, "check_state_dict"):  # objects of users may have no such method
                data.check_state_dict(state["data"])
            if missing := own.keys() - state["data"].keys():
                raise StateDictError(f"the place in the data has no {', '.join(sorted(missing))}")
    try:
        if model is not None:
            if state.get("trainable_only"):
                saved = {**{name: _LeftOut(tensor) for name, tensor in _frozen(model).items()}, **saved}
            result |= load_into(model, saved, strict)
    except StateDictError as error:
        raise _of_another_run(directory, error) from error
    with _of_this_run(directory):
        if optimizer is not None and of_optimizer is not None:
            optimizer.load_state_dict(of_optimizer)
            default_generator.set_state(GeneratorState(**state["rng"]))
        if scheduler is not None:
            scheduler.load_state_dict(state["scheduler"])
        if data is not None:
            data.load_state_dict(state["data"])
    return result


@contextlib.contextmanager
def _of_this_run(directory: Path) -> Iterator[None]:
    """Context manager: convert an error in loading optimizer, schedule or data to a CheckpointError."""
    try:
        yield
    except StateDictError as error:
        raise _of_another_run(directory, error) from error
    except SpillgradError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _of_another_run(directory, f"{type(error).__name__}, {error}") from error


def _of_another_run(directory: Path, why: object) -> CheckpointError:
    return CheckpointError(f"checkpoint: {directory} is of another run: {why}")


# The types of the entries of `state.json`: those that every state has, and those that are optional.
_NEEDED: dict[str, Any] = {
    "step": int, "model": str, "config": dict | None, "extra": dict, "rng": dict, "scheduler": dict | None,
    "checksums": dict,
}  # fmt: skip
_OPTIONAL: dict[str, Any] = {
    "data": dict | None, "model_extra": dict, "optimizer": dict, "trainable_only": bool, "adapters": dict,
}  # fmt: skip
# The deepest nesting of lists and dicts in the state of an optimizer, a schedule or data.
_DEEPEST = 32
_SHALLOW = ("optimizer", "scheduler", "data")


def require_state(current: Path, state: dict[str, Any]) -> None:
    """Raise CheckpointError if `state`, read from a `state.json` with a right checksum, is not what a save writes."""
    wrong = [f"no {key}" for key in _NEEDED if key not in state]
    wrong += [
        f"{key} that is a {type(state[key]).__name__}"
        for key, kind in (_NEEDED | _OPTIONAL).items()
        if key in state and not isinstance(state[key], kind)
    ]
    if not wrong:
        rng, optimizer = state["rng"], state.get("optimizer", {"state": {}, "param_groups": []})
        parts = {
            "rng": rng.keys() == {"seed", "offset"} and all(type(n) is int and 0 <= n < 1 << 64 for n in rng.values()),
            "checksums": all(checkpoint_directory.is_file_name(name) for name in state["checksums"]),
            "optimizer": _is_shallow(optimizer) and optimizer_state.is_state(optimizer),
            "depth": all(_is_shallow(state.get(key)) for key in _SHALLOW),
        }
        wrong = [f"{part} that no save writes" for part, is_right in parts.items() if not is_right]
    if wrong:
        raise damaged(current / checkpoint_directory.STATE, f"it holds {', '.join(wrong)}")


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            part
            for each in level
            if isinstance(each, list | tuple | dict)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return not level


def _require_alike(what: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise StateDictError if a saved value is of another kind than the object's value, such as text for a number."""
    for key in saved.keys() & own.keys():
        if not _is_alike(saved[key], own[key]):
            raise StateDictError(f"{what} has {key} {str(saved[key])[:80]}, wanted one such as {own[key]}")


def _is_alike(saved: Any, own: Any) -> bool:
    if saved is None or own is None:
        return True
    if isinstance(own, int | float):
        return isinstance(saved, int | float)
    if isinstance(own, list | tuple):
        return isinstance(saved, list) and all(any(_is_alike(part, one) for one in own) for part in saved)
    if isinstance(own, dict):
        return isinstance(saved, dict) and all(_is_alike(saved[key], own[key]) for key in saved.keys() & own.keys())
    return not isinstance(own, str) or isinstance(saved, str)


def load_into(model: Module, saved: Mapping[str, Any], strict: bool) -> dict[str, list[Any]]:
    """Copy tensors from files into a model, one by one; return the three lists of keys that `load_checkpoint` returns.

    A tensor that the model has under several names may be in the files under any one of them. With `strict`, raises
    StateDictError before anything changes; the error lists all keys that do not fit.
    """
    own = model.state_dict(keep_vars=True)
    values = [name for name, value in saved.items() if not isinstance(value, StoredTensor | np.ndarray) and name in own]
    if wrong := [name for name in values if isinstance(own[name], Tensor)]:
        raise StateDictError(f"got no tensors for {', '.join(wrong)}; give the state of the same model")
    given = {id(own[name]): value for name, value in saved.items() if name in own and isinstance(own[name], Tensor)}
    state = {name: given[id(tensor)] for name, tensor in own.items() if id(tensor) in given} | dict(saved)
    mismatched = [] if strict else [
        (name, tuple(value.shape), tuple(own[name].shape))
        for name, value in state.items()
        if isinstance(value, StoredTensor) and name in own and tuple(value.shape) != tuple(own[name].shape)
    ]  # fmt: skip
    for name, *_ in mismatched:
        del state[name]
    found = model.load_state_dict(state, strict=strict)
    skipped = {name for name, *_ in mismatched}
    return {
        "missing_keys": [name for name in found.missing_keys if name not in skipped],
        "unexpected_keys": found.unexpected_keys,
        "mismatched_keys": mismatched,
    }


class _LeftOut(StoredTensor):
    """A stand-in for a tensor that the files leave out; copying it leaves the model's tensor unchanged."""

    def __init__(self, own: Tensor) -> None:
        super().__init__(Path(), own.numpy_dtype, tuple(own.shape), 0)

    def copy_to(self, tensor: Tensor) -> None:
        pass


def _frozen(model: Module) -> dict[str, Tensor]:
    """Return the parameters that require no gradient, and quantized weights, under all their paths."""
    named = model.named_parameters(remove_duplicate=False)
    frozen = {name: parameter for name, parameter in named if not parameter.requires_grad}
    exact = {id(module._buffers.get(name)) for module in model.modules() for name in module._exact}
    return frozen | {name: each for name, each in model.named_buffers(remove_duplicate=False) if id(each) in exact}


def _config(model: Module) -> dict[str, Any] | None:
    config = getattr(model, "config", None)
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else None


def dataclass_of(kind: type[D], said: object, where: str) -> D:
    """Check the types of the fields `said`, read from a file; return a dataclass of the type `kind` with these fields.

    Raises CheckpointError, which names the file as `where`, if `said` is not the content of such a dataclass.
    """
    if not isinstance(said, dict):
        raise CheckpointError(f"{where}: got {_shown(said)}, wanted the fields of a {kind.__name__}; use another copy")
    kinds = typing.get_type_hints(kind)
    wrong = [f"{key!r:.40}, which is unknown" for key in said.keys() - kinds.keys()]
    wrong += [f"{key} {_shown(value)}" for key, value in said.items() if key in kinds and not _is_of(value, kinds[key])]
    if wrong:
        raise CheckpointError(f"{where}: got {', '.join(wrong)}; no {kind.__name__} is saved so; use another copy")
    try:
        return kind(**said)
    except (ArgumentError, TypeError) as error:  # sizes that do not go together; a field that is missing
        raise CheckpointError(f"{where}: {error}") from error


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"


def _is_of(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(_is_of(value, part) for part in typing.get_args(kind))
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if kind is int:
        return type(value) is int  # a bool is none
    return isinstance(value, typing.get_origin(kind) or kind)


def _unique_state(model: Module) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model's tensors by path, each shared tensor under its first path only, and the model's other state."""
    unique: dict[int, tuple[str, Tensor]] = {}
    others = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor):
            unique.setdefault(id(value), (name, value))
        else:
            others[name] = value
    return dict(unique.values()), others


def _require_json(state: dict[str, Any]) -> None:
    for key, value in state.items():
        try:
            json.dumps({key: value}, indent=1)
        except (TypeError, ValueError, RecursionError) as error:
            raise OperandError(
                f"save_checkpoint: JSON cannot hold {key} ({error}); give numbers, text, lists and dicts"
            ) from error
        if key in _SHALLOW and not _is_shallow(value):  # loading would take it for damaged
            raise OperandError(f"save_checkpoint: {key} is nested more than {_DEEPEST} deep; make it flatter")


def _read_optimizer_state(current: Path, state: dict[str, Any]) -> dict[str, Any]:
    """Return the optimizer's state dict, without reading its tensors from their files."""
    if "optimizer" not in state:
        raise CheckpointError(f"checkpoint: {current.parent} holds no optimizer state; load the model alone")
    tensors = _read(current, OPTIMIZER, state)
    return optimizer_state.joined(state["optimizer"], tensors, lambda why: damaged(current, why))


def _read(current: Path, stem: str, state: dict[str, Any]) -> dict[str, Any]:
    """Verify the checksums of the files named after `stem`; return their tensors by name, not read yet."""
    for name in state["checksums"]:
        if name.startswith(f"{stem}.") or name.startswith(f"{stem}-"):
            checkpoint_directory.verify(current, name, state["checksums"])
    path = safetensors_io.find(current, stem)
    if path is None or path.name not in state["checksums"]:
        raise damaged(current, f"it lacks {stem}.safetensors")
    return dict(safetensors_io.read(path))
