"""`save_on_disk`: what is spilled, what comes back, and when the files go."""

import contextlib
import copy
import dataclasses
import itertools
import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import BudgetError, GraphError, OperandError, SpillCorruptionError, SpillError
from spillgrad.spill.tensor_memory import Spilled, SpilledSmall
from spillgrad.storage import is_ram_disk
from spillgrad_kernels.memory import buffers
from tests.waiting import wait_until

ARRAY = np.random.default_rng(0).standard_normal((80, 60)).astype(np.float32)
NBYTES = ARRAY.nbytes
LARGE = "1GiB"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in which nothing may be left once the test's objects are gone."""
    place = tmp_path / "spill"
    yield place
    wait_until(lambda: files(place) == [])


def files(place: Path) -> list[Path]:
    return sorted(Path(parent, name) for parent, _, names in os.walk(place) for name in names)


def segments(place: Path) -> list[Path]:
    return [path for path in files(place) if path.suffix == ".h5"]


def batch() -> sg.Tensor:
    return sg.tensor(ARRAY)


def weight() -> sg.Tensor:
    return sg.tensor(ARRAY[::-1].copy(), requires_grad=True)


def script(text: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=50)
    return process.returncode, out, err


# What comes back

KINDS: dict[str, Callable[[], sg.Tensor]] = {
    "0-d": lambda: sg.tensor(3.5),
    "no elements": lambda: sg.zeros(0, 3),
    "no elements, strided": lambda: sg.zeros(0, 3)[:, 1:].transpose(0, 1),
    "no elements of many": lambda: batch()[80:],
    "bool": lambda: batch() > 0,
    "uint8": lambda: sg.arange(1000, dtype=sg.uint8),
    "int64": lambda: sg.arange(1000),
    "float16": lambda: batch().to(sg.float16),
    "bfloat16": lambda: batch().to(sg.bfloat16),
    "float64": lambda: batch().to(sg.float64),
    "complex64": lambda: sg.from_numpy(ARRAY.astype(np.complex64)),
    "a slice": lambda: batch()[3:7],
    "every third column": lambda: batch()[:, 1::3],
    "transposed": lambda: batch().t(),
    "bfloat16, transposed slice": lambda: batch().to(sg.bfloat16)[5:, ::2].t(),
    "expanded": lambda: batch().expand(5, 80, 60),
    "an expanded column": lambda: batch()[:, 2:3].expand(80, 7),
    "over a backward base": lambda: sg.from_numpy(ARRAY.copy()[::-1, ::-1]),
    "a view of a backward base": lambda: sg.from_numpy(ARRAY.copy()[::-1, ::-1])[3:, ::2],
    "over a Fortran base": lambda: sg.from_numpy(np.asfortranarray(ARRAY)),
    "a view of a Fortran base": lambda: sg.from_numpy(np.asfortranarray(ARRAY)).t()[2:],
    "over a base with gaps": lambda: sg.from_numpy(ARRAY.copy()[::2, 3:50:4]),
    "over an expanded base": lambda: sg.from_numpy(np.broadcast_to(ARRAY[0], (9, 60))),
    "over a read-only base": lambda: sg.from_numpy(np.frombuffer(ARRAY.tobytes(), np.float32)),
    "over an unaligned base": lambda: sg.from_numpy(np.frombuffer(bytearray(4001), np.float32, offset=1)),
}


