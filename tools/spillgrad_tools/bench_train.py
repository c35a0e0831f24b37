"""`spillgrad bench train`: a training step beside the same model in plain PyTorch, from the same weights."""

import importlib.util
import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import spillgrad as sg
from spillgrad_tools.bench_bars import Ratio
from spillgrad_tools.bench_process import Worker
from spillgrad_tools.bench_report import machine, show_train, train_as_markdown, write_between_markers

MARKER = "bench train"
BAR = Ratio("torch", 2)
# Of a loss: both sum some 10^8 products in orders of their own. After three steps of GPT-2 124M they differ by 1e-7.
TOLERANCE = 1e-5


def check(losses: dict[str, float], step: int) -> None:
    """Raise RuntimeError unless all libraries have the same loss."""
    difference = max(losses.values()) - min(losses.values())
    allowed = TOLERANCE * max(losses.values())
    if not difference <= allowed:
        raise RuntimeError(f"bench train: losses {losses} of step {step} differ by more than {allowed:.2g}")


def write_weights(model: sg.models.GPT, path: Path) -> None:
    """Write the parameters by name."""
    arrays: dict[str, Any] = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    np.savez(path, **arrays)


def measure(workers: list[Worker], config: sg.models.GPTConfig, batch: int, steps: int) -> dict[str, dict[str, Any]]:
    """Return each library's median seconds, tokens a second and largest memory, over steps made in turns.

    A first step, in which kernels compile and memory is touched for the first time, is compared and not timed.
    """
    sg.manual_seed(0)
    with tempfile.TemporaryDirectory() as directory:
        weights = Path(directory) / "weights.npz"
        write_weights(sg.models.GPT(config), weights)
        for worker in workers:
            worker.ask(do="build", config=vars(config), weights=str(weights))
    answers: dict[str, list[dict[str, Any]]] = {worker.library: [] for worker in workers}
    for step in range(steps + 1):
        for worker in workers:
            answers[worker.library].append(worker.ask(do="step", number=step, batch=batch))
        check({library: taken[-1]["loss"] for library, taken in answers.items()}, step)
    results = {}
    for library, taken in answers.items():
        seconds = statistics.median(answer["seconds"] for answer in taken[1:])
        results[library] = {
            "seconds": seconds,
            "tokens_per_s": batch * config.context / seconds,
            "peak_rss_bytes": taken[-1]["peak_rss_bytes"],
            "losses": [answer["loss"] for answer in taken],
        }
    return results


def run(
    as_json: bool, model: str, batch: int, context: int, steps: int, threads: int | None, page: Path | None = None
) -> None:
    """Time training steps, print them, and write them into a page.

    Raises UnknownModelError for a model that is not in the catalogue, ArgumentError when the page would lack PyTorch.
    """
    config = sg.models.config(model, context=context)
    if not isinstance(config, sg.models.GPTConfig):
        raise sg.errors.ArgumentError(f"bench: got model {model}; PyTorch's twin is a GPT-2: take gpt2 or a size of it")
    libraries = ["ours", *(["torch"] if importlib.util.find_spec("torch") else [])]
    if page and "torch" not in libraries:
        raise sg.errors.ArgumentError("bench: a page gets PyTorch's times; pip install torch")
    threads = threads or sg.get_num_threads()
    with ExitStack() as stack, Console(stderr=True).status("training"):
        workers = [
            stack.enter_context(Worker("spillgrad_tools.bench_train_worker", library, threads)) for library in libraries
        ]
        about = {
            **machine(), "threads": threads, "model": model, "batch": batch, "context": context, "steps": steps,
            "libraries": [worker.version for worker in workers],
        }  # fmt: skip
        results = measure(workers, config, batch, steps)
    verdict = BAR.judge({library: result["seconds"] for library, result in results.items()})
    if page and verdict:
        write_between_markers(page, MARKER, train_as_markdown(about, results, verdict))
    if as_json:
        print(json.dumps({"machine": about, "results": results, "bar": verdict and verdict.as_json()}, indent=2))
    else:
        show_train(about, results, verdict)
