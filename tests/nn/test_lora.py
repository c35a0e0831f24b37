"""Low-rank adapters: what they compute, what they train, and what they leave alone."""

from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.q_proj = nn.Linear(6, 6)
        self.mlp = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6, bias=False))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, idx):
        return self.head(self.norm(self.mlp(self.q_proj(self.embed(idx)))))


IDX = sg.tensor([[1, 2, 3], [4, 5, 6]])


def adapted(**options):
    sg.manual_seed(0)
    model = nn.lora(Net(), rank=2, **options)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def values(model):
    return {name: parameter.numpy().copy() for name, parameter in model.named_parameters()}


def test_a_layer_computes_the_base_plus_the_scaled_product_of_the_adapters():
    base = nn.Linear(5, 3)
    layer = nn.LoRALinear(base, rank=2, alpha=6)
    nn.init.normal_(layer.lora_B.weight)
    x = sg.randn(4, 5)
    w, b, A, B = (t.numpy() for t in (base.weight, base.bias, layer.lora_A.weight, layer.lora_B.weight))
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() @ w.T + b + 3 * (x.numpy() @ A.T @ B.T), rtol=1e-5)
    assert layer.weight is base.weight
    assert layer.bias is base.bias


def test_a_new_adapter_changes_no_result_and_begins_with_kaiming_rows():
    model = Net()
    before = model(IDX).numpy()
    nn.lora(model, rank=64)
    assert model(IDX).numpy().tobytes() == before.tobytes()
    assert not model.q_proj.lora_B.weight.numpy().any()
    drawn = model.q_proj.lora_A.weight.numpy()
    bound = 1 / np.sqrt(6)
    assert 0.9 * bound < np.abs(drawn).max() <= bound


def test_only_adapters_are_trained_and_frozen_weights_keep_every_bit():
    model = adapted()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained == [f"{path}.lora_{x}.weight" for path in ("q_proj", "mlp.0", "mlp.2") for x in "AB"]
    before = values(model)
    optimizer = sg.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=0.1)
    model(IDX).square().mean().backward()
    optimizer.step()
    after = values(model)
    assert [name for name in before if (before[name] != after[name]).any()] == trained
    assert all((p.grad is None) == (name not in trained) for name, p in model.named_parameters())


def test_gradients_are_those_of_the_composed_formula():
    layer = nn.LoRALinear(nn.Linear(5, 3), rank=2, alpha=6)
    layer.weight.requires_grad_(False)
    nn.init.normal_(layer.lora_B.weight)
    x, g = sg.randn(4, 5, requires_grad=True), sg.randn(4, 3)
    A, B, w = (t.detach().requires_grad_() for t in (layer.lora_A.weight, layer.lora_B.weight, layer.weight))
    mine = sg.grad((layer(x) * g).sum(), [x, layer.lora_A.weight, layer.lora_B.weight])
    wanted = sg.grad(((x @ (w + 3 * (B @ A)).t()) * g).sum(), [x, A, B])
    for one, other in zip(mine, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-5)


def saved(model, x):
    found = []
    with sg.autograd.graph.saved_tensors_hooks(lambda t: found.append(t.shape) or t, lambda t: t):
        model(x)
    return found


def test_a_frozen_weight_is_saved_only_where_the_input_needs_a_gradient():
    layer = nn.lora(nn.Sequential(nn.Linear(50, 30)), rank=2)
    assert (30, 50) not in saved(layer, sg.randn(4, 50))
    assert (30, 50) in saved(layer, sg.randn(4, 50, requires_grad=True))


def test_frozen_weights_are_never_spilled(tmp_path: Path):
    layer = nn.lora(nn.Linear(200, 300), rank=2)
    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        layer(sg.randn(8, 200, requires_grad=True)).sum().backward()
    assert spill.stats().packed_bytes < 200 * 300 * 4


