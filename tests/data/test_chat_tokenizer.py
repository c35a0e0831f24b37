import builtins
import json
import sys

import pytest

from spillgrad.data import BPETokenizer, ChatTokenizer, Documents, Records
from spillgrad.errors import ArgumentError, DataError, SpillgradError
from tests.data.chat_templates import (
    CONVERSATIONS,
    TEMPLATES,
    TEMPLATES_THAT_REWRITE,
    TOKENIZERS,
    marked,
    unmarked,
    write_folder,
)

CHATML = unmarked(TEMPLATES["ChatML"])
CHAT = CONVERSATIONS["several turns"]


def learned(tokenizer, messages):
    """Return the text of the tokens that count, a part for each run of them."""
    tokens, counted = Documents.from_records([{"messages": messages}], tokenizer)[0]
    parts, run = [], []
    for token, counts in [*zip(tokens, counted, strict=True), (0, False)]:
        if counts:
            run.append(token)
        elif run:
            parts.append(tokenizer.decode(run))
            run = []
    return parts


def test_a_conversation_is_written_with_the_beginning_of_an_answer(tmp_path):
    tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=CHATML))
    messages = CHAT[:2]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert tokenizer.render(messages) == text + "<|im_start|>assistant\n"
    assert tokenizer.render(messages, add_generation_prompt=False) == text
    assert tokenizer.decode(tokenizer.encode(text)) == text


LEARNED = {
    "ChatML": ["Hello!<|im_end|>", "See you.<|im_end|>"],
    "Llama 2": [" Hello! </s>", " See you. </s>"],
    "Llama 3": ["Hello!<|eot_id|>", "See you.<|eot_id|>"],
    "Phi-3": ["Hello!<|end|>", "See you.<|end|>\n</s>"],
    "Zephyr": ["Hello!</s>", "See you.</s>"],
    "Alpaca": ["Hello!\n\n", "See you.\n\n"],
}


@pytest.mark.parametrize("mark", [marked, unmarked])
@pytest.mark.parametrize("name", LEARNED)
def test_what_the_assistant_says_is_learned_with_the_token_that_ends_its_turn(name, mark, tmp_path):
    tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=mark(TEMPLATES[name])))
    assert learned(tokenizer, CHAT) == LEARNED[name]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_spans_that_are_found_are_those_that_tags_mark(name, kind, tmp_path):
    found = ChatTokenizer.load(write_folder(tmp_path / "plain", kind, unmarked(TEMPLATES[name])))
    told = ChatTokenizer.load(write_folder(tmp_path / "tagged", kind, marked(TEMPLATES[name])))
    records = [{"messages": messages} for messages in CONVERSATIONS.values()]
    one, other = (Documents.from_records(Records(records, skip_bad=True), tokenizer) for tokenizer in (found, told))
    assert len(one) >= 3
    for field in ("tokens", "offsets", "counted"):
        assert getattr(one, field).tolist() == getattr(other, field).tolist()


@pytest.mark.parametrize("name", TEMPLATES_THAT_REWRITE)
def test_a_template_that_rewrites_earlier_turns_is_an_error_that_says_what_to_do(name, tmp_path):
    tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=unmarked(TEMPLATES_THAT_REWRITE[name])))
    says = (
        r"record 1: got a chat template that writes message \d differently where others .*\{% generation %\}.* skip_bad"
    )
    with pytest.raises(DataError, match=says) as caught:
        Documents.from_records([{"messages": CHAT}], tokenizer)
    assert "\n" not in str(caught.value)


def test_an_answer_that_comes_first_needs_tags(tmp_path):
    chat = [{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Hello"}]
    for name in ("Llama 3", "Qwen 2.5"):  # the first has its bos_token before a message, the second asks for one
        tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=unmarked(TEMPLATES[name])))
        with pytest.raises(DataError, match=r"writes message 1 differently .* \{% generation %\}"):
            learned(tokenizer, chat)
        tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=marked(TEMPLATES[name])))
        assert learned(tokenizer, chat)[0].startswith("Hi<|")


def test_a_conversation_that_the_template_refuses_names_its_line(tmp_path):
    folder = write_folder(tmp_path / "model", template=unmarked(TEMPLATES["Llama 2"]))
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"messages": CHAT[first:]}) + "\n" for first in (1, 2)))
    with pytest.raises(DataError, match=r"data.jsonl, line 2: got messages that the chat template refuses \(Conver"):
        Documents.from_records(Records(path), folder)
    records = Records(path, skip_bad=True)
    assert len(Documents.from_records(records, folder)) == 1
    assert records.bad_count == 1


