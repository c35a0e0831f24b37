"""A folder of transformers in, conversations, adapters for peft out, and answers: the whole chain."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import spillgrad as sg

# peft's and transformers' own advice.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
DOES = {"cat": "sleeps", "dog": "runs", "bird": "sings", "fish": "swims", "horse": "jumps"}
CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"What does the {color} {animal} do?"},
            {"role": "assistant", "content": f"The {color} {animal} {verb}."},
        ]
    }
    for color in ("red", "blue", "green", "black")
    for animal, verb in DOES.items()
    for _ in range(10)
]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(CHATS) == 200
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    tokens = Tokenizer(models.BPE())
    tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokens.train_from_iterator([message["content"] for chat in CHATS for message in chat["messages"]], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained("base")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained("base")
    return tmp_path


def spillgrad(*words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "spillgrad_tools", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_is_trained_within_its_memory_evaluated_exported_and_asked(here):
    printed = spillgrad(
        "train", "--weights", "base", "--data", "chats.jsonl", "--lora", "8", "--ram", "600MiB", "--steps", "120",
        "--batch", "8", "--context", "64", "--lr", "0.01", "--out", "run",
    )  # fmt: skip
    assert "within 600 MiB of RAM" in printed
    held_out = float(printed.split("held-out loss")[1].split()[0])
    assert held_out < 0.2  # the answers follow from the questions
    spillgrad("export", "run", "--to", "adapters")
    base = AutoModelForCausalLM.from_pretrained("base")
    tuned = PeftModel.from_pretrained(base, "adapters").eval()
    question = "What does the blue bird do?"
    asked = AutoTokenizer.from_pretrained("base").apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        wanted = tuned(**asked).logits.numpy()
    for place in ("run", "adapters"):
        found = sg.models.from_pretrained(place)(asked["input_ids"].numpy())[0].numpy(force=True)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
    answers = {
        spillgrad("generate", "--weights", place, "--prompt", question, "--temperature", "0")
        for place in ("run", "adapters")
    }
    assert answers == {"The blue bird sings.\n"}
    theirs = tuned.generate(**asked, max_new_tokens=20, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert AutoTokenizer.from_pretrained("base").decode(theirs, skip_special_tokens=True) == "The blue bird sings."
