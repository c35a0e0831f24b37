"""`Tensor.__array_namespace__` against the standard, as array-api-strict has it: names, parameters, values, dtypes."""

import inspect
from types import ModuleType
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, DimensionError, OperandError, ShapeError

strict.set_array_api_strict_flags(api_version="2024.12")
XP = sg.ones(1).__array_namespace__()

# What strict has beside the standard of 2024.12.
NOT_STANDARD = {"Device", "ArrayAPIStrictFlags", "__version__", "broadcast_shapes", "isin"}
ROOMS = {
    "": {n for n in strict.__all__ if n not in NOT_STANDARD and not n.endswith("_array_api_strict_flags")},
    "linalg": set(strict.linalg.__all__),
    "fft": set(strict.fft.__all__),
}
NAMES = [(room, name) for room, names in ROOMS.items() for name in sorted(names)]


def member(namespace: Any, room: str, name: str) -> Any:
    return getattr(getattr(namespace, room) if room else namespace, name)


def test_the_standards_names_are_all_there():
    missing = [(room, name) for room, name in NAMES if not hasattr(getattr(XP, room) if room else XP, name)]
    assert missing == []
    assert len(NAMES) > 180
    assert ROOMS[""] <= set(XP.__all__)


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults; names of what is given by position alone are nobody's business."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        by_position = parameter.kind is parameter.POSITIONAL_ONLY
        default = parameter.default if isinstance(parameter.default, bool | int | float | str | tuple) else None
        found.append(("" if by_position else parameter.name, parameter.kind, default))
    return found


MORE_THAN_THE_STANDARD = {"expand_dims": "its axis has a default, and strict's has none"}


@pytest.mark.parametrize(("room", "name"), NAMES)
def test_a_function_has_the_standards_parameters(room, name):
    theirs, ours = member(strict, room, name), member(XP, room, name)
    if isinstance(theirs, ModuleType) or not callable(theirs) or isinstance(theirs, type):
        assert not inspect.isfunction(ours)
        return
    same = parameters(ours) == parameters(theirs)
    assert same == (name not in MORE_THAN_THE_STANDARD), (parameters(ours), parameters(theirs))


RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(3, 4)),  # float64
    "y": RNG.normal(size=(3, 4)),
    "p": RNG.uniform(0.1, 0.9, size=(3, 4)),
    "f": RNG.normal(size=(3, 4)).astype(np.float32),
    "s": np.float64(1.5).reshape(()),
    "i": RNG.integers(-5, 6, size=(3, 4)),
    "j": RNG.integers(1, 6, size=(3, 4)).astype(np.int16),
    "u": RNG.integers(0, 200, size=(3, 4)).astype(np.uint8),
    "b": RNG.integers(0, 2, size=(3, 4)).astype(bool),
    "c": RNG.integers(0, 2, size=(3, 4)).astype(bool),
    "v": RNG.normal(size=4),
    "w": RNG.normal(size=4),
    "k": np.array([2, 0, 3, 1, 2]),
    "r": np.array([0.5, np.nan, -0.0, np.inf, -2.5]),
    "m": RNG.normal(size=(2, 3, 3)) + 4 * np.eye(3),
    "h": np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]]),
    "t": RNG.normal(size=(2, 3)),
    "z": RNG.normal(size=4) + 1j * RNG.normal(size=4),
    "one": np.ones((1, 3, 1)),
}  # fmt: skip


def calls(arguments: str, functions: str) -> list[str]:
    return [f"xp.{function}({arguments})" for function in functions.split()]


