"""The records of an inspection: plain values, the same for the library and the command line.

Each parameter of a record is its attribute, too. Units: bytes and seconds; times count from the beginning of the run.
"""

import collections
import dataclasses
from pathlib import Path

from spillgrad.errors import ArgumentError
from spillgrad.inspection.arrays import Segment
from spillgrad.inspection.kinds import kind_of, logical_bytes
from spillgrad.inspection.printable import origin_name, printable
from spillgrad.storage.communication_counters import CommunicationCounters
from spillgrad.storage.origin_counters import NO_ORIGIN, Origin, OriginCounters, total
from spillgrad.storage.store import StoreStats

STATES = ("live", "finished", "dead")
KEYS = ("module", "op", "kind", "dtype", "step")


@dataclasses.dataclass(frozen=True)
class Group:
    """The counters of all arrays of one module, operation, kind, dtype or step.

    Parameters
    ----------
    name : str
        The module, operation, kind, dtype or step.
    moved : OriginCounters
        What happened to its arrays.
    logical_bytes : int, optional
        The bytes of the numbers that the packed bytes stand for: those of codes count as float32, their scales as
        nothing. None for a step, of whose arrays no more is known.
    """

    name: str
    moved: OriginCounters
    logical_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a run: the batches with the same label, or one batch that only the store counted.

    Only batches that the journal has are counted. Other work without a label, such as an evaluation, may come between
    the batches of a label.

    Parameters
    ----------
    number : int
        Number of the step, from 1; steps of both kinds count.
    label : int or None
        Number of the training step. With None, the step is one batch: the time from the first array put to the last
        array dropped or, in an offload, the time from one step to the next.
    began_s : float
        When the first batch began.
    took_s : float
        Seconds from the beginning of the first batch to the end of the last.
    moved : OriginCounters
        What happened to the step's arrays.
    batches : int, default 1
        Number of batches.
    """

    number: int
    label: int | None
    began_s: float
    took_s: float
    moved: OriginCounters
    batches: int = 1


@dataclasses.dataclass(frozen=True)
class Sample:
    """The memory of a store at a time, and its counters so far.

    What is in `ram_bytes`, and in none of its four parts below, is being read or encoded.

    Parameters
    ----------
    t : float
        The time.
    ram_bytes : int
        Bytes in RAM, which the budget bounds.
    hot_bytes : int
        Those in RAM that are not on disk yet.
    writing_bytes : int
        Those in RAM that are being written.
    cached_bytes : int
        Those in RAM that are on disk as well: prefetched, or not evicted yet.
    lent_bytes : int
        Those in RAM that belong to arrays that callers hold.
    live_bytes : int
        Bytes of live arrays, wherever they are.
    disk_bytes : int
        Bytes that the files occupy.
    rss_bytes : int
        Bytes of memory of the whole process.
    written_bytes : int
        Bytes written so far.
    read_bytes : int
        Bytes read so far.
    hits : int
        Number of uses whose array was in RAM, or on its way there.
    misses : int
        Number of uses that had to read the disk themselves.
    wait_s : float
        Seconds that callers waited so far.
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
    """A span of time: a phase, a write, a read, a wait or a collective.

    Parameters
    ----------
    kind : {"forward", "backward", "update", "write", "read", "wait", "collective"}
        What took the time; the first three are phases.
    began_s : float
        When it began.
    took_s : float
        How long it took.
    array : int, optional
        Number of the array; None for a phase, a collective, and a wait for ranks.
    nbytes : int, default 0
        Bytes of the array; those that a collective sent.
    origin : Origin, optional
        Where the array comes from.
    cause : {"put", "get", "collective"}, optional
        What waited; None for other kinds than a wait.
    ahead : bool, default False
        Whether a read is a prefetch.
    what : str, optional
        The collective in words; None for other kinds, and other waits.
    slowest : int, optional
        The rank whose messages came last; None for other kinds, and other waits.
    """

    kind: str
    began_s: float
    took_s: float
    array: int | None = None
    nbytes: int = 0
    origin: Origin = NO_ORIGIN
    cause: str | None = None
    ahead: bool = False
    what: str | None = None
    slowest: int | None = None

    @property
    def title(self) -> str:
        """The kind in words: of a wait, "wait for room", "… for data" or "… for ranks"; of a prefetch, "read ahead"."""
        if self.kind == "wait":
            return {"put": "wait for room", "collective": "wait for ranks"}.get(self.cause or "", "wait for data")
        return "read ahead" if self.kind == "read" and self.ahead else self.kind

    @property
    def name(self) -> str:
        """What it is about in words: the origin of the array, or the collective and the rank that came last."""
        if self.what is None:
            return origin_name(self.origin)
        return printable(self.what) + ("" if self.slowest is None else f", rank {self.slowest} last")


