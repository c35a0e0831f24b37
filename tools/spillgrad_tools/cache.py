"""`spillgrad cache`: print what the cache of compiled kernels holds, fill it, or empty it."""

import functools
import operator
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import spillgrad as sg
from spillgrad.nn import functional
from spillgrad.storage.sizes import format_bytes
from spillgrad_kernels.jit import cache
from spillgrad_kernels.jit.compile import counts
from spillgrad_tools.named_values import named_values
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

# Training on this much text reaches every kernel of a training run.
_TEXT_BYTES = 1 << 16
Operation = Callable[[sg.Tensor, sg.Tensor], sg.Tensor]
_METHODS = ("abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "sigmoid", "relu")


def _method(name: str) -> Operation:
    return lambda x, y: getattr(x, name)()


# Operations on two tensors of shape (2, 8); each is run forward and backward.
OPERATIONS: dict[str, Operation] = {
    "x + y": operator.add,
    "x - y": operator.sub,
    "x * y": operator.mul,
    "x / y": operator.truediv,
    "x + bias": lambda x, y: x + y[0],
    "x * scale": lambda x, y: x * y[0],
    "x + number": lambda x, y: x + 1.5,
    "x * number": lambda x, y: x * 1.5,
    "x / number": lambda x, y: x / 1.5,
    "number - x": lambda x, y: 1.5 - x,
    "-x": lambda x, y: -x,
    "x ** 2": lambda x, y: x**2,
    **{name: _method(name) for name in _METHODS},
    "gelu": lambda x, y: functional.gelu(x),
    "silu": lambda x, y: functional.silu(x),
    "clamp": lambda x, y: x.clamp(0.2, 0.8),
    "maximum": lambda x, y: sg.maximum(x, y),
    "where": lambda x, y: sg.where(x > y, x, y),
    "dropout": lambda x, y: sg.dropout(x, 0.5),
    "matmul": lambda x, y: x @ y.T,
    "sum": lambda x, y: x.sum(0),
    "mean": lambda x, y: x.mean(-1),
    "max": lambda x, y: x.amax(-1),
    "var": lambda x, y: x.var(-1),
    "logsumexp": lambda x, y: x.logsumexp(-1),
    "softmax": lambda x, y: x.softmax(-1),
    "log_softmax": lambda x, y: sg.log_softmax(x, -1),
    "layer_norm": lambda x, y: functional.layer_norm(x, (8,), y[0], y[1]),
    "cross_entropy": lambda x, y: functional.cross_entropy(x, sg.tensor([1, 2])),
    "mse_loss": lambda x, y: functional.mse_loss(x, y),
    "embedding": lambda x, y: functional.embedding(sg.tensor([0, 1, 0]), x),
}


def run(action: str) -> None:
    """Print what the cache holds ("info"), fill it ("warm"), or remove all its files ("clear")."""
    console = Console()
    if action == "info":
        _info(console)
    elif action == "warm":
        _warm(console)
    else:
        console.print(f"removed {format_bytes(cache.clear())}")


def _info(console: Console) -> None:
    found = cache.info()
    rows = {
        "directory": str(found.directory),
        "can be written": "yes" if found.writable else "no: a temporary directory stands in",
        "kernels of this version": f"{found.files} ({format_bytes(found.size_bytes)})",
        "other versions": f"{found.other_versions} ({format_bytes(found.other_bytes)})",
        "limits": f"{format_bytes(cache.LIMIT_BYTES)}, unused for {cache.UNUSED_S / 86400:.0f} days",
    }
    console.print(named_values(rows, justify="left"))


def _warm(console: Console) -> None:
    jobs: dict[str, Callable[[], None]] = {"a training step of the default model": _train_one_step}
    jobs |= {name: functools.partial(_differentiate, operation) for name, operation in OPERATIONS.items()}
    with Progress(
        TextColumn("compiling"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(),
        TextColumn("{task.description}"), console=console, disable=not console.is_interactive,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=len(jobs))
        for name, job in jobs.items():
            progress.update(task, description=name)
            job()
            progress.advance(task)
    console.print(f"{counts.compiled} kernels compiled, {counts.loaded} were there already")


def _train_one_step() -> None:
    training = Training(TrainSettings(steps=1), sg.data.load_text(None)[:_TEXT_BYTES])
    for _ in training.steps():
        pass
    training.held_out_loss()
    training.sample(2)


def _differentiate(operation: Operation) -> None:
    x, y = (sg.rand(2, 8, requires_grad=True) for _ in range(2))
    operation(x, y).sum().backward()
