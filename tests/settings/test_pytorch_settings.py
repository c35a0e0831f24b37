"""Settings and questions of PyTorch that programs pass on: devices, determinism, printing, random states, layouts."""

import os

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, DeviceError, OperandError
from spillgrad_kernels.cuda.driver.availability import missing

packaging = pytest.importorskip("packaging.version")
without_cuda = pytest.mark.skipif(missing() is None, reason="asks what a machine without a CUDA device says")


def test_the_version_compares_as_a_release_of_pytorch():
    assert packaging.parse(sg.version.__version__) >= packaging.parse("2.13.0")
    assert packaging.parse(sg.version.__version__) < packaging.parse("2.14")
    assert sg.version.__version__.endswith(sg.__version__)
    assert sg.version.cuda is None


def test_a_device_is_the_default_of_new_tensors_within_its_block():
    assert sg.get_default_device() == "cpu"
    with sg.device("cpu") as device:
        assert sg.zeros(2).device == device
        with pytest.raises(DeviceError, match="wanted 'cpu' or 'cuda'"), sg.device("meta"):
            pass
    sg.set_default_device("cpu")
    sg.set_default_device(None)
    with pytest.raises(DeviceError):
        sg.set_default_device("mps")
    assert sg.get_default_device() == "cpu"


@pytest.mark.parametrize(
    ("mode", "warn_only", "level"), [(True, False, 2), (True, True, 1), (False, False, 0)]
)  # fmt: skip
def test_settings_of_determinism_read_back(mode, warn_only, level):
    sg.use_deterministic_algorithms(mode, warn_only=warn_only)
    assert sg.are_deterministic_algorithms_enabled() is mode
    assert sg.is_deterministic_algorithms_warn_only_enabled() is warn_only
    assert sg.get_deterministic_debug_mode() == level
    sg.set_deterministic_debug_mode("error")
    assert sg.get_deterministic_debug_mode() == 2
    sg.set_deterministic_debug_mode(0)
    with pytest.raises(ArgumentError):
        sg.set_deterministic_debug_mode("loud")


@pytest.fixture
def default_print():
    yield
    sg.set_printoptions(profile="default")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": 2}, "tensor([0.12, 1.50])"),
        ({"sci_mode": True}, "tensor([1.2346e-01, 1.5000e+00])"),
        ({"profile": "short"}, "tensor([0.12, 1.50])"),
        ({"threshold": 1, "edgeitems": 1}, "tensor([0.1235, 1.5000])"),
        ({"linewidth": 10}, "tensor([0.1235,\n        1.5000])"),
    ],
)
def test_print_options_change_the_text(default_print, options, text):
    sg.set_printoptions(**options)
    assert repr(sg.tensor([0.123456, 1.5])) == text
    sg.set_printoptions(profile="default")
    assert repr(sg.tensor([0.123456, 1.5])) == "tensor([0.1235, 1.5000])"


def test_a_forked_random_state_is_restored():
    sg.manual_seed(1)
    with sg.random.fork_rng():
        inside = sg.rand(3)
    assert sg.equal(sg.rand(3), inside)
    with sg.random.fork_rng(enabled=False):
        before = sg.rand(3)
    assert not sg.equal(sg.rand(3), before)


def test_a_seed_from_entropy_is_returned_and_set():
    assert sg.seed() == sg.initial_seed() == sg.random.initial_seed() != sg.seed()


@without_cuda
def test_without_a_gpu_questions_are_answered_and_work_is_refused():
    assert not (
        sg.cuda.is_available() or sg.accelerator.is_available() or sg.mps.is_available() or sg.xpu.is_available()
    )
    assert (sg.accelerator.current_accelerator(), sg.accelerator.device_count()) == (None, 0)
    assert (sg.cuda.max_memory_allocated(), sg.cuda.memory_summary().count("\n") > 5) == (0, True)
    for harmless in (sg.cuda.empty_cache, sg.cuda.synchronize, sg.cuda.reset_peak_memory_stats, sg.cuda.ipc_collect):
        harmless()
    sg.cuda.manual_seed_all(1)
    with sg.cuda.device(-1), sg.cuda.stream(None), sg.cuda.nvtx.range("step"):
        pass
    for refused in (sg.cuda.Event, sg.cuda.Stream, sg.cuda.current_device, sg.accelerator.synchronize, sg.cuda.init):
        with pytest.raises(DeviceError):
            refused()
    with pytest.raises(DeviceError):
        sg.cuda.set_device(0)


