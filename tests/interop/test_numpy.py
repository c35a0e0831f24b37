"""NumPy's functions of tensors: NumPy's values, PyTorch's dtypes, gradients, and clear refusals."""

import io
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scipy import special

import spillgrad as sg
from spillgrad.errors import DtypeError, GraphError, OperandError

RNG = np.random.default_rng(0)
DATA = {
    "x": RNG.normal(size=(3, 4)),
    "y": RNG.normal(size=(3, 4)),
    "p": RNG.uniform(0.1, 0.9, size=(3, 4)),
    "v": RNG.normal(size=4),
    "w": RNG.normal(size=4),
    "t": RNG.normal(size=(2, 3)),
    "a": RNG.normal(size=(2, 3, 4)),
    "m": RNG.normal(size=(2, 3, 3)) + 4 * np.eye(3),
    "h": np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 2]]),
    "i": RNG.integers(-5, 6, size=(3, 4)),
    "j": RNG.integers(1, 6, size=(3, 4)),
    "k": np.array([2, 0, 3, 1, 2]),
    "b": RNG.integers(0, 2, size=(3, 4)).astype(bool),
    "r": np.array([0.5, np.nan, -0.0, np.inf, -2.5]),
    "n": np.where(RNG.uniform(size=(3, 4)) < 0.3, np.nan, RNG.normal(size=(3, 4))),
    "z": RNG.normal(size=4) + 1j * RNG.normal(size=4),
    "one": np.ones((1, 3, 1)),
}


def cases(text: str) -> list[str]:
    """Return expressions, none of which has a blank in it."""
    return text.split()


