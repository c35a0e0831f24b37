"""Measure a training step of two layers of a model: the tensors it saves and uses, its memory and its time."""

import collections
import contextlib
import dataclasses
import gc
import itertools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from spillgrad import labels
from spillgrad.autograd.core.grad_mode import no_grad
from spillgrad.errors import BudgetError
from spillgrad.generator import default_generator
from spillgrad.models.language_model import LanguageModel
from spillgrad.nn.module import Module
from spillgrad.nn.module_calls import around_forward
from spillgrad.nn.parameter import Parameter
from spillgrad.nn.quantized import quantized_numbers
from spillgrad.nn.utils.clip_grad import clip_grad_norm_
from spillgrad.ops.autocast import autocast
from spillgrad.optim.optimizer import Optimizer
from spillgrad.spill.disk_offload import disk_offload
from spillgrad.spill.module_paths import is_within, pattern
from spillgrad.spill.offload.needs import ALONE, Sharing
from spillgrad.spill.offload.training import FRAMEWORK
from spillgrad.spill.planning.formats import EXACTLY, Formats
from spillgrad.spill.planning.record import Recorder, Unit
from spillgrad.spill.planning.temporary_folder import temporary_folder
from spillgrad.spill.save_on_disk import save_on_disk
from spillgrad.spill.tensor_memory import Spilled
from spillgrad.storage.counters import rss_bytes
from spillgrad.storage.disk import halves
from spillgrad.storage.disk.source_file import SourceExtent
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.residency.belady import PHASES, Event, Item
from spillgrad.storage.store import Handle, Label
from spillgrad.tensor import Tensor
from spillgrad_kernels.memory import buffers

# The number of layers that run. The first may differ from the others; the second is measured for all others.
_SHALLOW = 2
# Units that are not layers. OUTSIDE runs before or around the layers. HEAD is what backward runs before the last layer.
OUTSIDE, HEAD = -1, -2
# Measuring ends after this number of steps, or after this time.
_STEPS = 4
_MEASURED_S = 8.0
# The most tokens of a text that a model continues. Fewer would be too little for kernels of several threads.
_PROMPT = 64
# Measured memory is rounded up to multiples of this; two measurements differ by about as much.
_STEP_BYTES = 2 << 20
# The interval at which memory is measured.
_LOOK_EVERY_S = 1e-3
# So small that each step scales its gradients, as steps of a training may.
MAX_GRAD_NORM = 1e-3

MakeOptimizer = Callable[[list[Parameter]], Optimizer]
Step = Callable[[Module], Tensor]


@dataclasses.dataclass(frozen=True)
class Profile:
    """The measurements of a training step of a model with at most two layers.

    A unit is the number of a layer, or OUTSIDE, or HEAD. An event refers to its item by number. Times are computing
    times of one batch.

    Parameters
    ----------
    layers : str or None
        Path of the list of layers, of which two ran; None if the whole model ran.
    offload : bool
        Whether parameters and optimizer state were on disk too.
    parameter_bytes : dict
        By unit, bytes of the parameters and buffers, among them the codes of quantized weights.
    trained_bytes : dict
        By unit, bytes of the parameters that require gradients.
    items : list of Item
        The arrays in the store.
    units : list of int
        For each item, its unit.
    freed_by : list of frozenset
        For each item, the paths of the modules whose recomputation frees it.
    events : list of Event
        What happened to the items. If a step has several batches, these are the events of the last batch and of the
        update.
    phase_s : dict
        By phase, its time.
    layer_s : dict
        By phase, the time of the last layer.
    recomputable : list of Unit
        Layers, and their parts, that may be recomputed.
    held : dict
        By phase and unit, the peak memory of arrays outside the store.
    least_budget : int
        The least budget in bytes with which the store works.
    state_bytes : dict
        By unit, the bytes of the optimizer's state.
    base_bytes : int
        Memory of the process without arrays.
    mapped_per_live : float
        Memory that is mapped for each byte of a live array.
    accumulate : int, default 1
        Number of batches in a step.
    accumulated : frozenset of int, optional
        Items that exist since a step's first batch: gradients.
    trained : tuple, optional
        For each parameter that requires a gradient, in the model's order: its unit, its dtype, and its elements.
    frozen : tuple, optional
        The same for each other parameter.
    parameters : dict, optional
        By unit, the number of parameters; a quantized weight has as many as the matrix that it stands for.
    formats : Formats, optional
        How weights and state are stored.
    """

    layers: str | None
    offload: bool
    parameter_bytes: dict[int, int]
    trained_bytes: dict[int, int]
    items: list[Item]
    units: list[int]
    freed_by: list[frozenset[str]]
    events: list[Event]
    phase_s: dict[str, float]
    layer_s: dict[str, float]
    recomputable: list[Unit]
    held: dict[tuple[str, int], int]
    least_budget: int
    state_bytes: dict[int, int]
    base_bytes: int
    mapped_per_live: float
    accumulate: int = 1
    accumulated: frozenset[int] = frozenset()
    trained: tuple[tuple[int, np.dtype, int], ...] = ()
    frozen: tuple[tuple[int, np.dtype, int], ...] = ()
    parameters: dict[int, int] = dataclasses.field(default_factory=dict)
    formats: Formats = EXACTLY


