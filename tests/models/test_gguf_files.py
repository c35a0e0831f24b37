"""GGUF files: each tensor and each value as llama.cpp wants it, read back with the package `gguf`."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import spillgrad as sg
from spillgrad.errors import ArgumentError, CheckpointError

SIZES: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "head_dim": 16,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONG = {"type": "longrope", "long_factor": [2.0] * 4 + [8.0] * 4, "short_factor": [1.0] * 8}
GEMMA = {**SIZES, "query_pre_attn_scalar": 16, "sliding_window": 8, "tie_word_embeddings": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": {**SIZES, "model_type": "llama", "rope_scaling": LLAMA3},
    "llama-biased": {**SIZES, "model_type": "llama", "attention_bias": True, "rope_scaling": {
        "rope_type": "linear", "factor": 2.0,
    }},
    "mistral": {**SIZES, "model_type": "mistral", "sliding_window": None},
    "qwen2": {**SIZES, "model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {**SIZES, "model_type": "qwen3", "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8,
    }},
    "gemma2": {**GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3": {**GEMMA, "model_type": "gemma3_text", "rope_local_base_freq": 1e4, "rope_scaling": {
        "rope_type": "linear", "factor": 8.0,
    }},
    "phi3": {**SIZES, "model_type": "phi3", "sliding_window": 8, "rope_scaling": LONG,
             "original_max_position_embeddings": 8},
}  # fmt: skip
# Each layer's tensors: Hugging Face's name, llama.cpp's name, and the shape.
GPT2_LAYER = {
    "ln_1.weight": ("attn_norm.weight", (64,)), "ln_1.bias": ("attn_norm.bias", (64,)),
    "attn.c_attn.weight": ("attn_qkv.weight", (64, 192)), "attn.c_attn.bias": ("attn_qkv.bias", (192,)),
    "attn.c_proj.weight": ("attn_output.weight", (64, 64)), "attn.c_proj.bias": ("attn_output.bias", (64,)),
    "ln_2.weight": ("ffn_norm.weight", (64,)), "ln_2.bias": ("ffn_norm.bias", (64,)),
    "mlp.c_fc.weight": ("ffn_up.weight", (64, 256)), "mlp.c_fc.bias": ("ffn_up.bias", (256,)),
    "mlp.c_proj.weight": ("ffn_down.weight", (256, 64)), "mlp.c_proj.bias": ("ffn_down.bias", (64,)),
}  # fmt: skip
OUTPUT = {"self_attn.o_proj.weight": ("attn_output.weight", (64, 64))}
SEPARATE = OUTPUT | {
    "self_attn.q_proj.weight": ("attn_q.weight", (64, 64)), "self_attn.k_proj.weight": ("attn_k.weight", (32, 64)),
    "self_attn.v_proj.weight": ("attn_v.weight", (32, 64)), "mlp.gate_proj.weight": ("ffn_gate.weight", (96, 64)),
    "mlp.up_proj.weight": ("ffn_up.weight", (96, 64)), "mlp.down_proj.weight": ("ffn_down.weight", (64, 96)),
}  # fmt: skip
BIASES = {
    "self_attn.q_proj.bias": ("attn_q.bias", (64,)), "self_attn.k_proj.bias": ("attn_k.bias", (32,)),
    "self_attn.v_proj.bias": ("attn_v.bias", (32,)),
}  # fmt: skip
HEAD_NORMS = {
    "self_attn.q_norm.weight": ("attn_q_norm.weight", (16,)), "self_attn.k_norm.weight": ("attn_k_norm.weight", (16,)),
}  # fmt: skip
NORMS = {
    "input_layernorm.weight": ("attn_norm.weight", (64,)),
    "post_attention_layernorm.weight": ("ffn_norm.weight", (64,)),
}  # fmt: skip
GEMMA_NORMS = {
    "input_layernorm.weight": ("attn_norm.weight", (64,)),
    "post_attention_layernorm.weight": ("post_attention_norm.weight", (64,)),
    "pre_feedforward_layernorm.weight": ("ffn_norm.weight", (64,)),
    "post_feedforward_layernorm.weight": ("post_ffw_norm.weight", (64,)),
}  # fmt: skip
FUSED = OUTPUT | {
    "self_attn.qkv_proj.weight": ("attn_qkv.weight", (128, 64)),
    "mlp.gate_up_proj.weight": ("ffn_up.weight", (192, 64)), "mlp.down_proj.weight": ("ffn_down.weight", (64, 96)),
}  # fmt: skip
LAYERS: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "gpt2": GPT2_LAYER, "llama": NORMS | SEPARATE, "llama-biased": NORMS | SEPARATE | BIASES,
    "mistral": NORMS | SEPARATE, "qwen2": NORMS | SEPARATE | BIASES, "qwen3": NORMS | SEPARATE | HEAD_NORMS,
    "gemma2": GEMMA_NORMS | SEPARATE, "gemma3": GEMMA_NORMS | SEPARATE | HEAD_NORMS, "phi3": NORMS | FUSED,
}  # fmt: skip


def names(kind: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return llama.cpp's name and the shape of each tensor of a model, by Hugging Face's names."""
    if kind == "gpt2":
        found = {
            "wte.weight": ("token_embd.weight", (256, 64)), "wpe.weight": ("position_embd.weight", (32, 64)),
            "ln_f.weight": ("output_norm.weight", (64,)), "ln_f.bias": ("output_norm.bias", (64,)),
        }  # fmt: skip
        place = "h"
    else:
        found = {
            "model.embed_tokens.weight": ("token_embd.weight", (256, 64)),
            "model.norm.weight": ("output_norm.weight", (64,)),
        }
        place = "model.layers"
        if not CONFIGS[kind].get("tie_word_embeddings"):
            found["lm_head.weight"] = ("output.weight", (256, 64))
    for layer in range(2):
        found |= {
            f"{place}.{layer}.{name}": (f"blk.{layer}.{theirs}", shape)
            for name, (theirs, shape) in LAYERS[kind].items()
        }
    return found


