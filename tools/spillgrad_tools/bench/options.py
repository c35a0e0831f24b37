"""The options of the benchmarks; this module imports nothing heavy, so that `--help` is quick."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from spillgrad_tools.options import Batch, Context, Disk, Json, ModelName

Rounds = Annotated[int, Option(min=1, metavar="N", help="Timings of each case; the median counts.")]
Threads = Annotated[int | None, Option(min=1, metavar="N", help="Threads of every library.", show_default="all cores")]
Page = Annotated[
    Path | None, Option("--write", metavar="FOLDER", help="Also write a JSON file, of which the site's pages are made.")
]
Bars = Annotated[bool, Option("--bars", help="Also say which of this project's own goals were reached.")]


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """The options of `spillgrad bench kernels`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only cases whose name contains this.")] = ""
    threads: Threads = None
    rounds: Rounds = 9
    quick: Annotated[bool, Option("--quick", help="Leave out the cases of a second and more.")] = False
    page: Page = None
    bars: Bars = False
    device: Annotated[Literal["cpu", "cuda"], Option(help="Where: cuda, on a GPU, has rows of its own.")] = "cpu"


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """The options that all benchmarks of training steps have."""

    as_json: Json = False
    model: ModelName = "gpt2"
    batch: Batch = 4
    context: Context = 512
    steps: Annotated[int, Option(min=1, metavar="N", help="Timed steps; the median counts.")] = 5
    threads: Threads = None
    page: Page = None
    bars: Bars = False
    directory: Disk = Path()


@dataclasses.dataclass(frozen=True)
class SpillOptions:
    """The options of `spillgrad bench spill`."""

    as_json: Json = False
    directory: Disk = Path()
    rounds: Rounds = 9
    page: Page = None
    bars: Bars = False


@dataclasses.dataclass(frozen=True)
class TrainOptions(StepOptions):
    """The options of `spillgrad bench train`."""

    name: Annotated[str, Option("--filter", metavar="NAME", help="Only contenders whose name contains this.")] = ""
    large: Annotated[
        bool, Option("--large", help="Also the GPT-2 of 1.6 billion parameters: half an hour, 30 GB of disk.")
    ] = False


@dataclasses.dataclass(frozen=True)
class HookOptions(StepOptions):
    """The options of `spillgrad bench hooks`."""

    framework: Annotated[
        str | None, Option(metavar="torch|paddle", help="Only this one; default: those installed.")
    ] = None


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """The options of `spillgrad bench plan`."""

    as_json: Json = False
    model: ModelName = "small"
    batch: Batch = 16
    context: Context = 256
    ram: Annotated[str, Option(metavar="SIZE", help="Memory for watching two layers.")] = "2GiB"
    directory: Disk = Path()
    steps: Annotated[int, Option(min=1, metavar="N", help="Timed steps of each run; the median counts.")] = 3


@dataclasses.dataclass(frozen=True)
class WithinOptions:
    """The options of `spillgrad bench within`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only runs whose name contains this.")] = ""
    times: Annotated[int, Option(min=1, metavar="N", help="Runs of --ram auto in each control group.")] = 10
    directory: Disk = Path()


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    """The options of `spillgrad bench memory`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only methods whose name contains this.")] = ""
    steps: Annotated[int, Option(min=1, metavar="N", help="Timed steps; the median counts.")] = 3
    threads: Threads = None
    page: Page = None
    directory: Disk = Path()


@dataclasses.dataclass(frozen=True)
class RankOptions:
    """The options of `spillgrad bench ranks`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Measure only models whose name contains this.")] = ""
    rounds: Annotated[int, Option(
        min=0, metavar="N", help="Predictions and trainings of each model, in turns; 0 measures none.",
    )] = 5  # fmt: skip
    model: Annotated[str, Option(metavar="NAME", help="The model that is predicted.")] = "gpt2-xl"
    batch: Batch = 1
    context: Context = 1024
    ranks: Annotated[int, Option(min=1, metavar="N", help="The most processes.")] = 1024
    links: Annotated[str, Option(metavar="SPEEDS", help="Networks, with commas between them.")] = "1Gbit,10Gbit,100Gbit"
    page: Page = None
    directory: Disk = Path()


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """The options of `spillgrad bench fit`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only models whose name contains this.")] = ""
    page: Page = None
    directory: Disk = Path()


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """The options of `spillgrad bench models`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only models whose name contains this.")] = ""
    threads: Threads = None
    rounds: Rounds = 9
    page: Page = None
    bars: Bars = False


@dataclasses.dataclass(frozen=True)
class GrowthOptions:
    """The options of `spillgrad bench growth`."""

    as_json: Json = False
    name: Annotated[str, Option("--filter", metavar="NAME", help="Only series whose name contains this.")] = ""
    largest: Annotated[int | None, Option(
        min=1, metavar="N", help="Leave out larger sizes: a million tensors take some GiB.", show_default="a million",
    )] = None  # fmt: skip
    threads: Threads = None
    page: Page = None
