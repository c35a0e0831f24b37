"""Command-line options as fields of a dataclass: each is declared once, and a command gets them as one object."""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.models import ParameterInfo

Options = TypeVar("Options")


def named_path(text: str) -> Path:
    """Return the path that a command line names. Raises typer.BadParameter for an empty name."""
    if not text:
        raise typer.BadParameter("got an empty name; wanted that of a folder or file, such as . for the current folder")
    return Path(text)


Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Disk = Annotated[Path, typer.Option("--dir", help="Folder on the disk to use.", show_default="the current one")]
ModelName = Annotated[str, typer.Option(metavar="NAME", help="Size of the model: tiny, small, gpt2, ...")]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Sequences in a batch.")]
Context = Annotated[int, typer.Option(min=1, metavar="N", help="Tokens in a sequence.")]


def takes(
    record: type[Options], settings: type | None = None, first: Sequence[str] = ()
) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Make a command of a function that takes one `record`: each field annotated with an option becomes that option.

    The fields of `settings` become options too. Those that the command line names reach the field `settings` of the
    record as a dictionary; the others are left out, so that a resumed run keeps its own. `first` names the options that
    the help shows first.
    """
    parameters = _parameters(record)
    optional = [] if settings is None else list(map(_left_out, _parameters(settings)))
    shown = {parameter.name: parameter for parameter in (*optional, *parameters)}
    ordered = [shown[name] for name in dict.fromkeys((*first, *shown))]

    def decorated(command: Callable[[Options], None]) -> Callable[..., None]:
        def call(**given: Any) -> None:
            named = {each.name: value for each in optional if (value := given.pop(each.name)) is not None}
            command(record(**given, **({} if settings is None else {"settings": named})))

        call.__name__ = command.__name__
        call.__doc__ = command.__doc__
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        call.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        return call

    return decorated


def _parameters(record: type) -> list[inspect.Parameter]:
    """Return a parameter for each field that is annotated with an option or argument."""
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


def _left_out(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter that is None unless it is named; its help shows the default all the same."""
    kind, option = get_args(parameter.annotation)
    option = copy.copy(option)
    if option.show_default is True:
        option.show_default = str(parameter.default)
    return parameter.replace(default=None, annotation=Annotated[kind | None, option])
