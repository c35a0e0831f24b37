"""The vocabulary in a GGUF file: tokens, their types, merges and scores, from a ``tokenizer.json``.

Source: llama.cpp's `convert_hf_to_gguf.py`, and the keys that its loader reads.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spillgrad.errors import CheckpointError
from spillgrad.files import safetensors_io

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_BYTES = 256
# Texts are split by these expressions before they are merged; llama.cpp knows them by names.
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": "qwen2",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+": "tekken",
}


def add_vocabulary(gguf: Any, writer: Any, folder: Path | None, vocab_size: int) -> None:
    """Tell a `GGUFWriter` of the package `gguf` the vocabulary in a folder's ``tokenizer.json``.

    Without a folder, a model of 256 tokens has the bytes; others get no vocabulary, with a warning, so that programs
    take only numbers of tokens. Raises CheckpointError for a damaged file.
    """
    if folder is None or not (folder / "tokenizer.json").is_file():
        if vocab_size == _BYTES:
            _add_bytes(writer)
            return
        writer.add_tokenizer_model("none")
        warnings.warn(
            f"gguf: got no tokenizer.json{'' if folder is None else f' in {folder}'}; the file has no vocabulary, and "
            "llama.cpp takes numbers of tokens alone: name the folder of the tokenizer",
            stacklevel=2,
        )
        return
    file = folder / "tokenizer.json"
    told = safetensors_io.read_json(file)
    model = told.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise CheckpointError(
            f"gguf: {file} has no byte-pair tokens; llama.cpp reads others from their own files alone"
        )
    try:
        tokens, types = _tokens(model, told.get("added_tokens") or [], vocab_size)
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges") or []]
        is_on_bytes = "ByteLevel" in json.dumps([told.get("pre_tokenizer"), told.get("decoder")])
        if is_on_bytes:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(_split_name(told.get("pre_tokenizer"), file))
        else:
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_scores(_scores(tokens, merges))
            writer.add_add_space_prefix(_begins_with_space(told))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise safetensors_io.damaged(file, f"{type(error).__name__}, {error}") from error
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    _add_special(gguf, writer, folder, is_on_bytes, vocab_size)


def _tokens(
    model: Mapping[str, Any], added: Sequence[Mapping[str, Any]], vocab_size: int
) -> tuple[list[str], list[int]]:
    """Return the tokens in the order of their numbers, and their types. Numbers without a token get a placeholder."""
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    types = [_UNUSED] * vocab_size
    for text, number in model["vocab"].items():
        if number < vocab_size:
            is_byte = model.get("byte_fallback") and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
            tokens[number] = text
            types[number] = _BYTE if is_byte else _UNKNOWN if text == model.get("unk_token") else _NORMAL
    for token in added:
        number = token["id"]
        if number < vocab_size and types[number] != _UNKNOWN:
            tokens[number] = token["content"]
            types[number] = _CONTROL if token.get("special") else _USER_DEFINED
    return tokens, types


def _scores(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> list[float]:
    """Return a score for each token, so that higher scores first merges in the order of `merges`."""
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank)
    return [-float(ranks.get(token, 0)) for token in tokens]


def _split_name(pre_tokenizer: Any, file: Path) -> str:
    """Return llama.cpp's name for how a text is split before its parts are merged."""
    parts = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    patterns = [part["pattern"].get("Regex", "") for part in parts if part["type"] == "Split"]
    if not patterns and any(part["type"] == "ByteLevel" and part.get("use_regex", True) for part in parts):
        return "gpt-2"
    for pattern in patterns:
        if pattern in _SPLITS:
            return _SPLITS[pattern]
    warnings.warn(
        f"gguf: {file} splits texts in a way that has no name here; llama.cpp may take other tokens for some texts",
        stacklevel=3,
    )
    return "default"


def _begins_with_space(told: Mapping[str, Any]) -> bool:
    """Return whether a text gets a space before it."""
    parts = json.dumps([told.get("normalizer"), told.get("pre_tokenizer")])
    return '"Prepend"' in parts or '"prepend_scheme": "first"' in parts or '"prepend_scheme": "always"' in parts


def _add_special(gguf: Any, writer: Any, folder: Path, is_on_bytes: bool, vocab_size: int) -> None:
    """Tell the merges, the numbers of special tokens, whether texts begin with one, and the template of chats."""
    try:
        special = gguf.SpecialVocab(folder, load_merges=is_on_bytes, n_vocab=vocab_size)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise safetensors_io.damaged(folder / "tokenizer_config.json", f"{type(error).__name__}, {error}") from error
    if is_on_bytes and not special.merges:
        special.merges = [_NO_MERGE]
    special.add_to_gguf(writer, quiet=True)


def _add_bytes(writer: Any) -> None:
    """Tell the vocabulary of a model of bytes: each byte is the character that GPT-2's tokens write for it."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(_BYTES, 2 * _BYTES))
    characters = [chr(byte) if byte in printable else chr(next(others)) for byte in range(_BYTES)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(characters)
    writer.add_token_types([_NORMAL] * _BYTES)
    writer.add_token_merges([_NO_MERGE])
    # A text has no zero bytes, so one can end it; without these, llama.cpp takes GPT-2's numbers.
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


# The package writes no empty lists. This is a merge of two zero bytes, which texts do not have.
_NO_MERGE = "Ā Ā"
