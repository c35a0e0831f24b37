"""The command `spillgrad`: options here, work in the module each command names."""

import contextlib
import enum
import errno
import importlib.metadata
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from spillgrad_tools.train.settings import DEFAULT_RAM_BUDGET, TrainOptions, TrainSettings

WRONG = 1
BAD_INPUT = 2
INTERRUPTED = 130
# Of an error, which may have a few paths in it.
_LONGEST_LINE = 20_000

# `main` reports every error itself: one line, undecorated.
LOOKS: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
app = typer.Typer(
    help="Train models whose saved tensors live on disk, under a byte-exact RAM budget.",
    context_settings={"help_option_names": ["-h", "--help"]},
    **LOOKS,
)
bench = typer.Typer(help="Time spillgrad beside its peers, each in its own process.", **LOOKS)
app.add_typer(bench, name="bench")

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Rounds = Annotated[int, typer.Option(min=1, metavar="N", help="Timings of each case; the median counts.")]
Threads = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Threads of every library.", show_default="all cores")
]


def _named(text: str) -> Path:
    if not text:
        raise typer.BadParameter("got an empty name; wanted that of a folder or file, such as . for the current folder")
    return Path(text)


Place = Annotated[
    Path,
    typer.Argument(metavar="PATH", parser=_named, help="The folder of a run, or of several; a journal; or a segment."),
]
Disk = Annotated[Path, typer.Option("--dir", help="Folder on the disk to use.", show_default="the current one")]
Page = Annotated[
    Path | None, typer.Option("--write", metavar="FILE", help="Also write the table between a page's markers.")
]
ModelName = Annotated[str, typer.Option(metavar="NAME", help="Size of the model: tiny, small, gpt2, ...")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Sequences in a batch.")]
Context = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a sequence.")]
TimedSteps = Annotated[int, typer.Option(min=1, metavar="N", help="Timed steps; the median counts.")]
Count = typer.Option(min=1, metavar="N")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"spillgrad {importlib.metadata.version('spillgrad')}")
        raise typer.Exit


@app.callback()
def _global_options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show an error's traceback; so does SPILLGRAD_DEBUG=1.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _setting(name: str, help: str, **limits: Any) -> Any:
    """Return an option whose default stands in `TrainSettings`; left out, a resumed run keeps its own."""
    default = getattr(TrainSettings, name)
    metavar = {int: "N", str: "NAME"}.get(type(default))
    return typer.Option(help=help, **{"metavar": metavar, "show_default": str(default), **limits})


class Codec(enum.StrEnum):
    """What spilled tensors may become in the files."""

    LOSSLESS = "lossless"
    BF16 = "bf16"
    INT8 = "int8"


class Device(enum.StrEnum):
    """Where tensors may be."""

    CPU = "cpu"
    CUDA = "cuda"


class OnFull(enum.StrEnum):
    """What to do when the disk takes no more."""

    RAISE = "raise"
    RAM = "ram"


class Policy(enum.StrEnum):
    """What may happen to saved tensors."""

    SPILL = "spill"
    KEEP = "keep"
    RECOMPUTE = "recompute"
    AUTO = "auto"


