"""From a prompt to tokens, and from tokens to text as they come."""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np

import spillgrad as sg
from spillgrad.errors import ArgumentError
from spillgrad_tools.generate.options import GenerateOptions
from spillgrad_tools.train.data import TOKENIZER, TrainingData

# What a tokenizer gives for the beginning of a letter.
_UNFINISHED = "\ufffd"
# A letter has at most so many bytes, and so many tokens; more that are none will not become one.
_MOST_UNFINISHED = 4
# How many tokens are decoded again for each further one.
_MOST_TOKENS, _KEPT_TOKENS = 128, 16


class Words(NamedTuple):
    """The tokens of a prompt, those that end the answer, and what makes text of tokens."""

    tokens: np.ndarray
    stop: Collection[int]
    decode: Callable[[Iterable[int]], str]


class TextStream:
    """Makes text of tokens one by one: a piece is given out once its last letter is whole."""

    def __init__(self, decode: Callable[[Iterable[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._given = 0  # letters of the text of `_tokens`

    def add(self, token: int) -> str:
        """Return the text that a further token adds; none while a letter is unfinished."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        unfinished = len(text) - len(text.rstrip(_UNFINISHED))
        if 0 < unfinished < _MOST_UNFINISHED:
            return ""
        piece, self._given = text[self._given :], len(text)
        if len(self._tokens) > _MOST_TOKENS:  # a token's text hangs on few tokens before it
            self._tokens = self._tokens[-_KEPT_TOKENS:]
            self._given = len(self._decode(self._tokens))
        return piece

    def rest(self) -> str:
        """Return what is left at the end: letters that stayed unfinished."""
        return self._decode(self._tokens)[self._given :]


def words_for(found: sg.models.ModelFiles, options: GenerateOptions, prompt: str) -> Words:
    """Return the tokens of a prompt for a model, as its tokenizer and chat template make them.

    Raises ArgumentError for options that need a tokenizer or a chat template that is not there.
    """
    folder = options.tokenizer or found.tokenizer
    if folder is None or not (folder / TOKENIZER if folder.is_dir() else folder).is_file():
        if options.chat or options.system is not None:
            raise ArgumentError(
                f"generate: got --chat or --system, but there is no {TOKENIZER} beside {options.weights}; name the "
                "folder of one with --tokenizer"
            )
        if found.config.vocab_size < 256:
            raise ArgumentError(
                f"generate: {options.weights} has no tokenizer, and fewer tokens than there are bytes; name one with "
                "--tokenizer"
            )
        data = TrainingData.of_bytes(b"")
        return Words(data.encode(prompt), (), data.decode)
    tokenizer = sg.data.ChatTokenizer.load(folder)
    chat = tokenizer.chat_template is not None if options.chat is None else options.chat
    if options.system is not None and not chat:
        raise ArgumentError("generate: got --system without a chat template; put it into the prompt")
    if chat:
        system = [] if options.system is None else [{"role": "system", "content": options.system}]
        tokens = tokenizer.encode(tokenizer.render([*system, {"role": "user", "content": prompt}]))
    else:
        tokens = tokenizer.encode_prompt(prompt)
    stop = {*found.stop_tokens, *([] if tokenizer.eos_id is None else [tokenizer.eos_id])}
    return Words(tokens, stop, tokenizer.decode)
