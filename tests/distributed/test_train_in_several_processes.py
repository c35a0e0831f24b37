"""`spillgrad train` in several processes: whatever their number, the checkpoint has the same bytes."""

import re
from pathlib import Path

import pytest

from spillgrad_tools.cli import main
from tests.distributed.launcher import Ran, launch, needs_mpi

pytestmark = needs_mpi
SETTINGS = ["--model", "tiny", "--steps", "6", "--batch", "2", "--context", "64", "--accumulate", "4"]


def train(processes: int, folder: Path, *options: object) -> Ran:
    return launch(processes, "--", "train", "--ram-budget", "1MiB", "--spill-dir", folder / "spill", *options)


def saved(out: Path) -> dict[str, bytes]:
    (folder,) = out.glob("step-*")
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of one process."""
    folder = tmp_path_factory.mktemp("alone")
    ran = train(1, folder, *SETTINGS, "--out", folder / "out")
    assert ran.status == 0, ran.errors
    assert "\x1b" not in ran.output
    return folder / "out"


@pytest.mark.exhaustive
@pytest.mark.parametrize("processes", [2, 3, 4])
def test_the_checkpoint_is_that_of_one_process(processes: int, alone: Path, tmp_path: Path):
    ran = train(processes, tmp_path, *SETTINGS, "--out", tmp_path / "out")
    assert ran.status == 0, ran.errors
    assert saved(tmp_path / "out") == saved(alone)
    assert ran.output.count("step 6/6  loss ") == 1  # the first process speaks for all
    assert re.search(rf"processes +{processes}; what follows is of the first", ran.output)
    assert "\x1b" not in ran.output
    assert not list((tmp_path / "spill").glob("run-*"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "options",
    [
        ["--wire", "bfloat16"],
        ["--wire", "int8"],
        ["--wire", "bfloat16", "--offload"],
        ["--wire", "int8", "--offload", "--shard", "all"],
    ],
    ids=" ".join,
)
def test_gradients_that_travel_in_fewer_bits_give_the_same_checkpoint_for_any_number_of_processes(
    options: list[str], alone: Path, tmp_path: Path
):
    found = []
    for processes in (1, 3):
        out = tmp_path / str(processes)
        ran = train(processes, tmp_path, *SETTINGS, "--out", out, "--ram-budget", "8MiB", *options)
        assert ran.status == 0, ran.errors
        found.append(saved(out))
    assert found[0] == found[1]
    assert found[0] != saved(alone)


STOPS = (2, 4, 6)  # the learning rate hangs on the number of steps, which is changed on the way


def in_stages(folder: Path, processes: tuple[int, ...], *options: object) -> dict[str, bytes]:
    """Train by so many processes to each of `STOPS`; return what is saved."""
    out = folder / "out"
    for number, steps in zip(processes, STOPS, strict=True):
        begun = ("--resume", out) if out.exists() else (*SETTINGS, "--out", out)
        ran = launch(number, "--", "train", *begun, "--steps", steps, "--spill-dir", folder / "spill", *options)
        assert ran.status == 0, ran.errors
        assert f"step {steps}/{steps}  checkpoint saved in" in ran.output
    assert not list((folder / "spill").glob("*"))
    return saved(out)


@pytest.fixture(scope="module")
def alone_in_stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return in_stages(tmp_path_factory.mktemp("alone-in-stages"), (1, 1, 1), "--ram-budget", "1MiB")


def test_any_number_of_processes_goes_on_where_another_number_stopped(
    alone_in_stages: dict[str, bytes], tmp_path: Path
):
    assert in_stages(tmp_path, (3, 1, 4), "--ram-budget", "1MiB") == alone_in_stages


@pytest.mark.parametrize("shard", [pytest.param("state", marks=pytest.mark.exhaustive), "all"])
def test_so_does_an_offloaded_training_whose_checkpoint_is_whole(
    shard: str, alone_in_stages: dict[str, bytes], tmp_path: Path
):
    options = ("--offload", "--ram-budget", "6MiB", "--shard", shard)
    assert in_stages(tmp_path, (3, 1, 2), *options) == alone_in_stages


@pytest.mark.parametrize(
    "options, told",
    [
        (["--model", "tiny"], r"train: got --accumulate 1 with 2 processes; give --accumulate 2 or a multiple"),
        (["--model", "tinny", "--accumulate", 2], r"models: got 'tinny'"),
        (["--data", "/none", "--accumulate", 2], r"data: /none does not exist"),
        ([*SETTINGS, "--lr", "1e30"], r"train: got a (loss|gradient norm) of (nan|inf) in step \d"),
    ],
)
def test_a_mistake_is_one_line_and_ends_all_processes(options: list[object], told: str, tmp_path: Path):
    ran = train(2, tmp_path, "--out", tmp_path / "out", *options)
    assert ran.status != 0
    assert [line for line in ran.errors.splitlines() if line.strip()] == [ran.errors.strip()]
    assert re.match(f"spillgrad: {told}", ran.errors.strip()), ran.errors
    assert ran.took_s < 30


def test_processes_that_another_launcher_started_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["train", *SETTINGS]) == 2
    told = "spillgrad: init_process_group: got 4 processes; MPI starts those: use spillgrad launch -n 4 program.py"
    assert capsys.readouterr().err.startswith(told)


def test_processes_with_other_settings_are_refused(tmp_path: Path):
    program = "import os, sys; from spillgrad_tools.cli import main; rank = os.environ['RANK']; "
    program += "sys.exit(main(['train', '--model', 'tiny', '--accumulate', '2', '--seed', rank, '--out', sys.argv[1]]))"
    (tmp_path / "program.py").write_text(program)
    ran = launch(2, tmp_path / "program.py", tmp_path / "out")
    assert ran.status != 0
    assert "train: rank 0 has --seed 0, rank 1 has 1; make them the same on all" in ran.errors
