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
* training: `spillgrad.nn`, `spillgrad.optim`, `spillgrad.data`, `spillgrad.models`;
* probability: `spillgrad.distributions`;
* functions of functions: `spillgrad.func`, derivatives and `vmap`;
* sparse matrices: `spillgrad.sparse`, products with dense ones.
"""

from importlib import import_module as _import_module
from math import e, inf, nan, pi
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from spillgrad import (
    amp,
    autograd,
    cuda,
    data,
    dtypes,
    errors,
    fft,
    linalg,
    models,
    nn,
    optim,
    special,
    storage,
    utils,
)
from spillgrad.autograd import gradcheck as _gradcheck  # the function, before its module takes the name
from spillgrad.autograd.core.anomaly_mode import is_anomaly_check_nan_enabled, is_anomaly_enabled
from spillgrad.autograd.core.grad_mode import *
from spillgrad.autograd.differentiate import grad
from spillgrad.cuda.queries import OutOfMemoryError
from spillgrad.data_type import (
    bfloat16,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
    get_default_dtype,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from spillgrad.data_type import bool_ as bool
from spillgrad.data_type import complex64 as cfloat
from spillgrad.data_type import complex128 as cdouble
from spillgrad.data_type import float16 as half
from spillgrad.data_type import float32 as float
from spillgrad.data_type import float64 as double
from spillgrad.data_type import int16 as short
from spillgrad.data_type import int32 as int
from spillgrad.data_type import int64 as long
from spillgrad.device.default_device import get_default_device, set_default_device
from spillgrad.device.device import Device as device
from spillgrad.device.memory_layout import *
from spillgrad.device.precision import get_float32_matmul_precision, set_float32_matmul_precision
from spillgrad.dtypes import finfo, iinfo, set_default_dtype
from spillgrad.files import checkpoint
from spillgrad.files.checkpoint import load_checkpoint, save_checkpoint
from spillgrad.files.save_load import load, save
from spillgrad.formatting import set_printoptions
from spillgrad.generator import (
    Generator,
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)  # fmt: skip
from spillgrad.interop.numpy import PROTOCOLS as _PROTOCOLS
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
from spillgrad.ops.arithmetic import *
from spillgrad.ops.array_api_names import *
from spillgrad.ops.attention import *
from spillgrad.ops.autocast import *
from spillgrad.ops.bessel import i0
from spillgrad.ops.channel_norm import batch_norm, group_norm, instance_norm
from spillgrad.ops.clamp_where import *
from spillgrad.ops.comparison import *
from spillgrad.ops.complex_numbers import *
from spillgrad.ops.complex_views import *
from spillgrad.ops.conv import *
from spillgrad.ops.convert import clone
from spillgrad.ops.convert import to as cast
from spillgrad.ops.counting import *
from spillgrad.ops.creation import *
from spillgrad.ops.decompositions import cholesky, qr
from spillgrad.ops.diagonals import *
from spillgrad.ops.distance import *
from spillgrad.ops.dropout_masks import alpha_dropout, dropout, feature_alpha_dropout
from spillgrad.ops.einsum import *
from spillgrad.ops.finite_differences import *
from spillgrad.ops.fuse import *
from spillgrad.ops.in_place_functions import *
from spillgrad.ops.incomplete_gamma import *
from spillgrad.ops.index_replace import *
from spillgrad.ops.indexing import *
from spillgrad.ops.join_split import *
from spillgrad.ops.logic import *
from spillgrad.ops.low_rank import *
from spillgrad.ops.matrix_products import *
from spillgrad.ops.normalization import *
from spillgrad.ops.norms import renorm, vecdot
from spillgrad.ops.older_names import *
from spillgrad.ops.pooling import (
    adaptive_avg_pool1d,
    avg_pool1d,
    max_pool1d,
    max_pool2d,
)
from spillgrad.ops.promotion import result_type
from spillgrad.ops.python_functions import *
from spillgrad.ops.rearrange import *
from spillgrad.ops.recurrent import *
from spillgrad.ops.reduce import *
from spillgrad.ops.sampling import *
from spillgrad.ops.scan import *
from spillgrad.ops.shape import *
from spillgrad.ops.short_time_fourier import *
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
from spillgrad.ops.sorting import *
from spillgrad.ops.special import *
from spillgrad.ops.statistics import *
from spillgrad.ops.strided import *
from spillgrad.ops.tensor_functions import *
from spillgrad.ops.tensor_methods import bind as _bind
from spillgrad.ops.tensor_queries import *
from spillgrad.ops.trigonometry import *
from spillgrad.ops.truth import *
from spillgrad.ops.typed_tensors import *
from spillgrad.ops.volume_pooling import max_pool3d
from spillgrad.ops.window_functions import *
from spillgrad.optim.grad_scaler import GradScaler
from spillgrad.release import __version__
from spillgrad.settings.compilation import compile
from spillgrad.settings.determinism import *
from spillgrad.settings.inert import *
from spillgrad.spill.disk_offload import disk_offload
from spillgrad.spill.save_on_disk import save_on_disk
from spillgrad.tensor import Tensor
from spillgrad.tensor_data import Size
from spillgrad_kernels.memory.buffers import empty_cache, memory_stats
from spillgrad_kernels.threads.dispatch import get_num_threads, set_num_threads

_bind(_PROTOCOLS)  # all operations are declared now


# Few programs use these, so that they are imported on first use.
_LAZY = frozenset({
    "_dynamo", "_inductor", "accelerator", "array_api", "backends", "compiler", "distributed",
    "distributions", "func", "hub", "jit", "mps", "multiprocessing", "nested", "onnx", "planning", "profiler", "random",
    "sparse", "testing", "types", "version", "xpu",
})  # fmt: skip
_LAZY_NAMES = {"sparse_coo_tensor": "sparse", "spmm": "sparse", "vmap": "func"}

if _TYPE_CHECKING:
    from spillgrad import (
        accelerator,
        array_api,
        backends,
        compiler,
        distributed,
        distributions,
        func,
        hub,
        jit,
        mps,
        multiprocessing,
        nested,
        onnx,
        planning,
        profiler,
        random,
        sparse,
        testing,
        types,
        version,
        xpu,
    )  # fmt: skip


def __getattr__(name: str) -> _Any:
    """Import a module of `_LAZY`, or a name of `_LAZY_NAMES` from its module, on first use."""
    if name in _LAZY_NAMES:
        return getattr(_import_module(f"spillgrad.{_LAZY_NAMES[name]}"), name)
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _import_module(f"spillgrad.{name}")


newaxis = None  # in an index: a new dimension of size 1

_NOT_PUBLIC = ("interop", "ops", "release", "settings")
__all__ = [name for name in dir() if not name.startswith("_") and name not in _NOT_PUBLIC]
