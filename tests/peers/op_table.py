"""Operations as a user writes them, one a line: the same text gives the same values and gradients in every library.

A row may use `torch`, `F` (`torch.nn.functional`) and the inputs below; to add an operation, add a line that calls it,
and run `python -m tests.peers.record torch` where PyTorch is installed. Noted are all results, and the gradients of
their sum, weighted so that each element counts differently, with respect to every input that the row uses.
"""

import builtins
import re
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np


def _floats(*shape: int, low: float = -2, high: float = 2) -> np.ndarray:
    """Distinct multiples of 1/256, so that float32 holds them and no two tie, away from the borders and from 0."""
    count = int(np.prod(shape))
    steps = np.arange(int(low * 256) + 3, int(high * 256) - 2)
    steps = steps[steps % 64 != 0]  # kinks lie at multiples of a quarter
    return (np.random.default_rng(count + len(shape)).choice(steps, count, replace=False) / 256).reshape(shape)


INPUTS: dict[str, np.ndarray] = {
    "x": _floats(2, 3),
    "y": _floats(2, 3)[:, ::-1] + 1 / 128,
    "p": _floats(2, 3, low=0.1, high=3),  # positive
    "u": _floats(2, 3, low=0, high=1),  # in the unit interval
    "v": _floats(3),
    "w": _floats(4, 3),
    "s": _floats(),
    "q": _floats(3, 3) + 4 * np.eye(3),  # a regular matrix
    "a": _floats(2, 4, 3),  # batches of matrices
    "b": _floats(2, 3, 4),
    "n": _floats(4, 5),  # scores of 4 samples and 5 classes
    "seq": _floats(2, 4, 9),  # batch, channels, length
    "img": _floats(1, 4, 6, 7, low=-3, high=3),  # batch, channels, height, width
    "k1": _floats(6, 4, 3),  # kernels
    "k2": _floats(6, 4, 3, 2),
    "g1": _floats(4, 3, 3),
    "g2": _floats(4, 3, 3, 2),
    "c4": _floats(4),  # per channel
    "c6": _floats(6),
    "heads": _floats(2, 2, 5, 4),
    "i": np.array([2, 0, 1, 2]),  # numbers of rows
    "ij": np.array([[0, 2, 1], [1, 1, 0]]),
    "t": np.array([1, 0, 4, 2]),  # classes of `n`
    "m": np.array([[True, False, True], [False, False, True]]),
    "sign": np.array([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]),
}
CONSTANT = ("sign",)  # floating-point, and without gradient

