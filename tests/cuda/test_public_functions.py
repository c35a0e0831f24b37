"""Every public function and every method of tensors gives the same results and gradients on a device as on the host.

The calls are the rows of `tests.peers.op_table`, and the rows below for functions that it does not call. The host may
compute what the device has no kernel for, with a warning. No call may fail, be wrong, or leave its result on the host.
"""

import builtins
import functools
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from tests.peers import op_table

MORE = tuple(
    line.strip()
    for line in """
    torch.alpha_dropout(x, 0.5, True)
    torch.feature_alpha_dropout(img, 0.5, True)
    F.dropout(x, 0.5)
    F.dropout1d(seq)
    F.dropout2d(img)
    F.dropout3d(vol)
    F.dropout_add(x, y, 0.5)
    torch.rrelu(x, training=True)
    F.gumbel_softmax(x)
    F.gumbel_softmax(x, hard=True)
    F.linear_cross_entropy(x, w, i[:2])
    F.causal_attention(heads, heads, heads)
    F.causal_attention(heads[:, :, 2:], heads[:, :1], heads[:, 1:])
    F.causal_attention(heads, heads, heads, torch.tensor([[0, 0, 2, 2, 4], [0, 1, 1, 3, 5]]))
    F.causal_attention(heads, heads[:, :1], heads[:, :1], torch.tensor([0, 0, 1, 2, 3]), softcap=0.5)
    torch.batch_norm(seq, None, None, c4, c4, True, 0.1, 1e-5)
    torch.batch_norm(seq, torch.zeros(4), torch.ones(4), c4, c4, True, 0.1, 1e-5)
    torch.instance_norm(seq)
    torch.scaled_dot_product_attention(heads[:1, :1, :3], heads[:1, :1, :3], heads[:1, :1, :3])
    torch.gru_cell(x, x[:, :1], q[:, 0].repeat(3)[:9].reshape(3, 3), q[:1, :1].expand(3, 1))
    torch.lstm_cell(x, (x[:, :1], y[:, :1]), n[:4, :3], n[:4, 3:4])
    torch.bitwise_invert(i)
    torch.broadcast_arrays(v, x)
    torch.expand(v, (2, 3))
    torch.expand_dims(x, 1)
    torch.permute_dims(a, (2, 0, 1))
    torch.matrix_transpose(a)
    torch.mod(x, p)
    torch.repeat(x, 2)
    torch.take_along_axis(x, ij, axis=1)
    torch.unstack(x)
    torch.vecdot(x, y)
    torch.xlog1py(x, p)
    torch.cumulative_sum(x, axis=1, include_initial=True)
    torch.cumulative_prod(x, axis=1, include_initial=True)
    torch.unique(x, return_inverse=True, return_counts=True)
    torch.unique(ij, dim=1)
    torch.unique_all(i)
    torch.unique_counts(i)
    torch.unique_inverse(i)
    torch.unique_values(i)
    torch.real(torch.view_as_complex(heads[..., :2]))
    torch.imag(torch.view_as_complex(heads[..., :2]))
    torch.binomial(torch.full((3,), 5.0), torch.full((3,), 0.5))
    torch.equal_all(x, y)
    torch.linalg.eig(q)[0].abs().sort()[0]
    torch.to_tensor([1.0, 2.0])
    torch.rand(2, 3)
    torch.rand_like(x)
    torch.randn(2, 3)
    torch.randn_like(x)
    torch.randint(0, 9, (5,))
    torch.randint_like(i, 9)
    torch.randperm(5)
    torch.bernoulli(u)
    torch.multinomial(p, 2)
    torch.multinomial(p, 4, replacement=True)
    torch.normal(x.detach(), p.detach())
    torch.normal(0.0, 1.0, (2, 3))
    torch.poisson(p)
    x.detach().bernoulli_(0.3)
    x.detach().bernoulli_(u.detach())
    x.detach().cauchy_()
    x.detach().exponential_()
    x.detach().geometric_(0.3)
    x.detach().log_normal_()
    x.detach().normal_()
    x.detach().uniform_(1, 2)
    x.detach().random_(7)
    x.astype('float64')
    x.cast('int32')
    x.to('bfloat16')
    x.to(i)
    x.cuda().is_cuda
    x.pin_memory()
    torch.linalg.cond(q)
    torch.linalg.cond(q, 1)
    torch.linalg.cholesky(q @ q.T)
    torch.linalg.cross(x, y)
    torch.linalg.det(a[:, :3])
    torch.linalg.diagonal(a)
    torch.linalg.eigvalsh(q + q.T)
    torch.linalg.eigh(q + q.T)
    torch.linalg.inv(q)
    torch.linalg.lstsq(w, c4)
    torch.linalg.lstsq(w, c4, driver='gelsd')
    torch.linalg.matmul(x, q)
    torch.linalg.matrix_exp(q / 4)
    torch.linalg.matrix_power(q, 2)
    torch.linalg.matrix_rank(w)
    torch.linalg.pinv(w)
    torch.linalg.qr(w)
    torch.linalg.qr(w, 'complete')[1].detach()
    torch.linalg.qr(q, 'r')
    torch.linalg.slogdet(q)
    torch.linalg.solve_triangular(q, x.T, upper=True)
    torch.linalg.solve_triangular(q, x.T, upper=False, unitriangular=True)
    torch.linalg.svd(w)[1]
    torch.linalg.svd(w, full_matrices=False)
    torch.linalg.svdvals(w)
    torch.linalg.tensorinv(q[:, :, None], 1)
    torch.linalg.tensorsolve(q, v)
    torch.linalg.vander(v)
    torch.linalg.vander(v, N=2)
    torch.linalg.vecdot(x, y)
    torch.linalg.matrix_norm(q, 'nuc')
    torch.linalg.matrix_norm(q, 2)
    torch.fft.ifft(x).real
    torch.fft.fft2(x).real
    torch.fft.ifft2(x).imag
    torch.fft.fftn(x).real
    torch.fft.ifftn(x).real
    torch.fft.rfft(x).real
    torch.fft.rfft2(x).real
    torch.fft.rfftn(x).real
    torch.fft.irfft(torch.complex(x, y))
    torch.fft.irfft2(torch.complex(x, y))
    torch.fft.irfftn(torch.complex(x, y))
    torch.fft.fftfreq(5)
    torch.fft.rfftfreq(5)
    torch.fft.fftshift(x)
    torch.fft.ifftshift(x)
    torch.special.ndtr(x)
    torch.special.xlog1py(x, p)
    F.interpolate(img, scale_factor=2, mode='nearest')
    x.index_put((ij[1:, 1:], ij[:1, :2]), 3.0)
    x.index_put((m,), 0.5)
    x.index_put((i[1:3],), y, accumulate=True)
    x.scatter_reduce(1, ij, y, 'prod')
    x.scatter_reduce(1, ij, y, 'mean', include_self=False)
    x.scatter_reduce(1, ij, y, 'amin')
    torch.bincount(i, weights=c4)
    torch.histogram(x.detach(), 3, weight=p.detach())
    torch.searchsorted(v.sort()[0].detach(), x.detach(), right=True)
    torch.quantile(x, torch.tensor([0.2, 0.7]))
    torch.nanquantile(x / (x > 0), 0.4, dim=0, keepdim=True)
    torch.mode(ij, 1)
    torch.combinations(v, 2, True)
    torch.astype(x, torch.float64)
    p.detach().add(1).acosh_()
    p.detach().add(1).arccosh_()
    torch.zeros(2, 3, 3).baddbmm_(b.detach(), a.detach())
    x.detach().floor_divide_(p.detach())
    v.detach().addmv_(q.detach(), v.detach().clone())
    x.detach().heaviside_(y.detach())
    p.detach().igamma_(u.detach())
    p.detach().igammac_(u.detach())
    p.detach().add(2).mvlgamma_(2)
    (x / 0).detach().nan_to_num_()
    x.detach().nextafter_(y.detach())
    x.detach().sgn_()
    """.splitlines()
    if line.strip()
)
# Functions for the host, of NumPy's arrays, or whose result tells the device.
OF_THE_HOST = (
    "x.is_cpu", "x.cpu()", "torch.from_numpy(x.numpy(force=True))", "torch.get_device(x)",
    "torch.frombuffer(bytearray(range(8)), dtype=torch.uint8)", "x.type(torch.DoubleTensor) * 2",
    '(100 * x).type("torch.LongTensor")', "torch.typename(x.float())",
    "torch.FloatTensor([[1, 2], [3, 4]]), torch.LongTensor([1, 2]), torch.BoolTensor([0, 1]), torch.Tensor([3, 4])",
)  # fmt: skip
# Derived rows that are refused: a real tensor cannot take complex numbers, nor a complex one absolute values in place.
REFUSED = ("x.clone().add_(z, alpha=2)", "z.clone().abs_()")
# Functions that take no tensor of a device, or that other tests call.
NOT_CALLED = (
    "chain_matmul", "clear_autocast_cache", "cpu", "from_numpy", "frombuffer", "fuse", "get_autocast_cpu_dtype",
    "get_autocast_dtype", "get_autocast_gpu_dtype", "get_device", "is_autocast_cache_enabled",
    "is_autocast_cpu_enabled", "is_autocast_enabled", "is_inference", "isdtype", "multi_head_attention_forward",
    "range", "record_stream", "set_default_tensor_type", "share_memory_", "symeig", "to_device", "triangular_solve",
    "typename", "upsample", "upsample_bilinear", "upsample_nearest",
)  # fmt: skip


