"""`spillgrad inspect --tree`: print the structure of HDF5 files."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text
from rich.tree import Tree

from spillgrad.errors import SpillError, SpillFormatError
from spillgrad.inspection.arrays import Item, Segment, StoredArray
from spillgrad.inspection.find import find_segments
from spillgrad.inspection.printable import printable
from spillgrad.inspection.segments import inspect_segment
from spillgrad.inspection.unflushed import Journals
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.storage.sizes import format_bytes
from spillgrad_tools.inspect import json_output
from spillgrad_tools.inspect.array import array_as_dict
from spillgrad_tools.inspect.segment import is_sound
from spillgrad_tools.paged import show

PATH_LENGTH = 4096
_PROBLEM_LENGTH = 1000


def show_tree(console: Console, path: Path, as_json: bool) -> bool:
    """Print the groups, datasets, links and attributes of a segment, or of all segments in a folder.

    Return False if a segment has a problem or cannot be read. If only some segments cannot be read, the errors are
    printed to standard error. Raises the errors of `find_segments` and `inspect_segment`.
    """
    found, refused = [], []
    with UntrustedReader() as reader, Journals() as journals:
        for file in find_segments(path):
            try:
                found.append(inspect_segment(file, reader, journals))
            except SpillFormatError:
                raise
            except SpillError as error:
                refused.append(error)
            except FileNotFoundError:  # a live run has removed the segment
                if not path.is_dir():
                    raise
    if refused and not found:
        raise refused[0]
    if as_json:
        json_output.show({"segments": [segment_as_dict(segment) for segment in found]})
    else:
        show(console, Group(*map(tree, found)), soft_wrap=True)
    for why in refused:
        print(f"spillgrad: {why}", file=sys.stderr)
    return not refused and all(map(is_sound, found))


def segment_as_dict(segment: Segment) -> dict[str, Any]:
    """Return a segment as `--tree --json` prints it. Units: bytes."""
    items, arrays = map(_item_as_dict, segment.items), map(array_as_dict, segment.arrays)
    return {**vars(segment), "path": str(segment.path), "items": list(items), "arrays": list(arrays)}


def _item_as_dict(item: Item) -> dict[str, Any]:
    return {**vars(item), "attributes": [{"name": name, "bytes": nbytes} for name, nbytes in item.attributes]}


def tree(segment: Segment) -> Tree:
    """Return a segment as a rich tree; characters that a terminal or rich would obey are escaped."""
    size = f"{format_bytes(segment.file_bytes)}, {format_bytes(segment.disk_bytes)} on disk"
    root = Tree(Text(f"{printable(str(segment.path), PATH_LENGTH)} ({size})", "bold"))
    arrays = {array.key: array for array in segment.arrays}
    branches = {"": root}
    for item in segment.items:
        parent, _, name = item.path.rpartition("/")
        branch = branches[item.path] = branches.get(parent, root).add(
            Text.assemble((printable(name), "bold"), "  ", _described(item))
        )
        for attribute, nbytes in item.attributes:
            told = "" if nbytes is None else f"  {format_bytes(nbytes)}"
            branch.add(Text(f"@{printable(attribute)}{told}", "dim"))
        array = None if parent else arrays.pop(name, None)
        if array is not None:
            _add_array(branch, array)
    for array in arrays.values():  # known from the journal alone: HDF5 has not written these arrays yet
        dtype = "unknown" if array.dtype is None else array.dtype.name
        told = f"{dtype} {array.shape}, from the journal"
        _add_array(root.add(Text.assemble((printable(array.key), "bold"), "  ", printable(told))), array)
    if segment.left_out:
        root.add(Text(f"… and {segment.left_out:,} more"))
    for problem in segment.problems:
        root.add(Text(printable(problem, _PROBLEM_LENGTH), "red"))
    if segment.note is not None:
        root.add(Text(segment.note))
    return root


def _described(item: Item) -> str:
    if item.target is not None:
        return f"{item.kind} to {printable(item.target)}, not followed"
    if item.members is not None:
        return f"{item.kind} of {item.members:,}"
    if item.shape is None:
        what = item.problem or (f"{item.layout}, not followed" if item.layout else "")
        return f"{item.kind} {printable(what)}".rstrip()
    chunks = "" if item.chunk_shape is None else f" {item.chunk_shape}"
    filters = f", filters {', '.join(map(str, item.filters))}" if item.filters else ""
    return f"{printable(item.dtype or 'a type that no array has')} {item.shape}, {item.layout}{chunks}{filters}"


def _add_array(branch: Tree, array: StoredArray) -> None:
    if array.sequence is not None:
        branch.add(Text(printable(str(array.label))))
    if array.codec is not None:
        sizes = f"{format_bytes(array.stored_bytes)} of {format_bytes(array.nbytes)}"
        dtype = "" if array.dtype is None else f"{array.dtype.name} {array.shape}, "
        branch.add(Text(f"{dtype}codec {array.codec}: {sizes}"))
    if array.problem is not None:
        branch.add(Text(printable(array.problem, _PROBLEM_LENGTH), "red"))