CASES = [
    *calls("x", "abs asinh atan ceil cos cosh exp expm1 floor isfinite negative positive sign"),
    *calls("x", "signbit sin sinh round square tan tanh trunc reciprocal conj real"),
    *calls("p", "acos asin atanh log log10 log1p log2 sqrt"), "xp.acosh(p + 1)", "xp.imag(z)", "xp.real(z)",
    "xp.conj(z)", *calls("r", "isfinite isinf isnan sign signbit round"),
    *calls("i", "abs ceil floor isfinite isinf isnan negative positive round sign square trunc"),
    *calls("x, y", "add subtract multiply divide floor_divide remainder maximum minimum atan2"),
    *calls("x, y", "copysign hypot logaddexp nextafter equal not_equal less less_equal"),
    *calls("i, j", "add subtract multiply floor_divide remainder maximum minimum"),
    *calls("i, j", "equal not_equal less less_equal greater greater_equal"),
    *calls("i, j", "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift"),
    *calls("b, c", "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor equal"), "xp.logical_not(b)",
    "xp.bitwise_invert(b)", "xp.bitwise_invert(i)", "xp.pow(p, y)", "xp.pow(j, xp.asarray(2))", "xp.add(f, s)",
    "xp.multiply(f, x)", "xp.add(u, j)", "xp.add(f, 2)", "xp.subtract(2, f)", "xp.pow(2.0, f)", "xp.clip(x, -0.5, 0.5)",
    "xp.clip(x, y - 1, y + 1)", "xp.clip(x)", "xp.clip(f, min=xp.astype(y, xp.float32))", "xp.where(b, x, y)",
    "xp.where(b, f, x)", "xp.where(b, x, 0.0)", "xp.where(b, 1, i)", "xp.asarray([[1, 2], [3, 4]])",
    "xp.asarray([True, False])", "xp.asarray(x, dtype=xp.float32)", "xp.asarray(x, copy=True)",
    "xp.asarray(3.5, dtype=xp.float64)", "xp.arange(5)", "xp.arange(2, 11, 3)", "xp.arange(5, 1)",
    "xp.arange(5, 1, -2)", "xp.arange(0.0, 1.0, 0.25, dtype=xp.float64)", "xp.linspace(0, 1, 5, dtype=xp.float64)",
    "xp.linspace(0, 1, 5, endpoint=False, dtype=xp.float64)", "xp.linspace(0, 1j, 3, dtype=xp.complex128)",
    "xp.linspace(2 - 1j, 1, 4, endpoint=False, dtype=xp.complex128)", "xp.eye(3, dtype=xp.float64)",
    "xp.eye(2, 4, k=1, dtype=xp.float32)", "xp.full((2, 3), 7)", "xp.full(3, True)",
    "xp.full(3, 2.0, dtype=xp.float32)", "xp.ones(3, dtype=xp.int8)", "xp.zeros((2, 2), dtype=xp.float64)",
    "xp.zeros((), dtype=xp.int32)", "xp.ones_like(i)", "xp.zeros_like(x, dtype=xp.int64)", "xp.full_like(x, 3)",
    "xp.meshgrid(v, w)", "xp.meshgrid(v, w, indexing='ij')", "xp.tril(x)", "xp.tril(m, k=1)", "xp.triu(x, k=-1)",
    "xp.round(z * 3)", "xp.sign(z)",
    "xp.unique_values(xp.concat([z, z]))", "xp.abs(z)", "xp.sqrt(z)", "xp.vecdot(z, z)",
    "xp.from_dlpack(x)", "xp.from_dlpack(x, copy=True)", "xp.astype(x, xp.float32)", "xp.astype(i, xp.float64)",
    "xp.astype(b, xp.int64)", "xp.broadcast_to(v, (3, 4))", "xp.broadcast_arrays(x, v)", "xp.concat([x, y])",
    "xp.concat([x, f], axis=1)", "xp.concat([x, v], axis=None)", "xp.stack([x, y], axis=-1)",
    "xp.expand_dims(x, axis=0)", "xp.expand_dims(x, axis=-1)", "xp.flip(x)", "xp.flip(x, axis=1)",
    "xp.flip(m, axis=(0, 2))", "xp.moveaxis(m, 0, -1)", "xp.moveaxis(m, (0, 1), (1, 2))",
    "xp.permute_dims(m, (2, 0, 1))", "xp.repeat(x, 2)", "xp.repeat(x, 2, axis=1)",
    "xp.repeat(v, xp.asarray([1, 0, 2, 1]))", "xp.reshape(x, (4, 3))", "xp.reshape(x, (-1,))",
    "xp.reshape(x, (2, 6), copy=True)", "xp.roll(x, 1)", "xp.roll(x, -2, axis=1)", "xp.roll(x, (1, 2), axis=(0, 1))",
    "xp.roll(x, 1, axis=(0, 1))", "xp.squeeze(one, 0)", "xp.squeeze(one, (0, 2))", "xp.tile(x, (2,))",
    "xp.tile(v, (2, 3))", "xp.unstack(x)", "xp.unstack(x, axis=1)", "xp.argmax(x)", "xp.argmax(x, axis=1)",
    "xp.argmin(x, axis=0, keepdims=True)", "xp.argmax(x, keepdims=True)", "xp.argmin(i, axis=-1)", "xp.nonzero(b)",
    "xp.count_nonzero(i)", "xp.count_nonzero(b, axis=1, keepdims=True)", "xp.count_nonzero(b, axis=(0, 1))",
    "xp.searchsorted(xp.sort(v), w)", "xp.searchsorted(xp.asarray([1, 2, 2, 3]), k)",
    "xp.searchsorted(xp.asarray([1, 2, 2, 3]), k, side='right')", "xp.searchsorted(v, w, sorter=xp.argsort(v))",
    "xp.argsort(x)", "xp.argsort(i, axis=0, descending=True)", "xp.sort(x)", "xp.sort(i, axis=0, descending=True)",
    "xp.take(v, k)", "xp.take(x, k, axis=1)", "xp.take(m, xp.asarray([-1, 0]), axis=0)",
    "xp.take_along_axis(x, xp.argsort(x, axis=0), axis=0)", "xp.take_along_axis(x, xp.asarray([[-1], [0], [2]]))",
    "xp.unique_values(u)", "xp.unique_counts(i)", "xp.unique_inverse(i)", "xp.unique_all(i)",
    *calls("x", "sum prod mean max min std var"), *calls("x, axis=0", "sum prod mean max min std var"),
    *calls("x, axis=(0, 1), keepdims=True", "sum prod mean max min std var"),
    "xp.sum(x, axis=())", "xp.max(x, axis=())", "xp.sum(i, axis=0)", "xp.sum(u)", "xp.prod(j)",
    "xp.sum(j, dtype=xp.float64)", "xp.sum(f)", "xp.max(u, axis=1)", "xp.sum(x, dtype=xp.float32)", "xp.mean(f)",
    "xp.std(x, correction=1)", "xp.var(x, axis=0, correction=0.5)", "xp.all(b)", "xp.all(b, axis=0)",
    "xp.any(b, axis=(0, 1))", "xp.any(b, axis=1, keepdims=True)", "xp.all(i)", "xp.cumulative_sum(v)",
    "xp.cumulative_sum(x, axis=1, include_initial=True)", "xp.cumulative_prod(x, axis=0)",
    "xp.cumulative_sum(u, axis=0)", "xp.cumulative_sum(j, axis=0, dtype=xp.float32)", "xp.diff(x)",
    "xp.diff(x, axis=0, n=2)", "xp.diff(v, prepend=w, append=w)", "xp.matmul(t, m)", "xp.matmul(x, v)",
    "xp.matmul(xp.matrix_transpose(i), i)", "xp.matrix_transpose(m)", "xp.tensordot(x, y)",
    "xp.tensordot(x, v, axes=1)", "xp.tensordot(x, y, axes=((0,), (0,)))", "xp.vecdot(x, y)", "xp.vecdot(x, v)",
    "xp.vecdot(u, u)", "xp.vecdot(j, u)",
    "xp.vecdot(x, y, axis=-2)", "xp.matmul(f, x.T)", "xp.linalg.cholesky(h)", "xp.linalg.cholesky(h, upper=True)",
    "xp.linalg.cross(t, t + 1)", "xp.linalg.det(m)", "xp.linalg.diagonal(m)", "xp.linalg.diagonal(m, offset=1)",
    "xp.linalg.eigvalsh(h)", "xp.linalg.inv(m)", "xp.linalg.eigh(h).eigenvalues", "xp.linalg.matrix_norm(m)",
    "xp.linalg.matrix_norm(m, ord='nuc', keepdims=True)", "xp.linalg.matrix_norm(m, ord=1)",
    "xp.linalg.matrix_power(h, 3)", "xp.linalg.matrix_rank(m)", "xp.linalg.outer(v, w)", "xp.linalg.pinv(t)",
    "abs(xp.linalg.qr(m).R)", "xp.linalg.slogdet(m).logabsdet", "xp.linalg.slogdet(m).sign",
    "xp.linalg.solve(m, m + 1)", "xp.linalg.solve(h, m[0, :, 0])", "xp.linalg.svd(t).S",
    "abs(xp.linalg.svd(t, full_matrices=False).Vh)", "xp.linalg.svdvals(m)",
    "xp.linalg.svd(t).Vh @ xp.matrix_transpose(xp.linalg.svd(t).Vh)", "xp.linalg.trace(m)",
    "xp.linalg.trace(m, offset=1)", "xp.linalg.trace(u)", "xp.linalg.trace(j, dtype=xp.int64)",
    "xp.linalg.vecdot(x, y)", "xp.linalg.vector_norm(x)", "xp.linalg.vector_norm(m, axis=(0, 1))",
    "xp.linalg.vector_norm(x, axis=1, keepdims=True, ord=1)", "xp.linalg.vector_norm(x, ord=xp.inf)",
    "xp.linalg.matmul(x, v)", "xp.linalg.tensordot(x, y)", "xp.linalg.matrix_transpose(x)", "xp.fft.fft(z)",
    "xp.fft.fft(z, n=6, norm='ortho')", "xp.fft.ifft(z)", "xp.fft.fftn(z)", "xp.fft.ifftn(z)", "xp.fft.rfft(x)",
    "xp.fft.rfft(x, axis=0)", "xp.fft.rfftn(x)", "xp.fft.rfftn(x, s=(2, 4), axes=(0, 1))", "xp.fft.irfft(z)",
    "xp.fft.irfft(z, n=5)", "xp.fft.irfftn(z)", "xp.fft.hfft(z)", "xp.fft.ihfft(x)",
    "xp.fft.fftfreq(5, d=0.5, dtype=xp.float64)", "xp.fft.rfftfreq(6, dtype=xp.float64)", "xp.fft.fftshift(x)",
    "xp.fft.ifftshift(x, axes=1)", "xp.can_cast(xp.int8, xp.int16)", "xp.can_cast(xp.int16, xp.int8)",
    "xp.can_cast(xp.int8, xp.float32)", "xp.can_cast(xp.float32, xp.complex128)", "xp.can_cast(xp.bool, xp.int8)",
    "xp.can_cast(u, xp.int16)", "xp.isdtype(xp.float32, 'real floating')",
    "xp.isdtype(xp.int8, ('bool', 'signed integer'))", "str(xp.result_type(f, x)).split('.')[-1]",
    "str(xp.result_type(xp.int8, xp.uint8)).split('.')[-1]", "xp.finfo(xp.float32).eps", "xp.finfo(f).max",
    "xp.finfo(xp.complex128).bits", "xp.iinfo(u).max", "xp.finfo(xp.complex64).dtype == xp.float32",
    "xp.iinfo(xp.int8).dtype == xp.int8", "sorted(xp.__array_namespace_info__().dtypes())",
    "sorted(xp.__array_namespace_info__().capabilities())",
    "sorted(xp.__array_namespace_info__().dtypes(kind='integral'))",
    "sorted(xp.__array_namespace_info__().default_dtypes())", "(xp.pi, xp.e, xp.inf, xp.newaxis)", "m.mT", "x[b]",
    "x[1, ...]", "x[:, xp.newaxis, 2]", "m[..., ::-1]", "int(k[1])", "complex(s)", "[7, 8, 9, 10][k[0]]", "x + 1",
    "i << 1", "x @ y.T", "abs(x)", "~b", "x.to_device(x.device)",
]  # fmt: skip


