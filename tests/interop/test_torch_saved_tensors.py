"""What PyTorch saves for backward comes back from the store in every bit, and is there once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")


from spillgrad.errors import SavedTensorError  # noqa: E402
from spillgrad.interop.torch import save_on_disk  # noqa: E402
from spillgrad.interop.torch.saved_tensors import Spilled  # noqa: E402
from spillgrad.spill.saved_memory import Kept  # noqa: E402
from spillgrad.storage import inspect, inspect_segment, verify  # noqa: E402
from tests.interop.torch_models import (  # noqa: E402
    BUDGETS,
    LARGE,
    NBYTES,
    SHAPE,
    about,
    batch,
    bits,
    weight,
)

# What comes back

BYTE_DTYPES = ["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2", "float8_e5m2fnuz"]
BYTE_DTYPES += ["float8_e8m0fnu"] if hasattr(torch, "float8_e8m0fnu") else []  # PyTorch 2.7 added it
WIDE_DTYPES = ["uint16", "uint32", "uint64", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
COMPLEX_DTYPES = ["complex32", "complex64", "complex128"]


def of_dtype(name: str, rows: int = 100) -> Any:
    if name == "bool":
        return torch.rand(rows, 7) > 0.5
    return torch.randint(0, 100, (rows, 16), dtype=torch.uint8).view(getattr(torch, name))


KINDS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: of_dtype(name) for name in (*BYTE_DTYPES, *WIDE_DTYPES, *COMPLEX_DTYPES)},
    "0-d": lambda: torch.tensor(3.5),
    "no elements": lambda: torch.zeros(0, 3),
    "no elements of many": lambda: batch()[80:],
    "a slice": lambda: batch()[3:77],
    "a small slice": lambda: batch()[3:5],
    "an element": lambda: batch()[3, 5],
    "every third column": lambda: batch()[:, 1::3],
    "transposed": lambda: batch().t(),
    "permuted": lambda: torch.randn(4, 5, 6).permute(2, 0, 1),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "bfloat16, transposed slice": lambda: batch().to(torch.bfloat16)[5:, ::2].t(),
    "expanded": lambda: batch().expand(5, *SHAPE),
    "an expanded column": lambda: batch()[:, 2:3].expand(80, 7),
    "an expanded number": lambda: torch.tensor(2.0).expand(9, 1, 9),
    "overlapping": lambda: batch().as_strided((70, 60), (7, 1), 3),
    "of many dimensions": lambda: torch.randn(2, *[1] * 40, 2000),
    "conjugate": lambda: torch.randn(SHAPE, dtype=torch.complex64).t().conj(),
    "negative": lambda: torch.randn(SHAPE, dtype=torch.complex64).conj().imag,
    "real part": lambda: torch.randn(SHAPE, dtype=torch.complex64).real,
    "as other dtype": lambda: batch().view(torch.int16)[:, 3:],
    "unaligned": lambda: torch.frombuffer(bytearray(9001), dtype=torch.float32, offset=1, count=2000),
    "odd bytes": lambda: torch.frombuffer(bytearray(9001), dtype=torch.uint8)[1:-1],
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_kind_comes_back_exactly(directory: Path, kind: str):
    for budget, codec in [(0, None), (0, "lossless"), (LARGE, None)]:
        spill = save_on_disk(directory, ram_budget=budget, min_bytes=0, codec=codec)
        tensor = KINDS[kind]()
        lies, wanted, has_elements = about(tensor), bits(tensor), tensor.numel() > 0
        packed = spill.pack_hook(tensor)
        assert isinstance(packed, Kept) != has_elements
        del tensor
        for _ in range(2):
            got = spill.unpack_hook(packed)
            assert about(got) == lies
            assert bits(got) == wanted
            del got
        assert (spill.stats().read_bytes > 0) == (budget == 0 and has_elements)
        del packed


@pytest.mark.parametrize("name", ["bool", "uint16", "float8_e5m2", "bfloat16", "float32", "complex64"])
def test_files_and_journal_say_shape_dtype_and_views(directory: Path, name: str):
    journal = directory.parent / "run.jsonl"
    spill = save_on_disk(directory, ram_budget=LARGE, min_bytes=0, keep_journal=journal)
    tensor = of_dtype(name, 1000)
    packed = [spill.pack_hook(view) for view in (tensor, tensor[1:].t())]
    spill.flush()
    (segment,) = spill.directory.glob("*.h5")
    (array,) = inspect_segment(segment).arrays
    assert (array.dtype.name, array.shape) == (name, tuple(tensor.shape))
    assert [(view.dtype, view.shape) for view in array.views] == [
        (name, tuple(t.shape)) for t in (tensor, tensor[1:].t())
    ]
    assert not verify(spill.directory).problems
    (run,) = inspect(journal).runs
    assert [group.name for group in run.by("dtype")] == [name]
    del packed


# What is spilled, and once


def test_a_storage_is_stored_once_however_many_views_and_nodes_save_it(directory: Path):
    for budget in BUDGETS:
        spill = save_on_disk(directory, ram_budget=budget, min_bytes=0)
        both = batch().reshape(4, 20, 60)
        views = [both, *both.split(20, -1), both.transpose(0, 2), both[1:3].expand(7, 2, 20, 60), both[3]]
        wanted = [(about(view), bits(view)) for view in views]
        packed = [spill.pack_hook(view) for view in views]
        del both, views
        assert (spill.stats().live_bytes, spill.stats().packed_bytes) == (NBYTES, 7 * NBYTES)
        got = [spill.unpack_hook(each) for each in packed]
        assert [(about(view), bits(view)) for view in got] == wanted
        assert len({view.untyped_storage()._cdata for view in got}) == 1
        assert spill.stats().read_bytes == (NBYTES if budget == 0 else 0)
        del got, packed


def test_a_slice_of_much_more_is_stored_without_the_rest(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    data = torch.randn(100, *SHAPE)
    packed = [spill.pack_hook(data[i]) for i in (3, 50, 3)]
    assert spill.stats().live_bytes == 2 * NBYTES
    wanted = [bits(data[i]) for i in (3, 50, 3)]
    assert [bits(spill.unpack_hook(each)) for each in packed] == wanted
    assert spill.stats().read_bytes == 0  # it is in RAM all the time
    del data
    assert [bits(spill.unpack_hook(each)) for each in packed] == wanted
    assert spill.unpack_hook(packed[0]).data_ptr() % 64 == 0


def test_an_expanded_tensor_costs_its_unexpanded_bytes(directory: Path):
    spill, row = save_on_disk(directory, ram_budget=0), batch()
    with spill:
        loss = (weight() * row.expand(1, *SHAPE)).sum() + (torch.randn(50, 1, 1, requires_grad=True) * row).sum()
    assert spill.stats().live_bytes == NBYTES
    loss.backward()


def test_parameters_frozen_ones_and_views_of_leaves_stay_where_they_are(directory: Path):
    spill = save_on_disk(directory, ram_budget=0)
    layer, frozen, leaf = torch.nn.Linear(60, 50), torch.nn.Linear(50, 60).requires_grad_(False), weight()
    with spill:
        hidden = frozen(layer(leaf.t().t()))
        loss = (hidden @ leaf.t()).sum()
    assert spill.stats().packed_bytes == hidden.nbytes
    loss.backward()


def test_optimizers_may_update_parameters_between_forward_and_backward_of_others(directory: Path):
    first, second = torch.nn.Linear(60, 60), torch.nn.Linear(60, 60)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    spill = save_on_disk(directory, ram_budget=0)
    with spill:
        one, other = first(batch()).sum(), second(batch()).exp().sum()
    one.backward()
    optimizer.step()
    other.backward()
    with spill:
        loss = first(torch.randn(80, 60, requires_grad=True)).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # as without hooks
        loss.backward()


def test_small_tensors_are_not_spilled_nor_keep_large_storages_in_memory(directory: Path):
    spill = save_on_disk(directory, ram_budget=0, min_bytes="1KiB")
    large = batch()
    packed = [spill.pack_hook(each) for each in (torch.zeros(1023, dtype=torch.uint8), large[1, 3:5], large[80:])]
    row = spill.pack_hook(torch.ones(3).expand(1000, 3))
    assert all(isinstance(each, Kept) for each in (*packed, row))
    wanted, freed = large[1, 3:5].clone(), torch.multiprocessing.reductions.StorageWeakRef(large.untyped_storage())
    del large
    assert freed.expired()
    assert torch.equal(spill.unpack_hook(packed[1]), wanted)
    assert isinstance(spill.pack_hook(torch.zeros(1024, dtype=torch.uint8)), Spilled)


def test_only_what_the_predicate_takes_is_spilled(directory: Path):
    with save_on_disk(directory, ram_budget=0, only=lambda saved: saved.tensor.is_floating_point()) as spill:
        w = weight()
        w.sigmoid().gather(0, torch.zeros(SHAPE, dtype=torch.int64)).sum().backward()
    assert spill.stats().written_bytes == NBYTES
    with pytest.raises(TypeError, match="save_on_disk: got only='exp'"):
        save_on_disk(directory, ram_budget=0, only="exp")


class Wrapped(torch.Tensor):
    """A subclass that holds another tensor."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any, keywords: Any = None) -> Any:
        unwrapped = [one.inner if isinstance(one, Wrapped) else one for one in arguments]
        return Wrapped(function(*unwrapped, **(keywords or {})))


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.randn(SHAPE)


