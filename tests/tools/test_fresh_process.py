"""A call in a process of its own that compiled nothing."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad.errors import BudgetError
from spillgrad_kernels.jit.compile import counts
from spillgrad_tools import fresh_process
from tests.waiting import wait_until

NEEDS_JIT = pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")


def adds(x: float, y: float = 1.0) -> tuple[float, int, int]:
    return (sg.tensor(x) + sg.tensor(y)).item(), os.getpid(), counts.compiled


def refuses(message: str) -> None:
    raise BudgetError(message)


def warns() -> None:
    warnings.warn("the disk is a RAM disk", stacklevel=2)


@pytest.mark.exhaustive
@NEEDS_JIT
def test_what_a_function_returns_in_a_process_that_compiled_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        total, process, compiled = fresh_process.call(adds, 2.0, y=3.5)
        assert (total, compiled) == (5.5, 0)
        assert process != os.getpid()


def test_its_errors_and_warnings_arrive(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(BudgetError, match=r"^plan: got 1 MiB$"):
        fresh_process.call(refuses, "plan: got 1 MiB")
    fresh_process.call(warns)
    assert capfd.readouterr().err == "spillgrad: warning: the disk is a RAM disk\n"


@pytest.mark.parametrize("status", [3, -signal.SIGKILL])
def test_a_process_that_ends_without_an_answer_is_an_error_that_says_how(status: int):
    end, given = (os._exit, (status,)) if status > 0 else (signal.raise_signal, (-status,))
    with pytest.raises(ChildProcessError, match=f"status {status}"):
        fresh_process.call(end, *given)


def test_ctrl_c_leaves_no_process_and_no_file(tmp_path: Path):
    plan = ["plan", "--model", "tiny", "--batch", "2", "--context", "64", "--ram", "4GiB", "--dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "spillgrad_tools", *plan],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # also where it is ignored
    )
    wait_until(lambda: any(tmp_path.iterdir()), 60)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []
    assert [child for child in children if Path("/proc", child).exists()] == []
