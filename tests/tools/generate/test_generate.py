"""`spillgrad generate`: what it writes, from which folders, within which memory, and what it refuses."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_tools.cli import main
from spillgrad_tools.generate.texts import TextStream

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a model of Hugging Face's layout, `base`, and one without a tokenizer, `bytes`."""
    place = tmp_path_factory.mktemp("models")
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    tokenizer = sg.data.BPETokenizer.train("What does the cat do? It sleeps. Ä ö 字 " * 9, 300, special)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "max_position_embeddings": 48}
    for name, tokens in (("base", tokenizer.vocab_size), ("bytes", 256)):
        sg.manual_seed(0)
        config = sg.models.DecoderConfig(vocab_size=tokens, num_hidden_layers=2, initializer_range=0.3, **sizes)
        version = sg.save_checkpoint(place / "saved", sg.models.Decoder(config))
        (place / name).mkdir()
        for file in ("model.safetensors", "config.json"):
            (version / file).rename(place / name / file)
    tokenizer.save(place / "base" / "tokenizer.json")
    (place / "base" / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    )
    return place


@pytest.fixture(autouse=True)
def here(folder, tmp_path, monkeypatch):
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)


def generated(capsys, *words):
    assert main(["generate", "--json", "--temperature", "0", "--max-tokens", "8", *words]) == 0
    return json.loads(capsys.readouterr().out)


def greedy(model, tokens, count):
    for _ in range(count):
        tokens = np.append(tokens, model(tokens[None])[0].numpy(force=True)[0, -1].argmax())
    return tokens


def test_the_answer_is_what_whole_passes_give_for_the_chat_templates_text(capsys):
    found = generated(capsys, "--weights", "base", "--prompt", "What does the cat do?", "--system", "Be short.")
    tokenizer = sg.data.ChatTokenizer.load("base")
    asked = tokenizer.encode("<s><|system|>Be short.</s><|user|>What does the cat do?</s><|assistant|>")
    model = sg.models.from_safetensors("base")
    wanted = greedy(model, asked, 8)[len(asked) :].tolist()
    wanted = wanted[: wanted.index(tokenizer.eos_id)] if tokenizer.eos_id in wanted else wanted
    assert found["text"] == tokenizer.decode(wanted)
    assert found["prompt_tokens"] == len(asked)


def test_without_a_chat_the_model_goes_on_from_the_text(capsys):
    found = generated(capsys, "--weights", "base", "--prompt", "What does", "--no-chat")
    tokenizer = sg.data.ChatTokenizer.load("base")
    assert found["prompt_tokens"] == len(tokenizer.encode("What does"))


def test_a_model_of_bytes_needs_no_tokenizer(capsys):
    found = generated(capsys, "--weights", "bytes", "--prompt", "ab")
    wanted = greedy(sg.models.from_safetensors("bytes"), np.array([97, 98]), 8)[2:]
    assert found["text"] == bytes(wanted.tolist()).decode(errors="replace")


def test_every_kind_of_folder_gives_the_same_answer(capsys):
    words = ["--weights", "base", "--lora", "2", "--lr", "0.1", "--data", "chat.jsonl", "--steps", "3", "--batch", "2"]
    lines = [{"messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "It."}]}] * 8
    Path("chat.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["train", *words, "--context", "32", "--out", "run"]) == 0
    assert main(["export", "run", "--to", "adapters"]) == 0
    assert main(["export", "run", "--to", "whole", "--merge"]) == 0
    capsys.readouterr()
    asked = ["--prompt", "What does the cat do?"]
    texts = [generated(capsys, "--weights", name, *asked)["text"] for name in ("run", "adapters", "whole")]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0] != generated(capsys, "--weights", "base", *asked)["text"]


def test_adapters_of_weights_that_a_run_drew_are_merged_too(capsys):
    words = ["--model", "llama-tiny", "--lora", "2", "--lr", "0.1", "--steps", "3", "--batch", "2", "--context", "32"]
    assert main(["train", *words, "--out", "drawn"]) == 0
    capsys.readouterr()
    sg.manual_seed(1)
    model = sg.nn.lora(sg.models.build("llama-tiny", context=32), 2)
    sg.load_checkpoint("drawn", model)
    np.testing.assert_allclose(
        sg.models.from_pretrained("drawn")(np.ones((1, 5), np.int64))[0].numpy(force=True),
        model.eval()(np.ones((1, 5), np.int64))[0].numpy(force=True), rtol=0, atol=1e-4,
    )  # fmt: skip


def test_text_is_printed_as_it_comes_and_the_prompt_may_come_from_a_pipe(capsys, monkeypatch):
    asked = ["generate", "--weights", "base", "--temperature", "0", "--max-tokens", "8"]
    assert main([*asked, "--prompt", "What does the cat do?"]) == 0
    printed = capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("What does the cat do?"))
    assert main([*asked, "--prompt", "-"]) == 0
    assert capsys.readouterr().out == printed.out != "\n"
    assert printed.err == ""


def test_letters_of_several_tokens_are_given_out_whole():
    tokenizer = sg.data.BPETokenizer.train("abc", 256)
    text = "Ä字x🦙" * 80 + "é"
    stream = TextStream(tokenizer.decode)
    pieces = [stream.add(int(token)) for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + stream.rest() == text
    stream.add(int(tokenizer.encode("字")[0]))
    assert stream.rest() == "\ufffd"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--weights", "nowhere"], ["nowhere does not exist"]),
        (["--weights", "base", "--no-chat", "--prompt", ""], ["empty prompt"]),
        (["--weights", "base", "--prompt", "cat " * 60], ["48 positions"]),
        (["--weights", "bytes", "--chat"], ["no tokenizer.json", "--tokenizer"]),
        (["--weights", "bytes", "--system", "x"], ["no tokenizer.json"]),
        (["--weights", "base", "--no-chat", "--system", "x"], ["--system without a chat template"]),
        (["--weights", "base", "--ram", "1MiB"], ["too little", "the least is"]),
        (["--weights", "base", "--ram", "much"], ["much"]),
        (["--weights", "base", "--top-p", "0"], ["top_p 0"]),
        (["--weights", "base", "--base", "bytes"], ["base"]),
    ],
)
def test_what_cannot_be_generated_from_is_one_line(capsys, words, says):
    words = words if "--prompt" in words else [*words, "--prompt", "x"]
    assert main(["generate", *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert [word for word in says if word not in printed.err] == []


LARGE = """
import sys
import spillgrad as sg
sg.manual_seed(0)
config = sg.models.DecoderConfig(
    vocab_size=256, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
    max_position_embeddings=64,
)
print(sg.save_checkpoint(sys.argv[1], sg.models.Decoder(config)))
"""


def test_weights_that_do_not_fit_are_read_from_disk_to_the_same_text(tmp_path):
    """434 MiB of weights in a process of 320 MiB."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(*words):
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    version = run("-c", LARGE, str(tmp_path / "saved")).strip()
    texts, places = set(), []
    for ram in (["--ram", "320MiB"], []):
        asked = ["--weights", version, "--prompt", "ab", "--max-tokens", "6", "--temperature", "0", "--json"]
        found = json.loads(run("-m", "spillgrad_tools", "generate", *asked, *ram))
        texts.add(found["text"])
        places.append(found["weights"])
    assert len(texts) == 1
    assert "on disk" in places[0]
    assert "in RAM" in places[1] and "on disk" not in places[1]