@pytest.mark.parametrize(
    "body",
    [
        "{{ messages[7].content }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no\nmore') }}",
    ],
)
def test_a_template_that_fails_or_leaves_its_sandbox_is_an_error_of_one_line(body, tmp_path):
    tokenizer = ChatTokenizer.load(write_folder(tmp_path, template=body))
    with pytest.raises(DataError, match="render: got messages that the chat template refuses") as caught:
        tokenizer.render(CHAT)
    assert "\n" not in str(caught.value)


def test_messages_need_a_template(tmp_path):
    tokenizer = ChatTokenizer.load(write_folder(tmp_path))
    for call in (tokenizer.render, lambda messages: Documents.from_records([{"messages": messages}], tokenizer)):
        with pytest.raises(DataError, match=r"without a chat template; wanted a chat_template.jinja"):
            call(CHAT)
    with pytest.raises(DataError, match="render: got the role 'robot' in message 1"):
        ChatTokenizer.load(write_folder(tmp_path, template=CHATML)).render([{"role": "robot", "content": "Hi"}])


def test_a_text_begins_and_ends_with_the_tokenizers_tokens(tmp_path):
    for kind, first in (("of bytes", ""), ("Llama 2", "<s>")):
        tokenizer = ChatTokenizer.load(write_folder(tmp_path, kind))
        documents = Documents.from_records([{"text": "What is it?"}, {"prompt": "It", "completion": " is"}], tokenizer)
        tokens, counted = documents[0]
        assert tokenizer.decode(tokens).replace(" ", "") == f"{first}Whatisit?</s>"
        assert counted.all()
        tokens, counted = documents[1]
        assert tokenizer.decode(tokens[counted]).strip() == "is</s>"
        assert tokenizer.decode(tokens[~counted]).replace(" ", "") == f"{first}It"


def test_an_end_token_that_the_tokenizer_adds_comes_once(tmp_path):
    write_folder(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    end = BPETokenizer.load(tmp_path).tokenizer.token_to_id("</s>")
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokens, _ = Documents.from_records([{"text": "is it"}], tmp_path)[0]
    assert tokens.tolist().count(end) == 1 and tokens[-1] == end


def test_a_tokenizer_without_an_end_token_adds_none(tmp_path):
    write_folder(tmp_path)
    alone = tmp_path / "other.json"
    (tmp_path / "tokenizer.json").rename(alone)
    for tokenizer in (str(alone), BPETokenizer.load(alone)):
        tokens, _ = Documents.from_records([{"text": "is it"}], tokenizer)[0]
        assert tokens.tolist() == BPETokenizer.load(alone).encode("is it").tolist()
    assert ChatTokenizer.load(alone).eos_id is None


def test_what_a_file_says_of_cutting_and_filling_up_is_for_batches_and_not_for_texts(tmp_path):
    write_folder(tmp_path)
    tokenizer = BPETokenizer.load(tmp_path).tokenizer
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "What is it? " * 9
    assert BPETokenizer.load(tmp_path).decode(BPETokenizer.load(tmp_path).encode(text)) == text


WRONG_FOLDERS = {
    "eos_token '<eos>', which is none": {"eos_token": "<eos>"},
    "is no Jinja template .* line 1": {"template": "{% for %}"},
    "has the chat templates rag, none of them the default": {"chat_template": [{"name": "rag", "template": "a"}]},
    "neither a string nor a list": {"chat_template": [3]},
}


@pytest.mark.parametrize(("says", "config"), WRONG_FOLDERS.items())
def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(says, config, tmp_path):
    write_folder(tmp_path, **config)
    with pytest.raises(DataError, match=says) as caught:
        ChatTokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["{", "[]", "\udcff"])
def test_a_configuration_that_is_none_is_an_error_that_names_it(content, tmp_path):
    write_folder(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content, errors="surrogateescape")
    with pytest.raises(DataError, match=r"tokenizer_config.json"):
        ChatTokenizer.load(tmp_path)


def test_of_several_templates_the_default_counts(tmp_path):
    write_folder(
        tmp_path, chat_template=[{"name": "rag", "template": "a"}, {"name": "default", "template": "b{{ eos_token }}"}]
    )
    assert ChatTokenizer.load(tmp_path / "tokenizer.json").render(CHAT) == "b</s>"


def test_without_the_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *arguments):
        if name == "jinja2":
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.delitem(sys.modules, "spillgrad.data.chat_template", raising=False)
    assert ChatTokenizer.load(write_folder(tmp_path)).eos_token == "</s>"
    with pytest.raises(ArgumentError, match=r"jinja2; pip install 'spillgrad\[text\]'"):
        ChatTokenizer.load(write_folder(tmp_path, template=CHATML))


def test_a_jinja_whose_sandbox_leaks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(SpillgradError, match=r"got Jinja 3.1.5, .* pip install 'jinja2>=3.1.6'"):
        ChatTokenizer.load(write_folder(tmp_path, template=CHATML))