def profile(
    build: Callable[[int], Module], depth: int, step: Step, make_optimizer: MakeOptimizer,
    directory: str | os.PathLike[str], *, ram_budget: int, offload: bool, mixed_precision: bool = False,
    accumulate: int = 1, busy_s_per_byte: float = 0.0, sharing: Sharing = ALONE, steps_in_backward: bool = True,
    formats: Formats = EXACTLY, like: Profile | None = None,
) -> Profile:  # fmt: skip
    """Build a model of at most two layers, train it for a few steps, and return the measurements.

    Parameters
    ----------
    build : callable
        Function that returns a model with a given number of layers.
    depth : int
        Number of layers of the whole model.
    step : callable
        Function from the model to the loss of a batch.
    make_optimizer : callable
        Function from the list of trained parameters to the optimizer.
    directory : str or path
        Folder for the spill files.
    ram_budget : int
        The most bytes that the store keeps in RAM.
    offload : bool
        Whether the store holds parameters, gradients and the optimizer's state, in addition to saved tensors.
    mixed_precision : bool, default False
        Whether products are computed in bfloat16.
    accumulate : int, default 1
        Number of batches before each update.
    busy_s_per_byte : float, default 0.0
        Seconds of the processor for each byte that the store moves; they do not count as computing.
    sharing : Sharing, optional
        The processes that will train together, for the least budget. This process trains alone.
    steps_in_backward : bool, default True
        Whether backward updates offloaded parameters, if a step has one batch.
    formats : Formats, optional
        How weights and state are stored.
    like : Profile, optional
        A profile of the same model, offloaded likewise, in other formats. Then one step is measured, and forward and
        backward take the times of that profile: formats change the update.

    Returns
    -------
    Profile
        The measurements.

    Raises
    ------
    BudgetError
        If the budget is too small for a layer.
    """
    state = default_generator.get_state()
    with temporary_folder(directory, "plan-") as place:
        watched = _Watched(
            build, depth, step, make_optimizer, place, ram_budget, offload, mixed_precision, accumulate,
            steps_in_backward and accumulate == 1, formats,
        )  # fmt: skip
        watched.busy_s_per_byte, watched.sharing = busy_s_per_byte, sharing
        try:
            found = watched.profile(_STEPS) if like is None else _timed_as(like, watched.profile(1))
            watched.use_between_steps()  # the next process, which trains, is to find all kernels on disk
            return found
        finally:
            watched.close()
            default_generator.set_state(state)
            del watched
            gc.collect()  # so that its memory does not count in the next profile
            buffers.empty_cache()


def _timed_as(like: Profile, found: Profile) -> Profile:
    """Return a profile with the times that another one has of forward and backward."""
    phase_s = {**like.phase_s, "update": found.phase_s["update"]}
    return dataclasses.replace(found, phase_s=phase_s, layer_s=like.layer_s)