def plain(value: Any) -> Any:
    """Return arrays of either library as NumPy's, with containers of them as lists."""
    if isinstance(value, sg.Tensor):
        return value.numpy()
    if hasattr(value, "_array"):
        return value._array
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def compare(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        tolerance = 1e-5 if wanted.dtype.itemsize == 4 else 1e-10
        np.testing.assert_allclose(got, wanted, tolerance, tolerance)
    else:
        assert got == wanted


def outcome(case: str, xp: Any) -> Any:
    return plain(eval(case, {"xp": xp, **{name: xp.asarray(array) for name, array in DATA.items()}}))


@pytest.mark.parametrize("case", CASES)
def test_a_call_gives_the_standards_values_and_dtypes(case):
    compare(outcome(case, XP), outcome(case, strict))


def test_every_function_is_called():
    called = "\n".join(CASES)
    functions = [name for room, name in NAMES if inspect.isfunction(member(strict, room, name))]
    assert {name for name in functions if f".{name}(" not in called} == {"empty", "empty_like"}


def test_memory_without_values_has_its_shape_and_dtype():
    assert (XP.empty((2, 3), dtype=XP.int8).shape, XP.empty(4).dtype) == ((2, 3), sg.float32)
    assert (XP.empty_like(sg.ones(2, 3)).shape, XP.empty_like(sg.ones(2), dtype=XP.int64).dtype) == ((2, 3), sg.int64)


DIFFERENTIABLE = [
    "xp.std(x, axis=0)", "xp.max(x, axis=(0, 1))", "xp.sort(x, axis=0)", "xp.unique_values(x)", "xp.take(x, k, axis=1)",
    "xp.sign(x) * x",
    "xp.concat([x, y], axis=None)", "xp.clip(x, max=y)", "xp.linalg.trace(m)", "xp.linalg.solve(m, m + 1)",
    "xp.cumulative_sum(x, axis=0, dtype=xp.float64)", "xp.reshape(x, (-1,), copy=True)", "xp.fft.irfft(xp.fft.rfft(x))",
    "xp.take_along_axis(x, xp.asarray([[-1], [0], [2]]))", "xp.astype(x, xp.float32)", "xp.linalg.vector_norm(x)",
    "xp.where(xp.asarray(x > 0), x, 0.0)", "xp.tensordot(x, y)", "xp.multiply(2, x)", "xp.roll(x, 1, axis=(0, 1))",
]  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_gradients_flow_through(case):
    given = {name: sg.tensor(DATA[name], requires_grad=True) for name in ("x", "m")}
    result = eval(case, {"xp": XP, **given, "y": sg.tensor(DATA["y"]), "k": sg.tensor(DATA["k"])})
    result.sum().backward()
    used = given["m"] if "(m" in case else given["x"]
    assert used.grad is not None
    assert used.grad.abs().sum().item() > 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: XP.squeeze(sg.ones(1, 2), 1), ShapeError, "squeeze: got axis=1 .* not of size 1"),
        (lambda: XP.reshape(sg.ones(2, 3).T, (6,), copy=False), ArgumentError, "reshape: got copy=False"),
        (lambda: XP.take(sg.ones(2, 3), sg.tensor([0])), ArgumentError, "take: got a tensor of 2 dimensions"),
        (lambda: XP.vecdot(sg.ones(3), sg.ones(1)), ShapeError, "vecdot: got vectors of 3 and 1 elements"),
        (lambda: XP.nonzero(sg.tensor(1)), ShapeError, "nonzero: got a 0-d tensor"),
        (lambda: XP.add(1, 2), OperandError, "add: got int, int"),
        (lambda: XP.multiply(sg.ones(2), [1, 2]), OperandError, "multiply: got Tensor, list"),
        (lambda: XP.result_type(1, 2.0), OperandError, "no tensor and no dtype"),
        (lambda: XP.expand_dims(sg.ones(2), axis=3), DimensionError, "unsqueeze"),
        (lambda: XP.linspace(0, 1, -1), ArgumentError, "linspace: got num=-1"),
        (lambda: sg.ones(1).to_device("cpu", stream=3), ArgumentError, "to_device: got stream=3"),
        (lambda: sg.ones(1).__array_namespace__(api_version="1999"), ArgumentError, "wanted '2024.12' or older"),
    ],
)
def test_what_the_standard_forbids_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_dtypes_promote_whatever_the_dimensions():
    f, d = sg.ones(2), sg.tensor(1.0, dtype="float64")
    assert ((f + d).dtype, XP.add(f, d).dtype, XP.result_type(f, d)) == (sg.float32, sg.float64, sg.float64)
    assert XP.result_type(sg.int8, 1.0) == sg.float32


