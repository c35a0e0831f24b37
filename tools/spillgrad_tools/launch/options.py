"""The options of `spillgrad launch`."""

import dataclasses
from typing import Annotated

import typer


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """What to start, how often, and where."""

    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PROGRAM [ARGUMENTS]...",
            help="A Python file, -m and a module, or a command of spillgrad; put -- before its options.",
        ),
    ]
    processes: Annotated[int, typer.Option("-n", "--processes", min=1, metavar="N", help="How many processes.")]
    hosts: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Machines to start them on, reached by ssh; this one, by default."),
    ] = None
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0, metavar="N",
            help="How often to start again without the processes that were lost; train goes on from its checkpoint.",
        ),
    ] = 0  # fmt: skip
