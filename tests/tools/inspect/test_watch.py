"""`spillgrad inspect --watch` in a terminal, over jobs in processes of their own."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spillgrad.storage import DiskStore, sweep
from spillgrad_tools.cli import main
from spillgrad_tools.inspect.watch_follow import Follower
from tests.tools.jobs import end, job
from tests.tools.terminal import Terminal, terminal
from tests.waiting import wait_until

FULL_SCREEN, FORMER_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
NO_CURSOR, CURSOR = "\x1b[?25l", "\x1b[?25h"


def watching(path: Path) -> list[str]:
    return [sys.executable, "-m", "spillgrad_tools", "inspect", "--watch", str(path)]


def shown(watched: Terminal, *words: str) -> str:
    """Return what the terminal got until all the words are in one screen of it, without colours."""
    return watched.wait_for(lambda text: any(all(word in page for word in words) for page in screens(text)))


def screens(text: str) -> list[str]:
    """Return what was drawn each time, from the home position on."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", page) for page in text.split("\x1b[H")]


def assert_restored(watched: Terminal) -> None:
    """Assert that the terminal is as it was: its former screen, its cursor, its settings."""
    assert watched.written.rindex(FORMER_SCREEN) > watched.written.rindex(FULL_SCREEN)
    assert watched.written.rindex(CURSOR) > watched.written.rindex(NO_CURSOR)
    assert watched.settings() == watched.before
    assert "Traceback" not in watched.written


def test_a_job_is_waited_for_watched_seen_ending_and_followed_by_the_next(tmp_path: Path):
    spill = tmp_path / "spill"
    with terminal(watching(spill), tmp_path, columns=200, lines=26) as watched:
        shown(watched, f"waiting for a run in {spill}", "does not exist yet", "q leaves")
        with job(spill) as first:
            shown(watched, "live", f"process {first.pid}", "a second", "of 1 MiB", "MiB/s", "% of the time")
            assert FULL_SCREEN in watched.written
            assert NO_CURSOR in watched.written
            shown(watched, "waited longest for", "mul")
            end(first)
            shown(watched, "ended", f"process {first.pid}", "it ended, and its files are gone")
            with job(spill) as second:
                shown(watched, "live", f"process {second.pid}")
                second.kill()
                second.wait()
                shown(watched, "ended", f"its process died; `spillgrad sweep {spill}` removes what it left")
        watched.type("q")
        assert watched.end() == 0
        assert_restored(watched)
    sweep(spill)


def test_a_run_that_is_removed_as_it_is_found_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = DiskStore(tmp_path / "spill", ram_budget=0, keep_journal=tmp_path / "kept.jsonl")
    (run,) = (tmp_path / "spill").iterdir()
    shutil.copytree(run, copy := tmp_path / run.name, symlinks=True)
    readlink = os.readlink

    def too_late(path: str) -> str:
        shutil.rmtree(copy)
        return readlink(path)

    with monkeypatch.context() as patch, Follower(copy) as follower:
        patch.setattr(os, "readlink", too_late)
        assert follower.look() is None
        assert not copy.exists()
    store.close()


def test_a_kept_journal_says_that_the_run_finished(tmp_path: Path):
    with job(tmp_path / "spill", tmp_path / "kept.jsonl") as process:
        end(process)
    with terminal(watching(tmp_path / "kept.jsonl"), tmp_path) as watched:
        shown(watched, "kept.jsonl", "ended", "it finished: its store was closed")
        watched.type("Q")
        assert watched.end() == 0


def test_a_journal_in_whose_place_the_next_run_writes_is_followed_on(tmp_path: Path):
    with terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "waiting")
        for _ in range(2):
            with job(tmp_path / "spill", tmp_path / "kept.jsonl") as process:
                shown(watched, "live", f"process {process.pid}")
                end(process)
                shown(watched, "ended", f"process {process.pid}", "it finished")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
def test_a_signal_ends_it_with_the_terminal_as_it_was(tmp_path: Path, number: signal.Signals, status: int):
    with terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "waiting")
        os.kill(watched.process.pid, number)
        assert watched.end() == status
        assert_restored(watched)


def test_ctrl_c_leaves(tmp_path: Path):
    with terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "waiting")
        watched.type("\x03")
        assert watched.end() == 130
        assert_restored(watched)


def test_ctrl_z_gives_the_terminal_back_and_fg_takes_it_again(tmp_path: Path):
    # Only below a shell with job control does anything stop.
    with terminal(["bash", "--norc", "--noprofile", "-i"], tmp_path, PS1="prompt>") as shell:
        shell.wait_for_words("prompt>")
        shell.type(" ".join(watching(tmp_path)) + "\n")
        shell.wait_for_words(FULL_SCREEN, "q leaves")
        shell.type("\x1a")
        text = shell.wait_for_words("Stopped", "prompt>")
        assert FORMER_SCREEN in text
        assert CURSOR in text
        shell.type("fg\n")
        shell.wait_for_words(FULL_SCREEN, NO_CURSOR, "q leaves")
        shell.type("q")
        shell.wait_for_words(FORMER_SCREEN, CURSOR, "prompt>")
        shell.type("exit\n")
        assert shell.end() == 0


def test_it_fills_a_terminal_of_any_size(tmp_path: Path):
    with job(tmp_path / "spill"), terminal(watching(tmp_path / "spill"), tmp_path, columns=120, lines=40) as watched:
        shown(watched, "waited longest for")
        for columns, lines in ((40, 10), (10, 3), (1, 1), (3, 50), (200, 2), (100, 30)):
            watched.resize(columns, lines)
            text = watched.wait_for(lambda text, most=lines: _is_of(text, most))
            page = screens(text)[-2]
            assert max(map(len, page.replace("\r", "").split("\n"))) <= columns
        shown(watched, "waited longest for")
        watched.type("q")
        assert watched.end() == 0
        assert_restored(watched)


def _is_of(text: str, lines: int) -> bool:
    """Return whether a whole screen of so many lines was drawn."""
    pages = screens(text)
    return len(pages) > 2 and pages[-2].count("\n") == lines - 1


def test_a_terminal_that_goes_away_ends_it(tmp_path: Path):
    with terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "waiting")
        watched.hang_up()
        assert watched.process.wait(timeout=30) == 129


def test_without_a_keyboard_it_is_left_by_a_signal(tmp_path: Path):
    command = ["bash", "-c", 'exec "$@" < /dev/null', "bash", *watching(tmp_path)]
    with terminal(command, tmp_path) as watched:
        shown(watched, "waiting")
        os.kill(watched.process.pid, signal.SIGTERM)
        assert watched.end() == 143
        assert_restored(watched)


def test_of_the_job_it_opens_the_journal_alone_and_yields_to_it(tmp_path: Path):
    with job(tmp_path), terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "live", "MiB/s")
        (run,) = tmp_path.glob("run-*")
        seen = set()
        # The lock is asked about its owner several times a second, each time for an instant.
        for _ in range(200):
            for fd in os.listdir(f"/proc/{watched.process.pid}/fd"):
                try:
                    seen.add(os.readlink(f"/proc/{watched.process.pid}/fd/{fd}"))
                except FileNotFoundError:
                    continue
        assert {path for path in seen if path.startswith(str(run))} - {f"{run}/.lock"} == {f"{run}/journal.jsonl"}
        assert os.getpriority(os.PRIO_PROCESS, watched.process.pid) == 10


def test_what_is_no_journal_is_said_on_the_former_screen(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("nothing of ours\n")
    with terminal(watching(tmp_path / "notes.txt"), tmp_path, columns=300) as watched:
        assert watched.end() == 2
        assert_restored(watched)
        last = watched.written[watched.written.rindex(FORMER_SCREEN) :]
        assert "is no journal of a run" in last


def test_a_path_in_no_folder_is_refused(tmp_path: Path):
    with terminal(watching(tmp_path / "missing" / "spill"), tmp_path, columns=300) as watched:
        assert watched.end() == 2
        path = tmp_path / "missing"
        assert f"got --watch {path / 'spill'}, and there is no {path} in which a run could begin" in watched.written
        assert FULL_SCREEN not in watched.written


def test_away_from_a_terminal_it_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["inspect", "--watch", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("spillgrad: inspect: got --watch without a terminal")
    assert printed.err.count("\n") == 1


def test_a_terminal_that_cannot_move_its_cursor_is_refused(tmp_path: Path):
    with terminal(watching(tmp_path), tmp_path, columns=300, TERM="dumb") as watched:
        assert watched.end() == 2
        assert "got --watch without a terminal" in watched.written


def test_hostile_names_are_shown_as_they_are(tmp_path: Path):
    head = (
        '{"format": 2, "began": "x", "process": 1, "host": "\\u001b[31m[bold]", "command": "\\u001b]0;owned\\u0007"}\n'
    )
    fail = '{"t": 1, "event": "fail", "reason": "\\u009b2J[/bold]"}\n'
    (tmp_path / "kept.jsonl").write_text(head + fail)
    with terminal(watching(tmp_path), tmp_path) as watched:
        shown(watched, "\\x1b]0;owned\\x07", "\\x1b[31m[bold]", "\\x9b2J[/bold]")
        assert "\x07" not in watched.written
        assert "\x9b" not in watched.written


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_tmux_a_training_is_watched_to_its_end(tmp_path: Path):
    server = ["tmux", "-L", f"spillgrad-{os.getpid()}", "-f", os.devnull]
    # A shell that has them exported goes on exporting the size the window had.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "80", "LINES": "24"}

    def tmux(*words: str) -> str:
        done = subprocess.run([*server, *words], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    def screen_has(*words: str) -> bool:
        time.sleep(0.1)
        text = tmux("capture-pane", "-p")
        return all(word in text for word in words)

    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst of times. " * 60)
    command = [sys.executable, "-m", "spillgrad_tools"]
    train = [*command, "train", "--data", "text.txt", "--model", "tiny", "--steps", "150", "--batch", "16", "--context"]
    train += ["64", "--ram-budget", "64KiB", "--out", "out"]
    tmux("new-session", "-d", "-x", "100", "-y", "30", "-c", str(tmp_path), "bash --norc --noprofile")
    try:
        tmux("send-keys", shlex.join([*command, "inspect", "--watch", "out"]) + "; echo status $?", "Enter")
        wait_until(lambda: screen_has("waiting for a run in out"), 30)
        with subprocess.Popen(train, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as training:
            wait_until(lambda: screen_has("live", f"process {training.pid}", "of 64 KiB", "backward", "linear"), 120)
            assert training.wait(timeout=300) == 0
        wait_until(lambda: screen_has("ended", "it finished: its store was closed", "150, "), 30)
        tmux("resize-window", "-x", "50", "-y", "9")
        wait_until(lambda: screen_has("ended", "it finished"), 30)
        tmux("send-keys", "q")
        wait_until(lambda: screen_has("status 0"), 30)
        assert not screen_has("it finished")
    except AssertionError:
        print(tmux("capture-pane", "-p"))  # what it had instead
        raise
    finally:
        tmux("kill-server")
