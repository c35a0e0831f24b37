"""spillgrad: a tensor engine with automatic differentiation for models that do not fit the memory at hand.

Where to look:

* tensors: `tensor zeros ones full arange rand randn …`, their methods and operators (PyTorch's names and meanings);
* gradients: `Tensor.backward`, `grad no_grad`, `spillgrad.autograd` (custom functions, hooks on saved tensors,
  gradcheck);
* other libraries: NumPy's functions take tensors, and are differentiated; `from_numpy from_dlpack`; `array_api`, the
  array API standard's functions; `spillgrad.interop`;
* speed: `fuse`, which makes one kernel of a function of elementwise operations;
* mathematics: `spillgrad.linalg`, `spillgrad.fft`, `spillgrad.special`;
* files: `save` and `load`, of tensors in nested containers; `save_checkpoint` and `load_checkpoint`, of training runs;
* spilling: `save_on_disk` for what operations save, `disk_offload` for parameters, gradients and optimizer state, and
  `spillgrad.storage` for the store alone;
* NVIDIA's GPUs: `device="cuda"`, and `spillgrad.cuda` for their memory;
* mixed precision: `autocast`, and `spillgrad.amp`;
* recomputing: `spillgrad.utils.checkpoint`, which runs a function again in backward instead of keeping what it saved;
* training: `spillgrad.nn`, `spillgrad.optim`, `spillgrad.data`, `spillgrad.models`.
"""

from importlib import import_module as _import_module
from importlib.metadata import PackageNotFoundError, version
from math import e, inf, nan, pi
from typing import Any as _Any

from numpy import dtype