@app.command()
def train(
    data: Annotated[
        Path | None, typer.Option(help="Text file, or a folder of them.", show_default="Python's reference text")
    ] = None,
    model: Annotated[str | None, _setting("model", "Size of the model: tiny, small, gpt2, gpt2-xl, ...")] = None,
    weights: Annotated[
        str | None,
        _setting(
            "weights",
            "Begin with the weights in this safetensors file, or folder as Hugging Face's.",
            metavar="PATH",
            show_default="drawn",
        ),
    ] = None,
    ram_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="RAM for saved tensors, and for the model with --offload; what exceeds it goes to disk.",
            show_default=f"{DEFAULT_RAM_BUDGET}; with --offload, a quarter of what is free",
        ),
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="Keep parameters, gradients and optimizer state on disk, too.")
    ] = False,
    steps: Annotated[int | None, _setting("steps", "Optimizer steps.", min=1)] = None,
    batch: Annotated[int | None, _setting("batch", "Sequences in a batch.", min=1)] = None,
    context: Annotated[
        int | None, _setting("context", "Bytes in a sequence; at most the positions of a published model.", min=1)
    ] = None,
    lr: Annotated[
        float | None,
        _setting("lr", "Highest learning rate.", min=0, metavar="X", show_default="0.002, less for wide models"),
    ] = None,
    accumulate: Annotated[
        int | None, _setting("accumulate", "Batches of each step, one after the other: as one so much larger.", min=1)
    ] = None,
    lora: Annotated[
        int | None,
        _setting(
            "lora",
            "Train adapters of this rank beside frozen weights.",
            min=1,
            metavar="RANK",
            show_default="train the weights",
        ),
    ] = None,
    autocast: Annotated[
        bool | None,
        typer.Option("--autocast/--no-autocast", help="Compute products in bfloat16.", show_default="no-autocast"),
    ] = None,
    seed: Annotated[int | None, _setting("seed", "Seed of weights, batches and sample.", min=0)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the checkpoint.", show_default="a new one in runs/")
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Save a checkpoint after every N steps, and at the end; 0 is at the end alone.",
            show_default="every ten minutes",
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where the model is: this machine's memory, or its GPU's.")
    ] = Device.CPU,
    spill_dir: Annotated[
        Path | None, typer.Option(help="Folder of the spill files.", show_default="that of the checkpoint")
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run whose checkpoint is in this folder.")] = None,
    spill: Annotated[bool, typer.Option(help="Whether saved tensors may go to disk.")] = True,
    codec: Annotated[
        Codec | None,
        typer.Option(
            help="Smaller files: compressed, or less exact, which changes gradients a little.",
            show_default="tensors as they are",
        ),
    ] = None,
    on_full: Annotated[
        OnFull, typer.Option(help="When the disk is full: stop, or keep what it refuses in RAM.")
    ] = OnFull.RAISE,
    policy: Annotated[
        Policy,
        typer.Option(
            help="Saved tensors: spill beyond the budget, keep in RAM, recompute those of blocks, or what is quickest."
        ),
    ] = Policy.SPILL,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt spill files under a key that exists only in RAM.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="At the end, write report.html beside the checkpoint: plots and advice.")
    ] = False,
) -> None:
    """Train a language model of bytes under a RAM budget for saved tensors, or, with --offload, for all it needs.

    Ctrl-C finishes the step, saves a checkpoint for --resume and removes the spill files. A run that is killed goes on
    from the last one saved, to the same losses.
    """
    from spillgrad_tools.train.command import run

    settings = {
        "model": model, "weights": weights, "steps": steps, "batch": batch, "context": context, "lr": lr,
        "accumulate": accumulate, "lora": lora, "autocast": autocast, "seed": seed,
    }  # fmt: skip
    named = {name: value for name, value in settings.items() if value is not None}
    chosen = {"codec": codec and codec.value, "on_full": on_full.value, "encrypt": encrypt, "policy": policy.value}
    finished = run(
        TrainOptions(
            settings=named,
            data=data,
            out=out,
            spill_dir=spill_dir,
            resume=resume,
            device=device.value,
            ram_budget=ram_budget,
            keep_saved=not spill,
            offload=offload,
            save_every=save_every,
            spill=chosen,
            report=report,
        )
    )
    if not finished:
        raise typer.Exit(INTERRUPTED)


class PlannedOptimizer(enum.StrEnum):
    """Optimizers whose state `spillgrad plan` knows."""

    ADAMW = "adamw"
    SGD = "sgd"
    LION = "lion"


@app.command()
def plan(
    model: Annotated[str, typer.Option(metavar="NAME", help="Size of the model: tiny, small, gpt2, gpt2-xl, ...")],
    ram: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the whole process, such as 4GiB.")],
    batch: Batch = TrainSettings.batch,
    context: Context = TrainSettings.context,
    directory: Disk = Path(),
    lora: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="RANK",
            help="Train adapters of this rank beside frozen weights.",
            show_default="train the weights",
        ),
    ] = None,
    autocast: Annotated[bool, typer.Option("--autocast", help="Compute products in bfloat16.")] = False,
    offload: Annotated[
        bool | None,
        typer.Option(
            "--offload/--no-offload",
            help="Whether parameters, gradients and optimizer state live on disk.",
            show_default="what is quicker",
        ),
    ] = None,
    accumulate: Annotated[int, typer.Option(min=1, metavar="N", help="Batches of each step, as in training.")] = 1,
    optimizer: Annotated[PlannedOptimizer, typer.Option(help="What updates the parameters.")] = PlannedOptimizer.ADAMW,
    as_json: Json = False,
) -> None:
    """Say how to train a model in so much memory: what to keep, spill and recompute, and what that takes.

    Two layers of the model are trained for a few steps, and the disk and the processor measured.
    """
    from spillgrad_tools.train.plan import run

    run(model, batch, context, ram, directory, lora, autocast, offload, optimizer.value, accumulate, as_json)


class GroupKey(enum.StrEnum):
    """What `spillgrad inspect` adds up."""

    MODULE = "module"
    OP = "op"
    DTYPE = "dtype"
    STEP = "step"


class SortKey(enum.StrEnum):
    """What `spillgrad inspect` sorts by."""

    NAME = "name"
    ARRAYS = "arrays"
    PACKED = "packed"
    DEDUPLICATED = "deduplicated"
    KEPT = "kept"
    WRITTEN = "written"
    STORED = "stored"
    READ = "read"
    WAIT = "wait"


