"""The records of an inspection: plain values, the same for the library and the command line.

Units: bytes and seconds; times are since the run began.
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
    """All arrays of one module, operation, dtype or step: `name`."""

    name: str
    moved: OriginCounters


@dataclasses.dataclass(frozen=True)
class Step:
    """A training step, of as many `batches` as the journal has of it; `label` is its number.

    Until a batch of the next one came, all of this label are of it, also where something without a label, such as an
    evaluation, came between them: `took_s` is from the first to the last of them.

    Where nobody said which training step it is, it is one of the store, of one batch: from the first array put to the
    last one gone, or between the steps of an offload. `number` counts steps, of either kind, from 1.
    """

    number: int
    label: int | None
    began_s: float
    took_s: float
    moved: OriginCounters
    batches: int = 1


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a store held at `t`, and its counters then.

    Of `ram_bytes`, which the budget bounds, `hot_bytes` are on no disk yet, `writing_bytes` on their way there,
    `cached_bytes` are on disk as well (prefetched, or not gone yet), `lent_bytes` belong to arrays that callers hold;
    the rest is being read, or encoded. `rss_bytes` is the memory of the whole process.
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

    `array` is None for a phase, `cause` is None but for a wait: `put` or `get`.
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
    """The disk refused something at `t`."""

    t: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a store was made; None for what a journal of the first version does not say."""

    budget_bytes: int | None = None
    codec: str | None = None
    encrypt: bool | None = None
    checksums: bool | None = None
    on_full: str | None = None


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """What lossless compression makes of the arrays of an origin: `stored_bytes` of `nbytes`, as samples say."""

    origin: Origin
    nbytes: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """What most batches asked of the store: for each array its bytes and whether it is persistent; and the events.

    `happened` holds "put", "use" or "drop" and the place of the array in `arrays`. Of more than a journal tells, both
    are empty, and `untold` says how much happened.
    """

    arrays: list[tuple[int, bool]]
    happened: list[tuple[str, int]]
    untold: int = 0


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, from its journal; and its files, where there are any.

    `path` is what was found: a run's directory, or a journal. `state` is one of `STATES`: of a dead run, the journal
    has no end, and no process is seen from this machine to be at it. It was killed, if its `folder` is there; if not,
    it was killed and swept, or closed its store while the disk refused the journal's last lines. `stats` are exact over
    the whole run, as are `by("module")`, `"op"` and `"dtype"`; `steps`, `samples`, and spans are those that the journal
    still has, from `first_s` on. `lost_lines` are those that the disk refused, `damaged_lines` those that make no
    sense.
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
        """Return a group for each `module`, `op`, `dtype` or `step`, in the order they came.

        Raises ArgumentError for another key.
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
        """Return the name of each of `steps`: its label; if no step has one, its number.

        One without a label among others, such as an evaluation, is `(none, store's 8)`: of two countings.
        """
        if all(step.label is None for step in self.steps):
            return [str(step.number) for step in self.steps]
        return [f"(none, store's {step.number})" if step.label is None else str(step.label) for step in self.steps]


@dataclasses.dataclass(frozen=True)
class Advice:
    """A change to make: in plain words with numbers, the arguments of `save_on_disk`, and the figures in `text`.

    A figure is what a run with those arguments reaches, within 20 %.
    """

    text: str
    arguments: dict[str, object]
    figures: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Inspection:
    """The runs at `path`, from the oldest to the newest; or the segment there."""

    path: Path
    runs: list[Run]
    segment: Segment | None = None
