"""Where operations compute: operands, results, indices and gradients are in one place; the host computes the rest."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DeviceError, HostComputeWarning
from spillgrad.nn import functional as F
from spillgrad.ops import placement
from spillgrad.ops.matrix_products import linear
from spillgrad.ops.operation import operation

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def there() -> sg.Tensor:
    return sg.tensor(VALUES, device="cuda")


@pytest.fixture
def here() -> sg.Tensor:
    return sg.tensor(VALUES)


MIXED = {
    "in place": lambda a, b: a.clone().add_(b),
    "in place from a number of the device": lambda a, b: a.clone().add_(b[0, 0]) if b.is_cuda else a + b,
    "cat": lambda a, b: sg.cat([a, b]),
    "stack": lambda a, b: sg.stack([a, b]),
    "linear with an activation": lambda a, b: linear(a, b, activation="relu"),
    "linear with a residual": lambda a, b: linear(a, a, residual=b[:, :2]),
    "out": lambda a, b: sg.add(a, a, out=sg.zeros(2, 3, device=b.device)),
    "out without dimensions": lambda a, b: sg.add(a[0, 0], a[0, 1], out=sg.zeros((), device=b.device)),
    "out of a comparison": lambda a, b: sg.logical_and(a, a, out=sg.zeros(2, 3, dtype=sg.bool, device=b.device)),
    "isclose": lambda a, b: sg.isclose(a, b),
    "searchsorted": lambda a, b: sg.searchsorted(a[0], b[0]),
    "index_put": lambda a, b: sg.index_put(a, (sg.tensor([0, 1], device=a.device),), b, accumulate=True),
    "select_scatter": lambda a, b: sg.select_scatter(a, b[0], 0, 1),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_and_out_are_on_one_device(name, here, there):
    for a, b in ((here, there), (there, here)):
        with pytest.raises(DeviceError, match="cuda:0"):
            MIXED[name](a, b)


def test_an_index_of_the_device_is_for_its_tensors(here, there):
    index = sg.tensor([1, 0], device="cuda")
    for part in (index, there > 2, (slice(None), index)):
        with pytest.raises(DeviceError, match="move it with"):
            here[part]
        with pytest.raises(DeviceError, match="move it with"):
            here[part] = 0
    np.testing.assert_array_equal(there[index.cpu()].cpu(), VALUES[[1, 0]])


def test_lists_and_arrays_are_written_to_a_device(there):
    there[sg.tensor([0, 1], device="cuda"), 1:] = [[7.0, 8.0]]
    there[there == 0] = np.array([9.0])
    np.testing.assert_array_equal(there.cpu(), [[9, 7, 8], [3, 7, 8]])


def test_an_index_out_of_range_gets_no_gradient(there):
    leaf = there.requires_grad_()
    leaf[sg.tensor([1, 7, -9], device="cuda")].sum().backward()
    leaf[sg.tensor([1, 7, -9], device="cuda"), sg.tensor([0, 1, 2], device="cuda")].sum().backward()
    np.testing.assert_array_equal(leaf.grad.cpu(), [[0, 0, 0], [2, 1, 1]])


class Elsewhere(sg.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 2

    @staticmethod
    def backward(ctx, g):
        return g.cpu()


def test_a_gradient_of_another_device_is_an_error(there):
    leaf = there.requires_grad_()
    with pytest.raises(DeviceError, match="gradient on 'cpu'"):
        (leaf * 2).backward(sg.ones(2, 3))
    hooked = leaf * 2
    hooked.register_hook(lambda g: g.cpu())
    with pytest.raises(DeviceError, match="gradient on 'cpu'"):
        hooked.sum().backward()
    with pytest.raises(DeviceError, match="gradient on 'cpu'"):
        Elsewhere.apply(leaf).sum().backward()
    assert leaf.grad is None
    (leaf * 2).backward(np.ones((2, 3)))
    assert leaf.grad.device == "cuda"


def test_derivatives_are_checked_and_collected_on_the_device():
    def function(a):
        return (a * a).sum(1)

    x = sg.tensor(VALUES[:, :2], dtype=sg.float64, device="cuda")
    assert sg.autograd.gradcheck(function, x.clone().requires_grad_())
    assert sg.autograd.gradgradcheck(function, x.clone().requires_grad_())
    found = sg.autograd.functional.jacobian(function, x)
    assert found.device == "cuda"
    wanted = sg.autograd.functional.jacobian(function, x.cpu())
    np.testing.assert_array_equal(found.cpu(), wanted)


def test_integers_are_compared_with_numbers_that_are_none_of_theirs():
    for value in (-1, 7, 300, 2**70, -(2**70)):
        for device in ("cpu", "cuda"):
            x = sg.tensor([7, 200], dtype=sg.uint8, device=device)
            assert (x < value).tolist() == [value > number for number in (7, 200)]
            assert (x == value).tolist() == [value == number for number in (7, 200)]


def test_nothing_is_all_true_and_not_any():
    empty = sg.zeros(0, 3, device="cuda")
    assert (empty.any().item(), empty.all().item()) == (False, True)
    assert (empty.any(0).tolist(), empty.all(0).tolist(), empty.any(1).tolist()) == ([False] * 3, [True] * 3, [])


BY_HOST = {
    "unique slices": lambda a: a.unique(dim=1),
    "histogram": lambda a: sg.histogram(a, sg.tensor([0.0, 2.5, 5.0], device=a.device)),
    "poisson": lambda a: sg.poisson(a),
    "det": lambda a: sg.linalg.det(a[:, 1:]),
    "gcd": lambda a: sg.gcd(a.detach().long(), 2),
    "fft": lambda a: sg.view_as_real(sg.fft.fft(a)),
    "multilabel_margin_loss": lambda a: F.multilabel_margin_loss(a, a.detach().long() % 3),
}


@pytest.mark.parametrize("name", BY_HOST)
def test_the_host_computes_what_has_no_kernel_and_its_gradients(name, here, there, monkeypatch):
    monkeypatch.setattr("spillgrad.ops.placement._warned", set())
    wanted = results_and_gradients(BY_HOST[name], here)
    with pytest.warns(HostComputeWarning):
        found = results_and_gradients(BY_HOST[name], there)
    for value, other in zip(found, wanted, strict=True):
        assert (value.device, other.device) == ("cuda", "cpu")
        np.testing.assert_array_equal(value.cpu(), other)


def results_and_gradients(function, leaf):
    """Return a function's result and, where they exist, its first and second derivatives."""
    sg.manual_seed(3)
    found = function(leaf.requires_grad_())
    results = list(found) if isinstance(found, tuple) else [found]
    if results[0].requires_grad:
        results += sg.grad((results[0] ** 2).sum(), leaf, create_graph=True)
        results += sg.grad((results[-1] ** 2).sum(), leaf)
    return [result.detach() for result in results]


