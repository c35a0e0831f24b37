"""PyTorch's compilers return what they are given, and say so once."""

import importlib
import warnings

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import CompilationWarning, UnsupportedError
from spillgrad.settings import compilation


@pytest.fixture
def nothing_warned(monkeypatch):
    monkeypatch.setattr(compilation, "_warned", set())


@pytest.mark.parametrize("name", ["compile", "jit.script", "jit.trace"])
def test_a_model_is_returned_as_it_is_with_one_warning(nothing_warned, name):
    function = sg.compile if name == "compile" else getattr(sg.jit, name[4:])
    model = nn.Linear(2, 2)
    with pytest.warns(CompilationWarning, match=f"^{name}: spillgrad does not compile whole models") as warned:
        assert function(model) is model
        assert function(model) is model
    assert [warning.filename for warning in warned] == [__file__]


def test_options_and_decorators_are_accepted(nothing_warned):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompilationWarning)

        @sg.compile(mode="reduce-overhead", fullgraph=True)
        def double(x):
            return 2 * x

        @sg.jit.script
        def negative(x):
            return -x

    assert (double(2), negative(2)) == (4, -2)
    assert sg.compiler.disable(double) is double
    assert sg.compiler.disable(recursive=False)(double) is double
    assert sg.jit.ignore(double) is double
    assert sg.jit.ignore(drop=True)(double) is double
    assert sg.jit.unused(double) is sg.jit.export(double) is double
    assert sg.jit.wait(sg.jit.fork(double, 3)) == 6
    assert not (sg.jit.is_scripting() or sg.jit.is_tracing() or sg.compiler.is_compiling())
    options = [(importlib.import_module(f"spillgrad.{name}.config"), option) for name, option in (
        ("_dynamo", "suppress_errors"), ("_inductor", "coordinate_descent_tuning"),
    )]  # fmt: skip
    for config, option in options:
        setattr(config, option, True)
        assert getattr(config, option) is True
        setattr(config, option, False)
    assert (sg._dynamo.config, sg._inductor.config) == (options[0][0], options[1][0])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sg.jit.save(nn.ReLU(), "f"), r"use save\(model.state_dict\(\), f\)"),
        (lambda: sg.jit.load("f"), "safetensors.torch.save_file"),
        (lambda: sg.hub.load("owner/name", "net"), "copy the model's source"),
        (lambda: sg.utils.model_zoo.load_url("https://x"), "safetensors.torch.save_file"),
        (lambda: sg.hub.download_url_to_file("https://x", "f"), "urlretrieve"),
        (lambda: sg.onnx.export(nn.ReLU(), (), "f"), "export there"),
        (lambda: sg.profiler.profile(with_stack=True), "leave with_stack out"),
        (lambda: sg.utils.tensorboard.SummaryWriter(), "tensorboardX"),
        (lambda: sg.zeros(2, layout="sparse_coo"), "layout=strided"),
    ],
)
def test_what_is_refused_says_what_to_do_instead(call, says):
    with pytest.raises(UnsupportedError, match=says):
        call()