@dataclasses.dataclass(frozen=True)
class RamChange:
    """More or fewer bytes of an array count as RAM.

    Parameters
    ----------
    t : float
        When it happened.
    array : int or None
        Number of the array; None for bytes that are of no array, such as a copy that is being made, whose `op` is
        "room".
    nbytes : int
        Bytes that came; negative, bytes that went.
    origin : Origin
        Where the array comes from. Bytes go with the origin with which they came: if the array gets another label, they
        go, and come again.
    step : int or None
        The training step in which the array was put.
    """

    t: float
    array: int | None
    nbytes: int
    origin: Origin
    step: int | None


@dataclasses.dataclass(frozen=True)
class Failure:
    """An error of the disk.

    Parameters
    ----------
    t : float
        When it happened.
    reason : str
        The error's message.
    """

    t: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a store; None also stands for an option that a journal of the first version does not have.

    Parameters
    ----------
    budget_bytes : int, optional
        The `ram_budget` in bytes.
    codec : str, optional
        How arrays are encoded.
    encrypt : bool, optional
        Whether the files are encrypted.
    checksums : bool, optional
        Whether arrays have checksums.
    on_full : str, optional
        What happens when the disk is full.
    """

    budget_bytes: int | None = None
    codec: str | None = None
    encrypt: bool | None = None
    checksums: bool | None = None
    on_full: str | None = None


@dataclasses.dataclass(frozen=True)
class Shrinkage:
    """The effect of lossless compression on arrays of an origin, which samples predict.

    Parameters
    ----------
    origin : Origin
        Where the arrays come from.
    nbytes : int
        Bytes of the arrays.
    stored_bytes : int
        Bytes that they would take on disk.
    """

    origin: Origin
    nbytes: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True)
class StepPlan:
    """The sequence of store events that most batches had.

    Parameters
    ----------
    arrays : list of tuple
        For each array, its bytes and whether it is persistent.
    happened : list of tuple
        For each event, "put", "use" or "drop", and the array's index in `arrays`. If there are more events than a
        journal lists, both lists are empty.
    untold : int, default 0
        The number of events that are not listed.
    """

    arrays: list[tuple[int, bool]]
    happened: list[tuple[str, int]]
    untold: int = 0


@dataclasses.dataclass(frozen=True)
class Rank:
    """Which of the processes that train together a run is of, and what it sent to the others.

    Parameters
    ----------
    rank : int
        Number of the process, from 0 on.
    ranks : int
        How many processes there are.
    group : str or None
        A name that the journals of all processes share.
    zero_s : float or None
        When the run began, in seconds since 1970 by the clock of rank 0.
    error_s : float or None
        By how much `zero_s` may be wrong.
    counters : CommunicationCounters
        The bytes and seconds of all collectives.
    """

    rank: int
    ranks: int
    group: str | None
    zero_s: float | None
    error_s: float | None
    counters: CommunicationCounters


@dataclasses.dataclass(frozen=True)
class Run:
    """A run as its journal describes it, with the files that it left.

    `stats` are exact over the whole run, and so are ``by("module")``, ``by("op")``, ``by("kind")`` and ``by("dtype")``.
    `steps`, `samples` and spans are those that the journal still has, from `first_s` on.

    Parameters
    ----------
    path : Path
        The run's directory or its journal.
    journal : Path or None
        The journal, if it exists.
    state : {"live", "finished", "dead"}
        A run is dead if its journal has no end and this machine sees no process that writes it.
    host : str or None
        Name of the machine.
    process : int or None
        Number of the process.
    command : str or None
        Command line of the process.
    version : str or None
        Version of spillgrad.
    began : str or None
        When the run began.
    duration_s : float
        Seconds from the beginning to the last event.
    first_s : float
        Time of the first event that the journal still has.
    settings : Settings
        The options of the store.
    stats : StoreStats
        The store's counters.
    kept_bytes : int
        Bytes that stayed in RAM outside the store.
    origins : dict
        Maps each `Origin` to its `OriginCounters`.
    steps : list of Step
        The steps.
    samples : list of Sample
        The memory from time to time.
    failures : list of Failure
        Errors of the disk.
    failure_count : int
        Number of errors of the disk.
    shrinkage : list of Shrinkage
        What lossless compression would do.
    segments : dict
        Maps the path of each file of arrays to its bytes on disk.
    step_plan : StepPlan or None
        What most batches did.
    lost_lines : int
        Number of journal lines that the disk refused.
    damaged_lines : int
        Number of journal lines that make no sense.
    folder : Path, optional
        The run's directory, if it exists. If a dead run has one, the run was killed; if not, it was killed and swept,
        or it closed its store while the disk refused the journal's last lines.
    rank : Rank, optional
        Which of several processes it is of; None for a process alone, and for a journal that does not say so.
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
    rank: Rank | None = None

    def by(self, key: str) -> list[Group]:
        """Group the counters of the run.

        Parameters
        ----------
        key : {"module", "op", "kind", "dtype", "step"}
            What the arrays of a group have in common. Kinds are weights, gradients, optimizer state and saved tensors.

        Returns
        -------
        list of Group
            In the order of first appearance.

        Raises
        ------
        ArgumentError
            For any other key.
        """
        if key not in KEYS:
            raise ArgumentError(f"by: got {key!r}; wanted {', '.join(KEYS)}")
        if key == "step":
            return [Group(*each) for each in zip(self.step_names(), (step.moved for step in self.steps), strict=True)]
        parts: dict[str, list[OriginCounters]] = {}
        logical: dict[str, int] = collections.Counter()
        for origin, moved in self.origins.items():
            name = kind_of(origin) if key == "kind" else getattr(origin, key) or "(none)"
            parts.setdefault(name, []).append(moved)
            logical[name] += logical_bytes(origin, moved.packed_bytes, self.origins)
        return [Group(name, total(each), logical[name]) for name, each in parts.items()]

    def step_names(self) -> list[str]:
        """Return a name for each of `steps`.

        Returns
        -------
        list of str
            The label of each step, or its number if no step has a label. If only some steps have labels, a step without
            one is named by the store's count, such as "(none, store's 8)".
        """
        if all(step.label is None for step in self.steps):
            return [str(step.number) for step in self.steps]
        return [f"(none, store's {step.number})" if step.label is None else str(step.label) for step in self.steps]


@dataclasses.dataclass(frozen=True)
class Advice:
    """A change to make; a run with the new arguments reaches each figure within 20 %.

    Parameters
    ----------
    text : str
        The advice in plain words.
    arguments : dict
        The arguments for `save_on_disk`.
    figures : dict
        The numbers that `text` names, by name.
    """

    text: str
    arguments: dict[str, object]
    figures: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What `inspect` found at a path.

    Parameters
    ----------
    path : Path
        The path.
    runs : list of Run
        The runs, from the oldest to the newest.
    segment : Segment, optional
        The segment that the path names.
    """

    path: Path
    runs: list[Run]
    segment: Segment | None = None