@pytest.mark.parametrize(
    ("target", "paths"),
    [
        (None, ["q_proj", "mlp.0", "mlp.2"]),
        ("q_proj", ["q_proj"]),
        (["q_proj", "2"], ["q_proj", "mlp.2"]),
        (r"mlp\.\d", ["mlp.0", "mlp.2"]),
        (r".*proj|mlp\.0", ["q_proj", "mlp.0"]),
        (["mlp.2"], ["mlp.2"]),
    ],
    ids=str,
)
def test_targets_are_names_at_the_end_of_a_path_or_a_pattern_for_all_of_it(target, paths):
    model = adapted(target=target)
    assert [path for path, module in model.named_modules() if isinstance(module, nn.LoRALinear)] == paths


def test_tied_weights_stay_as_they_are():
    model = adapted()
    assert type(model.head) is nn.Linear
    assert model.head.weight is model.embed.weight


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rank": 0}, "rank 0"),
        ({"rank": 2.5}, "rank 2.5"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"target": "k_proj"}, "'k_proj'; Net has the layers q_proj, mlp.0, mlp.2, and with tied.* head"),
        ({"target": ["q_proj", "v_proj"]}, "'v_proj'"),
        ({"target": "head"}, "'head'"),
        ({"target": "("}, "no regular expression"),
    ],
    ids=str,
)
def test_what_cannot_be_adapted_is_refused_before_anything_changes(options, words):
    model = Net()
    with pytest.raises(sg.errors.ArgumentError, match=words):
        nn.lora(model, **options)
    assert all(p.requires_grad for p in model.parameters())
    assert type(model.q_proj) is nn.Linear


def test_a_model_without_layers_or_with_adapters_is_refused():
    with pytest.raises(
        sg.errors.ArgumentError, match=r"Sequential has no layer that adapters are for; those are .*Linear"
    ):
        nn.lora(nn.Sequential(nn.GELU()))
    with pytest.raises(sg.errors.ArgumentError, match="has adapters"):
        nn.lora(adapted())


def test_a_layer_alone_is_replaced_by_the_one_returned():
    base = nn.Linear(4, 4)
    layer = nn.lora(base, rank=1)
    assert isinstance(layer, nn.LoRALinear)
    assert layer.weight is base.weight
    assert type(nn.merge_lora(layer)) is nn.Linear


def test_a_layer_used_under_two_paths_gets_one_adapter():
    shared = nn.Linear(4, 4)
    model = nn.lora(nn.Sequential(shared, nn.GELU(), shared), rank=1)
    assert model[0] is model[2]
    assert isinstance(model[0], nn.LoRALinear)


def test_hooks_of_the_base_layer_stay():
    model, seen = Net(), []
    model.q_proj.register_forward_hook(lambda module, args, output: seen.append(type(module)))
    nn.lora(model)
    model(IDX)
    assert seen == [nn.LoRALinear]


def test_merged_layers_give_the_same_up_to_rounding_and_come_apart_again():
    model = adapted(alpha=1).eval()
    before, weight = model(IDX).numpy(), model.q_proj.weight.numpy().copy()
    layers = [m for m in model.modules() if isinstance(m, nn.LoRALinear)]
    for layer in layers:
        layer.merge()
        layer.merge()  # once only
    np.testing.assert_allclose(model(IDX).numpy(), before, rtol=1e-4, atol=1e-5)
    assert (model.q_proj.weight.numpy() != weight).any()
    for layer in layers:
        layer.unmerge()
    np.testing.assert_allclose(model.q_proj.weight.numpy(), weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(IDX).numpy(), before, rtol=1e-4, atol=1e-5)


def test_training_and_saving_while_merged_are_refused():
    model = adapted()
    model.q_proj.merge()
    with pytest.raises(sg.errors.GraphError, match="training step while merged"):
        model(IDX)
    with sg.no_grad():
        model(IDX)
    model.eval()(IDX)
    with pytest.raises(sg.errors.GraphError, match=r"state_dict\(\) while merged"):
        model.state_dict()
    with pytest.raises(sg.errors.GraphError, match="merged model"):
        nn.load_lora_state_dict(model, {})


def test_taking_adapters_away_leaves_the_model_as_it_was_made_with_the_merged_weights():
    model = adapted().eval()
    before, kinds = model(IDX).numpy(), [type(m) for m in Net().modules()]
    assert nn.merge_lora(model) is model
    assert [type(m) for m in model.modules()] == kinds
    assert model.state_dict().keys() == Net().state_dict().keys()
    np.testing.assert_allclose(model(IDX).numpy(), before, rtol=1e-4, atol=1e-5)
    assert repr(model) == repr(Net())