def in_steps(nbytes: float) -> int:
    """Return a measured number of bytes, rounded up, as repeated measurements differ a little."""
    return math.ceil(nbytes / _STEP_BYTES) * _STEP_BYTES


class _Watched:
    """A model in training, with the instruments that measure it."""

    def __init__(
        self, build: Callable[[int], Module], depth: int, step: Step, make_optimizer: MakeOptimizer, place: str,
        ram_budget: int, offload: bool, mixed_precision: bool, accumulate: int, steps_in_backward: bool,
        formats: Formats,
    ) -> None:  # fmt: skip
        self._steps_in_backward, self.sharing, self._formats = steps_in_backward, ALONE, formats
        self.others_bytes = buffers.memory_stats().live_bytes  # of arrays outside the model
        self._loss, self._mixed_precision, self._accumulate = step, mixed_precision, accumulate
        self._offload: disk_offload | None = None
        if offload:
            self._offload = _TracedOffload(
                lambda: build(min(depth, _SHALLOW)),
                make_optimizer,
                place,
                ram_budget=ram_budget,
                step_in_backward=steps_in_backward,  # as in training: with several batches, gradients accumulate first
                max_grad_norm=MAX_GRAD_NORM,
                **formats._asdict(),
            )
            self.model, optimizer = self._offload.model, self._offload.optimizer
            self.spill = _Watching(self, self._offload)
        else:
            self.model = build(min(depth, _SHALLOW))
            optimizer = formats.in_ram(self.model, make_optimizer)
            self.spill = _Watching(self, place, ram_budget=ram_budget)
        self.optimizer = cast(Optimizer, optimizer)
        self.store = cast(_TracedStore, self.spill._store)
        self.layers = _layers(self.model, _SHALLOW) if depth > _SHALLOW else None
        self.recorder = Recorder()
        self.trace = _Trace(self.store, self)
        self.busy_s_per_byte = 0.0  # time of the processor for each byte that the store moves
        self.phase, self.unit = "", OUTSIDE
        self.marks: dict[str, float] = {}  # the times at which phases began, and layers in backward
        self.moved: dict[str, int] = {}  # the bytes that the store had moved when a phase began

    def close(self) -> None:
        self.trace.stop()
        self.store.close()

    def now_s(self) -> float:
        """Return a time that does not advance while a thread waits for the disk."""
        return time.perf_counter() - self.store.waited_s

    def enter(self, phase: str) -> None:
        """Begin a phase: record its time, and the bytes that the store has moved so far."""
        self.store.see_to_drops()  # so that drops count in the phase that made them
        self.phase, self.unit = phase, HEAD if phase == "backward" else OUTSIDE
        self.marks[phase] = self.now_s()
        stats = self.store.stats()
        self.moved[phase] = stats.written_bytes + stats.read_bytes

    def unit_of(self, path: str) -> int:
        """Return the number of the layer that contains the module at `path`, or OUTSIDE if no layer does."""
        if self.layers is None or not is_within(path, self.layers) or path == self.layers:
            return OUTSIDE
        number = path[len(self.layers) + 1 if self.layers else 0 :].partition(".")[0]
        return int(number) if number.isdigit() else OUTSIDE

    def around(self, path: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward, and record its time and its unit."""
        outer, self.unit = self.unit, self.unit_of(path)
        try:
            return self.recorder.forward(path, forward, args, kwargs, self.now_s)
        finally:
            self.unit = outer

    def unpacked(self, path: str) -> None:
        """Record that backward uses a tensor that the module at `path` saved."""
        unit = self.unit_of(path)
        if self.phase == "backward" and (unit != OUTSIDE or self.unit != HEAD):
            self.unit = unit
            self.marks.setdefault(f"backward of {unit}", self.now_s())

    def step(self) -> None:
        for _ in range(min(self._accumulate, 2)):  # the second batch stands for all that add to existing gradients
            self._pass()
        if self._offload is None or not self._steps_in_backward:
            self.enter("update")
            if self._offload is None:
                clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
            self.optimizer.step()
        if "update" not in self.marks:  # a frozen model
            self.enter("update")
        self.optimizer.zero_grad()
        self.enter("end")

    def use_between_steps(self) -> None:
        """Evaluate a language model, and have it continue a text: both use kernels that a step does not."""
        self.trace.stop()
        if not isinstance(self.model, LanguageModel):  # nobody knows how others are used
            return
        prompt = np.zeros((1, min(_PROMPT, -(-self.model.config.context // 2))), np.int64)
        precision = autocast("cpu") if self._mixed_precision else contextlib.nullcontext()
        self.model.eval()
        with contextlib.suppress(BudgetError), no_grad(), precision:
            self._loss(self.model)
            self.model.generate(prompt, 2)

    def _pass(self) -> None:
        """Run forward and backward on a batch; the records of this batch replace those of the batch before."""
        self.recorder, self.marks, self.moved = Recorder(), {}, {}
        self.trace.begin()
        self.enter("forward")
        precision = autocast("cpu") if self._mixed_precision else contextlib.nullcontext()
        with self.spill, around_forward(self, self.around), precision:
            loss = self._loss(self.model)
        self.enter("backward")
        (loss if self._accumulate == 1 else loss * (1 / self._accumulate)).backward()

    def profile(self, steps: int) -> Profile:
        self.step()  # compiles kernels and creates the optimizer's state
        phases: list[dict[str, float]] = []
        layers: list[dict[str, float]] = []
        began_s = time.perf_counter()
        with _Sampler(self) as sampler:
            # On a busy machine, the thread that looks may not run in a short step.
            while not phases or (
                (len(phases) < steps or not sampler.has_seen("forward", "backward"))
                and time.perf_counter() - began_s < _MEASURED_S
            ):
                self.step()
                phases.append(self._phase_s())
                layers.append(self._layer_s())
        parameter_bytes: dict[int, int] = collections.defaultdict(int)
        trained_bytes: dict[int, int] = collections.defaultdict(int)
        state_bytes: dict[int, int] = collections.defaultdict(int)
        parameters: dict[int, int] = collections.defaultdict(int)
        for name, tensor in FRAMEWORK.named_tensors(self.model, True):
            parameter_bytes[self.unit_of(name)] += tensor.nbytes
            if tensor.requires_grad:
                trained_bytes[self.unit_of(name)] += tensor.nbytes
                state = self.optimizer.state.get(tensor, {}).values()
                state_bytes[self.unit_of(name)] += sum(each.nbytes for each in state if isinstance(each, Tensor))
        for name, parameter in self.model.named_parameters():
            parameters[self.unit_of(name)] += parameter.numel()
        for path, module in self.model.named_modules():
            parameters[self.unit_of(path)] += quantized_numbers(module)
        return Profile(
            layers=self.layers,
            offload=self._offload is not None,
            parameters=dict(parameters),
            parameter_bytes=dict(parameter_bytes),
            trained_bytes=dict(trained_bytes),
            items=self.trace.items,
            units=[self.unit_of(label.module or "") for label in self.trace.labels],
            freed_by=self._freed_by(),
            events=self.trace.events,
            phase_s=_medians(phases),
            layer_s=_medians(layers),
            recomputable=self.recorder.units(),
            held=dict(sampler.held),
            least_budget=0 if self._offload is None else self._offload._needs(self.sharing).ram.nbytes,
            state_bytes=dict(state_bytes),
            base_bytes=in_steps(sampler.base_bytes),
            mapped_per_live=sampler.mapped_bytes / max(1, sampler.live_bytes),
            accumulate=self._accumulate,
            accumulated=self._accumulated(),
            trained=self._kinds(requires_grad=True),
            frozen=self._kinds(requires_grad=False),
            formats=self._formats,
        )

    def _kinds(self, requires_grad: bool) -> tuple[tuple[int, np.dtype, int], ...]:
        """Return the unit, the dtype and the elements of each parameter that requires a gradient, or of the others."""
        return tuple(
            (self.unit_of(name), parameter.numpy_dtype, parameter.numel())
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad == requires_grad
        )

    def _phase_s(self) -> dict[str, float]:
        """Return the seconds of each phase, without the processor's time for the bytes that the store moved."""
        names = (*PHASES, "end")
        taken = {}
        for name, following in itertools.pairwise(names):
            busy_s = (self.moved[following] - self.moved[name]) * self.busy_s_per_byte
            taken[name] = max(0.0, self.marks[following] - self.marks[name] - busy_s)
        return taken

    def _layer_s(self) -> dict[str, float]:
        if self.layers is None:
            return {"forward": 0.0, "backward": 0.0}
        last = _SHALLOW - 1
        prefix = f"{self.layers}." if self.layers else ""
        begin, end = self.marks[f"backward of {last}"], self.marks[f"backward of {last - 1}"]
        return {"forward": self.recorder.seconds[f"{prefix}{last}"], "backward": end - begin}

    def _accumulated(self) -> frozenset[int]:
        """Return the item numbers of the gradients that exist before the last batch; with one batch, an empty set."""
        made = {event.item for event in self.trace.events if event.kind == "put"}
        gradients = {number for number, label in enumerate(self.trace.labels) if label.op == "gradient"}
        return frozenset(gradients - made) if self._accumulate > 1 else frozenset()

    def _freed_by(self) -> list[frozenset[str]]:
        parts = [part.path for unit in self.recorder.units() for part in (unit.whole, *unit.children)]
        freed = {path: self.recorder.freed(path) for path in parts}
        return [frozenset(path for path in parts if key in freed[path]) for key in self.trace.keys]


class _TracedStore(DiskStore):
    """A store whose trace, once it has one, sees the requests."""

    trace: "_Trace | None" = None
    phase: str | None = None
    keeps_all = False  # rows of tables are read, as where the model does not fit

    def begin_phase(self, name: str | None) -> None:
        self.phase = name
        super().begin_phase(name)

    def put(self, array: Any, *args: Any, **options: Any) -> Handle:
        handle = super().put(array, *args, **options)
        if self.trace is not None:
            self.trace.note_put(handle, array)
        return handle

    def get(self, handle: Handle) -> np.ndarray:
        self._note("use", handle)
        return super().get(handle)

    def use(self, handle: Handle) -> None:
        self._note("use", handle)
        super().use(handle)

    def begin_change(self, handle: Handle, array: np.ndarray) -> None:
        self._note("change", handle)
        super().begin_change(handle, array)

    def _note(self, kind: str, handle: Handle) -> None:
        if self.trace is not None:
            self.trace.note_use(kind, handle)


class _TracedOffload(disk_offload):
    _kind_of_store = _TracedStore


class _Watching(save_on_disk):
    """A `save_on_disk` that reports which module saves a tensor, and when backward uses the tensor."""

    _kind_of_store = _TracedStore

    def __init__(self, watched: _Watched, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._watched = watched

    def pack_hook(self, tensor: Tensor) -> Any:
        packed = super().pack_hook(tensor)
        path = labels.current.module or ""
        if isinstance(packed, Spilled):
            storage = tensor.storage
            self._watched.recorder.save(path, storage.uid, storage.array.nbytes)
            if isinstance(packed.held, Handle):
                self._watched.trace.name(packed.held, storage.uid)
        return path, packed

    def unpack_hook(self, packed: Any) -> Tensor:
        path, inner = packed
        self._watched.unpacked(path)
        return super().unpack_hook(inner)


class _Trace:
    """Records the requests to a store as `Event`s, and the arrays that the requests refer to as `Item`s."""

    def __init__(self, store: _TracedStore, watched: _Watched) -> None:
        self._store, self._watched = store, watched
        self._live: set[int] = set()  # the sequence numbers of live handles
        self.begin()
        store.trace = self
        store.watch_drops(self._dropped)

    def begin(self) -> None:
        """Drop all records."""
        self.items: list[Item] = []
        self.labels: list[Label] = []
        self.keys: list[Any] = []
        self.events: list[Event] = []
        self._numbers: dict[int, int] = {}  # the item of each handle, by its sequence number

    def stop(self) -> None:
        self._store.trace = None
        self._store.watch_drops(None)

    def name(self, handle: Handle, key: Any) -> None:
        """Record the key of the memory that a handle refers to."""
        self.keys[self._number(handle)] = key

    def note_put(self, handle: Handle, array: Any) -> None:
        """Record that an array was put, unless it was there already."""
        if handle.sequence not in self._live:
            self._live.add(handle.sequence)
            self._note("put", handle)
            if getattr(handle, "persistent", False) and isinstance(array, np.ndarray):
                self._set_in_halves(handle, halves.encoding_of(array) is not None)

    def _set_in_halves(self, handle: Handle, in_halves: bool) -> None:
        number = self._number(handle)
        self.items[number] = self.items[number]._replace(in_halves=in_halves)

    def note_use(self, kind: str, handle: Handle) -> None:
        """Record that an array will be used ("use") or changed ("change")."""
        self._store.see_to_drops()  # so that they are recorded before this use
        if handle.label.op == "state" and self._watched.phase == "backward":
            self._watched.enter("update")
        self._note(kind, handle)
        if kind == "change" and self._store.phase != "update":
            # The sum of two bfloat16 numbers is none. A gradient that an update changes is dropped then.
            self._set_in_halves(handle, False)

    def _dropped(self, handle: Handle) -> None:
        self._live.discard(handle.sequence)
        self._note("drop", handle)

    def _note(self, kind: str, handle: Handle) -> None:
        if self._watched.phase in ("forward", "backward", "update"):
            self.events.append(Event(kind, self._number(handle), self._watched.phase))

    def _number(self, handle: Handle) -> int:
        number = self._numbers.get(handle.sequence)
        if number is None:
            number = self._numbers[handle.sequence] = len(self.items)
            # A gradient lives from backward to its update only, so no step begins with it.
            is_persistent = bool(getattr(handle, "persistent", False)) and handle.label.op != "gradient"
            source = getattr(handle, "extent", None)
            if not isinstance(source, SourceExtent):
                source = None
            in_halves = source is not None and 2 * source.stored_bytes == handle.nbytes
            self.items.append(Item(handle.nbytes, is_persistent, source is not None, in_halves))
            self.labels.append(handle.label)
            self.keys.append(None)
        return number


class _Sampler:
    """A thread that measures the memory in use, by phase and unit."""

    def __init__(self, watched: _Watched) -> None:
        self._watched = watched
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spillgrad-plan", daemon=True)
        self.held: dict[tuple[str, int], int] = {}
        self.live_bytes = self.mapped_bytes = self.base_bytes = 0

    def __enter__(self) -> "_Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self._look()

    def has_seen(self, *phases: str) -> bool:
        """Return whether each of the phases was looked at."""
        return set(phases) <= {phase for phase, _ in list(self.held)}

    def _run(self) -> None:
        while not self._done.wait(_LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        where = self._watched.phase, self._watched.unit
        in_store_before = self._watched.store.ram_bytes
        pool = buffers.memory_stats()
        in_store = max(in_store_before, self._watched.store.ram_bytes)  # it may change between the readings
        beside_bytes = pool.live_bytes - self._watched.others_bytes - in_store
        self.live_bytes = max(self.live_bytes, pool.live_bytes)
        self.mapped_bytes = max(self.mapped_bytes, pool.mapped_bytes)
        self.held[where] = max(self.held.get(where, 0), beside_bytes)
        # The most: a buffer that a read has just begun to fill is mapped, but not in memory.
        resident_bytes = rss_bytes()
        mapped_bytes = max(pool.mapped_bytes, buffers.memory_stats().mapped_bytes)
        self.base_bytes = max(self.base_bytes, resident_bytes - mapped_bytes)


def _layers(model: Module, count: int) -> str | None:
    """Return the path of the outermost list with `count` numbered modules in a model; None if there is no such list."""
    numbered: collections.Counter[str] = collections.Counter()
    for path, _ in model.named_modules():
        outer, _, name = path.rpartition(".")
        if name.isdigit():
            numbered[outer] += 1
    found = [outer for outer, times in numbered.items() if times == count and "*" not in pattern(outer)]
    return min(found, key=len) if found else None


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