CASES = cases("""
np.abs(x)  np.absolute(x)  np.negative(x)  np.positive(x)  np.reciprocal(x)  np.square(x)  np.sqrt(p)  np.fabs(x)
np.exp(x)  np.exp2(x)  np.expm1(x)  np.log(p)  np.log2(p)  np.log10(p)  np.log1p(p)  np.conj(x)  np.conjugate(x)
np.sin(x)  np.cos(x)  np.tan(x)  np.arcsin(p)  np.arccos(p)  np.arctan(x)  np.sinh(x)  np.cosh(x)  np.tanh(x)
np.arcsinh(x)  np.arccosh(1+p)  np.arctanh(p)  np.deg2rad(x)  np.rad2deg(x)  np.radians(x)  np.degrees(x)  np.add(x,y)
np.subtract(x,v)  np.multiply(x,2)  np.divide(1,x)  np.true_divide(x,y)  np.power(p,y)  np.pow(p,2)
np.float_power(p,y)  np.fmod(x,2.0)  np.remainder(x,2.0)  np.mod(x,2.0)  np.maximum(x,y)  np.minimum(x,y)
np.fmax(n,y)  np.fmin(n,y)  np.hypot(x,y)  np.arctan2(x,y)  np.copysign(x,y)  np.logaddexp(x,y)  np.logaddexp2(x,y)
np.ldexp(x,2)  np.matmul(x,v)  np.matmul(t,x)  np.vecdot(x,y)  np.vecdot(x,y,axis=0)  np.modf(x)[0]  np.add.reduce(x)
np.add.reduce(x,axis=1,keepdims=True)  np.add.reduce(x,axis=None)  np.multiply.reduce(x,1)  np.maximum.reduce(x)
np.minimum.reduce(x,axis=(0,1))  np.add.accumulate(x,1)  np.multiply.accumulate(x)  np.maximum.accumulate(x,axis=1)
np.minimum.accumulate(x)  np.subtract.outer(x,v)  np.multiply.outer(v,w)  np.exp(x,dtype=np.float32)
np.add(x,y,dtype="float32")  np.sinc(x)  np.i0(x)  np.nan_to_num(r)  np.nan_to_num(n,nan=7.0)  np.sum(x)
np.sum(x,axis=0)  np.sum(x,0,keepdims=True)  np.sum(x,axis=(0,1))  np.sum(x,dtype=np.float32)  np.sum(x,axis=())
np.prod(x)  np.prod(x,1)  np.mean(x)  np.mean(x,axis=-1,keepdims=True)  np.mean(x,dtype=np.float32)  np.std(x)
np.std(x,axis=0,ddof=1)  np.var(x,keepdims=True)  np.var(x,correction=1)  np.max(x)  np.max(x,axis=(0,1))
np.min(x,axis=1)  np.amax(x,0)  np.amin(x)  np.ptp(x)  np.ptp(x,axis=1,keepdims=True)  np.nansum(n)
np.nansum(n,axis=1)  np.nanmean(n,axis=0)  np.median(x)  np.median(x,axis=1)  np.median(v)  np.nanmedian(n)
np.quantile(x,0.3)  np.quantile(x,[0.1,0.5],axis=1)  np.quantile(x,0.3,method="lower")  np.percentile(x,30)
np.percentile(x,[10,50],axis=0)  np.nanquantile(n,0.3)  np.nanpercentile(n,30,keepdims=True)  np.average(x)
np.average(x,axis=1)  np.average(x,weights=p)  np.average(x,axis=0,weights=p)  np.average(x,axis=1,weights=w+3)
np.linalg.norm(x)  np.cumsum(x)  np.cumsum(x,axis=1)  np.cumsum(x,0,np.float32)  np.cumprod(x)  np.cumprod(x,axis=0)
np.cumulative_sum(v)  np.cumulative_sum(x,axis=1,include_initial=True)  np.cumulative_prod(v)  np.diff(x)
np.diff(x,2)  np.diff(x,axis=0)  np.diff(v,prepend=w,append=w)  np.trapezoid(x)  np.trapezoid(x,dx=0.5,axis=0)
np.trapezoid(x,v)  np.clip(x,-0.5,0.5)  np.clip(x,min=-0.5)  np.clip(x,None,0.5)  np.clip(x,a_min=y-1,a_max=y+1)
np.reshape(x,(4,3))  np.reshape(x,-1)  np.ravel(x)  np.transpose(a)  np.transpose(a,(2,0,1))
np.permute_dims(a,(0,2,1))  np.matrix_transpose(a)  np.swapaxes(a,0,-1)  np.moveaxis(a,0,-1)
np.moveaxis(a,[0,1],[1,2])  np.squeeze(one)  np.squeeze(one,0)  np.squeeze(one,axis=(0,2))  np.expand_dims(x,0)
np.expand_dims(x,axis=-1)  np.broadcast_to(v,(3,4))  np.broadcast_arrays(x,v)  np.atleast_1d(x)  np.atleast_2d(v)
np.atleast_3d(x)  np.atleast_2d(v,x)  np.copy(x)  np.concatenate([x,y])  np.concatenate((x,y),axis=1)
np.concatenate([x,y],1)  np.concat([x,v],axis=None)  np.stack([x,y])  np.stack((x,y),axis=-1)  np.vstack([x,v])
np.hstack([x,y])  np.hstack([v,w])  np.dstack([x,y])  np.column_stack([v,w])  np.append(x,y)  np.append(x,y,axis=1)
np.split(x,3)  np.split(x,[1,3],axis=1)  np.array_split(x,3,axis=1)  np.hsplit(x,2)  np.vsplit(x,3)  np.dsplit(a,2)
np.unstack(x)  np.unstack(x,axis=1)  np.tile(v,3)  np.tile(x,(2,1,2))  np.repeat(x,2)  np.repeat(x,2,axis=0)
np.repeat(v,[1,0,2,1])  np.flip(x)  np.flip(x,1)  np.flip(a,(0,2))  np.fliplr(x)  np.flipud(x)  np.rot90(x)
np.rot90(x,2)  np.rot90(a,1,(1,2))  np.roll(x,1)  np.roll(x,1,axis=1)  np.roll(x,(1,2),(0,1))  np.diag(v)
np.diag(v,1)  np.diag(x,k=-1)  np.diagflat(t)  np.diagflat(v,k=1)  np.diagonal(x)  np.diagonal(a,1,1,2)  np.trace(x)
np.trace(a,offset=1,axis1=1,axis2=2)  np.tril(x)  np.tril(x,-1)  np.triu(a,k=1)  np.vander(v)  np.vander(v,3)
np.vander(v,increasing=True)  np.meshgrid(v,w)  np.meshgrid(v,w,indexing="ij")  np.pad(x,1)  np.pad(x,(1,2))
np.pad(x,((0,1),(2,0)))  np.pad(x,1,constant_values=3.0)  np.pad(x,1,mode="edge")  np.pad(a,1,"reflect")
np.pad(a,1,"wrap")  np.take(x,[1,5])  np.take(x,k,axis=1)  np.take(v,[-1,0])
np.take_along_axis(x,np.argsort(x,axis=0),0)  np.where(b,x,y)  np.where(b,x,0.0)  np.where(x>0,x,v)  np.sort(x)
np.sort(x,axis=0)  np.sort(x,axis=None)  np.sort(v,stable=True)  np.real(x)  np.astype(x,np.float32)  np.dot(v,w)
np.dot(x,v)  np.dot(t,x)  np.dot(a,x.T)  np.dot(t,np.moveaxis(a,1,1))  np.dot(x,2.0)  np.vdot(x,y)  np.inner(v,w)
np.inner(x,v)  np.outer(v,w)  np.outer(x,v)  np.kron(t,v)  np.tensordot(x,y)  np.tensordot(x,v,1)
np.tensordot(a,x,axes=([1,2],[0,1]))  np.einsum("ij,ij->i",x,y)  np.einsum("ij,kj,k->i",x,y,t[:,0]@y[:2,:3])
np.cross(m[0],m[1])  np.cross(h,m[0],axis=0)  np.cov(x)  np.cov(x,ddof=0)  np.corrcoef(x)  np.linalg.norm(x,axis=1)
np.linalg.norm(x,1)  np.linalg.norm(v,3)  np.linalg.norm(x,"nuc")  np.linalg.norm(x,axis=0,keepdims=True)
np.linalg.det(m)  np.linalg.inv(m)  np.linalg.pinv(t)  np.linalg.solve(m,m+1)  np.linalg.solve(h,h[0])
np.linalg.cholesky(h)  np.linalg.eigvalsh(h)  np.linalg.eigh(h)[0]  np.linalg.eigh(h,"U")[0]
np.abs(np.linalg.qr(m)[1])  np.square(np.linalg.qr(m,mode="r"))  np.linalg.slogdet(m)[1]
np.linalg.svd(t,full_matrices=False)[1]  np.linalg.svd(t,compute_uv=False)  np.linalg.svdvals(t)  np.linalg.cond(h)
np.linalg.matrix_power(h,3)  np.linalg.matrix_norm(m)  np.linalg.vector_norm(x,axis=0,ord=1)
np.linalg.multi_dot([t,x,v])  np.linalg.tensorinv(m[0]@h,ind=1)  np.linalg.tensorsolve(h,v[:3])  np.linalg.outer(v,w)
np.linalg.cross(h,h+1)  np.linalg.trace(m)  np.linalg.diagonal(m,offset=1)  np.linalg.matmul(t,x)
np.linalg.vecdot(x,y)  np.linalg.tensordot(x,y)  np.linalg.matrix_transpose(x)  np.abs(np.fft.fft(x).real)
np.fft.rfft(x,n=6).real  np.fft.irfft(z).real+x[0,0]  np.fft.ifft(x,axis=0).imag  np.fft.fft2(x).real
np.fft.fftn(x).real  np.fft.rfft2(x).real  np.fft.ihfft(x,norm="ortho").real  np.fft.fftshift(x)
np.fft.ifftshift(x,axes=1)  x[0]*np.float32(2)  np.float64(2)*x  DATA["x"]*x  DATA["x"]@x.T  x-DATA["x"]
DATA["v"]**2/x  np.add(x,[1.0,2.0,3.0,4.0])
""")
# They give integers or truth values, or what changes in steps.
WITHOUT_GRADIENT = cases("""
np.sign(r)  np.floor(x)  np.ceil(x)  np.trunc(x)  np.rint(x)  np.round(x)  np.round(x,1)  np.around(x,2)  np.fix(x)
np.floor_divide(x,2.0)  np.divmod(x,2.0)[0]  np.modf(x)[1]  np.heaviside(x,0.5)  np.nextafter(x,y)  np.isnan(r)
np.isinf(r)  np.isfinite(r)  np.signbit(r)  np.isneginf(r)  np.isposinf(r)  np.logical_and(x,i)  np.logical_or(b,i)
np.logical_xor(b,i)  np.logical_not(i)  np.equal(x,x)  np.not_equal(x,y)  np.less(x,y)  np.less_equal(x,y)
np.greater(x,0)  np.greater_equal(i,j)  np.isclose(x,x+1e-9)  np.isclose(x,y,atol=1.0)  np.isclose(r,r,equal_nan=True)
np.invert(i)  np.bitwise_not(b)  np.bitwise_and(i,j)  np.bitwise_or(i,j)  np.bitwise_xor(i,j)  np.left_shift(j,1)
np.right_shift(i,1)  np.gcd(i,j)  np.lcm(i,j)  np.add(i,j)  np.floor_divide(i,j)  np.power(j,2)  np.abs(i)
np.maximum(i,j)  np.sum(i)  np.sum(i,axis=0)  np.prod(j,axis=1)  np.max(i,axis=1)  np.cumsum(i)  np.all(b)
np.all(b,axis=0)  np.any(b,axis=1,keepdims=True)  np.logical_and.reduce(b)  np.logical_or.reduce(b,axis=1)
np.argmax(x)  np.argmax(x,axis=1)  np.argmin(x,0,keepdims=True)  np.argsort(x)  np.argsort(x,axis=0)
np.argsort(x,None)  np.argwhere(b)  np.nonzero(b)  np.where(b)  np.count_nonzero(i)
np.count_nonzero(b,axis=1,keepdims=True)  np.searchsorted(np.sort(v),w)  np.searchsorted(np.sort(v),w,side="right")
np.bincount(k)  np.bincount(k,minlength=7)  np.isin(i,j)  np.isin(i,j,invert=True)  np.unravel_index(k,(2,3))
np.sort(np.unique_values(i))  np.unique_counts(i)  np.unique_inverse(i)  np.unique_all(i)  np.zeros_like(x)
np.ones_like(i)  np.full_like(x,2.5)  np.ones_like(x,dtype=np.int64)  np.linalg.matrix_rank(m)  np.angle(x)
np.imag(z)  np.sort(i,axis=0)  np.dot(i,j.T)  i+np.int64(3)  DATA["i"]>j  np.less(x,y,dtype=bool)  np.shape(x)
np.ndim(x)  np.size(x)  np.size(x,1)  np.allclose(x,x)  np.array_equal(x,x)  np.array_equal(x,v)
np.shares_memory(x,x)  np.iscomplexobj(z)  np.isrealobj(x)  np.array2string(x)  np.array_str(v)
np.can_cast(x.dtype,np.float64)  np.empty_like(x).shape  np.linalg.norm(x).shape  np.result_type(x,np.float64)
""")


