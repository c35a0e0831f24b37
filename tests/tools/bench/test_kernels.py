"""The kernels' benchmark: every library computes the same, every bar is judged, and the site has every row."""

import dataclasses
import importlib.util
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spillgrad_tools.bench import case_runner, machine, results
from spillgrad_tools.bench.bars import (
    TWO_THREADS,
    BestPeer,
    ComputeOrCopy,
    CopySpeed,
    Microseconds,
    OfLimit,
    Ratio,
    UnlessAtLimit,
    Verdict,
)
from spillgrad_tools.bench.cases import CASES, CUDA_BY_NAME, Case, Result
from spillgrad_tools.bench.harness import Worker, spreads
from spillgrad_tools.bench.kernels import Contenders, measure
from spillgrad_tools.bench.numpy import NumPy
from spillgrad_tools.bench.operations import COMPUTING, MOVING, call_of
from spillgrad_tools.bench.operations import OPERATIONS as TABLE
from spillgrad_tools.cli import main

RESULTS = Path(__file__).parents[3] / "docs" / "benchmarks"
LIBRARIES = ("ours", "numpy", *(["torch"] if importlib.util.find_spec("torch") else []))

# Small operands for each operation: what counts is that all libraries compute the same.
SMALL = {
    "matmul": ((3, 33, 20), (3, 20, 41)),
    "linear": ((5, 20), (41, 20), (41,)),
    "softmax": ((7, 33),),
    "softmax+": ((7, 33),) * 2,
    "layer_norm": ((7, 33), (33,), (33,)),
    "layer_norm+": ((7, 33), (33,), (33,), (7, 33)),
    "cross_entropy": ((7, 33), (7,)),
    "cross_entropy+": ((7, 33), (7,)),
    "attention+": ((2, 3, 17, 8),) * 4,
}
OPERATIONS = {case.operation: case for case in CASES}


def small(case: Case) -> Case:
    return dataclasses.replace(case, shapes=SMALL.get(case.operation, ((100,),) * len(case.kinds)))


def test_every_operation_of_a_case_is_in_the_table_and_of_the_table_in_a_case():
    assert {case.operation.removesuffix(" out=") for case in (*CASES, *CUDA_BY_NAME.values())} == TABLE.keys()


@pytest.mark.parametrize("operation", [each.name for each in (*COMPUTING, *MOVING)])
def test_numpy_times_what_it_has_under_a_name(operation: str):
    known = operation in ("exp", "tanh", "add", "mul", "copy")
    assert (call_of(operation, NumPy(), [np.ones(2)] * 2) is not None) == known
    assert (call_of(f"{operation} out=", NumPy(), [np.ones(2)] * 2) is not None) == known


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_library_agrees_with_the_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library, operation):
    case = small(OPERATIONS[operation])
    monkeypatch.setitem(case_runner.CASES_ON, "cpu", {case.name: case})
    runner = case_runner.CaseRunner(library, threads=1)
    runner.reference(case.name, str(tmp_path))
    share = runner.check(case.name, str(tmp_path))
    if share is None:
        assert library == "numpy"
        pytest.skip("NumPy would have to compose it, or records no graph")
    assert share <= 1
    assert 0 < runner.time() < 1


@pytest.mark.parametrize(
    ("case", "gradients"),
    [
        ("layer_norm+", lambda x, w, b, g: TABLE["layer_norm"].expected(x, w, b)),
        ("softmax+", lambda x, g: TABLE["softmax"].expected(x)),
        ("attention+", lambda q, k, v, g: TABLE["attention+"].expected(q, k, v, g)[0]),
    ],
)
def test_the_references_gradients_are_central_differences(case: str, gradients: Any):
    operands = [x.astype(np.float64) for x in small(OPERATIONS[case]).operands()]
    *inputs, g = operands
    random = np.random.default_rng(1)
    for position, gradient in enumerate(TABLE[case].expected(*operands)[1:]):
        direction = random.standard_normal(inputs[position].shape)
        sides = []
        for sign in (1e-6, -1e-6):
            moved = [x + sign * direction * (i == position) for i, x in enumerate(inputs)]
            sides.append((gradients(*moved, g) * g).sum())
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx((gradient * direction).sum(), rel=1e-6)


def test_operands_are_the_same_every_time_and_laid_out_as_asked():
    case = Case("x", "x", "matmul", ((2, 3, 4), (4, 5), (6,), (3, 5)), "ntio", (), "float64")
    first, again = list(case.operands()), list(case.operands())
    assert all((x == y).all() for x, y in zip(first, again, strict=True))
    assert [x.shape for x in first] == list(case.shapes)
    assert [x.flags.c_contiguous for x in first] == [True, False, True, True]
    assert first[2].max() < 4
    assert [x.dtype.kind for x in first] == ["f", "f", "i", "f"]


