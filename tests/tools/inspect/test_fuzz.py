"""Journals that anybody may have written: an answer or one line, and nothing that a terminal obeys."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.screen import Screen

from spillgrad.storage import DiskStore, Label
from spillgrad_tools.cli import main
from spillgrad_tools.inspect.watch_follow import Follower
from spillgrad_tools.inspect.watch_view import View

# What may stand in the place of some bytes of a journal.
PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"\n",
            b"-1",
            b"1e400",
            b"NaN",
            b"null",
            b"{}",
            b"[" * 200,
            b'"\\u001b[2J"',
            b"9" * 30,
            b"-0.0",
            b'"\xff"',
            b"}",
        ]
    ),
)
CHANGES = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), PIECES), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return what a store wrote: all kinds of lines in few of them."""
    folder = tmp_path_factory.mktemp("fuzz")
    store = DiskStore(folder / "spill", ram_budget=100_000, keep_journal=folder / "kept.jsonl")
    for step in range(3):
        handles = [store.put(np.full(10_000, n), label=Label("mul", "self", f"h.{n}", step)) for n in range(4)]
        store.flush()
        for handle in reversed(handles):
            store.get(handle)
            store.drop(handle)
    store.close()
    return (folder / "kept.jsonl").read_bytes()


@settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=CHANGES, by=st.sampled_from(["module", "op", "kind", "dtype", "step"]))
def test_a_changed_journal_is_shown_or_refused(journal: bytes, tmp_path: Path, changes, by: str):
    data = journal
    for place, length, piece in changes:
        start = int(place * len(data))
        data = data[:start] + piece + data[start + length :]
    path = tmp_path / "kept.jsonl"
    path.write_bytes(data)

    for options in ([], ["--json"]):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(["inspect", str(path), "--by", by, *options])
        text = out.getvalue() + err.getvalue()
        assert not [character for character in text if not character.isprintable() and character != "\n"]
        assert len(text) < 2_000_000
        if status == 2:
            assert (out.getvalue(), err.getvalue().count("\n")) == ("", 1)
        else:
            assert (status in (0, 1), err.getvalue()) == (True, "")
            assert not options or json.loads(out.getvalue())["format"] == 1
    if status == 2:
        return
    console = Console(width=80, height=24, color_system=None, file=io.StringIO())
    with Follower(path) as follower:
        found = follower.look()
        assert found is not None
        with console.capture() as captured:
            console.print(Screen(View(found)))
    assert captured.get().count("\n") == 23
    assert not [character for character in captured.get() if not character.isprintable() and character != "\n"]
