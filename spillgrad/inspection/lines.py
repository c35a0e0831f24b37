"""Read the lines of a journal, checked: whoever wrote them may mean harm, or have been killed in the middle."""

from collections.abc import Iterator

import msgspec

from spillgrad.storage.journal.events import AnyEvent, Head

# Longer than any line of a journal.
LONGEST_BYTES = 4 << 20

_lines = msgspec.json.Decoder(AnyEvent)
_heads = msgspec.json.Decoder(Head)


def read_head(line: bytes) -> Head | None:
    """Return the head of a journal; None where the line is none."""
    try:
        head = _heads.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return None if head.format is None else head


def read_lines(data: bytes) -> Iterator[AnyEvent | None]:
    """Yield whole lines; None for each that is none."""
    try:
        yield from _lines.decode_lines(data)
        return
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # find out which of them
    for text in filter(None, data.split(b"\n")):
        try:
            line: AnyEvent | None = _lines.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            line = None
        yield line
