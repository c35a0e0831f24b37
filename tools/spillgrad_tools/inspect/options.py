"""The options of `spillgrad inspect`; this module imports nothing heavy, so that `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from spillgrad_tools.options import Json, named_path

Place = Annotated[Path, Argument(
    metavar="PATH", parser=named_path, help="The folder of a run, or of several; a journal; or a segment.",
)]  # fmt: skip
SortKey = Literal["name", "arrays", "packed", "deduplicated", "kept", "written", "stored", "read", "wait"]


@dataclasses.dataclass(frozen=True)
class InspectOptions:
    """The options of `spillgrad inspect`; one that was not given is None or False."""

    path: Place
    by: Annotated[Literal["module", "op", "kind", "dtype", "step"] | None, Option(
        help="Add up by this: a row for each.", show_default="module",
    )] = None  # fmt: skip
    sort: Annotated[SortKey | None, Option(help="Sort by this column.", show_default="packed; steps as they came")] = (
        None
    )
    top: Annotated[
        int | None, Option(min=1, metavar="N", help="Show so many rows.", show_default="20; all with --json")
    ] = None
    tree: Annotated[bool, Option("--tree", help="Show the structure of the HDF5 files.")] = False
    tensor: Annotated[str | None, Option(metavar="KEY", help="Show one array: its place, checksum and values.")] = None
    slice_text: Annotated[str | None, Option(
        "--slice", metavar="INDEX", help='With --tensor: print these values, such as "0:4, :".',
    )] = None  # fmt: skip
    export: Annotated[Path | None, Option(
        metavar="FILE", help="With --tensor: write the array, or the slice, to this .npy file.",
    )] = None  # fmt: skip
    html: Annotated[Path | None, Option(metavar="FILE", help="Write a page with plots and advice.")] = None
    perfetto: Annotated[Path | None, Option(
        metavar="FILE", help="Write a timeline for ui.perfetto.dev and chrome://tracing; FILE may end with .gz.",
    )] = None  # fmt: skip
    memory_viz: Annotated[Path | None, Option(
        metavar="FILE", help="Write what was in RAM, and when, for pytorch.org/memory_viz.",
    )] = None  # fmt: skip
    force: Annotated[bool, Option(
        "--force", help="With --export, --perfetto or --memory-viz: overwrite a file that is there.",
    )] = False  # fmt: skip
    watch: Annotated[bool, Option("--watch", help="Show a running job, live; q or Ctrl-C leaves.")] = False
    as_json: Json = False

    def given(self) -> list[str]:
        """Return the options that were given, as they are spelled on the command line: `--slice`, not `slice_text`."""
        words = {"slice_text": "slice", "as_json": "json"}
        names = [field.name for field in dataclasses.fields(self) if field.name != "path"]
        given = [words.get(name, name) for name in names if getattr(self, name) not in (None, False)]
        return ["--" + word.replace("_", "-") for word in given]
