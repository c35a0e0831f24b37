"""Models with quantized weights: gradients, adapters, state, checkpoints, disk, and what is refused."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spillgrad as sg

IDX = np.arange(24).reshape(2, 12) % 256
FORMATS = ("nf4", "int8")


def _model(name: str = "llama-tiny", to: str = "nf4", **options: Any) -> Any:
    sg.manual_seed(0)
    model = sg.models.build(name).requires_grad_(False).eval()
    return sg.nn.quantize(model, to, **options)


def _loss(model: Any) -> sg.Tensor:
    found = model(sg.tensor(IDX))
    logits = found[0] if isinstance(found, tuple) else found
    return (logits * logits).mean()


def _adapted(model: Any) -> Any:
    """Return a model with adapters that change its results."""
    sg.manual_seed(1)
    sg.nn.lora(model, rank=4)
    with sg.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.copy_(0.1 * sg.randn(*param.shape))
    return model


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", ["llama-tiny", "tiny"])
def test_gradients_are_those_of_the_expanded_weights(name: str, to: str) -> None:
    model = _model(name, to, embeddings=True)
    wanted = _adapted(sg.nn.dequantize(copy.deepcopy(model)))
    _adapted(model)
    assert not any("Quantized" in type(layer).__name__ for layer in wanted.modules())
    losses = [_loss(each) for each in (model, wanted)]
    np.testing.assert_allclose(losses[0].item(), losses[1].item(), rtol=1e-5)
    for loss in losses:
        loss.backward()
    by_name = dict(wanted.named_parameters())
    trained = [(path, param) for path, param in model.named_parameters() if param.requires_grad]
    assert len(trained) >= 16
    for path, param in trained:
        np.testing.assert_allclose(param.grad.numpy(), by_name[path].grad.numpy(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("to", FORMATS)
def test_the_input_of_a_quantized_layer_and_its_adapters_pass_gradcheck(to: str) -> None:
    sg.manual_seed(0)
    layer = sg.nn.quantize(sg.nn.Linear(70, 6).requires_grad_(False), to)
    model = _adapted(sg.nn.Sequential(layer)).double()
    params = [param for param in model.parameters() if param.requires_grad]
    x = sg.randn(3, 70, dtype=sg.float64, requires_grad=True)
    assert sg.autograd.gradcheck(lambda *_: model(x), (x, *params))
    assert sg.autograd.gradgradcheck(model, (x,))


def test_in_autocast_a_layer_returns_what_a_linear_layer_returns() -> None:
    layer = sg.nn.quantize(sg.nn.Linear(64, 32).requires_grad_(False), "nf4")
    plain, x = sg.nn.dequantize(copy.deepcopy(layer)), sg.randn(5, 64)
    with sg.autocast("cpu"):
        found, wanted = layer(x), plain(x)
    assert found.dtype == wanted.dtype == sg.bfloat16
    np.testing.assert_allclose(found.float().numpy(), wanted.float().numpy(), atol=0.02)


@pytest.mark.parametrize("to", FORMATS)
def test_the_state_is_of_codes_and_scales_and_loads_again(to: str, tmp_path: Path) -> None:
    model = _model(to=to)
    wanted = _loss(model).item()
    state = model.state_dict()
    codes = state["model.layers.0.mlp.up_proj.weight"]
    assert codes.dtype == (sg.uint8 if to == "nf4" else sg.int8)
    other = _model(to=to)
    for value in other.state_dict().values():
        value.zero_()
    other.load_state_dict(state)
    assert _loss(other).item() == wanted
    sg.save(state, tmp_path / "state")
    assert all((sg.load(tmp_path / "state")[key] == value).all() for key, value in state.items())
    sg.save_checkpoint(tmp_path / "run", model)
    for value in other.state_dict().values():
        value.zero_()
    sg.load_checkpoint(tmp_path / "run", other)
    assert _loss(other).item() == wanted


def test_conversions_to_another_dtype_leave_codes_and_scales() -> None:
    model = _model()
    before = {key: value.clone() for key, value in model.state_dict().items() if "absmax" in key or "offset" in key}
    model.bfloat16()
    after = model.state_dict()
    assert before
    assert all(after[key].dtype == value.dtype and (after[key] == value).all() for key, value in before.items())
    assert _loss(model.float()).item() > 0


@pytest.mark.parametrize("to", FORMATS)
def test_an_offloaded_model_trains_its_adapters_as_in_ram(to: str, tmp_path: Path) -> None:
    losses = []
    for is_offloaded in (False, True):
        model = _adapted(_model(to=to))
        optimizer = sg.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-2)
        if is_offloaded:
            sg.disk_offload(model, optimizer, tmp_path, ram_budget="256KiB")
        for _ in range(3):
            optimizer.zero_grad()
            loss = _loss(model)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]
    assert losses[2] < losses[0]


@pytest.mark.parametrize(("to", "share"), [("nf4", 7), ("int8", 3.9)])
def test_disk_and_memory_hold_codes_alone(to: str, share: float, tmp_path: Path) -> None:
    sg.manual_seed(0)
    model = sg.nn.quantize(sg.nn.Sequential(*[sg.nn.Linear(512, 512) for _ in range(4)]).requires_grad_(False), to)
    x = sg.randn(8, 512)
    wanted = model(x).numpy()
    floats = 4 * 4 * 512 * 512
    offload = sg.disk_offload(model, None, tmp_path, ram_budget=floats // 8)
    np.testing.assert_array_equal(model(x).numpy(), wanted)
    offload.flush()
    assert offload.stats().stored_bytes < floats / share
    assert offload.stats().peak_ram_bytes <= floats // 8


def test_codes_are_not_spilled(tmp_path: Path) -> None:
    layer = sg.nn.quantize(sg.nn.Linear(256, 256).requires_grad_(False), "int8")
    x = sg.randn(2, 256, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0, min_bytes=0) as spill:
        loss = layer(x).sum()
    loss.backward()
    assert spill.stats().stored_bytes < 256 * 256


def test_a_weight_of_codes_can_have_no_gradient() -> None:
    layer = sg.nn.quantize(sg.nn.Linear(64, 32).requires_grad_(False), "nf4")
    with pytest.raises(RuntimeError, match=r"(?i)float"):
        layer.weight.requires_grad_(True)
    assert [name for name, _ in layer.named_parameters()] == ["bias"]


def test_skipped_shared_and_other_layers_stay() -> None:
    sg.manual_seed(0)
    config = sg.models.config("llama-tiny", tie_word_embeddings=False)
    model = sg.nn.quantize(sg.models.build(config).requires_grad_(False), "int8", skip=("lm_head", "o_proj"))
    kinds = {path: type(layer).__name__ for path, layer in model.named_modules()}
    assert kinds["lm_head"] == "Linear"
    assert kinds["model.embed_tokens"] == "Embedding"
    assert kinds["model.layers.1.self_attn.o_proj"] == "Linear"
    assert kinds["model.layers.1.self_attn.q_proj"] == "QuantizedLinear"
    tied = _model(embeddings=True)
    assert type(tied.model.embed_tokens) is sg.nn.Embedding


def test_merging_into_codes_is_refused_until_they_are_expanded() -> None:
    model = _adapted(_model())
    wanted = _loss(model).item()
    with pytest.raises(sg.errors.GraphError, match=r"dequantize\(model\) first"):
        sg.nn.merge_lora(model)
    merged = sg.nn.merge_lora(sg.nn.dequantize(model))
    assert _loss(merged).item() == pytest.approx(wanted, rel=1e-4)


def _frozen(*layers: sg.nn.Module) -> sg.nn.Module:
    return sg.nn.Sequential(*layers).requires_grad_(False)


def _with_nan() -> sg.nn.Module:
    model = _frozen(sg.nn.Linear(64, 4))
    model[0].weight[1, 2] = float("nan")
    return model


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown word": (lambda: sg.nn.quantize(_frozen(sg.nn.Linear(4, 4)), "int4"), "got 'int4'; wanted 'nf4' or"),
    "a trained weight": (lambda: sg.nn.quantize(sg.nn.Linear(4, 4), "nf4"), "a weight that is trained"),
    "a name of no layer": (lambda: sg.nn.quantize(_model(), "nf4", skip=("up",)), "'up'.* end in embed_tokens"),
    "no pattern": (lambda: sg.nn.quantize(_model(), "nf4", skip="("), "no regular expression"),
    "nothing": (lambda: sg.nn.quantize(_frozen(sg.nn.ReLU()), "nf4"), "no linear layer"),
    "adapters": (lambda: sg.nn.quantize(sg.nn.lora(_frozen(sg.nn.Linear(4, 4))), "nf4"), "a model with adapters"),
    "NaN": (lambda: sg.nn.quantize(_with_nan(), "nf4"), "infinite or NaN"),
    "no codes": (lambda: sg.nn.dequantize(_frozen(sg.nn.Linear(4, 4))), "no quantized weight"),
    "another size": (lambda: _model().model.layers[0].mlp.up_proj(sg.randn(2, 5)), "quantized weight"),
    "integers": (lambda: _model().model.layers[0].mlp.up_proj(sg.zeros(2, 64, dtype=sg.int64)), "int64"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_one_clear_line(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(sg.errors.SpillgradError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_scales_of_another_dtype_are_refused(dtype: str):
    layer = sg.nn.quantize(sg.nn.Sequential(sg.nn.Linear(70, 9).requires_grad_(False)), "int8")
    state = {name: value.to(dtype) if "absmax" in name else value for name, value in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    with pytest.raises(ValueError, match=f"got 9 scales of {dtype}"):
        layer(sg.ones(2, 70))


def test_of_a_mixed_model_no_layer_is_merged():
    model = sg.nn.Sequential(sg.nn.Linear(8, 8), sg.nn.Linear(8, 8)).requires_grad_(False)
    sg.nn.lora(sg.nn.quantize(model, "nf4", skip=("0",)), rank=2)
    with pytest.raises(sg.errors.GraphError, match="quantized weight"):
        sg.nn.merge_lora(model)
    assert not model[0].merged
    model.state_dict()


def test_a_table_that_was_quantized_is_a_table_to_optimizers():
    model = sg.nn.Sequential(sg.nn.Embedding(100, 64)).requires_grad_(False)
    assert sg.nn.dequantize(sg.nn.quantize(model, "int8", embeddings=True))[0].weight.exact_state
