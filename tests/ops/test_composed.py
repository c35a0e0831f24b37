"""Functions made of several operations, or of one beyond the tables,
  through one table: a new row is tested by existing.

Each agrees with its NumPy one-liner for any strides and dtype, and its first and second derivatives with differences.
"""

import itertools
import math

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import GraphError
from spillgrad.nn import functional as F
from tests.ops.checks import check_gradients, check_half_precision, leaf

RNG = np.random.default_rng(7)
A, B, C = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4)), RNG.normal(size=(4, 5))
S, V, W = RNG.normal(size=(4, 4)), RNG.normal(size=4), RNG.normal(size=3)
P, Q = RNG.uniform(0.1, 0.9, (3, 4)), RNG.uniform(0.1, 0.9, (3, 4))
VOLUMES, KERNEL = RNG.normal(size=(1, 2, 4, 3, 5)), RNG.normal(size=(2, 2, 2, 1, 2))
IMAGES, BATCH = RNG.normal(size=(2, 3, 4, 5)), RNG.normal(size=(2, 3, 4))
ZEROS = np.array([[1.5, 0.0, -2.0, 0.5], [0.0, 2.0, 0.0, 1.0], [3.0, -1.0, 0.5, 2.0]])
PLACES = np.array([[0, 2, 1, 1], [1, 0, 1, 0], [0, 1, 1, 2]])
SIGNS, CLASSES = np.sign(A), np.array([1, 0, 3])
INDEX, MASK = sg.tensor(PLACES), B > 0


def sigmoid(a):
    return 1 / (1 + np.exp(-a))