def test_the_adapters_alone_are_saved_under_pefts_names_and_loaded_back(tmp_path: Path):
    model = adapted(target="q_proj").eval()
    state = nn.lora_state_dict(model)
    assert {name: t.shape for name, t in state.items()} == {
        "q_proj.lora_A.weight": (2, 6), "q_proj.lora_B.weight": (6, 2),
    }  # fmt: skip
    sg.save(state, tmp_path / "adapters")
    fresh = nn.lora(Net(), rank=2, target="q_proj").eval()
    base = {k: v for k, v in model.state_dict().items() if "lora" not in k}
    fresh.load_state_dict(base, strict=False)
    assert (fresh(IDX).numpy() != model(IDX).numpy()).any()
    nn.load_lora_state_dict(fresh, {f"base_model.model.{k}": v for k, v in sg.load(tmp_path / "adapters").items()})
    assert fresh(IDX).numpy().tobytes() == model(IDX).numpy().tobytes()


def test_a_state_of_the_base_model_loads_into_an_adapted_one():
    state = Net().state_dict()
    result = adapted().load_state_dict(state, strict=False)
    assert all("lora_" in key for key in result.missing_keys)
    assert result.unexpected_keys == []


def test_adapters_of_other_layers_or_shapes_are_all_listed():
    model = adapted(target="q_proj")
    state = nn.lora_state_dict(model)
    with pytest.raises(sg.errors.StateDictError, match=r"missing q_proj\.lora_B\.weight; unexpected v\.lora_A\.weight"):
        nn.load_lora_state_dict(model, {"q_proj.lora_A.weight": sg.zeros(2, 6), "v.lora_A.weight": sg.zeros(1)})
    with pytest.raises(sg.errors.StateDictError, match="size mismatch"):
        nn.load_lora_state_dict(model, dict.fromkeys(state, sg.zeros(3, 3)))


def test_dropout_acts_on_the_adapters_input_alone_and_in_training_only():
    sg.manual_seed(0)
    layer = nn.LoRALinear(nn.Linear(4, 4), rank=2, dropout=0.5)
    x = sg.randn(3, 4)
    base = layer(x).numpy()  # B is zero
    assert layer(x).numpy().tobytes() == base.tobytes()
    nn.init.normal_(layer.lora_B.weight)
    assert (layer(x).numpy() != layer(x).numpy()).any()
    layer.eval()
    assert layer(x).numpy().tobytes() == layer(x).numpy().tobytes()


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "autocast"])
def test_a_gpt_learns_by_its_adapters_alone(mixed):
    sg.manual_seed(1)
    model = nn.lora(sg.models.build("tiny", dropout=0.1), rank=4, alpha=8, dropout=0.1)
    adapters = [p for p in model.parameters() if p.requires_grad]
    assert len(adapters) == 2 * 2 * 4  # two blocks of four layers
    frozen = {n: p.numpy().copy() for n, p in model.named_parameters() if not p.requires_grad}
    x = np.random.default_rng(0).integers(0, 256, (4, 32))
    optimizer = sg.optim.AdamW(adapters, lr=1e-2)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        with sg.autocast("cpu", enabled=mixed):
            _, loss = model(x, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.15
    now = dict(model.named_parameters())
    assert all((now[name].numpy() == value).all() for name, value in frozen.items())


def test_gpt2_layers_merge_the_other_way_round_and_keep_activation_and_residual():
    sg.manual_seed(1)
    model = nn.lora(sg.models.build("tiny"), rank=4).eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    idx = np.arange(12).reshape(2, 6)
    before = model(idx)[0].numpy()
    nn.merge_lora(model)
    np.testing.assert_allclose(model(idx)[0].numpy(), before, rtol=1e-3, atol=1e-4)


def test_a_layer_says_its_rank_and_scaling():
    layer = nn.LoRALinear(nn.Linear(4, 3), rank=2, alpha=3)
    assert "in_features=4, out_features=3, bias=True, rank=2, scaling=1.5" in repr(layer)
