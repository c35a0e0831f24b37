"""Several processes, started as a user starts them."""

import os
import re
import subprocess
import sys

import pytest

from tests.distributed.launcher import PYTHONPATH, launch, needs_mpi

pytestmark = needs_mpi


def numbers(*exhaustive: int, always: tuple[int, ...]) -> list[object]:
    return [*(pytest.param(number, marks=pytest.mark.exhaustive) for number in exhaustive), *always]


@pytest.mark.parametrize("processes", numbers(2, 4, always=(3,)))
def test_collectives_give_numpys_results_in_all_processes(processes):
    ran = launch(processes, "collectives.py")
    assert ran.status == 0, ran.errors
    assert sorted(re.findall(r"^rank (\d)", ran.output, re.M)) == [str(rank) for rank in range(processes)]


@pytest.mark.parametrize("processes", numbers(1, 2, 3, always=(4,)))
def test_training_by_several_processes_has_the_bits_of_one(processes):
    ran = launch(processes, "data_parallel.py")
    assert ran.status == 0, ran.errors
    assert len(re.findall("has the same bits", ran.output)) == processes


@pytest.mark.parametrize("shard", ["state", "all"])
@pytest.mark.parametrize("processes", numbers(2, 4, always=(3,)))
def test_offloaded_training_by_several_processes_has_the_bits_of_one(processes, shard, tmp_path):
    ran = launch(processes, "sharded_offload.py", tmp_path, shard)
    assert ran.status == 0, ran.errors
    assert len(re.findall("the bits of one process", ran.output)) == processes
    assert not list(tmp_path.glob("rank*/*"))


@pytest.mark.parametrize("processes", numbers(1, 2, 4, always=(3,)))
def test_a_fully_sharded_model_has_the_bits_of_one_process(processes, tmp_path):
    ran = launch(processes, "fully_sharded.py", tmp_path)
    assert ran.status == 0, ran.errors
    assert len(re.findall("fully sharded", ran.output)) == processes


@pytest.mark.parametrize("processes", numbers(2, 4, always=(3,)))
def test_parameters_in_parts_are_used_as_others(processes, tmp_path):
    ran = launch(processes, "parameters_in_parts.py", tmp_path)
    assert ran.status == 0, ran.errors
    assert len(re.findall("in parts", ran.output)) == processes
    assert not list(tmp_path.glob("rank*/*"))


@pytest.mark.exhaustive
def test_twenty_steps_shared_in_any_way_have_the_bits_of_one_process(tmp_path):
    ran = launch(3, "twenty_steps.py", tmp_path)
    assert ran.status == 0, ran.errors
    assert len(re.findall("the bits of one process", ran.output)) == 3


@pytest.mark.exhaustive
def test_models_of_one_shape_are_told_apart(tmp_path):
    ran = launch(2, "fully_sharded.py", tmp_path, "mixed")
    assert ran.status != 0
    assert re.search(r"rank 0: weight .* of model \d+ of the group, .*; rank 1: weight", ran.errors), ran.errors


@pytest.mark.exhaustive
def test_a_process_that_uses_a_parameter_in_parts_alone_is_told_so(tmp_path):
    ran = launch(2, "parameters_in_parts.py", tmp_path, "alone")
    assert ran.status != 0
    told = (
        r"rank 0: weight \(5120 float32\), .*, parameters_in_parts.py:\d+; rank 1: barrier, parameters_in_parts.py:\d+"
    )
    assert re.search(told, ran.errors), ran.errors


@pytest.mark.parametrize(
    "fault, told",
    [
        ("other", r"collective 2 differs between ranks: rank 0: all_reduce of float32 \(1000,\) SUM, faults.py:\d+; "
                  r"rank 1: broadcast of float32 \(1000,\) from 0, faults.py:\d+. Call the same ones"),
        ("size", r"rank 0: all_reduce of float32 \(1000,\) SUM, .*; rank 1: all_reduce of float32 \(1001,\) SUM"),
        ("fewer", r"rank 0: barrier, faults.py:\d+; rank 1: the end of the program"),
        ("raise", r"KeyError: 'a mistake of the program'"),
        ("late", r"rank 0 has waited for rank 1 for 2 s: all_reduce of float32 .* SUM, faults.py:\d+; the time-out"),
        ("module", r"ranks 0 and 1 have different modules: \('weight', \(2, 3\), .*\) and \('weight', \(3, 3\)"),
        ("rounds", r"rank 0: gradients 1 of 1 of backward 1 \(8 float32, divided by 2\) on top of gradients \w+, "
                   r"faults.py:\d+; rank 1: gradients 1 of 1 of backward 1 \(8 float32, divided by 2\) on top of "
                   r"nothing, faults.py:\d+"),
        ("fails", r"rank 0: gradients 2 of 2 of backward 1 .* on top of nothing, .*; rank 1: gradients 1 of 2 of "
                  r"backward 1 after 1 that failed .* on top of nothing, faults.py:\d+"),
        ("splits", r"all_to_all_single: rank 0 sends 2 elements to rank 1, which wants 1; give both the same sizes"),
        ("killed", r"spillgrad: launch: .*(was ended by signal 9|was lost|probably one was)"),
    ],
)  # fmt: skip
def test_processes_that_do_not_do_the_same_end_with_a_line_that_says_so(fault, told):
    ran = launch(2, "faults.py", fault)
    assert ran.status != 0
    assert re.search(told, ran.errors), ran.errors
    assert "rank 0 went on" not in ran.output
    assert ran.took_s < 20


def test_a_launcher_of_another_mpi_is_named():
    code = "import spillgrad.distributed as dist; dist.init_process_group('mpi')"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "PMI_SIZE": "4"},
    )  # fmt: skip
    assert ran.returncode == 1
    assert re.search(
        r"launcher started 4 processes, but mpi4py uses .+, which knows of 1; start the program with the", ran.stderr
    )


def test_a_program_written_for_torchrun_runs_with_its_imports_changed_to_the_same_bits():
    found = []
    for processes in (1, 4):
        ran = launch(processes, "pytorch_style.py")
        assert ran.status == 0, ran.errors
        found += re.findall("weights (.*)", ran.output)
    assert len(found) == 1 + 4
    assert len(set(found)) == 1


@pytest.mark.exhaustive
def test_processes_that_sum_their_own_batches_first_have_the_same_weights():
    ran = launch(2, "pytorch_style.py", SYNC_LAST="1")  # sums in each process first: other bits, the same in both
    assert ran.status == 0, ran.errors
    assert len(set(re.findall("weights (.*)", ran.output))) == 1
