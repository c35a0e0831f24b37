"""The command `spillgrad`: options and help of its commands; the decorator `runs` names the module of each command."""

import contextlib
import errno
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from spillgrad_tools import start_anew
from spillgrad_tools.bench import options as bench_options
from spillgrad_tools.generate.options import GenerateOptions
from spillgrad_tools.inspect.options import InspectOptions, Place
from spillgrad_tools.launch.failure import one_of_several
from spillgrad_tools.launch.options import LaunchOptions
from spillgrad_tools.options import INTERRUPTED, WRONG, Disk, Json, close_output, named_path, runs
from spillgrad_tools.plain_warnings import warnings_for_users
from spillgrad_tools.termination import unwinding
from spillgrad_tools.train.options import PANELS, PlanOptions, TrainOptions, TrainSettings

BAD_INPUT = 2
# The characters of an error's line: an error may contain a few paths.
_LONGEST_LINE = 20_000
# Typer prints no error: `main` prints each in one line, undecorated.
LOOKS: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}
app = typer.Typer(
    help="Train models whose saved tensors live on disk, under a byte-exact RAM budget.",
    context_settings={"help_option_names": ["-h", "--help"]},
    **LOOKS,
)
bench = typer.Typer(help="Time spillgrad beside its peers, each in its own process.", **LOOKS)
app.add_typer(bench, name="bench")


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


@app.command()
@runs("train.command", TrainOptions, TrainSettings, PANELS, INTERRUPTED)
def train() -> None:
    """Train a language model, or adapters for one, with what exceeds RAM, or a budget of it, on disk.

    Ctrl-C, SIGTERM or SIGUSR1 finishes the step, saves a checkpoint for --resume and removes the spill files.
    After a kill, --resume goes on from the last checkpoint saved, to the same losses.
    """


@app.command()
@runs("generate.command", GenerateOptions, status=INTERRUPTED)
def generate() -> None:
    """Write text with a model: answer a question, or go on from a text. Each piece is printed as it comes.

    The weights are in RAM, or on disk where they do not fit; then each token reads them.
    """


@app.command()
@runs("train.plan", PlanOptions)
def plan() -> None:
    """Say how to train a model in so much memory: what to keep, spill and recompute, and what that takes.

    Two layers of the model are trained for a few steps, and the disk and the processor measured.
    """


@app.command(context_settings={"allow_interspersed_args": False})
@runs("launch.command", LaunchOptions)
def launch() -> None:
    """Start a program in several processes that train together over MPI, on this machine or several.

    Ctrl-C lets train save on all ranks at the same step, and interrupts other programs; a second one ends all at once.
    The exit status is 0 if all processes end well, and 130 after Ctrl-C.
    """


@app.command()
@runs("inspect.command", InspectOptions)
def inspect() -> None:
    """Show what was spilled, when, why, and what it cost: of a run that goes on, one that ended, or one that died.

    The exit status is 0; 1 if the files are damaged; 2 if there are none, or options do not go together;
    130 after Ctrl-C.
    """


@app.command()
@runs("inspect.verify")
def verify(path: Place, as_json: Json = False) -> None:
    """Check what is stored: every checksum, every array of every segment, every line of the journals.

    The exit status is 1 if something is wrong; each problem is listed.
    """


