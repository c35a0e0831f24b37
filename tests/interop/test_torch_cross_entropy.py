"""Under `save_on_disk`, the cross entropy of large logits has PyTorch's bits in less memory."""

import weakref
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="`make test-peers` installs PyTorch")

from torch.autograd import forward_ad  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from spillgrad.interop.torch import save_on_disk  # noqa: E402
from spillgrad.interop.torch.cross_entropy import PIECE_BYTES  # noqa: E402
from tests.interop.torch_models import bits  # noqa: E402

CLASSES = 20_011
ROWS = 2 * PIECE_BYTES // (4 * CLASSES) + 3  # the last piece is a smaller one


def logits_of(dtype: Any = torch.float32, rows: int = 2 * ROWS) -> Any:
    torch.manual_seed(0)
    return torch.randn(rows, CLASSES).mul(4).to(dtype).requires_grad_()


def target_of(rows: int = 2 * ROWS) -> Any:
    target = torch.randint(0, CLASSES, (rows,))
    target[::7] = -100
    return target


def with_and_without(directory: Path, step: Any) -> list[list[bytes]]:
    """Return the bits of the tensors that `step` returns: those of PyTorch alone, and those under `save_on_disk`."""
    alone = step()
    with save_on_disk(directory, ram_budget="1MiB"):
        under = step()
    return [[bits(tensor) for tensor in found] for found in (alone, under)]


OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "ignoring": {"ignore_index": 5},
    "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": torch.linspace(0, 1, CLASSES)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_losses_and_gradients_have_pytorchs_bits(directory: Path, options: dict[str, Any]):
    target = target_of().clamp(0) if "ignore_index" in options else target_of()
    target[3] = 5

    def step() -> Any:
        logits = logits_of()
        loss = functional.cross_entropy(logits * 1.5, target, **options)
        loss.backward(torch.linspace(1, 2, loss.numel()).view(loss.shape))
        return loss, logits.grad

    alone, under = with_and_without(directory, step)
    assert under == alone


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_in_every_dtype(directory: Path, dtype: Any):
    def step() -> Any:
        logits = logits_of(dtype)
        loss = functional.cross_entropy(logits, target_of())
        loss.backward()
        return loss, logits.grad

    alone, under = with_and_without(directory, step)
    assert under == alone


KINDS = ["transposed", "three axes", "probabilities", "autocast", "a module", "checkpoint", "vmap"]


@pytest.mark.parametrize("kind", KINDS)
def test_however_it_is_called(directory: Path, kind: str):
    def loss_of(logits: Any) -> Any:
        if kind == "transposed":
            return functional.cross_entropy(logits.t().contiguous().t(), target_of())
        if kind == "three axes":
            return functional.cross_entropy(logits.view(2, ROWS, CLASSES).transpose(1, 2), target_of().view(2, ROWS))
        if kind == "probabilities":
            return functional.cross_entropy(logits, logits.detach().softmax(1))
        if kind == "autocast":
            with torch.autocast("cpu"):
                return functional.cross_entropy(logits @ torch.ones(CLASSES, 1) * logits, target_of())
        if kind == "a module":
            return torch.nn.CrossEntropyLoss(ignore_index=1)(logits, target_of().clamp(0))
        if kind == "vmap":
            several = torch.func.vmap(functional.cross_entropy)
            return several(logits.view(2, ROWS, CLASSES), target_of().view(2, ROWS)).sum()
        return checkpoint(lambda x: functional.cross_entropy(x * 2, target_of()), logits, use_reentrant=False)

    def step() -> Any:
        logits = logits_of()
        loss = loss_of(logits)
        loss.backward()
        return loss, logits.grad

    torch.manual_seed(0)
    alone = step()
    torch.manual_seed(0)
    with save_on_disk(directory, ram_budget="1MiB"):
        logits = logits_of()
        loss = loss_of(logits)
    loss.backward()
    assert list(map(bits, (loss, logits.grad))) == list(map(bits, alone))


