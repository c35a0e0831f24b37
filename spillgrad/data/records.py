"""Records to train on: texts, prompts with completions, conversations; from files as people have them."""

import codecs
import json
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spillgrad.data.parquet import parquet_rows
from spillgrad.data.text import files_of, unreadable
from spillgrad.errors import DataError

ROLES = ("system", "developer", "user", "assistant", "tool")
KEYS = ("text", "prompt", "completion", "messages")
_WANTED = 'an object with "text", with "prompt" and "completion", or with "messages"'
_FIRST_BAD = 5


@dataclass(frozen=True, slots=True)
class Record:
    """What one line of a data file holds: a text, a prompt with its completion, or a conversation.

    Parameters
    ----------
    text : str, optional
        A text.
    prompt, completion : str, optional
        A text and what follows it; only the second is learned.
    messages : list of dict, optional
        A conversation: each message has a ``"role"`` and a ``"content"``. What the assistant says is learned.
    place : str, default "record"
        Where the record comes from, for error messages.

    Examples
    --------
    >>> import spillgrad as sg
    >>> sg.data.Record(prompt="2 + 2 =", completion=" 4").completion
    ' 4'
    """

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: list[dict[str, Any]] | None = None
    place: str = "record"


class Records:
    r"""Read records from files, one after the other; each loop begins anew.

    Lines of ``.jsonl`` and ``.ndjson`` files are JSON objects; a ``.json`` file holds one array of objects, or lines of
    them; rows of a ``.parquet`` file are records too. Any other file is one text. An object has the key ``"text"``, the
    keys ``"prompt"`` and ``"completion"``, or the key ``"messages"``, as those of Hugging Face's TRL; of several, the
    last in this list counts. Other keys are ignored, and so are texts without a character.

    Parameters
    ----------
    source : str, path or iterable of dict
        A file; a folder of files of any of these kinds, read in the order of their paths, without hidden ones; or
        objects.
    skip_bad : bool, default False
        Whether to leave out records that cannot be used, and count them, rather than raise.

    Attributes
    ----------
    bad_count : int
        How many records the latest loop has left out.
    first_bad : list of str
        Why, for the first five of them.

    Raises
    ------
    DataError
        When there is nothing to read; and in the loop, for a record that is not as above, naming file and line.
    ArgumentError
        In the loop, for a Parquet file without the package ``pyarrow``.

    Examples
    --------
    >>> import pathlib
    >>> import spillgrad as sg
    >>> _ = pathlib.Path("data.jsonl").write_text('{"text": "one"}\n{"txt": "two"}\n{"text": "three"}\n')
    >>> records = sg.data.Records("data.jsonl", skip_bad=True)
    >>> [record.text for record in records]
    ['one', 'three']
    >>> print(records.report())
    data: left out 1 bad record, at data.jsonl, line 2: got an object with the keys txt; wanted ...
    """

    def __init__(self, source: str | os.PathLike[str] | Iterable[Mapping[str, Any]], skip_bad: bool = False) -> None:
        self.skip_bad = skip_bad
        self.bad_count = 0
        self.first_bad: list[str] = []
        self._objects: Iterable[Mapping[str, Any]] | None = None
        self._files: list[Path] = []
        if isinstance(source, str | os.PathLike):
            self.source = str(source)
            self._files = files_of(Path(source))
        else:
            self.source = "the records"
            self._objects = source

    def __iter__(self) -> Iterator[Record]:
        self.bad_count, self.first_bad = 0, []
        for place, value in self._values():
            try:
                if isinstance(value, DataError):
                    raise value
                record = _record(value, place)
            except DataError as error:
                self.reject(place, error)
                continue
            if record.text != "":
                yield record

    def reject(self, place: str, error: DataError) -> None:
        """Leave out a record that cannot be used, or raise why, depending on `skip_bad`.

        Parameters
        ----------
        place : str
            The file and line of the record.
        error : DataError
            What was got, and what was wanted.

        Raises
        ------
        DataError
            Without `skip_bad`.
        """
        if not self.skip_bad:
            raise DataError(
                f"data: {place}: {error}; correct the record, or leave out such ones with skip_bad"
            ) from error
        self.bad_count += 1
        if len(self.first_bad) < _FIRST_BAD:
            self.first_bad.append(f"{place}: {error}")

    def report(self) -> str:
        """Return a line about the records that the latest loop has left out; an empty one if there are none.

        Returns
        -------
        str
            How many, and the first.
        """
        if not self.bad_count:
            return ""
        which = "1 bad record, at" if self.bad_count == 1 else f"{self.bad_count} bad records, the first at"
        return f"data: left out {which} {self.first_bad[0]}"

    def _values(self) -> Iterator[tuple[str, Any]]:
        """Yield the place of each record and its object, or the error that reading it gave."""
        if self._objects is not None:
            yield from ((f"record {number}", value) for number, value in enumerate(self._objects, 1))
        for path in self._files:
            suffix = path.suffix.lower()
            if suffix == ".parquet":
                rows = parquet_rows(path, KEYS)
                yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
                continue
            try:
                if suffix in (".jsonl", ".ndjson"):
                    yield from _lines(path)
                elif suffix == ".json":
                    yield from _array(path) if _first_byte(path) == b"[" else _lines(path)
                else:
                    yield _text_file(path)
            except OSError as error:
                raise unreadable(path, error) from error


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if content.strip():
                yield f"{path}, line {number}", _loaded(content)


