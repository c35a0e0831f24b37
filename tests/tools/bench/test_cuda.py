"""The benchmark on a GPU: it runs whole in Numba's simulator, its references are right, and a failure is one row's."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad_kernels.cuda.driver.availability import missing
from spillgrad_tools.bench import case_runner, references
from spillgrad_tools.bench.bars import Ratio, device_copy_speed
from spillgrad_tools.bench.cases import Case, Result, cuda_cases
from spillgrad_tools.bench.gpt import GPT2, gpt_weights
from spillgrad_tools.bench.harness import RequestFailed, WorkerEnded
from spillgrad_tools.bench.kernels import Contenders, log2_floats, measure
from spillgrad_tools.bench.numpy import NumPy
from spillgrad_tools.bench.operations import OPERATIONS
from spillgrad_tools.bench.report import show_kernels
from spillgrad_tools.cli import main

ROOT = Path(__file__).parents[3]
CASES = cuda_cases(simulated=False, log2_floats=28)


@pytest.mark.exhaustive
@pytest.mark.skipif(importlib.util.find_spec("numba_cuda") is None, reason="needs the extra cuda")
def test_the_whole_command_runs_in_the_simulator():
    paths = os.pathsep.join(str(ROOT / path) for path in (".", "kernels", "tools"))
    found = subprocess.run(
        [sys.executable, "-m", "spillgrad_tools", "bench", "kernels", "--device", "cuda", "--rounds", "1", "--json"],
        env={**os.environ, "PYTHONPATH": paths, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = json.loads(found.stdout)
    assert answer["machine"]["gpu"] == "Numba's CUDA simulator"
    assert len(answer["results"]) == len(cuda_cases(simulated=True, log2_floats=6))
    for result in answer["results"]:
        assert "failures" not in result, found.stderr
        assert result["seconds"]["ours"] > 0
    assert "unspilled" in answer["results"][-1]["seconds"]


@pytest.mark.skipif(missing() is None, reason="there is a device")
def test_without_a_device_one_line_says_what_is_missing(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "kernels", "--device", "cuda"]) == 2
    printed = capsys.readouterr().err
    assert "device: got 'cuda'; " in printed
    assert printed.count("\n") == 1


def test_the_references_gradients_of_a_chain_are_central_differences():
    random = np.random.default_rng(0)
    x, y, g = random.standard_normal((3, 50))
    _, *gradients = OPERATIONS["chain of 7+"].expected(x, y, g)
    for position, gradient in enumerate(gradients):
        direction = random.standard_normal(50)
        sides = [
            (
                OPERATIONS["chain of 7"].expected(
                    *(v + sign * direction * (i == position) for i, v in enumerate((x, y)))
                )
                * g
            ).sum()
            for sign in (1e-6, -1e-6)
        ]
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx((gradient * direction).sum(), rel=1e-6)


def test_the_references_loss_is_that_of_our_model():
    config = {"vocab_size": 11, "context": 5, "n_layer": 2, "n_head": 2, "n_embd": 8}
    weights = gpt_weights(config)
    model = sg.models.GPT(sg.models.GPTConfig(**config))
    assert {name: parameter.shape for name, parameter in model.named_parameters()} == {
        name: array.shape for name, array in weights.items()
    }
    with sg.no_grad():
        for name, parameter in model.named_parameters():
            weights[name] *= 10 if "ln_" not in name else 1
            parameter.copy_(sg.from_numpy(weights[name]))
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    loss = model(sg.tensor(tokens[:, :-1]), sg.tensor(tokens[:, 1:]))[1].item()
    assert loss == pytest.approx(references.gpt_loss(config, weights, tokens), rel=1e-6)


def test_numbers_repeat_after_a_period_and_bfloat16_is_the_references_too():
    case = Case("x", "x", "add", ((100,), (100,)), "nn", (), "bfloat16", period=30)
    whole, first = list(case.operands()), list(case.operands(whole=False))
    assert all((x[:30] == y).all() and (x[90:] == y[:10]).all() for x, y in zip(whole, first, strict=True))
    assert {x.dtype.name for x in (*whole, *first)} == {"bfloat16"}
    assert not (first[0] == first[1]).all()


def test_every_period_has_to_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    case = Case("x", "x", "add", ((90,), (90,)), "nn", (), period=30)
    monkeypatch.setitem(case_runner.CASES_ON, "cpu", {"x": case})
    runner = case_runner.CaseRunner("numpy", threads=1)
    runner.reference("x", str(tmp_path))
    assert np.load(tmp_path / "0.npy").shape == (30,)
    assert runner.check("x", str(tmp_path)) <= 1

    def wrong_at_the_end(x: np.ndarray, y: np.ndarray) -> Any:
        return lambda: np.append((x + y)[:-1], np.float32(7))

    monkeypatch.setattr(NumPy, "call", lambda self, operation, *operands: wrong_at_the_end(*operands))
    assert runner.check("x", str(tmp_path)) > 1


@pytest.mark.parametrize(("gpu_bytes", "log2"), [(80 << 30, 28), (16 << 30, 27), (1 << 20, 20)])
def test_elementwise_rows_are_as_large_as_the_gpu_has_room_for(gpu_bytes: int, log2: int):
    assert log2_floats(gpu_bytes) == log2


def test_gpt_2_has_as_many_parameters_as_its_name_says():
    layers = gpt_weights({**GPT2, "n_layer": 1, "vocab_size": 10})
    layer = sum(array.size for name, array in layers.items() if ".h." in name)
    rest = sum(array.size for name, array in layers.items() if ".h." not in name)
    assert layer * 12 + rest + (GPT2["vocab_size"] - 10) * 768 == pytest.approx(124e6, rel=0.005)


SECONDS = {"ours": 2.0, "torch": 3.0, "device copy": 1.5, "unspilled": 1.9}


@pytest.mark.parametrize(
    ("bar", "reached", "text"),
    [
        (device_copy_speed(2, 8), 0.75, "0.8 × device copy"),
        (device_copy_speed(3, 8), 1.125, "0.8 × device copy"),
        (Ratio("unspilled", 0.9), 0.95, "0.9 × unspilled"),
    ],
)
def test_a_bar_judges_the_devices_times(bar: Any, reached: float, text: str):
    assert (bar.judge(SECONDS).reached, str(bar)) == (pytest.approx(reached), text)


class Pretended:
    """A process that answers what it is told to."""

    def __init__(self, library: str, disagreement: Any = 0.5, seconds: Any = 1.0) -> None:
        self.library, self.answers = library, {"check": disagreement, "time": seconds, "reference": None}
        self.asked: list[str] = []

    def ask(self, do: str, **request: Any) -> Any:
        self.asked.append(do)
        if isinstance(self.answers[do], Exception):
            raise self.answers[do]
        return self.answers[do]


class PretendedContenders(Contenders):
    def __init__(self, *workers: Any) -> None:
        self.device = "cuda"
        self.workers = {worker.library: worker for worker in (Pretended("numpy"), *workers)}
        self.replaced: list[str] = []

    def stop(self, library: str) -> None:
        self.replaced.append(library)

    def start(self, library: str) -> None:
        pass


CASE = Case("add", "x", "add", ((4,), (4,)), "nn", (Ratio("torch", 1), device_copy_speed(3, 16)))


@pytest.mark.parametrize(
    ("answers", "seconds", "failures", "replaced"),
    [
        ({}, {"ours", "torch", "device copy"}, {}, []),
        ({"disagreement": 7.0}, {"torch"}, {"ours": "wrong: 7 × what is allowed"}, []),
        ({"disagreement": float("nan")}, {"torch"}, {"ours": "wrong: nan × what is allowed"}, []),
        ({"disagreement": RequestFailed("ours", "OutOfMemory: 1")}, {"torch"}, {"ours": "OutOfMemory: 1"}, ["ours"]),
        ({"seconds": RequestFailed("ours", "CudaError: x")}, {"torch"}, {"ours": "CudaError: x"}, ["ours"]),
        ({"disagreement": None}, {"torch"}, {}, []),
    ],
)
def test_what_is_wrong_or_fails_is_not_timed(answers: Any, seconds: set[str], failures: Any, replaced: list[str]):
    contenders = PretendedContenders(Pretended("ours", **answers), Pretended("torch"))
    (result,) = measure([CASE], contenders, threads=0, rounds=2)
    assert (result.seconds.keys(), result.failures, contenders.replaced) == (seconds, failures, replaced)
    assert bool(result.verdicts) == ("ours" in seconds)
    assert ("failures" in result.as_json()) == bool(failures)


def test_a_process_that_dies_is_a_failure_of_that_row_alone():
    torch = Pretended("torch", seconds=WorkerEnded("torch", -9))
    contenders = PretendedContenders(Pretended("ours"), torch)
    first, second = measure(
        [CASE, dataclasses.replace(CASE, beside=("unspilled", "add"))], contenders, threads=0, rounds=1
    )
    assert first.failures == {"torch": "bench: the torch process ended with status -9"}
    assert second.seconds == {"ours": 1.0, "device copy": 1.0, "unspilled": 1.0}


def test_a_table_says_what_failed(capsys: pytest.CaptureFixture[str]):
    about = {"gpu": "a GPU", "rounds": 9, "date": "today", "libraries": ["ours 1", "PyTorch 2"]}
    results = [
        Result(CASES[0], SECONDS, 9),
        Result(CASES[1], {"torch": 3.0}, 9, {"ours": "wrong: 7 × what is allowed"}),
    ]
    show_kernels(about, results, ("ours", "torch"), bars=True)
    printed = capsys.readouterr().out
    assert "1 of 2 bars reached" in printed
    assert "wrong:" in printed


def test_processes_are_replaced_for_real():
    with ExitStack() as stack:
        contenders = Contenders.__new__(Contenders)
        contenders.device = "cuda"
        contenders._threads, contenders._stack, contenders.workers = 1, stack, {}
        contenders.start("numpy")
        first = contenders.workers["numpy"]
        with pytest.raises(RequestFailed, match="KeyError"):
            first.ask(do="reference", case="none such", directory="")
        assert first.ask(do="about") == {}
        contenders.stop("numpy")
        contenders.start("numpy")
        assert contenders.workers["numpy"] is not first