@app.command()
@runs("inspect.sweep")
def sweep(
    directory: Annotated[Path, typer.Argument(metavar="DIR", parser=named_path, help="Folder that runs spilled to.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
) -> None:
    """Remove the files of dead runs from a spill folder; live runs keep theirs."""


@app.command()
@runs("export", status=INTERRUPTED)
def export(
    path: Annotated[Path, typer.Argument(
        metavar="PATH", parser=named_path, help="Folder of a run, of a model as Hugging Face's, or of peft's adapters.",
    )],
    to: Annotated[Path, typer.Option(parser=named_path, metavar="PLACE", help="Folder to write, or file NAME.gguf.")],
    format: Annotated[Literal["safetensors", "peft", "gguf"] | None, typer.Option(
        help="A whole model for transformers, adapters alone for peft, or a whole model for llama.cpp.",
        show_default="gguf for NAME.gguf; peft for adapters; else safetensors",
    )] = None,
    merge: Annotated[bool, typer.Option("--merge", help="Add adapters to their base, and write the whole model.")] = (
        False
    ),
    dtype: Annotated[Literal["float32", "bfloat16", "float16", "q8_0"] | None, typer.Option(
        help="Format of the elements; q8_0, eight bits each, is for gguf alone.", show_default="as stored",
    )] = None,
    weights: Annotated[Path | None, typer.Option(
        metavar="PATH", help="The base that adapters are for.", show_default="where the run found it",
    )] = None,
    tokenizer: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="Whose tokenizer goes along.", show_default="that of the model or its base",
    )] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is no export, too; never other files.")
    ] = False,
) -> None:  # fmt: skip
    """Write a run's model for other programs: transformers, peft, llama.cpp.

    The files are written beside their place and moved there at the end. The exit status is 130 after Ctrl-C.
    """


@app.command()
@runs("quantize", status=INTERRUPTED)
def quantize(
    path: Annotated[Path, typer.Argument(
        metavar="PATH", parser=named_path, help="Folder of a model as Hugging Face's, or of a run.",
    )],
    to: Annotated[Literal["nf4", "int8"], typer.Option(help="Format: about 4 bits a weight, or 8.")],
    out: Annotated[Path, typer.Option(parser=named_path, metavar="FOLDER", help="Folder to write.")],
    skip: Annotated[list[str] | None, typer.Option(
        metavar="LAYER", help="A layer that stays as it is; may be repeated.", show_default="lm_head",
    )] = None,
    embeddings: Annotated[bool, typer.Option("--embeddings", help="Quantize tables of embeddings, too.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model that is no export, too; never other files.")
    ] = False,
) -> None:  # fmt: skip
    """Write a model with weights of 4 or 8 bits, for train --lora and generate, and for transformers.

    Weights are read, quantized and written one by one. The files are written beside their place and moved there at the
    end. The exit status is 130 after Ctrl-C.
    """


@app.command()
@runs("doctor")
def doctor(directory: Disk = Path(), as_json: Json = False) -> None:
    """Say what this machine has: processor, RAM, disk, software; what will be slow, why, and what helps."""


@app.command()
@runs("cache")
def cache(
    action: Annotated[
        Literal["info", "warm", "clear"],
        typer.Argument(help="Say what is there, compile what training and common operations need, or remove it all."),
    ] = "info",
) -> None:
    """Show, fill or empty the cache of compiled kernels; old kernels are removed automatically."""


@bench.command("kernels")
@runs("bench.kernels", bench_options.KernelOptions)
def bench_kernels() -> None:
    """Time the kernels beside NumPy and, where installed, PyTorch."""


@bench.command("train")
@runs("bench.train", bench_options.TrainOptions)
def bench_train() -> None:
    """Time training steps in RAM, spilled and offloaded, beside the same model in PyTorch, where installed."""


@bench.command("models")
@runs("bench.models", bench_options.ModelOptions)
def bench_models() -> None:
    """Time training steps of ordinary small models beside the same code with PyTorch, where installed."""


@bench.command("growth")
@runs("bench.growth", bench_options.GrowthOptions)
def bench_growth() -> None:
    """Time how a step grows with layers, batch, context, saved tensors and parameters."""


@bench.command("hooks")
@runs("bench.hooks", bench_options.HookOptions)
def bench_hooks() -> None:
    """Time PyTorch's and Paddle's own training steps in RAM, and with what they save for backward on disk."""


@bench.command("plan")
@runs("bench.plan", bench_options.PlanOptions)
def bench_plan() -> None:
    """Compare what `spillgrad plan` predicts with what runs do, under four budgets and each policy."""


@bench.command("within")
@runs("bench.within", bench_options.WithinOptions)
def bench_within() -> None:
    """Train within 72 sizes of memory, each run in a control group of that size, to see whether plans keep their word.

    Then GPT-2 trains with --ram auto in groups of 2 GiB, of 4 GiB and in none, beside a program that takes 500 MiB.
    The exit status is 1 if a run was killed, or if a size that a plan had named was too small.
    """


