"""List the arrays of a segment from the journal of its run or, without a journal, from HDF5's structure."""

import contextlib
import dataclasses
import os
import stat
from pathlib import Path
from typing import cast

from spillgrad.errors import SpillError, SpillFormatError
from spillgrad.inspection.arrays import Segment, StoredArray, foreign, held_bytes, read_structure, without_overlap
from spillgrad.inspection.journal_state import JournalState
from spillgrad.inspection.unflushed import Journals, placed_array
from spillgrad.inspection.untrusted import UntrustedReader
from spillgrad.storage.runs.run_directory import is_locked

# As many chunks as the child process reads from HDF5's structure.
_CHUNKS_MAX = 1 << 18


def inspect_segment(
    path: str | os.PathLike[str], reader: UntrustedReader | None = None, journals: Journals | None = None
) -> Segment:
    """Return the contents of a segment of a live or dead run, without opening the file with HDF5 in this process.

    Parameters
    ----------
    path : str or path
        The segment, which may be of unknown origin.
    reader : UntrustedReader, optional
        The process that reads; pass the same one to inspect several segments.
    journals : Journals, optional
        The journals that are open; pass the same ones for several segments of one run.

    Returns
    -------
    Segment
        The arrays of the file, and where they lie.

    Raises
    ------
    SpillError
        If HDF5 cannot read the file and no journal describes it.
    SpillFormatError
        If the file is of a newer version; this is a SpillError.
    OSError
        If the file cannot be opened.
    """
    path = Path(path)
    with contextlib.ExitStack() as ours:
        reader = ours.enter_context(UntrustedReader()) if reader is None else reader
        journals = ours.enter_context(Journals()) if journals is None else journals
        structure = refused = None
        try:
            structure = read_structure(path, reader)
        except SpillFormatError:
            raise
        except SpillError as error:
            refused = error
        # The journal is read last, because the run may go on while HDF5 reads. It is not asked about symbolic links.
        state = journals.of(path) if stat.S_ISREG(os.lstat(path).st_mode) else None
        if state is not None:
            return _of_run(path, structure or Segment(path, 0, 0, (), (), 0, ()), refused, state)
        if structure is None:
            raise cast(SpillError, refused)
        return structure


def _of_run(path: Path, structure: Segment, refused: SpillError | None, state: JournalState) -> Segment:
    """Return the contents of a segment from its run's journal, completed by HDF5's `structure`.

    `refused` is HDF5's error if HDF5 could not read the file; `structure` is empty then.
    """
    placed, is_flushed, is_live = state.placed(path.name), state.is_flushed, is_locked(path.parent)
    found = os.stat(path)
    in_hdf5 = {array.key: array for array in structure.arrays}
    problems = [*filter(None, map(foreign, structure.items))]
    arrays = []
    most_bytes, chunks, left_out = held_bytes(found), 0, structure.left_out + state.unplaced
    for one in placed:
        chunks += 1 + len(one.place.pieces or ()) + len(one.place.chunks)
        if chunks <= _CHUNKS_MAX:
            array = placed_array(one, found.st_size, most_bytes)
            arrays.append(_completed(array, one.place.pieces is None, in_hdf5.get(array.key)))
        else:
            left_out += 1
    arrays = without_overlap(arrays, most_bytes, problems)
    note = None
    if is_flushed and not is_live:  # HDF5 and the journal must agree
        problems += [str(refused)] if refused is not None else filter(None, (_differs(a, in_hdf5) for a in arrays))
    else:
        note = _note(state, is_live, sum(array.key not in in_hdf5 for array in arrays), len(arrays), refused is None)
    return Segment(
        path, found.st_size, found.st_blocks * 512, tuple(arrays), structure.items, left_out, tuple(problems), note
    )


def _completed(array: StoredArray, is_elsewhere: bool, in_hdf5: StoredArray | None) -> StoredArray:
    """Return the journal's `array` with HDF5's views and chunk shape, or `in_hdf5` if the journal lists no pieces."""
    if in_hdf5 is None or (in_hdf5.problem is not None and not is_elsewhere):
        return array
    if is_elsewhere:
        return in_hdf5
    return dataclasses.replace(array, views=in_hdf5.views, chunk_shape=in_hdf5.chunk_shape)


def _differs(array: StoredArray, in_hdf5: dict[str, StoredArray]) -> str | None:
    """Return in words how HDF5's array of the same key differs from the journal's `array`; None if it does not."""
    other = in_hdf5.get(array.key)
    if other is None:
        return f"{array.key}: is in the journal, and HDF5 does not have it"
    if other.problem is not None:
        return f"{array.key}: as HDF5 has it, {other.problem}"
    if array.from_journal and (other.shape, other.checksum) != (array.shape, array.checksum):
        return f"{array.key}: HDF5 has another shape or checksum than the journal"
    return None


def _note(state: JournalState, is_live: bool, unflushed: int, total: int, is_readable: bool) -> str | None:
    """Return a note on the arrays that HDF5 lacks, or on missing lines of the journal; None if nothing is missing."""
    if not state.knows_places:
        return (
            f"the disk refused lines of the run's journal: what was in it before, but for {total} arrays, is not known"
        )
    if is_readable and not unflushed:
        return None
    which = f"{unflushed} of {total} arrays are told from the run's journal" if total else "no array was in it"
    if is_live:
        return f"not flushed yet: {which}" + ("" if is_readable else "; HDF5 cannot read it before")
    return f"its run was killed before a flush: {which}" + ("" if is_readable else "; HDF5 cannot read it")