def softmax(a, axis):
    weights = np.exp(a - a.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def lower_median(a, axis=-1):
    return np.take(np.sort(a, axis), (a.shape[axis] - 1) // 2, axis)


def changed(a, index, values):
    out = a.copy()
    out[index] = values
    return out


def reduced(a, src, function, start=None):
    """scatter_reduce along dimension 0 at PLACES, element by element."""
    out = a.copy()
    if start is not None:
        for place in np.ndindex(PLACES.shape):
            out[PLACES[place], place[1]] = start
    for place in np.ndindex(PLACES.shape):
        target = PLACES[place], place[1]
        out[target] = function(out[target], src[place])
    return out


def averaged(a, src, include_self):
    total, counts = reduced(a, src, np.add, None if include_self else 0.0), np.full(a.shape, float(include_self))
    for place in np.ndindex(PLACES.shape):
        counts[PLACES[place], place[1]] += 1
    return total / np.maximum(counts, 1)


def windows(a, axis, size, step):
    count = (a.shape[axis] - size) // step + 1
    taken = [np.take(a, range(i * step, i * step + size), axis) for i in range(count)]
    return np.moveaxis(np.stack(taken, axis), axis + 1, -1)


def patches(a, kernel, dilation, padding, stride):
    """F.unfold window by window."""
    a = np.pad(a, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    columns = [
        a[:, :, y : y + span[0] : dilation[0], x : x + span[1] : dilation[1]].reshape(len(a), -1)
        for y in range(0, a.shape[2] - span[0] + 1, stride[0])
        for x in range(0, a.shape[3] - span[1] + 1, stride[1])
    ]
    return np.stack(columns, -1)


def folded(columns, size, kernel, padding, stride):
    """F.fold window by window."""
    n, channels = len(columns), columns.shape[1] // (kernel[0] * kernel[1])
    out = np.zeros((n, channels, size[0] + 2 * padding, size[1] + 2 * padding), columns.dtype)
    places = itertools.product(
        range(0, out.shape[2] - kernel[0] + 1, stride), range(0, out.shape[3] - kernel[1] + 1, stride)
    )
    for i, (y, x) in enumerate(places):
        out[:, :, y : y + kernel[0], x : x + kernel[1]] += columns[:, :, i].reshape(n, channels, *kernel)
    return out[:, :, padding : padding + size[0], padding : padding + size[1]]


def boxes(a, size, step=(1, 1, 1)):
    """All windows over volumes; their elements are the last three dimensions."""
    found = np.lib.stride_tricks.sliding_window_view(a, size, (2, 3, 4))
    return found[:, :, :: step[0], :: step[1], :: step[2]]


def laid_over_volumes(a, w, step):
    """conv_transpose3d, element by element."""
    size = [s * (n - 1) + k for n, s, k in zip(a.shape[2:], step, w.shape[2:], strict=True)]
    out = np.zeros((len(a), w.shape[1], *size), a.dtype)
    for place in np.ndindex(a.shape[2:]):
        box = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, step, w.shape[2:], strict=True))
        out[(slice(None), slice(None), *box)] += np.einsum("nc,cmijk->nmijk", a[(slice(None), slice(None), *place)], w)
    return out


def triangles(size, count):
    """The weights of antialiased linear resampling: triangles as wide as a result is, as rows."""
    step = size / count
    distance = (np.arange(size) + 0.5 - (np.arange(count)[:, None] + 0.5) * step) / max(step, 1)
    weights = np.maximum(1 - np.abs(distance), 0)
    return weights / weights.sum(1, keepdims=True)


def read(path, blank=0):
    """What a path through the classes stands for: its labels, of equal neighbours one, without blanks."""
    return tuple(label for label, _ in itertools.groupby(path) if label != blank)


def ctc(a, target):
    """The definition: the sum over all paths that stand for the target."""
    steps, classes = a.shape
    paths = [p for p in itertools.product(range(classes), repeat=steps) if read(p) == target]
    return -np.log(sum(np.exp(sum(a[t, c] for t, c in enumerate(p))) for p in paths))


def bessel(order, a):
    """Bessel's integral over a whole period: a sum over places gives it to the last digit."""
    angle = np.arange(64) * (2 * np.pi / 64)
    return (np.exp(a[..., None] * np.cos(angle)) * np.cos(order * angle)).mean(-1)


def poisson_below(counts, rate):
    """The probability of fewer events than each of the counts."""
    return sum(np.where(k < np.array(counts), np.exp(-rate) * rate**k / math.factorial(k), 0) for k in range(9))


def distances(a, b, p=2):
    return (np.abs(a[..., :, None, :] - b[..., None, :, :]) ** p).sum(-1) ** (1 / p)


def bce(a, t):
    return -t * np.log(a) - (1 - t) * np.log(1 - a)


# name: (function of tensors, the same of arrays, operands); those of POINTS have no half-precision twin to compare with
TABLE = {
    # scan
    "cumprod": (lambda x: sg.cumprod(x, 1), lambda a: np.cumprod(a, 1), A),
    "cumprod of zeros": (lambda x: sg.cumprod(x, 0), lambda a: np.cumprod(a, 0), ZEROS),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), lambda a: np.log(np.cumsum(np.exp(a), 0)), A),
    "cummax": (lambda x: x.cummax(1).values, lambda a: np.maximum.accumulate(a, 1), A),
    "cummin": (lambda x: sg.cummin(x, 0).values, lambda a: np.minimum.accumulate(a, 0), A),
    "diff": (lambda x: x.diff(2), lambda a: np.diff(a, 2), A),
    "diff of more": (lambda x, y: sg.diff(x, dim=0, prepend=y, append=y), lambda a, b: np.diff(a, 1, 0, b, b), A, B),
    "trapezoid": (lambda x, y: sg.trapezoid(x, y, dim=0), lambda a, b: np.trapezoid(a, b, axis=0), A, B),
    "trapezoid of steps": (lambda x: sg.trapezoid(x, dx=0.5), lambda a: np.trapezoid(a, dx=0.5), A),
    "cumulative_trapezoid": (lambda x, y: sg.cumulative_trapezoid(x, y),
                             lambda a, b: np.cumsum((a[:, 1:] + a[:, :-1]) / 2 * np.diff(b), 1), A, V),
    # order
    "median": (sg.median, lambda a: lower_median(a.reshape(-1)), A),
    "median along": (lambda x: x.median(0).values, lambda a: lower_median(a, 0), A),
    "nanmedian": (lambda x: x.nanmedian(1).values, lambda a: lower_median(a, 1), A),
    "kthvalue": (lambda x: x.kthvalue(2, 1, True).values, lambda a: np.sort(a, 1)[:, 1:2], A),
    "mode": (lambda x: sg.mode(x, 0).values, lambda a: a.min(0), A),
    "msort": (sg.msort, lambda a: np.sort(a, 0), A),
    "quantile": (lambda x: sg.quantile(x, 0.3, 1), lambda a: np.quantile(a, 0.3, 1), A),
    "quantiles": (lambda x: x.quantile(sg.tensor([0.0, 0.35, 1.0]).to(x.dtype), 0, True),
                  lambda a: np.quantile(a, [0.0, np.float32(0.35), 1.0], 0, keepdims=True), A),
    "quantile of all": (lambda x: x.quantile(0.6), lambda a: np.quantile(a, 0.6), A),
    "quantile midpoint": (lambda x: x.quantile(0.3, 1, interpolation="midpoint"),
                          lambda a: np.quantile(a, 0.3, 1, method="midpoint"), A),
    "nanquantile": (lambda x: x.nanquantile(0.3, 1), lambda a: np.nanquantile(a, 0.3, 1), A),
    # reductions
    "nansum": (lambda x: x.nansum(1), lambda a: np.nansum(a, 1), A),
    "nanmean": (lambda x: x.nanmean(0, True), lambda a: np.nanmean(a, 0, keepdims=True), A),
    "aminmax": (lambda x: x.aminmax(dim=1).max - x.aminmax().min, lambda a: a.max(1) - a.min(), A),
    "std_mean": (lambda x: sum(sg.std_mean(x, 1)), lambda a: a.std(1, ddof=1) + a.mean(1), A),
    # einsum and its kin
    "einsum matrix product": (lambda x, y: sg.einsum("ij,jk->ik", x, y), np.matmul, A, C),
    "einsum transposed": (lambda x: sg.einsum("ij->ji", x), np.transpose, A),
    "einsum implicit": (lambda x, y: sg.einsum("kj,ji", x, y), lambda a, b: (a @ b).T, A, C),
    "einsum batch": (lambda x, y: sg.einsum("bij,bkj->bik", x, y),
                     lambda a, b: a @ b.swapaxes(1, 2), BATCH, BATCH[:, :2]),
    "einsum diagonal": (lambda x: sg.einsum("ii->i", x), np.diagonal, S),
    "einsum trace": (lambda x: sg.einsum("ii", x), np.trace, S),
    "einsum of dots": (lambda x, y: sg.einsum("...hw,ow->...oh", x, y),
                       lambda a, b: np.einsum("...hw,ow->...oh", a, b), IMAGES, C[:2]),
    "einsum of dots that broadcast": (lambda x, y: sg.einsum("i...,...->...i", x, y),
                                      lambda a, b: np.einsum("i...,...->...i", a, b), BATCH[:, :1], A),
    "einsum of three": (lambda x, y, z: sg.einsum("ij,jk,k->i", x, y, z), lambda a, b, c: a @ b @ c, A, C, C[0]),
    "einsum elementwise": (lambda x, y: sg.einsum("ij,ij->ij", x, y), np.multiply, A, B),
    "einsum outer": (lambda x, y: sg.einsum("i,j->ji", x, y), lambda a, b: np.outer(b, a), V, W),
    "einsum sums": (lambda x, y: sg.einsum("ij,kl->il", x, y), lambda a, b: np.einsum("ij,kl->il", a, b), A, C),
    "einsum of lists": (lambda x, y: sg.einsum(x, [0, 1], y, [1, 2], [2, 0]), lambda a, b: (a @ b).T, A, C),
    "einsum of lists with dots": (lambda x, y: sg.einsum(x, [..., 1], y, [1], [...]), np.matmul, BATCH, V),
    "tensordot": (lambda x, y: sg.tensordot(x, y, ([0, 1], [1, 0])),
                  lambda a, b: np.tensordot(a, b, ([0, 1], [1, 0])), A, B.T),
    "tensordot of one": (lambda x, y: sg.tensordot(x, y, 1), lambda a, b: np.tensordot(a, b, 1), BATCH, C),
    "inner": (lambda x, y: x.inner(y), np.inner, A, BATCH),
    "kron": (lambda x, y: x.kron(y), np.kron, A[:2], C[:2, :2]),
    "kron of fewer": (lambda x, y: sg.kron(x, y), np.kron, W, A[:2]),
    "cross": (lambda x, y: x.cross(y, 0), lambda a, b: np.cross(a, b, axis=0), A, B),
    "cross that broadcasts": (lambda x, y: sg.cross(x, y, dim=-1), np.cross, A[:, :3], W),
    "vdot": (lambda x, y: x.vdot(y), np.vdot, V, B[0]),
    # distances
    "cdist": (sg.cdist, distances, A, B[:2]),
    "cdist of batches": (sg.cdist, distances, BATCH, A),
    "cdist by sums": (lambda x, y: sg.cdist(x, y, p=1.0), lambda a, b: distances(a, b, 1), A, B),
    "dist": (lambda x, y: x.dist(y, 3), lambda a, b: (np.abs(a - b) ** 3).sum() ** (1 / 3), A, B),
    "pairwise_distance": (F.pairwise_distance, lambda a, b: np.linalg.norm(a - b + 1e-6, axis=-1), A, B),
    "cosine_similarity": (F.cosine_similarity, lambda a, b: (a * b).sum(1) / np.linalg.norm(a, axis=1)
                          / np.linalg.norm(b, axis=1), A, B),
    "normalize": (lambda x: F.normalize(x, dim=0), lambda a: a / np.linalg.norm(a, axis=0), A),
    "normalize by sums": (lambda x: F.normalize(x, 1.0, -1), lambda a: a / np.abs(a).sum(-1, keepdims=True), A),
    # rearrangements
    "rot90": (sg.rot90, np.rot90, A),
    "rot90 back": (lambda x: x.rot90(-1, (1, 2)), lambda a: np.rot90(a, -1, (1, 2)), BATCH),
    "rot90 by two": (lambda x: x.rot90(2), lambda a: np.rot90(a, 2), A),
    "fliplr": (sg.fliplr, np.fliplr, A),
    "flipud": (sg.flipud, np.flipud, A),
    "tensor_split": (lambda x: x.tensor_split(3, 1)[0], lambda a: np.array_split(a, 3, 1)[0], A),
    "tensor_split at": (lambda x: sg.tensor_split(x, (1, 3), 1)[1], lambda a: np.array_split(a, (1, 3), 1)[1], A),
    "hsplit": (lambda x: x.hsplit(2)[1], lambda a: np.hsplit(a, 2)[1], A),
    "vsplit": (lambda x: x.vsplit(3)[2], lambda a: np.vsplit(a, 3)[2], A),
    "dsplit": (lambda x: x.dsplit(2)[0], lambda a: np.dsplit(a, 2)[0], BATCH),
    "dstack": (lambda *x: sg.dstack(x), lambda *a: np.dstack(a), A, B),
    "column_stack": (lambda *x: sg.column_stack(x), lambda *a: np.column_stack(a), W, A),
    "atleast": (lambda x: sg.atleast_1d(x) + sg.atleast_2d(x) + sg.atleast_3d(x),
                lambda a: np.atleast_1d(a) + np.atleast_2d(a) + np.atleast_3d(a), V),
    "block_diag": (lambda x, y: sg.block_diag(x, y),
                   lambda a, b: np.block([[a, np.zeros((3, 4))], [np.zeros((1, 4)), b[None]]]), A, V),
    "cartesian_prod": (sg.cartesian_prod, lambda a, b: np.array(list(itertools.product(a, b))), V, W),
    "combinations": (lambda x: sg.combinations(x, 3), lambda a: np.array(list(itertools.combinations(a, 3))), V),
    "diag_embed": (lambda x: x.diag_embed(1, 0, 2), lambda a: np.stack([np.diag(row, 1) for row in a], 1), A),
    "diagflat": (lambda x: x.diagflat(-1), lambda a: np.diagflat(a, -1), A),
    "trace": (sg.trace, np.trace, A),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda a: a.reshape(2, 2, 2, 2, 4, 5).transpose(0, 1, 4, 2, 5, 3)
                      .reshape(2, 2, 8, 10), np.tile(IMAGES, (1, 3, 1, 1))[:, :8]),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 2), lambda a: a.reshape(3, 2, 2, 2, 2).transpose(0, 2, 4, 1, 3)
                        .reshape(12, 2, 2), IMAGES[0, :, :, :4]),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 3),
                        lambda a: a.reshape(3, 3, 2, 5).swapaxes(1, 2).reshape(3, 6, 5),
                        np.moveaxis(np.tile(IMAGES, (1, 1, 2, 1)), 0, -1).reshape(3, 8, 10)[:, :6, :5]),
    "sum_to_size": (lambda x: x.sum_to_size(3, 1), lambda a: a.sum((0, 2))[:, None], BATCH),
    # windows and padding
    "unfold": (lambda x: x.unfold(1, 3, 1), lambda a: windows(a, 1, 3, 1), A),
    "unfold by steps": (lambda x: x.unfold(-1, 2, 3), lambda a: windows(a, 3, 2, 3), IMAGES),
    "unfold images": (lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=(1, 0), stride=(1, 2)),
                      lambda a: patches(a, (2, 3), (2, 1), (1, 0), (1, 2)), IMAGES),
    "unfold one image": (lambda x: F.unfold(x, 2),
                         lambda a: patches(a[None], (2, 2), (1, 1), (0, 0), (1, 1))[0], IMAGES[0]),
    "fold": (lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=2), lambda a: folded(a, (4, 5), (2, 3), 1, 2),
             RNG.normal(size=(2, 12, 9))),
    "fold one": (lambda x: F.fold(x, 3, 2),
                 lambda a: folded(a[None], (3, 3), (2, 2), 0, 1)[0], RNG.normal(size=(8, 4))),
    "pad reflect": (lambda x: F.pad(x, (2, 1), mode="reflect"),
                    lambda a: np.pad(a, ((0, 0), (0, 0), (2, 1)), "reflect"), BATCH),
    "pad replicate": (lambda x: F.pad(x, (2, 7, 1, 0), mode="replicate"),
                      lambda a: np.pad(a, ((0, 0), (1, 0), (2, 7)), "edge"), BATCH),
    "pad circular": (lambda x: F.pad(x, (2, 4, 1, 0), mode="circular"),
                     lambda a: np.pad(a, ((0, 0), (1, 0), (2, 4)), "wrap"), BATCH),
    "pad circular and crop": (lambda x: F.pad(x, (-1, 2), mode="circular"),
                              lambda a: np.pad(a[..., 1:], ((0, 0), (0, 0), (0, 2)), "wrap"), BATCH),
    # volumes
    "conv3d": (lambda x, w: F.conv3d(x, w, stride=(2, 1, 1)),
               lambda a, w: np.einsum("ncdhwijk,mcijk->nmdhw", boxes(a, w.shape[2:], (2, 1, 1)), w), VOLUMES, KERNEL),
    "conv3d with a bias": (lambda x, w, b: F.conv3d(x, w, b, padding=(1, 0, 0)),
                           lambda a, w, b: np.einsum("ncdhwijk,mcijk->nmdhw", boxes(
                               np.pad(a, ((0, 0), (0, 0), (1, 1), (0, 0), (0, 0))), w.shape[2:]), w)
                           + b[:, None, None, None], VOLUMES, KERNEL, W[:2]),
    "conv3d of groups": (lambda x, w: F.conv3d(x, w, groups=2), lambda a, w: np.stack(
        [(boxes(a, w.shape[2:])[:, c] * w[c, 0]).sum((-3, -2, -1)) for c in range(2)], 1), VOLUMES, KERNEL[:, :1]),
    "conv_transpose3d": (lambda x, w: F.conv_transpose3d(x, w, stride=(1, 2, 3)),
                         lambda a, w: laid_over_volumes(a, w, (1, 2, 3)), VOLUMES[..., :2], KERNEL),
    "max_pool3d": (lambda x: F.max_pool3d(x, (2, 2, 3), 1), lambda a: boxes(a, (2, 2, 3)).max((-3, -2, -1)), VOLUMES),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, (2, 1, 3), (2, 1, 2)),
                   lambda a: boxes(a, (2, 1, 3), (2, 1, 2)).mean((-3, -2, -1)), VOLUMES),
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, (2, 3, 1)),
                            lambda a: a.reshape(1, 2, 2, 2, 3, 5).mean((3, 5))[..., None], VOLUMES),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, (2, 1, 5)),
                            lambda a: a.reshape(1, 2, 2, 2, 3, 5).max((3, 4))[..., None, :], VOLUMES),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 2, 2, 1),
                  lambda a: np.sqrt((boxes(a, (2, 2, 2)) ** 2).sum((-3, -2, -1))), VOLUMES),
    "antialiased interpolation": (
        lambda x: F.interpolate(x, (2, 7), mode="bilinear", antialias=True),
        lambda a: np.einsum("yh,xw,nchw->ncyx", triangles(4, 2), triangles(5, 7), a), IMAGES),
    # tables and bilinear maps
    "bilinear": (F.bilinear, lambda a, b, w, c: np.einsum("...i,kij,...j->...k", a, w, b) + c,
                 A, BATCH[0], np.stack([S[:, :4], S.T]), W[:2]),
    "embedding_bag": (lambda w: F.embedding_bag(INDEX, w), lambda w: w[PLACES].mean(1), A),
    "embedding_bag of sums": (lambda w, p: F.embedding_bag(INDEX, w, mode="sum", per_sample_weights=p),
                              lambda w, p: (w[PLACES] * p[..., None]).sum(1), A, P),
    "embedding_bag of maxima": (lambda w: F.embedding_bag(INDEX, w, mode="max"), lambda w: w[PLACES].max(1), A),
    "embedding_bag of a vector": (
        lambda w: F.embedding_bag(INDEX.flatten(), w, sg.tensor([0, 3, 3]), padding_idx=1),
        lambda w: np.stack([w[[0, 2]].mean(0), 0 * w[0], w[[0, 0, 0, 2]].mean(0)]), A),
    # statistics
    "cov": (sg.cov, np.cov, A),
    "cov of one": (lambda x: sg.cov(x, correction=0), lambda a: np.cov(a, ddof=0), V),
    "cov weighted": (lambda x: sg.cov(x, fweights=sg.tensor([1, 2, 0, 3]), aweights=sg.tensor(P[0]).to(x.dtype)),
                     lambda a: np.cov(a, fweights=[1, 2, 0, 3], aweights=P[0]), A),
    "corrcoef": (sg.corrcoef, np.corrcoef, A),
    # writes
    "index_copy": (lambda x, y: x.index_copy(1, sg.tensor([2, 0]), y),
                   lambda a, b: changed(a, np.s_[:, [2, 0]], b), A, B[:, :2]),
    "index_fill": (lambda x, y: x.index_fill(0, sg.tensor([2, 0]), y), lambda a, b: changed(a, [2, 0], b), A, W[0]),
    "index_put": (lambda x, y: x.index_put((sg.tensor([0, 1]), sg.tensor([2, 2])), y),
                  lambda a, b: changed(a, ([0, 1], [2, 2]), b), A, W[:2]),
    "index_put one value": (lambda x, y: sg.index_put(x, (sg.tensor([0, 1]),), y),
                            lambda a, b: changed(a, [0, 1], b), A, W[0]),
    "index_put that adds": (lambda x, y: x.index_put((None, sg.tensor([2, 2])), y, accumulate=True),
                            lambda a, b: a + np.einsum("k,j->kj", b.sum(1), np.eye(4)[2]), A, B[:, :2]),
    "put": (lambda x, y: x.put(sg.tensor([0, -1]), y),
            lambda a, b: changed(a.reshape(-1), [0, 11], b).reshape(a.shape), A, W[:2]),
    "masked_scatter": (lambda x, y: x.masked_scatter(sg.tensor(MASK), y),
                       lambda a, b: changed(a, MASK, b.reshape(-1)[: MASK.sum()]), A, B),
    "scatter_reduce sum": (lambda x, y: x.scatter_reduce(0, INDEX, y, "sum"), lambda a, b: reduced(a, b, np.add), A, B),
    "scatter_reduce mean": (lambda x, y: x.scatter_reduce(0, INDEX, y, "mean"),
                            lambda a, b: averaged(a, b, True), A, B),
    "scatter_reduce mean of src": (lambda x, y: x.scatter_reduce(0, INDEX, y, "mean", include_self=False),
                                   lambda a, b: averaged(a, b, False), A, B),
    "scatter_reduce amax": (lambda x, y: x.scatter_reduce(0, INDEX, y, "amax"),
                            lambda a, b: reduced(a, b, np.maximum), A, B),
    "scatter_reduce amin of src": (lambda x, y: x.scatter_reduce(0, INDEX, y, "amin", include_self=False),
                                   lambda a, b: reduced(a, b, np.minimum, np.inf), A, B),
    "scatter_reduce prod": (lambda x, y: x.scatter_reduce(0, INDEX, y, "prod"),
                            lambda a, b: reduced(a, b, np.multiply), A, B),
    "scatter_reduce prod of src": (lambda x, y: x.scatter_reduce(0, INDEX, y, "prod", include_self=False),
                                   lambda a, b: reduced(a, b, np.multiply, 1.0), A, B),
    "index_reduce": (lambda x, y: x.index_reduce(0, sg.tensor([0, 0]), y, "amax"),
                     lambda a, b: changed(a, 0, np.maximum(a[0], b.max(0))), A, B[:2]),
    "select_scatter": (lambda x, y: x.select_scatter(y, 0, 1), lambda a, b: changed(a, 1, b), A, V),
    "slice_scatter": (lambda x, y: x.slice_scatter(y, 1, 1, 4, 2),
                      lambda a, b: changed(a, np.s_[:, 1:4:2], b), A, B[:, :2]),
    "diagonal_scatter": (lambda x, y: x.diagonal_scatter(y, 1),
                         lambda a, b: changed(a, ([0, 1, 2], [1, 2, 3]), b), S, W),
    # activations
    "glu": (lambda x: F.glu(x, 1), lambda a: a[:, :2] * sigmoid(a[:, 2:]), A),
    "softmin": (lambda x: F.softmin(x, 0), lambda a: softmax(-a, 0), A),
    "tanhshrink": (F.tanhshrink, lambda a: a - np.tanh(a), A),
    "relu6": (lambda x: F.relu6(5 * x), lambda a: np.clip(5 * a, 0, 6), A),
    "rrelu": (F.rrelu, lambda a: np.where(a > 0, a, a * 11 / 48), A),
    "prelu": (F.prelu, lambda a, w: np.where(a > 0, a, a * w), A, V),
    "prelu of channels": (F.prelu, lambda a, w: np.where(a > 0, a, a * w[:, None, None]), IMAGES, W),
    # special
    "mvlgamma": (lambda x: sg.mvlgamma(x + 1, 2), lambda a: math.log(math.pi) / 2
                 + np.vectorize(lambda v: math.lgamma(v + 1) + math.lgamma(v + 0.5))(a), P),
    "i0": (sg.i0, lambda a: bessel(0, a), 3 * A),
    "i1": (sg.special.i1, lambda a: bessel(1, a), 3 * A),
    "i0e": (sg.special.i0e, lambda a: bessel(0, a) * np.exp(-np.abs(a)), 3 * A),
    "i1e": (sg.special.i1e, lambda a: bessel(1, a) * np.exp(-np.abs(a)), 3 * A),
    "igamma": (lambda x: sg.igamma(sg.tensor([1, 2, 3, 9]).to(x.dtype), 4 * x),
               lambda a: 1 - poisson_below([1, 2, 3, 9], 4 * a), P),
    "igammac": (lambda x: sg.special.gammaincc(sg.tensor([1, 2, 3, 9]).to(x.dtype), 8 * x),
                lambda a: poisson_below([1, 2, 3, 9], 8 * a), P),
    "entr": (sg.special.entr, lambda a: -a * np.log(a), P),
    "logit of the inside": (lambda x: sg.logit(x, 0.2), lambda a: (lambda c: np.log(c / (1 - c)))(a.clip(0.2, 0.8)), P),
    "rad2deg": (lambda x: sg.rad2deg(x) + sg.deg2rad(x), lambda a: np.rad2deg(a) + np.deg2rad(a), A),
    "ldexp": (lambda x: x.ldexp(sg.tensor([1, -2, 0, 3])), lambda a: np.ldexp(a, [1, -2, 0, 3]), A),
    # losses
    "binary_cross_entropy": (F.binary_cross_entropy, lambda a, t: bce(a, t).mean(), P, Q),
    "binary_cross_entropy weighted": (lambda x, t, w: F.binary_cross_entropy(x, t, w, "none"),
                                      lambda a, t, w: bce(a, t) * w, P, Q, V),
    "kl_div": (F.kl_div, lambda a, t: (t * (np.log(t) - a)).mean(), A, P),
    "kl_div of logs": (lambda x, t: F.kl_div(x, t, "batchmean", log_target=True),
                       lambda a, t: (np.exp(t) * (t - a)).sum() / 3, A, B),
    "poisson_nll_loss": (F.poisson_nll_loss, lambda a, t: (np.exp(a) - t * a).mean(), A, P),
    "poisson_nll_loss in full": (
        lambda x, t: F.poisson_nll_loss(x, 3 * t, log_input=False, full=True, reduction="sum"),
        lambda a, t: (a - 3 * t * np.log(a + 1e-8) + np.where(
            t > 1 / 3, 3 * t * np.log(3 * t) - 3 * t + 0.5 * np.log(6 * np.pi * t), 0)).sum(), P, Q),
    "gaussian_nll_loss": (F.gaussian_nll_loss, lambda a, t, v: (np.log(v) + (a - t) ** 2 / v).mean() / 2, A, B, P),
    "gaussian_nll_loss of rows": (
        lambda x, t, v: F.gaussian_nll_loss(x, t, v, full=True, reduction="none"),
        lambda a, t, v: (np.log(v[:, None]) + (a - t) ** 2 / v[:, None] + math.log(2 * math.pi)) / 2, A, B, P[:, 0]),
    "ctc_loss": (lambda x: F.ctc_loss(x, sg.tensor([[1, 1], [2, 3], [3, 0]]), (4, 3, 2), (2, 2, 1), reduction="none"),
                 lambda a: np.array([ctc(a[:, 0], (1, 1)), ctc(a[:3, 1], (2, 3)), ctc(a[:2, 2], (3,))]),
                 BATCH.swapaxes(0, 2)[:, :, [0, 1, 0, 1]] + np.arange(4)),
    "ctc_loss of one": (lambda x: F.ctc_loss(x, sg.tensor([0, 2]), 3, 2, blank=3), lambda a: ctc(
        a[:, [3, 0, 1, 2]], (1, 3)) / 2, A),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, sg.tensor(SIGNS.copy()).to(x.dtype)[:, ::1]),
                         lambda a: np.log1p(np.exp(-a * SIGNS)).mean(), B),
    "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, lambda a, t: bce(sigmoid(a), t).mean(), A, P),
    "margin_ranking_loss": (lambda x, y: F.margin_ranking_loss(x, y, sg.tensor(SIGNS).to(x.dtype), 0.3, "sum"),
                            lambda a, b: np.maximum(0, 0.3 - SIGNS * (a - b)).sum(), B, P),
    "hinge_embedding_loss": (lambda x: F.hinge_embedding_loss(x, sg.tensor(SIGNS).to(x.dtype)),
                             lambda a: np.where(SIGNS == 1, a, np.maximum(0, 1 - a)).mean(), B),
    "cosine_embedding_loss": (
        lambda x, y: F.cosine_embedding_loss(x, y, sg.tensor([1, -1, 1]), reduction="none"),
        lambda a, b: (lambda c: np.where([True, False, True], 1 - c, np.maximum(c, 0)))(
            (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)), A, B),
    "triplet_margin_loss": (
        lambda x, y, z: F.triplet_margin_loss(x, y, z, margin=2.0, swap=True),
        lambda a, b, c: np.maximum(0, 2 + np.linalg.norm(a - b + 1e-6, axis=1) - np.minimum(
            np.linalg.norm(a - c + 1e-6, axis=1), np.linalg.norm(b - c + 1e-6, axis=1))).mean(), A, B, P),
    "triplet loss by a distance": (
        lambda x, y, z: F.triplet_margin_with_distance_loss(
            x, y, z, distance_function=lambda u, v: (u - v).abs().sum(-1)),
        lambda a, b, c: np.maximum(0, 1 + np.abs(a - b).sum(1) - np.abs(a - c).sum(1)).mean(), A, B, P),
    "multi_margin_loss": (
        lambda x, w: F.multi_margin_loss(x, sg.tensor(CLASSES), p=2, weight=w),
        lambda a, w: np.mean([sum(w[c] * max(0, 1 - row[c] + v) ** 2 for i, v in enumerate(row) if i != c) / 4
                              for row, c in zip(a, CLASSES, strict=True)]), A, V),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(x, sg.tensor([[1, 2, -1, 0], [3, -1, 0, 0], [0, 1, 2, 3]]), "sum"),
        lambda a: sum(max(0, 1 - row[j] + row[i]) for row, js in zip(a, ([1, 2], [3], range(4)), strict=True)
                      for j in js for i in range(4) if i not in js) / 4, A),
}  # fmt: skip
# What half precision cannot show: results that hang on the order of nearly equal numbers, or on digits it lacks.
NOT_IN_HALF = {
    "ctc_loss",
    "pairwise_distance",
    "triplet_margin_loss",
    "cosine_embedding_loss",
    "poisson_nll_loss in full",
}


