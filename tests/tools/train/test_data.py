"""Training on records with the tokenizer of a model folder, from the command line and from the loop."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad.nn.functional import cross_entropy
from spillgrad_tools.cli import main
from spillgrad_tools.train.data import Batch, TrainingData, tokenizer_of
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ANSWERS = ["It runs.", "It sleeps all day long.", "No."]
CHATS = [
    {"messages": [{"role": "user", "content": f"What of the {animal}?"}, {"role": "assistant", "content": answer}]}
    for animal in ("cat", "dog", "bird", "old horse")
    for answer in ANSWERS
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with a model folder `base`, and data files."""
    place = tmp_path_factory.mktemp("made")
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
    texts = [message["content"] for chat in CHATS for message in chat["messages"]]
    tokenizer = sg.data.BPETokenizer.train(texts, 300, special)
    sg.manual_seed(0)
    config = sg.models.DecoderConfig(
        model_type="qwen2", vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=24,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    version = sg.save_checkpoint(place / "saved", sg.models.Decoder(config))
    base = place / "base"
    base.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(version / name, base)
    tokenizer.save(base / "tokenizer.json")
    (base / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    )
    lines = [json.dumps(chat) for chat in CHATS]
    (place / "chat.jsonl").write_text("\n".join(lines) + "\n")
    (place / "bad.jsonl").write_text("\n".join([*lines[:4], '{"messages": []}', *lines[4:]]) + "\n")
    (place / "plain.txt").write_text("The cat sleeps. The dog runs all day long. " * 40)
    return place


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**changes):
    return TrainSettings(**{"weights": "base", "steps": 4, "batch": 2, "context": 48, "lr": 0.01, **changes})


def data(path="chat.jsonl", **options):
    return TrainingData.load(Path(path), tokenizer="base", **options)


def mean_loss_of_answers(model, documents, numbers):
    """Return the mean loss of the tokens that count, of each document alone."""
    losses, count = 0.0, 0
    for number in numbers:
        tokens, counted = documents[number]
        logits = model(tokens[None, :-1].astype(np.int64))[0][0]
        places = np.flatnonzero(counted[1:])
        wanted = sg.tensor(tokens[1:][places].astype(np.int64))
        losses += cross_entropy(logits[sg.tensor(places)], wanted, reduction="sum").item()
        count += len(places)
    return losses / count


@pytest.mark.parametrize("packed", [True, False])
def test_the_loss_is_the_mean_over_the_answers_of_documents_that_do_not_see_each_other(here, packed):
    found = data()
    # One step over all documents, most of which share rows if they are packed.
    training = Training(settings(packed=packed, batch=32, steps=1), found)
    train_batch = next(training.data.train_batches(0))
    is_learned = train_batch.y != -100
    assert (np.diff(train_batch.starts * is_learned) > 0).any() == packed
    model = sg.models.from_safetensors("base")
    loss = model(*train_batch)[1].item()
    # The last token of a document is a target alone.
    numbers = {tuple(found.content[number][0][:-1].tolist()): number for number in range(len(found.content))}
    pieces = [
        tuple(row.x[row.starts == start].tolist())
        for row in map(Batch._make, zip(*train_batch, strict=True))
        for start in np.unique(row.starts)
        if (row.y[row.starts == start] != -100).any()
    ]
    wanted = mean_loss_of_answers(model, found.content, [numbers[piece] for piece in pieces])
    assert loss == pytest.approx(wanted, rel=1e-5)
    assert next(training.steps()).loss == pytest.approx(loss, rel=1e-5)


