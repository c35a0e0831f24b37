"""Models of transformers and torchvision train with all of their training on disk as in RAM, bit for bit."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")
transformers = pytest.importorskip("transformers", reason="`make test-peers` installs transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

from spillgrad.interop.torch import disk_offload, save_on_disk  # noqa: E402
from spillgrad.interop.torch.offloaded_tensor import OffloadedParameter  # noqa: E402
from tests.interop.torch_models import all_same  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

WIDTH, WORDS, LENGTH, PIXELS = 256, 300, 24, 32
HEADS = {"num_attention_heads": 4}
DECODER = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": 2, **HEADS,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENCODER = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": 2, **HEADS,
    "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
VISION = {"image_size": PIXELS, "patch_size": 8, "num_labels": 10}
T5 = {"vocab_size": WORDS, "d_model": WIDTH, "d_kv": 64, "d_ff": 512, "num_layers": 2, "num_heads": 4}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
GEMMA = {**DECODER, "head_dim": 64}


def words() -> dict[str, Any]:
    tokens = torch.randint(3, WORDS, (2, LENGTH))
    return {"input_ids": tokens, "labels": tokens}


def class_of_words() -> dict[str, Any]:
    return {"input_ids": torch.randint(3, WORDS, (2, LENGTH)), "labels": torch.tensor([0, 1])}


def images() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, PIXELS, PIXELS), "labels": torch.tensor([3, 7])}


def images_and_words() -> dict[str, Any]:
    return {"input_ids": words()["input_ids"], "pixel_values": images()["pixel_values"], "return_loss": True}


def sound() -> dict[str, Any]:
    return {"input_features": torch.randn(2, 80, 64), "labels": words()["labels"]}


def of(config: str, model: str, **options: Any) -> Callable[[], Any]:
    """Return a function that builds a model of transformers, given the names of the classes and their options."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(**options))


