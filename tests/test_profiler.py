"""Profiles: every event is noted once, lies within the right ones, and belongs to its module."""

import gzip
import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, GraphError, UnsupportedError
from spillgrad.profiler import PYTHON, ProfilerAction, profile, record_function, schedule

WIDTH = 200


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.last(sg.tanh(self.norm(self.first(x))))


@pytest.fixture(scope="module")
def found() -> profile:
    net, x = Net(), sg.randn(400, WIDTH)
    net(x).sum().backward()  # compiles
    with profile() as prof, record_function("all"):
        net(x).sum().backward()
    return prof


def test_operations_and_nodes_are_noted_once(found):
    names = Counter((event.kind, event.name) for event in found.events())
    assert names["operation", "linear"] == names["backward", "LinearBackward0"] == 2
    assert names["operation", "tanh"] == names["backward", "TanhBackward0"] == 1
    assert names["label", "all"] == 1
    assert names["backward", "AccumulateGrad"] == 6
    assert names["operation", "AccumulateGrad"] == 0


def test_kernels_lie_within_the_operation_that_launches_them(found):
    averages = {average.key: average for average in found.key_averages()}
    whole = averages["all"]
    assert 0 < averages["LinearBackward0"].self_ns < averages["LinearBackward0"].total_ns < whole.total_ns
    assert sum(average.self_ns for average in averages.values()) == pytest.approx(whole.total_ns, rel=0.05)
    assert averages["linear"].cpu_time == pytest.approx(averages["linear"].cpu_time_total / 2)


def test_kernels_of_forward_and_backward_belong_to_their_module(found):
    modules = found.by_module()
    assert {"first", "norm", "last"} <= modules.keys() <= {"first", "norm", "last", ""}
    assert modules["first"].keys() >= {"matrix products"}
    assert modules["norm"].keys() == {"other kernels"}
    products = [e for e in found.events() if e.kind == "kernel" and e.name.startswith("product")]
    assert Counter(event.module for event in products) == {"first": 2, "last": 3}  # x needs no gradient


def test_categories_add_up_to_the_time_of_the_profile(found):
    categories = found.by_category()
    assert sum(categories.values()) == pytest.approx(found.duration_ns / 1e9)
    assert categories["matrix products"] > 0
    assert categories[PYTHON] > 0


def test_a_table_sorts_and_shortens(found):
    lines = found.key_averages().table(sort_by="cpu_time_total", row_limit=2).splitlines()
    assert lines[1].split()[:3] == ["Name", "Self", "CPU"]
    assert lines[3].startswith("all ")
    assert len(lines) == 7
    assert len(found.key_averages().table(row_limit=-1).splitlines()) == 5 + len(found.key_averages())
    with pytest.raises(ArgumentError, match="sort by one of cpu_time_total"):
        found.key_averages().table(sort_by="cuda_time")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_has_every_event_for_perfetto(found, tmp_path: Path, name: str):
    found.export_chrome_trace(tmp_path / name)
    raw = (tmp_path / name).read_bytes()
    trace = json.loads(gzip.decompress(raw) if name.endswith("gz") else raw)["traceEvents"]
    assert len(trace) == len(found.events())
    for event in trace:
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["tid"] == 0
    assert {event["args"]["module"] for event in trace} >= {"first", "norm", "last"}


def test_kernels_that_need_no_second_thread_are_noted_too():
    x = sg.ones(3, 3, requires_grad=True)
    for _ in range(2):
        y = sg.tanh(x @ x)
    with profile() as prof:
        y = sg.tanh(x @ x)
    kernels = [event.name for event in prof.events() if event.kind == "kernel"]
    assert [name.partition(".")[0] for name in kernels] == ["product", "elementwise"]
    assert y.shape == (3, 3)


def test_results_are_those_without_a_profile():
    net, x = Net(), sg.randn(50, WIDTH)
    net(x).sum().backward()
    wanted = [p.grad.numpy().copy() for p in net.parameters()]
    net.zero_grad()
    with profile():
        net(x).sum().backward()
    for parameter, grad in zip(net.parameters(), wanted, strict=True):
        assert (parameter.grad.numpy() == grad).all()


def test_a_schedule_says_which_steps_are_recorded():
    action = schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    none, warmup, record, save = ProfilerAction
    assert [action(step) for step in range(10)] == [none, *([none, warmup, record, save] * 2), none]
    assert schedule(wait=2, warmup=0, active=1, skip_first_wait=1)(0) is save
    with pytest.raises(ArgumentError, match="active must be at least 1"):
        schedule(wait=0, warmup=0, active=0)


