"""What policies make of saved tensors: spilled, kept in RAM or recomputed, by module or operation."""

import threading
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.spill.policy import Policy
from spillgrad.utils.checkpoint import checkpoint

IDX = np.random.default_rng(0).integers(0, 256, (2, 64))


def gpt():
    sg.manual_seed(3)
    return sg.models.build("tiny", dropout=0.1)


def gradients(model, loss):
    loss.backward()
    return [p.grad.numpy().tobytes() for p in model.parameters()]


def trained(spill=None):
    model = gpt()
    sg.manual_seed(4)
    if spill is None:
        return gradients(model, model(IDX, IDX)[1])
    with spill:
        loss = model(IDX, IDX)[1]
    return gradients(model, loss)


@pytest.fixture(scope="module")
def wanted():
    return trained()


POLICIES = {
    "spill": "spill",
    "keep": "keep",
    "recompute": "recompute",
    "recomputed blocks": {"transformer.h.*": "recompute"},
    "one block each way": {"transformer.h.0": "recompute", "transformer.h.1": "keep"},
    "parts of blocks": {"*.mlp": "recompute", "*.attn": "keep"},
    "operations": {"gelu_tanh": "keep", "scaled_dot_product_attention": "keep"},
    "an operation in a kept module": {"linear": "spill", "transformer": "keep"},
    "all of it again": {"transformer": "recompute"},
    "a function": lambda name: "recompute" if name.endswith("mlp") else "keep" if name.endswith("attn") else None,
}


@pytest.mark.parametrize("budget", [0, "1GiB"])
@pytest.mark.parametrize("name", POLICIES)
def test_gradients_are_the_same_bit_for_bit_under_every_policy(name, budget, wanted, tmp_path: Path):
    assert trained(sg.save_on_disk(tmp_path, ram_budget=budget, policy=POLICIES[name])) == wanted


@pytest.mark.parametrize("name", ["recompute", "parts of blocks"])
def test_gradients_are_the_same_in_mixed_precision(name, tmp_path: Path):
    with sg.autocast("cpu"):
        plain = trained()
        assert trained(sg.save_on_disk(tmp_path, ram_budget=0, policy=POLICIES[name])) == plain


def packed_bytes(policy, tmp_path: Path) -> int:
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy=policy)
    trained(spill)
    stats = spill.stats()
    return stats.packed_bytes - stats.deduplicated_bytes


def test_of_recomputed_blocks_only_the_inputs_are_saved(tmp_path: Path):
    everything = packed_bytes("spill", tmp_path)
    recomputed = packed_bytes("recompute", tmp_path)
    stream = 2 * 64 * 64 * 4  # batch, positions, width, float32
    # Each of two blocks saves at least: two normalized streams, queries, keys and values, heads, the MLP's two inner.
    assert everything - recomputed > 2 * (2 + 3 + 1 + 4 + 4 - 1) * stream
    assert recomputed < 10 * stream


def test_what_is_kept_stays_in_ram_and_is_counted_beside_the_budget(tmp_path: Path):
    x = sg.randn(64, 64, requires_grad=True)
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy={"exp": "keep"})
    with spill:
        y = x.exp()
        z = y.tanh().sum()  # saves its own result, which is spilled
    spill.flush()
    stats = spill.stats()
    assert (stats.kept_bytes, stats.live_bytes, stats.ram_bytes) == (64 * 64 * 4, 64 * 64 * 4, 0)
    z.backward()
    assert spill.stats().kept_bytes == 0


def test_a_kept_memory_counts_once_however_many_views_save_it(tmp_path: Path):
    x = sg.randn(64, 64, requires_grad=True)
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy="keep")
    with spill:
        y = x.exp()
        z = (y.t() * y.view(-1).view(64, 64)).sum()
    assert spill.stats().kept_bytes == 64 * 64 * 4
    z.backward()


def test_a_kept_tensor_changed_in_place_raises(tmp_path: Path):
    x = sg.randn(64, 64, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0, policy="keep"):
        y = x.exp()
    y.detach().mul_(2)
    with pytest.raises(sg.errors.SavedTensorError, match="modified by an inplace operation"):
        y.sum().backward()


class Counted(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, x, *, scale=2.0):
        self.calls += 1
        return (x * scale).exp() if self.inner is None else self.inner(x).tanh()


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = Counted(Counted())
        self.second = Counted()

    def forward(self, x):
        return self.second(self.first(x), scale=0.5)


def run(policy, tmp_path: Path, model=None):
    model = Outer() if model is None else model
    x = sg.full((64, 64), 0.3, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0, policy=policy):
        loss = model(x).sum()
    loss.backward()
    return model.first.calls, model.first.inner.calls, model.second.calls


