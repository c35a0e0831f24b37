"""What Paddle saves for backward comes back from the store in every bit, is there once, and goes with its graph."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

from paddle.autograd import saved_tensors_hooks  # noqa: E402

from spillgrad.errors import ArgumentError, BudgetError, OperandError, SavedTensorError, SpillError  # noqa: E402
from spillgrad.interop.paddle import save_on_disk  # noqa: E402
from spillgrad.interop.paddle.saved_tensors import Spilled  # noqa: E402
from spillgrad.spill.saved_memory import Kept  # noqa: E402
from spillgrad.storage import inspect, inspect_segment, verify  # noqa: E402
from tests.interop.paddle_models import BUDGETS, LARGE, NBYTES, SHAPE, about, batch, bits, weight  # noqa: E402
from tests.storage.test_disk_store import in_own_mounts  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

# What comes back

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"]
WIDE_DTYPES = ["float32", "float64", "complex64", "complex128"]


def of_dtype(name: str, rows: int = 100) -> Any:
    if name == "bool":
        return paddle.rand([rows, 16]) > 0.5
    return paddle.randint(0, 100, [rows, 16]).astype("uint8").view(name)


KINDS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: of_dtype(name) for name in (*DTYPES, *WIDE_DTYPES)},
    "0-d": lambda: paddle.full([], 3.5),
    "0-d of many": lambda: batch()[3, 5],
    "no elements": lambda: paddle.zeros([0, 3]),
    "a slice": lambda: batch()[3:77],
    "a small slice": lambda: batch()[3:5],
    "every third column": lambda: batch()[:, 1::3],
    "transposed": lambda: batch().t(),
    "permuted": lambda: paddle.randn([4, 5, 6]).transpose([2, 0, 1]),
    "bfloat16, transposed slice": lambda: batch().astype("bfloat16")[5:, ::2].t(),
    "expanded": lambda: batch().expand([5, *SHAPE]),
    "of stride 0": lambda: batch().as_strided([9, 80, 60], [0, 60, 1]),
    "overlapping": lambda: batch().as_strided([70, 60], [7, 1], 12),
    "as other dtype": lambda: batch().view("int16")[:, 3:],
    "of NumPy's memory": lambda: paddle.utils.dlpack.from_dlpack(batch().numpy()[1:]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_comes_back_exactly(directory: Path, kind: str):
    for budget, codec in [(0, None), (0, "lossless"), (LARGE, None)]:
        spill = save_on_disk(directory, ram_budget=budget, min_bytes=0, codec=codec)
        tensor = KINDS[kind]()
        lies, wanted, has_elements = about(tensor), bits(tensor), 0 not in tensor.shape
        packed = [spill.pack_hook(tensor), spill.pack_hook(tensor)]
        assert isinstance(packed[0], Kept) != has_elements
        del tensor
        for _ in range(2):
            got = [spill.unpack_hook(each) for each in packed]
            assert [about(each) for each in got] == [lies, lies]
            assert [bits(each) for each in got] == [wanted, wanted]
            del got
        assert (spill.stats().read_bytes > 0) == (budget == 0 and has_elements)
        del packed
        assert spill.stats().live_bytes == 0


@pytest.mark.parametrize("name", ["bool", "float8_e5m2", "bfloat16", "float32", "complex64"])
def test_files_and_journal_say_shape_dtype_and_views(directory: Path, name: str):
    journal = directory.parent / "run.jsonl"
    spill = save_on_disk(directory, ram_budget=LARGE, min_bytes=0, keep_journal=journal)
    tensor = of_dtype(name, 1000)
    views = (tensor, tensor[1:].t())
    packed = [spill.pack_hook(view) for view in views]
    spill.flush()
    (segment,) = spill.directory.glob("*.h5")
    (array,) = inspect_segment(segment).arrays
    assert (array.dtype.name, array.shape) == (name, tuple(tensor.shape))
    assert [(view.dtype, view.shape) for view in array.views] == [(name, tuple(view.shape)) for view in views]
    assert not verify(spill.directory).problems
    (run,) = inspect(journal).runs
    assert [group.name for group in run.by("dtype")] == [name]
    del packed


# What is spilled, and once


def test_a_memory_is_stored_once_while_it_is_in_ram_however_many_views_save_it(directory: Path):
    spill = save_on_disk(directory, ram_budget=LARGE, min_bytes=0)
    both = batch().reshape([4, 20, 60])
    views = [both, both[:, :, 20:40], both.transpose([2, 1, 0]), both[1:3], both[3]]
    wanted = [(about(view), bits(view)) for view in views]
    packed = [spill.pack_hook(view) for view in views]
    assert (spill.stats().live_bytes, spill.stats().packed_bytes) == (NBYTES, 5 * NBYTES)
    del both, views
    got = [spill.unpack_hook(each) for each in packed]
    assert [(about(view), bits(view)) for view in got] == wanted
    assert spill.stats().read_bytes == 0


def test_memory_that_is_given_to_another_tensor_is_never_taken_for_the_one_it_was(directory: Path):
    spill = save_on_disk(directory, ram_budget=4 * NBYTES)
    packed, addresses = [], set()
    for number in range(100):
        tensor = paddle.full(SHAPE, float(number))
        addresses.add(tensor.data_ptr())
        packed.append(spill.pack_hook(tensor))
        if number % 10 == 0:
            del tensor
            spill.flush()
    assert len(addresses) < 50  # or this would show nothing
    for number, each in enumerate(packed):
        assert (spill.unpack_hook(each).numpy() == number).all()


def test_a_slice_of_much_more_is_stored_without_the_rest(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    data = paddle.randn([100, *SHAPE])
    packed = [spill.pack_hook(data[i]) for i in (3, 50)]
    assert spill.stats().live_bytes == 2 * NBYTES
    wanted = [bits(data[i]) for i in (3, 50)]
    del data
    assert [bits(spill.unpack_hook(each)) for each in packed] == wanted


def test_a_batch_that_is_a_slice_of_all_data_has_the_same_gradients(directory: Path):
    data, layer = paddle.randn([100, *SHAPE]), paddle.nn.Linear(60, 50)
    layer(data[97]).square().sum().backward()
    wanted = [parameter.grad.clone() for parameter in layer.parameters()]
    for budget in BUDGETS:
        layer.clear_gradients()
        with save_on_disk(directory, ram_budget=budget, min_bytes=0) as spill:
            loss = layer(data[97]).square().sum()
        assert spill.stats().live_bytes < 3 * NBYTES
        loss.backward()
        assert [bits(parameter.grad) for parameter in layer.parameters()] == [bits(each) for each in wanted]


def test_parameters_and_leaves_stay_where_they_are(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    layer, leaf = paddle.nn.Linear(60, 50), weight()
    frozen = paddle.nn.Linear(50, 60)
    for parameter in frozen.parameters():
        parameter.stop_gradient = True
    with spill:
        hidden = frozen(layer(leaf))
        loss = (hidden * leaf).sum()
    assert spill.stats().packed_bytes == NBYTES + 80 * 50 * 4  # hidden, and the first layer's result
    loss.backward()


def test_small_tensors_are_not_spilled_nor_keep_large_memory(directory: Path):
    spill = save_on_disk(directory, ram_budget=0, min_bytes="1KiB")
    large = paddle.randn([30_000_000])
    packed = [spill.pack_hook(each) for each in (large[1000:1100], paddle.zeros([1023], dtype="uint8"))]
    wanted = bits(large[1000:1100])
    assert all(isinstance(each, Kept) for each in packed)
    before = resident_bytes()
    del large
    assert resident_bytes() < before - 100_000_000
    assert bits(spill.unpack_hook(packed[0])) == wanted
    assert isinstance(spill.pack_hook(paddle.zeros([1024], dtype="uint8")).spilled, Spilled)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_only_what_the_predicate_takes_is_spilled(directory: Path):
    with save_on_disk(directory, ram_budget=0, only=lambda saved: saved.nbytes > NBYTES) as spill:
        w = weight()
        (w.exp().sum() + (w.expand([2, *SHAPE]) * 1).sin().sum()).backward()
    assert spill.stats().written_bytes == 2 * NBYTES
    with pytest.raises(TypeError, match="save_on_disk: got only='exp'"):
        save_on_disk(directory, ram_budget=0, only="exp")


def test_sparse_tensors_pass_untouched(directory: Path):
    spill = save_on_disk(directory, ram_budget=0, min_bytes=0)
    sparse = paddle.sparse.sparse_coo_tensor([[0, 1], [2, 3]], [1.0, 2.0], [60, 80])
    assert bits(spill.unpack_hook(spill.pack_hook(sparse)).to_dense()) == bits(sparse.to_dense())
    assert spill.stats().packed_bytes == 0


# Changes in place

MODIFIED = r"modified by an inplace operation: .* is at version 1; expected version 0"


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_change_in_place_raises_as_it_does_without_hooks(directory: Path, budget: int | str, flushed: bool):
    spill, x, w = save_on_disk(directory, ram_budget=budget), batch(), weight()
    with spill:
        loss, other, third = (x * w).sum(), (x[1:] * w[1:]).sum(), (x * w).sum()
    if flushed:
        spill.flush()
    x[0].add_(paddle.ones([60]))
    with spill:
        again = (x * w).sum()
    for each in (loss, other):
        with pytest.raises(OSError, match=MODIFIED):
            each.backward()
    with pytest.raises(SavedTensorError, match=MODIFIED), spill:
        third.backward()
    assert w.grad is None
    again.backward()
    assert bits(w.grad) == bits(x)


def test_a_change_in_place_of_what_stays_in_ram_raises_too(directory: Path):
    spill, small = save_on_disk(directory, ram_budget=0), paddle.ones([3])
    v = paddle.ones([3])
    v.stop_gradient = False
    with spill:
        loss = (small * v).sum()
    small.zero_()
    with pytest.raises(OSError, match=MODIFIED):
        loss.backward()


@pytest.mark.parametrize("change", ["add_", "set_value", "step"])
def test_a_changed_parameter_does_what_it_does_without_hooks(directory: Path, change: str):
    def outcome(context: Any) -> bytes | str:
        paddle.seed(5)
        layer, x = paddle.nn.Linear(60, 50), weight()
        with context:
            loss = layer(x).square().sum()
            if change == "step":
                layer(x).sum().backward()
                x.clear_grad()
        if change == "step":
            paddle.optimizer.SGD(0.1, parameters=layer.parameters()).step()
        else:
            with paddle.no_grad():
                getattr(layer.weight, change)(paddle.ones([60, 50]))
        try:
            loss.backward()
        except (RuntimeError, OSError):
            return "raises"
        return bits(x.grad)

    assert outcome(save_on_disk(directory, ram_budget=0)) == outcome(contextlib.nullcontext())


@pytest.mark.parametrize("min_bytes", [0, LARGE])
def test_a_tensor_that_moves_to_be_contiguous_comes_back_as_it_was(directory: Path, min_bytes: int | str):
    spill, x, w = save_on_disk(directory, ram_budget=LARGE, min_bytes=min_bytes), batch().t(), weight().t().detach()
    w.stop_gradient = False
    with spill:
        loss = (x * w).sum()
    wanted = bits(x)
    x.contiguous()  # which moves it, in Paddle
    assert x.strides == [80, 1]
    loss.backward()
    assert bits(w.grad) == wanted


class Product(paddle.autograd.PyLayer):
    """w * x; its backward, if it is careless, changes the x that it saved."""

    careless = False

    @staticmethod
    def forward(ctx: Any, w: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensor()
        return grad * (x.scale_(2.0) if Product.careless else x), None


@pytest.mark.parametrize("budget", BUDGETS)
def test_what_a_pylayer_saved_and_was_changed_is_old_or_raises(directory: Path, budget: int | str):
    spill, x, w = save_on_disk(directory, ram_budget=budget), batch(), weight()
    wanted = bits(x)
    with spill:
        loss = Product.apply(w, x).sum()
    x.zero_()
    try:
        loss.backward()
    except OSError as error:
        assert budget != 0
        assert "modified in place" in str(error)
    else:
        assert bits(w.grad) == wanted


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_backward_that_changes_what_it_saved_spoils_no_other(
    directory: Path, budget: int | str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Product, "careless", True)
    spill, w, v, x = save_on_disk(directory, ram_budget=budget), weight(), weight(), batch()
    wanted = bits(x)
    with spill:
        right, careless = (w * x).sum(), Product.apply(v, x).sum()
    careless.backward()
    assert bits(v.grad) == bits(2 * x) or budget != 0
    try:
        right.backward()
    except OSError as error:
        assert "modified by an inplace operation" in str(error)
    else:
        assert bits(w.grad) == wanted


# The hooks, contexts and lifetimes


def test_the_pair_works_in_other_contexts(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=0), weight()
    with saved_tensors_hooks(spill.pack_hook, spill.unpack_hook):
        loss = w.exp().sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()
    assert bits(w.grad) == bits(w.exp())
    assert spill.stats().live_bytes == 0


def test_contexts_nest_and_the_innermost_applies(directory: Path):
    inner, outer = (save_on_disk(directory, ram_budget=0) for _ in range(2))
    w = weight()
    with outer as same:
        assert same is outer
        hidden = w.exp()
        with inner:
            hidden = hidden.exp()
            with inner, outer:
                hidden = hidden.exp()
        loss = hidden.exp().sum()
    untouched = w.exp().sum()
    assert (outer.stats().live_bytes, inner.stats().live_bytes) == (3 * NBYTES, NBYTES)
    loss.backward()
    untouched.backward()
    assert (outer.stats().live_bytes, inner.stats().live_bytes) == (0, 0)
    with saved_tensors_hooks(lambda tensor: tensor, lambda packed: packed):
        with pytest.raises(ArgumentError, match="one pair of hooks at a time, and other ones are active"), inner:
            pass
        assert w.exp().sum().item() > 0
    with inner:
        assert w.exp().sum().item() > 0


def test_bytes_go_with_backward_or_with_the_graph(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=NBYTES), weight()
    place = spill.directory
    with spill:
        loss, dropped = w.exp().exp().sum(), w.exp().sum()
    assert spill.stats().live_bytes == 3 * NBYTES
    del dropped
    assert spill.stats().live_bytes == 2 * NBYTES
    loss.backward()
    assert spill.stats().live_bytes == 0  # though the graph is there
    with spill:
        loss = w.exp().exp().sum()
        with pytest.raises(ValueError, match="matmul"):
            paddle.matmul(w.exp(), paddle.zeros([7, 7]))
    w.register_hook(lambda grad: 1 / 0)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        loss.backward()
    del loss, spill
    wait_until(lambda: not place.exists())


def test_a_fresh_object_for_each_step_leaves_nothing_behind(directory: Path):
    w = weight()
    for step in range(20):
        with save_on_disk(directory, ram_budget=0 if step % 2 else LARGE):
            loss = (w.exp().sin() * w.exp()).sum()
        loss.backward()
    del loss
    wait_until(lambda: list(directory.iterdir()) == [])


def test_the_budget_holds_but_for_what_one_derivative_needs(directory: Path):
    for budget in (0, 3 * NBYTES):
        spill, w = save_on_disk(directory, ram_budget=budget), weight()
        for _ in range(3):
            with spill:
                x = w * 1
                for _ in range(12):
                    x = ((x + 1) * (x - 1)).tanh()
                loss = x.sum()
            del x
            assert spill.stats().ram_bytes <= budget
            loss.backward()
        assert 2 * NBYTES <= spill.stats().peak_ram_bytes <= budget + 3 * NBYTES


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_lossy_codecs_round_floats_and_leave_other_dtypes(directory: Path, codec: str):
    spill = save_on_disk(directory, ram_budget=0, codec=codec)
    floats = paddle.randn([300, 100])
    packed = [spill.pack_hook(floats), spill.pack_hook(floats.view("int32"))]
    wanted = floats.clone()
    del floats
    got, exact = (spill.unpack_hook(each) for each in packed)
    assert 0 < (got - wanted).abs().max() <= 0.02 * wanted.abs().max()
    assert bits(exact) == bits(wanted)


@pytest.mark.parametrize("codec", [None, "lossless", "bf16", "int8"])
@pytest.mark.parametrize("first", ["original", "copy"])
def test_what_a_lossy_context_gave_back_is_not_the_original_to_another(directory: Path, codec: str | None, first: str):
    holding, lossy = save_on_disk(directory, ram_budget=LARGE), save_on_disk(directory, ram_budget=0, codec="int8")
    other = save_on_disk(directory, ram_budget=LARGE, codec=codec)
    x = paddle.randn([300, 100])
    kept = [holding.pack_hook(x), lossy.pack_hook(x)]
    tensors = {"original": x, "copy": lossy.unpack_hook(kept[1])}
    wanted = {name: bits(tensor) for name, tensor in tensors.items()}
    assert wanted["original"] != wanted["copy"]
    order = sorted(tensors, key=lambda name: name != first)
    packed = {name: other.pack_hook(tensors[name]) for name in order}
    for name in order:
        assert bits(other.unpack_hook(packed[name])) == wanted[name]


@pytest.mark.parametrize("codec", [None, "bf16"])
def test_what_a_context_gave_back_is_not_stored_again_there(directory: Path, codec: str | None):
    spill = save_on_disk(directory, ram_budget=0, codec=codec)
    kept = spill.pack_hook(paddle.randn([300, 100]))
    got = spill.unpack_hook(kept)
    again = spill.pack_hook(got[3:])
    assert spill.stats().live_bytes == 300 * 100 * 4
    assert bits(spill.unpack_hook(again)) == bits(got[3:])


def test_a_copy_is_an_integer_view_too_in_a_lossy_context(directory: Path):
    exact, lossy = save_on_disk(directory, ram_budget=0), save_on_disk(directory, ram_budget=0, codec="bf16")
    kept = exact.pack_hook(paddle.randn([300, 100]))
    copy = exact.unpack_hook(kept)
    wanted = bits(copy)
    packed = [lossy.pack_hook(copy), lossy.pack_hook(copy.view("int32"))]
    del copy
    floats, integers = (lossy.unpack_hook(each) for each in packed)
    assert bits(floats) != wanted
    assert bits(integers) == wanted


def test_encrypted_files_come_back(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=0, encrypt=True), weight()
    with spill:
        loss = w.exp().sum()
    loss.backward()
    assert bits(w.grad) == bits(w.exp())


# Bad input, and disks that refuse


def test_bad_input_is_refused_in_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for place, options, error, message in (
        (tmp_path, {"ram_budget": "lots"}, BudgetError, r"got 'lots'; wanted .*64MiB"),
        (tmp_path, {"ram_budget": 0, "min_bytes": "few"}, BudgetError, "got 'few'"),
        (tmp_path, {}, ArgumentError, "got no ram_budget; give bytes"),
        (tmp_path, {"ram_budget": 0, "codec": "zip"}, ArgumentError, "zip"),
        (tmp_path, {"ram_budget": 0, "on_full": "wait"}, ArgumentError, "on_full='wait'"),
        (tmp_path / "file", {"ram_budget": 0}, SpillError, "cannot use .*file.*pass a directory"),
    ):
        with pytest.raises(error, match=message) as caught:
            save_on_disk(place, **options)
        assert "\n" not in str(caught.value)


def test_the_object_is_neither_copied_nor_pickled(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(OperandError, match="cannot be copied or pickled"):
            make(spill)


class Listed(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward([x, x])
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


def test_a_list_that_a_pylayer_saves_is_refused(directory: Path):
    refused = pytest.raises(ArgumentError, match=r"got a list, .* pass its tensors one by one")
    with refused, save_on_disk(directory, ram_budget=0):
        Listed.apply(weight())


def script(text: str, *arguments: object, wrapped: tuple[str, ...] = ()) -> str:
    """Return what a program prints."""
    ran = subprocess.run(
        [*wrapped, sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_full_disk_raises_in_forward_and_later_steps_run(directory: Path):
    directory.mkdir()
    out = script(
        """
        import sys, paddle
        from spillgrad.errors import SpillError
        from spillgrad.interop.paddle import save_on_disk

        w = paddle.ones([100, 100])
        w.stop_gradient = False
        spill = save_on_disk(sys.argv[1], ram_budget=100_000)
        for length in (5, 500, 5):
            x = w * 1
            w.clear_grad()
            try:
                with spill:
                    for _ in range(length):
                        x = x.sin()
                x.sum().backward()
            except SpillError as error:
                print(length, "could not write" in str(error), error.__class__.__name__)
            else:
                print(length, w.grad.sum().item() > 0)
            del x
        """,
        directory,
        wrapped=in_own_mounts(directory, 4000),
    )
    assert out.splitlines() == ["5 True", "500 True SpillError", "5 True"]


@pytest.mark.parametrize("end", ["pass", "sys.exit(0)"])
def test_files_vanish_at_process_exit(directory: Path, end: str):
    out = script(
        """
        import sys, paddle
        from spillgrad.interop.paddle import save_on_disk
        layer = paddle.nn.Linear(100, 100)
        with save_on_disk(sys.argv[1], ram_budget=0) as spill:
            layer(paddle.ones([100, 100]).exp()).sum().backward()
            y = layer(paddle.ones([100, 100])).exp()
            print(len(list(spill.directory.glob("*.h5"))))
            exec(sys.argv[2])
        """,
        directory,
        end,
    )
    assert out == "1\n"
    assert list(directory.iterdir()) == []