@app.command()
def inspect(
    path: Place,
    by: Annotated[GroupKey | None, typer.Option(help="Add up by this: a row for each.", show_default="module")] = None,
    sort: Annotated[
        SortKey | None, typer.Option(help="Sort by this column.", show_default="packed; steps as they came")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show so many rows.", show_default="20; all with --json")
    ] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show the structure of the HDF5 files.")] = False,
    tensor: Annotated[
        str | None, typer.Option(metavar="KEY", help="Show one array: its place, checksum and values.")
    ] = None,
    slice_text: Annotated[
        str | None,
        typer.Option("--slice", metavar="INDEX", help='With --tensor: print these values, such as "0:4, :".'),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --tensor: write the array, or the slice, to this .npy file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="With --export: overwrite a file that is there.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots and advice.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show a running job, live; q or Ctrl-C leaves.")] = False,
    as_json: Json = False,
) -> None:
    """Show what was spilled, when, why, and what it cost: of a run that goes on, one that ended, or one that died.

    The exit status is 0; 1 where what was looked at is damaged; 2 where there is
    nothing to look at, or options do not go together; 130 after Ctrl-C.
    """
    from spillgrad_tools.inspect.command import InspectOptions, run

    chosen = InspectOptions(
        path, by and by.value, sort and sort.value, top, tree, tensor, slice_text, export, force, html, watch, as_json
    )
    if not run(chosen):
        raise typer.Exit(WRONG)


@app.command()
def verify(
    path: Place,
    as_json: Json = False,
) -> None:
    """Check what is stored: every checksum, every array of every segment, every line of the journals.

    The exit status is 1 where something is wrong, and each is listed.
    """
    from spillgrad_tools.inspect.verify import run

    if not run(path, as_json):
        raise typer.Exit(WRONG)