@pytest.mark.parametrize(
    ("policy", "calls"),
    [
        ("spill", (1, 1, 1)),
        ({"first": "recompute"}, (2, 2, 1)),
        ({"first.*": "recompute"}, (1, 2, 1)),
        ({"*": "recompute"}, (2, 2, 2)),  # what is inside comes again once, with what is around it
        ({"second": "recompute", "*": "keep"}, (1, 1, 2)),
        ({"*": "keep", "second": "recompute"}, (1, 1, 1)),  # the first that fits
        (lambda name: "recompute" if name == "first.inner" else None, (1, 2, 1)),
    ],
    ids=["spill", "module", "inside", "all", "first pattern", "first pattern of two", "function"],
)
def test_modules_are_recomputed_by_their_paths(policy, calls, tmp_path: Path):
    assert run(policy, tmp_path) == calls


class Checkpointed(Outer):
    def forward(self, x):
        return self.second(checkpoint(lambda x: self.first(x).sin(), x), scale=0.5)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("policy", ["spill", {"first": "recompute"}, {"first.inner": "recompute"}])
def test_modules_that_a_checkpoint_of_the_model_calls_are_recomputed_with_it(policy, within, tmp_path: Path):
    model, x = Checkpointed(), sg.full((64, 64), 0.3, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0, policy=policy):
        loss = model(x).sum()
        if within:
            loss.backward()
    if not within:
        loss.backward()
    assert (model.first.calls, model.first.inner.calls, model.second.calls) == (2, 2, 1)
    wanted = sg.full((64, 64), 0.3, requires_grad=True)
    model.second(model.first(wanted).sin(), scale=0.5).sum().backward()
    assert x.grad.numpy().tobytes() == wanted.grad.numpy().tobytes()


def test_recomputation_alone_means_repeated_layers(tmp_path: Path):
    model = nn.Sequential(Counted(), Counted())
    with sg.save_on_disk(tmp_path, ram_budget=0, policy="recompute"):
        loss = model(sg.full((64, 64), 0.1, requires_grad=True)).sum()
    loss.backward()
    assert [layer.calls for layer in model] == [2, 2]


def test_hooks_of_a_recomputed_module_run_once(tmp_path: Path):
    model, seen = Outer(), []
    model.first.register_forward_pre_hook(lambda module, args: seen.append("before"))
    model.first.register_forward_hook(lambda module, args, output: seen.append("after"))
    model.first.register_full_backward_hook(lambda module, inputs, outputs: seen.append("backward"))
    assert run({"first": "recompute"}, tmp_path, model) == (2, 2, 1)
    assert seen == ["before", "after", "backward"]


def test_nothing_is_recomputed_outside_the_context_in_other_threads_or_without_gradients(tmp_path: Path):
    model = Outer()
    x = sg.full((64, 64), 0.3, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0, policy={"*": "recompute"}):
        with sg.no_grad():
            model(x)
        thread = threading.Thread(target=lambda: model(x).sum().backward())
        thread.start()
        thread.join()
    model(x).sum().backward()
    assert model.second.calls == 3


def test_the_innermost_context_decides_and_the_outer_one_returns(tmp_path: Path):
    model = Outer()
    x = sg.full((64, 64), 0.3, requires_grad=True)
    spill = sg.save_on_disk(tmp_path, ram_budget=0, policy={"second": "recompute"})
    with spill:
        with sg.save_on_disk(tmp_path, ram_budget=0):
            inner = model(x).sum()
        with spill:  # re-entered
            pass
        outer = model(x).sum()
    inner.backward()
    assert model.second.calls == 2
    outer.backward()
    assert model.second.calls == 3


def test_backward_within_the_context_recomputes_once_too(tmp_path: Path):
    model = Outer()
    with sg.save_on_disk(tmp_path, ram_budget=0, policy={"*": "recompute"}):
        model(sg.full((64, 64), 0.3, requires_grad=True)).sum().backward()
    assert (model.first.calls, model.first.inner.calls, model.second.calls) == (2, 2, 2)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("drop", "'drop'.*spill, keep, recompute"),
        ({"h.0": "drop"}, "'drop'"),
        ({"softmax": "recompute"}, "operation softmax.*module"),
        (3, "policy 3"),
        ({3: "keep"}, "a policy for 3; wanted the path"),
    ],
    ids=str,
)
def test_what_is_no_policy_is_refused(policy, words, tmp_path: Path):
    with pytest.raises(sg.errors.ArgumentError, match=words):
        sg.save_on_disk(tmp_path, ram_budget=0, policy=policy)


def test_a_function_that_chooses_what_cannot_be_is_told():
    with pytest.raises(sg.errors.ArgumentError, match="'drop'"):
        Policy(lambda name: "drop").keeps("exp", "")
    with pytest.raises(sg.errors.ArgumentError, match="operation exp"):
        Policy(lambda name: "recompute").keeps("exp", "")


def test_checkpoint_within_spilling_and_spilling_within_checkpoint_give_the_same_gradients(wanted, tmp_path: Path):
    model = gpt()
    sg.manual_seed(4)
    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        loss = checkpoint(lambda: checkpoint(model, IDX, IDX)[1])
    assert gradients(model, loss) == wanted

    def spilled():
        with spill:
            return model(IDX, IDX)[1]

    model = gpt()
    sg.manual_seed(4)
    assert gradients(model, checkpoint(spilled)) == wanted
