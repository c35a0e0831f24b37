"""`spillgrad inspect` of a segment file: a summary, and a table of its arrays."""

from collections.abc import Iterator

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from spillgrad.inspection.arrays import Segment, StoredArray
from spillgrad.inspection.printable import printable
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect.fitted_table import Column, fitted
from spillgrad_tools.inspect.tables import bytes_column, lack, summary

_PROBLEMS = 5
_LEAST_NAME = 30


def of_segment(segment: Segment, top: int, width: int) -> RenderableType:
    """Return a summary of a segment, and a table of its first `top` arrays."""
    return Lines(summary(_lines(segment)), *_table(segment, top, width))


def is_sound(segment: Segment) -> bool:
    """Return whether neither a segment nor any array in it has a problem; values are not read."""
    return not segment.problems and all(array.problem is None for array in segment.arrays)


def _lines(segment: Segment) -> Iterator[tuple[str, str]]:
    yield "segment", printable(str(segment.path), 1000)
    yield "file", f"{format_bytes(segment.file_bytes)}, of which {format_bytes(segment.disk_bytes)} are on the disk"
    nbytes = format_bytes(sum(array.nbytes for array in segment.arrays))
    stored = format_bytes(sum(array.stored_bytes for array in segment.arrays))
    yield "arrays", f"{len(segment.arrays)} of {nbytes}" + (f", stored as {stored}" if stored != nbytes else "")
    codecs = {array.codec for array in segment.arrays if array.codec is not None}
    if codecs:
        yield "codec", ", ".join(map(printable, sorted(codecs)))
    if segment.left_out:
        yield "left out", f"{segment.left_out} more, which is too much to look at"
    if segment.note is not None:
        yield "note", segment.note
    problems = [*segment.problems, *(f"{array.key}: {array.problem}" for array in segment.arrays if array.problem)]
    for number, problem in enumerate(problems[:_PROBLEMS]):
        yield "" if number else "problems", printable(problem, 1000)
    if len(problems) > _PROBLEMS:
        yield "", f"and {len(problems) - _PROBLEMS} more"


def _table(segment: Segment, top: int, width: int) -> Iterator[RenderableType]:
    shown = segment.arrays[:top]
    if not shown:
        return
    nbytes, stored = [array.nbytes for array in shown], [array.stored_bytes for array in shown]
    columns = [
        Column("dtype", dtypes := [_dtype(array) for array in shown], dtypes, 1),
        Column("shape", shapes := [printable(str(array.shape), 40) for array in shown], shapes, 2),
        bytes_column("bytes", nbytes, 3),
        *([] if stored == nbytes else [bytes_column("stored", stored, 3)]),
    ]
    names = [f"{printable(array.key, 60)}  {printable(str(array.label), 80)}" for array in shown]
    table, left_out = fitted("array", names, columns, width, least_name=_LEAST_NAME)
    yield Text()
    yield table
    if len(segment.arrays) > top:
        yield Text(f"and {len(segment.arrays) - top} others", style="dim")
    yield from lack(left_out)


def _dtype(array: StoredArray) -> str:
    return "unknown" if array.dtype is None else printable(array.dtype.name, 40)