class Placed:
    """The library, with functions that make tensors on a device by default."""

    def __init__(self, library: ModuleType, device: str) -> None:
        self._library, self._device = library, device

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if isinstance(found, ModuleType):
            return Placed(found, self._device)
        if not inspect.isfunction(found):
            return found
        names = inspect.signature(found).parameters
        return functools.partial(found, **{option: self._device for option in ("device", "place") if option in names})


def flat(results: Any) -> Iterator[Any]:
    if isinstance(results, list | tuple):
        for result in results:
            yield from flat(result)
    else:
        yield results


def outcome(row: str, device: str) -> list[Any]:
    """Return a row's results, and the gradients of its inputs."""
    library = Placed(sg, device)
    sg.manual_seed(3)
    tensors = op_table.inputs(row, library, "float32")
    names = {"torch": library, "F": Placed(sg.nn.functional, device), "abs": builtins.abs}
    results = list(flat(eval(row, names | tensors)))
    recorded = [x for x in results if isinstance(x, sg.Tensor) and x.grad_fn is not None and not x.is_complex()]
    seeds = [np.cos(np.arange(x.numel())).reshape(x.shape) + 1.5 for x in recorded]
    if recorded:
        sg.autograd.backward(recorded, [sg.tensor(s, x.dtype, device) for s, x in zip(seeds, recorded, strict=True)])
    return [*results, *(x.grad for x in tensors.values())]


