"""Conversations become the same text, tokens and masks as with transformers."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="`make test-peers` installs transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

from jinja2 import TemplateError
from transformers import AutoTokenizer

from spillgrad.data import ChatTokenizer, Documents
from spillgrad.errors import DataError
from tests.data.chat_templates import (
    CONVERSATIONS,
    TEMPLATES,
    TEMPLATES_THAT_REWRITE,
    TOKENIZERS,
    marked,
    unmarked,
    write_folder,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
ALL = TEMPLATES | TEMPLATES_THAT_REWRITE


def refused(tokenizer: Any, messages: list[dict[str, Any]], template: str) -> bool:
    """Whether the template raises, which it then does here too."""
    try:
        tokenizer.apply_chat_template(messages, tokenize=False, chat_template=template)
    except (TemplateError, TypeError):
        return True
    return False


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", ALL)
def test_texts_tokens_and_masks_equal_those_of_transformers(name: str, kind: str, tmp_path: Path):
    plain, tagged = unmarked(ALL[name]), marked(ALL[name])
    theirs = AutoTokenizer.from_pretrained(write_folder(tmp_path / "plain", kind, plain))
    ours = ChatTokenizer.load(tmp_path / "plain")
    ours_tagged = ChatTokenizer.load(write_folder(tmp_path / "tagged", kind, tagged))
    compared = 0
    for messages in CONVERSATIONS.values():
        record = {"messages": messages}
        if refused(theirs, messages, plain):
            with pytest.raises(DataError, match="chat template refuses"):
                ours.render(messages)
            continue
        for prompt in (False, True):
            text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
            assert ours.render(messages, add_generation_prompt=prompt) == text
            tokens = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
            assert ours.encode(text).tolist() == tokens
        expected = theirs.apply_chat_template(
            messages, chat_template=tagged, return_dict=True, return_assistant_tokens_mask=True
        )
        mask = np.array(expected["assistant_masks"], np.bool_)
        tokens, counted = Documents.from_records([record], ours_tagged)[0]
        assert (tokens.tolist(), counted.tolist()) == (expected["input_ids"], mask.tolist())
        try:
            tokens, counted = Documents.from_records([record], ours)[0]
        except DataError as error:
            assert name in TEMPLATES_THAT_REWRITE and "generation" in str(error)
            continue
        assert (tokens.tolist(), counted.tolist()) == (expected["input_ids"], mask.tolist())
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_text_gets_the_tokens_that_the_tokenizer_puts_around_it(kind: str, tmp_path: Path):
    theirs = AutoTokenizer.from_pretrained(write_folder(tmp_path, kind))
    for text in ("What is 1 + 1?", " naïve ☃\n", "</s> in a text"):
        tokens, counted = Documents.from_records([{"text": text}], tmp_path)[0]
        assert tokens.tolist() == [*theirs(text)["input_ids"], theirs.eos_token_id]
        assert counted.all()


def test_a_special_token_that_is_an_ordinary_one_in_the_file_becomes_special(tmp_path: Path):
    theirs = AutoTokenizer.from_pretrained(write_folder(tmp_path, eos_token="is", unk_token="s"))
    ours = ChatTokenizer.load(tmp_path)
    for text in ("What is this?", "is", "assistant"):
        assert ours.encode(text).tolist() == theirs(text, add_special_tokens=False)["input_ids"]
    assert ours.eos_id == theirs.eos_token_id


@pytest.mark.parametrize("has_decoder", [False, True])
def test_special_tokens_come_from_the_same_files(has_decoder: bool, tmp_path: Path):
    template = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}"
    extra = {"added_tokens_decoder": {}} if has_decoder else {}
    write_folder(tmp_path, template=template, unk_token={"content": "<unk>", "__type": "AddedToken"}, **extra)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>"}, "pad_token": "<s>"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    assert ChatTokenizer.load(tmp_path).render(messages) == theirs.apply_chat_template(messages, tokenize=False)


def test_the_template_comes_from_the_same_file(tmp_path: Path):
    write_folder(tmp_path, template="in the configuration")
    messages = [{"role": "user", "content": "Hi"}]

    def both() -> set[str]:
        theirs = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(messages, tokenize=False)
        return {theirs, ChatTokenizer.load(tmp_path).render(messages)}

    assert both() == {"in the configuration"}
    (tmp_path / "chat_template.jinja").write_text("in a file of its own\n")
    assert both() == {"in a file of its own"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("another")
    assert both() == {"in a file of its own"}
