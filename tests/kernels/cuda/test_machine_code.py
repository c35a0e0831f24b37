"""The machine code of CUDA kernels, linked without a GPU, and what tells kernels apart on disk."""

import re

import numpy as np
import pytest
from numba.cuda import types

from spillgrad_kernels.cuda import attention, elementwise, index_sums, matmul, reductions, sorting
from spillgrad_kernels.cuda.jit import machine_code
from spillgrad_kernels.cuda.jit.compile import Kernel, cuda, device
from spillgrad_kernels.cuda.jit.launch import _LAYOUTS
from spillgrad_kernels.cuda.jit.machine_code import UnknownIdentity, identity, link
from spillgrad_kernels.cuda.pointers import loaders, storers
from spillgrad_kernels.jit import cache
from spillgrad_kernels.layout import dense
from spillgrad_kernels.tables.elementwise_derivatives import ROWS

CAPABILITIES = [(7, 5), (8, 0), (9, 0)]
FLOAT = np.dtype(np.float32)


def elementwise_kernel(name="add", dtype=FLOAT, is_aligned=True, numbers=False):
    layout = dense((32, 64), dtype)
    operands = (layout, dtype if numbers else layout)
    return elementwise.prepare(ROWS[name].forward, name, (dtype,), operands, (), is_aligned).kernel


def square_of(dtype, tile=None):
    plain = dense((1024, 1024), np.dtype(dtype))
    call = matmul.prepare(plain, plain, plain, (), None, "", (True, True, True))
    return call.kernel


KERNELS = [
    elementwise_kernel(), elementwise_kernel("mul"), elementwise_kernel(dtype=np.dtype(np.float64)),
    elementwise_kernel(is_aligned=False), elementwise_kernel(numbers=True),
    square_of("float32"), square_of("float16"), reductions.kernel("sum", "sum", FLOAT, FLOAT),
    reductions.kernel("max", "max", FLOAT, FLOAT),
    *[make("float32", turned) for make in (sorting.sorting_tiles, sorting.merging_runs) for turned in (False, True)],
    *[index_sums.adding(FLOAT, 1, "int64", rule) for rule in ("sum", "prod", "max", "min")],
    *[attention.forward_kernel(attention.Variant("float32", 64, 64, mask, True, True, 4)) for mask in (0, 1)],
    *[attention.forward_kernel(attention.Variant("float32", 64, width, 0, True, True, 4)) for width in (32, 128)],
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS[::3], ids=repr)
def test_kernels_become_machine_code_for_every_generation(kernel, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codes = {capability: kernel.code(capability) for capability in CAPABILITIES}
    assert len(set(codes.values())) == len(CAPABILITIES)
    assert all(code.startswith(b"\x7fELF") and b"\0kernel\0" in code for code in codes.values())
    names = sorted(path.name.split(".")[2] for path in (cache.places()[0].path / cache.version()).iterdir())
    assert names == ["sm_75", "sm_80", "sm_90"]


def test_kernels_that_do_different_things_have_different_identities():
    found = [
        identity(kernel.function, kernel.parameters, capability) for kernel in KERNELS for capability in CAPABILITIES
    ]
    assert len(set(found)) == len(KERNELS) * len(CAPABILITIES)


def storing(value, helper=lambda x: x, load=loaders["float32", 1], store=storers["float32", 1], scale=2.0):
    helper = device(helper)

    def kernel(n: int, a: int) -> None:
        i = cuda.grid(1)
        if i < n:
            store(a + 4 * i, helper(load(a + 4 * i)) * value)

    return Kernel(kernel)


def one_more(x):
    return x + 1


def adding(number):
    return device(lambda x: x + number)


@pytest.mark.parametrize("other", [
    lambda: storing(2.0), lambda: storing(True), lambda: storing(np.float32(1)), lambda: storing(1.0),
    lambda: storing(1, lambda x: x + 1), lambda: storing(1, adding(1)), lambda: storing(1, adding(2)),
    lambda: storing(1, load=loaders["int32", 1]), lambda: storing(1, one_more), lambda: storing(-1),
    lambda: storing(1, lambda x: one_more(x)), lambda: storing(1, store=storers["int64", 1]), lambda: storing(0.0),
    lambda: storing(-0.0),
])  # fmt: skip
def test_whatever_a_kernel_closes_over_is_in_its_identity(other):
    others = [identity(made.function, made.parameters, (8, 0)) for made in (storing(1), other())]
    assert others[0] != others[1]
    again = other()
    assert identity(again.function, again.parameters, (8, 0)) == others[1]


def test_what_another_kernel_s_parameters_are_is_another_identity():
    function = storing(1).function
    assert identity(function, (types.int64, types.int64), (8, 0)) != identity(function, (types.int64,) * 3, (8, 0))


def test_functions_that_call_each_other_end():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    assert identity(even, (), (8, 0)) != identity(odd, (), (8, 0))


def test_a_kernel_without_an_identity_is_compiled_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel = storing(np.ones(3, np.float32)[0:1])
    with pytest.raises(UnknownIdentity, match="wanted numbers and functions"):
        identity(kernel.function, kernel.parameters, (8, 0))

    def ptx():
        return elementwise_kernel().ptx((8, 0))

    assert machine_code.find(kernel.function, kernel.parameters, (8, 0), ptx).startswith(b"\x7fELF")
    assert list(tmp_path.rglob("*.code")) == []


def test_arguments_are_packed_as_wide_as_the_code_has_them():
    namespace = {}
    exec(f"def kernel({', '.join(_LAYOUTS)}): pass", namespace)
    kinds = [types.boolean if name == "bool" else getattr(types, name) for name in _LAYOUTS]
    code = Kernel(namespace["kernel"], parameters=kinds).ptx((8, 0))
    assert [str(kind) for kind in kinds] == list(_LAYOUTS)
    assert re.findall(r"\.param \.([a-z]\d+) ", code) == ["u64", "u32", "u16", "u8", "u64", "u8", "u8", "f32", "f64"]


@pytest.mark.parametrize("text, capability, says", [
    ("no code", (8, 0), r"compute capability 8\.0: got ERROR .*bad input"),
    (".version 8.0\n.target sm_80\n.address_size 64\n", (5, 0), "newer than the compiler: update numba-cuda"),
])  # fmt: skip
def test_what_is_not_linked_says_why(text, capability, says):
    with pytest.raises(RuntimeError, match=says):
        link(text, capability)
