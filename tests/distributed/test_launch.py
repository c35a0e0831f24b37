"""`spillgrad launch` builds the command of the MPI that is there, and shortens what that prints."""

import io

import pytest

import spillgrad as sg
from spillgrad_tools.cli import main
from spillgrad_tools.launch.banners import Seen, without_banners
from spillgrad_tools.launch.command import mpiexec_words
from spillgrad_tools.launch.placement import Lost, Placement
from spillgrad_tools.launch.process import numbers
from spillgrad_tools.launch.program import Program, program_of

OPEN_MPI, MPICH = "mpiexec (Open MPI) 5.0.11", "HYDRA build details:\n    Version: 5.0.2"
RULE = "-" * 74 + "\n"


def test_open_mpi_may_use_more_processes_than_cores_and_all_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    words = mpiexec_words("mpiexec", OPEN_MPI, Placement(4), {"SPILLGRAD_RESTART": "1", "HOME": "/"})
    assert words == [
        "mpiexec", "-n", "4", "--bind-to", "none", "--map-by", "slot:OVERSUBSCRIBE", "-x", "SPILLGRAD_RESTART"
    ]  # fmt: skip
    monkeypatch.setattr("os.geteuid", lambda: 0)
    words = mpiexec_words("mpiexec", OPEN_MPI, Placement.of(5, "a,b:4"), {})
    assert words[-3:] == ["--allow-run-as-root", "--host", "a:3,b:4"]


def test_mpich_gets_as_many_slots():
    words = mpiexec_words("mpiexec", MPICH, Placement.of(4, "a,b"), {"SPILLGRAD_RESTART": "1"})
    assert words == ["mpiexec", "-n", "4", "-hosts", "a:2,b:2"]


@pytest.mark.parametrize(
    "processes, hosts, lost, left",
    [
        (4, None, [Lost(2, "here")], "3 processes"),
        (3, None, [Lost(2), Lost(0)], "1 process"),
        (4, "a,b", [Lost(1, "x")], "3 processes on a:1,b:2"),  # ranks are on hosts in their order
        (4, "a,b", [Lost(2, "x", with_host=True)], "2 processes on a:2"),
        (4, "a:3,b:1", [Lost(3, "x")], "3 processes on a:3"),
        (6, "a,b,c", [Lost(host="b", with_host=True)], "4 processes on a:2,c:2"),
        (6, "a,b,c", [Lost(host="b")], "5 processes on a:2,b:1,c:2"),
        (2, "a,b", [Lost(host="another name")], "1 process on a:1,b:1"),
        (2, "127.0.0.1,b", [Lost(host="localhost", with_host=True)], "1 process on b:1"),
        (2, "a", [Lost(0, "a", with_host=True)], "0 processes on "),
    ],
)
def test_what_was_lost_is_left_out(processes: int, hosts: str | None, lost: list[Lost], left: str):
    found = Placement.of(processes, hosts).without(lost)
    noun = "process" if found.processes == 1 else "processes"
    assert f"{found.processes} {noun}" + ("" if found.slots is None else f" on {found.slots}") == left


def test_a_placement_says_its_machines():
    assert str(Placement.of(4, "a,b:1")) == "4 processes on a, b"
    assert str(Placement(1)) == "1 process"


@pytest.mark.parametrize("given", [["--out", "{}"], ["--out={}"], ["--resume", "old", "--out", "{}"], ["--resume={}"]])
def test_a_training_goes_on_from_what_it_has_saved(given: list[str], tmp_path):
    words = ["train", "--model", "tiny", *(word.format(tmp_path) for word in given), "--steps", "5"]
    program = Program(words)
    assert program.words == words
    assert (program.progress, program.has_ended) == ("from where it began", False)
    state = {"extra": {"settings": {"steps": 5}}}
    for step, has_ended in ((3, False), (5, True)):
        sg.save_checkpoint(tmp_path, sg.nn.Linear(1, 1), step=step, **state)
        assert program.words == ["train", "--model", "tiny", "--steps", "5", "--resume", str(tmp_path)]
        assert (program.progress, program.has_ended) == (f"from the checkpoint of step {step}", has_ended)
    again = Program(words)  # what was there before is not this run's
    assert (again.words, again.has_ended) == (words, False)


def test_a_training_that_names_no_folder_gets_one(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "1").mkdir(parents=True)
    assert Program(["train", "--steps", "5"]).words == ["train", "--steps", "5", "--out", "runs/2"]
    assert Program(["a.py", "--out", "b"]).words == ["a.py", "--out", "b"]