def clip() -> Any:
    parts = {"hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": 2, **HEADS}
    config = transformers.CLIPConfig(
        text_config={**parts, "vocab_size": WORDS, "max_position_embeddings": 64, "eos_token_id": 2},
        vision_config={**parts, "image_size": PIXELS, "patch_size": 8},
        projection_dim=64,
    )
    return transformers.CLIPModel(config)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "GPT-2": (
        of("GPT2Config", "GPT2LMHeadModel", n_embd=WIDTH, n_layer=2, n_head=4, vocab_size=WORDS, n_positions=64), words,
    ),
    "GPT-NeoX": (of("GPTNeoXConfig", "GPTNeoXForCausalLM", **ENCODER), words),
    "OPT": (of("OPTConfig", "OPTForCausalLM", **ENCODER, ffn_dim=512, word_embed_proj_dim=WIDTH), words),
    "Llama": (of("LlamaConfig", "LlamaForCausalLM", **DECODER), words),
    "Llama, tied": (of("LlamaConfig", "LlamaForCausalLM", **DECODER, tie_word_embeddings=True), words),
    "Mistral": (of("MistralConfig", "MistralForCausalLM", **DECODER), words),
    "Mixtral": (
        of("MixtralConfig", "MixtralForCausalLM", **{**DECODER, "num_hidden_layers": 3}, num_local_experts=4,
           num_experts_per_tok=2),
        words,
    ),
    "Qwen2": (of("Qwen2Config", "Qwen2ForCausalLM", **DECODER), words),
    "Qwen3": (of("Qwen3Config", "Qwen3ForCausalLM", **DECODER, head_dim=64), words),
    "Qwen3 MoE": (of("Qwen3MoeConfig", "Qwen3MoeForCausalLM", **DECODER, head_dim=64, **MIXTURE), words),
    "Gemma 2": (of("Gemma2Config", "Gemma2ForCausalLM", **GEMMA), words),
    "Gemma 3": (of("Gemma3TextConfig", "Gemma3ForCausalLM", **GEMMA), words),
    "Phi-3": (of("Phi3Config", "Phi3ForCausalLM", **DECODER), words),
    "OLMo 2": (of("Olmo2Config", "Olmo2ForCausalLM", **DECODER), words),
    "Mamba": (
        of("MambaConfig", "MambaForCausalLM", vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=3, pad_token_id=0),
        words,
    ),
    "BERT": (of("BertConfig", "BertForSequenceClassification", **ENCODER), class_of_words),
    "RoBERTa": (of("RobertaConfig", "RobertaForMaskedLM", **ENCODER), words),
    "DistilBERT": (
        of("DistilBertConfig", "DistilBertForMaskedLM", vocab_size=WORDS, dim=WIDTH, hidden_dim=512, n_layers=2,
           n_heads=4, max_position_embeddings=64),
        words,
    ),
    "T5": (of("T5Config", "T5ForConditionalGeneration", **T5, decoder_start_token_id=0), words),
    "BART": (
        of("BartConfig", "BartForConditionalGeneration", vocab_size=WORDS, d_model=WIDTH, encoder_layers=2,
           decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512,
           decoder_ffn_dim=512, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
           decoder_start_token_id=1),
        words,
    ),
    "Whisper": (
        of("WhisperConfig", "WhisperForConditionalGeneration", vocab_size=WORDS, d_model=WIDTH, encoder_layers=2,
           decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512,
           decoder_ffn_dim=512, max_source_positions=32, max_target_positions=64, num_mel_bins=80, pad_token_id=0,
           bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
        sound,
    ),
    "CLIP": (clip, images_and_words),
    "ViT": (
        of("ViTConfig", "ViTForImageClassification", hidden_size=WIDTH, intermediate_size=512, num_hidden_layers=2,
           **HEADS, **VISION),
        images,
    ),
    "Swin": (
        of("SwinConfig", "SwinForImageClassification", embed_dim=96, depths=[1, 1], num_heads=[2, 4], window_size=4,
           image_size=PIXELS, patch_size=2, num_labels=10),
        images,
    ),
    "ConvNeXt": (
        of("ConvNextConfig", "ConvNextForImageClassification", hidden_sizes=[64, 128, 192, 256], depths=[1, 1, 1, 1],
           num_labels=10),
        images,
    ),
    "ResNet": (
        of("ResNetConfig", "ResNetForImageClassification", embedding_size=64, hidden_sizes=[64, 128, 256, 256],
           depths=[1, 1, 1, 1], layer_type="basic", num_labels=10),
        images,
    ),
    "MobileNet V2": (
        of("MobileNetV2Config", "MobileNetV2ForImageClassification", image_size=PIXELS, num_labels=10), images,
    ),
}  # fmt: skip


def trained(model: Any, optimizer: Any, given: Callable[[], dict[str, Any]], offload: Any = None) -> list[Any]:
    """Train 5 steps; return the losses, and clones of the parameters and buffers."""
    torch.manual_seed(1)
    losses = []
    model.train()
    for _ in range(5):
        batch = given()
        if offload is None:
            loss = model(**batch).loss
        else:
            with save_on_disk(offload):
                loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [*losses, *(value.clone() for value in (*model.parameters(), *model.buffers()))]


def make_optimizer(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_within_a_quarter_of_its_state_as_in_ram(name: str, directory: Path):
    build, given = MODELS[name]
    torch.manual_seed(0)
    model = build()
    budget = sum(4 * parameter.nbytes for parameter in model.parameters()) // 4
    wanted = trained(model, make_optimizer(model.parameters()), given)
    for in_backward in (False, True):
        torch.manual_seed(0)
        offload = disk_offload(build(), make_optimizer, directory, ram_budget=budget, step_in_backward=in_backward)
        got = trained(offload.model, offload.optimizer, given, offload)
        assert offload.stats().peak_ram_bytes <= budget
        assert all_same(got, wanted)
        assert any(isinstance(parameter, OffloadedParameter) for parameter in offload.model.parameters())