def test_second_derivatives_and_other_uses_of_the_logits(directory: Path):
    def step() -> Any:
        logits = logits_of(rows=ROWS)
        scores = logits.sin()
        before, after = scores.logsumexp(1).square().sum(), (scores * 3).sum()
        loss = functional.cross_entropy(scores, target_of(ROWS)) + before + after
        first = torch.autograd.grad(loss, logits, create_graph=True)[0]
        second = torch.autograd.grad(first.square().sum(), logits, retain_graph=True)[0]
        loss.backward(retain_graph=True)
        loss.backward()
        return loss, first, second, logits.grad

    alone, under = with_and_without(directory, step)
    assert under == alone


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.cross_entropy:
            return "its own"
        return super().__torch_function__(func, types, args, kwargs or {})


class Recording(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_who_overrides_the_function_still_does(directory: Path):
    pytorchs = torch._C._nn.cross_entropy_loss
    with Recording() as outer, save_on_disk(directory, ram_budget="1MiB"):
        with save_on_disk(directory, ram_budget="1MiB"):
            functional.cross_entropy(logits_of(), target_of())
        assert functional.cross_entropy(logits_of(), target_of().as_subclass(Overriding)) == "its own"
        assert functional.cross_entropy in outer.seen
        assert torch._C._nn.cross_entropy_loss not in outer.seen
    assert torch._C._nn.cross_entropy_loss is pytorchs


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_transforms_compute_what_they_compute_alone(directory: Path):
    logits, targets = logits_of(), torch.stack([target_of(), target_of().clamp(0)])

    def step() -> Any:
        of_targets = torch.func.vmap(lambda target: functional.cross_entropy(logits, target))(targets)
        losses = torch.stack([functional.cross_entropy(logits, target) for target in targets])
        gradients = torch.autograd.grad(losses, logits, torch.eye(2), is_grads_batched=True)[0]
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(logits.detach(), torch.ones_like(logits))
            tangent = forward_ad.unpack_dual(functional.cross_entropy(dual, targets[0])).tangent
        return of_targets, gradients, tangent

    alone, under = with_and_without(directory, step)
    assert under == alone


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_functions_that_nobody_may_override_go_their_quick_way(directory: Path):
    """With a mode of functions, a frozen encoder would compute other values where its input is padded."""
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval().requires_grad_(False)
    x, mask = torch.randn(3, 5, 16), torch.tensor([[False] * 3 + [True] * 2] * 3)
    alone, under = with_and_without(directory, lambda: (encoder(x, src_key_padding_mask=mask),))
    assert under == alone


class Counting(TorchDispatchMode):
    """Counts the bytes of the large tensors that functions make."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else [result]:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known and storage.nbytes() > PIECE_BYTES:
                self._known.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes()).atexit = False
        self.most = max(self.most, self.now)
        return result

    def _free(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.now -= nbytes


def test_backward_needs_two_tensors_of_the_logits_size_in_place_of_three(directory: Path):
    logits = logits_of()
    with save_on_disk(directory, ram_budget="1MiB"):
        loss = functional.cross_entropy(logits, target_of())
    with Counting() as lean:
        loss.backward()
    logits.grad = None
    with Counting() as alone:
        functional.cross_entropy(logits, target_of()).backward()
    assert lean.most == 2 * logits.nbytes  # one of them is read from the store
    assert alone.most == 3 * logits.nbytes


def test_errors_are_pytorchs(directory: Path):
    logits = logits_of()
    for target in (torch.full((2 * ROWS,), CLASSES), target_of(3), target_of().float()):
        with pytest.raises((IndexError, ValueError, RuntimeError)) as alone:
            functional.cross_entropy(logits, target)
        with save_on_disk(directory, ram_budget="1MiB"), pytest.raises(type(alone.value)) as under:
            functional.cross_entropy(logits, target)
        assert str(under.value) == str(alone.value)