def test_the_namespace_is_an_attribute_too():
    assert sg.array_api is XP
    assert sg.ones(1).__array_namespace__(api_version="2023.12") is XP
    assert not hasattr(sg, "array_apis")


def test_memory_is_shared_where_a_copy_is_not_asked_for():
    array = np.ones(3)
    assert XP.asarray(array, copy=False).data_ptr() == array.ctypes.data
    x = sg.ones(2, 3)
    assert XP.reshape(x, (6,)).storage is x.storage
    assert XP.reshape(x, (6,), copy=True).storage is not x.storage
    assert XP.from_dlpack(array).data_ptr() == array.ctypes.data == XP.from_dlpack(array, copy=False).data_ptr()
    assert XP.from_dlpack(array, copy=True).data_ptr() != array.ctypes.data
    assert x.to_device("cpu") is x


def test_lists_are_returned_where_the_standard_says_so():
    x, y = sg.ones(2, 1), sg.ones(3)
    assert [type(XP.meshgrid(y, y)), type(XP.broadcast_arrays(x, y))] == [list, list]
    assert [type(np.meshgrid(y, y)), type(np.broadcast_arrays(x, y))] == [tuple, tuple]  # as NumPy has it


def test_an_empty_range_has_the_dtype_of_its_bounds():
    bounds = [(0, -1.5, 1), (0.5, -2, 1), (-1, 0.0, -1), (2, 1, 1), (1, 2, -1)]
    assert [XP.arange(*b).dtype for b in bounds] == [sg.float32] * 3 + [sg.int64] * 2
    assert {XP.arange(*b).shape for b in bounds} == {(0,)}


def test_there_is_a_cpu():
    info = XP.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] == sg.get_default_dtype() == XP.zeros(1).dtype


@pytest.mark.parametrize(("default", "wanted"), [("float32", "complex64"), ("float64", "complex128")])
def test_complex_ends_give_evenly_spaced_complex_numbers_of_the_default_dtype(default, wanted):
    before = sg.get_default_dtype()
    try:
        sg.set_default_dtype(default)
        found = XP.linspace(0, 1j, 3)
    finally:
        sg.set_default_dtype(before)
    assert (str(found.dtype), found.tolist()) == (wanted, [0, 0.5j, 1j])