def row(name):
    function, oracle, *arrays = TABLE[name]
    return function, oracle, [np.asarray(a) for a in arrays]


@pytest.mark.parametrize("name", TABLE)
def test_a_function_agrees_with_numpy(name):
    function, oracle, arrays = row(name)
    got, wanted = function(*map(sg.tensor, arrays)), np.asarray(oracle(*arrays))
    assert got.shape == wanted.shape
    assert got.dtype == sg.float64
    np.testing.assert_allclose(got.numpy(), wanted, 1e-12, 1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_a_function_takes_any_strides(name):
    function, oracle, arrays = row(name)
    spread = [np.repeat(a[..., None], 2, -1)[..., 0] for a in arrays]
    turned = [sg.tensor(np.flip(a).copy())[(slice(None, None, -1),) * a.ndim] for a in arrays]
    for operands in (list(map(sg.from_numpy, spread)), turned):
        np.testing.assert_allclose(function(*operands).numpy(), oracle(*arrays), 1e-12, 1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_both_derivatives_of_a_function_agree_with_differences(name):
    function, _, arrays = row(name)
    check_gradients(function, *arrays)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in NOT_IN_HALF])
def test_a_function_keeps_float32_and_half_precision(name):
    function, _, arrays = row(name)
    exact = [np.asarray(a, sg.bfloat16).astype(np.float64) for a in arrays]
    check_half_precision(function, *exact, tolerance=5e-2)