@pytest.mark.parametrize("budget", [0, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_comes_back_exactly(directory: Path, kind: str, budget: int | str):
    spill = sg.save_on_disk(directory, ram_budget=budget, min_bytes=0)
    tensor = KINDS[kind]()
    wanted = tensor.numpy().copy()
    packed = spill.pack_hook(tensor)
    del tensor
    for _ in range(2):
        got = spill.unpack_hook(packed)
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        assert got.numpy().tobytes() == wanted.tobytes()
    assert (spill.stats().read_bytes > 0) == (budget == 0 and wanted.size > 0)


DTYPES = [
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

# How a tensor may lie over an array of three axes; and where it comes back with the strides it had.
LAYOUTS: dict[str, Callable[[np.ndarray], sg.Tensor]] = {
    "contiguous": sg.from_numpy,
    "transposed": lambda a: sg.from_numpy(a).transpose(0, 2),
    "permuted": lambda a: sg.from_numpy(a).permute(1, 2, 0),
    "every second and third": lambda a: sg.from_numpy(a)[::2, 1::3],
    "a slice": lambda a: sg.from_numpy(a)[2:5, 1:],
    "a column": lambda a: sg.from_numpy(a)[:, 2:3, 1],
    "expanded": lambda a: sg.from_numpy(a)[:, :1].expand(-1, 7, -1),
    "expanded by an axis": lambda a: sg.from_numpy(a)[1].expand(3, 2, *a.shape[1:]),
    "0-d": lambda a: sg.from_numpy(a)[3, 2, 1],
    "0-d, alone": lambda a: sg.from_numpy(a[3, 2, 1:2].copy().reshape(())),
    "one element": lambda a: sg.from_numpy(a)[2:3, 3:4, 1:2],
    "empty": lambda a: sg.from_numpy(a)[3:3],
    "empty, alone": lambda a: sg.from_numpy(a[:0].copy()),
    "overlapping windows": lambda a: sg.from_numpy(a).unfold(0, 3, 1),
    "as strided": lambda a: sg.from_numpy(a).as_strided((3, 4), (1, 2), 5),
    "bytes": lambda a: sg.from_numpy(a).view(sg.uint8),
    "Fortran": lambda a: sg.from_numpy(np.asfortranarray(a)),
}
LAYOUTS_OF_OTHER_STRIDES: dict[str, Callable[[np.ndarray], sg.Tensor]] = {
    "backward": lambda a: sg.from_numpy(a[::-1, :, ::-2]),
    "a view of a backward base": lambda a: sg.from_numpy(a[:, ::-1])[1:, 1::2],
    "with gaps": lambda a: sg.from_numpy(a[::2, 1:]),
    "broadcast": lambda a: sg.from_numpy(np.broadcast_to(a[:1], a.shape)),
    "read-only": lambda a: sg.from_numpy(np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape)),
    "unaligned": lambda a: sg.from_numpy(np.frombuffer(b"?" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)),
}
STORES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "on disk": ((6, 5, 4), {"ram_budget": 0}),
    "on disk, past the page cache": ((24, 50, 30), {"ram_budget": 0, "direct_io": True}),
    "in RAM": ((24, 50, 30), {"ram_budget": LARGE}),
    "small": ((6, 5, 4), {"ram_budget": "1MiB"}),
    "lossless": ((24, 50, 30), {"ram_budget": 0, "codec": "lossless"}),
    "encrypted": ((6, 5, 4), {"ram_budget": 0, "encrypt": True}),
}


def array_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits, NaNs among them; half of the elements are 0, so that they compress."""
    kind, rng = sg.zeros(1, dtype=dtype).numpy().dtype, np.random.default_rng(0)
    array = np.zeros(shape, kind)
    half = array.size // 2
    bits = rng.integers(0, 2 if dtype == "bool" else 256, half * kind.itemsize, np.uint8)
    array.reshape(-1)[:half] = bits.view(kind)
    return array


@pytest.mark.parametrize("store", STORES)
def test_every_dtype_comes_back_from_every_layout(directory: Path, store: str):
    if store == "encrypted":
        pytest.importorskip("cryptography")
    shape, options = STORES[store]
    spill = sg.save_on_disk(directory, min_bytes=0, **options)
    for dtype, (layout, lay) in itertools.product(DTYPES, (LAYOUTS | LAYOUTS_OF_OTHER_STRIDES).items()):
        tensor = lay(array_of(dtype, shape))
        wanted = tensor.shape, tensor.dtype, tensor.numpy().tobytes()
        strides = tensor.stride()
        packed = [spill.pack_hook(tensor), spill.pack_hook(tensor.detach())]
        del tensor
        got = [spill.unpack_hook(each) for each in (*packed, packed[0])]
        for each in got:
            assert (each.shape, each.dtype, each.numpy().tobytes()) == wanted, (dtype, layout)
            assert each.stride() == strides or layout in LAYOUTS_OF_OTHER_STRIDES, (dtype, layout)
            assert each.storage is got[0].storage or isinstance(packed[0], SpilledSmall), (dtype, layout)


@pytest.mark.parametrize("budget", [0, LARGE])
def test_a_storage_used_by_several_operations_is_stored_once(directory: Path, budget: int | str):
    w, y = weight(), weight()
    spill = sg.save_on_disk(directory, ram_budget=budget)
    with spill:
        x = w * 2  # saves nothing: 2 is a number
        (x * x * x).sum().backward(retain_graph=True)
        stats = spill.stats()
    # Packed: x and x, then x * x and x.
    assert (stats.packed_bytes, stats.deduplicated_bytes) == (4 * NBYTES, 2 * NBYTES)
    assert stats.written_bytes == (2 * NBYTES if budget == 0 else 0)
    (y * 2).pow(3).sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), y.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("budget", [0, LARGE])
def test_views_come_back_over_one_copy_of_their_storage(directory: Path, budget: int | str):
    spill = sg.save_on_disk(directory, ram_budget=budget)
    qkv = batch().reshape(4, 20, 60) * 1.5
    views = [*qkv.split(20, -1), qkv.transpose(0, 2), qkv[1:3].expand(7, 2, 20, 60)]
    wanted = [view.numpy().copy() for view in views]
    packed = [spill.pack_hook(view) for view in views]
    del qkv, views
    stats = spill.stats()
    assert (stats.live_bytes, stats.deduplicated_bytes) == (NBYTES, 4 * NBYTES)
    got = [spill.unpack_hook(each) for each in packed]
    for tensor, array in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert len({tensor.storage for tensor in got}) == 1
    assert spill.stats().read_bytes == (NBYTES if budget == 0 else 0)


@pytest.mark.parametrize("base", ["over an expanded base", "over a base with gaps", "over a Fortran base"])
def test_memory_of_any_layout_is_stored_once_and_without_repetition(directory: Path, base: str):
    spill = sg.save_on_disk(directory, ram_budget=0, min_bytes=0)
    tensor = KINDS[base]()
    packed = [spill.pack_hook(tensor.detach()) for _ in range(3)]
    distinct = 60 * 4 if base == "over an expanded base" else tensor.nbytes
    assert spill.stats().live_bytes == distinct
    assert spill.stats().written_bytes == distinct
    first, second = (spill.unpack_hook(each) for each in packed[:2])
    assert first.storage is second.storage


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (2, 1, 0)])
def test_dense_memory_is_stored_as_it_lies_whatever_the_order_of_axes(directory: Path, order: tuple[int, ...]):
    array = np.random.default_rng(0).random((4, 50, 60)).transpose(order)
    for budget in (0, LARGE):
        spill = sg.save_on_disk(directory, ram_budget=budget)
        tensor = sg.from_numpy(array)
        views = [tensor.detach(), tensor.transpose(0, 2).detach(), tensor[1:, 2:].detach()]
        packed = [spill.pack_hook(view) for view in views]
        assert spill.stats().live_bytes == array.nbytes
        for view, each in zip(views, packed, strict=True):
            np.testing.assert_array_equal(spill.unpack_hook(each).numpy(), view.numpy())
        hot = spill.unpack_hook(packed[0])
        assert (hot.storage is tensor.storage) == np.may_share_memory(hot.numpy(), array) == (budget == LARGE)
        del hot, packed, each, view


def test_memory_with_gaps_is_copied_only_when_there_is_room(directory: Path, monkeypatch: pytest.MonkeyPatch):
    may_write = threading.Event()
    write = os.pwritev

    def late(descriptor: int, buffers: list[Any], place: int) -> int:
        may_write.wait(30)
        return write(descriptor, buffers, place)

    monkeypatch.setattr(os, "pwritev", late)
    first, second = sg.randn(1000, 200), sg.from_numpy(np.ones((1000, 400), np.float32)[:, ::2])
    spill = sg.save_on_disk(directory, ram_budget=first.nbytes)
    kept = spill.pack_hook(first)
    before = buffers.memory_stats().live_bytes
    packed = []
    thread = threading.Thread(target=lambda: packed.append(spill.pack_hook(second)))
    thread.start()
    try:
        wait_until(lambda: spill._store._room.waiting_puts == 1)
        assert buffers.memory_stats().live_bytes == before
    finally:
        may_write.set()
        thread.join()
    np.testing.assert_array_equal(spill.unpack_hook(packed[0]).numpy(), second.numpy())
    np.testing.assert_array_equal(spill.unpack_hook(kept).numpy(), first.numpy())


def test_an_expanded_tensor_costs_its_unexpanded_bytes(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    row = batch()
    with spill:
        loss = (weight() * row.expand(1, 80, 60)).sum() + (sg.randn(50, 1, 1, requires_grad=True) * row).sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()


# What is spilled


def test_parameters_and_their_views_stay_where_they_are(directory: Path):
    layer = sg.nn.Linear(60, 50)
    spill = sg.save_on_disk(directory, ram_budget=0)
    with spill:
        hidden = weight() * 1
        y = hidden @ layer.weight.T
    assert isinstance(y.grad_fn._raw_saved_self.data, Spilled)
    other = y.grad_fn._raw_saved_mat2.data
    assert isinstance(other, sg.Tensor)
    assert other.storage is layer.weight.storage
    assert spill.stats().packed_bytes == NBYTES


def test_data_batches_are_spilled(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    with spill:
        y = batch() * weight()
    assert isinstance(y.grad_fn._raw_saved_self.data, Spilled)
    assert spill.stats().written_bytes == NBYTES


def test_small_tensors_are_not_spilled(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0, min_bytes="1KiB")
    small, large = (sg.zeros(n, dtype=sg.uint8) for n in (1023, 1024))
    assert spill.pack_hook(small) is small
    assert isinstance(spill.pack_hook(large), Spilled)
    # Expanded, it shows many bytes and occupies few.
    row = sg.ones(3).expand(1000, 3)
    assert spill.pack_hook(row) is row


def test_only_what_the_predicate_takes_is_spilled(directory: Path):
    data = batch()
    with sg.save_on_disk(directory, ram_budget=0, only=lambda saved: saved.op == "tanh") as spill:
        y = (weight() * data).tanh()
    assert spill.stats().packed_bytes == NBYTES
    assert isinstance(y.grad_fn._raw_saved_result.data, Spilled)  # type: ignore[union-attr]
    y.sum().backward()
    with pytest.raises(TypeError, match="save_on_disk: got only='tanh'"):
        sg.save_on_disk(directory, ram_budget=0, only="tanh")  # type: ignore[arg-type]


def test_a_small_view_does_not_keep_its_large_storage_in_memory(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    large = batch()
    storage = weakref.ref(large.storage)
    packed = spill.pack_hook(large[1, 3:5])
    del large
    assert storage() is None
    np.testing.assert_array_equal(spill.unpack_hook(packed).numpy(), ARRAY[1, 3:5])


def test_spilled_memory_is_free_between_forward_and_backward(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    with spill:
        hidden = w.exp()
        storage = weakref.ref(hidden.storage)
        loss = hidden.sum()
    del hidden
    assert storage() is None
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY[::-1]), rtol=1e-6)


# In-place changes


@pytest.mark.parametrize("timing", ["hot", "hot and written", "on disk only", "reloaded"])
def test_a_change_in_place_raises_or_the_old_values_come_back(directory: Path, timing: str):
    x, w = batch(), weight()
    spill = sg.save_on_disk(directory, ram_budget=LARGE if timing.startswith("hot") else 0)
    with spill:
        loss = (x * w).sum()
    if timing == "hot and written":
        spill.flush()
    if timing == "reloaded":
        loss.backward(retain_graph=True)
        w.grad = None
    x.add_(1)
    if timing == "hot":
        with pytest.raises(SpillError, match=r"mul\.self was modified in place") as caught:
            loss.backward()
        del caught
        assert w.grad is None
    else:
        loss.backward()
        np.testing.assert_array_equal(w.grad.numpy(), ARRAY)


def test_changes_that_race_with_the_writer_never_give_a_wrong_gradient(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=20 * NBYTES)
    # After how many more arrays an input changes: waiting for the writer, being written, on disk.
    delays = (3, 12, 25)
    came_back, raised = [0, 0, 0], [0, 0, 0]
    for _ in range(8):
        inputs, losses, weights = [], [], []
        for i in range(60):
            inputs.append(sg.full((80, 60), float(i)))
            weights.append(weight())
            with spill:
                losses.append((inputs[i] * weights[i]).sum())
            for number, delay in enumerate(delays):
                if (i - delay) % 3 == number and i >= delay:
                    if number == 2:  # its write began long ago, but its thread may have slept since
                        spilled = losses[i - delay].grad_fn.next_functions[0][0]._raw_saved_self.data
                        wait_until(lambda handle=spilled.held: handle.extent is not None)
                    inputs[i - delay].mul_(2)
        for i, loss in enumerate(losses):
            try:
                loss.backward()
            except SpillError as error:
                assert "mul.self was modified in place" in str(error)
                raised[i % 3] += 1
            else:
                assert (weights[i].grad.numpy() == i).all()
                came_back[i % 3] += 1
        del loss
    assert raised[0] > 0
    assert came_back[2] == 8 * 20


class Careless(sg.autograd.Function):
    """w * x, whose backward changes the x it saved."""

    changed: list[sg.Tensor] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        Careless.changed.append(x)
        return grad * x.mul_(2), None


@pytest.mark.parametrize("base", [batch, KINDS["over a Fortran base"]], ids=["its own memory", "another's memory"])
@pytest.mark.parametrize(
    ("budget", "held", "error"),
    [(0, False, None), (0, True, None), (LARGE, False, "before it was stored")],
    ids=["reloaded again", "the reloaded copy", "hot"],
)
def test_a_backward_that_changes_what_it_saved_spoils_no_other(
    directory: Path, base: Callable[[], sg.Tensor], budget: int | str, held: bool, error: str | None
):
    spill = sg.save_on_disk(directory, ram_budget=budget)
    w, v, x = weight(), weight(), base()
    with spill:
        right, careless = w * x, Careless.apply(v, x)
    del x
    careless.sum().backward()
    if not held:
        Careless.changed.clear()
    if error is None:
        right.sum().backward()
        np.testing.assert_array_equal(w.grad.numpy(), ARRAY)
    else:
        with pytest.raises(SpillError, match=rf"mul\.other was modified in place {error}") as caught:
            right.sum().backward()
        del caught
    Careless.changed.clear()


class Doubling(sg.autograd.Function):
    """w * x, whose backward doubles the x it saved, and holds it no longer."""

    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.mul_(2), None


def test_a_reloaded_copy_kept_for_another_use_is_not_the_one_that_a_backward_changed(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=2 * NBYTES)
    for _ in range(3):  # from the second step on a plan knows that x is used twice
        w, v, x = weight(), weight(), batch()
        before = spill.stats().read_bytes
        with spill:
            loss = (w * x).sum() + Doubling.apply(v, x).sum()
            for _ in range(4):
                loss = loss + (weight() * batch()).sum()
        del x
        loss.backward()
        assert spill.stats().read_bytes - before >= NBYTES
        np.testing.assert_array_equal(w.grad.numpy(), ARRAY)
        np.testing.assert_array_equal(v.grad.numpy(), 2 * ARRAY)
        del loss


ALIASES: dict[str, Callable[[sg.Tensor], object]] = {
    "numpy": lambda x: x.numpy(),
    "DLPack": lambda x: np.from_dlpack(x),
    "a view's numpy": lambda x: x[1:].numpy(),
}


@pytest.mark.parametrize("again", ["by a second node", "by the same node"])
@pytest.mark.parametrize("alias", ALIASES)
def test_what_a_backward_changed_is_not_used_again_though_only_another_librarys_array_is_left_of_it(
    directory: Path, alias: str, again: str
):
    kept: list[object] = []

    class ChangesWhatItSaved(sg.autograd.Function):
        @staticmethod
        def forward(ctx, w, x):
            ctx.save_for_backward(x)
            return w * x.detach()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            result = grad * x
            kept.append(ALIASES[alias](x.mul_(2)))
            return result, None

    w, v, x = weight(), weight(), batch()
    with sg.save_on_disk(directory, ram_budget=0):
        right, careless = w * x, ChangesWhatItSaved.apply(v, x)
    del x
    careless.sum().backward(retain_graph=True)
    if again == "by the same node":
        careless.sum().backward()
        np.testing.assert_array_equal(v.grad.numpy(), 2 * ARRAY)
    right.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), ARRAY)


def test_what_a_backward_changed_is_not_used_again_through_another_object_over_the_same_store(directory: Path):
    model = sg.nn.Linear(3, 3)
    offload = sg.disk_offload(model, sg.optim.SGD(model.parameters(), 0.1), directory, ram_budget=NBYTES // 2)
    w, v, x = weight(), weight(), batch()
    with sg.save_on_disk(offload):
        right = w * x
    with sg.save_on_disk(offload):
        careless = Careless.apply(v, x)
    offload.flush()
    del x
    careless.sum().backward()
    right.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), ARRAY)
    Careless.changed.clear()


# The graph, more than once


@pytest.mark.parametrize("budget", [0, NBYTES, LARGE])
def test_a_retained_graph_runs_again(directory: Path, budget: int | str):
    spill = sg.save_on_disk(directory, ram_budget=budget)
    w = weight()
    with spill:
        loss = (w.exp() * w.sin().exp()).sum()
    loss.backward(retain_graph=True)
    once = w.grad.numpy().copy()
    w.grad = None
    loss.backward()
    np.testing.assert_array_equal(w.grad.numpy(), once)
    with pytest.raises(GraphError, match="a second time"):
        loss.backward()
    wait_until(lambda: spill.stats().live_bytes == 0)


@pytest.mark.parametrize("budget", [0, NBYTES, LARGE])
@pytest.mark.parametrize("second_spilled", [True, False])
def test_double_backward_is_the_same_with_spilling(directory: Path, budget: int | str, second_spilled: bool):
    def second_derivative(first, second):
        x = weight()
        with first:
            y = ((x * 0.5).tanh() * x.exp()).sum()
        with second:
            (g,) = sg.grad(y, x, create_graph=True)
            loss = (g * g).sum()
        loss.backward()
        return x.grad.numpy()

    spill = sg.save_on_disk(directory, ram_budget=budget)
    wanted = second_derivative(sg.enable_grad(), sg.enable_grad())
    got = second_derivative(spill, spill if second_spilled else sg.enable_grad())
    np.testing.assert_array_equal(got, wanted)


def test_what_was_read_back_and_is_saved_again_is_not_stored_again(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    x = weight()
    with spill:
        y = x.exp()
        live = spill.stats().live_bytes
        (g,) = sg.grad(y.sum(), x, create_graph=True)
        del y
        assert live == NBYTES
        assert spill.stats().live_bytes == NBYTES
    g.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(ARRAY[::-1]), rtol=1e-6)


# Lossy codecs

BASES: dict[str, Callable[[], sg.Tensor]] = {
    "dense": lambda: sg.tensor(ARRAY),
    "transposed": lambda: sg.tensor(ARRAY.T.copy()).t(),
    "read-only": lambda: sg.from_numpy(np.frombuffer(ARRAY.tobytes(), np.float32).reshape(ARRAY.shape)),
}
VIEWS: dict[str, tuple[str, Callable[[sg.Tensor], sg.Tensor]]] = {
    "bits": ("dense", lambda x: x.view(sg.int32)),
    "bits of a transposed base": ("transposed", lambda x: x.view(sg.int32)),
    "bits of a read-only base": ("read-only", lambda x: x.view(sg.int32)),
    "some bytes": ("dense", lambda x: x.view(sg.uint8)[3:70, 5::2]),
    "pairs as float64": ("dense", lambda x: x.view(sg.float64)),
    "pairs as complex numbers": ("dense", lambda x: x.view(sg.complex64)),
}


@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("first", ["floats", "view"])
def test_a_lossy_codec_never_alters_what_looks_at_floats_as_something_else(
    directory: Path, codec: str, view: str, first: str
):
    base, looks = VIEWS[view]
    x = BASES[base]()
    tensors = {"floats": x, "view": looks(x)}
    wanted = tensors["view"].numpy().copy()
    spill = sg.save_on_disk(directory, ram_budget=0, codec=codec)
    order = sorted(tensors, key=lambda name: name != first)
    packed = {name: spill.pack_hook(tensors[name]) for name in order}
    for name in order:
        got = spill.unpack_hook(packed[name])
        assert (got.dtype, got.shape) == (tensors[name].dtype, tensors[name].shape)
        if name == "floats":
            assert 0 < np.abs(got.numpy() - ARRAY).max() < 0.02
            got = looks(got)  # as they came back, it is other numbers than those of `x`
            wanted_again = got.numpy().copy()
        else:
            assert got.numpy().tobytes() == wanted.tobytes()
            wanted_again = wanted
        again = spill.unpack_hook(spill.pack_hook(got))
        assert again.numpy().tobytes() == wanted_again.tobytes()


@pytest.mark.parametrize("codec", [None, "lossless"])
def test_without_a_lossy_codec_views_of_all_dtypes_are_stored_once(directory: Path, codec: str | None):
    spill = sg.save_on_disk(directory, ram_budget=0, codec=codec)
    x = batch()
    packed = [spill.pack_hook(tensor) for tensor in (x, x.view(sg.int32), x.view(sg.float64))]
    assert spill.stats().live_bytes == NBYTES
    for got in map(spill.unpack_hook, packed):
        assert got.numpy().tobytes() == ARRAY.tobytes()


CONTEXTS: dict[str, Callable[[Path], sg.save_on_disk]] = {
    "without a codec": lambda place: sg.save_on_disk(place, ram_budget=0),
    "lossless": lambda place: sg.save_on_disk(place, ram_budget=0, codec="lossless"),
    "of an offload": lambda place: sg.save_on_disk(
        sg.disk_offload(model := sg.nn.Linear(3, 3), sg.optim.SGD(model.parameters(), lr=0.1), place, ram_budget="1KiB")
    ),
    "another lossy one": lambda place: sg.save_on_disk(place, ram_budget=0, codec="bf16"),
}


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("first", ["original", "copy"])
def test_what_a_lossy_context_gave_back_is_not_the_original_to_another(directory: Path, context: str, first: str):
    lossy, other = sg.save_on_disk(directory, ram_budget=0, codec="int8"), CONTEXTS[context](directory)
    x = batch()
    kept = lossy.pack_hook(x)
    tensors = {"original": x, "copy": lossy.unpack_hook(kept)}
    wanted = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    assert 0 < np.abs(wanted["copy"] - ARRAY).max() < 0.02
    order = sorted(tensors, key=lambda name: name != first)
    packed = {name: other.pack_hook(tensors[name]) for name in order}
    del x, tensors
    for name in order:
        got = other.unpack_hook(packed[name]).numpy()
        allowed = 2.0**-8 * np.abs(wanted[name]) if context == "another lossy one" else 0
        assert (np.abs(got - wanted[name]) <= allowed).all()


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_what_an_exact_context_gave_back_is_the_original_to_all(directory: Path, codec: str):
    exact, lossy = (sg.save_on_disk(directory, ram_budget=0, codec=name) for name in (None, codec))
    x = batch()
    kept = exact.pack_hook(x)
    packed = [lossy.pack_hook(tensor) for tensor in (x, exact.unpack_hook(kept))]
    assert lossy.stats().live_bytes == NBYTES
    assert exact.unpack_hook(exact.pack_hook(lossy.unpack_hook(packed[0]))).numpy().tobytes() != ARRAY.tobytes()
    assert exact.unpack_hook(kept).numpy().tobytes() == ARRAY.tobytes()


@pytest.mark.parametrize("codec", [None, "bf16", "int8"])
def test_what_a_context_gave_back_is_not_stored_again_there(directory: Path, codec: str | None):
    spill = sg.save_on_disk(directory, ram_budget=0, codec=codec)
    kept = spill.pack_hook(batch())
    for tensor in (spill.unpack_hook(kept), spill.unpack_hook(kept)[3:]):
        again = spill.pack_hook(tensor)
        assert spill.stats().live_bytes == NBYTES
        assert spill.unpack_hook(again).numpy().tobytes() == tensor.numpy().tobytes()


# The hooks


def test_the_pair_works_in_saved_tensors_hooks(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    with sg.autograd.saved_tensors_hooks(spill.pack_hook, spill.unpack_hook):
        loss = w.exp().sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY[::-1]), rtol=1e-6)


def test_the_pair_works_in_register_hooks(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    x, w = batch(), weight()
    product = x * w
    assert spill.stats().live_bytes == 0
    product.grad_fn._raw_saved_self.register_hooks(spill.pack_hook, spill.unpack_hook)
    assert spill.stats().live_bytes == NBYTES
    x.zero_()
    np.testing.assert_array_equal(product.grad_fn._saved_self.numpy(), ARRAY)
    product.sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), ARRAY)


def test_the_innermost_pair_applies(directory: Path):
    inner, outer = (sg.save_on_disk(directory, ram_budget=0) for _ in range(2))
    seen: list[tuple[int, ...]] = []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor.numpy().copy()

    w = weight()
    with outer:
        first = w.exp()
        with inner:
            second = first.exp()
            with sg.autograd.saved_tensors_hooks(pack, sg.from_numpy):
                third = second.sin()
                with outer, sg.autograd.graph.save_on_cpu():
                    fourth = third.exp()
        fifth = fourth.exp()
    assert (outer.stats().live_bytes, inner.stats().live_bytes, seen) == (2 * NBYTES, NBYTES, [ARRAY.shape])
    fifth.sum().backward()
    v = weight()
    v.exp().exp().sin().exp().exp().sum().backward()
    np.testing.assert_array_equal(w.grad.numpy(), v.grad.numpy())


def test_a_users_hook_may_pass_on_to_the_pair(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    with sg.autograd.saved_tensors_hooks(
        lambda tensor: spill.pack_hook(tensor.to(sg.bfloat16)), lambda packed: spill.unpack_hook(packed).to(sg.float32)
    ):
        loss = w.exp().sum()
    assert spill.stats().live_bytes == NBYTES // 2
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY[::-1]), rtol=1e-2)


def test_a_py_layers_saved_tensors_are_spilled_under_its_name(directory: Path):
    class Cube(sg.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensor()
            return grad * 3 * x * x

    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    with spill:
        y = Cube.apply(w * 1)
    assert spill.stats().live_bytes == NBYTES
    spill.flush()
    assert [label["op"] for _, label in stored(spill.directory)] == [y.grad_fn.name()]
    y.sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), 3 * ARRAY[::-1] ** 2, rtol=1e-5)


def test_nothing_is_spilled_where_hooks_are_disabled(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    with sg.autograd.graph.disable_saved_tensors_hooks("not here"), pytest.raises(GraphError, match="not here"), spill:
        pass


# Contexts and lifetimes


def test_leaving_the_context_only_stops_packing(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    with spill:
        hidden = w.exp()
    loss = hidden.exp().sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()
    np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY[::-1] + np.exp(ARRAY[::-1])), rtol=1e-5)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_the_object_is_neither_copied_nor_pickled(directory: Path, make: Callable[[Any], Any]):
    with pytest.raises(OperandError, match="cannot be copied or pickled"):
        make(sg.save_on_disk(directory, ram_budget=0))


def test_an_object_can_be_entered_again_and_within_itself(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    w = weight()
    for _ in range(3):
        with spill as same:
            assert same is spill
            first = w.exp()
            with spill:
                second = first.exp()
            third = second.exp()
        assert spill.stats().live_bytes == 3 * NBYTES
        del first, second, third
        assert spill.stats().live_bytes == 0


def test_two_objects_share_a_directory(directory: Path):
    one, two = (sg.save_on_disk(directory, ram_budget=0) for _ in range(2))
    assert one.directory != two.directory
    v, w = weight(), weight()
    with one:
        first = v.exp()
        with two:
            second = w.exp()
    assert len(segments(one.directory)) == len(segments(two.directory)) == 1
    first.sum().backward()
    place = one.directory
    del one, first
    wait_until(lambda: not place.exists())
    assert len(segments(two.directory)) == 1
    second.sum().backward()
    np.testing.assert_array_equal(v.grad.numpy(), w.grad.numpy())


def test_a_fresh_object_for_each_step_leaves_nothing_behind(directory: Path):
    w = weight()
    for step in range(30):
        with sg.save_on_disk(directory, ram_budget=0 if step % 2 else LARGE):
            loss = (w.exp().sin() * w.exp()).sum()
        loss.backward()
    del loss
    wait_until(lambda: list(directory.iterdir()) == [])
    # Removing the files is a writer's last act: its thread may still be on the way out.
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("spillgrad-writer")])


def test_files_vanish_with_the_graph_while_the_object_lives_on(directory: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("spillgrad.storage.threads.writer._KEEP_EMPTY_S", 0.02)
    spill = sg.save_on_disk(directory, ram_budget=0)
    with spill:
        loss = weight().exp().sum()
    assert segments(directory)
    del loss
    wait_until(lambda: segments(directory) == [])
    assert spill.stats().live_bytes == 0


def _forward_only(spill):
    with spill:
        return weight().exp().exp().sum()


def _backward(spill):
    loss = _forward_only(spill)
    loss.backward()
    return loss


def _fail_in_forward(spill):
    with spill:
        weight().exp().exp() @ sg.zeros(7, 7)


def _fail_in_backward(spill):
    w = weight()
    with spill:
        hidden = w.exp()
        loss = hidden.exp().sum()
    hidden.register_hook(lambda grad: 1 / 0)
    loss.backward()


@pytest.mark.parametrize("work", [_forward_only, _backward, _fail_in_forward, _fail_in_backward])
def test_files_vanish_with_the_last_graph(directory: Path, work: Callable[[sg.save_on_disk], sg.Tensor]):
    spill = sg.save_on_disk(directory, ram_budget=0)
    place = spill.directory
    try:
        graph = work(spill)
    except (RuntimeError, ZeroDivisionError):
        graph = None
    if graph is not None:
        del spill
        time.sleep(0.02)
        assert segments(place)
    spill = graph = None
    wait_until(lambda: not place.exists())


@pytest.mark.parametrize("end", ["pass", "sys.exit(3)", "1 / 0", "os.kill(os.getpid(), signal.SIGINT)"])
def test_files_vanish_at_process_exit(directory: Path, end: str):
    process = script(
        """
        import os, signal, sys
        import spillgrad as sg
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background of a script
        with sg.save_on_disk(sys.argv[1], ram_budget=0) as spill:
            y = sg.ones(100, 100, requires_grad=True).exp().exp()
            assert len(list(spill.directory.glob("*.h5"))) == 1
            exec(sys.argv[2])
        """,
        directory,
        end,
    )
    status, _, err = finish(process)
    assert (status == 0) == (end == "pass"), err
    assert list(directory.iterdir()) == []


HOLD = """
    import sys
    import spillgrad as sg
    w = sg.ones(100, 100, requires_grad=True)
    with sg.save_on_disk(sys.argv[1], ram_budget=0) as spill:
        loss = w.exp().exp().sum()
    print(spill.directory, flush=True)
    sys.stdin.readline()
    loss.backward()
    print(w.grad.sum().item() > 0)
"""


def test_a_killed_runs_files_are_removed_and_a_living_ones_stay(directory: Path):
    killed, living = script(HOLD, directory), script(HOLD, directory)
    orphan, neighbour = (Path(process.stdout.readline().strip()) for process in (killed, living))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert len(segments(orphan)) == 1
    spill = sg.save_on_disk(directory, ram_budget=0)
    assert sorted(path.name for path in directory.iterdir()) == sorted([neighbour.name, spill.directory.name])
    assert len(segments(neighbour)) == 1
    living.stdin.write("\n")
    assert finish(living) == (0, "True\n", "")


FEW_DESCRIPTORS = """
    import contextlib, gc, os, resource, sys
    import h5py, hdf5plugin, numpy as np  # loaded with as many descriptors as it takes
    import spillgrad as sg
    from tests.open_files import open_files_below
    from tests.waiting import wait_until

    def step(context):
        w = sg.tensor(array, requires_grad=True)
        with context as spill:
            loss = (w.exp().sin() * (w * 0.5).tanh().exp()).cos().sum()
        if spill is not None:
            spill.flush()
        loss.backward()
        return w.grad.numpy()

    array = np.random.default_rng(0).standard_normal((150, 130)).astype(np.float32)
    wanted = step(contextlib.nullcontext())
    before = open_files_below("/")
    gc.freeze()  # while it waits it collects
    free = os.dup(0)
    os.close(free)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for limit in (*range(free, free + 8, 2), 16):
        for options in [{}, {"direct_io": True}, {"codec": "lossless"}, {"ram_budget": "64KiB", "min_bytes": 0}]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                assert (step(sg.save_on_disk(sys.argv[1], **{"ram_budget": 0, **options})) == wanted).all()
                told = "right"
            except sg.errors.SpillError as error:
                told = str(error).partition("; ")[2]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            wait_until(lambda: open_files_below("/") == before)
            print(limit, told)
"""


def test_with_few_descriptors_steps_are_right_or_told_of_the_limit(directory: Path):
    status, out, err = finish(script(FEW_DESCRIPTORS, directory))
    assert (status, err) == (0, "")
    told: dict[int, set[str]] = {}
    for line in out.splitlines():
        limit, _, what = line.partition(" ")
        told.setdefault(int(limit), set()).add(what)
    for limit, whats in told.items():
        refused = f"this process may have {limit} files open; close some, or raise that limit (ulimit -n)"
        assert whats <= {"right", refused}
    assert "right" not in told[min(told)]
    assert told[16] == {"right"}
    sg.save_on_disk(directory, ram_budget=0)  # sweeps what could not be removed


@pytest.mark.parametrize(
    "options",
    [
        {"ram_budget": 0},
        {"ram_budget": 0, "direct_io": True},
        {"ram_budget": 0, "codec": "lossless"},
        {"ram_budget": 0, "codec": "int8"},
        {"ram_budget": 0, "encrypt": True, "checksums": False},
        {"ram_budget": "32KiB", "min_bytes": 0},
    ],
    ids=str,
)
def test_a_byte_changed_anywhere_in_a_file_is_found_or_changes_nothing(directory: Path, options: dict[str, Any]):
    if "encrypt" in options:
        pytest.importorskip("cryptography")
    spill = sg.save_on_disk(directory, **options)
    is_small = "min_bytes" in options
    tensors = [(batch() + i).relu()[: 10 if is_small else 80] for i in range(40 if is_small else 3)]
    packed = [spill.pack_hook(tensor.clone()) for tensor in tensors]
    del tensors
    spill.flush()
    wanted = [spill.unpack_hook(each).numpy().tobytes() for each in packed]
    (path,) = segments(directory)
    places = [piece for entry in spill._store._state.entries.values() for piece in entry.extent.pieces]
    whole, found = path.read_bytes(), []
    with path.open("r+b", buffering=0) as file:
        for place in range(0, len(whole), 499):
            os.pwrite(file.fileno(), bytes([whole[place] ^ 1 << place % 8]), place)
            for each, array in zip(packed, wanted, strict=True):
                try:
                    assert spill.unpack_hook(each).numpy().tobytes() == array
                except SpillCorruptionError:
                    found.append(place)
            os.pwrite(file.fileno(), whole[place : place + 1], place)
    in_arrays = {place for place in range(0, len(whole), 499) for start, _, n in places if start <= place < start + n}
    assert set(found) <= in_arrays
    assert len(found) > 10
    assert set(found) == in_arrays or is_small  # of those, the ones looked at last stay in RAM
    assert [spill.unpack_hook(each).numpy().tobytes() for each in packed] == wanted


def test_two_threads_share_one_object(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=3 * NBYTES)
    found: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        w = sg.tensor(ARRAY * number, requires_grad=True)
        for _ in range(10):
            w.grad = None
            with spill:
                loss = (w.sin().exp() * w.cos().exp()).sum()
            loss.backward()
        found[number] = w.grad.numpy()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2, 3):
        x = sg.tensor(ARRAY * number, requires_grad=True)
        (x.sin().exp() * x.cos().exp()).sum().backward()
        np.testing.assert_array_equal(found[number], x.grad.numpy())


def test_backward_may_run_in_another_thread(directory: Path):
    w = weight()
    with sg.save_on_disk(directory, ram_budget=0):
        loss = w.exp().sum()
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    np.testing.assert_allclose(w.grad.numpy(), np.exp(ARRAY[::-1]), rtol=1e-6)


# Files and figures


def stored(place: Path) -> list[tuple[np.ndarray, dict[str, object]]]:
    """Return what plain h5py, in a process of its own, finds in a live run's files, in the order it was packed."""
    reader = """
        import json, sys
        import h5py
        import numpy as np
        found = []
        for path in sys.argv[2:]:
            with h5py.File(path, "r", locking=False) as file:
                found += [(json.loads(dataset.attrs["spillgrad"]), dataset[()]) for dataset in file.values()]
        found.sort(key=lambda each: each[0]["sequence"])
        np.savez(sys.argv[1], json.dumps([label for label, _ in found]), *(array for _, array in found))
    """
    target = place.parent.parent / "found.npz"
    assert finish(script(reader, target, *segments(place))) == (0, "", "")
    with np.load(target) as found:
        labels, *arrays = (found[f"arr_{i}"] for i in range(len(found)))
    return list(zip(arrays, json.loads(str(labels)), strict=True))


def test_plain_h5py_reads_what_a_live_object_has_flushed(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=LARGE)
    layer = sg.nn.Sequential(sg.nn.Linear(60, 30), sg.nn.GELU())
    x = batch().to(sg.bfloat16)
    with spill:
        y = layer(batch())
        z = y.sum().to(sg.bfloat16) * x
    spill.flush()
    found = stored(spill.directory)
    labels = [(label["op"], label["slot"], label["module"]) for _, label in found]
    assert labels == [("linear", "input", "0"), ("gelu", "self", "1"), ("mul", "other", None)]
    np.testing.assert_array_equal(found[0][0], ARRAY)
    np.testing.assert_allclose(found[1][0], ARRAY @ layer[0].weight.numpy().T + layer[0].bias.numpy(), atol=1e-5)
    np.testing.assert_array_equal(found[2][0], x.to(sg.float32).numpy())
    for array, label in found:
        assert list(array.shape) == label["shape"]
    assert found[2][1]["dtype"] == "bfloat16"
    z.sum().backward()


def test_files_tell_which_views_of_an_array_were_saved(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=LARGE)
    w = weight()
    with spill:
        both = batch() + 0
        losses = [
            (both[:30] * w[:30]).sum(),
            (both.t().exp() * 2).sum(),
            *((both[1:] * w[1:]).sum() for _ in range(50)),
        ]
    spill.flush()
    ((_, about), *_) = stored(spill.directory)
    width = both.shape[1]
    first = {
        "op": "mul",
        "slot": "self",
        "dtype": "float32",
        "shape": [30, width],
        "strides": [4 * width, 4],
        "offset": 0,
    }
    assert about["views"][0] == first
    assert about["views"][1] == {**first, "shape": [both.shape[0] - 1, width], "offset": 4 * width}
    assert len(about["views"]) == 32
    sum(losses).backward()


def test_files_are_their_owners_alone(directory: Path):
    directory.mkdir(mode=0o755)
    spill = sg.save_on_disk(directory, ram_budget=0)
    with spill:
        loss = weight().exp().sum()
    assert stat.S_IMODE(spill.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(spill.directory)} == {0o600}
    loss.backward()


# Each case: what one node's derivative needs, in arrays.
CHAINS: dict[str, tuple[int, Callable[[sg.Tensor], sg.Tensor]]] = {
    "one value": (1, lambda x: x.exp() * 0.1),
    "two values": (2, lambda x: (x + 1) * (x - 1)),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("budget", [0, 1, 3 * NBYTES, 7 * NBYTES + 5])
def test_the_budget_holds_but_for_what_one_derivative_needs(directory: Path, chain: str, budget: int):
    needs, function = CHAINS[chain]
    spill = sg.save_on_disk(directory, ram_budget=budget)
    w = weight()
    for _ in range(3):
        with spill:
            x = w * 1
            for _ in range(20):
                x = function(x)
        assert spill.stats().ram_bytes <= budget
        assert spill.stats().live_bytes >= 20 * NBYTES
        x.sum().backward()
        del x
    assert needs * NBYTES <= spill.stats().peak_ram_bytes <= budget + needs * NBYTES


def test_stats_are_a_frozen_account(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=0)
    before = spill.stats()
    with spill:
        loss = weight().exp().sum()
    stats = spill.stats()
    assert dataclasses.is_dataclass(stats)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.packed_bytes = 0
    assert (before.packed_bytes, stats.packed_bytes, stats.written_bytes) == (0, NBYTES, NBYTES)
    loss.backward()
    stats = spill.stats()
    assert (stats.read_bytes, stats.live_bytes, stats.ram_bytes) == (NBYTES, 0, 0)
    assert stats.wait_write_s > 0
    assert stats.wait_read_s > 0


def test_flush_writes_what_is_hot_and_forgets_nothing(directory: Path):
    spill = sg.save_on_disk(directory, ram_budget=LARGE)
    w = weight()
    with spill:
        loss = w.exp().exp().sum()
    assert spill.stats().written_bytes == 0
    spill.flush()
    assert spill.stats().written_bytes == 2 * NBYTES
    loss.backward()
    assert spill.stats().read_bytes == 0


# Bad input


def _file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def _unwritable(tmp_path: Path) -> Path:
    if os.geteuid() == 0:
        return Path("/proc/spill")  # where root may not write either
    (tmp_path / "locked").mkdir(mode=0o500)
    return tmp_path / "locked"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: sg.save_on_disk(p, ram_budget="lots"), BudgetError, r"got 'lots'; wanted .*64MiB"),
        (lambda p: sg.save_on_disk(p, ram_budget=-1), BudgetError, "got -1; wanted no fewer than 0"),
        (lambda p: sg.save_on_disk(p, ram_budget=1.5), BudgetError, "got 1.5"),
        (lambda p: sg.save_on_disk(p, ram_budget=0, min_bytes="few"), BudgetError, "got 'few'"),
        (lambda p: sg.save_on_disk(_file(p), ram_budget=0), SpillError, "cannot use .*file.*pass a directory"),
        (lambda p: sg.save_on_disk(_file(p) / "deeper", ram_budget=0), SpillError, "cannot use .*pass a directory"),
        (lambda p: sg.save_on_disk(_unwritable(p), ram_budget=0), SpillError, "cannot use .*pass a directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, make, error: type[Exception], message: str):
    with pytest.raises(error, match=message) as caught:
        make(tmp_path)
    assert "\n" not in str(caught.value)
    assert [path for path in tmp_path.iterdir() if path.name not in ("file", "locked")] == []


TEMPORARY = """
    import warnings
    import spillgrad as sg
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spill = sg.save_on_disk(ram_budget=0)
        sg.disk_offload(sg.nn.Linear(9, 9), ram_budget="1MiB")
    w = sg.ones(100, 100, requires_grad=True)
    with spill:
        loss = w.exp().sum()
    print(spill.directory.parent.parent, len(list(spill.directory.glob("*.h5"))))
    print(*(str(warning.message) + warning.filename for warning in caught))
    loss.backward()
"""


def test_without_a_directory_a_temporary_one_is_used(tmp_path: Path):
    status, out, err = finish(script(TEMPORARY, TMPDIR=str(tmp_path)))
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"{tmp_path} 1"
    assert ("is a RAM disk" in out) == is_ram_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_on_a_ram_disk_warns_its_user():
    if not is_ram_disk("/dev/shm"):
        pytest.skip("/dev/shm is no RAM disk here")
    status, out, err = finish(script(TEMPORARY, TMPDIR="/dev/shm"))
    assert (status, err) == (0, "")
    assert out.count("is a RAM disk, so spilling frees no memory; pass a directory on a real disk<string>") == 2


def test_of_gradients_that_a_loss_makes_ahead_one_losss_stay_in_ram(tmp_path: Path):
    def losses(context: contextlib.AbstractContextManager[object]) -> tuple[list[sg.Tensor], sg.Tensor]:
        sg.manual_seed(0)
        weight = sg.randn(300, 64, requires_grad=True)
        rows = [sg.randn(50, 64, requires_grad=True) for _ in range(2)]
        target = sg.arange(50)
        with context:
            return [sg.nn.functional.linear_cross_entropy(each, weight, target) for each in rows], weight

    wanted, weight = losses(contextlib.nullcontext())
    sum(wanted).backward()
    spill = sg.save_on_disk(tmp_path, ram_budget=0)
    got, spilled_weight = losses(spill)
    ahead_bytes = (300 + 50) * 64 * 4
    assert (spill.stats().kept_bytes, spill.stats().live_bytes) == (ahead_bytes, ahead_bytes)
    sum(got).backward()
    np.testing.assert_array_equal(spilled_weight.grad.numpy(), weight.grad.numpy())
    assert spill.stats().kept_bytes == 0
