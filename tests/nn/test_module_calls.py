"""Calling modules: hooks around forward, labels and paths."""

import pickle
import sys
import threading
import time

import pytest

import spillgrad as sg
from spillgrad import labels, nn
from spillgrad.nn.modules.module import register_module_forward_hook


def test_hooks_may_replace_arguments_and_results_until_removed():
    layer = nn.Identity()
    calls = []
    handles = [
        layer.register_forward_pre_hook(lambda module, args: args[0] + 1),
        layer.register_forward_hook(lambda module, args, output: output * 10),
        layer.register_forward_hook(lambda module, args, output: calls.append((args[0], output))),
        layer.register_forward_pre_hook(
            lambda module, args, kwargs: ((args[0] * 2,), kwargs), prepend=True, with_kwargs=True
        ),
    ]
    assert layer(3) == 70
    assert calls == [(7, 70)]
    for handle in handles:
        handle.remove()
        handle.remove()
    assert layer(3) == 3
    with layer.register_forward_hook(lambda *_: 0):
        assert layer(3) == 0
    assert layer(3) == 3


def test_a_hook_may_remove_itself():
    layer = nn.Identity()
    handle = layer.register_forward_hook(lambda *_: handle.remove())
    assert layer(1) == layer(2) - 1 == 1


def test_the_module_that_runs_is_known_by_its_path():
    model = nn.Sequential(nn.ModuleDict({"inner": nn.Identity()}))
    model.forward = lambda x: model[0]["inner"](x)
    seen = []
    model[0]["inner"].register_forward_hook(lambda *_: seen.append(labels.current.module))
    model(1)
    assert seen == ["0.inner"]
    assert labels.current.module is None
    model.add_module("later", model[0]["inner"])
    del model[0]["inner"]
    model.forward = lambda x: model.later(x)
    model(1)
    assert seen == ["0.inner", "later"]


def test_labels_return_to_what_they_were_after_an_error_and_are_per_thread():
    def fail(*_):
        raise ValueError(labels.current.module)

    model = nn.Sequential(nn.Identity())
    model[0].register_forward_hook(fail)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append((labels.current.module, labels.current.step)))
    with labels.step_scope(7), labels.module_scope("outer"):
        with pytest.raises(ValueError, match="0"):
            model(1)
        assert (labels.current.module, labels.current.step) == ("outer", 7)
        thread.start()
        thread.join()
    assert elsewhere == [(None, None)]
    assert (labels.current.module, labels.current.step) == (None, None)


def test_a_hook_that_a_pre_hook_registers_runs_in_the_same_call():
    seen = []
    model = nn.Identity()

    def before(module, args):
        module.register_forward_hook(lambda module, args, result: seen.append(result))

    model.register_forward_pre_hook(before)
    model(3)
    assert seen == [3]


def test_an_always_called_hook_runs_when_a_pre_hook_or_an_interrupt_ended_the_call():
    seen = []
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, result: seen.append(result), always_call=True)

    def stop(module, args):
        raise KeyboardInterrupt

    model.register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        model(3)
    assert seen == [None]


def test_an_always_called_hook_that_raises_does_not_hide_why_forward_failed():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("forward")

    def fails(module, args, result):
        raise OSError("a hook's own")

    seen = []
    model = Failing()
    model.register_forward_hook(fails, always_call=True)
    model.register_forward_hook(lambda module, args, result: seen.append(result), always_call=True)
    with (
        pytest.warns(UserWarning, match="silenced as another error was raised in forward: OSError: a hook's own"),
        pytest.raises(ValueError, match="forward"),
    ):
        model(3)
    assert seen == [None]


def test_a_module_without_forward_says_which():
    class Silent(nn.Module):
        pass

    with pytest.raises(NotImplementedError, match="Silent"):
        Silent()(1)


@pytest.mark.parametrize("other", [nn.Parameter(sg.ones(1)), nn.Buffer(sg.ones(1)), None, "deleted"])
def test_a_sub_module_whose_name_something_else_took_has_no_path(other):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Identity()
            self.also = (self.inner,)

        def forward(self, x):
            return self.also[0](x)

    seen = []
    model = Outer()
    model.inner.register_forward_hook(lambda *_: seen.append(labels.current.module))
    model(1)
    if other == "deleted":
        del model.inner
    else:
        model.inner = other
    model(1)
    assert seen == ["inner", ""]


def test_a_hook_may_be_called_although_forward_raised():
    seen = []

    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    model = Failing()
    model.register_forward_hook(lambda *_: seen.append("usual"))
    model.register_forward_hook(lambda module, args, output: seen.append((args, output)), always_call=True)
    with pytest.raises(ValueError, match="no"):
        model(1)
    assert seen == [((1,), None)]
    working = nn.Identity()
    working.register_forward_hook(lambda module, args, output: seen.append(output), always_call=True)
    working(2)
    assert seen[1:] == [2]


def double_arguments(module: nn.Module, args: tuple[sg.Tensor, ...]) -> tuple[sg.Tensor, ...]:
    return tuple(argument * 2 for argument in args)


def negate_result(module: nn.Module, args: tuple[sg.Tensor, ...], result: sg.Tensor) -> sg.Tensor:
    return -result


def test_a_pickled_module_has_its_hooks_and_takes_more():
    module = nn.Identity()
    module.register_forward_pre_hook(double_arguments)
    module.register_forward_hook(negate_result)
    again = pickle.loads(pickle.dumps(module))
    assert again(sg.ones(1)).item() == -2
    numbers = set(again._forward_hooks)
    next_number = again.register_forward_hook(negate_result).id
    pickled = nn.Identity()
    pickled._forward_hooks[next_number + 1] = negate_result  # as another process may have numbered it
    handle = pickled.register_forward_hook(lambda *_: None)
    assert len(pickled._forward_hooks) == 2
    assert handle.id in pickled._forward_hooks
    assert numbers <= set(again._forward_hooks)


def test_threads_may_hook_all_modules_while_others_call_some():
    layer, ended = nn.Identity(), threading.Event()

    def register():
        while not ended.is_set():
            with register_module_forward_hook(lambda *_: None):
                time.sleep(0)

    thread, interval = threading.Thread(target=register), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    handles = [register_module_forward_hook(lambda *_: None) for _ in range(100)]
    try:
        assert [layer(number) for number in range(500)] == list(range(500))
    finally:
        for handle in handles:
            handle.remove()
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