def test_no_case_is_cut():
    assert all(case.count("(") == case.count(")") for case in CASES + WITHOUT_GRADIENT)


def plain(value: Any) -> Any:
    if isinstance(value, sg.Tensor):
        return value.numpy()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def compare(got: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, np.ndarray | np.generic):
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        tolerance = 1e-5 if wanted.dtype.itemsize == 4 else 1e-9
        np.testing.assert_allclose(got, wanted, tolerance, tolerance)
    else:
        assert type(got) is type(wanted)
        assert got == wanted


def arrays_in(value: Any) -> list[sg.Tensor]:
    if isinstance(value, list | tuple):
        return [found for part in value for found in arrays_in(part)]
    return [value]


@pytest.mark.parametrize("case", CASES)
def test_a_function_gives_numpys_values_and_gradients_flow(case):
    wanted = eval(case, {"np": np, "DATA": DATA, **DATA})
    given = {name: sg.tensor(value) for name, value in DATA.items()}
    leaves = [x.requires_grad_() for x in given.values() if x.is_floating_point()]
    got = eval(case, {"np": np, "DATA": DATA, **given})
    compare(plain(got), plain(wanted))
    results = arrays_in(got)
    assert all(type(x) is sg.Tensor and x.requires_grad for x in results)
    sum((x.sum() for x in results), sg.tensor(0.0, dtype="float64")).backward()
    assert any(x.grad is not None and x.grad.shape == x.shape for x in leaves)


