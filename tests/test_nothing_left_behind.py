"""Whatever a program does with `save_on_disk`: no file, descriptor, thread, lock or byte is left."""

import functools
import gc
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import SpillError
from spillgrad.storage.runs import run_directory
from tests.open_files import open_files_below
from tests.waiting import wait_until

ARRAY = np.random.default_rng(0).standard_normal((80, 60)).astype(np.float32)
ROOT = str(Path(__file__).parents[1])
BUDGETS = [0, 3 * ARRAY.nbytes, "1GiB"]
# Whatever the spill objects of a test are asked for, and where.
Make = Callable[[], sg.save_on_disk]


def weight() -> sg.Tensor:
    return sg.tensor(ARRAY, requires_grad=True)


def graph(w: sg.Tensor) -> sg.Tensor:
    """A graph that saves seven arrays."""
    return (w.exp().sin() * (w * 0.5).tanh().exp()).cos().sum()


@functools.cache
def wanted_grad() -> np.ndarray:
    w = weight()
    graph(w).backward()
    return w.grad.numpy()


@pytest.fixture(params=BUDGETS, ids=["budget 0", "little budget", "large budget"])
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make spill objects in a directory; after the test nothing may be left of them but memory given back."""
    place = tmp_path / "spill"
    locks = set(run_directory.own_runs)
    left = []

    def make_one() -> sg.save_on_disk:
        spill = sg.save_on_disk(place, ram_budget=request.param)
        left.append((spill._store._state, spill._store._room))
        return spill

    yield make_one
    assert left
    gc.collect()
    wait_until(lambda: list(place.iterdir()) == [])
    wait_until(lambda: open_files_below(place) == {})
    wait_until(lambda: run_directory.own_runs == locks)
    for state, room in left:
        tier = state.tier
        assert state.entries == {}
        assert state.readers == room.waiting_puts == state.counters.live_bytes == 0
        wait_until(lambda tier=tier: (tier.drop_dead(), tier.used_bytes)[1] == 0)
        assert (tier.pinned_bytes, tier.dirty.nbytes) == (0, 0)


def test_open_files_are_found_while_other_threads_open_and_close_some(tmp_path: Path):
    path = tmp_path / "file"
    path.touch()
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            for fd in [os.open(path, os.O_RDONLY) for _ in range(20)]:
                os.close(fd)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    with path.open() as file:
        for thread in threads:
            thread.start()
        try:
            assert all(file.fileno() in open_files_below(tmp_path) for _ in range(500))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert open_files_below(tmp_path) == {}


def test_after_a_forward_without_backward(make: Make):
    with make():
        graph(weight())


def test_after_an_exception_in_mid_forward(make: Make):
    with pytest.raises(ZeroDivisionError), make():
        kept = graph(weight())
        1 / 0  # noqa: B018
    del kept


@pytest.mark.parametrize("seed", range(3))
def test_after_graphs_dropped_and_used_out_of_order(make: Make, seed: int):
    rng = random.Random(seed)
    spill = make()
    weights = [weight() for _ in range(12)]
    graphs = {}
    for i, w in enumerate(weights):
        with spill:
            graphs[i] = graph(w)
        if rng.random() < 0.3:
            del graphs[rng.choice(list(graphs))]
    for i in rng.sample(list(graphs), len(graphs)):
        loss = graphs.pop(i)
        if rng.random() < 0.5:
            loss.backward()
            np.testing.assert_array_equal(weights[i].grad.numpy(), wanted_grad())


def test_after_retained_graphs(make: Make):
    spill, w = make(), weight()
    with spill:
        loss = graph(w)
    for last in (False, False, True):
        w.grad = None
        loss.backward(retain_graph=not last)
        np.testing.assert_array_equal(w.grad.numpy(), wanted_grad())
    assert spill.stats().live_bytes == 0


def test_after_a_double_backward(make: Make):
    spill, w, v = make(), weight(), weight()
    for x, context in ((w, spill), (v, sg.enable_grad())):
        with context:
            (g,) = sg.grad(graph(x), x, create_graph=True)
            (g * g).sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), v.grad.numpy())


def test_after_peeking_at_saved_values(make: Make):
    spill, w = make(), weight()
    with spill:
        y = w.exp()
        loss = (y * y.sin()).sum()
    wanted = y.numpy().copy()
    peeked = [y.grad_fn._saved_result for _ in range(3)]
    loss.backward()
    del y, loss
    for each in peeked:  # they outlive their graph
        np.testing.assert_array_equal(each.numpy(), wanted)
    with spill:  # and may be saved again
        (peeked[0].detach() * weight()).sum().backward()


def test_after_nested_contexts(make: Make):
    outer, inner, w = make(), make(), weight()
    with outer:
        x = w.exp()
        with inner, outer, inner:
            x = x.sin() * (w * 0.5).tanh().exp()
        loss = x.cos().sum()
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), wanted_grad())


def test_after_several_contexts_at_once(make: Make):
    spills = [make() for _ in range(4)]
    weights = [weight() for _ in spills]
    with sg.enable_grad():
        losses = []
        for spill, w in zip(spills, weights, strict=True):
            with spill:
                losses.append(graph(w))
    sum(losses[1:], losses[0]).backward()
    for w in weights:
        np.testing.assert_array_equal(w.grad.numpy(), wanted_grad())


def test_after_two_threads_go_backward_through_one_object(make: Make):
    """Forward runs here; what one thread reads back, the other may need at the same moment."""
    spill = make()
    shared = sg.tensor(ARRAY)
    for _ in range(5):
        weights = [weight() for _ in range(2)]
        with spill:
            losses = [((w * shared).exp() * shared).sum() for w in weights]
        threads = [threading.Thread(target=loss.backward) for loss in losses]
        del losses
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del threads, thread
        for w in weights:
            np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY * ARRAY) * ARRAY * ARRAY, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_after_a_fork_between_forward_and_backward(make: Make):
    spill, w = make(), weight()
    with spill:
        loss = graph(w)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            loss.backward()
        except SpillError as error:
            if "belongs to process" in str(error):
                own, v = make(), weight()
                with own:
                    graph(v).backward()
                place = own.directory
                del own
                wait_until(lambda: not place.exists())
                status = 7 if (v.grad.numpy() == wanted_grad()).all() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), wanted_grad())


SPAWNED = """
    import sys
    sys.path[:] = sys.argv[2:]
    from tests.test_nothing_left_behind import graph, sg, wanted_grad, weight
    w = weight()
    with sg.save_on_disk(sys.argv[1], ram_budget=0):
        graph(w).backward()
    assert (w.grad.numpy() == wanted_grad()).all()
"""


def test_after_a_spawned_child_beside_a_graph(make: Make):
    spill, w = make(), weight()
    with spill:
        loss = graph(w)
    command = [sys.executable, "-c", textwrap.dedent(SPAWNED), str(spill.directory.parent), ROOT, *sys.path]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert list(spill.directory.parent.iterdir()) == [spill.directory]
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), wanted_grad())