def _array(path: Path) -> Iterator[tuple[str, Any]]:
    found = _loaded(path.read_bytes().removeprefix(codecs.BOM_UTF8))
    if isinstance(found, DataError):
        raise DataError(f"data: {path}: {found}; correct the file")
    yield from ((f"{path}, record {number}", value) for number, value in enumerate(found, 1))


def _first_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        return next((line.strip()[:1] for line in _without_mark(file) if line.strip()), b"")


def _without_mark(lines: Iterable[bytes]) -> Iterator[bytes]:
    return (line.removeprefix(codecs.BOM_UTF8) for line in lines)


def _text_file(path: Path) -> tuple[str, Any]:
    content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    text = _decoded(content)
    if isinstance(text, UnicodeDecodeError):
        lines = content.count(b"\n", 0, text.start)
        return f"{path}, line {lines + 1}", _not_text(text)
    return str(path), {"text": text}


def _decoded(content: bytes) -> str | UnicodeDecodeError:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        return error


def _not_text(error: UnicodeDecodeError) -> DataError:
    return DataError(f"got bytes that are not UTF-8 ({error.reason}); wanted UTF-8")


def _loaded(content: bytes) -> Any:
    """Return the value of JSON, or the error to raise."""
    text = _decoded(content)
    if isinstance(text, UnicodeDecodeError):
        return _not_text(text)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}" if "\n" in text.strip() else f"column {error.colno}"
        return DataError(f"got no JSON ({error.msg}, {where}): {_short(text.strip())}; wanted {_WANTED}")
    except (ValueError, RecursionError) as error:  # a number of too many digits; too many brackets
        return DataError(f"got JSON that cannot be read ({error}); wanted {_WANTED}")


def _record(value: Any, place: str) -> Record:
    if not isinstance(value, Mapping):
        raise DataError(f"got {_kind(value)}: {_short(value)}; wanted {_WANTED}")
    if value.get("messages") is not None:
        return Record(messages=checked_messages(value["messages"]), place=place)
    prompt, completion = value.get("prompt"), value.get("completion")
    if prompt is not None and completion is not None:
        return Record(prompt=_checked("prompt", prompt), completion=_checked("completion", completion), place=place)
    if value.get("text") is not None:
        return Record(text=_checked("text", value["text"]), place=place)
    keys = ", ".join(_short(key, quotes=False) for key in list(value)[:8]) or "(none)"
    with_null = " without a value" if any(key in value for key in KEYS) else ""
    if prompt is not None or completion is not None:
        with_null = ""
    raise DataError(f"got an object with the keys {keys}{with_null}; wanted {_WANTED}")


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Return the messages of a conversation as dicts without empty keys. Raises DataError for what is none."""
    if not isinstance(messages, list | tuple):
        raise DataError(f"got {_kind(messages)} as messages: {_short(messages)}; wanted a list of objects")
    if not messages:
        raise DataError("got no messages; wanted at least one")
    return [_message(message, number) for number, message in enumerate(messages, 1)]


def _message(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise DataError(f'got {_kind(message)} as message {number}; wanted an object with "role" and "content"')
    found = {key: value for key, value in message.items() if value is not None}
    role = found.get("role")
    if role not in ROLES:
        wanted = f"{', '.join(ROLES[:-1])} or {ROLES[-1]}"
        raise DataError(f"got the role {_short(role)} in message {number}; wanted {wanted}")
    if "content" in found or "tool_calls" not in found:
        _checked(f"content of message {number}", found.get("content"))
    return found


def _checked(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise DataError(f"got {_kind(value)} as {name}: {_short(value)}; wanted a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"got half a character (\\u{ord(value[error.start]):x}) in {name}; wanted Unicode text"
        ) from error
    return value


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value)) or {"list": "an array", "dict": "an object"}.get(
        type(value).__name__, type(value).__name__
    )


def _short(value: Any, quotes: bool = True) -> str:
    """Return the beginning of a value's text, in one line."""
    if isinstance(value, str):
        value = value if len(value) <= 60 else f"{value[:57]}..."
        return repr(value) if quotes else " ".join(value.split())
    return " ".join(reprlib.repr(value).split())
