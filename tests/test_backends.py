"""Settings of PyTorch's backends read back as they were set; TF32 is the precision of products."""

import importlib

import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError

backends = sg.backends


@pytest.fixture
def restored_precision():
    before = sg.get_float32_matmul_precision()
    yield
    sg.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("module", "name", "values"),
    [
        ("cudnn", "benchmark", (True, False)),
        ("cudnn", "deterministic", (True, False)),
        ("cudnn", "enabled", (False, True)),
        ("cudnn", "allow_tf32", (False, True)),
        ("mkldnn", "enabled", (False, True)),
        ("opt_einsum", "strategy", ("greedy", "auto")),
    ],
)
def test_a_setting_reads_back(module, name, values):
    room = importlib.import_module(f"spillgrad.backends.{module}")
    for value in values:
        setattr(room, name, value)
        assert getattr(room, name) == value


def test_allow_tf32_is_the_precision_of_products(restored_precision):
    backends.cuda.matmul.allow_tf32 = True
    assert (sg.get_float32_matmul_precision(), backends.cuda.matmul.fp32_precision) == ("high", "tf32")
    sg.set_float32_matmul_precision("highest")
    assert backends.cuda.matmul.allow_tf32 is False
    backends.cuda.matmul.fp32_precision = "tf32"
    assert backends.cuda.matmul.allow_tf32 is True
    with pytest.raises(ArgumentError, match="wanted 'ieee' or 'tf32'"):
        backends.cuda.matmul.fp32_precision = "half"


@pytest.mark.parametrize("module", ["cudnn", "mkl", "mkldnn", "mps", "openmp"])
def test_what_is_not_used_is_not_available(module):
    assert importlib.import_module(f"spillgrad.backends.{module}").is_available() is False
    assert (backends.cudnn.version(), backends.mps.is_built()) == (None, False)


@pytest.mark.parametrize("module", [backends.cudnn, backends.mkldnn])
def test_flags_hold_within_their_block(module):
    before = module.enabled, module.deterministic
    with module.flags(enabled=False, deterministic=True):
        assert (module.enabled, module.deterministic) == (False, True)
    assert (module.enabled, module.deterministic) == before


@pytest.mark.parametrize("kind", ["flash", "math", "mem_efficient", "cudnn"])
def test_kernels_of_attention_read_back_as_they_were_enabled(kind):
    enable, enabled = getattr(backends.cuda, f"enable_{kind}_sdp"), getattr(backends.cuda, f"{kind}_sdp_enabled")
    with backends.cuda.sdp_kernel(**{f"enable_{kind}": False}):
        assert enabled() is False
    assert enabled() is True
    enable(False)
    assert enabled() is False
    enable(True)


def test_a_kernel_of_attention_may_be_chosen():
    x = sg.randn(1, 2, 3, 4)
    attend = sg.nn.functional.scaled_dot_product_attention
    with sg.nn.attention.sdpa_kernel([sg.nn.attention.SDPBackend.MATH]):
        assert sg.equal(attend(x, x, x), attend(x, x, x))
