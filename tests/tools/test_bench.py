"""Benchmarks: every library computes the same, and what is printed can be read by people and programs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from spillgrad_tools import bench_numpy, bench_ours, bench_spill
from spillgrad_tools.bench_kernels import CASES, TOLERANCE, check
from spillgrad_tools.bench_report import format_seconds
from spillgrad_tools.bench_worker import Case
from spillgrad_tools.cli import main
from spillgrad_tools.train_settings import TrainSettings

# Each operation once, small: what counts is that both libraries compute the same.
SMALL_CASES = {
    "matmul": ((33, 20), (20, 41)),
    "exp": ((100,),),
    "tanh": ((100,),),
    "gelu": ((100,),),
    "add": ((100,), (100,)),
    "softmax": ((7, 33),),
    "layer_norm": ((7, 33), (33,), (33,)),
    "cross_entropy": ((7, 33), (7,)),
    "adamw": ((100,),) * 4,
}


def test_every_operation_is_in_the_table_of_cases():
    assert {case.operation for case in CASES} == SMALL_CASES.keys()
    assert SMALL_CASES.keys() == bench_numpy.OPERATIONS.keys() == bench_ours.OPERATIONS.keys()
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("operation", SMALL_CASES)
def test_ours_agrees_with_numpy(operation: str):
    example = next(case for case in CASES if case.operation == operation)
    case = dataclasses.replace(example, shapes=SMALL_CASES[operation])
    got, wanted = (
        module.as_numpy(module.OPERATIONS[operation](*map(module.prepare, case.operands())))
        for module in (bench_ours, bench_numpy)
    )
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE[case.dtype] * np.abs(wanted).max())


def test_operands_are_the_same_every_time_and_laid_out_as_asked():
    case = Case("x", "matmul", ((3, 4), (4, 5)), "nt", "float64")
    (a, b), (again, _) = case.operands(), case.operands()
    assert (a == again).all()
    assert (a.shape, a.flags.c_contiguous, b.shape, b.flags.f_contiguous) == ((3, 4), True, (4, 5), True)


def test_a_disagreement_is_an_error():
    results = {"ours": np.array([1.0, 2.0]), "numpy": np.array([1.0, 2.1])}
    case = Case("x", "add", ((2,), (2,)), "nn")
    with pytest.raises(RuntimeError, match=r"ours differs from NumPy by 0\.1"):
        check(case, results)
    check(case, {**results, "ours": results["numpy"].copy()})


def test_kernels_are_timed_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "kernels", "--filter", "add 16384", "--rounds", "1", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["threads"] == 1
    (result,) = found["results"]
    assert result["case"] == "add 16384"
    assert {"ours", "numpy"} <= result["seconds"].keys()
    assert all(0 < seconds < 1 for seconds in result["seconds"].values())


def test_the_table_shows_times_and_ratios(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "kernels", "--filter", "add 16384", "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert "add 16384" in printed
    assert "numpy" in printed


def test_the_store_is_timed_beside_plain_files_and_steps_in_ram(tmp_path: Path):
    settings = TrainSettings(model="tiny", steps=3, batch=2, context=32)
    results = bench_spill.file_results(3, tmp_path, rounds=1) + bench_spill.step_results(settings, tmp_path, rounds=2)
    assert [result["case"] for result in results] == ["write", "read", "training step, tiny"]
    assert all(result["seconds"].keys() == {"plain", "spillgrad"} for result in results)
    assert all(seconds > 0 for result in results for seconds in result["seconds"].values())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-9, "2 ns"), (1.234e-5, "12.3 us"), (0.0456, "45.6 ms"), (0.9999e-3, "1 ms"), (7.891, "7.89 s")],
)
def test_durations_have_a_unit_that_fits(seconds: float, text: str):
    assert format_seconds(seconds) == text