@pytest.mark.parametrize("case", WITHOUT_GRADIENT)
def test_a_function_without_a_gradient_gives_numpys_values(case):
    wanted = eval(case, {"np": np, "DATA": DATA, **DATA})
    got = eval(case, {"np": np, "DATA": DATA, **{name: sg.tensor(value) for name, value in DATA.items()}})
    compare(plain(got), plain(wanted))
    if isinstance(wanted, np.ndarray):
        assert type(got) is sg.Tensor


REFUSED = {
    "np.unwrap(x)": r"np\.unwrap: got a tensor; no function.*x\.numpy\(\)",
    "np.unique(x)": r"call sg\.unique, or give it x\.numpy\(\)",
    "np.interp(x,v,v)": r"np\.interp",
    "np.frexp(x)": r"np\.frexp",
    "np.cbrt(x)": r"np\.cbrt.*sg\.pow",
    "np.sum(x,where=x>0)": r"np\.sum: got where=",
    "np.sum(x,initial=1.0)": r"np\.sum: got initial=1\.0",
    "np.exp(x,where=x>0)": r"np\.exp: got where=",
    "np.exp(x,casting='unsafe')": r"np\.exp: got casting='unsafe'",
    "np.add.at(x,[0],1.0)": r"np\.add\.at",
    "np.add.reduceat(x,[0,1])": r"np\.add\.reduceat",
    "np.hypot.reduce(x)": r"np\.hypot\.reduce",
    "np.less(x,x,dtype=np.float64)": r"np\.less: got dtype",
    "np.ravel(x,order='F')": r"np\.ravel: got order='F'",
    "np.cov(x,rowvar=False)": r"np\.cov: got rowvar=False",
    "np.zeros_like(x,shape=(2,))": r"np\.zeros_like: got shape=",
    "np.exp(x,out=np.zeros((3,4)))": r"np\.exp: got an array as out for a tensor that requires a gradient",
    "np.add(DATA['x'],x,out=DATA['y'])": r"np\.add: got an array as out",
    "np.sum(x,out=np.zeros(()))": r"np\.sum: got an array as out",
    "np.copyto(DATA['x'],x)": r"np\.copyto.*x\.copy_",
    "operator.iadd(DATA['y'],x)": "an array as out",
    "np.round(np.argsort(x),-1)": r"np\.round: got decimals=-1 for int64",
    "np.divmod(x,2.0,out=(x,x))": r"np\.divmod: got several outs",
}  # fmt: skip