STRANGE: dict[str, Callable[[], Any]] = {
    "sparse": lambda: torch.eye(60).to_sparse(),
    "compressed sparse": lambda: torch.eye(60).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(batch(), 0.1, 0, torch.qint8),
    "meta": lambda: torch.empty(SHAPE, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2000), torch.randn(3000)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(2000), torch.randn(3000)], layout=torch.jagged),
    "subclass": lambda: Wrapped(batch()),
    "fake": fake,
    "of zeros": lambda: torch._efficientzerotensor(SHAPE),
    "functional": lambda: torch._to_functional_tensor(batch()),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested tensors", "ignore:.*quantize")
@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_plain_memory_passes_untouched(directory: Path, name: str):
    spill = save_on_disk(directory, ram_budget=0, min_bytes=0)
    tensor = STRANGE[name]()
    got = spill.unpack_hook(spill.pack_hook(tensor))
    assert (type(got), got.layout, got.device, got.dtype) == (type(tensor), tensor.layout, tensor.device, tensor.dtype)
    assert spill.stats().packed_bytes == 0
    if name == "sparse":
        w = torch.randn(60, 60, requires_grad=True)
        with spill:
            loss = torch.sparse.mm(tensor, w).sum()
        loss.backward()
        assert torch.equal(w.grad, torch.ones(60, 60))
    if name == "subclass":
        w = Wrapped(batch()).requires_grad_()
        with spill:
            loss = (w * w.detach()).sum()
        loss.backward()
        assert torch.equal(w.grad.inner, w.inner)