NOTHING = {
    "cumprod": (lambda x: sg.cumprod(x, 0), (0, 3), (0, 3)),
    "cumprod along": (lambda x: sg.cumprod(x, 1), (3, 0), (3, 0)),
    "logcumsumexp": (lambda x: sg.logcumsumexp(x, 0), (0, 3), (0, 3)),
    "cummax": (lambda x: sg.cummax(x, 1).values, (0, 3), (0, 3)),
    "diff": (lambda x: sg.diff(x), (0, 3), (0, 2)),
    "msort": (sg.msort, (0, 3), (0, 3)),
    "einsum": (lambda x: sg.einsum("ij,kj->ik", x, x), (2, 0), (2, 2)),
    "einsum of nothing": (lambda x: sg.einsum("ij,ij->i", x, x), (0, 3), (0,)),
    "tensordot": (lambda x: sg.tensordot(x, x, ([1], [1])), (0, 3), (0, 0)),
    "kron": (lambda x: sg.kron(x, x), (0, 3), (0, 9)),
    "cdist": (lambda x: sg.cdist(x, x), (0, 3), (0, 0)),
    "cdist of no width": (lambda x: sg.cdist(x, x), (2, 0), (2, 2)),
    "normalize": (F.normalize, (0, 3), (0, 3)),
    "rot90": (sg.rot90, (0, 3), (3, 0)),
    "diag_embed": (sg.diag_embed, (0, 3), (0, 3, 3)),
    "diagflat": (sg.diagflat, (0,), (0, 0)),
    "trace": (sg.trace, (0, 3), ()),
    "unfold": (lambda x: x.unfold(1, 2, 1), (0, 3), (0, 2, 2)),
    "F.unfold": (lambda x: F.unfold(x, 2), (0, 1, 3, 3), (0, 4, 4)),
    "pad": (lambda x: F.pad(x, (1, 1), mode="reflect"), (0, 3), (0, 5)),
    "index_copy": (lambda x: sg.index_copy(x, 0, sg.zeros(0, dtype="int64"), x[:0]), (2, 3), (2, 3)),
    "masked_scatter": (lambda x: sg.masked_scatter(x, sg.zeros(2, 3, dtype="bool"), x[:0]), (2, 3), (2, 3)),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, sg.zeros(0, 3, dtype="int64"), x[:0], "amax"), (2, 3), (2, 3)),
    "glu": (lambda x: F.glu(x), (0, 4), (0, 2)),
    "nansum": (sg.nansum, (0, 3), ()),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (0, 4, 2, 2), (0, 1, 4, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING)