def test_what_is_started_is_a_file_a_module_or_a_command_of_spillgrad(tmp_path):
    (tmp_path / "a.py").touch()
    assert program_of([str(tmp_path / "a.py"), "-x"])[3:] == [str(tmp_path / "a.py"), "-x"]
    assert program_of(["-m", "a.b", "c"])[3:] == ["-m", "a.b", "c"]
    assert program_of(["train", "--steps", "2"])[3:] == ["-m", "spillgrad", "train", "--steps", "2"]


@pytest.mark.parametrize(
    "words, told",
    [
        (["launch", "-n", "2", "none.py"], "launch: got none.py, which is no file; name a Python file or a command of"),
        (["launch", "-n", "0", "train"], "launch -n 0 train: Invalid value for '-n'"),
        (["launch", "-n", "2", "--", "-m"], "launch: got -m without a module; name one"),
        (["launch", "-n", "2"], "launch -n 2: Missing argument"),
    ],
)
def test_a_mistake_gets_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"spillgrad: {told}")


def test_without_mpi_the_command_says_how_to_install_it(monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("shutil.which", lambda *words, **options: None)
    assert main(["launch", "-n", "2", "train"]) == 2
    error = capsys.readouterr().err
    assert error == "spillgrad: launch: there is no mpiexec here; install MPI with pip install 'spillgrad[mpi]'\n"


def test_processes_are_numbered_as_launchers_of_pytorch_number_them():
    found = numbers({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert found == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert numbers({"PMI_RANK": "0", "PMI_SIZE": "2"}) == {"RANK": "0", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    "banner, told",
    [
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Errorcode: 1\n", ""),
        (
            "prterun noticed that process rank 1 with PID 7 on node a exited on\nsignal 9 (Killed).\n",
            "spillgrad: launch: rank 1 on a was ended by signal 9\n",
        ),
        ("There are not enough slots available\n", f"{RULE}There are not enough slots available\n{RULE}"),
    ],
)
def test_banners_are_shortened_and_other_lines_kept(banner: str, told: str):
    lines = io.StringIO(f"before\n\n{RULE}{banner}{RULE}\0after\n{RULE}mine\n{RULE}{RULE}")
    assert "".join(without_banners(lines)) == f"before\n\n{told}after\n{RULE}mine\n{RULE}{RULE}"


def test_what_open_mpi_says_of_an_end_that_is_known_is_left_out():
    stars = "[a:00000] *** An error occurred in Socket closed\n[a:00000] *** reported by process [1,1]\n"
    lines = io.StringIO(f"before\n{stars}after\n[a:00000] *** An error occurred in MPI_Isend\n")
    assert "".join(without_banners(lines)) == "before\nafter\n[a:00000] *** An error occurred in MPI_Isend\n"


def test_mpichs_banner_is_shortened():
    rule = "=" * 83 + "\n"
    banner = (
        f"{rule}=   BAD TERMINATION OF ONE OF YOUR\n=   PID 7 RUNNING AT a\n=   EXIT CODE: 9\n=   CLEANING UP\n{rule}"
    )
    reason = "Abort(1090831) on node 0: Fatal error in internal_Init_thread: Other MPI error\n"
    ours = "Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"
    below = f"{reason}{ours}YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
    found = "".join(without_banners(io.StringIO(banner + below)))
    assert found == f"{reason}spillgrad: launch: a process on a was ended by signal 9\n"
    found = "".join(without_banners(io.StringIO(banner)))
    assert found == "spillgrad: launch: a process on a ended with status 9\n"


@pytest.mark.parametrize(
    "lines, wanted",
    [
        (f"{RULE}prterun noticed that process rank 1 with PID 7 on node a exited on\nsignal 9 (Killed).\n{RULE}",
         [Lost(1, "a")]),
        (f"{RULE}PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-a-7@0,0] on node a\n"
         f"  Remote daemon: [prterun-a-7@0,1] on node b\n\nThis is usually due to a failure.\n{RULE}",
         [Lost(None, "b", with_host=True)]),
        ("spillgrad: rank 3 on b is gone: it was silent for 61 s; its last known collective: none\n",
         [Lost(3, "b", with_host=True)]),
        (f"{RULE}An MPI communication peer process has unexpectedly disconnected.\n\n  Peer host:  b\n{RULE}",
         [("missed", "b")]),
        ("[a:00000] *** An error occurred in Socket closed\n[a:00000] *** reported by process [1,1]\n",
         [("missed", None)]),
        (f"{RULE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n{RULE}", []),
    ],
)  # fmt: skip
def test_lost_processes_are_noted(lines: str, wanted: list[object]):
    seen = Seen()
    list(without_banners(io.StringIO(lines), seen))
    assert [*seen.lost, *(("missed", each.host) for each in seen.missed)] == wanted
