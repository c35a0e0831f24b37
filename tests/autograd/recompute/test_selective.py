"""Selective checkpoints: the results of chosen operations are kept and not computed again."""

import functools
import gc
import threading
import weakref

import numpy as np
import pytest

import spillgrad as sg
import spillgrad.nn.functional as F
from spillgrad.autograd.core import hooks
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.errors import HookTypeError, SavedTensorError
from spillgrad.ops.call_plan import Planned
from spillgrad.ops.intercept import intercept
from spillgrad.ops.matrix_products import linear
from spillgrad.ops.operation import all_operations
from spillgrad.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from tests.ops.checks import leaf


@pytest.fixture
def computed(monkeypatch):
    """The names of the operations whose forward functions ran, in order."""
    names = []

    def counting(operation):
        forward = operation.forward
        if isinstance(forward, Planned):
            result = forward.result
            monkeypatch.setattr(forward, "result", lambda *a, **k: names.append(operation.name) or result(*a, **k))
            compute = forward.compute
            monkeypatch.setattr(forward, "compute", lambda *a, **k: names.append(operation.name) or compute(*a, **k))
        else:
            monkeypatch.setattr(operation, "forward", lambda *a: names.append(operation.name) or forward(*a))
        for cached in ("run", "_own_names"):
            monkeypatch.delitem(vars(operation), cached, raising=False)

    for operation in list(all_operations):
        if operation.name in ("exp", "tanh", "scaled_dot_product_attention", "linear", "softmax"):
            counting(operation)
    yield names
    for operation in list(all_operations):
        vars(operation).pop("run", None)
        vars(operation).pop("_own_names", None)


def keeping(*choices, **options):
    return functools.partial(create_selective_checkpoint_contexts, list(choices), **options)


def gradients(output, *inputs, **options):
    return [g.numpy().tobytes() for g in sg.grad(output.sum(), inputs, **options)]


def test_chosen_operations_are_not_computed_again(computed):
    def function(x):
        return x.exp().tanh().exp() * x

    x = leaf([0.1, 0.2])
    expected = gradients(function(x), x)
    for choices, runs_again in [(["exp"], ["tanh"]), (["tanh"], ["exp", "exp"]), (["exp", "tanh"], [])]:
        y = checkpoint(function, x, context_fn=keeping(*choices))
        computed.clear()
        assert gradients(y, x) == expected
        assert [name for name in computed if name in ("exp", "tanh")] == runs_again


def test_operations_with_auxiliary_results_are_kept_whole(computed):
    q, k, v = (leaf(np.random.default_rng(i).normal(size=(2, 4, 3))) for i in range(3))

    def function(q, k, v):
        return F.scaled_dot_product_attention(q.tanh(), k, v, is_causal=True) * v

    expected = gradients(function(q, k, v), q, k, v)
    y = checkpoint(function, q, k, v, context_fn=keeping(F.scaled_dot_product_attention))
    computed.clear()
    assert gradients(y, q, k, v) == expected
    assert computed == ["tanh"]


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_linear_layers_are_kept_with_an_activation_too(computed, activation):
    x, w, b = (sg.randn(*shape, requires_grad=True) for shape in ((5, 3), (4, 3), (4,)))

    def function(x, w, b):
        return linear(x, w, b, activation=activation).tanh() * 2

    expected = gradients(function(x, w, b), x, w, b)
    y = checkpoint(function, x, w, b, context_fn=keeping("linear"))
    computed.clear()
    assert gradients(y, x, w, b) == expected
    assert "linear" not in computed and "tanh" in computed


def test_several_outputs_are_kept_whole():
    x = leaf([[3.0, 1.0, 2.0]])

    def function(x):
        values, places = sg.sort(x.exp(), -1)
        return values.tanh() * places

    expected = gradients(function(x), x)
    for choices in (["sort"], ["exp", "sort"]):
        assert gradients(checkpoint(function, x, context_fn=keeping(*choices)), x) == expected


def test_a_policy_sees_each_operation_with_its_arguments_and_output():
    seen = []

    def policy(context, name, *arguments):
        assert not context.is_recompute
        seen.append((name, arguments[0].tolist(), context.op_output.tolist()))
        return CheckpointPolicy.MUST_SAVE if name == "exp" else CheckpointPolicy.PREFER_RECOMPUTE

    x = leaf([0.0])
    y = checkpoint(
        lambda x: x.reshape(1, 1).exp() * 2, x, context_fn=lambda: create_selective_checkpoint_contexts(policy)
    )
    assert seen == [("exp", [[0.0]], [[1.0]]), ("mul", [[1.0]], [[2.0]])]
    seen.clear()
    y.sum().backward()
    assert seen == [] and x.grad.item() == 2.0