def make_model(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """Write a model of random weights; return the weights by Hugging Face's names."""
    generator = np.random.default_rng(7)
    weights = {name: generator.standard_normal(shape).astype(np.float32) for name, (_, shape) in names(kind).items()}
    # A mask, and the copy of a tied embedding, which have no place in the file.
    extra = {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32)} if kind == "gpt2" else {}
    if CONFIGS[kind].get("tie_word_embeddings"):
        extra["lm_head.weight"] = weights["model.embed_tokens.weight"]
    folder.mkdir(exist_ok=True)
    save_file(weights | extra, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    return weights


def as_llama_cpp(kind: str, name: str, weight: np.ndarray) -> np.ndarray:
    """Return a weight as llama.cpp arranges it, composed plainly."""
    if kind == "gpt2" and weight.ndim == 2 and name.startswith("h."):
        return weight.T
    if kind.startswith("gemma") and "norm" in name:
        return weight + np.float32(1)
    projection = name.split(".")[-2]
    if kind.startswith(("llama", "mistral")) and projection in ("q_proj", "k_proj"):
        rows = []
        for head in range(4 if projection == "q_proj" else 2):
            for pair in range(8):
                rows += [weight[head * 16 + pair], weight[head * 16 + 8 + pair]]
        return np.stack(rows)
    return weight


def values(reader: Any) -> dict[str, Any]:
    """Return all values of a file by key."""
    return {name: field.contents() for name, field in reader.fields.items()}


@pytest.mark.parametrize("kind", CONFIGS)
def test_each_tensor_has_its_name_shape_order_and_elements(kind: str, tmp_path: Path):
    weights = make_model(tmp_path / "model", kind)
    reader = gguf.GGUFReader(sg.models.export(tmp_path / "model", tmp_path / "model.gguf"))
    found = {tensor.name: tensor for tensor in reader.tensors if not tensor.name.startswith("rope_")}
    assert found.keys() == {theirs for theirs, _ in names(kind).values()}
    for name, (theirs, _) in names(kind).items():
        wanted = as_llama_cpp(kind, name, weights[name])
        assert found[theirs].tensor_type == gguf.GGMLQuantizationType.F32
        assert tuple(found[theirs].shape[::-1]) == wanted.shape
        np.testing.assert_array_equal(found[theirs].data, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q8_0"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_matrices_take_the_format_and_vectors_stay_float32(kind: str, dtype: str, tmp_path: Path):
    weights = make_model(tmp_path / "model", kind)
    reader = gguf.GGUFReader(sg.models.export(tmp_path / "model", tmp_path / "model.gguf", dtype=dtype))
    found = {tensor.name: tensor for tensor in reader.tensors}
    wanted_type = {"float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}[dtype]
    assert values(reader)["general.file_type"] == {"F16": 1, "BF16": 32, "Q8_0": 7}[wanted_type]
    assert ("general.quantization_version" in values(reader)) == (dtype == "q8_0")
    for name, (theirs, shape) in names(kind).items():
        wanted = np.ascontiguousarray(as_llama_cpp(kind, name, weights[name]))
        tensor = found[theirs]
        if len(shape) == 1 or theirs == "position_embd.weight":
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            np.testing.assert_array_equal(tensor.data, wanted)
            continue
        assert tensor.tensor_type == gguf.GGMLQuantizationType[wanted_type]
        if dtype == "q8_0":
            np.testing.assert_array_equal(tensor.data, gguf.quants.quantize(wanted, gguf.GGMLQuantizationType.Q8_0))
            largest = np.abs(wanted.reshape(-1, 32)).max(1, keepdims=True)
            read = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            # Half a step, and what a scale of 11 bits adds to 127 steps.
            assert (np.abs(read - wanted).reshape(-1, 32) <= largest / 127 * 0.57).all()
        else:
            cast = wanted.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
            np.testing.assert_array_equal(tensor.data.reshape(-1).view(np.uint16), cast.reshape(-1).view(np.uint16))


def test_rows_that_no_block_divides_become_float16(tmp_path: Path):
    model = sg.models.build("llama-tiny", hidden_size=48, intermediate_size=64)
    sg.save_checkpoint(tmp_path / "run", model)
    reader = gguf.GGUFReader(sg.models.export(tmp_path / "run", tmp_path / "model.gguf", dtype="q8_0"))
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert (types["blk.0.ffn_up.weight"], types["blk.0.ffn_down.weight"]) == ("F16", "Q8_0")


LLAMA_KEYS = {
    "block_count": 2, "context_length": 32, "embedding_length": 64, "feed_forward_length": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.key_length": 16, "attention.value_length": 16, "rope.dimension_count": 16, "rope.freq_base": 500.0,
    "vocab_size": 256,
}  # fmt: skip
KEYS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "block_count": 2, "context_length": 32, "embedding_length": 64, "feed_forward_length": 256,
        "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5, "vocab_size": 256,
    },
    "llama": LLAMA_KEYS,
    "llama-biased": {**LLAMA_KEYS, "rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    "mistral": LLAMA_KEYS,
    "qwen2": LLAMA_KEYS,
    "qwen3": {**LLAMA_KEYS, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
              "rope.scaling.original_context_length": 8},
    "gemma2": {**LLAMA_KEYS, "attention.sliding_window": 8, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0},
    "gemma3": {**LLAMA_KEYS, "attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    "phi3": {**LLAMA_KEYS, "attention.sliding_window": 8, "rope.scaling.original_context_length": 8,
             "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(8))},
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_file_says_what_llama_cpp_reads(kind: str, tmp_path: Path):
    make_model(tmp_path / "model", kind)
    found = values(gguf.GGUFReader(sg.models.export(tmp_path / "model", tmp_path / "model.gguf")))
    architecture = {"llama-biased": "llama", "mistral": "llama"}.get(kind, kind)
    assert (found["general.architecture"], found["general.type"], found["general.name"]) == (
        architecture, "model", "model",
    )  # fmt: skip
    own = {key.removeprefix(f"{architecture}."): value for key, value in found.items() if key.startswith(architecture)}
    assert own.keys() == KEYS[kind].keys()
    for key, value in KEYS[kind].items():
        assert own[key] == (pytest.approx(value) if isinstance(value, float) else value)


def test_llama_3s_frequencies_are_divided_by_a_tensor_of_factors(tmp_path: Path):
    make_model(tmp_path / "model", "llama")
    reader = gguf.GGUFReader(sg.models.export(tmp_path / "model", tmp_path / "model.gguf", dtype="q8_0"))
    (factors,) = (tensor for tensor in reader.tensors if tensor.name == "rope_freqs.weight")
    wanted = []
    for pair in range(8):
        wavelength = 2 * math.pi * 500.0 ** (2 * pair / 16)
        if wavelength < 16 / 4:
            wanted.append(1.0)
        elif wavelength > 16 / 1:
            wanted.append(4.0)
        else:
            smooth = (16 / wavelength - 1) / (4 - 1)
            wanted.append(1 / ((1 - smooth) / 4 + smooth))
    assert len(set(wanted)) > 2
    np.testing.assert_allclose(factors.data, wanted, rtol=1e-6)


def test_phi_3_has_factors_for_long_and_short_texts(tmp_path: Path):
    make_model(tmp_path / "model", "phi3")
    reader = gguf.GGUFReader(sg.models.export(tmp_path / "model", tmp_path / "model.gguf"))
    found = {tensor.name: tensor.data.tolist() for tensor in reader.tensors if tensor.name.startswith("rope_")}
    assert found == {
        "rope_factors_long.weight": LONG["long_factor"], "rope_factors_short.weight": LONG["short_factor"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("llama", {"model_type": "mamba"}, "'mamba'; known are gpt2, llama, mistral"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'; known are linear"),
        ("llama", {"num_hidden_layers": 1}, "layers.1"),
        ("llama", {"vocab_size": None}, "got vocab_size None"),
        ("gemma2", {"query_pre_attn_scalar": 24}, "got query_pre_attn_scalar 24; llama.cpp takes 16"),
        ("gemma3", {"sliding_window_pattern": 2}, "other layers than every 6th"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "without 8 long and short factors"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(kind: str, changes: dict[str, Any], said: str, tmp_path: Path):
    make_model(tmp_path / "model", kind)
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIGS[kind] | changes))
    with pytest.raises(CheckpointError, match=said):
        sg.models.export(tmp_path / "model", tmp_path / "model.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_window_that_llama_cpp_does_not_have_is_a_warning(tmp_path: Path):
    make_model(tmp_path / "model", "mistral")
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIGS["mistral"] | {"sliding_window": 8}))
    with pytest.warns(UserWarning, match="beyond 8 tokens"):
        sg.models.export(tmp_path / "model", tmp_path / "model.gguf")


def export_with(tokenizer: dict[str, Any], folder: Path, **config: Any) -> dict[str, Any]:
    """Export a Llama with the content of a tokenizer.json; return the file's values."""
    make_model(folder / "model", "llama")
    (folder / "model" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **config}))
    return values(gguf.GGUFReader(sg.models.export(folder / "model", folder / "model.gguf")))


def on_bytes(tmp_path: Path) -> dict[str, Any]:
    """Return the content of the tokenizer.json of byte-pair tokens on bytes."""
    text = "the cat sat on the mat " * 20
    tokenizer = sg.data.BPETokenizer.train(text, 263, ["<s>", "</s>"])
    tokenizer.save(tmp_path / "made.json")
    return json.loads((tmp_path / "made.json").read_text())


def test_tokens_of_bytes_have_types_and_merges(tmp_path: Path):
    tokenizer = on_bytes(tmp_path)
    tokenizer["added_tokens"].append({"id": 254, "content": "<tool>", "special": False})
    vocab = tokenizer["model"]["vocab"]
    for text in [text for text, number in vocab.items() if number >= 253]:
        del vocab[text]
    found = export_with(tokenizer, tmp_path, eos_token="</s>", chat_template="{{ messages }}")
    assert (found["tokenizer.ggml.model"], found["tokenizer.ggml.pre"]) == ("gpt2", "gpt-2")
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    assert len(tokens) == len(types) == 256
    assert [tokens[number] for number in vocab.values()] == list(vocab)
    assert (tokens[:2], types[:3]) == (["<s>", "</s>"], [3, 3, 1])
    assert (tokens[253:], types[253:]) == (["[PAD253]", "<tool>", "[PAD255]"], [5, 4, 5])
    assert found["tokenizer.ggml.merges"] == [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    assert (found["tokenizer.ggml.bos_token_id"], found["tokenizer.ggml.eos_token_id"]) == (0, 1)
    assert found["tokenizer.chat_template"] == "{{ messages }}"


REGEXES = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+": "qwen2",
}  # fmt: skip


@pytest.mark.parametrize("regex", REGEXES)
def test_how_texts_are_split_is_known_by_its_name(regex: str, tmp_path: Path):
    tokenizer = on_bytes(tmp_path) | {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        ]},
    }  # fmt: skip
    assert export_with(tokenizer, tmp_path)["tokenizer.ggml.pre"] == REGEXES[regex]


def test_an_unknown_way_to_split_texts_is_a_warning(tmp_path: Path):
    split = {"type": "Split", "pattern": {"Regex": r"\d"}, "behavior": "Isolated", "invert": False}
    with pytest.warns(UserWarning, match="splits texts in a way that has no name"):
        found = export_with(on_bytes(tmp_path) | {"pre_tokenizer": split, "decoder": {"type": "ByteLevel"}}, tmp_path)
    assert found["tokenizer.ggml.pre"] == "default"


def test_sentencepiece_tokens_have_scores_in_the_order_of_their_merges(tmp_path: Path):
    vocab = {"<unk>": 0, "<s>": 1, "<0x41>": 2, "▁": 3, "a": 4, "b": 5, "ab": 6, "▁ab": 7, "ba": 8}
    tokenizer = {
        "model": {"type": "BPE", "vocab": vocab, "merges": ["b a", "a b", "▁ ab"], "unk_token": "<unk>",
                  "byte_fallback": True},
        "added_tokens": [{"id": 0, "content": "<unk>", "special": True}, {"id": 1, "content": "<s>", "special": True}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        "decoder": {"type": "ByteFallback"},
    }  # fmt: skip
    found = export_with(tokenizer, tmp_path)
    assert found["tokenizer.ggml.model"] == "llama"
    assert found["tokenizer.ggml.tokens"][:9] == list(vocab)
    assert found["tokenizer.ggml.token_type"][:9] == [2, 3, 6, 1, 1, 1, 1, 1, 1]
    assert found["tokenizer.ggml.scores"][6:9] == [-1.0, -2.0, 0.0]
    assert found["tokenizer.ggml.add_space_prefix"] is True


def test_a_model_of_bytes_has_the_bytes_as_its_vocabulary(tmp_path: Path):
    sg.save_checkpoint(tmp_path / "run", sg.models.build("tiny"))
    found = values(gguf.GGUFReader(sg.models.export(tmp_path / "run", tmp_path / "model.gguf")))
    assert found["tokenizer.ggml.model"] == "gpt2"
    tokens = found["tokenizer.ggml.tokens"]
    assert len(set(tokens)) == 256
    assert (tokens[ord("a")], tokens[ord(" ")], tokens[ord("\n")], tokens[0xFF]) == ("a", "Ġ", "Ċ", "ÿ")


def test_without_a_tokenizer_the_file_has_no_vocabulary(tmp_path: Path):
    sg.save_checkpoint(tmp_path / "run", sg.models.build("tiny", vocab_size=300))
    with pytest.warns(UserWarning, match="no tokenizer.json; the file has no vocabulary"):
        found = values(gguf.GGUFReader(sg.models.export(tmp_path / "run", tmp_path / "model.gguf")))
    assert found["tokenizer.ggml.model"] == "none"


@pytest.mark.parametrize("content", ['{"model": {"type": "WordPiece", "vocab": {}}}', '{"model": 3}'])
def test_tokens_that_are_no_byte_pairs_are_refused(content: str, tmp_path: Path):
    make_model(tmp_path / "model", "llama")
    (tmp_path / "model" / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match="has no byte-pair tokens"):
        sg.models.export(tmp_path / "model", tmp_path / "model.gguf")


def test_numbers_beyond_float16_are_refused(tmp_path: Path):
    model = sg.models.build("llama-tiny")
    with sg.no_grad():
        model.lm_head.weight[3, 5] = 1e5
    sg.save_checkpoint(tmp_path / "run", model)
    for place in ("model.gguf", "folder"):
        with pytest.raises(CheckpointError, match="holds numbers beyond float16's range"):
            sg.models.export(tmp_path / "run", tmp_path / place, dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sg.save_checkpoint(tmp_path / "run", sg.models.build("tiny"))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ArgumentError, match=r"pip install 'spillgrad\[gguf\]'"):
        sg.models.export(tmp_path / "run", tmp_path / "model.gguf")
