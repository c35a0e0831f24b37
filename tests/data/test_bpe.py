import builtins
import itertools
import subprocess
import sys

import numpy as np
import pytest
import tokenizers

import spillgrad as sg
from spillgrad.data import BPEDataset, BPETokenizer, bpe, load_text
from spillgrad.errors import ArgumentError, DataError

TEXT = "the cat in the hat sat on the mat, and the rat ran. " * 40


def test_any_text_comes_back():
    tokenizer = BPETokenizer.train(TEXT, 300)
    for text in ("the cat", " a  b\n\n\tc ", "é☃ 日本", "\x00\x7f", ""):
        tokens = tokenizer.encode(text)
        assert tokens.dtype == np.int64
        assert tokenizer.decode(tokens) == text
    assert tokenizer.decode(sg.tensor(tokenizer.encode("the mat"))) == "the mat"


def test_frequent_pairs_become_one_token():
    tokenizer = BPETokenizer.train(TEXT, 300)
    assert 256 < tokenizer.vocab_size <= 300
    assert len(tokenizer.encode(" the")) == 1
    assert len(tokenizer.encode(TEXT)) < len(TEXT) / 3
    assert len(BPETokenizer.train(TEXT, 256).encode(TEXT)) == len(TEXT)


def test_the_same_text_gives_the_same_tokens():
    text = load_text()[:60_000]
    first, second = (BPETokenizer.train(text, 600) for _ in range(2))
    assert first.tokenizer.to_str() == second.tokenizer.to_str()
    assert BPETokenizer.train(iter([TEXT[:999], TEXT[999:]]), 300).vocab_size > 256


def test_special_tokens_are_one_token_and_come_back():
    tokenizer = BPETokenizer.train(TEXT, 300, ["<|end|>"])
    tokens = tokenizer.encode("cat<|end|>")
    assert tokens[-1] == 0
    assert tokenizer.decode(tokens) == "cat<|end|>"


def test_a_tokenizer_is_saved_and_loaded_as_hugging_faces(tmp_path):
    tokenizer = BPETokenizer.train(TEXT, 300)
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        assert BPETokenizer.load(path).encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert repr(tokenizer) == f"BPETokenizer(vocab_size={tokenizer.vocab_size})"


@pytest.mark.parametrize("kind", ["trained", "file", "number"])
def test_a_dataset_cuts_windows_of_tokens(tmp_path, kind):
    trained = BPETokenizer.train(TEXT, 300)
    trained.save(tmp_path / "tokenizer.json")
    given = {"trained": trained, "file": tmp_path / "tokenizer.json", "number": 300}[kind]
    data = BPEDataset(TEXT, given, context=8, batch=3, seed=1)
    tokens = trained.encode(TEXT).tolist()
    windows = {tuple(tokens[i : i + 9]) for i in range(len(tokens) - 8)}
    for x, y in itertools.islice(data.train_batches(), 20):
        assert x.dtype == y.dtype == np.int64
        assert x.shape == y.shape == (3, 8)
        assert (x[:, 1:] == y[:, :-1]).all()
        assert {(*row, last) for row, last in zip(x.tolist(), y[:, -1].tolist(), strict=True)} <= windows
    assert data.train_tokens + data.held_out_tokens == len(tokens)
    assert TEXT.startswith(data.tokenizer.decode(tokens[:20]))


def test_a_model_learns_the_tokens(tmp_path):
    data = BPEDataset(TEXT.encode(), 300, context=16, batch=4, seed=1)
    sg.manual_seed(0)
    model = sg.models.build("llama-tiny", context=16, vocab_size=data.tokenizer.vocab_size)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for x, y in itertools.islice(data.train_batches(), 15):
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_too_few_tokens_are_refused():
    with pytest.raises(ArgumentError, match="vocab_size 100; all bytes and special tokens take 257"):
        BPETokenizer.train(TEXT, 100, ["<|end|>"])


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "cannot be read"), (b"{}", "no tokenizer.json"), (b"\xff\xfe", "cannot be read"), (b"{", "no tokenizer")],
)
def test_what_is_no_tokenizer_is_an_error_that_names_it(tmp_path, content, says):
    path = tmp_path / "it.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        BPETokenizer.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf_8_is_refused():
    with pytest.raises(DataError, match="not UTF-8"):
        BPEDataset(b"\xff" * 100, 256, context=2, batch=1, seed=0)


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(DataError, match=r"got \d+ tokens of text; context 64 needs at least 130"):
        BPEDataset("the cat " * 9, 256, context=64, batch=1, seed=0)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def refuse(name, *arguments):
        if name == "tokenizers":
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ArgumentError, match=r"tokenizers; pip install 'spillgrad\[text\]'"):
        BPETokenizer.train(TEXT, 300)


def test_importing_spillgrad_does_not_load_the_package():
    program = "import sys, spillgrad; print('tokenizers' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, capture_output=True, text=True
    )
    assert ended.stdout == "False\n", ended.stderr


def gpt2_like() -> BPETokenizer:
    return BPETokenizer.train(TEXT, 400)


def llama2_like() -> BPETokenizer:
    """Spaces become a sign of their own, one of which is put before the text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    return BPETokenizer(tokenizer)


def llama3_like() -> BPETokenizer:
    """A pattern cuts words; long runs of spaces and of digits are tokens."""
    pattern = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    pre = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(tokenizers.Regex(pattern), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return BPETokenizer(tokenizer)


@pytest.mark.parametrize("make", [gpt2_like, llama2_like, llama3_like])
@pytest.mark.parametrize(
    "text",
    [
        TEXT * 9,
        "Ünïcödé — 你好 世界 🎉\n\n\n" * 60,
        "a" * 2000,
        " " * 900 + "x" * 900 + TEXT,
        "1234567890" * 99,
        "a",
        "",
    ],
    ids=["english", "signs", "one word", "long runs", "digits", "a letter", "nothing"],
)
def test_a_text_in_parts_has_the_tokens_of_the_whole(make, text, monkeypatch):
    monkeypatch.setattr(bpe, "_PART", 256)
    monkeypatch.setattr(bpe, "_OVERLAP", 128)
    tokenizer = make()
    whole = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text).tolist() == whole
    compact = tokenizer.encode_compactly(text)
    assert compact.dtype == np.min_scalar_type(tokenizer.vocab_size - 1) and compact.tolist() == whole