@pytest.mark.parametrize(
    ("got", "wanted", "share"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 1.0], [1.0, 1.0 + 1e-4], 5),  # allowed is 1e-5 times the number and the root mean square, both 1
        ([1.0, np.nan], [1.0, 1.0], np.nan),
        ([1.0], [1.0, 1.0], np.inf),
        ([], [], 0),
    ],
)
def test_disagreement_is_measured_in_what_is_allowed(got: list[float], wanted: list[float], share: float):
    found = case_runner.disagreement(np.array(got), np.array(wanted), tolerance=1e-5)
    assert found == pytest.approx(share, rel=1e-3, nan_ok=True)


def test_a_disagreement_is_an_error(monkeypatch: pytest.MonkeyPatch):
    case = next(case for case in CASES if case.name.startswith("matmul float32 16x16x16"))
    with ExitStack() as stack:
        contenders = Contenders.__new__(Contenders)
        contenders.device, contenders._threads, contenders._stack = "cpu", 1, stack
        contenders.workers = {}
        contenders.start("numpy")
        (result,) = measure([case], contenders, threads=1, rounds=1)
        assert result.seconds.keys() == {"numpy"}
        ask = contenders.workers["numpy"].ask
        monkeypatch.setattr(
            contenders.workers["numpy"], "ask", lambda do, **request: 7.0 if do == "check" else ask(do, **request)
        )
        with pytest.raises(RuntimeError, match="numpy differs from NumPy by 7 × what is allowed"):
            list(measure([case], contenders, threads=1, rounds=1))


def test_a_worker_that_dies_says_so(capfd: pytest.CaptureFixture[str]):
    with (
        Worker(case_runner.CaseRunner, "numpy", threads=1) as worker,
        pytest.raises(RuntimeError, match="the numpy process ended with status 1"),
    ):
        worker.ask(do="nothing known")
    assert "nothing known" in capfd.readouterr().err


SECONDS = {
    "limit": 1.5, "ours": 2.0, "numpy": 3.0, "torch": 3.5, "numpy copy": 2.0, "torch copy": 1.5, "ours 1 thread": 3.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("bar", "reached", "wanted", "met"),
    [
        (Ratio("numpy", 1.5), 1.5, 1.5, True),
        (Ratio("torch", 1.8), 1.75, 1.8, False),
        (ComputeOrCopy(), 1.75, 1.5, True),
        (CopySpeed(arrays=3, nbytes=10), 1.125, 0.85, True),
        (TWO_THREADS, 1.5, 1.8, False),
        (BestPeer(), 1.5, 1.0, True),
        (OfLimit(0.93), 0.75, 0.93, False),
        (UnlessAtLimit(1.5), 1.75, 1.5, True),
        (Microseconds(4, beside="numpy"), -1e6, 4, True),
        (Microseconds(5), 2e6, 5, False),
    ],
)
def test_a_bar_judges_times(bar: Any, reached: float, wanted: float, met: bool):
    verdict = bar.judge(SECONDS)
    assert (verdict.reached, verdict.wanted, verdict.met) == (pytest.approx(reached), wanted, met)


def test_a_peer_at_the_limit_need_not_be_beaten():
    assert ComputeOrCopy().judge({**SECONDS, "torch copy": 1.75}).wanted == 0.95
    assert UnlessAtLimit().judge({**SECONDS, "torch": 1.75}) is None


@pytest.mark.parametrize("bar", [Ratio("torch", 2), ComputeOrCopy(), TWO_THREADS, OfLimit()])
def test_a_bar_without_its_peer_is_not_judged(bar: Any):
    assert bar.judge({"ours": 1.0, "numpy": 1.0}) is None


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict("× NumPy", 1.7, 1.6), "× NumPy 1.70 / 1.6 ✓"),
        (Verdict("× NumPy", 1.2, 1.6), "× NumPy 1.20 / 1.6 ✗ -25%"),
        (Verdict("µs", 12.3, 15, most=True), "µs 12.3 / 15 ✓"),
        (Verdict("µs", 6.0, 5, most=True), "µs 6.00 / 5 ✗ +20%"),
    ],
)
def test_a_verdict_shows_what_is_missing(verdict: Verdict, text: str):
    assert str(verdict) == text


@pytest.mark.exhaustive
def test_kernels_are_timed_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "kernels", "--filter", "32x32x32", "--rounds", "1", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["threads"] == 1
    assert [result["case"] for result in found["results"]] == [case.name for case in CASES if "32x32x32" in case.name]
    for result in found["results"]:
        assert result["seconds"].keys() == set(LIBRARIES)
        assert all(0 < seconds < 1 for seconds in result["seconds"].values())
        (bar,) = result["bars"]
        assert bar["reached"] == pytest.approx((result["seconds"]["ours"] - result["seconds"]["numpy"]) * 1e6)


