"""How runs in several processes end: processes are killed, stopped and interrupted, and fail. Each test starts some."""

import json
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from spillgrad.distributed.mpi import _choose_transport
from spillgrad.files import checkpoint_directory
from spillgrad_tools.cli import main
from spillgrad_tools.launch.command import _mpiexec, _version, mpiexec_words
from spillgrad_tools.launch.placement import Placement
from tests.distributed.launcher import launch, launched, needs_mpi, ranks, started, wait_until

pytestmark = needs_mpi
# Many short steps: a signal comes in the middle of them.
TRAIN = ["train", "--model", "tiny", "--steps", "60", "--batch", "1", "--context", "32", "--accumulate", "3"]
TRAIN += ["--save-every", "4", "--ram-budget", "1MiB"]


def saved(out: Path) -> dict[str, bytes]:
    folder = out / json.loads((out / "checkpoint.json").read_bytes())["current"]
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def has_saved(out: Path):
    return lambda: (out / "checkpoint.json").exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process saves, which is what any number does."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert main([*TRAIN, "--out", str(out)]) == 0
    return saved(out)


@pytest.mark.parametrize(
    "processes, fault, told",
    [
        (2, "recv", r"message 0 from rank 1 to 0 of float32 .*, ends.py:\d+: rank 1 on \S+ has ended without it; call"),
        pytest.param(
            2,
            "subgroup",
            r"all_reduce of float32 .* SUM, ends.py:\d+: rank 1 on \S+ has ended without it; call the same",
            marks=pytest.mark.exhaustive,
        ),
        (3, "part", r"all_to_all_single: rank 0 sends 2 elements to rank 1, which wants 1; give both the same sizes"),
    ],
)
def test_who_waits_for_a_rank_that_has_ended_or_failed_learns_it_in_seconds(processes: int, fault: str, told: str):
    ran = launch(processes, "ends.py", fault, timeout_s=120)
    assert ran.status != 0
    assert re.search(told, ran.errors), ran.errors
    assert "rank 0 went on" not in ran.output


@pytest.mark.exhaustive
def test_what_a_rank_has_sent_arrives_although_its_program_has_ended():
    ran = launch(2, "ends.py", "sent", timeout_s=120)
    assert ran.status == 0, ran.errors
    assert ran.output.count("went on") == 2


def test_a_rank_that_stands_still_is_named_in_one_line_and_ends_all():
    ran = launch(2, "ends.py", "stopped", timeout_s=120, SPILLGRAD_GONE_AFTER_S="6")
    assert ran.status != 0
    told = (
        r"spillgrad: rank 1 on \S+ is gone: it was silent for \d+ s; its last known collective: all_reduce of .*py:\d+"
    )
    assert re.fullmatch(told, ran.errors.strip()), ran.errors
    assert "went on" not in ran.output


def test_a_killed_rank_is_left_behind_and_the_weights_are_those_of_the_undisturbed_run(undisturbed, tmp_path: Path):
    out = tmp_path / "out"
    with started(launched(3, "--", *TRAIN, "--out", out, options=["--max-restarts", 3])) as running:
        wait_until(has_saved(out), running)
        random.choice(ranks(running)).kill()
        _, errors = running.communicate(timeout=240)
    assert running.returncode == 0, errors
    assert re.search(r"^spillgrad: launch: .* was (ended by signal 9|lost; probably it was killed)$", errors, re.M)
    assert re.search(
        r"^spillgrad: launch: restart 1 of 3: 2 processes, from the checkpoint of step \d+$", errors, re.M
    ), errors
    assert "Traceback" not in errors
    assert saved(out) == undisturbed


def test_a_mistake_is_not_started_again(tmp_path: Path):
    command = launched(2, "--", "train", "--model", "tinny", "--accumulate", 2, options=["--max-restarts", 3])
    with started([*command, "--out", str(tmp_path / "out")]) as running:
        _, errors = running.communicate(timeout=120)
    assert running.returncode == 1
    assert re.fullmatch(r"spillgrad: models: got 'tinny'.*\n", errors), errors