@app.command()
def sweep(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=_named, help="Folder that runs spilled to.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove what dead runs left in a spill folder; live runs keep theirs."""
    from spillgrad_tools.inspect.sweep import run

    run(directory, dry_run)


class CacheAction(enum.StrEnum):
    """What `spillgrad cache` can do."""

    INFO = "info"
    WARM = "warm"
    CLEAR = "clear"


@app.command()
def cache(
    action: Annotated[
        CacheAction,
        typer.Argument(help="Say what is there, compile what training and common operations need, or remove it all."),
    ] = CacheAction.INFO,
) -> None:
    """Look after the compiled kernels on disk; old ones go by themselves."""
    from spillgrad_tools.cache import run

    run(action.value)


class BenchDevice(enum.StrEnum):
    """Where kernels are timed."""

    CPU = "cpu"
    CUDA = "cuda"


@bench.command("kernels")
def bench_kernels(
    as_json: Json = False,
    name: Annotated[str, typer.Option("--filter", metavar="NAME", help="Only cases whose name contains this.")] = "",
    threads: Threads = None,
    rounds: Rounds = 9,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the cases of a second and more.")] = False,
    page: Page = None,
    device: Annotated[BenchDevice, typer.Option(help="Where: cuda, on a GPU, has rows of its own.")] = BenchDevice.CPU,
) -> None:
    """Time the kernels beside NumPy and, where installed, PyTorch."""
    if device is BenchDevice.CUDA:
        from spillgrad_tools.bench.cuda import run
    else:
        from spillgrad_tools.bench.kernels import run

    run(as_json, name, threads, rounds, quick, page)


@bench.command("train")
def bench_train(
    as_json: Json = False,
    model: ModelName = "gpt2",
    batch: Batch = 4,
    context: Context = 512,
    steps: TimedSteps = 5,
    threads: Threads = None,
    page: Page = None,
    directory: Disk = Path(),
    name: Annotated[
        str, typer.Option("--filter", metavar="NAME", help="Only contenders whose name contains this.")
    ] = "",
    large: Annotated[
        bool,
        typer.Option("--large", help="Also the GPT-2 of 1.6 billion parameters: half an hour, 30 GB of disk."),
    ] = False,
) -> None:
    """Time training steps in RAM, spilled and offloaded, beside the same model in PyTorch, where installed."""
    from spillgrad_tools.bench.train import run

    run(as_json, model, batch, context, steps, threads, page, directory, name, large)


@bench.command("hooks")
def bench_hooks(
    as_json: Json = False,
    model: ModelName = "gpt2",
    batch: Batch = 4,
    context: Context = 512,
    steps: TimedSteps = 5,
    threads: Threads = None,
    page: Page = None,
    directory: Disk = Path(),
    framework: Annotated[
        str | None, typer.Option(metavar="torch|paddle", help="Only this one; default: those installed.")
    ] = None,
) -> None:
    """Time PyTorch's and Paddle's own training steps in RAM, and with what they save for backward on disk."""
    from spillgrad_tools.bench.hooks import run

    run(as_json, model, batch, context, steps, threads, page, directory, framework)


@bench.command("plan")
def bench_plan(
    as_json: Json = False,
    model: ModelName = "small",
    batch: Batch = 16,
    context: Context = 256,
    ram: Annotated[str, typer.Option(metavar="SIZE", help="Memory for watching two layers.")] = "2GiB",
    directory: Disk = Path(),
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Timed steps of each run; the median counts.")] = 3,
) -> None:
    """Compare what `spillgrad plan` predicts with what runs do, under four budgets and each policy."""
    from spillgrad_tools.bench.plan import run

    run(as_json, model, batch, context, ram, directory, steps)


@bench.command("spill")
def bench_spill(
    as_json: Json = False,
    directory: Disk = Path(),
    rounds: Rounds = 9,
) -> None:
    """Time the spill store beside plain file I/O, and a training step in RAM and spilled."""
    from spillgrad_tools.bench.spill import run

    run(as_json, directory, rounds)


@bench.command("soak")
def bench_soak(
    as_json: Json = False,
    directory: Disk = Path(),
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="How long.")] = 20,
) -> None:
    """Use stores from several threads on a disk that fails, and look for errors and leaks that nobody asked for."""
    from spillgrad_tools.bench.soak import run

    run(as_json, directory, minutes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit status.

    What the user can mend is one line on stderr and status 2, what a disk damaged one and status 1; with `--debug` or
    SPILLGRAD_DEBUG=1 it is raised. A warning is a line without the place in the source where it arose.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("SPILLGRAD_DEBUG") == "1"
    # Taken out here, it may stand anywhere on the line.
    arguments = [word for word in arguments if word != "--debug"]
    try:
        _require_output()
        with contextlib.nullcontext() if debug else warnings_for_users():
            status = typer.main.get_command(app).main(arguments, prog_name="spillgrad", standalone_mode=False) or 0
            sys.stdout.flush()  # at the exit of the process, nobody would say that this failed
            return status
    except (BrokenPipeError, SystemExit):  # which typer makes of it
        return _close_output()
    except _errors_of_the_user() as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is None and _output_is_lost():
            error.filename = "standard output"
        if line := _one_line(error, arguments):
            print(f"spillgrad: {line}", file=sys.stderr)
        return _status(error)


def _require_output() -> None:
    """Raise ArgumentError where standard output is closed: the next file opened would take its place."""
    if sys.stdout is None:
        from spillgrad.errors import ArgumentError

        raise ArgumentError("standard output is closed; lead it to a file, or to /dev/null")


@contextlib.contextmanager
def warnings_for_users() -> Iterator[None]:
    """Inside the block, print of a warning what it says."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"spillgrad: warning: {' '.join(str(message).split())}", file=sys.stderr)

    former, warnings.showwarning = warnings.showwarning, show
    try:
        yield
    finally:
        warnings.showwarning = former


def _errors_of_the_user() -> tuple[type[Exception], ...]:
    from spillgrad.errors import SpillgradError
    from spillgrad_kernels.cuda.failures import CudaError
    from spillgrad_kernels.cuda.memory import OutOfMemory

    return SpillgradError, CudaError, OutOfMemory, OSError, typer.TyperException


def _status(error: Exception) -> int:
    from spillgrad.errors import SpillCorruptionError

    return WRONG if isinstance(error, SpillCorruptionError) else BAD_INPUT


def _output_is_lost() -> bool:
    """Return whether standard output goes on refusing what it was given, and give it up then."""
    try:
        sys.stdout.flush()
    except OSError:
        _close_output()  # Python would try once more as it exits
        return True
    return False


def _close_output() -> int:
    """Give up standard output, which nobody reads any more, and return the exit status that says so."""
    from spillgrad_tools.paged import NOBODY_READS, close_output

    close_output()
    return NOBODY_READS


def _one_line(error: Exception, arguments: Sequence[str]) -> str:
    """Return what was given, what is accepted and what to do; nothing when the help was shown instead."""
    from spillgrad.storage.inspection.printable import printable

    message = str(error)
    if isinstance(error, typer.TyperException):
        message = error.format_message().rstrip(".").replace("Value error, ", "")
        if message:
            command = getattr(getattr(error, "ctx", None), "command_path", "spillgrad")
            message = f"{' '.join(arguments)}: {message}; see {command} --help"
    elif type(error).__module__ == "builtins" and isinstance(error, OSError) and error.strerror is not None:
        place = "" if error.filename is None else f"{error.filename}: "
        mend = "name a place that exists and that you may read and write"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            mend = "free space, or name another place"
        message = f"{place}{error.strerror}; {mend}"
    return printable(" ".join(message.split()), _LONGEST_LINE)
