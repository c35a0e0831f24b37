"""Checkpointed functions: the same gradients from a second run, and nothing kept but the arguments."""

import collections
import contextlib
import gc
import threading
import weakref

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.autograd.core import hooks
from spillgrad.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from spillgrad.errors import GraphError, RecomputationError, SavedTensorError
from spillgrad.utils.checkpoint import (
    CheckpointError,
    checkpoint,
    checkpoint_sequential,
    noop_context_fn,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)
from tests.ops.checks import leaf


class Counted:
    """A function that counts its calls, and the steps of each that ran."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def chain(x, steps=4):
    for _ in range(steps):
        x = x.tanh() * x
    return x


def saved_bytes(forward):
    """Return the bytes that a forward saves for backward, by hooks that count."""
    packed = []

    def pack(tensor):
        packed.append(tensor.nbytes)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    return sum(packed), result


def gradients(output, *inputs, **options):
    return [g.numpy().tobytes() for g in sg.grad(output.sum(), inputs, **options)]


@pytest.mark.parametrize("early_stop", [True, False])
def test_gradients_are_those_without_checkpoint_bit_for_bit(early_stop):
    x = leaf(np.linspace(-1, 1, 6).reshape(2, 3))
    function = Counted(chain)
    assert gradients(checkpoint(function, x, early_stop=early_stop), x) == gradients(chain(x), x)
    assert function.calls == 2


def test_nothing_is_kept_but_the_arguments():
    x = leaf(np.ones(1000))
    plain, _ = saved_bytes(lambda: chain(x))
    kept, y = saved_bytes(lambda: checkpoint(chain, x))
    assert (plain, kept) == (12 * x.nbytes, x.nbytes)
    y.sum().backward()


def test_what_lies_between_dies_in_the_forward_without_the_garbage_collector():
    between = []

    def function(x):
        y = x.tanh()
        between.append(weakref.ref(y.storage))
        return (y * y).sum()

    gc.disable()
    try:
        x = leaf(np.ones(10))
        y = checkpoint(function, x * 1)
        assert between[0]() is None
        y.backward()
        assert between[1]() is None
    finally:
        gc.enable()


def test_the_arguments_are_freed_by_backward_while_the_result_lives():
    gc.disable()
    try:
        x = leaf(np.ones(10))
        hidden = x * 2
        argument = weakref.ref(hidden.storage)
        y = checkpoint(chain, hidden).sum()
        del hidden
        assert argument() is not None
        y.backward()
        assert argument() is None
        z = checkpoint(chain, x * 2).sum()
        argument = weakref.ref(x)
        del x, z, y
        assert argument() is None
    finally:
        gc.enable()


Pair = collections.namedtuple("Pair", "first second")


def test_tensors_in_keywords_and_containers_are_arguments_like_others():
    tensors = [leaf([float(i + 1)]) for i in range(6)]

    def function(a, b, flag, *, c, d):
        assert flag == "plain"
        assert isinstance(b, Pair) and type(d["e"]) is tuple
        return (a * b.first * b.second * c[0] * d["e"][0] * d["e"][1]).sum()

    def call(run):
        a, b, c, d, e, f = tensors
        return run(function, a, Pair(b, c), "plain", c=[d], d={"e": (e, f)})

    kept, y = saved_bytes(lambda: call(checkpoint))
    assert kept == 6 * 8
    assert gradients(y, *tensors) == gradients(call(lambda f, *args, **kwargs: f(*args, **kwargs)), *tensors)


def test_a_list_that_the_function_changes_is_as_before_when_it_runs_again():
    x = leaf([2.0])

    def function(values):
        values.append(values[0] * values[0])
        return values.pop() * values[0]

    y = checkpoint(function, [x])
    assert sg.grad(y, x)[0].item() == 12.0


def test_parameters_that_the_function_holds_get_their_gradients():
    layer = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = sg.randn(5, 3)  # requires no gradient itself
    checkpoint(layer, x).sum().backward()
    found = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer(x).sum().backward()
    assert all((p.grad == g).all() for p, g in zip(layer.parameters(), found, strict=True))


def test_several_outputs_of_any_kind_come_out_as_they_are():
    x = leaf([1.0, 2.0])
    result = checkpoint(lambda x: {"square": x * x, "label": "a", "none": None, "same": x}, x)
    assert result["label"] == "a" and result["none"] is None and result["same"] is x
    (result["square"] * result["same"]).sum().backward()
    assert x.grad.tolist() == [3.0, 12.0]


def test_recomputation_ends_with_the_last_value_that_is_needed():
    reached = []

    def function(x):
        y = x.exp()
        reached.append("middle")
        z = y * 2
        reached.append("end")
        return z

    x = leaf([1.0])
    checkpoint(function, x).backward()
    assert reached == ["middle", "end"]  # the result of exp was all
    reached.clear()
    checkpoint(function, x, early_stop=False).backward()
    assert reached == ["middle", "end"] * 2
    reached.clear()
    with set_checkpoint_early_stop(False):
        y = checkpoint(function, x)
    y.backward()
    assert reached == ["middle", "end"] * 2
    with set_checkpoint_early_stop(True), set_checkpoint_early_stop(False):
        pass
    reached.clear()
    checkpoint(function, x).backward()
    assert reached == ["middle", "end"]


def test_a_function_that_catches_exceptions_does_not_notice_the_end():
    def function(x):
        try:
            return x.exp() * 2
        except Exception:
            raise AssertionError("noticed") from None

    x = leaf([1.0])
    assert gradients(checkpoint(function, x), x) == gradients(x.exp() * 2, x)


def test_after_a_partial_backward_only_what_is_left_is_computed():
    depth = []

    def function(x):
        y = x
        for i in range(4):
            depth.append(i)
            y = y.exp() * 0.5
        return x.tanh(), y

    x = leaf([0.1])
    a, b = checkpoint(function, x)
    b.backward()
    depth.clear()
    a.backward()  # tanh is the last one saved
    assert depth == []  # computed with the others
    expected = leaf([0.1])
    c, d = function(expected)
    (c + d).backward()
    assert x.grad.item() == expected.grad.item()


def test_regions_nest():
    runs = collections.Counter()

    def innermost(x):
        runs["innermost"] += 1
        return chain(x, 2)

    def inner(x):
        runs["inner"] += 1
        return checkpoint(innermost, x.tanh()) * x

    def outer(x):
        runs["outer"] += 1
        return checkpoint(inner, x * 2).exp()

    x = leaf([0.3, -0.2])
    expected = gradients(outer(x), x)
    runs.clear()
    kept, y = saved_bytes(lambda: checkpoint(outer, x))
    assert kept == x.nbytes
    assert gradients(y, x) == expected
    # Each region runs again for its own values, and once more for each region around it.
    assert runs["outer"] == 2 and runs["inner"] == 3 and runs["innermost"] == 4


def test_backward_may_run_several_times():
    x = leaf([0.5, -1.5])
    function = Counted(chain)
    y = checkpoint(function, x)
    expected = gradients(chain(x), x)
    for run in range(3):
        assert gradients(y, x, retain_graph=True) == expected
        assert function.calls == 2 + run
    y.sum().backward()
    with pytest.raises(SavedTensorError, match="second time"):
        y.sum().backward()


def test_gradients_can_be_differentiated():
    def second(y, x):
        (g,) = sg.grad(y.sum(), x, create_graph=True)
        return gradients(g, x)

    x = leaf([0.5, -1.5])
    assert second(checkpoint(chain, x), x) == second(chain(x), x)


def test_a_function_may_go_backward_itself():
    def function(x):
        y = x * x * x
        (g,) = sg.grad(y.sum(), x, create_graph=True)
        return g * x

    x = leaf([2.0])
    for early_stop in (True, False):
        assert sg.grad(checkpoint(function, x, early_stop=early_stop), x)[0].item() == 36.0
        assert sg.grad(checkpoint(function, x * 1, early_stop=early_stop).sum(), x)[0].item() == 36.0


def test_random_numbers_are_drawn_again_and_nobody_else_notices():
    x = leaf(np.ones(1000))

    def function(x):
        return sg.dropout(x.exp(), 0.5) * sg.rand(1000, dtype=sg.float64) * x

    sg.manual_seed(3)
    y = checkpoint(function, x)
    after = sg.get_rng_state()
    found = gradients(y, x)
    assert sg.get_rng_state() == after
    sg.manual_seed(3)
    assert gradients(function(x), x) == found


def test_a_seed_set_within_the_function_leaves_the_stream_outside_alone_in_backward():
    def function(x):
        sg.manual_seed(5)
        return sg.dropout(x.exp(), 0.5) * x

    x = leaf(np.ones(100))
    y = checkpoint(function, x)
    sg.manual_seed(7)
    before = sg.get_rng_state()
    y.sum().backward()
    assert sg.get_rng_state() == before


def test_another_thread_draws_undisturbed_while_one_recomputes():
    drawn = []

    def function(x):
        if recomputing:
            thread = threading.Thread(target=lambda: drawn.append(sg.rand(3).tolist()))
            thread.start()
            thread.join()
        return sg.dropout(x.exp(), 0.5) * x

    recomputing = False
    x = leaf(np.ones(100))
    y = checkpoint(function, x)
    sg.manual_seed(11)
    recomputing = True
    y.sum().backward()
    sg.manual_seed(11)
    assert drawn == [sg.rand(3).tolist()]


def test_the_random_state_need_not_be_kept():
    x = leaf(np.ones(1000))
    y = checkpoint(lambda x: sg.dropout(x, 0.5).exp(), x, preserve_rng_state=False, determinism_check="values")
    sg.rand(1)
    with pytest.raises(RecomputationError, match="have different metadata than during the forward pass"):
        y.sum().backward()


def alternating(*functions):
    """Return a function that is another one at each call."""
    calls = iter(functions)
    return lambda x: next(calls)(x)


@pytest.mark.parametrize(
    ("again", "says"),
    [
        (lambda x: x.exp() * 2, "value 0 was [tanh saves 'result': (2,) float64 on cpu], and is [exp saves 'result'"),
        (lambda x: x[:1].tanh() * x[:1], "'result': (1,) float64"),
        (lambda x: x.to(sg.float32).tanh() * x, "'result': (2,) float32"),
        (
            lambda x: x.tanh(),
            "A different number of tensors was saved during the original forward and recomputation: 3, then 1",
        ),
    ],
)
def test_a_function_that_does_something_else_is_found(again, says):
    x = leaf([1.0, 2.0])
    y = checkpoint(alternating(lambda x: x.tanh() * x, again), x)
    with pytest.raises(CheckpointError) as caught:
        y.sum().backward()
    assert says in str(caught.value)
    assert "The function must do the same each time" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_a_function_that_saves_more_is_found_where_it_runs_to_its_end():
    x = leaf([1.0])
    twice = alternating(lambda x: x.tanh(), lambda x: x.tanh().exp())
    with pytest.raises(RecomputationError, match="original forward and recomputation: 1, then 2"):
        checkpoint(twice, x, early_stop=False).backward()


def test_other_values_are_found_by_their_checksums():
    x = leaf([1.0, 2.0])
    weight = sg.tensor(np.array([3.0, 4.0]))

    def function(x):
        return (x + weight).exp()

    expected = gradients(function(x), x)
    assert gradients(checkpoint(function, x, determinism_check="values"), x) == expected
    y = checkpoint(function, x, determinism_check="values")
    weight.add_(1)
    with pytest.raises(RecomputationError, match="checksum"):
        y.sum().backward()


def test_the_check_can_be_left_out():
    x = leaf([1.0])
    y = checkpoint(alternating(lambda x: x.exp(), lambda x: (x * 1).exp()), x, determinism_check="none")
    y.backward()
    with pytest.raises(ValueError, match="determinism_check='all'; wanted one of default, none, values"):
        checkpoint(chain, x, determinism_check="all")


def test_errors_list_all_that_was_saved_if_asked():
    x = leaf([1.0])

    def fails(**options):
        y = checkpoint(alternating(lambda x: x.exp() * x, lambda x: x.exp().tanh()), x, **options)
        with pytest.raises(RecomputationError) as caught:
            y.backward()
        return str(caught.value)

    assert "debug=True lists all" in fails()
    for message in (fails(debug=True), _within_debug(fails)):
        assert "saved in the forward:\n  0: exp saves 'result'" in message
        assert "saved in the recomputation:\n  0: exp" in message and "  1: tanh saves 'result'" in message
    with set_checkpoint_debug_enabled(False):
        assert "debug=True lists all" in fails(debug=True)


def _within_debug(function):
    with set_checkpoint_debug_enabled(True):
        return function()


def test_an_error_while_recomputing_passes_and_the_next_backward_may_succeed():
    fails = False

    def function(x):
        y = x.tanh()
        if fails:
            raise KeyError("not now")
        return y * x

    x = leaf([1.0, 2.0])
    y = checkpoint(function, x)
    fails = True
    with pytest.raises(KeyError, match="not now"):
        y.sum().backward(retain_graph=True)
    fails = False
    assert gradients(y, x) == gradients(function(x), x)


def test_an_argument_changed_in_place_is_an_error():
    x = leaf([1.0, 2.0])
    data = sg.tensor(np.array([3.0, 4.0]))
    y = checkpoint(lambda x, data: (x * data).tanh(), x, data)
    data.add_(1)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_parameter_changed_in_place_is_an_error():
    layer = nn.Linear(2, 2)
    y = checkpoint(layer, leaf([1.0, 2.0]).to(sg.float32))
    with sg.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_value_changed_in_place_within_the_function_is_never_a_wrong_gradient():
    def function(x):
        y = x.exp()
        z = y * 1
        y.mul_(2)
        return z + y.detach() * x.tanh()  # tanh is saved after the change

    x = leaf([0.5])
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        function(x).backward()
    with pytest.raises(SavedTensorError, match="modified by an inplace operation"):
        checkpoint(function, x).backward()


def test_hooks_outside_see_the_arguments_and_hooks_inside_what_is_saved_there():
    outside, inside = [], []

    def noting(seen):
        return saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t)

    def function(x, y):
        with noting(inside):
            x = x.exp()
        return x * y

    x, y = leaf([1.0, 2.0]), leaf([[3.0], [4.0]])
    with noting(outside):
        z = checkpoint(function, x, y)
    assert outside == [(2,), (2, 1)]
    assert inside == [(2,)]
    z.sum().backward()
    assert outside == [(2,), (2, 1)]
    assert np.allclose(x.grad.numpy(), np.exp(x.numpy()) * 7)


def test_what_is_packed_outside_may_come_back_as_a_copy():
    x = leaf([1.0, 2.0])
    with saved_tensors_hooks(lambda t: t.numpy().copy(), lambda a: sg.tensor(a)):
        y = checkpoint(chain, x * 1)
    assert gradients(y, x) == gradients(chain(x * 1), x)


def test_arguments_go_to_disk_within_save_on_disk(tmp_path):
    x = leaf(np.random.default_rng(0).normal(size=(64, 64)))
    expected = gradients(chain(x * 1), x)
    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        hidden = x * 1
        y = checkpoint(chain, hidden)
        z = checkpoint(chain, y)
        del hidden
    spill.flush()
    assert spill.stats().packed_bytes == 2 * x.nbytes
    assert gradients(y, x, retain_graph=True) == expected
    assert gradients(z, x) == gradients(chain(chain(x * 1)), x)


def test_save_on_disk_within_the_function_spills_what_is_saved_there(tmp_path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0)

    def function(x):
        y = x.tanh()
        with spill:
            return y.exp() * x

    x = leaf(np.random.default_rng(0).normal(size=(64, 64)))
    expected = gradients(x.tanh().exp() * x, x)
    assert gradients(checkpoint(function, x), x) == expected
    assert spill.stats().packed_bytes > 0


def test_backward_may_run_in_another_thread_and_under_other_hooks():
    x = leaf([0.5, 1.0])
    y = checkpoint(chain, x)
    found = []
    thread = threading.Thread(target=lambda: found.append(gradients(y, x, retain_graph=True)))
    thread.start()
    thread.join()
    with saved_tensors_hooks(lambda t: pytest.fail("packed"), lambda t: t):
        found.append(gradients(y, x))
    assert found == [gradients(chain(x), x)] * 2


def test_threads_that_go_backward_together_get_the_same():
    x = leaf(np.linspace(-1, 1, 1000))
    y = checkpoint(chain, x).sum()
    start = threading.Barrier(4)
    found = []

    def run():
        start.wait()
        for _ in range(20):
            found.append(gradients(y, x, retain_graph=True))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [gradients(chain(x), x)] * 80


class ReadsTwice(sg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        assert ctx.saved_tensors[0].tolist() == ctx.saved_tensors[0].tolist()
        return 2 * g * ctx.saved_tensors[0]


def test_a_custom_function_may_read_what_it_saved_more_than_once():
    x = leaf([3.0])
    assert sg.grad(checkpoint(lambda x: ReadsTwice.apply(x * 1), x), x)[0].item() == 6.0


def test_without_gradients_the_function_just_runs():
    function = Counted(chain)
    with sg.no_grad():
        assert not checkpoint(function, leaf([1.0])).requires_grad
    y = checkpoint(function, sg.tensor(np.ones(2)))
    assert not y.requires_grad and function.calls == 2


def test_the_contexts_surround_function_and_recomputation():
    entered = []

    @contextlib.contextmanager
    def noted(name):
        entered.append(name)
        yield
        entered.append(f"end of {name}")

    x = leaf([1.0])
    y = checkpoint(chain, x, context_fn=lambda: (noted("forward"), noted("recomputation")), early_stop=False)
    assert entered == ["forward", "end of forward"]
    y.backward()
    assert entered[2:] == ["recomputation", "end of recomputation"]
    for context in noop_context_fn():
        with context:
            pass


def test_a_context_that_hides_an_error_of_the_function_is_an_error():
    def fails(x):
        raise KeyError

    with pytest.raises(GraphError, match="suppressed an exception"):
        checkpoint(fails, leaf([1.0]), context_fn=lambda: (contextlib.suppress(KeyError), contextlib.nullcontext()))


def test_where_hooks_are_disabled_the_message_given_there_is_raised():
    x = leaf([1.0])
    with disable_saved_tensors_hooks("no hooks here"), pytest.raises(RuntimeError, match="no hooks here"):
        checkpoint(chain, x)


def test_second_derivatives_of_regions_within_regions_on_disk(tmp_path):
    def function(x):
        return checkpoint(chain, x.tanh(), 2) * x

    def second(y, x):
        (g,) = sg.grad(y.sum(), x, create_graph=True)
        return gradients((g * g).sum(), x)

    x = leaf(np.linspace(-1, 1, 1000))
    with sg.save_on_disk(tmp_path, ram_budget=0):
        found = second(checkpoint(function, x * 1), x)
    assert found == second(function(x * 1), x)


def test_an_error_in_the_forward_passes():
    with pytest.raises(ZeroDivisionError):
        checkpoint(lambda x: x / (1 // 0), leaf([1.0]))
    assert hooks.depth() == 0


@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_a_sequence_in_segments_has_the_same_gradients_and_keeps_less(segments):
    sg.manual_seed(0)
    layers = nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.Tanh())])
    layers[1].register_forward_hook(lambda module, args, output: sg.dropout(output, 0.5))
    x = sg.randn(16, 8, requires_grad=True)
    parameters = [x, *layers.parameters()]
    state = sg.get_rng_state()
    plain, y = saved_bytes(lambda: layers(x))
    expected = gradients(y, *parameters)
    for functions in (layers, list(layers)):
        sg.set_rng_state(state)
        kept, y = saved_bytes(lambda functions=functions: checkpoint_sequential(functions, segments, x))
        assert gradients(y, *parameters) == expected
        assert kept == plain if segments == 1 else kept < plain


def test_segments_must_be_as_many_as_functions_at_most():
    for segments in (0, 3):
        with pytest.raises(ValueError, match=f"got {segments} segments of 2 functions; wanted 1 to 2"):
            checkpoint_sequential([chain, chain], segments, leaf([1.0]))


def test_a_module_that_a_chain_holds_twice_runs_twice():
    modules = nn.Sequential(nn.Linear(2, 2)) * 3
    x = sg.ones(1, 2)
    np.testing.assert_array_equal(checkpoint_sequential(modules, 2, x).numpy(), modules(x).numpy())


def test_a_model_trains_the_same_with_every_block_checkpointed():
    losses = []
    for run in (lambda block, x: block(x), lambda block, x: checkpoint(block, x)):
        sg.manual_seed(0)
        blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 6)) for _ in range(3)]
        )
        optimizer = sg.optim.AdamW(blocks.parameters(), lr=0.01)
        x = sg.randn(4, 6)
        for _ in range(5):
            optimizer.zero_grad()
            y = x
            for block in blocks:
                y = y + run(block, y)
            loss = (y * y).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:5] == losses[5:] and losses[4] < losses[0]


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_move_once(momentum):
    runs = (lambda block, x: block(x), checkpoint, lambda block, x: checkpoint(checkpoint, block, x))
    states = []
    for run in runs:
        sg.manual_seed(0)
        block = nn.Sequential(
            nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3, momentum=momentum), nn.Tanh(),
            nn.InstanceNorm2d(3, track_running_stats=True), nn.Tanh(),
        )  # fmt: skip
        x = sg.randn(4, 2, 3, 3, requires_grad=True)
        for _ in range(3):
            run(block, x).sum().backward()
        states.append(
            {name: tensor.tolist() for name, tensor in block.state_dict().items()} | {"grad": x.grad.tolist()}
        )
    assert states[1] == states[0] and states[2] == states[0]
    assert states[0]["1.num_batches_tracked"] == 3


def test_a_thousand_regions_in_a_row_neither_recurse_nor_leak():
    x = leaf(np.ones(4))
    y = x
    for _ in range(1000):
        y = checkpoint(lambda t: t.tanh() + t * 0.1, y)
    y.sum().backward()
    expected = leaf(np.ones(4))
    z = expected
    for _ in range(1000):
        z = z.tanh() + z * 0.1
    z.sum().backward()
    assert (x.grad == expected.grad).all()
