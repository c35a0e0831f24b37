"""The records of an inspection: plain values, the same for the library and the command line.

Units: bytes and seconds; times count from the beginning of the run.
"""

import dataclasses
from pathlib import Path

from spillgrad.errors import ArgumentError
from spillgrad.inspection.arrays import Segment
from spillgrad.storage.origin_counters import NO_ORIGIN, Origin, OriginCounters, total
from spillgrad.storage.store import StoreStats

STATES = ("live", "finished", "dead")
KEYS = ("module", "op", "dtype", "step")


@dataclasses.dataclass(frozen=True)
class Group:
    """The counters of all arrays of one module, operation, dtype or step, which is called `name`."""

    name: str
    moved: OriginCounters


@dataclasses.dataclass(frozen=True)
class Step:
    """A step: the batches with the same `label`, which is the number of the training step; `batches` counts them.

    Only batches that the journal has are counted. Other work without a label, such as an evaluation, may come between
    the batches; `took_s` is the time from the beginning of the first batch to the end of the last.

    If `label` is None, the step is one batch that only the store counted: the time from the first array put to the last
    array dropped or, in an offload, the time from one step to the next. `number` counts steps of both kinds from 1.
    """

    number: int
    label: int | None
    began_s: float
    took_s: float
    moved: OriginCounters
    batches: int = 1


@dataclasses.dataclass(frozen=True)
class Sample:
    """The memory of a store at the time `t`, and its counters so far.

    The budget bounds `ram_bytes`. Of these, `hot_bytes` are not on disk yet, `writing_bytes` are being written,
    `cached_bytes` are on disk as well (prefetched, or not evicted yet), and `lent_bytes` belong to arrays that callers
    hold; the rest is being read or encoded. `rss_bytes` is the memory of the whole process.
    """

    t: float
    ram_bytes: int
    hot_bytes: int
    writing_bytes: int
    cached_bytes: int
    lent_bytes: int
    live_bytes: int
    disk_bytes: int
    rss_bytes: int
    written_bytes: int
    read_bytes: int
    hits: int
    misses: int
    wait_s: float


@dataclasses.dataclass(frozen=True)
class Span:
    """A span of time: a phase (`forward`, `backward`, `update`), a `write`, a `read`, or a `wait`.

    `array` is None for a phase. `cause` is `put` or `get` for a wait, else None. `ahead` marks a read as a prefetch.
    """

    kind: str
    began_s: float
    took_s: float
    array: int | None = None
    nbytes: int = 0
    origin: Origin = NO_ORIGIN
    cause: str | None = None
    ahead: bool = False


@dataclasses.dataclass(frozen=True)
class Failure:
    """An error of the disk at the time `t`."""

    t: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a store; None also stands for an option that a journal of the first version does not have."""

    budget_bytes: int | None = None
    codec: str | None = None
    encrypt: bool | None = None
    checksums: bool | None = None
    on_full: str | None = None


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """The effect of lossless compression on arrays of an origin: samples predict `stored_bytes` for `nbytes`."""

    origin: Origin
    nbytes: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The sequence of store events that most batches had.

    `arrays` holds the bytes of each array and whether it is persistent. `happened` holds for each event "put", "use" or
    "drop" and the array's index in `arrays`. If there are more events than a journal lists, both are empty, and
    `untold` is the number of events.
    """

    arrays: list[tuple[int, bool]]
    happened: list[tuple[str, int]]
    untold: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as its journal describes it, with the files that it left.

    `path` is the run's directory or its journal. `state` is one of `STATES`. A run is dead if its journal has no end
    and this machine sees no process that writes it. If the `folder` of a dead run exists, the run was killed; if not,
    it was killed and swept, or it closed its store while the disk refused the journal's last lines. `stats` are exact
    over the whole run, and so are `by("module")`, `by("op")` and `by("dtype")`. `steps`, `samples` and spans are those
    that the journal still has, from `first_s` on. `lost_lines` counts lines that the disk refused, `damaged_lines`
    lines that make no sense.
    """

    path: Path
    journal: Path | None
    state: str
    host: str | None
    process: int | None
    command: str | None
    version: str | None
    began: str | None
    duration_s: float
    first_s: float
    settings: Settings
    stats: StoreStats
    kept_bytes: int
    origins: dict[Origin, OriginCounters]
    steps: list[Step]
    samples: list[Sample]
    failures: list[Failure]
    failure_count: int
    shrinkage: list[Shrinkage]
    segments: dict[Path, int]  # bytes on disk
    step_plan: "StepPlan | None"
    lost_lines: int
    damaged_lines: int
    folder: Path | None = None

    def by(self, key: str) -> list[Group]:
        """Group the counters by `key`: "module", "op", "dtype" or "step". Groups are in the order of first appearance.

        Raises ArgumentError for any other key.
        """
        if key not in KEYS:
            raise ArgumentError(f"by: got {key!r}; wanted {', '.join(KEYS)}")
        if key == "step":
            return [Group(*each) for each in zip(self.step_names(), (step.moved for step in self.steps), strict=True)]
        parts: dict[str, list[OriginCounters]] = {}
        for origin, moved in self.origins.items():
            parts.setdefault(getattr(origin, key) or "(none)", []).append(moved)
        return [Group(name, total(each)) for name, each in parts.items()]

    def step_names(self) -> list[str]:
        """Return a name for each of `steps`: its label, or its number if no step has a label.

        If only some steps have labels, a step without one is named by the store's count, such as `(none, store's 8)`.
        """
        if all(step.label is None for step in self.steps):
            return [str(step.number) for step in self.steps]
        return [f"(none, store's {step.number})" if step.label is None else str(step.label) for step in self.steps]


@dataclasses.dataclass(frozen=True)
class Advice:
    """A change to make: `text` in plain words, the `arguments` for `save_on_disk`, and the `figures` that `text` names.

    A run with these arguments reaches each figure within 20 %.
    """

    text: str
    arguments: dict[str, object]
    figures: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The runs at `path`, from the oldest to the newest, or the segment that `path` names."""

    path: Path
    runs: list[Run]
    segment: Segment | None = None
