"""peft and transformers load what `spillgrad export` writes, and spillgrad what peft writes, to the same logits."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
pytest.importorskip("transformers", reason="`make test-peers` installs transformers")
pytest.importorskip("peft", reason="`make test-peers` installs peft")
gguf = pytest.importorskip("gguf", reason="the test extra installs gguf")

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

import spillgrad as sg  # noqa: E402
from spillgrad_tools.cli import main  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16, "rope_theta": 500.0,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "gpt2": transformers.GPT2Config(
        vocab_size=320, n_positions=1024, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=1,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    ),
    "llama": transformers.LlamaConfig(**SIZES),
    "llama-tied": transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "mistral": transformers.MistralConfig(**SIZES, head_dim=16, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=128),
    "gemma2": transformers.Gemma2Config(
        **SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=8, tie_word_embeddings=True
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 7}, head_dim=16, query_pre_attn_scalar=16, sliding_window=8,
    ),
    "phi3": transformers.Phi3Config(**SIZES, sliding_window=None),
}  # fmt: skip
TOKENS = np.random.default_rng(5).integers(0, 256, (2, 20))


def saved(folder: Path, config: Any) -> Any:
    """Save a random model of a kind; return the model."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():  # norms and biases of fresh models are ones and zeros
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter) if name else 0
    model.save_pretrained(folder)
    return model


def logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)).logits.float().numpy()


def own_logits(model: sg.models.LanguageModel) -> np.ndarray:
    with sg.no_grad():
        found, _ = model(TOKENS)
    assert found is not None
    return found.numpy()


def assert_close(found: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-4) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def adapted(base: Path, **options: Any) -> sg.models.LanguageModel:
    """Return a model with random adapters, some of another rank."""
    model = sg.models.from_safetensors(base)
    sg.nn.lora(model, **options)
    generator = np.random.default_rng(3)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            with sg.no_grad():
                parameter.copy_(sg.tensor(generator.standard_normal(parameter.shape).astype(np.float32) * 0.3))
    return model.eval()


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("target", [None, "some", r".*\.0\..*(c_proj|down_proj)"])
def test_peft_loads_adapters_to_the_same_logits(kind: str, target: Any, tmp_path: Path):
    saved(tmp_path / "base", CONFIGS[kind])
    model = adapted(tmp_path / "base", rank=4, alpha=6.0, target=targets(kind) if target == "some" else target)
    sg.models.to_peft(model, tmp_path / "live", tmp_path / "base")
    extra = {"settings": {"weights": str(tmp_path / "base")}}
    sg.save_checkpoint(tmp_path / "run", model, trainable_only=True, extra=extra)
    assert main(["export", str(tmp_path / "run"), "--to", str(tmp_path / "adapters")]) == 0
    for folder in ("live", "adapters"):
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
        loaded = PeftModel.from_pretrained(base, tmp_path / folder)
        assert_close(logits(loaded), own_logits(model))
        again = sg.models.from_peft(tmp_path / folder)
        assert not again.training
        assert_close(own_logits(again), own_logits(model), 1e-6)


def targets(kind: str) -> list[str]:
    """Return the names of some layers of a model."""
    some = {"gpt2": ["c_attn", "c_fc"], "phi3": ["qkv_proj", "gate_up_proj"]}
    return some.get(kind, ["q_proj", "up_proj", "down_proj"])