from spillgrad.ops import bind as _bind  # first: gives Tensor its operations  # isort: skip
from spillgrad import (
    amp,
    autograd,
    checkpoint,
    cuda,
    data,
    dtypes,
    errors,
    fft,
    linalg,
    models,
    nn,
    optim,
    planning,
    special,
    storage,
    utils,
)
from spillgrad.autograd.anomaly_mode import is_anomaly_check_nan_enabled, is_anomaly_enabled
from spillgrad.autograd.differentiate import grad
from spillgrad.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)  # fmt: skip
from spillgrad.checkpoint import load_checkpoint, save_checkpoint
from spillgrad.device import Device as device
from spillgrad.dtypes import (
    bfloat16,
    complex64,
    complex128,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from spillgrad.dtypes import bool_ as bool
from spillgrad.dtypes import float16 as half
from spillgrad.dtypes import float32 as float
from spillgrad.dtypes import float64 as double
from spillgrad.dtypes import int16 as short
from spillgrad.dtypes import int32 as int
from spillgrad.dtypes import int64 as long
from spillgrad.dtypes import promote as promote_types
from spillgrad.generator import (
    Generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    set_rng_state,
)  # fmt: skip
from spillgrad.ops.activations import (
    celu,
    celu_,
    hardshrink,
    prelu,
    relu,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    sigmoid,
    threshold,
    threshold_,
)  # fmt: skip
from spillgrad.ops.arithmetic import (
    abs,
    absolute,
    add,
    addcdiv,
    addcmul,
    div,
    divide,
    float_power,
    floor_divide,
    fmod,
    gcd,
    hypot,
    lcm,
    lerp,
    mod,
    mul,
    multiply,
    neg,
    negative,
    positive,
    pow,
    reciprocal,
    remainder,
    rsqrt,
    rsub,
    sgn,
    sign,
    sqrt,
    square,
    sub,
    subtract,
    true_divide,
)
from spillgrad.ops.array_api_names import (
    asarray,
    astype,
    broadcast_arrays,
    broadcast_shapes,
    can_cast,
    cumulative_prod,
    cumulative_sum,
    expand_dims,
    isdtype,
    matrix_transpose,
    permute_dims,
    repeat,
    take_along_axis,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    unstack,
)
from spillgrad.ops.attention import scaled_dot_product_attention
from spillgrad.ops.autocast import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from spillgrad.ops.bessel import i0
from spillgrad.ops.bilinear import bilinear
from spillgrad.ops.channel_norm import batch_norm, group_norm, instance_norm
from spillgrad.ops.choice import (
    clamp,
    clamp_max,
    clamp_min,
    clip,
    fmax,
    fmin,
    maximum,
    minimum,
    nan_to_num,
    where,
)
from spillgrad.ops.comparison import (
    allclose,
    eq,
    equal,
    ge,
    greater,
    greater_equal,
    gt,
    isclose,
    isfinite,
    isinf,
    isnan,
    isneginf,
    isposinf,
    le,
    less,
    less_equal,
    lt,
    ne,
    not_equal,
    signbit,
)
from spillgrad.ops.complex_numbers import (
    adjoint,
    angle,
    complex,
    conj,
    imag,
    polar,
    real,
    resolve_conj,
    view_as_complex,
    view_as_real,
)
from spillgrad.ops.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from spillgrad.ops.convert import clone
from spillgrad.ops.convert import to as cast
from spillgrad.ops.counting import (
    bincount,
    bucketize,
    histc,
    isin,
    searchsorted,
    unique,
    unique_consecutive,
)  # fmt: skip
from spillgrad.ops.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    logspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    scalar_tensor,
    tensor,
    to_tensor,
    zeros,
    zeros_like,
)  # fmt: skip
from spillgrad.ops.decompositions import cholesky, qr
from spillgrad.ops.distance import cdist, cosine_similarity, dist, pairwise_distance, pdist
from spillgrad.ops.einsum import cross, einsum, inner, kron, tensordot, vdot
from spillgrad.ops.exponential import (
    exp,
    exp2,
    expm1,
    ldexp,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logaddexp2,
)
from spillgrad.ops.fuse import fuse
from spillgrad.ops.incomplete_gamma import igamma, igammac
from spillgrad.ops.index_writes import (
    diagonal_scatter,
    index_copy,
    index_fill,
    index_put,
    index_reduce,
    masked_scatter,
    put,
    scatter_reduce,
    select_scatter,
    slice_scatter,
)  # fmt: skip
from spillgrad.ops.indexing import (
    argwhere,
    diag,
    diagonal,
    gather,
    index_add,
    index_select,
    masked_fill,
    masked_select,
    nonzero,
    scatter,
    scatter_add,
    take,
    take_along_dim,
    unravel_index,
)  # fmt: skip
from spillgrad.ops.linalg import (
    addbmm,
    addmm,
    addmv,
    addr,
    baddbmm,
    bmm,
    dot,
    ger,
    matmul,
    mm,
    mv,
    outer,
)  # fmt: skip
from spillgrad.ops.logic import (
    bitwise_and,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
)
from spillgrad.ops.logic import bitwise_not as bitwise_invert
from spillgrad.ops.normalization import layer_norm, log_softmax, rms_norm, softmax
from spillgrad.ops.norms import renorm, vander, vecdot
from spillgrad.ops.order import argsort, kthvalue, median, mode, msort, nanmedian, nanquantile, quantile, sort, topk
from spillgrad.ops.pooling import (
    adaptive_avg_pool1d,
    avg_pool1d,
    max_pool1d,
    max_pool2d,
)
from spillgrad.ops.promotion import result_type
from spillgrad.ops.random import alpha_dropout, dropout, feature_alpha_dropout
from spillgrad.ops.rearrange import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    block_diag,
    cartesian_prod,
    channel_shuffle,
    column_stack,
    combinations,
    diag_embed,
    diagflat,
    dsplit,
    dstack,
    fliplr,
    flipud,
    hsplit,
    pixel_shuffle,
    pixel_unshuffle,
    rot90,
    tensor_split,
    trace,
    tril_indices,
    triu_indices,
    vsplit,
)  # fmt: skip
from spillgrad.ops.recurrent import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from spillgrad.ops.reduce import (
    all,
    amax,
    amin,
    aminmax,
    any,
    argmax,
    argmin,
    count_nonzero,
    logsumexp,
    max,
    mean,
    min,
    nanmean,
    nansum,
    norm,
    prod,
    std,
    std_mean,
    sum,
    var,
    var_mean,
)  # fmt: skip
from spillgrad.ops.rounding import ceil, fix, floor, frac, round, trunc
from spillgrad.ops.sampling import (
    bernoulli,
    multinomial,
    normal,
    poisson,
    randint_like,
)  # fmt: skip
from spillgrad.ops.scan import (
    cummax,
    cummin,
    cumprod,
    cumsum,
    cumulative_trapezoid,
    diff,
    logcumsumexp,
    trapezoid,
    trapz,
)  # fmt: skip
from spillgrad.ops.shape import (
    broadcast_tensors,
    broadcast_to,
    cat,
    chunk,
    concat,
    concatenate,
    expand,
    flatten,
    flip,
    hstack,
    meshgrid,
    moveaxis,
    movedim,
    narrow,
    permute,
    ravel,
    repeat_interleave,
    reshape,
    roll,
    row_stack,
    select,
    split,
    split_with_sizes,
    squeeze,
    stack,
    swapaxes,
    swapdims,
    t,
    tile,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
    vstack,
)  # fmt: skip
from spillgrad.ops.solving import (
    cholesky_inverse,
    cholesky_solve,
    det,
    logdet,
    matrix_exp,
    matrix_power,
    slogdet,
)  # fmt: skip
from spillgrad.ops.solving import inv as inverse
from spillgrad.ops.solving import pinv as pinverse
from spillgrad.ops.special import (
    copysign,
    digamma,
    erf,
    erfc,
    erfinv,
    heaviside,
    lgamma,
    logit,
    mvlgamma,
    nextafter,
    polygamma,
    sinc,
    xlog1py,
    xlogy,
)
from spillgrad.ops.statistics import corrcoef, cov, histogram
from spillgrad.ops.strided import as_strided
from spillgrad.ops.trigonometry import (
    acos,
    acosh,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    deg2rad,
    rad2deg,
    sin,
    sinh,
    tan,
    tanh,
)
from spillgrad.ops.volume_pooling import max_pool3d
from spillgrad.ops.window_functions import (
    bartlett_window,
    blackman_window,
    hamming_window,
    hann_window,
    kaiser_window,
)
from spillgrad.precision import get_float32_matmul_precision, set_float32_matmul_precision
from spillgrad.serialization import load, save
from spillgrad.spill.disk_offload import disk_offload
from spillgrad.spill.save_on_disk import save_on_disk
from spillgrad.tensor import (
    Tensor,
    is_complex,
    is_floating_point,
    is_inference,
    is_tensor,
    numel,
)  # fmt: skip
from spillgrad_kernels.dispatch import get_num_threads, set_num_threads
from spillgrad_kernels.memory import empty_cache, memory_stats


def __getattr__(name: str) -> _Any:
    """Import `array_api` when it is first asked for: few programs do, and it takes a millisecond."""
    if name != "array_api":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module("spillgrad.array_api")


Size = tuple  # type: ignore[type-arg]  # what a shape is
newaxis = None  # in an index: a new dimension of size 1

try:
    __version__ = version("spillgrad")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    name for name in dir() if not name.startswith("_") and name not in ("PackageNotFoundError", "version", "ops")
]