ROWS = tuple(
    line.strip()
    for line in """
    x + y
    x + v
    x + 2
    2 + x
    x - y
    1 - x
    x * y
    x * s
    x * 3
    x / p
    x / 3
    1 / p
    p ** 2
    p ** 0.5
    x ** 3
    p ** y
    2 ** x
    x.detach() // p.detach()
    x % p
    x @ v
    x @ q
    a @ b
    a @ v
    -x
    +x
    abs(x)
    ~m
    m & ~m
    m | m
    m ^ m
    i << 2
    i >> 1
    x == y
    x != y
    x < y
    x <= y
    x > 0
    x >= y
    x[1]
    x[:, 1:]
    x[..., -1]
    x[:, None]
    x[i[1:3]]
    x[m]
    a[:, i]
    a[:, i, 1]
    a[ij[:, 0], 1:3]
    torch.add(x, y, alpha=2)
    torch.sub(x, y, alpha=2)
    torch.mul(x, y)
    torch.div(x, p)
    torch.div(x, p, rounding_mode='floor')
    torch.div(x, p, rounding_mode='trunc')
    torch.divide(x, p)
    torch.true_divide(x, p)
    torch.floor_divide(x.detach(), p.detach())
    torch.multiply(x, y)
    torch.subtract(x, y)
    torch.rsub(x, y)
    torch.negative(x)
    torch.neg(x)
    torch.abs(x)
    torch.absolute(x)
    torch.exp(x)
    torch.expm1(x)
    torch.log(p)
    torch.log1p(p)
    torch.log2(p)
    torch.log10(p)
    torch.sqrt(p)
    torch.rsqrt(p)
    torch.square(x)
    torch.pow(p, y)
    torch.pow(x, 2)
    torch.reciprocal(p)
    torch.sin(x)
    torch.cos(x)
    torch.tan(u)
    torch.asin(u)
    torch.acos(u)
    torch.atan(x)
    torch.arcsin(u)
    torch.arccos(u)
    torch.arctan(x)
    torch.atan2(x, y)
    torch.arctan2(x, y)
    torch.sinh(x)
    torch.cosh(x)
    torch.tanh(x)
    torch.sigmoid(x)
    torch.relu(x)
    torch.erf(x)
    torch.sign(x)
    torch.floor(x)
    torch.ceil(x)
    torch.round(x)
    torch.trunc(x)
    torch.clamp(x, -0.5, 0.5)
    torch.clamp(x, min=0.1)
    torch.clamp(x, min=y, max=p)
    torch.clip(x, -0.5, 0.5)
    torch.clamp_min(x, 0.1)
    torch.clamp_max(x, 0.1)
    torch.maximum(x, y)
    torch.minimum(x, y)
    torch.remainder(x, p)
    torch.lerp(x, y, 0.3)
    torch.lerp(x, y, u)
    torch.addcmul(x, y, p, value=0.5)
    torch.addcdiv(x, y, p, value=0.5)
    torch.logaddexp(x, y)
    torch.where(m, x, y)
    torch.where(m, x, 0.0)
    torch.isnan(x / 0)
    torch.isinf(x / 0)
    torch.isfinite(x / 0)
    torch.isclose(x, x + 1e-9)
    torch.allclose(x, x + 1e-9)
    torch.equal(x, y)
    torch.eq(x, y)
    torch.ne(x, y)
    torch.lt(x, y)
    torch.le(x, y)
    torch.gt(x, y)
    torch.ge(x, y)
    torch.less(x, y)
    torch.less_equal(x, y)
    torch.greater(x, y)
    torch.greater_equal(x, y)
    torch.not_equal(x, y)
    torch.logical_and(m, ~m)
    torch.logical_or(m, ~m)
    torch.logical_xor(m, ~m)
    torch.logical_not(m)
    torch.bitwise_and(i, 3)
    torch.bitwise_or(i, 4)
    torch.bitwise_xor(i, 1)
    torch.bitwise_not(i)
    torch.bitwise_left_shift(i, 1)
    torch.bitwise_right_shift(i, 1)
    x.sum()
    x.sum(0)
    x.sum(dim=1, keepdim=True)
    a.sum((0, 2))
    x.mean()
    x.mean(-1)
    a.mean((0, 1), keepdim=True)
    x.std()
    x.std(dim=1, unbiased=False)
    x.std(dim=1, correction=0, keepdim=True)
    x.var()
    x.var(0)
    torch.var_mean(x, dim=1)
    x.prod()
    x.prod(1)
    x.max()
    x.max(1)
    x.max(y)
    x.min()
    x.min(dim=0, keepdim=True)
    x.min(y)
    x.amax()
    x.amax(1)
    x.amin((0, 1))
    x.argmax()
    x.argmax(1)
    x.argmin(dim=0, keepdim=True)
    x.all()
    m.all(1)
    m.any()
    m.any(0)
    torch.count_nonzero(m, 1)
    x.logsumexp(1)
    x.norm()
    x.norm(1)
    x.norm(dim=1)
    x.norm(p=3, dim=1, keepdim=True)
    x.cumsum(1)
    x.sort()
    x.sort(dim=0, descending=True)
    x.argsort()
    x.topk(2)
    x.topk(2, dim=1, largest=False)
    torch.sum(x, 1)
    torch.mean(x, 1)
    torch.std(x, 1)
    torch.var(x, 1)
    torch.prod(x, 1)
    torch.max(x, 1)
    torch.min(x, 1)
    torch.amax(x, 1)
    torch.amin(x, 1)
    torch.argmax(x, 1)
    torch.argmin(x, 1)
    torch.all(m)
    torch.any(m)
    torch.logsumexp(x, 1)
    torch.norm(x)
    torch.cumsum(x, 0)
    torch.sort(x)
    torch.argsort(x, descending=True)
    torch.topk(x, 2)
    x.reshape(3, 2)
    x.reshape((6,))
    x.reshape_as(b[0, :, :2])
    x.view(-1)
    x.view(3, 2)
    x.view_as(b[0, :, :2])
    x.flatten()
    a.flatten(1)
    a.flatten(0, 1)
    a.unflatten(1, (2, 2))
    x.ravel()
    x.t()
    x.T
    a.mT
    x.transpose(0, 1)
    a.permute(2, 0, 1)
    a.permute((1, 0, 2))
    a.movedim(0, 2)
    a.moveaxis(0, 1)
    a.swapaxes(0, 1)
    a.swapdims(0, 1)
    x[None].squeeze(0)
    x[None].squeeze()
    x.unsqueeze(1)
    v.expand(2, 3)
    v.expand_as(x)
    v.broadcast_to((2, 3))
    x.repeat(2, 1)
    x.repeat(2, 1, 2)
    x.tile((2, 1))
    x.repeat_interleave(2, dim=1)
    x.flip(0)
    x.flip((0, 1))
    x.roll(1)
    x.roll(1, 0)
    x.roll((1, 2), (0, 1))
    x.chunk(2, 1)
    x.split(2, dim=1)
    x.split((1, 2), dim=1)
    x.unbind(0)
    x.select(1, 2)
    x.narrow(1, 0, 2)
    x.contiguous()
    x.clone()
    x.tril()
    x.triu(1)
    torch.cat((x, y))
    torch.cat((x, y), dim=1)
    torch.concat((x, y), dim=-1)
    torch.concatenate((x, y), 0)
    torch.stack((x, y))
    torch.stack((x, y), dim=2)
    torch.hstack((x, y))
    torch.vstack((x, y))
    torch.chunk(x, 2, dim=1)
    torch.split(x, 2, dim=1)
    torch.unbind(x)
    torch.reshape(x, (6,))
    torch.flatten(x)
    torch.ravel(x)
    torch.unflatten(a, 1, (2, 2))
    torch.squeeze(x[None])
    torch.unsqueeze(x, 0)
    torch.transpose(x, 0, 1)
    torch.permute(a, (2, 0, 1))
    torch.movedim(a, 0, 1)
    torch.moveaxis(a, 0, 1)
    torch.swapaxes(a, 0, 1)
    torch.swapdims(a, 0, 1)
    torch.t(x)
    torch.flip(x, (1,))
    torch.roll(x, 1, 1)
    torch.tile(x, (2, 1))
    torch.repeat_interleave(x, 2)
    torch.narrow(x, 1, 1, 2)
    torch.select(x, 0, 1)
    torch.tril(x)
    torch.triu(x)
    torch.broadcast_to(v, (2, 3))
    torch.broadcast_tensors(v, x)
    torch.meshgrid(v, c4, indexing='ij')
    torch.diag(v)
    torch.diag(q)
    torch.diagonal(q)
    torch.clone(x)
    x.diag()
    q.diagonal(1)
    x.gather(1, ij)
    x.index_select(1, i)
    x.masked_fill(m, 0.5)
    x.masked_select(m)
    x.take(i)
    x.take_along_dim(ij, 1)
    x.nonzero()
    x.scatter(1, ij, y)
    x.scatter(1, ij[:1], 0.5)
    x.scatter_add(1, ij, y)
    x.index_add(1, i, n[:2, :4])
    torch.gather(x, 1, ij)
    torch.index_select(x, 0, i[1:3])
    torch.masked_fill(x, m, 2.0)
    torch.masked_select(x, m)
    torch.take(x, i)
    torch.take_along_dim(x, ij, 1)
    torch.nonzero(m)
    torch.scatter(x, 1, ij, y)
    torch.scatter_add(x, 1, ij, y)
    torch.index_add(x, 1, i, n[:2, :4], alpha=2)
    torch.matmul(a, b)
    torch.mm(x, q)
    torch.mv(x, v)
    torch.bmm(a, b)
    torch.dot(v, v)
    torch.outer(v, c4)
    torch.addmm(x, y, q, beta=0.5, alpha=2)
    x.addmm(y, q)
    a.bmm(b)
    v.dot(v)
    x.mm(q)
    x.mv(v)
    v.outer(c4)
    x.matmul(q)
    torch.softmax(x, 1)
    torch.log_softmax(x, 0)
    x.softmax(-1)
    x.log_softmax(dim=1)
    F.softmax(x, dim=-1)
    F.log_softmax(x, dim=-1)
    F.relu(x)
    F.gelu(x)
    F.gelu(x, approximate='tanh')
    F.silu(x)
    F.elu(x)
    F.elu(x, alpha=0.5)
    F.leaky_relu(x)
    F.leaky_relu(x, negative_slope=0.2)
    F.softplus(x)
    F.softplus(x, beta=2, threshold=1)
    F.sigmoid(x)
    F.tanh(x)
    F.dropout(x, 0.5, training=False)
    F.linear(x, w)
    F.linear(x, w, c4)
    F.linear(a, w, c4)
    F.embedding(ij, w)
    F.embedding(ij, w, padding_idx=0)
    F.one_hot(i, 4)
    F.one_hot(i)
    F.pad(x, (1, 2))
    F.pad(x, (1, 0, 0, 2), value=0.5)
    F.layer_norm(x, (3,))
    F.layer_norm(a, (4, 3), eps=1e-3)
    F.layer_norm(x, (3,), v, v)
    F.rms_norm(x, (3,), v, eps=1e-6)
    F.mse_loss(x, y)
    F.mse_loss(x, y, reduction='sum')
    F.mse_loss(x, y, reduction='none')
    F.l1_loss(x, y)
    F.smooth_l1_loss(x, y, beta=0.5)
    F.huber_loss(x, y, delta=0.5)
    F.cross_entropy(n, t)
    F.cross_entropy(n, t, label_smoothing=0.1)
    F.cross_entropy(n, t, ignore_index=4, reduction='sum')
    F.cross_entropy(n, t, reduction='none')
    F.cross_entropy(n, t, weight=n.detach()[0].abs())
    F.cross_entropy(n, n.detach().softmax(1))
    F.nll_loss(n, t)
    F.nll_loss(n, t, ignore_index=0)
    F.binary_cross_entropy_with_logits(x, u)
    F.binary_cross_entropy_with_logits(x, u, reduction='none')
    F.binary_cross_entropy_with_logits(x, u, pos_weight=p.detach())
    F.scaled_dot_product_attention(heads, heads, heads)
    F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    F.scaled_dot_product_attention(heads, heads, heads, scale=0.3)
    F.conv1d(seq, k1)
    F.conv1d(seq, k1, c6, stride=2, padding=1, dilation=2)
    F.conv2d(img, k2)
    F.conv2d(img, k2, c6, stride=(2, 1), padding=(1, 0))
    F.conv2d(img, k2, padding='same')
    F.conv2d(img, k2[:, :2], groups=2)
    F.conv_transpose2d(img, g2)
    F.conv_transpose2d(img, g2, stride=2, padding=1, output_padding=1)
    F.conv_transpose1d(seq, g1, stride=2, output_padding=1)
    F.batch_norm(img, None, None, c4, c4, training=True)
    F.batch_norm(seq, torch.zeros(4).to(seq.dtype), torch.ones(4).to(seq.dtype), training=False, eps=1e-3)
    F.group_norm(img, 2, c4, c4)
    F.instance_norm(img)
    F.instance_norm(img, weight=c4, bias=c4)
    F.local_response_norm(img, 2)
    F.interpolate(img, scale_factor=2)
    F.interpolate(img, size=(9, 4), mode='nearest-exact')
    F.interpolate(img, size=(9, 4), mode='bilinear')
    F.interpolate(img, size=(9, 4), mode='bilinear', align_corners=True)
    F.interpolate(img, scale_factor=1.5, mode='bicubic')
    F.interpolate(img, size=(3, 3), mode='area')
    F.interpolate(seq, size=5, mode='linear')
    F.lp_pool1d(seq, 2, 3)
    F.lp_pool2d(img, 2, 2)
    F.adaptive_avg_pool1d(seq, 4)
    F.adaptive_max_pool1d(seq, 4)
    F.max_unpool1d(*F.max_pool1d(seq, 2, return_indices=True), 2)
    F.max_unpool2d(*F.max_pool2d(img[..., :6], 2, return_indices=True), 2)
    torch.group_norm(img, 2)
    torch.conv1d(seq, k1)
    torch.conv2d(img, k2)
    torch.conv_transpose1d(seq, g1)
    torch.conv_transpose2d(img, g2)
    torch.dropout(x, 0.5, False)
    torch.det(q)
    torch.logdet(q @ q.T)
    torch.slogdet(q)
    torch.inverse(q)
    torch.cholesky(q @ q.T)
    torch.cholesky_solve(x.T, torch.linalg.cholesky(q @ q.T))
    torch.cholesky_inverse(torch.linalg.cholesky(q @ q.T))
    torch.matrix_power(q, 3)
    torch.matrix_power(q, -2)
    torch.matrix_exp(q / 4)
    torch.pinverse(x)
    torch.qr(q)
    torch.linalg.solve(q, x.T)
    torch.linalg.norm(x)
    torch.linalg.vector_norm(x, 3, dim=1)
    torch.linalg.matrix_norm(x)
    torch.linalg.eigh(q + q.T)[0]
    torch.linalg.multi_dot((x, q, v))
    torch.rnn_tanh_cell(x, x[:, :2], q[:2], w[:2, :2])
    torch.rnn_relu_cell(x, x[:, :2], q[:2], w[:2, :2])
    F.max_pool1d(seq, 2)
    F.max_pool2d(img, 2)
    F.max_pool2d(img, 3, stride=2, padding=1)
    F.max_pool2d(img, 2, return_indices=True)
    F.avg_pool1d(seq, 3, stride=2)
    F.avg_pool2d(img, 2)
    F.avg_pool2d(img, 3, stride=1, padding=1, count_include_pad=False)
    F.adaptive_avg_pool2d(img, (2, 3))
    F.adaptive_max_pool2d(img, 2)
    x.double().float()
    x.float().double()
    i.to(torch.float32)
    i.float()
    i.int()
    x.long()
    x.bool()
    x.type_as(y)
    x.half().float()
    x.bfloat16().float()
    i.byte()
    i.char()
    i.short()
    x.cpu()
    x.nelement()
    x.ndimension()
    x.is_complex()
    x.is_signed()
    x.new_empty((2, 3)).shape
    x.new_tensor([1, 2])
    x.clone().detach_()
    x.numpy(force=True)
    torch.is_complex(x)
    torch.empty(2, 3).shape
    torch.empty_like(x).shape
    torch.from_numpy(x.numpy(force=True))
    torch.from_dlpack(x.detach())
    torch.finfo(torch.float32).eps
    torch.iinfo(torch.int32).max
    x.where(m, y)
    x.detach()
    x.new_zeros(2)
    x.new_ones((2, 2))
    x.new_full((2,), 3.0)
    x.clone().add_(y)
    x.clone().mul_(y)
    x.clone().sub_(y).div_(p)
    x.clone().exp_()
    x.clone().clamp_(-0.5, 0.5)
    x.clone().masked_fill_(m, 1.0)
    x.clone().fill_(2.0)
    x.clone().zero_()
    x.clone().copy_(y)
    x.clone().copy_(v)
    x.clone().relu_()
    x.clone().tril_()
    x.clone().scatter_(1, ij, y)
    x.clone().index_add_(1, i, n[:2, :4])
    torch.arange(5)
    torch.arange(1, 2, 0.25)
    torch.linspace(0, 1, 5)
    torch.eye(3)
    torch.eye(2, 3)
    torch.zeros(2, 3)
    torch.ones((2,))
    torch.full((2, 2), 3)
    torch.full((2,), 0.5)
    torch.zeros_like(i)
    torch.ones_like(x)
    torch.full_like(x, 2)
    torch.tensor([[1, 2], [3, 4]])
    torch.tensor([1.0, 2])
    torch.tensor(True)
    torch.as_tensor([1, 2])
    torch.is_tensor(x)
    torch.is_floating_point(i)
    torch.numel(x)
    torch.result_type(i, 1.5)
    torch.promote_types(torch.int32, torch.float32)
    x.numel()
    x.dim()
    x.size()
    x.size(-1)
    x.stride()
    x.T.stride()
    x.T.is_contiguous()
    x.shape
    x.ndim
    i.dtype
    x.tolist()
    s.item()
    x.storage_offset()
    x[1].storage_offset()
    i.element_size()
    i.nbytes
    i.itemsize
    x.is_floating_point()
    len(x)
    x.requires_grad
    i.requires_grad
    """.splitlines()
    if line.strip()
)