@pytest.mark.parametrize("call", REFUSED)
def test_what_has_no_equal_is_refused_and_no_gradient_is_lost(call):
    x = sg.tensor(DATA["x"], requires_grad=True)
    before = DATA["y"].copy()
    with pytest.raises(TypeError, match=REFUSED[call]) as raised:
        eval(call, {"np": np, "DATA": DATA, "operator": operator, "x": x, "v": sg.tensor(DATA["v"])})
    assert isinstance(raised.value, OperandError)
    assert (DATA["y"] == before).all()


def test_another_class_gets_its_turn():
    class Other:
        def __array_ufunc__(self, *arguments: Any, **options: Any) -> str:
            return "ufunc"

        def __array_function__(self, *arguments: Any, **options: Any) -> str:
            return "function"

        def __radd__(self, other: Any) -> str:
            return "radd"

    x = sg.ones(2)
    assert (np.add(x, Other()), np.concatenate([x, Other()]), x + Other()) == ("ufunc", "function", "radd")
    with pytest.raises(TypeError, match="returned NotImplemented"):
        np.add(x, object())


def test_results_go_into_what_is_given():
    x, array = sg.tensor(DATA["x"]), np.zeros((3, 4))
    out = sg.zeros(3, 4, dtype="float64")
    assert np.exp(x, out=out) is out
    assert np.exp(x, out=array) is array
    np.testing.assert_allclose(array, np.exp(DATA["x"]), 1e-12)
    assert out.tolist() == array.tolist()
    total = sg.zeros(4, dtype="float64")
    assert (np.sum(x, axis=0, out=total) is total, total.tolist()) == (True, x.sum(0).tolist())
    array += x
    np.testing.assert_allclose(array, np.exp(DATA["x"]) + DATA["x"], 1e-12)
    whole = np.zeros(4, np.int64)
    with pytest.raises(TypeError, match="Cannot cast"):
        np.sum(x, axis=0, out=whole)
    with pytest.raises(GraphError, match=r"np\.exp: got out= and a tensor that requires a gradient"):
        np.exp(x.requires_grad_(), out=out)


