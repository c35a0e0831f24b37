"""The child process that opens HDF5 files of unknown origin: it reports their structure and reads no array values.

`untrusted.py` starts this process. On bytes that HDF5 did not write, HDF5 may crash, hang or allocate without bound.
So this process limits its memory, time, open files and writing before it opens a file. Each question is a line of JSON
on stdin, `{"path": ..., "seconds": ...}`. Each answer is lines of JSON on stdout; the last line has the key `end` or
`refused`.

Links and virtual or external storage are reported, never followed: while a file is open, the limit allows no second
one. The process imports nothing of spillgrad, and so starts in 0.15 s with 45 MB.
"""

import codecs
import json
import os
import resource
import stat
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5p, h5s, h5t

MORE_BYTES = 128 << 20  # the address space allowed beyond that of the libraries
MOST_OBJECTS = 100_000
MOST_DEPTH = 8
MOST_NAME_BYTES = 16 << 20
MOST_TEXT_BYTES = 64 << 10  # for an attribute; stores write HDF5's compact attributes, which have no more
MOST_ATTRIBUTES = 64
MOST_CHUNKS = 1 << 18
CHUNKS_A_LINE = 2048
ATTRIBUTE = b"spillgrad"
LAYOUTS = {h5d.COMPACT: "compact", h5d.CONTIGUOUS: "contiguous", h5d.CHUNKED: "chunked", h5d.VIRTUAL: "virtual"}

Line = dict[str, Any]


def main() -> None:
    """Answer the questions on stdin until stdin ends."""
    codecs.lookup("ascii")  # load now the codec that h5py needs for names: later no file can be opened
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = int(_read("/proc/self/statm").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime + question["seconds"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        try:
            for answer in about(os.fsencode(question["path"]), most_files):
                _send(answer)
        except Exception as error:  # hostile bytes may raise anything; the parent reports it
            _send({"refused": f"{error}" or type(error).__name__, "errno": getattr(error, "errno", None)})


def about(path: bytes, most_files: tuple[int, int]) -> Iterator[Line]:
    """Yield the lines of the answer about a file: its objects and, last, `end`."""
    kind = os.stat(path).st_mode
    if not stat.S_ISREG(kind):  # before it is opened: a device may wait, or do something
        raise ValueError(f"it is {'a folder' if stat.S_ISDIR(kind) else 'no regular file'}")
    access = h5p.create(h5p.FILE_ACCESS)
    access.set_fclose_degree(h5f.CLOSE_STRONG)
    access.set_file_locking(False, True)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, most_files[1]))  # only one more file can be opened
    walk = Walk()
    try:
        file = h5f.open(path, h5f.ACC_RDONLY, fapl=access)
        try:
            yield from walk.group(h5g.open(file, b"/"), "", 0)
        finally:
            file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most_files)
    yield {"end": {"left_out": walk.left_out, "peak_bytes": _peak_bytes()}}


