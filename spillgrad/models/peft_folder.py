"""Folders of Hugging Face's `peft`: adapters in ``adapter_model.safetensors`` beside an ``adapter_config.json``.

Source: peft's `LoraConfig`, and the names that its `get_peft_model_state_dict` gives tensors.
"""

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spillgrad.errors import ArgumentError, CheckpointError, MissingFileError
from spillgrad.files import safetensors_io
from spillgrad.models.adapters import Adapter, ConvertedTensor, Stored, paired

CONFIG = "adapter_config.json"
MODEL = "adapter_model"
PREFIX = "base_model.model."
_WEIGHT = re.compile(r"(.+)\.lora_[AB]\.weight")
# Initialisations that leave the base's weights as they are; others save adapters for a changed base.
_PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
# Fields with which adapters compute something else, unless they have one of these values.
_UNUSED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "init_lora_weights": _PLAIN_STARTS,
    **dict.fromkeys(("use_dora", "lora_bias", "use_qalora", "use_bdlora", "ensure_weight_tying"), (False, None)),
    **dict.fromkeys(
        (
            "alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication", "megatron_config",
            "monteclora_config", "target_parameters", "trainable_token_indices", "velora_config",
        ),
        (None, [], {}),
    ),
}  # fmt: skip


def is_at(path: Path) -> bool:
    """Return whether a path is such a folder."""
    return (path / CONFIG).is_file()


def read(folder: Path) -> tuple[dict[str, Adapter], dict[str, Any]]:
    """Return the adapters by the path of their layer, whose tensors are not read yet, and the content of the config.

    Raises MissingFileError, or CheckpointError for a damaged file and for what `LoRALinear` does not compute.
    """
    config = safetensors_io.read_json(folder / CONFIG)
    wrong = [
        f"{name} {config[name]!r:.60}"
        for name, known in _UNUSED.items()
        if name in config and config[name] not in known
    ]
    if wrong:
        raise CheckpointError(
            f"peft: {folder / CONFIG} has {', '.join(wrong)}; wanted plain LoRA: in peft, merge such adapters with "
            "merge_and_unload(), and save the whole model"
        )
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    ranks, alphas = (config.get(f"{name}_pattern") or {} for name in ("rank", "alpha"))
    if not (_is_number(rank) and _is_number(alpha) and _are_numbers(ranks) and _are_numbers(alphas)):
        raise CheckpointError(f"peft: {folder / CONFIG} has an r or a lora_alpha that is no number; use another copy")
    file = safetensors_io.find(folder, MODEL)
    if file is None:
        pickled = (folder / f"{MODEL}.bin").is_file()
        advice = (
            f"{MODEL}.bin is a pickle: in peft, save it anew with save_pretrained" if pickled else "use another copy"
        )
        raise MissingFileError(f"peft: {folder} has no {MODEL}.safetensors; {advice}")
    tensors: dict[str, Stored] = {
        name.removeprefix(PREFIX): tensor for name, tensor in safetensors_io.read(file).items()
    }
    matches = {name: _WEIGHT.fullmatch(name) for name in tensors}
    if foreign := [name for name, match in matches.items() if match is None]:
        raise CheckpointError(
            f"peft: {file} holds {_some(foreign)}, wanted weights lora_A and lora_B alone; in peft, merge such "
            "adapters with merge_and_unload(), and save the whole model"
        )
    paths = dict.fromkeys(match[1] for match in matches.values() if match is not None)
    if not paths:
        raise CheckpointError(f"peft: {file} holds no adapters; use another copy")
    own_ranks = {path: _of_pattern(ranks, path, rank) for path in paths}
    own_alphas = {path: float(_of_pattern(alphas, path, alpha)) for path in paths}
    if config.get("use_rslora"):
        own_alphas = {path: own_alphas[path] * math.sqrt(own_ranks[path]) for path in paths}
    adapters = paired(tensors, own_alphas, bool(config.get("fan_in_fan_out")), folder)
    differ = [f"{path} ({adapter.rank})" for path, adapter in adapters.items() if adapter.rank != own_ranks[path]]
    if differ:
        raise CheckpointError(f"peft: {folder / CONFIG} gives other ranks than {_some(differ)}; use another copy")
    return adapters, config


def write(
    folder: Path, adapters: Mapping[str, Adapter], base: str, others: Iterable[str],
    tensors: Mapping[str, ConvertedTensor], metadata: Mapping[str, str], dropout: float = 0.0,
) -> None:  # fmt: skip
    """Write both files to a new folder. `others` are the paths of layers without. Raises OSError.

    `tensors` are those of the adapters by the names that files give them, as `named` returns them.
    """
    folder.mkdir()
    safetensors_io.write(folder, MODEL, tensors, sys.maxsize, safetensors_io.write_tensors, metadata)
    ((rank, alpha), _), *_ = Counter((each.rank, each.alpha) for each in adapters.values()).most_common()
    config = {
        "alpha_pattern": {path: _plain(each.alpha) for path, each in adapters.items() if each.alpha != alpha},
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": any(each.is_transposed for each in adapters.values()),
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": _plain(alpha),
        "lora_dropout": dropout,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {path: each.rank for path, each in adapters.items() if each.rank != rank},
        "target_modules": _targets(adapters, others),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    safetensors_io.write_json(folder / CONFIG, config)


def named(adapters: Mapping[str, Adapter], dtype: Any = None) -> dict[str, ConvertedTensor]:
    """Return the tensors of adapters by the names that peft's files give them."""
    return {
        f"{PREFIX}{path}.lora_{part}.weight": ConvertedTensor(f"{path}.lora_{part}", stored, dtype)
        for path, adapter in adapters.items()
        for part, stored in (("A", adapter.a), ("B", adapter.b))
    }


def base_of(config: Mapping[str, Any], folder: Path) -> str:
    """Return the path of the base that a config names, relative to the current directory or to `folder`.

    Raises ArgumentError if it names none that is here.
    """
    named_base = config.get("base_model_name_or_path")
    if isinstance(named_base, str) and named_base:
        for path in (Path(named_base), folder / named_base):
            if path.exists():
                return os.fspath(path)
    raise ArgumentError(
        f"peft: {folder / CONFIG} names the base {named_base!r}, which is not here; name the folder of its weights"
    )


def _targets(adapters: Mapping[str, Adapter], others: Iterable[str]) -> list[str]:
    """Return peft's target_modules: last parts of paths, or whole paths where other layers of the name stay."""
    partly = {path.rpartition(".")[2] for path in others}
    return sorted({path if (name := path.rpartition(".")[2]) in partly else name for path in adapters})


def _of_pattern(patterns: Mapping[str, Any], path: str, default: Any) -> Any:
    """Return the value of the first pattern that matches the path or its end, as peft does."""
    for pattern, value in patterns.items():
        try:
            if re.match(rf"(.*\.)?({pattern})$", path):
                return value
        except re.error as error:
            raise CheckpointError(f"peft: got the pattern {pattern!r:.60} ({error}); use another copy") from error
    return default


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < 1 << 31  # type: ignore[operator]


def _are_numbers(values: object) -> bool:
    return isinstance(values, dict) and all(map(_is_number, values.values()))


def _plain(alpha: float) -> float:
    """Return a whole number as an int, which peft's config declares."""
    return int(alpha) if alpha == int(alpha) else alpha


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