PEFT = {
    "plain": {"r": 4, "lora_alpha": 8},
    "patterns": {
        "r": 4, "lora_alpha": 8, "rank_pattern": {r"(h|layers)\.0\..*": 2}, "alpha_pattern": {".*up_proj|c_fc": 5},
    },
    "rank-stabilized": {"r": 4, "lora_alpha": 8, "use_rslora": True, "lora_dropout": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("options", PEFT.values(), ids=PEFT)
def test_adapters_that_peft_wrote_are_loaded_and_merged_to_the_same_logits(
    kind: str, options: dict[str, Any], tmp_path: Path
):
    base = saved(tmp_path / "base", CONFIGS[kind])
    base.name_or_path = str(tmp_path / "base")
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=targets(kind), **options)).eval()
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.3 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "adapters")
    wanted = logits(model)
    assert_close(own_logits(sg.models.from_peft(tmp_path / "adapters")), wanted)
    merged = sg.models.export(tmp_path / "adapters", tmp_path / "merged", merge=True)
    assert_close(logits(AutoModelForCausalLM.from_pretrained(merged)), wanted)
    again = sg.models.export(tmp_path / "adapters", tmp_path / "again")
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), again)
    assert_close(logits(loaded), wanted)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_a_run_with_adapters_is_exported(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "base", CONFIGS[kind])
    tokenizer(tmp_path / "base")
    text = tmp_path / "text"
    text.write_text("the cat sat on the mat, the cat and the hat " * 200)
    trained = [
        sys.executable, "-m", "spillgrad", "train", "--weights", "base", "--lora", "4", "--steps", "3", "--out", "run",
        "--data", str(text), "--context", "32", "--batch", "2", "--lr", "0.05",
    ]  # fmt: skip
    subprocess.run(trained, check=True, env=_environment(), capture_output=True)
    run = sg.nn.lora(sg.models.from_safetensors("base"), 4)
    sg.load_checkpoint("run", run)
    wanted = own_logits(run.eval())
    assert np.abs(wanted - own_logits(sg.models.from_safetensors("base"))).max() > 1e-2
    for options in (["--to", "adapters"], ["--to", "merged", "--merge"], ["--to", "merged.gguf"]):
        assert main(["export", "run", *options]) == 0
    base = AutoModelForCausalLM.from_pretrained("base")
    assert_close(logits(PeftModel.from_pretrained(base, "adapters")), wanted)
    assert_close(logits(AutoModelForCausalLM.from_pretrained("merged")), wanted)
    assert_close(own_logits(sg.models.from_safetensors("merged")), wanted)
    assert_close(logits(AutoModelForCausalLM.from_pretrained(".", gguf_file="merged.gguf")), wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_folder_in_half_precision_says_so(dtype: str, tmp_path: Path):
    saved(tmp_path / "base", CONFIGS["llama"])
    wanted = logits(AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=getattr(torch, dtype)))
    sg.models.export(tmp_path / "base", tmp_path / "half", dtype=dtype, max_shard_size="20KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 2
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "half", dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(logits(loaded), wanted)


def tokenizer(folder: Path) -> Any:
    """Save a byte-pair tokenizer as Hugging Face's; return it."""
    made = sg.data.BPETokenizer.train(
        "the cat sat on the mat, the cat and the hat " * 20, 300, ["<s>", "</s>", "<pad>"]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": "{{ messages }}"}
    found = PreTrainedTokenizerFast(tokenizer_object=made.tokenizer, **special)
    found.save_pretrained(folder)
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_reads_a_gguf_file_to_the_same_logits_and_tokens(kind: str, tmp_path: Path):
    wanted = logits(saved(tmp_path / "base", CONFIGS[kind]))
    ours = tokenizer(tmp_path / "base")
    sg.models.export(tmp_path / "base", tmp_path / "model.gguf", dtype="float32")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    if kind == "llama-tied":  # this reader knows no factors of rotations
        loaded.model.rotary_emb = type(loaded.model.rotary_emb)(CONFIGS[kind])
    if kind.startswith("gemma"):  # nor the scale of queries
        for layer in loaded.model.layers:
            layer.self_attn.scaling = 16**-0.5
    assert_close(logits(loaded), wanted)
    text = "the cat sat on ünïcödé"
    again = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert again(text, add_special_tokens=False)["input_ids"] == ours(text, add_special_tokens=False)["input_ids"]
    assert (again.bos_token_id, again.eos_token_id) == (0, 1)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_of_a_model_gives_the_same_gguf_file_as_its_folder(kind: str, tmp_path: Path):
    saved(tmp_path / "base", CONFIGS[kind])
    tokenizer(tmp_path / "base")
    sg.save_checkpoint(tmp_path / "run", sg.models.from_safetensors(tmp_path / "base"))
    sg.models.export(tmp_path / "base", tmp_path / "base.gguf")
    sg.models.export(tmp_path / "run", tmp_path / "run.gguf", tokenizer=tmp_path / "base")
    readers = [gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("base", "run")]
    told, again = ({name: field.contents() for name, field in reader.fields.items()} for reader in readers)
    assert told.pop("general.name") == "base" and again.pop("general.name") == "run"
    assert again == told
    tensors, others = ({tensor.name: tensor.data.tobytes() for tensor in reader.tensors} for reader in readers)
    assert others == tensors


def test_a_folder_takes_its_tokenizer_along(tmp_path: Path):
    saved(tmp_path / "base", CONFIGS["llama"])
    ours = tokenizer(tmp_path / "base")
    model = adapted(tmp_path / "base", rank=2)
    sg.models.to_peft(model, tmp_path / "adapters", tmp_path / "base")
    sg.models.export(tmp_path / "adapters", tmp_path / "merged", merge=True)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("the hat") == ours("the hat")
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["torch_dtype"] == "float32"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