def test_a_policy_may_answer_with_a_bool_and_nothing_else():
    x = leaf([0.5])
    for answer in (True, False, *CheckpointPolicy):
        contexts = functools.partial(create_selective_checkpoint_contexts, lambda *_, answer=answer: answer)
        assert gradients(checkpoint(lambda x: x.exp().tanh(), x, context_fn=contexts), x) == gradients(
            x.exp().tanh(), x
        )
    with pytest.raises(HookTypeError, match="got str for exp; wanted a CheckpointPolicy or a bool"):
        checkpoint(lambda x: x.exp(), x, context_fn=lambda: create_selective_checkpoint_contexts(lambda *_: "save"))


def test_backward_may_run_several_times():
    x = leaf([0.1, 0.2])
    y = checkpoint(lambda x: x.exp().tanh() * x, x, context_fn=keeping("exp"))
    expected = gradients(x.exp().tanh() * x, x)
    assert [gradients(y, x, retain_graph=True) for _ in range(3)] == [expected] * 3
    (g,) = sg.grad(y.sum(), x, create_graph=True)
    (h,) = sg.grad((x.exp().tanh() * x).sum(), x, create_graph=True)
    assert gradients(g, x) == gradients(h, x)


def test_a_kept_result_changed_in_place_is_an_error_unless_allowed():
    def function(x):
        y = x.exp()
        z = y * 1
        y.detach().mul_(2)
        return z.tanh()

    x = leaf([0.5])
    with pytest.raises(SavedTensorError, match="saved by exp as 'kept result'"):
        checkpoint(function, x, context_fn=keeping("exp"), determinism_check="none").backward()
    allowed = keeping("mul", allow_cache_entry_mutation=True)
    checkpoint(lambda x: (x * 1).tanh(), x, context_fn=allowed).backward()
    assert x.grad.item() == pytest.approx(1 - np.tanh(0.5) ** 2)


def test_operations_within_a_region_of_its_own_are_kept_outside():
    x = leaf([0.1, 0.2])

    def inner(x):
        return x.exp().tanh()

    def outer(x):
        return checkpoint(inner, x * 2).exp() * x

    assert gradients(checkpoint(outer, x, context_fn=keeping("exp")), x) == gradients(inner(x * 2).exp() * x, x)


def test_operations_on_operands_of_several_dtypes_are_kept():
    x, y = leaf([1.0, 2.0]), sg.ones(2)

    def function(x, y):
        return (x * y + 1).exp() @ y.to(sg.float64)

    assert gradients(checkpoint(function, x, y, context_fn=keeping("mul", "exp")), x) == gradients(function(x, y), x)


def test_random_operations_that_are_kept_draw_no_other_numbers():
    x = leaf(np.ones(100))

    def function(x):
        return sg.dropout(sg.dropout(x.exp(), 0.5).tanh(), 0.5) * x

    sg.manual_seed(0)
    y = checkpoint(function, x, context_fn=keeping("dropout"))
    found = gradients(y, x)
    sg.manual_seed(0)
    assert gradients(function(x), x) == found


def test_a_name_that_no_operation_has_is_an_error_that_names_near_ones():
    with pytest.raises(ValueError, match=r"got 'matmull', which no operation is called; near it: .*matmul"):
        create_selective_checkpoint_contexts(["matmull"])
    with pytest.raises(ValueError, match="got 'zzzzz', which no operation is called; a grad_fn shows"):
        create_selective_checkpoint_contexts(["zzzzz"])


def test_operations_are_as_before_when_no_context_is_active():
    before = {operation: vars(operation).get("run") for operation in all_operations}
    x = leaf([0.1])
    checkpoint(lambda x: x.exp(), x, context_fn=keeping("exp")).backward()
    with pytest.raises(KeyError), intercept(lambda operation, arguments: operation(*arguments)):
        assert x.exp().item() == np.exp(0.1)
        raise KeyError
    assert all(vars(operation).get("run") is run for operation, run in before.items() if run is not None)


def test_other_threads_call_operations_as_ever():
    seen, found = [], []

    def handler(operation, arguments):
        seen.append(operation.name)
        return operation(*arguments)

    x = leaf([0.1])
    with intercept(handler):
        thread = threading.Thread(target=lambda: found.append(x.exp().item()))
        thread.start()
        thread.join()
        x.tanh()
    assert seen == ["tanh"] and found == [np.exp(0.1)]


