"""Anomaly detection: NaNs and errors in backward name the line of the forward."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import spillgrad as sg
from spillgrad.autograd import Function, detect_anomaly, set_detect_anomaly
from spillgrad.autograd.core.anomaly_mode import is_anomaly_enabled
from spillgrad.errors import GraphError
from tests.ops.checks import leaf

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")


def story_of(kind: type[Exception], match: str, call: Callable[[], Any]) -> str:
    """Return the one warning of a call that raises an error, which is at a line of this file."""
    with pytest.warns(UserWarning, match="Error detected in") as warned, pytest.raises(kind, match=match):
        call()
    (warning,) = warned
    assert warning.filename == __file__
    return str(warning.message)


@pytest.fixture(autouse=True)
def detection_ends() -> Iterator[None]:
    yield
    assert not is_anomaly_enabled()


class Fails(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        raise KeyError("mine")


def infinite_slope(x: sg.Tensor) -> sg.Tensor:
    return (x * 0).sqrt() * 0  # the slope of the root is infinite, times zero


def test_a_nan_names_the_operation_the_output_and_the_line():
    x = leaf([1.0, 2.0])
    with detect_anomaly():
        y = infinite_slope(x).sum()
        match = r"Function 'SqrtBackward0' returned nan values in its 0th output(.|\n)*line \d+, in infi(.|\n)*return"
        story = story_of(GraphError, match + r" \(x \* 0\)\.sqrt\(\) \* 0", y.backward)
    assert "Error detected in SqrtBackward0. Traceback of forward call" in story
    assert "y = infinite_slope(x).sum()" in story and "generate" not in story


def test_without_detection_a_nan_passes():
    x = leaf([1.0])
    infinite_slope(x).backward()
    assert sg.isnan(x.grad).item()


def test_check_nan_may_be_off():
    x = leaf([1.0])
    with detect_anomaly(check_nan=False):
        infinite_slope(x).backward()
    assert sg.isnan(x.grad).item()


def test_an_error_in_a_backward_tells_of_its_forward_and_stays_the_error_it_is():
    x = leaf([1.0])
    with detect_anomaly():
        story = story_of(KeyError, "mine", lambda: Fails.apply(x).backward())
    assert "Error detected in FailsBackward" in story and "Fails.apply(x).backward()" in story


def test_a_wrong_shape_and_an_unpack_hooks_error_tell_of_their_forward_too():
    x = leaf([1.0, 2.0])

    class Wrong(Function):
        @staticmethod
        def forward(ctx, v):
            return v * 1

        @staticmethod
        def backward(ctx, g):
            return g[:1]

    with detect_anomaly():
        y = Wrong.apply(x).sum()
        assert "y = Wrong.apply(x).sum()" in story_of(RuntimeError, "invalid gradient", y.backward)
        with sg.autograd.saved_tensors_hooks(lambda t: t, lambda t: 7):
            z = x.tanh().sum()
        assert "z = x.tanh().sum()" in story_of(TypeError, "unpack_hook", z.backward)


def test_a_graph_made_before_says_how_to_know_more():
    x = leaf([1.0])
    y = Fails.apply(x)
    with detect_anomaly():
        story = story_of(KeyError, "mine", y.backward)
    assert "No forward pass information available. Enable detect anomaly during forward" in story


def test_the_line_is_in_the_nodes_metadata_and_of_a_double_backward_the_node_that_induced_it():
    x = leaf([0.0])
    with detect_anomaly():
        y = x**1.5
        (gradient,) = sg.grad(y, x, create_graph=True)
        node: Any = gradient.grad_fn
        while node.metadata["parent_"] is not y.grad_fn:
            node = node.next_functions[0][0]
        assert "y = x**1.5" in y.grad_fn.metadata["traceback_"][-1]
        story = story_of(RuntimeError, "nan", lambda: (gradient * 0).backward())
    assert f"Previous calculation was induced by {y.grad_fn.name()}. Traceback of forward call" in story
    assert "y = x**1.5" in story
    assert (x * 2).grad_fn.metadata == {}


def test_nothing_changes_in_the_numbers_or_the_hooks():
    x, packed = leaf([1.0, 2.0]), []
    with detect_anomaly(), sg.autograd.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        (x.tanh() * x).sum().backward()
    plain = leaf([1.0, 2.0])
    (plain.tanh() * plain).sum().backward()
    assert x.grad.tolist() == plain.grad.tolist() and len(packed) == 3


def test_it_is_on_in_all_threads_and_nests():
    seen: list[bool] = []

    def work() -> None:
        x = leaf([1.0])
        seen.append("traceback_" in (x * 2).grad_fn.metadata)
        with sg.autograd.saved_tensors_hooks(lambda t: t, lambda t: t):
            pass
        seen.append("traceback_" in (x * 2).grad_fn.metadata)

    outer = detect_anomaly()
    with outer:
        with detect_anomaly(check_nan=False), outer:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert is_anomaly_enabled() and sg.is_anomaly_check_nan_enabled()
    work()
    assert seen == [True, True, False, False]


def test_set_detect_anomaly_acts_at_once_or_until_its_block_ends():
    set_detect_anomaly(True)
    assert sg.is_anomaly_enabled()
    set_detect_anomaly(False)
    with set_detect_anomaly(True, check_nan=False):
        assert sg.is_anomaly_enabled() and not sg.is_anomaly_check_nan_enabled()
    assert not sg.is_anomaly_enabled() and sg.is_anomaly_check_nan_enabled()


def test_entering_detection_warns_that_it_is_slow():
    with pytest.warns(UserWarning, match="Anomaly Detection has been enabled") as warned, detect_anomaly():
        pass
    assert [warning.filename for warning in warned] == [__file__]
    with set_detect_anomaly(True):
        pass