@pytest.mark.exhaustive
def test_other_programs_start_again_with_the_same_words_and_learn_which_start_it_is(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "start, size = os.environ['SPILLGRAD_RESTART'], os.environ['WORLD_SIZE']\n"
        "assert start == os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('start', start, 'of', size, *sys.argv[1:], flush=True)\n"
        "import spillgrad.distributed as dist\n"
        "dist.init_process_group('mpi')\n"
        "dist.barrier()\n"
        "if start == '0' and dist.get_rank() == 0:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "dist.barrier()\n"
    )
    with started(launched(2, program, "--word", options=["--max-restarts", 1])) as running:
        output, errors = running.communicate(timeout=240)
    assert running.returncode == 0, errors
    lines = sorted(line for line in output.splitlines() if line)  # MPICH adds an empty one
    assert lines == ["start 0 of 2 --word"] * 2 + ["start 1 of 1 --word"]


def test_ctrl_c_saves_at_the_same_step_and_resume_goes_on(undisturbed, tmp_path: Path):
    out = tmp_path / "out"
    with started(launched(2, "--", *TRAIN, "--out", out)) as running:
        wait_until(has_saved(out), running)
        os.killpg(running.pid, signal.SIGINT)
        output, errors = running.communicate(timeout=120)
    assert running.returncode == 130, errors
    assert errors == ""
    step = re.search(r"stopped after step (\d+); go on with", output)
    assert step and f"step {step[1]}/60  checkpoint saved" in output, output
    assert not list(out.glob("run-*"))
    assert main(["train", "--resume", str(out)]) == 0
    assert saved(out) == undisturbed


@pytest.mark.exhaustive
def test_a_second_ctrl_c_ends_all_at_once(tmp_path: Path):
    with started(
        launched(2, "--", *TRAIN[:3], "--accumulate", 2, "--ram-budget", 0, "--out", tmp_path / "out")
    ) as running:
        wait_until(lambda: list(tmp_path.glob("out/run-*")), running)
        there = ranks(running)
        os.killpg(running.pid, signal.SIGINT)
        time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)
        _, errors = running.communicate(timeout=60)
        assert psutil.wait_procs(there, timeout=30)[1] == []
    assert running.returncode == 130
    assert errors == ""


@pytest.mark.parametrize(
    "number, status",
    [pytest.param(signal.SIGTERM, 130, marks=pytest.mark.exhaustive), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_program_ends_with_its_launcher(number: int, status: int):
    with started(launched(2, "ends.py", "interrupted")) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        there = ranks(running)
        assert len(there) == 2
        running.send_signal(number)
        _, errors = running.communicate(timeout=60)
        assert psutil.wait_procs(there, timeout=30)[1] == []
    assert running.returncode == status
    assert errors == ""


@pytest.mark.exhaustive
def test_ctrl_c_under_mpiexec_alone_ends_all_and_the_last_checkpoint_is_whole(tmp_path: Path):
    out, path = tmp_path / "out", _mpiexec()
    words = mpiexec_words(path, _version(path), Placement(2), {})
    with started([*words, sys.executable, "-m", "spillgrad", *TRAIN, "--out", str(out)]) as running:
        wait_until(has_saved(out), running)
        began_s = time.monotonic()
        os.killpg(running.pid, signal.SIGINT)
        output, errors = running.communicate(timeout=60)
        assert time.monotonic() - began_s < 20
    assert running.returncode != 0
    assert "Traceback" not in output + errors
    current, state = checkpoint_directory.open_current(out)
    for name in state["checksums"]:
        checkpoint_directory.verify(current, name, state["checksums"])


def test_open_mpi_sends_small_pieces_between_machines_and_keeps_what_a_user_chose():
    two = {"OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    pieces, transport, interfaces = (
        f"OMPI_MCA_btl{rest}" for rest in ("_tcp_rdma_pipeline_frag_size", "", "_tcp_if_include")
    )
    _choose_transport(two)
    assert (two[pieces], two[transport]) == ("262144", "self,tcp") and interfaces not in two
    one = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_SIZE": "2"}
    _choose_transport(one)
    assert one[interfaces] == "lo" and pieces not in one
    chosen = {**two, pieces: "1000", transport: "self,sm"}
    _choose_transport(chosen)
    assert (chosen[pieces], chosen[transport]) == ("1000", "self,sm")