def test_a_composed_derivative_calls_operations_as_they_are_at_the_time():
    def calls() -> list[str]:
        names: list[str] = []
        x = leaf([0.5, 2.0])
        with intercept(lambda operation, arguments: names.append(operation.name) or operation.run(*arguments)):
            sg.grad(sg.lgamma(x).sum(), x, create_graph=True)
        return names

    x = leaf([0.5, 2.0])
    sg.grad(sg.lgamma(x).sum(), x, create_graph=True)  # the first that runs the derivative on tensors
    assert "digamma" in calls()


def test_fused_functions_work_within():
    @sg.fuse
    def function(x):
        return sg.tanh(x) * x

    x = sg.randn(10, requires_grad=True)
    y = checkpoint(lambda x: function(x.exp()), x, context_fn=keeping("exp", "tanh"))
    assert np.allclose(sg.grad(y.sum(), x)[0].numpy(), sg.grad(function(x.exp()).sum(), x)[0].numpy())


def test_concatenations_of_any_number_of_tensors_work_within():
    x = leaf([0.1, 0.2])

    def function(x):
        return sg.cat([x.exp()] * 13).tanh()

    for choices in (["cat"], ["exp"]):
        assert gradients(checkpoint(function, x, context_fn=keeping(*choices)), x) == gradients(function(x), x)


def test_graph_and_kept_results_are_freed_without_the_garbage_collector():
    kept = []

    def policy(context, name, *arguments):
        kept.append(weakref.ref(context.op_output.storage))
        return True

    x = leaf([0.1, 0.2])
    gc.disable()
    try:
        for contexts in (keeping("exp"), functools.partial(create_selective_checkpoint_contexts, policy)):
            y = checkpoint(lambda x: x.exp().tanh(), x, context_fn=contexts).sum()
            y.backward()
        assert len(kept) == 2 and not any(storage() for storage in kept)
        y = checkpoint(lambda x: x.exp().tanh(), x, context_fn=contexts)
        assert kept[2]() is not None
        del y
        assert kept[2]() is None
    finally:
        gc.enable()


def test_hooks_around_the_checkpoint_pack_what_is_kept_and_unpack_it_once_a_recomputation():
    places, unpacked = [], []

    def pack(tensor):
        places.append(hooks.packing())
        return tensor.numpy().copy()

    def unpack(array):
        unpacked.append(array.tolist())
        return sg.tensor(array)

    def function(x):
        return x.exp().tanh().exp() * x

    x = leaf([0.1, 0.2])
    with saved_tensors_hooks(pack, unpack):
        y = checkpoint(function, x * 1, context_fn=keeping("exp"))
    assert places == [("checkpoint", "argument"), ("exp", "kept result"), ("exp", "kept result")]
    assert gradients(y, x, retain_graph=True) == gradients(y, x) == gradients(function(x), x)
    assert len(unpacked) == 2 * 3
    with saved_tensors_hooks(pack, unpack, only=lambda saved: saved.op != "exp"):
        y = checkpoint(function, x * 1, context_fn=keeping("exp"))
    assert len(places) == 4 and gradients(y, x) == gradients(function(x), x)


def test_kept_results_go_to_disk_within_save_on_disk(tmp_path):
    x = leaf(np.linspace(-1, 1, 100_000))

    def function(x):
        return x.exp().tanh() * x

    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        y = checkpoint(function, x, context_fn=keeping("exp"))
    assert spill.stats().packed_bytes == x.nbytes
    assert gradients(y, x, retain_graph=True) == gradients(y, x) == gradients(function(x), x)


def test_a_recomputation_that_changes_a_kept_result_leaves_the_packed_one_as_it_is():
    x = leaf([0.5])
    with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = checkpoint(lambda x: (x.exp().detach().add_(1) * x).tanh(), x, context_fn=keeping("exp"))
    expected = gradients(((x.detach().exp() + 1) * x).tanh(), x)
    assert [gradients(y, x, retain_graph=True) for _ in range(3)] == [expected] * 3


def test_what_an_inner_region_keeps_is_computed_again_with_the_region_around_it():
    x = leaf([0.1, 0.2])
    kept = []

    def policy(context, name, *arguments):
        kept.append(weakref.ref(context.op_output.storage))
        return True

    def inner(x):
        return x.exp().tanh()

    def outer(x):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(inner, x * 2, context_fn=contexts).sin()

    gc.disable()
    try:
        y = checkpoint(outer, x)
        assert [storage() for storage in kept] == [None, None]
        assert gradients(y, x, retain_graph=True) == gradients(y, x) == gradients(inner(x * 2).sin(), x)
        assert all(storage() is None for storage in kept)
    finally:
        gc.enable()