@pytest.mark.exhaustive
def test_the_table_shows_times_and_with_bars_the_bars(capsys: pytest.CaptureFixture[str]):
    command = ["bench", "kernels", "--filter", "tanh 1000", "--rounds", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("tanh 1000", "NumPy", "–"))
    assert not any(word in printed for word in ("bars", "✗", "✓"))
    assert main([*command, "--bars"]) == 0
    assert "of 1 bars reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "no such"], "no case has 'no such'"),
        (["--filter", "softmax", "--write", "."], "--write takes every row"),
        (["--quick", "--write", "."], "--write takes every row"),
        (["--filter", "4096x4096x4096", "--quick"], "no case has"),
    ],
)
def test_what_cannot_be_measured_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str):
    assert main(["bench", "kernels", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(RESULTS.glob("kernels-*.json")), ids=lambda path: path.stem)
def test_the_sites_results_have_the_rows_the_benchmark_knows(path: Path):
    found = json.loads(path.read_text())
    assert [(row["case"], row["group"]) for row in found["rows"]] == [(case.name, case.group) for case in CASES]
    assert all(row["seconds"].keys() >= {"ours", "torch"} for row in found["rows"])


def test_a_result_is_compared_with_each_peer_and_the_machines_copy():
    case = next(case for case in CASES if case.name == "add out=")
    seconds = {"ours": 1.0, "numpy": 2.0, "torch": 1.5, "torch copy": 0.5, "numpy copy": 1.0}
    result = Result(case, seconds, rounds=9)
    rates = f"({3 * 4 * 2**24 / 1e9:.1f} of {2 * 4 * 2**24 / 0.5 / 1e9:.1f} GB/s)"
    assert result.comparisons == ["× NumPy 2.00", "× PyTorch 1.50", f"× best copy 0.75 {rates}"]
    assert Result(case, {"torch": 1.0}, rounds=9).comparisons == []


def test_results_are_written_without_bars_and_named_after_the_machine(tmp_path: Path):
    row = Result(CASES[0], {"ours": 1e-3}, rounds=9, spread={"ours": [0.9e-3, 1.1e-3]}).as_json()
    about = {"processor": "AMD EPYC, Zen 4", "cores": 4, "threads": 2}
    path = results.write(tmp_path / "new", "kernels", "spillgrad bench kernels", about, [row])
    assert path.name == "kernels-amd-epyc-zen-4-2-threads.json"
    found = json.loads(path.read_text())
    assert found["about"] == about
    assert found["rows"] == [{key: value for key, value in row.items() if key != "bars"}]
    assert results.slug({**about, "gpu": "NVIDIA H100 80GB HBM3"}) == "nvidia-h100-80gb-hbm3"


@pytest.mark.parametrize(
    ("rounds", "spread"),
    [([1.0], [1.0, 1.0]), ([1.0, 3.0], [1.5, 2.5]), ([5.0, 1.0, 2.0, 4.0, 3.0], [2.0, 4.0])],
)
def test_the_spread_is_that_of_the_quartiles(rounds: list[float], spread: list[float]):
    assert spreads({"ours": seconds} for seconds in rounds) == {"ours": spread}


CPUINFO = "vendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: {}\n"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name", "shown"),
    [
        ("AuthenticAMD", 25, 1, "AMD EPYC", "AMD EPYC, Zen 3"),
        ("AuthenticAMD", 25, 17, "AMD EPYC", "AMD EPYC, Zen 4"),
        ("AuthenticAMD", 26, 2, "AMD EPYC", "AMD EPYC, Zen 5"),
        ("AuthenticAMD", 23, 49, "AMD EPYC-Rome Processor", "AMD EPYC-Rome Processor, Zen 2"),
        ("AuthenticAMD", 99, 1, "AMD EPYC", "AMD EPYC"),
        ("AuthenticAMD", 25, 1, "AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763 64-Core Processor"),
        ("GenuineIntel", 6, 207, "INTEL(R) XEON(R) PLATINUM 8581C", "INTEL(R) XEON(R) PLATINUM 8581C"),
    ],
)
def test_a_processor_that_hides_its_number_is_named_by_its_generation(vendor, family, model, name, shown):
    assert machine.processor(CPUINFO.format(vendor, family, model, name) * 2) == shown


def test_this_machine_is_described(tmp_path: Path):
    about = machine.machine(tmp_path)
    assert about.keys() >= {"processor", "cores", "memory", "disk", "system", "python", "spillgrad", "date"}
    assert all(about.values())