# Changes in place


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_change_in_place_raises_as_it_does_without_hooks(directory: Path, budget: int | str, flushed: bool):
    spill, x, w = save_on_disk(directory, ram_budget=budget), batch(), weight()
    with spill:
        loss, other = (x * w).sum(), (x[1:] * w[1:]).sum()
    if flushed:
        spill.flush()
    x[0].add_(1)
    with spill:
        again = (x * w).sum()
    for each in (loss, other):
        with pytest.raises(
            RuntimeError, match=r"modified by an inplace operation: .* is at version 1; expected"
        ) as caught:
            each.backward()
        assert caught.type is SavedTensorError
        del caught
    assert w.grad is None
    again.backward()
    assert torch.equal(w.grad, x)


def test_a_change_in_place_of_what_stays_in_ram_raises_too(directory: Path):
    spill, w, small = save_on_disk(directory, ram_budget=0), weight(), torch.ones(3)
    with spill:
        losses = [(w * batch()).sum(), (small * torch.ones(3, requires_grad=True)).sum(), (batch() * w).sum()]
    small.zero_()
    losses[0].backward()
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        losses[1].backward()
    with torch.no_grad():
        w.zero_()
    losses[2].backward()  # of which only the batch was needed


class Careless(torch.autograd.Function):
    """w * x, whose backward changes the x it saved."""

    held: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, w: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        Careless.held.append(x)
        return grad * x.mul_(2), None


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("budget", BUDGETS)
def test_a_backward_that_changes_what_it_saved_spoils_no_other(directory: Path, budget: int | str, held: bool):
    spill = save_on_disk(directory, ram_budget=budget)
    for _ in range(2):
        w, v, x = weight(), weight(), batch()
        wanted = x.clone()
        with spill:
            right, careless = (w * x).sum(), Careless.apply(v, x).sum()
        del x
        careless.backward()
        assert torch.equal(v.grad, 2 * wanted)
        if not held:
            Careless.held.clear()
        try:
            right.backward()
        except SavedTensorError as error:
            assert held or budget != 0
            assert "modified by an inplace operation" in str(error)
        else:
            assert not held
            assert torch.equal(w.grad, wanted)
        Careless.held.clear()


