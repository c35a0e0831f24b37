"""Text as byte-pair tokens, through the package `tokenizers` (`pip install 'spillgrad[text]'`)."""

import bisect
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from spillgrad.data.token_dataset import TokenDataset
from spillgrad.errors import ArgumentError, DataError

_BYTES = 256
# A long text is tokenized in parts, because each token takes some hundred bytes meanwhile. A part overlaps the next.
# Where so many tokens are the same in both, it no longer matters where the second one began.
_PART, _OVERLAP, _IN_STEP = 2**16, 2**12, 16
_PARTS_AT_ONCE = 8


class _Part(NamedTuple):
    """The tokens of a part of a text, and the characters, from the part's first one on, where each starts and ends."""

    ids: np.ndarray
    spans: list[tuple[int, int]]

    def meets(self, following: "_Part") -> tuple[int, int] | None:
        """Return the numbers of a token in this part and in the next one, from which on both are the same."""
        head: dict[tuple[int, int], int] = {}
        for number, (start, end) in enumerate(following.spans):
            if start >= _OVERLAP:
                break
            head.setdefault((start + _PART, end + _PART), number)
        for own in range(bisect.bisect_left(self.spans, (_PART,)), len(self.spans) - _IN_STEP):
            other = head.get(self.spans[own])
            if other is not None and self._tokens(own) == following._tokens(other, _PART):
                return own, other
        return None

    def _tokens(self, first: int, shift: int = 0) -> list[tuple[int, int, int]]:
        some = slice(first, first + _IN_STEP)
        return [
            (int(token), start + shift, end + shift)
            for token, (start, end) in zip(self.ids[some], self.spans[some], strict=True)
        ]


class BPETokenizer:
    """Converts text to token numbers and back, without loss if trained here or made for GPT-2 or Llama 3.

    Parameters
    ----------
    tokenizer : tokenizers.Tokenizer
        What `train` and `load` make.

    Notes
    -----
    Source: Sennrich, Haddow, Birch 2015, "Neural machine translation of rare words with subword units"; on bytes, as
    Radford et al. 2019.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        # A tokenizer.json may ask for texts to be cut or filled up, which is for those who batch them.
        tokenizer.no_truncation()
        tokenizer.no_padding()

    @classmethod
    def train(
        cls, text: str | bytes | Iterable[str], vocab_size: int = 4096, special_tokens: Sequence[str] = ()
    ) -> Self:
        """Learn tokens from one or several texts: special ones first, then all bytes, then pairs.

        The same text gives the same tokens.

        Parameters
        ----------
        text : str, bytes or iterable of str
            The text, or texts.
        vocab_size : int, default 4096
            Largest number of tokens.
        special_tokens : sequence of str, default ()
            Texts that are tokens of their own.

        Returns
        -------
        BPETokenizer
            The tokenizer.

        Raises
        ------
        ArgumentError
            For fewer tokens than special ones and bytes, or without the package ``tokenizers``.
        """
        package = _package()
        least = _BYTES + len(special_tokens)
        if vocab_size < least:
            raise ArgumentError(
                f"BPETokenizer.train: got vocab_size {vocab_size}; all bytes and special tokens take {least}"
            )
        byte_level = package.pre_tokenizers.ByteLevel
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=list(special_tokens), initial_alphabet=byte_level.alphabet(),
            show_progress=False,
        )  # fmt: skip
        texts = [_decoded(text)] if isinstance(text, str | bytes) else text
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a ``tokenizer.json``, or the one in a folder, as Hugging Face lays it out.

        Parameters
        ----------
        path : str or path
            The file or folder.

        Returns
        -------
        BPETokenizer
            The tokenizer.

        Raises
        ------
        DataError
            For any other file.
        ArgumentError
            Without the package ``tokenizers``.
        """
        package = _package()
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        try:
            content = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"data: {file} cannot be read ({reason}); give a tokenizer.json") from error
        try:
            return cls(package.Tokenizer.from_str(content))
        except Exception as error:  # the package raises this very class
            raise DataError(f"data: {file} is no tokenizer.json ({error}); give one") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``tokenizer.json``, which Hugging Face's libraries read too.

        Parameters
        ----------
        path : str or path
            The file.
        """
        Path(path).write_text(self.tokenizer.to_str(pretty=True), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens, which is the number of rows of a model's embedding."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str | bytes) -> np.ndarray:
        """Return the numbers of a text's tokens; none is added before or after.

        Parameters
        ----------
        text : str or bytes
            The text.

        Returns
        -------
        array
            Token numbers, int64 of shape (N,).
        """
        return self.encode_compactly(text).astype(np.int64)

    def encode_compactly(self, text: str | bytes) -> np.ndarray:
        """Return the numbers of a text's tokens in as few bytes as they fit in; a long text is tokenized in parts.

        Parameters
        ----------
        text : str or bytes
            The text.

        Returns
        -------
        array
            Token numbers, of shape (N,) and the narrowest unsigned dtype that holds each of the tokenizer's.
        """
        dtype = np.min_scalar_type(max(self.vocab_size - 1, 0))
        text = _decoded(text)
        pieces = []
        former, first = None, 0
        for part in self._parts(text):
            if former is not None:
                place = former.meets(part)
                if place is None:  # no token ends where another part has an end, such as in a text without spaces
                    return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype)
                pieces.append(former.ids[first : place[0]].astype(dtype))
                first = place[1]
            former = part
        assert former is not None
        return np.concatenate([*pieces, former.ids[first:].astype(dtype)])

    def _parts(self, text: str) -> Iterator[_Part]:
        begins = range(0, max(len(text) - _OVERLAP, 1), _PART)
        for first in range(0, len(begins), _PARTS_AT_ONCE):
            some = [text[begin : begin + _PART + _OVERLAP] for begin in begins[first : first + _PARTS_AT_ONCE]]
            for encoding in self.tokenizer.encode_batch(some, add_special_tokens=False):
                yield _Part(np.array(encoding.ids, np.int64), encoding.offsets)

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token numbers.

        Parameters
        ----------
        tokens : iterable of int
            Token numbers: a list, an array or a tensor of shape (N,).

        Returns
        -------
        str
            The text.
        """
        return str(self.tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


class BPEDataset(TokenDataset):
    """A `TokenDataset` of a text's byte-pair tokens.

    Parameters
    ----------
    text : str or bytes
        The text.
    tokenizer : BPETokenizer, str, path or int
        A tokenizer, the path of a ``tokenizer.json``, or how many tokens to learn from the text itself.
    context : int
        Number of tokens in a window.
    batch : int
        Number of windows in a batch.
    seed : int
        Seed of the order.
    held_out_fraction : float, default 0.1
        Share of the tokens that is held out, the last ones; at least one window.

    Raises
    ------
    DataError
        For a text that is too short or not UTF-8, or a file that is no tokenizer.
    """

    def __init__(
        self, text: str | bytes, tokenizer: BPETokenizer | str | os.PathLike[str] | int, context: int, batch: int,
        seed: int, held_out_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        if isinstance(tokenizer, int):
            tokenizer = BPETokenizer.train(text, tokenizer)
        self.tokenizer = tokenizer if isinstance(tokenizer, BPETokenizer) else BPETokenizer.load(tokenizer)
        # Windows become int64 when they are cut.
        super().__init__(self.tokenizer.encode_compactly(text), context, batch, seed, held_out_fraction)


def _package() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ArgumentError(
            "data: byte-pair tokens need the package tokenizers; pip install 'spillgrad[text]'"
        ) from error
    return tokenizers


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"data: the text is not UTF-8 ({error}); convert it, or take ByteDataset") from error
