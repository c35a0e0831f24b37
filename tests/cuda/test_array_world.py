"""NumPy's functions, and those of the array API standard, on tensors of a device."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import DeviceError

A = np.array([[1.0, 2.0], [2.0, 4.0]], np.float32)

CASES = {
    "a ufunc": lambda np, x: np.exp(x),
    "a number": lambda np, x: np.float32(2) * x,
    "a reduction": lambda np, x: np.sum(x, axis=0),
    "joined": lambda np, x: np.concatenate([x, x], axis=1),
    "out": lambda np, x: np.square(x, out=np.zeros_like(x)),
    "no array": lambda np, x: (np.shape(x), np.array2string(x)),
}


def on_device(requires_grad: bool = False) -> sg.Tensor:
    return sg.tensor(A, device="cuda", requires_grad=requires_grad)


@pytest.mark.parametrize("name", CASES)
def test_numpys_functions_compute_on_the_device(name):
    got, wanted = CASES[name](np, on_device()), CASES[name](np, A)
    if isinstance(wanted, tuple):
        assert got == wanted
    else:
        assert got.is_cuda
        np.testing.assert_allclose(got.cpu().numpy(), wanted, 1e-6)


def test_gradients_flow_on_the_device():
    x = on_device(requires_grad=True)
    np.sum(x * np.float32(3)).backward()
    assert (x.grad.is_cuda, x.grad.tolist()) == (True, [[3, 3], [3, 3]])


def test_arrays_of_the_host_do_not_mix_with_the_devices():
    with pytest.raises(DeviceError, match="different devices"):
        A * on_device()
    out = np.zeros((2, 2), np.float32)
    assert np.square(on_device(), out=out) is out  # `out` requests the copy to the host
    assert out.tolist() == (A * A).tolist()


def test_the_standards_functions_make_and_move_tensors():
    x = on_device()
    xp = x.__array_namespace__()
    assert xp.asarray(x) is x
    assert xp.asarray(x, copy=True).storage is not x.storage
    assert [d.type for d in xp.__array_namespace_info__().devices()] == ["cpu", "cuda"]
    made = (xp.zeros(2, device="cuda"), xp.asarray([1.0], device=x.device), xp.eye(2, device="cuda"), xp.zeros_like(x))
    assert all(y.is_cuda for y in made)
    assert x.to_device("cpu").tolist() == A.tolist()
    assert x.to_device(x.device) is x
    assert xp.from_dlpack(x, device="cpu").device == "cpu"
    assert xp.astype(x, xp.float64).is_cuda