def assert_alike(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if not isinstance(wanted, sg.Tensor):
        assert np.array_equal(found, wanted)
        return
    assert (found.device, wanted.device) == ("cuda", "cpu")
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    kind = np.complex128 if wanted.is_complex() else np.float64
    np.testing.assert_allclose(found.numpy(force=True).astype(kind), wanted.numpy().astype(kind), 1e-4, 1e-5)


# Methods are the functions themselves, except in-place ones; some derived rows fit no tensor.
IN_PLACE = [row for row in op_table.methods(dir(sg.Tensor)) if re.search(r"[a-z\d]_\(", row)]
ROWS = [
    row for row in (*op_table.ROWS, *IN_PLACE, *MORE)
    if row not in (*OF_THE_HOST, *REFUSED) and not row.startswith(("s.clone", "repr("))
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
@pytest.mark.parametrize("row", ROWS)
def test_a_device_gives_what_the_host_gives(row):
    for found, wanted in zip(outcome(row, "cuda"), outcome(row, "cpu"), strict=True):
        assert_alike(found, wanted)


def functions(room: Any) -> dict[str, Any]:
    """Return the public functions of a module or class that are operations."""
    found = {name: getattr(room, name) for name in dir(room) if not name.startswith("_")}
    return {
        name: function for name, function in found.items()
        if inspect.isfunction(function) and function.__module__.startswith("spillgrad.ops.")
    }  # fmt: skip


def test_every_operation_is_called():
    called = set()
    for row in ROWS:
        for path in re.findall(r"\b(?:torch|F)(?:\.\w+)+(?=\()", row):
            room, *names = path.split(".")
            called.add(functools.reduce(getattr, names, {"torch": sg, "F": sg.nn.functional}[room]))
        called |= {getattr(sg.Tensor, name, None) for name in re.findall(r"\.(\w+)", row)}
    rooms = (sg, sg.nn.functional, sg.linalg, sg.fft, sg.special, sg.Tensor)
    missing = {name for room in rooms for name, function in functions(room).items() if function not in called}
    assert missing == set(NOT_CALLED), "add rows that call these"