@bench.command("memory")
@runs("bench.memory", bench_options.MemoryOptions)
def bench_memory() -> None:
    """Train one model with each way to save memory, and measure its peak memory and the time of a step."""


@bench.command("fit")
@runs("bench.fit", bench_options.FitOptions)
def bench_fit() -> None:
    """Plan models for several sizes of RAM: what fits, what is on disk then, and how long a step takes."""


@bench.command("ranks")
@runs("bench.ranks", bench_options.RankOptions)
def bench_ranks() -> None:
    """Compare steps of two processes with what `spillgrad plan` predicts, and predict those of up to 1,024."""


@bench.command("spill")
@runs("bench.spill", bench_options.SpillOptions)
def bench_spill() -> None:
    """Time the spill store beside plain file I/O, and a training step in RAM and spilled."""


@bench.command("soak")
@runs("bench.soak")
def bench_soak(
    as_json: Json = False, directory: Disk = Path(),
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="How long.")] = 20,
) -> None:  # fmt: skip
    """Use stores from several threads on a disk that fails; look for leaks, and for errors that no fault explains."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return its exit status.

    An error that the user can correct prints one line on stderr and gives status 2; damage on a disk gives status 1.
    With `--debug` or SPILLGRAD_DEBUG=1, the error is raised. A warning prints one line, without its place in the
    source.
    """
    start_anew.is_own_process = argv is None
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("SPILLGRAD_DEBUG") == "1"
    # The option may stand anywhere on the line.
    arguments = [word for word in arguments if word != "--debug"]
    try:
        start_anew.ready()
        if sys.stdout is None:  # the next file opened would take its place
            from spillgrad.errors import ArgumentError

            raise ArgumentError("standard output is closed; lead it to a file, or to /dev/null")
        with unwinding() if argv is None else contextlib.nullcontext(), _warnings(debug):
            status = typer.main.get_command(app).main(arguments, prog_name="spillgrad", standalone_mode=False) or 0
            sys.stdout.flush()  # a failure at the exit of the process would not be reported
            return status
    except (BrokenPipeError, SystemExit):  # typer exits where the pipe is broken
        return close_output()
    except _errors_of_the_user() as error:
        if debug:
            raise
        if isinstance(error, OSError) and error.filename is None and _output_is_lost():
            error.filename = "standard output"
        if line := _one_line(error, arguments):
            with one_of_several():
                print(f"spillgrad: {line}", file=sys.stderr)
        from spillgrad.errors import SpillCorruptionError

        return WRONG if isinstance(error, SpillCorruptionError) else BAD_INPUT


def _warnings(debug: bool) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if debug else warnings_for_users()


def _errors_of_the_user() -> tuple[type[Exception], ...]:
    from spillgrad.errors import SpillgradError
    from spillgrad_kernels.cuda.driver.failures import CudaError
    from spillgrad_kernels.cuda.driver.memory import OutOfMemory

    return SpillgradError, CudaError, OutOfMemory, OSError, typer.TyperException


def _output_is_lost() -> bool:
    """Flush standard output; if the output cannot be written, replace it by /dev/null and return True."""
    try:
        sys.stdout.flush()
    except OSError:
        close_output()
        return True
    return False


def _one_line(error: Exception, arguments: Sequence[str]) -> str:
    """Return the error in one line: the input, what is accepted, what to do. It is empty when the help was shown."""
    from spillgrad.inspection.printable import printable

    message = str(error)
    if isinstance(error, typer.TyperException):
        message = error.format_message().rstrip(".").replace("Value error, ", "")
        if message:
            command = getattr(getattr(error, "ctx", None), "command_path", "spillgrad")
            message = f"{' '.join(arguments)}: {message}; see {command} --help"
    elif type(error).__module__ == "builtins" and isinstance(error, OSError) and error.strerror is not None:
        place = "" if error.filename is None else f"{error.filename}: "
        mend = "name a place that exists and that you may use"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            mend = "free space, or name another place"
        message = f"{place}{error.strerror}; {mend}"
    return printable(" ".join(message.split()), _LONGEST_LINE)
