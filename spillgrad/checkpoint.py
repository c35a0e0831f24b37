"""Checkpoints of a training run: everything that is needed to go on, bit for bit.

A directory holds `checkpoint.json`, which names the sub-directory of the current version and the checksum of its
`state.json`; beside that lie `model.safetensors` and `optimizer.safetensors`, whose checksums `state.json` holds. A
save writes a new sub-directory and replaces `checkpoint.json` last, by one rename: a kill or a full disk at any moment
leaves the old version valid.
"""

import dataclasses
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from spillgrad.autograd.grad_mode import no_grad
from spillgrad.errors import CheckpointError, StateDictError
from spillgrad.generator import GeneratorState, default_generator
from spillgrad.nn.module import Module
from spillgrad.ops import creation
from spillgrad.optim.lr_scheduler import LRScheduler
from spillgrad.optim.optimizer import Optimizer
from spillgrad.tensor import Tensor

_FORMAT = "spillgrad checkpoint"
_VERSION = 1
_POINTER = "checkpoint.json"
_STATE = "state.json"
_MODEL = "model.safetensors"
_OPTIMIZER = "optimizer.safetensors"
# How many tensors an error names before it only counts.
_NAMED = 4
_READ_BYTES = 4 << 20


def save(
    directory: str | os.PathLike[str],
    model: Module,
    optimizer: Optimizer | None = None,
    *,
    scheduler: LRScheduler | None = None,
    step: int = 0,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a checkpoint that replaces the directory's former one, and return the sub-directory with its files.

    `extra` is whatever else JSON can hold. Shared tensors are stored once.
    Raises CheckpointError when it cannot be written; the former checkpoint then stays valid.
    """
    root = Path(directory)
    target = root / f"step-{step:08d}-{secrets.token_hex(4)}"
    state: dict[str, Any] = {
        "step": step,
        "model": type(model).__name__,
        "config": _config(model),
        "rng": dataclasses.asdict(default_generator.get_state()),
        "scheduler": None if scheduler is None else scheduler.state_dict(),
        "extra": dict(extra or {}),
    }
    files = {_MODEL: _unique_state(model)}
    if optimizer is not None:
        state["optimizer"], files[_OPTIMIZER] = _split_optimizer_state(optimizer)
    try:
        target.mkdir(parents=True)
        try:
            for name, tensors in files.items():
                arrays = {key: np.asarray(tensor.array, order="C") for key, tensor in tensors.items()}
                save_file(arrays, target / name)
                _sync(target / name)
            state["checksums"] = {name: _checksum(target / name) for name in files}
            _write_json(target / _STATE, state)
            _sync(target)
            pointer = {
                "format": _FORMAT,
                "version": _VERSION,
                "current": target.name,
                "checksum": _checksum(target / _STATE),
            }
            _write_json(root / f"{_POINTER}.new", pointer)
            os.replace(root / f"{_POINTER}.new", root / _POINTER)
            _sync(root)
        except BaseException:
            if not _is_current(target):  # an interrupt may come just after the rename
                shutil.rmtree(target, ignore_errors=True)
            raise
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"checkpoint: {root} cannot be written ({_reason(error)}); free space there or give another directory"
        ) from error
    for former in root.glob("step-????????-????????"):
        if former != target:
            shutil.rmtree(former, ignore_errors=True)
    return target


def load(
    directory: str | os.PathLike[str],
    model: Module | None = None,
    optimizer: Optimizer | None = None,
    *,
    scheduler: LRScheduler | None = None,
) -> dict[str, Any]:
    """Read a checkpoint into what is given, and return its state: step, model, config, extra.

    With an optimizer, training is to go on: the random state is restored too.
    Raises CheckpointError, before anything is changed, for one that is missing, damaged or of another model.
    """
    current, state = _open(Path(directory))
    if model is not None:
        _verify(current, _MODEL, state)
        own = _unique_state(model)
        _check_shapes(current / _MODEL, own)
    optimizer_state = None if optimizer is None else _read_optimizer_state(current, state)
    try:
        if scheduler is not None:
            if state["scheduler"] is None:
                raise CheckpointError(f"checkpoint: {directory} holds no schedule; load it without one")
            scheduler.check_state_dict(state["scheduler"])
        if optimizer is not None and optimizer_state is not None:
            optimizer.load_state_dict(optimizer_state)
            default_generator.set_state(GeneratorState(**state["rng"]))
        if scheduler is not None:
            scheduler.load_state_dict(state["scheduler"])
    except StateDictError as error:
        raise CheckpointError(f"checkpoint: {directory} is of another run: {error}") from error
    if model is not None:
        with no_grad():
            for name, array in _arrays(current / _MODEL):
                own[name].copy_(creation.tensor(array))
    return {key: state[key] for key in ("step", "model", "config", "extra")}


def _config(model: Module) -> dict[str, Any] | None:
    config = getattr(model, "config", None)
    return dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else None


def _unique_state(model: Module) -> dict[str, Tensor]:
    """Return parameters and buffers by path, shared ones under their first path only."""
    seen: set[int] = set()
    unique = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            unique[name] = tensor
    return unique


def _split_optimizer_state(optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return an optimizer's state as what JSON holds, and its tensors by "parameter number.name"."""
    state = optimizer.state_dict()
    tensors = {}
    numbers: dict[str, dict[str, Any]] = {}
    for number, entries in state["state"].items():
        numbers[str(number)] = {key: value for key, value in entries.items() if not isinstance(value, Tensor)}
        tensors.update({f"{number}.{key}": value for key, value in entries.items() if isinstance(value, Tensor)})
    return {"state": numbers, "param_groups": state["param_groups"]}, tensors


def _read_optimizer_state(current: Path, state: dict[str, Any]) -> dict[str, Any]:
    if "optimizer" not in state:
        raise CheckpointError(f"checkpoint: {current.parent} holds no optimizer state; load the model alone")
    _verify(current, _OPTIMIZER, state)
    entries = {int(number): dict(values) for number, values in state["optimizer"]["state"].items()}
    for name, array in _arrays(current / _OPTIMIZER):
        number, _, key = name.partition(".")
        entries[int(number)][key] = creation.tensor(array)
    return {"state": entries, "param_groups": state["optimizer"]["param_groups"]}


def _open(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return the current version's sub-directory and its verified state."""
    if not root.is_dir():
        raise CheckpointError(f"checkpoint: {root} is not a directory; give one that a run has saved to")
    if not (root / _POINTER).is_file():
        raise CheckpointError(f"checkpoint: {root} holds no {_POINTER}; give a directory that a run has saved to")
    pointer = _read_json(root / _POINTER)
    if pointer.get("format") != _FORMAT or not {"version", "current", "checksum"} <= pointer.keys():
        raise CheckpointError(f"checkpoint: {root / _POINTER} is not one of a {_FORMAT}; give a directory saved to")
    if pointer["version"] != _VERSION:
        raise CheckpointError(
            f"checkpoint: {root} has format version {pointer['version']}, this library reads {_VERSION}; "
            "use the release that wrote it"
        )
    current = root / Path(str(pointer["current"])).name
    _verify(current, _STATE, {"checksums": {_STATE: pointer["checksum"]}})
    return current, _read_json(current / _STATE)


def _is_current(target: Path) -> bool:
    pointer = target.parent / _POINTER
    return pointer.is_file() and target.name in pointer.read_text(encoding="utf-8")


def _verify(current: Path, name: str, state: dict[str, Any]) -> None:
    path = current / name
    try:
        got = _checksum(path)
    except OSError as error:
        raise _damaged(path, _reason(error)) from error
    wanted = state["checksums"].get(name)
    if got != wanted:
        raise _damaged(path, f"its checksum is {got}, {wanted} was written")


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"checkpoint: {path} is damaged ({reason}); use another checkpoint")


def _check_shapes(path: Path, own: dict[str, Tensor]) -> None:
    with safe_open(path, framework="np") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    differing = [
        f"{name} ({shapes.get(name, 'missing')}, wanted {tuple(tensor.shape)})"
        for name, tensor in own.items()
        if shapes.get(name) != tuple(tensor.shape)
    ] + [f"{name} ({shape}, not in the model)" for name, shape in shapes.items() if name not in own]
    if differing:
        named = ", ".join(differing[:_NAMED]) + (", …" if len(differing) > _NAMED else "")
        raise CheckpointError(
            f"checkpoint: {path.parent.parent} is of another model: {len(differing)} tensors differ: {named}; "
            "build the model it was saved from"
        )


def _arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors of a safetensors file one by one, so that only one is in memory."""
    try:
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, _reason(error)) from error


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(path, _reason(error)) from error
    if not isinstance(value, dict):
        raise _damaged(path, "it holds no JSON object")
    return value


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
