"""Documents as tokens."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from spillgrad.data.bpe import BPETokenizer
from spillgrad.data.chat_tokenizer import ChatTokenizer, MarkedText, Tokens, marked_text
from spillgrad.data.records import Record, Records
from spillgrad.errors import ArgumentError, DataError

# What is tokenized at once: enough for all cores, in little memory, of which each token takes some hundred bytes.
_MOST_TEXTS, _MOST_CHARACTERS = 1024, 2**20


class Documents:
    """Hold the tokens of many documents in one array.

    Parameters
    ----------
    tokens : array
        Integers of shape (N,): the tokens of all documents, one after the other.
    offsets : array
        Integers of shape (D + 1,): document i has the tokens from offsets[i] to offsets[i + 1].
    counted : array, optional
        Truth values of shape (N,): which tokens count in the loss, as targets. By default, all do.

    Attributes
    ----------
    tokens, offsets, counted : array
        As above.

    Raises
    ------
    ArgumentError
        For arrays of other types or shapes, and for offsets that do not rise from 0 to N.

    Examples
    --------
    >>> import spillgrad as sg
    >>> documents = sg.data.Documents.from_records([{"text": "abc"}, {"prompt": "1+1=", "completion": "2"}])
    >>> len(documents), documents.offsets.tolist()
    (2, [0, 3, 8])
    >>> tokens, counted = documents[1]
    >>> bytes(tokens), counted.tolist()
    (b'1+1=2', [False, False, False, False, True])
    """

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray, counted: np.ndarray | None = None) -> None:
        self.tokens = np.asarray(tokens)
        self.offsets = np.asarray(offsets)
        self.counted = np.ones(len(self.tokens), np.bool_) if counted is None else np.asarray(counted)
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise ArgumentError(
                f"Documents: got {self.tokens.dtype} tokens of shape {self.tokens.shape}; wanted integers (N,)"
            )
        if self.counted.shape != self.tokens.shape or self.counted.dtype != np.bool_:
            raise ArgumentError(
                f"Documents: got {self.counted.dtype} counted of shape {self.counted.shape}; wanted truth values of "
                f"shape {self.tokens.shape}"
            )
        if self.offsets.ndim != 1 or self.offsets.dtype.kind not in "iu" or not self._rise():
            raise ArgumentError(
                f"Documents: got {self.offsets.dtype} offsets of shape {self.offsets.shape}; wanted integers (D + 1,) "
                f"that rise from 0 to {len(self.tokens)}"
            )
        self.offsets = self.offsets.astype(np.int64, copy=False)

    @classmethod
    def from_records(
        cls, records: Records | Iterable[Mapping[str, Any]],
        tokenizer: BPETokenizer | str | os.PathLike[str] | None = None,
    ) -> Self:  # fmt: skip
        """Tokenize records.

        A text begins with the tokens that the tokenizer puts before texts, and ends with its end token, if it has one;
        all of it counts. Of a prompt and its completion, the completion and the end token count. A conversation is what
        the chat template writes; what the assistant says counts, with the token that ends its turn.

        Parameters
        ----------
        records : Records or iterable of dict
            The records; bad ones are left out if the `Records` say so.
        tokenizer : ChatTokenizer, BPETokenizer, str or path, optional
            A tokenizer, or the folder of one; by default, bytes are tokens, and there is no end token.

        Returns
        -------
        Documents
            The documents, in the order of the records.

        Raises
        ------
        DataError
            For a bad record, naming file and line, and when there is none.
        ArgumentError
            Without a package that the files or the tokenizer need.
        """
        found = records if isinstance(records, Records) else Records(records)
        encoder = _encoder(tokenizer)
        chunks = [(np.zeros(0, np.uint8), np.zeros(0, np.bool_), np.zeros(0, np.int64))]
        for texts in _batches(found, encoder):
            encoded = list(encoder.encode_marked(texts))
            tokens = np.concatenate([document.tokens for document in encoded])
            narrow = tokens.astype(np.min_scalar_type(tokens.max(initial=0)))
            lengths = np.array([len(document.tokens) for document in encoded], np.int64)
            chunks.append((narrow, np.concatenate([document.counted for document in encoded]), lengths))
        tokens, counted, lengths = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
        if not len(lengths):
            report = found.report()
            raise DataError(f"data: {found.source} holds no records; give some{report and f' ({report})'}")
        return cls(tokens, np.concatenate([[0], np.cumsum(lengths)]), counted)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of a document, and which of them count."""
        if not -len(self) <= number < len(self):
            raise IndexError(f"Documents: got number {number}; there are {len(self)} documents")
        part = slice(self.offsets[number % len(self)], self.offsets[number % len(self) + 1])
        return self.tokens[part], self.counted[part]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} documents, {len(self.tokens)} tokens)"

    def _rise(self) -> bool:
        offsets = self.offsets
        ends = len(offsets) > 0 and int(offsets[0]) == 0 and int(offsets[-1]) == len(self.tokens)
        return ends and bool((offsets[1:] >= offsets[:-1]).all())


class _ByteEncoder:
    """Bytes as tokens."""

    def mark(self, record: Record) -> MarkedText:
        if record.messages is not None:
            raise DataError(
                'got messages for a model of bytes; wanted "text", or "prompt" and "completion", or a tokenizer with a '
                "chat template"
            )
        return marked_text(record)

    def encode_marked(self, texts: Sequence[MarkedText]) -> Iterator[Tokens]:
        for text in texts:
            tokens = np.frombuffer(text.text.encode(), np.uint8)
            counted = np.full(len(tokens), text.learned is None)
            for start, end in text.learned or ():
                first = len(text.text[:start].encode())
                counted[first : first + len(text.text[start:end].encode())] = True
            yield Tokens(tokens, counted)


def _encoder(tokenizer: BPETokenizer | str | os.PathLike[str] | None) -> ChatTokenizer | _ByteEncoder:
    if tokenizer is None:
        return _ByteEncoder()
    if isinstance(tokenizer, str | os.PathLike):
        return ChatTokenizer.load(tokenizer)
    return tokenizer if isinstance(tokenizer, ChatTokenizer) else ChatTokenizer(tokenizer.tokenizer)


def _batches(records: Records, encoder: ChatTokenizer | _ByteEncoder) -> Iterator[list[MarkedText]]:
    """Yield texts, some at a time; records that cannot become one are left out, or raise."""
    texts: list[MarkedText] = []
    characters = 0
    for record in records:
        try:
            text = encoder.mark(record)
        except DataError as error:
            records.reject(record.place, error)
            continue
        texts.append(text)
        characters += len(text.text)
        if len(texts) >= _MOST_TEXTS or characters >= _MOST_CHARACTERS:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts
