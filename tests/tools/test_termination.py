"""A process that is asked to end removes what it has put on a disk, and then ends as it was asked to."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillgrad_tools import termination
from spillgrad_tools.termination import unwinding

PROGRAM = """
import signal, sys, tempfile
from spillgrad_tools import termination
from spillgrad_tools.termination import unwinding
{before}
with unwinding(), tempfile.TemporaryDirectory(dir=sys.argv[1]):
    print("begun", flush=True)
    sys.stdin.read()
print("went on")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignored", [False, True], ids=["heard", "ignored"])
def test_a_signal_ends_the_process_after_its_folder_is_gone(number: signal.Signals, ignored: bool, tmp_path: Path):
    before = f"signal.signal({int(number)}, signal.{'SIG_IGN' if ignored else 'SIG_DFL'})"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(before=before), str(tmp_path)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    with process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == ((0, "went on\n") if ignored else (-number, ""))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def default_handlers() -> Iterator[None]:
    former = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_handlers")
def test_handlers_are_as_before_afterwards_and_other_threads_change_none():
    with unwinding():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    seen = []

    def look() -> None:
        with unwinding():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


@pytest.mark.usefixtures("default_handlers")
def test_a_signal_that_a_finalizer_has_swallowed_can_come_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(termination, "_PATIENCE_S", 0.0)
    with unwinding():
        for _ in range(2):
            with pytest.raises(BaseException, match=str(int(signal.SIGTERM))):
                signal.raise_signal(signal.SIGTERM)