def test_operators_with_arrays_promote_as_those_with_tensors():
    x = sg.ones(2, dtype="float32")
    double = np.ones(2)
    assert {(double * x).dtype, (x * double).dtype, np.multiply(double, x).dtype} == {sg.float64}
    assert {(np.float64(2) * x).dtype, (np.array(2.0) * x).dtype, (x * 2).dtype} == {sg.float32}
    assert {type(v) for v in (double * x, double @ x.double(), double == x, double < x, np.float32(1) / x)} == {
        sg.Tensor
    }
    half = sg.ones(2, dtype="bfloat16")
    assert (np.exp(half).dtype, np.sum(half).dtype) == (sg.bfloat16, sg.bfloat16)


def test_arrays_are_still_made_of_tensors_and_take_their_values():
    x = sg.ones(3, requires_grad=True)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert type(np.array(x)) is np.ndarray
    assert np.asarray([x, x]).shape == (2, 3)
    array = np.zeros(3)
    array[:] = x
    assert array.tolist() == [1, 1, 1]
    np.testing.assert_allclose(x, np.ones(3))
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    assert np.load(file).tolist() == [1, 1, 1]
    assert type(np.zeros(2, like=x)) is sg.Tensor
    assert np.array2string(sg.ones(2, dtype="bfloat16")) == np.array2string(np.ones(2, ml_dtypes.bfloat16))


def test_parameters_are_tensors():
    weight = sg.nn.Parameter(sg.ones(3))
    np.sum(np.tanh(weight) * np.arange(3.0, dtype=np.float32)).backward()
    assert weight.grad.shape == (3,)


def test_arrays_that_no_tensor_holds_are_refused():
    with pytest.raises(DtypeError):
        np.add(sg.ones(1), np.array([object()]))
    with pytest.raises(TypeError, match="'str'"):
        np.add(sg.ones(1), "1")


def test_scipys_special_functions_are_differentiated_too():
    x = sg.tensor([0.3, 0.6], dtype="float64", requires_grad=True)
    for name in ("erf", "erfc", "erfinv", "gammaln", "psi", "expit", "logit", "entr", "ndtr", "i0", "i1", "log1p"):
        got = getattr(special, name)(x)
        np.testing.assert_allclose(got.numpy(), getattr(special, name)(x.numpy()), 1e-9)
        assert got.requires_grad
    np.testing.assert_allclose(special.xlogy(x, 2.0).numpy(), special.xlogy(x.numpy(), 2.0), 1e-12)
    with pytest.raises(OperandError, match=r"np\.j0|j0"):
        special.j0(x)


def members(room: Any) -> list[Any]:
    found = [getattr(room, name) for name in dir(room) if not name.startswith("_")]
    return [f for f in found if isinstance(f, np.ufunc) or hasattr(f, "_implementation")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("room", [np, np.linalg, np.fft], ids=lambda room: room.__name__)
def test_no_function_takes_the_values_of_a_tensor_that_requires_a_gradient(room, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = sg.tensor(DATA["p"][:3, :3], requires_grad=True)
    calls = 0
    for function in members(room):
        mixed = ((x.numpy(), x),) if isinstance(function, np.ufunc) else ()
        for arguments in ((x,), (x, x), (x, x, x), (x, 1), *mixed):
            try:
                result = function(*arguments)
            except (ValueError, TypeError, RuntimeError, IndexError, AttributeError):
                continue
            calls += 1
            parts = list(result) if isinstance(result, list | tuple) else [result]
            assert not any(isinstance(part, np.ndarray) for part in parts), function
            name, given = function.__name__, parts[0]
            if isinstance(given, sg.Tensor) and given.is_floating_point() and name not in CONSTANT:
                assert given.requires_grad, (function, arguments)
    assert calls > 12


CONSTANT = {
    "angle", "ceil", "divmod", "empty_like", "fix", "floor", "floor_divide", "full_like", "heaviside", "nextafter",
    "ones_like", "rint", "round", "sign", "trunc", "zeros_like",
}  # fmt: skip


def test_a_fused_function_may_be_written_with_numpys():
    x = sg.tensor(DATA["x"], requires_grad=True)
    fused = sg.fuse(lambda x: np.exp(x) * np.tanh(x) + np.maximum(x, 0.5))
    got = fused(x)
    np.testing.assert_allclose(got.numpy(), np.exp(DATA["x"]) * np.tanh(DATA["x"]) + np.maximum(DATA["x"], 0.5), 1e-9)
    assert got.requires_grad