@without_cuda
def test_mixed_precision_of_cuda_warns_and_does_nothing_without_it():
    with pytest.warns(UserWarning, match="Disabling"), sg.cuda.amp.autocast():
        assert (sg.ones(2, 2) @ sg.ones(2, 2)).dtype == sg.float32
    with pytest.warns(UserWarning, match="Disabling"):
        scaler = sg.cuda.amp.GradScaler()
    assert (scaler.is_enabled(), scaler.get_scale(), scaler.scale("loss"), scaler.state_dict()) == (
        False,
        1.0,
        "loss",
        {},
    )


def test_the_state_of_all_devices_is_that_of_the_one_generator():
    states = sg.cuda.get_rng_state_all()
    drawn = sg.rand(3)
    sg.cuda.set_rng_state_all(states)
    assert sg.equal(sg.rand(3), drawn)
    assert sg.cuda.initial_seed() == sg.initial_seed()


FORMATS = [sg.channels_last, sg.contiguous_format, sg.preserve_format]


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_memory_formats_are_accepted_and_change_no_value(format):
    x = sg.randn(2, 3, 4, 5)
    for same in (
        x.to(memory_format=format), x.contiguous(memory_format=format), x.clone(memory_format=format),
        x.float(memory_format=format), x.cpu(memory_format=format),
    ):  # fmt: skip
        assert sg.equal(same, x)
    assert sg.empty_like(x, memory_format=format).shape == sg.empty(2, 3, 4, 5, memory_format=format).shape == x.shape
    model = nn.Conv2d(3, 2, 1)
    assert sg.equal(model.to(memory_format=format)(x), model(x))


def test_whether_channels_lie_last_is_answered_by_the_strides():
    x = sg.randn(2, 3, 4, 5)
    last = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert [t.is_contiguous(memory_format=sg.channels_last) for t in (x, last, last[0])] == [False, True, False]
    assert [t.is_contiguous() for t in (x, last)] == [True, False]
    assert (str(sg.channels_last), str(sg.strided)) == ("torch.channels_last", "torch.strided")


@pytest.mark.parametrize("make", [sg.zeros, sg.ones, sg.rand, sg.randn, sg.empty, sg.arange, sg.eye, sg.randperm])
def test_dense_layouts_and_pinned_memory_are_accepted(make):
    assert make(3, layout=sg.strided, pin_memory=True).layout is sg.strided
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        make(3, colour="red")


def test_kinds_of_tensors_that_do_not_exist_are_denied():
    x = sg.zeros(2)
    kinds = [
        "ipu",
        "maia",
        "meta",
        "mkldnn",
        "mps",
        "mtia",
        "nested",
        "quantized",
        "sparse",
        "sparse_csr",
        "vulkan",
        "xla",
        "xpu",
    ]
    assert [kind for kind in kinds if getattr(x, f"is_{kind}")] == []
    assert (x.is_pinned(), x.is_shared(), x.pin_memory() is x, x.share_memory_() is x) == (False, False, True, True)


def test_a_method_is_a_function_too():
    x = sg.tensor([1.0, 4.0], requires_grad=True)
    assert not sg.detach(x).requires_grad
    assert (sg.is_signed(x), sg.is_same_size(x, x), sg.get_device(x), sg.is_conj(x)) == (True, True, -1, False)
    y = sg.sqrt_(x * 1)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.5, 0.25])
    assert sg.detach_(y * 1).is_leaf
    with pytest.raises(OperandError):
        sg.zeros(2, colour=1)


def _write(number, directory):
    (directory / str(number)).write_text(str(os.getpid()))
    if number == 1 and (directory / "fail").exists():
        raise ValueError("process 1 was told to fail")


def test_processes_are_spawned_and_their_errors_shown(tmp_path):
    sg.multiprocessing.set_sharing_strategy("file_system")
    sg.multiprocessing.start_processes(_write, (tmp_path,), nprocs=2, start_method="fork")
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}
    (tmp_path / "fail").touch()
    with pytest.raises(sg.multiprocessing.ProcessException, match="process 1 was told to fail"):
        sg.multiprocessing.start_processes(_write, (tmp_path,), nprocs=2, start_method="fork")
