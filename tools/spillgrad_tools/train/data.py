"""What a run trains on: the bytes or tokens of a text, or documents."""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

import spillgrad as sg
from spillgrad.data.records import Records
from spillgrad.data.text import files_of
from spillgrad.errors import ArgumentError, DataError
from spillgrad.ops.losses import IGNORE_INDEX
from spillgrad_tools.train.options import TrainSettings

BYTES = 256
TOKENIZER = "tokenizer.json"
SAMPLE_PROMPT = "The "
# A file with one of these suffixes holds records. So does a folder if all of its files have the same one, or if one has
# one of the first three: folders of texts may hold other JSON.
_OF_RECORDS = (".jsonl", ".ndjson", ".parquet", ".json")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".7z")
Content = np.ndarray | sg.data.Documents


class Batch(NamedTuple):
    """A batch of tokens, targets (-100 where the loss does not count), and the places where documents start.

    Shapes: each int64 (rows, context); `starts` is None if each row is one document.
    """

    x: np.ndarray
    y: np.ndarray
    starts: np.ndarray | None = None

    def counted(self) -> int:
        """Return how many targets count."""
        return int(np.count_nonzero(self.y != IGNORE_INDEX))

    def parts(self, size: int) -> Iterator["Batch"]:
        """Split the batch into batches of at most `size` rows."""
        for start in range(0, len(self.x), size):
            yield Batch(*(None if each is None else each[start : start + size] for each in self))  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """The tokens of a run, and of its evaluation if that has data of its own."""

    content: Content
    held_out: Content | None = None
    tokenizer: sg.data.ChatTokenizer | None = None
    left_out: str = ""
    """A line about records that were left out."""

    @classmethod
    def of_bytes(cls, text: bytes) -> "TrainingData":
        """Return data whose tokens are the bytes of a text."""
        return cls(np.frombuffer(text, np.uint8))

    @classmethod
    def load(
        cls, path: Path | None, eval_path: Path | None = None, tokenizer: str | None = None, skip_bad: bool = False
    ) -> "TrainingData":
        """Read data with the tokenizer of a folder; without one, bytes are tokens.

        Raises DataError for what cannot be read. Raises ArgumentError without a package that it needs.
        """
        if tokenizer is not None and not Path(tokenizer).exists():
            raise ArgumentError(
                f"train: got the tokenizer {tokenizer}, which is not there; name its folder with --tokenizer, or "
                "that of its model with --weights"
            )
        read = None if tokenizer is None else sg.data.ChatTokenizer.load(tokenizer)
        content, said = _content(path, read, skip_bad)
        held_out, said_too = (None, "") if eval_path is None else _content(eval_path, read, skip_bad)
        if held_out is not None and isinstance(held_out, np.ndarray) != isinstance(content, np.ndarray):
            raise ArgumentError(
                f"train: got --data {path} and --eval-data {eval_path}, of which one holds records and one a text; "
                "give two of a kind"
            )
        return cls(content, held_out, read, "; ".join(line for line in (said, said_too) if line))

    @property
    def digest(self) -> str:
        """A hash of all that this decides about a run's numbers."""
        found = xxhash.xxh3_128()
        for array in self._arrays():
            found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    @property
    def nbytes(self) -> int:
        """The memory of the data in bytes."""
        return sum(array.nbytes for array in self._arrays())

    @property
    def unit(self) -> str:
        """What losses are of."""
        return "byte" if self.tokenizer is None else "token"

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return BYTES if self.tokenizer is None else self.tokenizer.vocab_size

    def batches(self, settings: TrainSettings) -> "Batches":
        """Return the batches of a run. Raises DataError if there is too little data."""
        # The data set yields all batches of a step as one.
        size = settings.context, settings.batch * settings.accumulate, settings.seed
        if isinstance(self.content, sg.data.Documents):
            assert not isinstance(self.held_out, np.ndarray)
            return Batches(sg.data.DocumentDataset(self.content, *size, held_out=self.held_out, packed=settings.packed))
        if self.held_out is not None:
            raise ArgumentError("train: got --eval-data for a text; leave it out, and the end of the text is held out")
        if self.tokenizer is None:
            return Batches(sg.data.ByteDataset(self.content.tobytes(), *size))
        return Batches(sg.data.TokenDataset(self.content, *size))

    def require_tokens_of(self, vocab_size: int) -> None:
        """Raise ArgumentError if a token is none of a model's, which has so many."""
        largest = max(
            int((content.tokens if isinstance(content, sg.data.Documents) else content).max(initial=0))
            for content in (self.content, self.held_out) if content is not None
        )  # fmt: skip
        if largest >= vocab_size:
            raise ArgumentError(
                f"train: got token {largest} for a model of {vocab_size} tokens; give the tokenizer that belongs to it "
                "with --tokenizer"
            )

    @property
    def stop(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        ends = None if self.tokenizer is None else self.tokenizer.eos_id
        return () if ends is None else (ends,)

    def prompt(self, most: int) -> np.ndarray:
        """Return tokens to go on from, at most so many: the last ones before the first answer, or a word."""
        content = self.content if self.held_out is None else self.held_out
        if isinstance(content, sg.data.Documents):
            tokens, counted = content[0]
            before = tokens[: int(counted.argmax())]
            if len(before):
                return before[-most:].astype(np.int64)
        return self.encode(SAMPLE_PROMPT)

    def encode(self, text: str) -> np.ndarray:
        """Return the tokens of a text, int64 of shape (N,)."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64) if self.tokenizer is None else (
            self.tokenizer.encode(text)
        )  # fmt: skip

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens; a model with more tokens than bytes may have drawn one that is no byte."""
        if self.tokenizer is not None:
            return self.tokenizer.decode(tokens)
        return b"".join(bytes([each]) if each < BYTES else b"\xff" for each in tokens).decode(errors="replace")

    def _arrays(self) -> Iterator[np.ndarray]:
        for content in (self.content, self.held_out):
            if isinstance(content, sg.data.Documents):
                yield from (content.tokens, content.offsets, content.counted)
            elif content is not None:
                yield content


class Batches:
    """The batches of a run, from a data set of either kind."""

    def __init__(self, dataset: sg.data.TokenDataset | sg.data.DocumentDataset) -> None:
        self.dataset = dataset

    @property
    def held_out_count(self) -> int:
        """The number of held-out batches."""
        return self.dataset.held_out_count

    @property
    def left_out(self) -> str:
        """A line about documents without anything to learn in the context; empty if there are none."""
        if not isinstance(self.dataset, sg.data.DocumentDataset) or not self.dataset.left_out_documents:
            return ""
        count = self.dataset.left_out_documents
        total = count + self.dataset.train_documents + self.dataset.held_out_documents
        return f"data: left out {count} of {total} documents, which have no answer within --context"

    def train_batches(self, start_step: int) -> Iterator[Batch]:
        """Yield training batches without end, from that of a step on."""
        return (Batch(*batch) for batch in self.dataset.train_batches(start_step))

    def held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out batches."""
        return (Batch(*batch) for batch in self.dataset.held_out_batches())


def tokenizer_of(weights: str | None, is_there: bool = True) -> str | None:
    """Return the folder of the tokenizer beside the weights at a path; None if there is none, or no weights.

    Unless `is_there`, the files may be gone: return where it would be.
    """
    if weights is None:
        return None
    is_file = Path(weights).suffix in (".safetensors", ".json")
    folder = Path(weights).parent if is_file else Path(weights)
    return str(folder) if not is_there or (folder / TOKENIZER).is_file() else None


def _content(path: Path | None, tokenizer: sg.data.ChatTokenizer | None, skip_bad: bool) -> tuple[Content, str]:
    """Return the tokens of what is at a path, and a line about what was left out."""
    if path is not None and path.suffix.lower() in _COMPRESSED:
        raise DataError(f"data: {path} is compressed; unpack it, and name the file that comes out")
    if path is None or not _holds_records(path):
        text = sg.data.load_text(path)
        if tokenizer is None:
            return np.frombuffer(text, np.uint8), ""
        try:
            return tokenizer.encode_compactly(text), ""
        except DataError as error:
            raise DataError(f"{error} (in {path})") from error
    records = Records(path, skip_bad)
    try:
        return sg.data.Documents.from_records(records, tokenizer), records.report()
    except DataError as error:
        raise DataError(str(error).replace("with skip_bad", "with --skip-bad")) from error


def _holds_records(path: Path) -> bool:
    suffixes = {file.suffix.lower() for file in files_of(path)}
    return not suffixes.isdisjoint(_OF_RECORDS[:3] if len(suffixes) > 1 else _OF_RECORDS)
