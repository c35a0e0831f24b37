"""What a recorder notes of a step: bytes for the modules that alone save them, and seconds of forwards."""

import itertools

import spillgrad as sg
from spillgrad import labels
from spillgrad.nn.module_calls import around_forward
from spillgrad.spill.planning.record import Recorder

MATRIX_BYTES = 32 * 32 * 4


class Exponential(sg.nn.Module):
    def forward(self, x):
        return x.exp()  # saves its result


class Layer(sg.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Exponential(), Exponential()

    def forward(self, x):
        return x * self.second(self.first(x))  # saves its argument, and what the second one saves too


class Stack(sg.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = sg.nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def recorded(model: sg.nn.Module) -> Recorder:
    """Record a forward by a clock that ticks once whenever somebody looks at it."""
    recorder, ticks = Recorder(), itertools.count()

    def pack(tensor):
        recorder.save(labels.current.module or "", tensor.storage.uid, tensor.storage.array.nbytes)
        return tensor

    def around(path, forward, args, kwargs):
        return recorder.forward(path, forward, args, kwargs, lambda: next(ticks))

    with sg.autograd.saved_tensors_hooks(pack, lambda tensor: tensor), around_forward(recorder, around):
        model(sg.ones(32, 32, requires_grad=True))
    return recorder


def test_a_memory_counts_once_and_for_the_innermost_module_that_all_who_save_it_are_in():
    recorder = recorded(Stack(Layer()))
    assert sum(recorder.freed("layers.0.first").values()) == MATRIX_BYTES
    assert sum(recorder.freed("layers.0.second").values()) == 0  # the layer saves it too
    assert sum(recorder.freed("layers.0").values()) == 2 * MATRIX_BYTES  # but not its argument
    assert recorder.saved_bytes == 3 * MATRIX_BYTES


def test_a_forward_takes_what_passes_on_the_clock_forwards_inside_included():
    recorder = recorded(Stack(Layer()))
    assert recorder.seconds == {"layers.0": 5, "layers.0.first": 1, "layers.0.second": 1}


def test_units_are_the_repeated_layers_and_alike_ones_take_the_same_time():
    recorder = recorded(Stack(Layer(), Layer(), Layer()))
    recorder.seconds["layers.1"] = 1000.0
    units = recorder.units()
    assert [unit.whole.path for unit in units] == ["layers.0", "layers.1", "layers.2"]
    assert [unit.whole.seconds for unit in units] == [5, 5, 5]
    assert [child.path for child in units[2].children] == ["layers.2.first", "layers.2.second"]
    # What a layer returns is the next one's argument, which is saved all the same.
    assert [unit.whole.freed_bytes for unit in units] == [2 * MATRIX_BYTES] * 3


def test_without_repeated_layers_the_outermost_modules_are_the_units():
    assert [unit.whole.path for unit in recorded(Layer()).units()] == ["first", "second"]


def test_a_module_that_runs_twice_takes_the_time_of_both():
    shared = Exponential()
    recorder = recorded(Stack(shared, shared))
    assert recorder.seconds == {"layers.0": 2}
    assert sum(recorder.freed("layers.0").values()) == MATRIX_BYTES  # the first result is the second call's argument