def test_batches_of_a_step_count_by_their_answers(here):
    losses = [
        [record.loss for record in Training(settings(batch=batch, accumulate=accumulate), data()).steps()]
        for batch, accumulate in ((4, 1), (2, 2), (1, 4))
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_a_resumed_run_has_the_numbers_of_one_that_was_never_stopped(here):
    whole = Training(settings(lora=2), data())
    wanted = [record.loss for record in whole.steps()]
    part = Training(settings(lora=2), data())
    steps = part.steps()
    found = [next(steps).loss, next(steps).loss]
    part.save(here / "part")
    shutil.copytree(here / "base", here / "moved")
    kept = dataclasses.replace(Training.settings_of(here / "part")[0], weights="moved", tokenizer="moved")
    again = Training(kept, TrainingData.load(Path("chat.jsonl"), tokenizer="moved"), here / "part")
    found += [record.loss for record in again.steps()]
    assert found == wanted


def test_the_command_trains_on_conversations_and_shows_an_answer(here, capsys):
    words = ["train", "--weights", "base", "--data", "chat.jsonl", "--lora", "2", "--steps", "3", "--batch", "2"]
    assert main([*words, "--context", "48", "--out", "out"]) == 0
    printed = capsys.readouterr().out
    assert "nats/token" in printed
    assert "<|user|>What of the" in printed
    assert sg.load_checkpoint("out")["extra"]["settings"]["tokenizer"] == "base"
    assert main(["train", "--resume", "out", "--data", "chat.jsonl", "--steps", "4"]) == 0


def test_a_text_is_cut_into_windows_of_tokens_and_a_model_may_be_new(here, capsys):
    words = ["--data", "plain.txt", "--steps", "2", "--batch", "2", "--context", "16"]
    assert main(["train", "--weights", "base", *words, "--out", "old"]) == 0
    assert main(["train", "--model", "tiny", "--tokenizer", "base", *words, "--out", "new"]) == 0
    known = data().vocab_size
    assert sg.load_checkpoint("new")["config"]["vocab_size"] == known
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--data", "bad.jsonl"], ["bad.jsonl, line 5", "--skip-bad"]),
        (["--data", "nowhere.jsonl"], ["nowhere.jsonl does not exist"]),
        (["--data", "chat.jsonl", "--eval-data", "plain.txt"], ["one holds records and one a text"]),
        (["--data", "plain.txt", "--eval-data", "plain.txt"], ["--eval-data for a text"]),
        (["--data", "chat.jsonl", "--context", "65"], ["--context 65", "64 positions"]),
        (["--data", "chat.jsonl", "--tokenizer", "nowhere"], ["nowhere"]),
    ],
)
def test_data_that_cannot_be_used_is_one_line(here, capsys, words, says):
    assert main(["train", "--weights", "base", "--context", "48", *words]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert [word for word in says if word not in printed.err] == []


def test_bad_records_are_left_out_and_counted_when_that_is_asked_for(here, capsys):
    words = ["train", "--weights", "base", "--data", "bad.jsonl", "--skip-bad", "--steps", "1", "--batch", "2"]
    assert main([*words, "--context", "48"]) == 0
    assert "left out 1 bad record" in capsys.readouterr().out


def test_conversations_need_a_chat_template(here, capsys):
    assert main(["train", "--data", "chat.jsonl", "--model", "tiny", "--steps", "1"]) == 2
    assert "messages for a model of bytes" in capsys.readouterr().err


def test_tokens_of_another_model_are_refused(here):
    with pytest.raises(ArgumentError, match="for a model of 256 tokens"):
        data("plain.txt").require_tokens_of(256)
    assert tokenizer_of("base") == "base"
    assert tokenizer_of("base/model.safetensors") == "base"
    assert tokenizer_of("saved") is None


def test_evaluation_may_have_data_of_its_own(here):
    lines = (here / "chat.jsonl").read_text().splitlines()
    (here / "eval.jsonl").write_text("\n".join(lines[:3]) + "\n")
    found = data(eval_path=Path("eval.jsonl"))
    training = Training(settings(batch=1, steps=10), found)
    model = sg.models.from_safetensors("base")
    wanted = mean_loss_of_answers(model, found.held_out, range(3))
    assert training.held_out_loss().loss == pytest.approx(wanted, rel=1e-5)
    assert found.digest != data().digest


def test_a_folder_of_json_files_alone_holds_records(here, capsys):
    folder = here / "folder"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(CHATS[:6]))
    (folder / "b.json").write_text("\n".join(map(json.dumps, CHATS[6:])))
    found = TrainingData.load(folder, tokenizer="base")
    assert isinstance(found.content, sg.data.Documents)
    assert found.digest == data().digest
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    words = ["train", "--weights", "base", "--data", "folder", "--steps", "1", "--batch", "2", "--context", "48"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert ("folder/config.json, line 1: got an object with the keys model_type" in error, error.count("\n")) == (
        True,
        1,
    )
    (folder / "notes.txt").write_text("a folder of texts, which may hold other files, too")
    assert isinstance(TrainingData.load(folder, tokenizer="base").content, np.ndarray)
