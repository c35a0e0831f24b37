"""PyTorch's older names warn as there, and give what the newer ones give."""

import numpy as np
import pytest

import spillgrad as sg
import spillgrad.nn.functional as F
from spillgrad import nn
from spillgrad.errors import ArgumentError, GraphError, ShapeError, UnsupportedError


@pytest.mark.parametrize(
    ("older", "newer", "says"),
    [
        (
            lambda x: sg.chain_matmul(x[0, 0], x[0, 0].t(), x[0, 0]),
            lambda x: sg.linalg.multi_dot((x[0, 0], x[0, 0].t(), x[0, 0])),
            "torch.linalg.multi_dot",
        ),
        (lambda x: sg.range(1, 2, 0.25), lambda x: sg.tensor([1, 1.25, 1.5, 1.75, 2]), "torch.arange"),
        (lambda x: sg.range(3), lambda x: sg.tensor([0.0, 1, 2, 3]), "torch.arange"),
        (lambda x: F.upsample(x, scale_factor=2), lambda x: F.interpolate(x, scale_factor=2), "functional.interpolate"),
        (lambda x: F.upsample_nearest(x, size=3), lambda x: F.interpolate(x, size=3), "functional.interpolate"),
        (
            lambda x: F.upsample_bilinear(x, scale_factor=2),
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
            "functional.interpolate",
        ),
        (
            lambda x: F.grid_sample(x, sg.zeros(2, 1, 1, 2)),
            lambda x: F.grid_sample(x, sg.zeros(2, 1, 1, 2), align_corners=False),
            "align_corners=False since 1.3.0",
        ),
        (lambda x: nn.init.constant(sg.zeros(2), 3.0), lambda x: sg.full((2,), 3.0), "in favor of `nn.init.constant_`"),
        (lambda x: nn.init.eye(sg.zeros(2, 2)), lambda x: sg.eye(2), "in favor of `nn.init.eye_`"),
        (
            lambda x: F.dropout2d(sg.ones(2, 3), 1.0, True),
            lambda x: sg.zeros(2, 3),
            "Received a 2-D input to dropout2d",
        ),
    ],
)
def test_an_older_name_warns_and_gives_what_the_newer_gives(older, newer, says):
    x = sg.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    with pytest.warns((UserWarning, FutureWarning), match=says) as warned:
        found = older(x)
    assert [warning.filename for warning in warned] == [__file__]
    assert sg.equal(found, newer(x))


@pytest.mark.parametrize("name", ["eig", "lstsq", "matrix_rank", "solve", "symeig"])
def test_what_pytorch_has_removed_says_what_to_use(name):
    for call in (getattr(sg, name), sg.eye(2).__getattribute__(name)):
        with pytest.raises(UnsupportedError, match=f"^{name}: .* is now removed; use linalg"):
            call(sg.eye(2))


def test_the_older_names_of_autocast_are_the_newer_ones():
    with sg.autocast("cpu", dtype=sg.float16):
        for name, wanted in (("get_autocast_gpu_dtype", sg.float16), ("get_autocast_cpu_dtype", sg.float16)):
            with pytest.warns(DeprecationWarning, match=f"torch.{name}\\(\\) is deprecated") as warned:
                assert getattr(sg, name)() == wanted
            assert warned[0].filename == __file__
        with pytest.warns(DeprecationWarning):
            assert sg.is_autocast_cpu_enabled()


def test_python_functions_change_elements_that_require_no_gradient():
    assert sg.ones(2, 2).apply_(lambda x: x + 1).tolist() == [[2, 2], [2, 2]]
    assert sg.tensor([7, 5]).map_(sg.tensor(2), lambda a, b: a // b).tolist() == [3, 2]
    assert sg.ones(1).record_stream(None) is None
    with pytest.raises(GraphError, match=r"Can't call apply_\(\) on Variable that requires grad"):
        sg.ones(2, requires_grad=True).apply_(abs)
    with pytest.raises(ShapeError, match="the second must broadcast"):
        sg.ones(2).map_(sg.ones(3, 1), max)


def test_types_have_names():
    assert sg.typename(sg.ones(1).double()) == "torch.DoubleTensor"
    assert [sg.typename(x) for x in (1, "a", nn.Linear(1, 1))] == ["int", "str", "spillgrad.nn.linear.Linear"]


def test_a_range_that_does_not_lead_to_its_end_is_refused():
    with pytest.warns(UserWarning), pytest.raises(ArgumentError, match="the step must lead to the end"):
        sg.range(2, 1)


@pytest.mark.parametrize(
    ("shapes", "options", "says"),
    [
        (((1, 2, 3, 4), (1, 2, 2, 3)), {}, "last dimension of 2"),
        (((1, 2, 3, 4), (2, 2, 2, 2)), {}, "the same batch"),
        (((1, 2, 3, 4, 5), (1, 2, 2, 2, 3)), {"mode": "bicubic"}, "use 'bilinear' for volumes"),
        (((1, 2, 3, 4), (1, 2, 2, 2)), {"mode": "cubic"}, "expected mode to be"),
        (((1, 2, 3, 4), (1, 2, 2, 2)), {"padding_mode": "wrap"}, "expected mode to be"),
    ],
)
def test_grids_that_do_not_fit_are_refused(shapes, options, says):
    with pytest.raises(ValueError, match=says):
        F.grid_sample(*(sg.zeros(shape) for shape in shapes), align_corners=False, **options)


def test_settings_without_effect_read_back():
    sg.set_num_interop_threads(3)
    sg.set_warn_always(True)
    assert (sg.get_num_interop_threads(), sg.is_warn_always_enabled(), sg.set_flush_denormal(True)) == (3, True, False)
    sg.set_num_interop_threads(1)
    sg.set_warn_always(False)
    with pytest.raises(ArgumentError, match="positive number of threads"):
        sg.set_num_interop_threads(0)


def test_batch_norms_become_synchronized_with_their_tensors():
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.Sequential(nn.BatchNorm2d(2))).eval()
    x = sg.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 2, 2)
    before, state = model(x), model.state_dict()
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted[1], nn.SyncBatchNorm) and isinstance(converted[2][0], nn.SyncBatchNorm)
    assert sg.equal(converted(x), before)
    assert converted.state_dict().keys() == state.keys()
    assert not converted[1].training


def test_powers_of_a_vector_run_down_and_have_gradients():
    x = sg.tensor([0.0, -2.0, 3.0], dtype="float64", requires_grad=True)
    assert sg.vander(x, 3).tolist() == [[0, 0, 1], [4, -2, 1], [9, 3, 1]]
    for options in ({}, {"N": 4}, {"N": 1}, {"N": 0}, {"increasing": True}):
        wanted = np.vander(x.detach().numpy(), **options)
        np.testing.assert_array_equal(sg.vander(x, **options).detach().numpy(), wanted)
    assert sg.autograd.gradcheck(lambda x: sg.vander(x, 4), x)
    assert sg.vander(sg.tensor([True, False])).tolist() == [[1, 1], [0, 1]]
    with pytest.raises(ShapeError, match=r"vander: got shape \(2, 2\); x must be a one-dimensional tensor"):
        sg.vander(sg.ones(2, 2))
    with pytest.raises(ArgumentError, match="vander: got N=-1; N must be non-negative"):
        sg.vander(x, -1)
