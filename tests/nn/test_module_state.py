"""State dicts of modules: collecting, loading, and the hooks around both."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import StateDictError
from tests.nn.test_module import Tied


def test_a_state_dict_shares_memory_and_holds_what_persists():
    model = Tied()
    state = model.state_dict()
    assert list(state) == ["mean", "first.weight", "first.bias", "second.weight"]
    assert all(not tensor.requires_grad for tensor in state.values())
    state["mean"].add_(1.0)
    assert model.mean.tolist() == [1.0, 1.0, 1.0]


def test_loading_copies_tensors_and_arrays_and_keeps_ties():
    source, target = Tied(), Tied()
    state = {name: tensor if name == "mean" else tensor.numpy().copy() for name, tensor in source.state_dict().items()}
    weight = target.first.weight
    assert target.load_state_dict(state) == ([], [])
    assert target.first.weight is weight is target.second.weight
    assert (weight.numpy() == source.first.weight.numpy()).all()
    assert not np.shares_memory(weight.numpy(), source.first.weight.numpy())


def test_loading_lists_everything_that_is_wrong_and_changes_nothing():
    model = Tied()
    before = model.mean.tolist()
    state = {"mean": sg.ones(3), "first.weight": sg.zeros(2, 3), "second.weight": sg.zeros(4), "extra": sg.zeros(1)}
    with pytest.raises(StateDictError) as caught:
        model.load_state_dict(state)
    for part in (
        "Error(s) in loading state_dict for Tied:",
        '\n\tMissing key(s) in state_dict: "first.bias".',
        '\n\tUnexpected key(s) in state_dict: "extra".',
        "\n\tsize mismatch for first.weight: copying a param with shape (2, 3) from checkpoint, the shape in current "
        "model is (3, 3).",
        "size mismatch for second.weight",
    ):
        assert part in str(caught.value)
    assert model.mean.tolist() == before


def test_loading_that_is_not_strict_takes_what_fits_by_name():
    model = Tied()
    result = model.load_state_dict({"mean": sg.ones(3), "extra": sg.zeros(1)}, strict=False)
    assert result.missing_keys == ["first.weight", "first.bias", "second.weight"]
    assert result.unexpected_keys == ["extra"]
    assert model.mean.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(StateDictError, match="size mismatch for mean"):
        model.load_state_dict({"mean": sg.ones(4)}, strict=False)


def test_state_goes_under_a_prefix_into_a_destination():
    found = {"before": 1}
    assert Tied().first.state_dict(destination=found, prefix="layer.") is found
    assert list(found) == ["before", "layer.weight", "layer.bias"]


def test_loaded_tensors_may_take_the_place_of_the_modules_own():
    model = Tied()
    state = {key: sg.ones(*value.shape, dtype="float64") for key, value in model.state_dict().items()}
    model.first.bias.requires_grad_(False)
    model.load_state_dict(state, assign=True)
    assert {str(value.dtype) for value in model.state_dict().values()} == {"float64"}
    assert model.mean is state["mean"]
    assert model.first.weight.storage is state["first.weight"].storage
    assert isinstance(model.first.weight, nn.Parameter)
    assert (model.first.weight.requires_grad, model.first.bias.requires_grad) == (True, False)


def test_what_loading_found_is_shown_as_in_pytorch():
    model = Tied()
    assert repr(model.load_state_dict(model.state_dict())) == "<All keys matched successfully>"
    found = nn.Tanh().load_state_dict({"a": sg.ones(1)}, strict=False)
    assert repr(found) == "IncompatibleKeys(missing_keys=[], unexpected_keys=['a'])"


def test_other_state_travels_with_the_tensors():
    class Counting(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.count = count

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    source, target = nn.Sequential(Counting(3)), nn.Sequential(Counting(0))
    state = source.state_dict()
    assert state == {"0._extra_state": {"count": 3}}
    target.load_state_dict(state)
    assert target[0].count == 3
    with pytest.raises(StateDictError, match=r'Missing key.* "0\._extra_state"'):
        target.load_state_dict({})


def test_hooks_see_and_change_state_on_its_way():
    calls = []
    model = nn.Sequential(nn.Linear(2, 1))
    layer = model[0]
    layer.register_state_dict_pre_hook(lambda module, prefix, keep_vars: calls.append((prefix, keep_vars)))
    handle = layer.register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update({prefix + "new": state.pop(prefix + "bias")})
    )
    state = model.state_dict()
    assert list(state) == ["0.weight", "0.new"]
    assert calls == [("0.", False)]
    handle.remove()
    with pytest.raises(StateDictError, match=r'Missing key.* "0\.bias"'):
        model.load_state_dict(state)

    def rename(module, state, prefix, metadata, strict, missing, unexpected, errors):
        assert (module, prefix, strict, missing, unexpected, errors) == (layer, "0.", False, [], [], [])
        state[prefix + "bias"] = state.pop(prefix + "new")

    layer.register_load_state_dict_pre_hook(rename)
    layer.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append("told"))
    assert model.load_state_dict(state, strict=False).missing_keys == ["told"]
    assert list(state) == ["0.weight", "0.new"]
    layer.register_load_state_dict_post_hook(lambda module, keys: keys)
    with pytest.raises(StateDictError, match="change the keys in place"):
        model.load_state_dict(state, strict=False)


def test_strict_loading_looks_at_the_keys_that_hooks_after_it_leave():
    model = nn.Sequential(nn.Linear(2, 1))
    state = {"0.weight": sg.full((1, 2), 7.0), "1.weight": sg.ones(1)}

    def excuse(module, keys):
        assert model[0].weight.tolist() == [[7.0, 7.0]]  # all is loaded by then
        keys.missing_keys.clear()
        keys.unexpected_keys.clear()

    handle = model.register_load_state_dict_post_hook(excuse)
    assert model.load_state_dict(state) == ([], [])
    handle.remove()
    with sg.no_grad():
        model[0].weight.zero_()
    with pytest.raises(StateDictError, match=r'Missing .*: "0\.bias"\.\n\tUnexpected .*: "1\.weight"'):
        model.load_state_dict(state)
    assert model[0].weight.tolist() == [[0.0, 0.0]]

    whole = {"0.weight": sg.full((1, 2), 7.0), "0.bias": sg.ones(1)}
    model[0].register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.append("told"))
    with pytest.raises(StateDictError, match=r'Missing key\(s\) in state_dict: "told"'):
        model.load_state_dict(whole)
    assert model.load_state_dict(whole, strict=False) == (["told"], [])
    with pytest.raises(StateDictError, match=r"size mismatch for 0\.bias"):
        model.load_state_dict({**whole, "0.weight": sg.zeros(1, 2), "0.bias": sg.ones(2)})
    assert model[0].weight.tolist() == [[7.0, 7.0]]


def test_a_module_may_save_state_of_its_own():
    class Counted(nn.Linear):
        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[f"{prefix}steps"] = sg.tensor(3)

    state = nn.Sequential(Counted(1, 1)).state_dict()
    assert list(state) == ["0.weight", "0.bias", "0.steps"]