def inputs(row: str, library: Any, dtype: str) -> dict[str, Any]:
    """Return the inputs a row uses, as tensors of `dtype` that require gradients where they can."""
    tensors = {}
    for name in dict.fromkeys(compile(row, row, "eval").co_names):
        if name in INPUTS:
            array = np.ascontiguousarray(INPUTS[name])
            floating = array.dtype.kind == "f"
            tensor = library.tensor(array.astype(dtype) if floating else array)
            tensors[name] = tensor.requires_grad_() if floating and name not in CONSTANT else tensor
    return tensors


def outcome(row: str, library: Any, dtype: str) -> list[Any]:
    """Return what a row gives, and the name and gradient of every input that requires one."""
    tensors = inputs(row, library, dtype)
    result = eval(row, {"torch": library, "F": library.nn.functional, "abs": builtins.abs} | tensors)
    total = None
    for value in _flat(result):
        if getattr(value, "requires_grad", False) is True and value.grad_fn is not None:
            weights = np.cos(np.arange(value.numel(), dtype=np.float64)).reshape(tuple(value.shape)) + 1.5
            part = (value.double() * library.tensor(weights)).sum()
            total = part if total is None else total + part
    if total is not None:
        total.backward()
    gradients = [[name, t.grad] for name, t in sorted(tensors.items()) if t.requires_grad]
    return [result, gradients if total is not None else "no graph"]


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, list | tuple):
        for value in result:
            yield from _flat(value)
    else:
        yield result


def methods(names: Collection[str]) -> list[str]:
    """Return the rows that call functions of `torch` as methods with these names, and as in-place methods."""
    found = []
    for row in ROWS:
        if call := re.fullmatch(r"torch\.(\w+)\((\w+)(?:, (.*))?\)", row):
            name, first, rest = call.groups(default="")
            found += [f"{first}.{name}({rest})"] if name in names and first in INPUTS else []
            found += [f"{first}.clone().{name}_({rest})"] if f"{name}_" in names and first in INPUTS else []
    return [row for row in dict.fromkeys(found) if row not in ROWS]


def public_names(library: Any) -> dict[str, list[str]]:
    """Return the names a user may call in `torch`, `torch.nn.functional` and on tensors."""
    rooms = {"torch": library, "F": library.nn.functional, "Tensor": library.Tensor}
    return {room: sorted(n for n in dir(home) if not n.startswith("_")) for room, home in rooms.items()}