def test_the_host_tells_once_that_it_computes(there, monkeypatch):
    monkeypatch.setattr("spillgrad.ops.placement._warned", set())
    with pytest.warns(HostComputeWarning, match="unique") as told:
        there.unique(dim=0)
        there.unique(dim=0)
    assert len(told) == 1


def add_one(array):
    array += 1
    return array


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
def test_what_would_change_the_host_s_copy_of_an_argument_is_refused(there):
    without_kernel = operation("without_kernel", lambda self: add_one(np.logaddexp(self, 0, out=self)))
    for change in (
        lambda: without_kernel(there), lambda: placement.by_host(lambda tensor: tensor.add_(1))(there),
        lambda: placement.computed_anywhere("without_kernel", lambda a: np.add(a, 1, out=a, where=[True]), there.array),
    ):  # fmt: skip
        with pytest.raises(DeviceError, match=r"on cuda:0 this changes a tensor in place.* moved with \.cpu"):
            change()
    np.testing.assert_array_equal(there.cpu(), VALUES)
    more = placement.compute_on_host("fresh", lambda a: add_one(a.copy()), there.array)
    np.testing.assert_array_equal(more.to_host(), VALUES + 1)


def test_what_has_no_kernel_and_reads_its_largest_element(there):
    places = there.long()
    np.testing.assert_array_equal(F.one_hot(places).cpu(), F.one_hot(places.cpu()))
    assert sg.equal(there, there * 1)
    assert sg.allclose(there, there * 1)


@pytest.mark.parametrize("affine", [True, False])
def test_statistics_of_batches_are_followed_on_the_device(affine, here, there):
    found = []
    for operand in (here, there):
        norm = sg.nn.BatchNorm1d(3, affine=affine).to(operand.device)
        output = norm(operand.requires_grad_())
        (output * operand).sum().backward()
        found.append((output, norm.running_mean, norm.running_var, operand.grad))
    for wanted, value in zip(*found, strict=True):
        assert value.device == "cuda"
        np.testing.assert_allclose(value.detach().cpu(), wanted.detach(), 1e-5, 1e-6)
    assert found[1][1].cpu().any()


def test_gradients_of_both_devices_are_clipped_together(here, there):
    leaves = [here.requires_grad_(), there.requires_grad_()]
    for leaf in leaves:
        leaf.sum().backward()
    assert sg.nn.utils.clip_grad_norm_(leaves, 1.0).item() == pytest.approx(12**0.5)
    for leaf in leaves:
        np.testing.assert_allclose(leaf.grad.cpu(), np.full((2, 3), 12**-0.5), 1e-6)


@pytest.mark.parametrize("location", ["cuda", {"cpu": "cuda"}])
def test_files_are_loaded_to_the_device_that_is_said(there, tmp_path, location):
    sg.save({"a": there, "b": there[0], "c": VALUES}, tmp_path / "file")
    found = sg.load(tmp_path / "file", map_location=location)
    assert (found["a"].device, found["b"].device) == ("cuda", "cuda")
    np.testing.assert_array_equal(found["a"].cpu(), VALUES)
    np.testing.assert_array_equal(found["b"].cpu(), VALUES[0])
    assert isinstance(found["c"], np.ndarray)
    assert sg.load(tmp_path / "file")["a"].device == "cpu"


def test_tensors_are_made_on_the_device_that_is_said(here, there):
    assert sg.randint_like(there, 9).device == "cuda"
    assert sg.tril_indices(2, 2, device="cuda").device == "cuda"
    assert here.to(0).device == "cuda"


def test_devices_are_equal_both_ways():
    first, second = sg.device("cuda"), sg.device("cuda", 1)
    assert first == "cuda:0"
    assert first != second
    assert second != first
    assert second == "cuda:1"
