"""`spillgrad inspect --tensor`: print one stored array or its values, or write them to a file."""

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from spillgrad.errors import ArgumentError
from spillgrad.inspection.arrays import Segment, StoredArray
from spillgrad.inspection.contents import ArrayContents, Bin, array_contents
from spillgrad.inspection.export import export_npy
from spillgrad.inspection.find import find_array, require_not_stored
from spillgrad.inspection.printable import printable
from spillgrad.inspection.slices import MOST_SHOWN, Selection, parse_index, read_selection, read_shown
from spillgrad.inspection.unflushed import there
from spillgrad.inspection.values import StoredValues
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect import json_output
from spillgrad_tools.inspect.options import InspectOptions
from spillgrad_tools.inspect.tables import summary
from spillgrad_tools.paged import show, write
from spillgrad_tools.quantities import many

_PATH_LENGTH = 4096
_PROBLEM_LENGTH = 1000
_BAR = 30
_SHOWN_CHUNKS, _SHOWN_VIEWS = 4, 8
_CHECKSUMS = {"verified": "green", "wrong": "bold red", "none": "yellow"}


def show_array(options: InspectOptions, key: str) -> bool:
    """Print a description of the array `key`, or the values of a slice; or export values to a file.

    Return False if the array has a problem, such as a wrong checksum. Its values are printed nevertheless; the problem
    is printed to standard error, or is the value of "problem" in JSON.
    Raises the errors of `find_array`, `parse_index`, `Selection`, `array_contents`, `read_shown` and `export_npy`.
    """
    index = (...,) if options.slice_text is None else parse_index(options.slice_text)
    segment, array = find_array(options.path, key)
    told: dict[str, Any] = {}
    if options.slice_text is None and options.export is None:
        contents = None if array.problem is not None else array_contents(segment.path, array)
        if contents is not None:
            array = _judged(array, contents.checksum)
        told["contents"] = None if contents is None else contents_as_dict(contents)
        if not options.as_json:
            show(Console(), summary(_rows(segment, array, contents)))
    else:
        with there(segment.path, array) as values:
            selection = Selection(index, array.shape)
            if options.export is not None:
                require_not_stored(options.export)
                nbytes = export_npy(values, selection, options.export, options.force)
                told["export"] = {"path": str(options.export), "shape": selection.shape, "nbytes": nbytes}
                text = _exported(options.export, values.dtype, selection.shape, nbytes)
            elif options.as_json:
                told["slice"] = {"shape": selection.shape, "values": _json_values(values, selection)}
            else:
                text = _as_numpy_prints(*read_shown(values, selection))
            array = _judged(array, values.verdict())
        if not options.as_json:  # only now: reading the values may show that the checksum is wrong
            write(text + "\n")
            if array.problem is not None:
                place = f"{printable(str(segment.path), _PATH_LENGTH)}/{printable(array.key)}"
                print(f"spillgrad: {place}: {array.problem}", file=sys.stderr)
    if options.as_json:
        json_output.show({"path": str(segment.path), **array_as_dict(array), **told})
    return array.problem is None


def _judged(array: StoredArray, checksum: str) -> StoredArray:
    """Return `array`; if `checksum` is "wrong", return a copy with a problem that says so."""
    if checksum != "wrong":
        return array
    return dataclasses.replace(array, problem="its bytes are not those that were written: the checksum is wrong")


def array_as_dict(array: StoredArray) -> dict[str, Any]:
    """Return an array as `--json` prints it. Units: bytes; elements for `start` and `length` of a chunk."""
    plain = {name: value for name, value in vars(array).items() if name not in ("label", "from_journal")}
    lists = {name: [each._asdict() for each in plain[name]] for name in ("views", "chunks")}
    return {**plain, **vars(array.label), **lists, "dtype": None if array.dtype is None else array.dtype.name}


def contents_as_dict(contents: ArrayContents) -> dict[str, Any]:
    """Return the summary of an array's values as `--tensor --json` prints it."""
    return {**vars(contents), "histogram": [vars(one) for one in contents.histogram]}


def _rows(segment: Segment, array: StoredArray, contents: ArrayContents | None) -> Iterator[tuple[str, str | Text]]:
    yield "array", printable(array.key)
    yield "file", printable(str(segment.path), _PATH_LENGTH)
    yield "saved by", "unknown: the run died in a flush" if array.sequence is None else printable(str(array.label))
    yield "dtype", "unknown" if array.dtype is None else array.dtype.name
    yield "shape", f"{array.shape}: {array.size:,} elements, {format_bytes(array.nbytes)}"
    if array.codec is not None:
        yield "codec", f"{array.codec}: {format_bytes(array.stored_bytes)} are stored"
    chunks = [f"{format_bytes(chunk.nbytes)} at {chunk.offset:,}" for chunk in array.chunks[:_SHOWN_CHUNKS]]
    more = ["…"] if len(array.chunks) > _SHOWN_CHUNKS else []
    not_chunked = "told by HDF5 after a flush" if array.from_journal and array.shape else "not chunked"
    yield "chunk shape", not_chunked if array.chunk_shape is None else f"{array.chunk_shape}"
    pieces = "a piece" if len(array.chunks) == 1 else many(len(array.chunks), "piece")
    yield "stored", f"{pieces}: {', '.join(chunks + more)}" if chunks else "no bytes"
    for view in array.views[:_SHOWN_VIEWS]:
        saved = ".".join(part for part in (view.op, view.slot) if part) or "view"
        where = f"strides {view.strides}, {view.offset} bytes in"
        yield "view", printable(f"{saved}: {view.dtype} {view.shape}, {where}", _PROBLEM_LENGTH)
    if len(array.views) > _SHOWN_VIEWS:
        yield "", f"… and {len(array.views) - _SHOWN_VIEWS} more"
    if array.problem is not None:
        yield "problem", Text(printable(array.problem, _PROBLEM_LENGTH), "bold red")
    if contents is not None:
        yield from _contents_rows(array, contents)


