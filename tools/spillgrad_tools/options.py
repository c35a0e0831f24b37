"""Make commands: their options are parameters or fields of a dataclass, and their work is imported when they run."""

import copy
import dataclasses
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

from spillgrad_kernels.jit.collections import collections_paused
from spillgrad_tools import start_anew

# The exit statuses of a command that found damage, and of a command that was interrupted.
WRONG, INTERRUPTED = 1, 130


# The exit status of a program that a closed pipe ended: 128 plus SIGPIPE.
NOBODY_READS = 141


def close_output() -> int:
    """Replace standard output, whose reader is gone, by /dev/null, and return the exit status for a closed pipe.

    Without the replacement, Python's last flush at exit would fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return NOBODY_READS


def named_path(text: str) -> Path:
    """Parse a path on the command line. Raises typer.BadParameter for an empty name."""
    if not text:
        raise typer.BadParameter("got an empty name; wanted that of a folder or file, such as . for the current folder")
    return Path(text)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Disk = Annotated[Path, typer.Option("--dir", help="Folder on the disk to use.", show_default="the current one")]
ModelName = Annotated[str, typer.Option(metavar="NAME", help="Size of the model: tiny, small, gpt2, ...")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Sequences in a batch.")]
Context = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a sequence.")]


def runs(
    module: str, record: type | None = None, settings: type | None = None,
    panels: Mapping[str, Sequence[str]] | None = None, status: int = WRONG,
) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Return a decorator that turns a function without a body into a command; the command calls `run` of `module`.

    Without `record`, `run` gets the function's parameters. With `record`, a dataclass, `run` gets one object of it, and
    each of its fields annotated with an option becomes that option. The fields of `settings` become options, too: the
    record's field `settings` is a dictionary of those that the command line names. It lacks the others, so that a
    resumed run keeps its former values. `panels` names the parts of the help, and the options in each. If `run` returns
    False, the command exits with `status`.
    """
    optional = [] if settings is None else list(map(_left_out, _parameters(settings)))

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters.values() if record is None else _parameters(record)
        shown = {parameter.name: parameter for parameter in (*optional, *own)}
        in_panels = [_in_panel(shown.pop(name), panel) for panel, names in (panels or {}).items() for name in names]
        ordered = [*in_panels, *shown.values()]

        def call(**given: Any) -> None:
            named = {each.name: value for each in optional if (value := given.pop(each.name)) is not None}
            with collections_paused():
                run = importlib.import_module(f"spillgrad_tools.{module}").run
            if start_anew.is_own_process:
                gc.freeze()  # what modules are made of lives to the end: no collection need look through it
            arguments = given if settings is None else {**given, "settings": named}
            if (run(**arguments) if record is None else run(record(**arguments))) is False:
                raise typer.Exit(status)

        call.__name__ = command.__name__
        call.__doc__ = command.__doc__
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        call.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return call

    return decorated


def _parameters(record: type) -> list[inspect.Parameter]:
    """Return a parameter for each field of a dataclass that is annotated with an option or argument."""
    hints = get_type_hints(record, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(record)
        if any(isinstance(part, ParameterInfo) for part in get_args(hints[field.name]))
    ]


def _in_panel(parameter: inspect.Parameter, panel: str) -> inspect.Parameter:
    """Return the parameter with its option in a part of the help."""
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    option.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[kind, option])


def _left_out(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter with None as its default; the help still shows the former default."""
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    if option.show_default is True:
        option.show_default = str(parameter.default)
    return parameter.replace(default=None, annotation=Annotated[kind | None, option])