def test_changes_that_race_with_the_writer_are_never_taken_for_what_was_saved(directory: Path):
    spill, w = save_on_disk(directory, ram_budget=8 * NBYTES), weight()
    inputs = [torch.full(SHAPE, float(i)) for i in range(200)]
    losses = []
    for i, x in enumerate(inputs):
        with spill:
            losses.append((x * w).sum())
        if i >= 5 and i % 2:
            inputs[i - 5].add_(1000)
    changed = {i - 5 for i in range(5, 200) if i % 2}
    for i, loss in enumerate(losses):
        w.grad = None
        try:
            loss.backward()
        except SavedTensorError:
            assert i in changed
        else:
            assert i not in changed
            assert (w.grad == i).all()


@pytest.mark.parametrize("budget", [0, "16KiB"])
def test_what_two_nodes_saved_beyond_the_budget_is_read_once(budget: int | str, directory: Path):
    scores = torch.randn(400, 60, requires_grad=True)
    targets = torch.randint(0, 60, (400,))
    spill = save_on_disk(directory, ram_budget=budget, min_bytes=4096)
    with spill:
        loss = torch.nn.functional.cross_entropy(scores * 2, targets)  # log_softmax and nll_loss both save its result
    spill.flush()
    after: list[int] = []
    log_softmax = loss.grad_fn.next_functions[0][0]
    log_softmax.next_functions[0][0].register_prehook(lambda *_: after.append(spill.stats().ram_bytes))
    loss.backward()
    assert 400 * 60 * 4 <= spill.stats().read_bytes < 2 * 400 * 60 * 4
    assert after[0] < 400 * 60 * 4  # nobody needs it any more
    scores.grad, wanted = None, scores.grad
    torch.nn.functional.cross_entropy(scores * 2, targets).backward()
    assert torch.equal(scores.grad, wanted)


def test_a_retained_graph_holds_nothing_beyond_the_budget(directory: Path):
    scores = torch.randn(400, 60, requires_grad=True)
    spill = save_on_disk(directory, ram_budget=0)
    with spill:
        loss = torch.nn.functional.cross_entropy(scores * 2, torch.randint(0, 60, (400,)))
    for _ in range(2):
        loss.backward(retain_graph=True)
        assert spill.stats().ram_bytes == 0
