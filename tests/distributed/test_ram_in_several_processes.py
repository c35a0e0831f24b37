"""`spillgrad train --ram` in several processes: one plan for all, and each stays within the memory that it names."""

import re
from pathlib import Path

import pytest

from spillgrad.inspection.runs import RunReader
from spillgrad.storage.sizes import parse_bytes
from spillgrad_kernels.memory.system_memory import SystemMemory
from spillgrad_tools.cli import main
from spillgrad_tools.train import within
from spillgrad_tools.train.options import TrainOptions
from spillgrad_tools.train.ranks import Ranks
from tests.distributed.launcher import Ran, launch, needs_mpi
from tests.distributed.test_train_in_several_processes import saved

MIB = 1 << 20
SETTINGS = ["--model", "small", "--steps", "2", "--batch", "4", "--context", "128", "--accumulate", "2"]


def train(processes: int, out: Path, *options: object) -> Ran:
    ran = launch(processes, "--", "train", *SETTINGS, "--out", out, *options)
    assert ran.status == 0, ran.errors
    return ran


@needs_mpi
def test_all_processes_train_as_one_plan_says_within_its_memory_to_the_same_bytes(tmp_path: Path):
    assert main(["train", *SETTINGS, "--no-spill", "--out", str(tmp_path / "alone")]) == 0
    ran = train(2, tmp_path / "out", "--ram", "300MiB")
    assert ran.output.count("within 300 MiB of RAM for each of 2 processes\n") == 1
    assert "plan: all on disk" in ran.output
    assert saved(tmp_path / "out") == saved(tmp_path / "alone")
    peaks = [parse_bytes(" ".join(found)) for found in re.findall(r"peak RSS +(\S+) (\S+)", ran.output)]
    with RunReader(tmp_path / "out" / "journal-r001.jsonl") as reader:  # of the other process
        reader.read()
        peaks.append(max(sample.rss_bytes for sample in reader.run().samples))
    assert len(peaks) == 2 and max(peaks) <= 300 * MIB
    assert not list((tmp_path / "out").glob("run-*")) and not list((tmp_path / "out").glob("plan-*"))


@needs_mpi
def test_what_plainly_fits_is_in_ram_in_all_of_them(tmp_path: Path):
    ran = train(2, tmp_path / "out")
    assert ran.output.startswith("all in RAM: it takes less than")
    assert not list((tmp_path / "out").glob("journal*"))


@needs_mpi
def test_too_little_is_one_line_that_names_what_each_needs(tmp_path: Path):
    ran = launch(2, "--", "train", *SETTINGS, "--out", tmp_path / "out", "--ram", "200MiB")
    assert ran.status != 0
    assert re.fullmatch(r"spillgrad: plan: got 200 MiB .*the least that works is \d+ MiB.*", ran.errors.strip())


class OnMachines(Ranks):
    """Two processes on this machine and one on another, which has less."""

    def by_machine(self, item: object) -> list[list[object]]:
        (memory, taken_bytes) = item  # type: ignore[misc]
        return [[(memory, taken_bytes)] * 2, [(SystemMemory(1500 * MIB, 8000 * MIB), 500 * MIB)]]


@pytest.mark.parametrize(
    "available_mib, wanted_mib",
    [(7000, 1488), (2200, (3200 - 512) // 2), (900, (1900 - 512) // 2)],
    ids=["the other machine has least", "this one has", "little"],
)
def test_what_a_machine_leaves_is_divided_by_its_processes(
    available_mib: int, wanted_mib: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(within, "rss_bytes", lambda: 500 * MIB)
    monkeypatch.setattr(within, "system_memory", lambda: SystemMemory(available_mib * MIB, 16000 * MIB))
    found = within._ram(TrainOptions({}), OnMachines())
    assert (found.nbytes, found.ranks_here) == (wanted_mib * MIB, 2)
