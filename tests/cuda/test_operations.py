"""Operations and their gradients give the same results on a device as on the host, without computing on the host."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DeviceError, HostComputeWarning
from spillgrad.nn import functional as F
from spillgrad.ops import placement
from spillgrad.ops.array_api_names import unique_all
from spillgrad.ops.elementwise import OPERATIONS
from spillgrad.ops.matrix_products import linear
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import parameters

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def indices(high: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, high, shape)


def truths(*shape: int) -> np.ndarray:
    return RNG.random(shape) < 0.5


A, B, C, ROW, VECTOR = floats(3, 5), floats(3, 5), floats(5, 4), floats(1, 5), floats(5)
CUBE, HEADS = floats(2, 3, 4), floats(2, 2, 5, 4)
TIES = np.float32([[1, 0, -0.0, 1, np.nan], [np.nan, 2, 2, -math.inf, 1], [3, 3, 3, 3, 3]])
PLACE_ROWS = RNG.integers(0, 7, (2, 5))
WHOLE, PLACES, MASK = RNG.integers(-9, 9, (3, 5)), indices(3, 4), truths(3, 5)
VOLUME = floats(1, 1, 3, 3, 2)

CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "arithmetic": (lambda a, b: (a + b) * 2 - a / (b * b + 1), (A, B)),
    "broadcast": (lambda a, b, c: a * b + c, (A, ROW, VECTOR)),
    "numbers": (lambda a: 1 - (2 / (a * a + 1)) ** 3, (A,)),
    "in place": (lambda a, b: (a * 1).add_(b).mul_(2).clamp_(-1, 1), (A, B)),
    "integers": (lambda a: (a * 3 + 1) // 2 % 5 - abs(a), (WHOLE,)),
    "comparisons": (lambda a, b: (a > b) & (a != 0) | ~(b <= 0), (A, B)),
    "where": (lambda a, b, m: sg.where(m, a, b), (A, B, MASK)),
    "masked_fill": (lambda a, m: a.masked_fill(m, -math.inf).exp(), (A, MASK)),
    "dtypes": (lambda a: a.double().float().bfloat16().float() + a.half().float() + a.int() + a.bool(), (A,)),
    "sum": (lambda a: a.sum(), (A,)),
    "sum over one": (lambda a: a.sum(1, keepdim=True) + a.sum(0), (A,)),
    "mean": (lambda a: a.mean((0, 2)), (CUBE,)),
    "prod": (lambda a: a.prod(1), (A,)),
    "var": (lambda a: a.var(1) + a.std(1), (A,)),
    "max": (lambda a: a.max(), (A,)),
    "max along": (lambda a: a.max(1).values * a.min(1).values, (A,)),
    "amax": (lambda a: a.amax(1) + a.amin((0, 1)), (A,)),
    "argmax": (lambda a: a.argmax(1) + a.argmin(1), (A,)),
    "logsumexp": (lambda a: a.logsumexp(1), (A,)),
    "norm": (lambda a: a.norm() + a.norm(dim=1), (A,)),
    "cumsum": (lambda a: a.cumsum(1), (A,)),
    "any and all": (lambda m: (m.any(1), m.all(0), m.any()), (MASK,)),
    "sum of integers": (lambda a: a.sum(1), (WHOLE,)),
    "max of integers": (lambda a: a.max(1), (WHOLE,)),
    "count_nonzero": (lambda a: a.count_nonzero(), (WHOLE,)),
    "softmax": (lambda a: a.softmax(-1) + a.log_softmax(0), (A,)),
    "layer_norm": (lambda a, w, b: F.layer_norm(a, (5,), w, b), (A, VECTOR, VECTOR)),
    "rms_norm": (lambda a, w: F.rms_norm(a, (5,), w), (A, VECTOR)),
    "batch_norm": (lambda a, w, b: _tracked_norm(a, w, b), (CUBE, floats(3), floats(3))),
    "group_norm": (lambda a, w, b: F.group_norm(a, 3, w, b) + F.instance_norm(a), (CUBE, floats(3), floats(3))),
    "local_response_norm": (lambda a: F.local_response_norm(a, 2), (CUBE,)),
    "conv1d": (lambda a, w, b: F.conv1d(a, w, b, 2, 1), (CUBE, floats(2, 3, 3), floats(2))),
    "conv2d of groups": (
        lambda a, w: F.conv2d(a, w, None, (1, 2), "valid", (2, 1), groups=2), (HEADS, floats(4, 1, 2, 2)),
    ),
    "conv3d": (lambda a, w, b: F.conv3d(a, w, b, padding=(1, 0, 0)), (VOLUME, floats(2, 1, 2, 2, 1), floats(2))),
    "conv_transpose": (
        lambda a, w, v, u: (
            F.conv_transpose1d(a, w, stride=2, output_padding=1), F.conv_transpose3d(v, u, padding=(1, 0, 0))
        ),
        (CUBE, floats(3, 2, 2), VOLUME, floats(1, 2, 2, 1, 2)),
    ),
    "max_pool": (
        lambda a, v: (
            F.max_pool2d(a, 2, 1, 1, return_indices=True), F.max_pool3d(v, 2, 1, return_indices=True),
            F.adaptive_max_pool2d(a, (2, 3)),
        ),
        (HEADS, VOLUME),
    ),
    "avg_pool": (
        lambda a, c, v: (
            F.avg_pool2d(a, 2, 2, 1, count_include_pad=False), F.avg_pool1d(c, 3, 2, ceil_mode=True),
            F.avg_pool3d(v, 2, divisor_override=3), F.adaptive_avg_pool3d(v, (2, 1, 3)),
        ),
        (HEADS, CUBE, VOLUME),
    ),
    "lp_pool": (lambda a, c: (F.lp_pool2d(a * a, 3, 2), F.lp_pool1d(c * c, 2, 2)), (HEADS, CUBE)),
    "unfold and fold": (
        lambda a: (F.unfold(a, 2, padding=1), F.fold(a.reshape(2, 4, 10), (3, 6), 2), a.unfold(2, 3, 2)), (HEADS,),
    ),
    "interpolate": (
        lambda a: (
            F.interpolate(a, scale_factor=2), F.interpolate(a, (3, 3), mode="bilinear"),
            F.interpolate(a, (2, 2), mode="area"), F.interpolate(a, (3, 5), mode="bicubic", antialias=True),
        ),
        (HEADS,),
    ),
    "pad with its own elements": (
        lambda a: F.pad(a, (1, 2), "reflect") + F.pad(a, (2, 1), "circular") + F.pad(a, (1, 2), "replicate"), (CUBE,),
    ),
    "matmul": (lambda a, c: a @ c, (A, C)),
    "matmul of transposed": (lambda a, b: a.T @ b, (A, B)),
    "matmul of batches": (lambda a, b: a @ b.transpose(-1, -2), (CUBE, CUBE)),
    "matmul of vectors": (lambda a, v: (a @ v, v @ v), (A, VECTOR)),
    "linear": (lambda a, w, b: F.linear(a, w, b), (A, floats(4, 5), floats(4))),
    "linear with an activation": (
        lambda a, w, b: linear(a, w, b, activation="gelu"), (A, floats(4, 5), floats(4)),
    ),
    "linear with a residual": (
        lambda a, w, b, r: linear(a, w, b, residual=r), (A, floats(4, 5), floats(4), floats(3, 4)),
    ),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q * 2, q, is_causal=True), (HEADS,)),
    "attention with a mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q * 2, attn_mask=m),
        (HEADS, truths(5, 5) | np.eye(5, dtype=bool)),
    ),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=1), (PLACES, A)),
    "embedding with options": (
        lambda i, w: F.embedding(i, w, max_norm=1.0, scale_grad_by_freq=True), (np.array([2, 0, 2, 1]), A),
    ),
    "embedding_bag": (
        lambda i, w, o: [F.embedding_bag(i, w, o, mode=mode, padding_idx=1) for mode in ("sum", "mean", "max")],
        (np.array([2, 1, 2, 0, 0]), A, np.array([0, 2, 2])),
    ),
    "one_hot": (lambda i: (F.one_hot(i), F.one_hot(i, 6)), (PLACES,)),
    "different values and where": (lambda a, i: (unique_all(a), unique_all(i)), (TIES, WHOLE)),
    "different values": (
        lambda a, i, m: (
            a.unique(return_inverse=True, return_counts=True), i.unique(return_counts=True), m.unique(), a[:0].unique(),
            i.unique_consecutive(return_inverse=True, return_counts=True), (i % 2).unique_consecutive(dim=1),
        ), (TIES, WHOLE, MASK),
    ),
    "places among sorted values": (
        lambda a, b, i: (
            sg.searchsorted(a.sort(1).values, b), sg.searchsorted(b.flatten().sort().values, a, right=True),
            sg.bucketize(i, sg.tensor([-3, 0, 2.5], device=i.device), out_int32=True), sg.searchsorted(b[0], 0.5),
        ), (TIES, A, WHOLE),
    ),
    "isin": (
        lambda a, i, m: (
            sg.isin(i, i[0, :2]), sg.isin(a, a[1], invert=True), sg.isin(i, 3), sg.isin(a, a[:0]), sg.isin(m, i[0, 0]),
        ), (TIES, WHOLE, MASK),
    ),
    "how often": (
        lambda i, a: (i.flatten().bincount(), i[0].bincount(a.detach(), 9), a.histc(4), a.histc(3, -1, 1)),
        (PLACE_ROWS, ROW[0]),
    ),
    "places": (
        lambda a, i, m: (
            m.nonzero(), i.nonzero(), a.argwhere(), sg.where(m), m[0].nonzero(as_tuple=True), m[0, 0].nonzero(),
            sg.unravel_index(i.abs(), (3, 4)), a[:0].nonzero(),
        ), (TIES, WHOLE, MASK),
    ),
    "running extremes": (lambda a, i: (a.cummax(1), a.cummin(0), i.cummax(0)), (TIES, WHOLE)),
    "sort": (lambda a: (a.sort(1), a.sort(0, descending=True), sg.msort(a), a.argsort(1)), (A,)),
    "sort of few": (lambda a: (a.sort(1), a[0, 0].sort(), a[:, :0].sort(1)), (TIES,)),
    "sort of integers": (lambda a, m: (a.sort(1, descending=True), m.sort(0), a.to(sg.uint8).msort()), (WHOLE, MASK)),
    "topk": (lambda a: (a.topk(2), a.topk(2, 0, largest=False), a.topk(0)), (A,)),
    "kthvalue": (lambda a: (a.kthvalue(2), a.kthvalue(3, 0, keepdim=True)), (TIES,)),
    "medians": (lambda a, b: (a.median(), a.median(1), b.nanmedian(), b.nanmedian(0), b.median(1)), (A, TIES)),
    "mode": (lambda a, b: (a.mode(1), b.mode(0)), (WHOLE, A)),
    "quantiles": (
        lambda a, q: (a.quantile(q.detach(), 1), sg.quantile(a, 0.3, interpolation="nearest"), a.nanquantile(0.6, 0)),
        (A, np.float32([0, 0.3, 1])),
    ),
    "gather": (lambda a, i: a.gather(1, i), (A, indices(5, 3, 2))),
    "scatter_add": (lambda a, i, b: a.scatter_add(1, i, b), (A, indices(5, 3, 2), floats(3, 2))),
    "index_select": (lambda a, i: a.index_select(0, i), (A, PLACES)),
    "index_add": (lambda a, i, b: a.index_add(0, i, b), (A, PLACES, floats(4, 5))),
    "rows by index": (lambda a, i: a[i], (A, PLACES)),
    "slices": (lambda a: a[1:, ::2] + a[0, None, :3], (A,)),
    "assignment": (lambda a, b: _assigned(a, b), (A, B)),
    "writes by index": (lambda a, b, i, m: _written(a, b, i, m), (A, B, np.array([2, 0, 2, -1]), MASK)),
    "index_put": (
        lambda a, b, i: (a.index_put((i,), b[i] * 2), a.index_put((i,), b[i], accumulate=True)), (A, B, PLACES),
    ),
    "scatter": (lambda a, i, b: (a.scatter(1, i, b), a.scatter(0, i % 3, 2.5)), (A, indices(5, 3, 4), B)),
    "index_copy": (lambda a, i, b: (a.index_copy(1, i, b), a.index_fill(0, i % 3, -1.0)), (A, PLACES, floats(3, 4))),
    "masks": (lambda a, b, m: (a[m], a.masked_select(m), a.masked_scatter(m, b), a[:, m[0]], a[m[:, 0]]), (A, B, MASK)),
    "sums of integers": (
        lambda a, i: (a.index_add(0, i, a[i]), a.scatter_add(1, i[None], a[:1]), a[i].index_put((i[:3],), a, True)),
        (WHOLE, PLACES % 3),
    ),
    "scatter_reduce": (
        lambda a, i, b: [a.scatter_reduce(1, i, b, way) for way in ("sum", "mean", "amax", "amin", "prod")],
        (A, indices(5, 3, 4), B),
    ),
    "views": (lambda a: a.reshape(5, 3).T.unsqueeze(0).expand(2, 3, 5).permute(2, 0, 1), (A,)),
    "flip, roll and pad": (lambda a: (F.pad(a.flip(1), (1, 2)), a.roll((1, -7), (0, 1)), a.roll(2)), (A,)),
    "cat and stack": (lambda a, b: (sg.cat([a, b], 1), sg.stack([a, b], 1)), (A, B)),
    "split and unbind": (lambda a: (a.split(2, 1)[1], a.unbind(0)[2]), (A,)),
    "repeat": (lambda a: a.repeat(2, 3), (A,)),
    "triangles": (lambda a: a.tril() + a.triu(1), (A,)),
    "cross_entropy": (lambda a, t: F.cross_entropy(a, t), (A, indices(5, 3))),
    "cross_entropy of few": (
        lambda a, t, w: F.cross_entropy(a, t, w, ignore_index=1, label_smoothing=0.1),
        (A, np.array([1, 4, 0]), abs(VECTOR)),
    ),
    "nll_loss": (lambda a, t: F.nll_loss(a.log_softmax(1), t), (A, indices(5, 3))),
    "linear_cross_entropy": (lambda a, w, t: F.linear_cross_entropy(a, w, t), (A, floats(7, 5), indices(7, 3))),
    "mse_loss": (lambda a, b: F.mse_loss(a, b), (A, B)),
    "smooth losses": (lambda a, b: F.l1_loss(a, b) + F.smooth_l1_loss(a, b) + F.huber_loss(a, b), (A, B)),
    "binary_cross_entropy": (
        lambda a, p: F.binary_cross_entropy_with_logits(a, p) + F.binary_cross_entropy(a.sigmoid(), p),
        (A, RNG.random((3, 5)).astype(np.float32)),
    ),
    "kl_div": (lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"), (A, B)),
    "dropout": (lambda a: F.dropout(a, 0.4) + F.dropout_add(a, a * 2, 0.4), (A,)),
    "fuse": (lambda a, b: _fused(a, b), (A, B)),
    "random numbers": (lambda a: _drawn(a.device), (A,)),
    "made from nothing": (
        lambda a: (a.new_zeros(2), sg.ones_like(a), sg.full((2, 2), 3, device=a.device), a.new_tensor([1, 2])), (A,),
    ),
}  # fmt: skip


def _assigned(a: Any, b: Any) -> Any:
    a = a * 1
    a[1] = b[0] * 2
    a[:, 2:] += b[:, :3]
    return a


def _written(a: Any, b: Any, i: Any, m: Any) -> Any:
    a, c = a * 1, b * 1
    a[i] = b[[0, 1, 2, 0]]
    a[1:, i] = b[1:, 0, None] * 3
    a[m] = 0.5
    c[m] = a[m] * 2
    c[m[:, 0]] = a[0]
    c[i, i + 1] = b[0, :4]
    c.T[i] = 7
    return a, c


@sg.fuse
def _fused(a: Any, b: Any) -> Any:
    return sg.where(a > 0, a * b.sigmoid(), (a - b).tanh())


def _drawn(device: Any) -> Any:
    return (
        sg.rand(3, 5, device=device), sg.randn(7, device=device), sg.randint(0, 9, (4,), device=device),
        sg.randperm(6, device=device), sg.empty(5, device=device).normal_(1, 2),
    )  # fmt: skip


def _tracked_norm(a: Any, w: Any, b: Any) -> Any:
    mean, var = a.new_zeros(3), a.new_ones(3)
    return F.batch_norm(a, mean, var, w, b, True), mean, var, F.batch_norm(a, mean, var, w, b)


def flattened(results: Any) -> list[sg.Tensor]:
    if isinstance(results, sg.Tensor):
        return [results]
    return [tensor for result in results for tensor in flattened(result)]


def computed(function: Callable[..., Any], arrays: tuple[np.ndarray, ...], device: str) -> list[np.ndarray]:
    """Return the results of a function, then the gradients of all its floating-point operands."""
    sg.manual_seed(5)
    operands = [sg.tensor(array, device=device) for array in arrays]
    leaves = [operand.requires_grad_() for operand in operands if operand.is_floating_point()]
    results = flattened(function(*operands))
    recorded = [result for result in results if result.requires_grad]
    if recorded:
        seeds = [sg.arange(r.numel(), dtype=r.dtype, device=device).reshape(r.shape) * 0.1 - 0.3 for r in recorded]
        sg.autograd.backward(recorded, seeds)
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
    for tensor in (*results, *gradients):
        assert tensor.device == device
    return [tensor.numpy(force=True) for tensor in (*results, *gradients)]


def assert_the_same(function: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> None:
    wanted = computed(function, arrays, "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error", HostComputeWarning)
        found = computed(function, arrays, "cuda")
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, 2e-5, 2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_device_computes_as_the_host_does(name):
    assert_the_same(*CASES[name])


# Operands for which every row has a finite value and gradient.
POSITIVE = [abs(floats(2, 3)) * 0.4 + 0.2 for _ in range(4)]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_the_table_computes_on_a_device_as_on_the_host(name):
    function = OPERATIONS[name]
    operands = POSITIVE[: len(parameters(ROWS[name].forward))]
    if name == "where":
        operands[0] = truths(2, 3)
    if name in ("acosh",):
        operands[0] = operands[0] + 1
    assert_the_same(function, tuple(operands))


TARGETS = np.array([1, 4, 0])
TWICE: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "cross_entropy": (lambda a, t: F.cross_entropy(a, t), (A, TARGETS)),
    "cross_entropy of few": (
        lambda a, t, w: F.cross_entropy(a, t, w.detach(), ignore_index=1, label_smoothing=0.1),
        (A, TARGETS, abs(VECTOR)),
    ),
    "cross_entropy of each": (lambda a, t: F.cross_entropy(a, t, reduction="none"), (A.astype(np.float64), TARGETS)),
    "cross_entropy of probabilities": (lambda a, b: F.cross_entropy(a, b.softmax(1).detach()), (A, B)),
    "linear_cross_entropy": (
        lambda a, w, t: F.linear_cross_entropy(a, w, t, ignore_index=2), (A, floats(4, 5), np.array([1, 3, 2])),
    ),
    "nll_loss": (lambda a, t: F.nll_loss(a.log_softmax(1), t), (A, TARGETS)),
    "sort": (lambda a: a.sort(1).values ** 3, (A,)),
    "writes by index": (lambda a, b, i, m: _written(a * a, b * b, i, m), (A, B, np.array([2, 0, 2, -1]), MASK)),
    "scatter_reduce": (lambda a, i, b: a.scatter_reduce(1, i, b, "prod"), (A, np.array([[0, 2, 0], [1, 1, 3]]), B)),
    "embedding": (lambda i, w: F.embedding(i, w, padding_idx=1) ** 3, (PLACES, A)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
def test_a_device_differentiates_twice_as_the_host_does(name):
    function, arrays = TWICE[name]

    def gradients(*operands):
        leaves = [operand for operand in operands if operand.requires_grad]
        total = sum((result * result).sum() for result in flattened(function(*operands)))
        found = sg.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
        return [gradient for gradient in found if gradient is not None]

    assert_the_same(gradients, arrays)


def test_a_target_that_is_no_class_has_no_number_for_a_gradient_however_it_is_computed():
    x, target = sg.tensor(A, device="cuda", requires_grad=True), sg.tensor([1, 5, -100], device="cuda")
    for create_graph in (False, True):
        losses = F.cross_entropy(x, target, reduction="none")
        (gradient,) = sg.autograd.grad(losses.sum(), [x], create_graph=create_graph)
        missing = np.isnan(gradient.numpy(force=True))
        np.testing.assert_array_equal(missing, np.broadcast_to([[False], [True], [False]], A.shape))


def test_what_a_device_remembers_of_a_call_serves_calls_that_are_alike():
    def calls(a, m):
        wide, flat = a.reshape(4, 4), a.reshape(-1)
        for turn in range(2):
            for x, y in ((wide, wide.T), (flat[1:9], flat[:8]), (flat[4:12], flat[:8]), (wide[::2], wide[1])):
                yield x + y
            for number in (2, 2.5, True, -0.0, 1e39, -math.inf, turn):
                yield (flat * number, number - flat, sg.where(m, flat, number), sg.maximum(flat, number))
            yield (
                flat > turn,
                wide.bfloat16() * 3,
                wide @ wide.T,
                wide.sum(1),
                wide.sum(1, keepdim=True),
                wide.mean(0),
            )
            yield (F.linear(a, wide), F.linear(a, wide, wide[turn]), wide.double() @ wide.double())
            yield flat[1:9].clone().add_(flat[:8]).mul_(m[:8])

    assert_the_same(lambda a, m: list(calls(a, m)), (floats(2, 2, 4), truths(16)))


def test_what_has_no_kernel_is_computed_by_the_host_with_a_warning_once():
    x = sg.tensor(A, device="cuda", requires_grad=True)
    placement._warned.clear()
    with pytest.warns(HostComputeWarning, match="logcumsumexp: cuda:0 has no kernel for it"):
        sums = x.logcumsumexp(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.detach().logcumsumexp(1)
    assert sums.device == "cuda"
    np.testing.assert_allclose(sums.numpy(force=True), np.logaddexp.accumulate(A, 1), 1e-6)
    with pytest.warns(HostComputeWarning, match="recurrence"):
        sums[:, 0].sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(force=True), np.ones_like(A) * (np.arange(5) == 0))


def test_tensors_of_two_devices_are_refused_and_numbers_of_the_host_are_not():
    here, there = sg.tensor(A), sg.tensor(A, device="cuda")
    for refused in (
        lambda: there + here, lambda: here @ there.T, lambda: sg.cat([here, there]), lambda: F.linear(there, here),
        lambda: F.embedding(sg.tensor(PLACES), there), lambda: there.add_(here), lambda: here.gather(1, there.long()),
    ):  # fmt: skip
        with pytest.raises(DeviceError, match=r"on 'cuda:0'.* and .* on 'cpu'|on 'cpu'.* and .* on 'cuda:0'"):
            refused()
    assert (there * sg.tensor(2.0)).device == "cuda"


def test_tensors_and_modules_move_and_gradients_find_their_way_back():
    x = sg.tensor(A, requires_grad=True)
    (x.cuda() * 2).cpu().sum().backward()
    assert x.grad.device == "cpu"
    assert x.grad.tolist() == [[2.0] * 5] * 3
    layer = sg.nn.BatchNorm1d(5)
    layer(x).sum().backward()
    layer.cuda()
    tensors = [*layer.parameters(), *layer.buffers(), *(p.grad for p in layer.parameters())]
    assert {str(tensor.device) for tensor in tensors} == {"cuda:0"}
    assert layer.num_batches_tracked.dtype == "int64"
    assert {str(tensor.device) for tensor in layer.cpu().state_dict().values()} == {"cpu"}


def test_a_tensor_of_a_device_shows_itself_and_is_copied_pickled_and_saved(tmp_path):
    x = sg.tensor([1.5, 2.5], device="cuda")
    assert repr(x) == "tensor([1.5000, 2.5000], device='cuda:0')"
    assert (x.tolist(), x[1].item(), bool(x[0] > 1), 2.5 in x, len(x)) == ([1.5, 2.5], 2.5, True, True, 2)
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.clone()):
        assert (other.device, other.tolist()) == ("cuda", [1.5, 2.5])
        assert other.data_ptr() != x.data_ptr()
    sg.save({"x": x}, tmp_path / "x.sg")
    assert sg.load(tmp_path / "x.sg")["x"].tolist() == [1.5, 2.5]
    with pytest.raises(DeviceError, match="numpy: got a tensor on cuda:0"):
        x.numpy()


def test_mixed_precision_on_a_device_leaves_tensors_of_the_host_alone():
    here, there = sg.tensor(A), sg.tensor(A, device="cuda", requires_grad=True)
    with sg.autocast("cuda"):
        assert sg.is_autocast_enabled("cuda") and not sg.is_autocast_enabled("cpu")
        assert (here @ here.T).dtype == "float32"
        product = there @ there.T
    assert product.dtype == "bfloat16"
    np.testing.assert_allclose(product.float().numpy(force=True), A @ A.T, 2e-2, 2e-2)
    product.float().sum().backward()
    assert (there.grad.dtype, there.grad.device) == ("float32", "cuda")


def test_complex_tensors_are_stored_and_moved_on_a_device():
    values = RNG.normal(size=(3, 2)) + 1j * RNG.normal(size=(3, 2))
    x = sg.tensor(values, device="cuda")
    for found, wanted in (
        (x.clone(), values), (x.T.contiguous(), values.T), (x[1:], values[1:]),
        (x.to(sg.complex64), np.complex64(values)),
        (sg.zeros_like(x), 0 * values), (sg.full_like(x, 1 + 2j), 0 * values + (1 + 2j)), (x.cpu(), values),
        (sg.tensor(values.real, device="cuda").to(sg.complex128), values.real + 0j),
        (sg.cat([x, x]), [*values, *values]),
    ):  # fmt: skip
        np.testing.assert_array_equal(found.numpy(force=True), wanted)


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
def test_the_host_computes_complex_numbers_of_a_device():
    values = RNG.normal(size=(3, 2)) + 1j * RNG.normal(size=(3, 2))
    here, there = (sg.tensor(values, device=device).requires_grad_() for device in ("cpu", "cuda"))
    for z in (here, there):
        result = (z.exp() * 2j + z.real).abs()
        assert (result.device, result.dtype) == (z.device, "float64")
        result.sum().backward()
    np.testing.assert_allclose(there.grad.numpy(force=True), here.grad.numpy(), 1e-12)
    changed = there.detach().clone()
    changed += 1j
    sg.mul(changed, 2, out=changed)
    np.testing.assert_allclose(changed.numpy(force=True), 2 * (values + 1j), 1e-15)


def test_a_step_of_a_model_that_moved_without_its_optimizer_names_both_devices():
    layer = sg.nn.Linear(2, 2)
    optimizer = sg.optim.AdamW(layer.parameters())
    layer(sg.ones(1, 2)).sum().backward()
    optimizer.step()
    layer.cuda()
    with pytest.raises(DeviceError, match="step: got tensors on different devices"):
        optimizer.step()