def test_a_function_of_no_elements_has_its_shape_and_no_gradient(name):
    function, shape, wanted = NOTHING[name]
    x = leaf(np.zeros(shape))
    result = function(x)
    assert result.shape == wanted
    result.sum().backward()
    assert x.grad.shape == shape


# Of a number without dimensions, as PyTorch has it.
OF_NUMBERS = {
    "cumprod": (lambda x: sg.cumprod(x, 0), 2.5), "cummax": (lambda x: sg.cummax(x, 0).values, 2.5),
    "logcumsumexp": (lambda x: sg.logcumsumexp(x, -1), 2.5), "median": (sg.median, 2.5),
    "median along": (lambda x: x.median(0).values, 2.5), "kthvalue": (lambda x: x.kthvalue(1).values, 2.5),
    "mode": (lambda x: x.mode().values, 2.5), "quantile": (lambda x: x.quantile(0.3), 2.5),
    "quantile along": (lambda x: x.quantile(0.3, 0), 2.5), "nansum": (sg.nansum, 2.5), "nanmean": (sg.nanmean, 2.5),
    "aminmax": (lambda x: x.aminmax().max, 2.5), "inner": (lambda x: x.inner(x), 6.25),
    "kron": (lambda x: x.kron(x), 6.25), "einsum": (lambda x: sg.einsum(",->", x, x), 6.25),
    "index_fill": (lambda x: x.index_fill(0, sg.tensor([0]), 2.5), 2.5), "glu": (lambda x: F.prelu(x, x), 2.5),
    "scatter_reduce": (lambda x: x.scatter_reduce(0, sg.tensor(0), x, "prod"), 6.25),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_function_takes_numbers_without_dimensions(name):
    function, wanted = OF_NUMBERS[name]
    result = function(sg.tensor(2.5, dtype="float64"))
    assert result.shape == ()
    assert result.item() == pytest.approx(wanted, rel=1e-15)


def test_a_derivative_that_nobody_knows_is_refused():
    a = sg.tensor([1.5], requires_grad=True)
    with pytest.raises(GraphError, match="derivative for 'igamma: input' is not implemented"):
        sg.igamma(a, sg.tensor([2.0])).sum().backward()
    assert a.grad is None


def test_special_functions_of_the_largest_numbers_stay_in_range():
    x = sg.tensor([-math.inf, 712.0, -0.0, math.inf, math.nan], dtype="float64")
    assert sg.i0(x).numpy()[[0, 2, 3]].tolist() == [math.inf, 1, math.inf]
    assert sg.special.i1(x).numpy()[[0, 2, 3]].tolist() == [-math.inf, 0, math.inf]
    assert sg.i0(x)[1].item() == pytest.approx(sg.special.i0e(x)[1].item() * math.exp(356) * math.exp(356), rel=1e-12)
    assert math.isnan(sg.i0(x)[4].item())
    a, b = (sg.tensor(v, dtype="float64") for v in ([0, 0, 2, math.inf, -1, 1], [0, 1, math.inf, 1, 1, -1]))
    np.testing.assert_array_equal(sg.igamma(a, b).numpy(), [math.nan, 1, 1, 0, math.nan, math.nan])
    np.testing.assert_array_equal(sg.igammac(a, b).numpy(), [math.nan, 0, 0, 1, math.nan, math.nan])
    assert sg.igamma(sg.tensor([2.0]), 3).item() == pytest.approx(1 - 4 * math.exp(-3), rel=1e-6)
    assert sg.i0(sg.tensor([0, 1])).dtype == sg.float32