def _contents_rows(array: StoredArray, contents: ArrayContents) -> Iterator[tuple[str, str | Text]]:
    checksum = Text(contents.checksum, _CHECKSUMS[contents.checksum])
    yield "checksum", checksum.append("" if array.checksum is None else f"  {array.checksum}", "default")
    if array.encrypted:
        yield "values", "encrypted, under a key that only the run's own process has"
    elif contents.nan_count is None:
        yield "values", "are no numbers"
    else:
        if contents.min is None:
            yield "values", "none is finite" if array.size else "there are none"
        for name, value in (("min", contents.min), ("max", contents.max), ("mean", contents.mean)):
            if value is not None:
                yield name, f"{value:.9g}" if isinstance(value, float) else f"{value}"
        yield "NaN", f"{contents.nan_count:,}"
        yield "infinite", f"{contents.infinite_count:,}"
        most = max((one.count for one in contents.histogram), default=0)
        for i, one in enumerate(contents.histogram):
            yield "" if i else "histogram", _bar(one, most)


def _bar(one: Bin, most: int) -> Text:
    length = -(-one.count * _BAR // most)
    return Text(f"{one.low:>11.4g} … {one.high:<11.4g} ").append("█" * length, "cyan").append(f" {one.count:,}")


def _exported(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], nbytes: int) -> str:
    name = printable(str(path), _PATH_LENGTH)
    told = f"wrote {dtype.name} {shape}, {format_bytes(nbytes)}, to {name}"
    if dtype.type.__module__ == "ml_dtypes":  # NumPy's format cannot name this dtype
        told += f"; read it with np.load({name!r}).view(ml_dtypes.{dtype.name})"
    return told


def _as_numpy_prints(shown: np.ndarray, cut: bool) -> str:
    """Return values as NumPy prints them, abbreviated if `cut`; characters that a terminal obeys are escaped."""
    if shown.dtype.kind == "U":
        shown = _printable_text(shown)
    with np.printoptions(threshold=0 if cut else shown.size + 1, formatter={"object": "'{}'".format}):
        return str(shown)


def _printable_text(texts: np.ndarray) -> np.ndarray:
    """Convert an array of text to an object array of printable `str`; invalid code points become U+FFFD."""
    points = texts.astype(texts.dtype.newbyteorder("=")).reshape(-1, 1).view(np.uint32)
    valid = np.where(points > 0x10FFFF, 0xFFFD, points)
    shown = np.empty(texts.size, object)
    shown[:] = [printable("".join(map(chr, row)).rstrip("\0")) for row in valid.tolist()]
    return shown.reshape(texts.shape)


def _json_values(values: StoredValues, selection: Selection) -> Any:
    """Return the values of a selection as nested lists for JSON.

    Dates become text, complex numbers become pairs, raw bytes become hex digits, and numbers that JSON lacks become
    "NaN", "Infinity" or "-Infinity". Raises ArgumentError for more than MOST_SHOWN values.
    """
    if selection.size > MOST_SHOWN:
        raise ArgumentError(f"slice: got {selection.size:,} values to print; name fewer, or write them with --export")
    pieces = list(read_selection(values, selection))
    found = np.concatenate(pieces) if pieces else np.empty(0, values.dtype)
    pairs = found.dtype.kind == "c"
    if found.dtype.type.__module__ == "ml_dtypes":
        found = found.astype(np.int64 if "int" in found.dtype.name else np.float64)
    elif pairs:
        found = found.astype(np.complex128).view(np.float64)
    elif found.dtype.kind in "mM":
        found = found.astype(str)
    elif found.dtype.kind == "b":
        found = found.view(np.uint8) != 0
    elif found.dtype.kind == "f":
        found = found.astype(np.float64)
    elif found.dtype.kind == "U":
        found = _printable_text(found)
    elif found.dtype.kind in "SV":
        found = np.array([bytes(one).hex() for one in found.tolist()], object)
    flat = np.array([_json_number(one) for one in found.tolist()], object)
    return flat.reshape((*selection.shape, 2) if pairs else selection.shape).tolist()


def _json_number(value: Any) -> Any:
    if isinstance(value, float) and not np.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