def test_steps_are_handed_over_as_scheduled():
    handed: list[list[str]] = []
    x = sg.randn(3, requires_grad=True)

    def ready(prof: profile) -> None:
        handed.append([event.name for event in prof.events() if event.kind != "kernel"])

    with profile(schedule=schedule(wait=1, warmup=0, active=2), on_trace_ready=ready) as prof:
        for number in range(6):
            (x * x if number % 2 else x + x).sum()
            prof.step()
    assert handed == [
        ["ProfilerStep#1", "mul", "sum", "ProfilerStep#2", "add", "sum"],
        ["ProfilerStep#4", "add", "sum", "ProfilerStep#5", "mul", "sum"],
    ]


def test_without_a_profile_nothing_is_noted(found):
    before = len(found.events())
    (sg.randn(500, 500, requires_grad=True) * 2).sum().backward()
    with record_function("later"):
        pass
    assert len(found.events()) == before


def test_labels_decorate_functions():
    @record_function("step")
    def step() -> int:
        return 1

    with profile() as prof:
        assert step() == step() == 1
    assert [event.name for event in prof.events()] == ["step", "step"]


def test_only_one_profile_runs_at_a_time():
    with profile(), pytest.raises(GraphError, match="another profile is running"), profile():
        pass
    with profile():
        pass


def test_threads_have_events_of_their_own():
    def work() -> None:
        (sg.randn(500, 500, requires_grad=True) * 2).sum().backward()

    with profile() as prof:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        work()
    assert len({event.thread for event in prof.events()}) == 2
    kernels = {event.thread: event.ns for event in prof.events() if event.kind == "kernel"}
    assert len(kernels) == 2
    assert sum(prof.by_category().values()) == pytest.approx(prof.duration_ns / 1e9)


def test_custom_functions_are_noted():
    class Scale(sg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = sg.ones(3, requires_grad=True)
    with profile() as prof:
        Scale.apply(x).sum().backward()
    assert (x.grad.numpy() == 2).all()
    assert {("operation", "Scale"), ("backward", "ScaleBackward")} <= {(e.kind, e.name) for e in prof.events()}


def test_what_runs_unrecorded_is_no_part_of_the_next_operation():
    w = sg.randn(500, 500, requires_grad=True)
    with profile() as prof:
        with sg.no_grad():
            w @ w
        began_ns = time.perf_counter_ns()
        w * 2
    (operation,) = [event for event in prof.events() if event.kind == "operation"]
    assert operation.name == "mul"
    assert operation.began_ns >= began_ns


def test_a_schedule_that_fails_leaves_no_profile_running():
    def fails(step: int) -> ProfilerAction:
        raise ValueError("no")

    prof = profile(schedule=fails)
    with pytest.raises(ValueError, match="no"):
        prof.start()
    prof.stop()
    with profile() as running:
        prof.stop()  # which is not running
        sg.ones(2, requires_grad=True).sum()
    assert running.events()


def test_a_profile_may_record_again():
    prof = profile()
    for _ in range(2):
        with prof:
            (sg.randn(500, 500, requires_grad=True) * 2).sum()
        assert prof.duration_ns > 0
        assert sum(prof.by_category().values()) == pytest.approx(prof.duration_ns / 1e9)


def test_kernels_that_run_while_another_thread_leaves_a_profile_end_well():
    stop, failures = threading.Event(), []

    def work() -> None:
        a = sg.randn(300, 300)
        try:
            while not stop.is_set():
                a @ a
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(300):
        with profile():
            pass
    stop.set()
    thread.join()
    assert not failures


def test_a_profile_and_anomaly_detection_may_be_on_together():
    x = sg.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="Anomaly"), sg.autograd.detect_anomaly(), profile() as prof:
        (x * x).sum().backward()
    assert "MulBackward0" in {event.name for event in prof.events()}
    with pytest.warns(UserWarning, match="Anomaly"), sg.autograd.detect_anomaly():
        y = (x * x).sum()
    assert y.grad_fn.metadata


@pytest.mark.parametrize("option", ["record_shapes", "profile_memory", "with_stack", "with_flops"])
def test_what_a_profile_does_not_have_is_refused(option: str):
    with pytest.raises(UnsupportedError, match=f"leave {option} out"):
        profile(**{option: True})


def test_a_handler_writes_each_trace_to_a_file(tmp_path: Path):
    handler = sg.profiler.tensorboard_trace_handler(tmp_path / "new", worker_name="w", use_gzip=True)
    with profile(on_trace_ready=handler):
        sg.ones(2)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("w.")
    assert path.name.endswith(".pt.trace.json.gz")