class Walk:
    """Walks over the objects of a file, enters each group once, and counts the objects that it leaves out."""

    def __init__(self) -> None:
        self.left_out = 0
        self._objects = self._name_bytes = self._chunks = 0
        self._groups: set[int] = set()

    def group(self, group: Any, path: str, depth: int) -> Iterator[Line]:
        """Yield a line for each link of a group, and for each object below the link."""
        low, high = h5g.get_objinfo(group).objno
        self._groups.add(low | high << 32)  # its address in the file, as a hard link's `u`
        for name in self._names(group):
            child = f"{path}/{name.decode('utf-8', 'surrogateescape')}"
            try:
                yield from self._link(group, name, child, depth + 1)
            except Exception as error:  # the rest of the file may be readable
                yield {"path": child, "kind": "unreadable", "problem": f"{error}" or type(error).__name__}

    def _names(self, group: Any) -> list[bytes]:
        names: list[bytes] = []

        def take(name: bytes) -> bool | None:
            if self._objects == MOST_OBJECTS or self._name_bytes > MOST_NAME_BYTES:
                return True
            self._objects += 1
            self._name_bytes += len(name)
            names.append(name)
            return None

        group.links.iterate(take)
        self.left_out += max(0, group.get_num_objs() - len(names))
        return names

    def _link(self, group: Any, name: bytes, path: str, depth: int) -> Iterator[Line]:
        link = group.links.get_info(name)
        if link.type != h5l.TYPE_HARD:
            kind = {h5l.TYPE_SOFT: "soft link", h5l.TYPE_EXTERNAL: "external link"}.get(link.type, "unknown link")
            # A soft link's `u` is the length of its target.
            known = kind != "unknown link" and link.u <= MOST_TEXT_BYTES
            target = group.links.get_val(name) if known else b""
            parts = target if isinstance(target, tuple) else (target,)
            yield {"path": path, "kind": kind, "target": b":".join(parts).decode("utf-8", "surrogateescape")}
            return
        found = h5o.open(group, name)
        if isinstance(found, h5g.GroupID):
            members = found.get_num_objs()
            yield {"path": path, "kind": "group", "members": members, "attributes": _attributes(found)}
            if link.u in self._groups:
                return
            if depth < MOST_DEPTH:
                yield from self.group(found, path, depth)
            else:
                self.left_out += members
        elif isinstance(found, h5d.DatasetID):
            yield from self._dataset(found, path)
        else:
            yield {"path": path, "kind": "type"}

    def _dataset(self, dataset: Any, path: str) -> Iterator[Line]:
        line: Line = {"path": path, "kind": "dataset"}
        made = dataset.get_create_plist()
        line["layout"] = LAYOUTS.get(made.get_layout(), "unknown")
        if line["layout"] == "virtual":  # asked for its shape, HDF5 would look for the sources
            yield line
            return
        line["external"] = made.get_external_count()
        space = dataset.get_space()
        line["empty"] = space.get_simple_extent_type() == h5s.NULL
        line["shape"] = [] if line["empty"] else space.get_simple_extent_dims()
        line["dtype"], line["itemsize"] = _type(dataset.get_type())
        line["filters"] = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
        try:
            line["attributes"] = _attributes(dataset)
            line["text"] = _text(dataset)
        except Exception as error:  # the rest of the dataset may be readable
            line["problem"] = f"its attributes cannot be read: {error}"
        line["offset"] = None
        if line["layout"] == "contiguous" and not line["external"]:
            line["offset"] = dataset.get_offset()
        if line["layout"] == "chunked":
            line["chunk_shape"] = made.get_chunk()
            chunks: list[tuple[int, ...]] = []

            def take(info: Any) -> bool | None:
                if self._chunks == MOST_CHUNKS:
                    return True
                self._chunks += 1
                chunks.append((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask))
                return None

            if 0 not in line["shape"]:
                dataset.chunk_iter(take)
            for i in range(0, len(chunks), CHUNKS_A_LINE):
                yield {"chunks": chunks[i : i + CHUNKS_A_LINE]}
        yield line


def _type(kind: Any) -> tuple[str | None, int]:
    """Return the name of the NumPy dtype with the same bytes (None if there is none), and the bytes of one item."""
    size = kind.get_size()
    if kind.get_class() == h5t.OPAQUE:
        tag = kind.get_tag()
        named = tag.startswith(b"NUMPY:")
        return (tag.removeprefix(b"NUMPY:").decode("ascii", "replace") if named else f"|V{size}"), size
    if kind.get_class() == h5t.FLOAT and size == 2 and kind.get_fields() == (15, 7, 8, 0, 7):
        ours = kind.get_ebias() == 127 and kind.get_order() == h5t.ORDER_LE
        return ("bfloat16" if ours else None), size
    found = kind.dtype
    # Types of variable length point elsewhere in the file, and h5py widens types that NumPy lacks.
    if found.hasobject or found.itemsize != size or (found.kind != "V" and not h5t.py_create(found).equal(kind)):
        return None, size
    return found.str, size


def _attributes(found: Any) -> list[tuple[str, int | None]]:
    """Return the name and size of each attribute; of many, which HDF5 would sort first, only the count."""
    count = h5a.get_num_attrs(found)
    if count > MOST_ATTRIBUTES:
        return [(f"({count} attributes)", None)]
    opened = [h5a.open(found, index=i) for i in range(count)]
    return [(one.name.decode("utf-8", "surrogateescape"), one.get_storage_size()) for one in opened]


def _text(dataset: Any) -> str | None:
    """Return the text of the attribute that a store gives a dataset; None if there is none."""
    if not h5a.exists(dataset, ATTRIBUTE):
        return None
    found = h5a.open(dataset, ATTRIBUTE)
    kind, nbytes = found.get_type(), found.get_storage_size()
    scalar = found.get_space().get_simple_extent_type() == h5s.SCALAR
    if kind.get_class() != h5t.STRING or kind.is_variable_str() or not scalar or nbytes > MOST_TEXT_BYTES:
        raise ValueError(f"{ATTRIBUTE.decode()} is no text of fixed length, of {MOST_TEXT_BYTES} bytes at most")
    text = np.empty((), f"S{nbytes}")
    found.read(text, mtype=kind)
    return bytes(text.item()).decode("utf-8", "surrogateescape")


def _send(line: Line) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    if "end" in line or "refused" in line:
        sys.stdout.flush()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def _peak_bytes() -> int:
    """Return the peak memory of this process; `ru_maxrss` would include the parent's before the fork."""
    (line,) = (line for line in _read("/proc/self/status").splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    main()
