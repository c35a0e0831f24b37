"""Exports of runs and adapters: what they hold, what is refused, and what they leave as it was."""

import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spillgrad as sg
from spillgrad.errors import ArgumentError, CheckpointError, MissingFileError, SpillgradError
from spillgrad_tools.train.options import TrainSettings
from spillgrad_tools.train.training import Training

TOKENS = np.random.default_rng(5).integers(0, 256, (2, 12))
SETTINGS = {"model": "llama-tiny", "steps": 3, "batch": 2, "context": 16, "lora": 4, "lr": 0.05}
SMALL: dict[str, Any] = {"num_hidden_layers": 1, "max_position_embeddings": 16}


def logits(model: sg.models.LanguageModel) -> np.ndarray:
    with sg.no_grad():
        found, _ = model.eval()(TOKENS)
    assert found is not None
    return found.numpy()


def random_adapters(model: Any, **options: Any) -> Any:
    """Add adapters to a model, none of which is zero."""
    sg.nn.lora(model, **options)
    generator = np.random.default_rng(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.copy_(sg.tensor(generator.standard_normal(parameter.shape).astype(np.float32)))
    return model


def make_base(folder: Path, name: str = "llama-tiny") -> sg.models.LanguageModel:
    """Write a model as Hugging Face's folders are; return it."""
    sg.manual_seed(2)
    model = sg.models.build(name, context=16)
    version = sg.save_checkpoint(folder / "saved", model)
    for file in ("model.safetensors", "config.json"):
        shutil.move(version / file, folder / file)
    shutil.rmtree(folder / "saved")
    return model


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    make_base(folder)
    return folder


def train(folder: Path, **changes: Any) -> Training:
    """Train for three steps, and save."""
    training = Training(TrainSettings(**{**SETTINGS, **changes}), bytes(range(256)) * 20)
    for _ in training.steps():
        pass
    training.save(folder)
    return training


@pytest.fixture
def run(tmp_path: Path, base: Path) -> Path:
    train(tmp_path / "run", weights=str(base))
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["llama-tiny", "tiny"])
def test_a_run_with_adapters_comes_back_from_each_format(name: str, tmp_path: Path):
    (tmp_path / "base").mkdir()
    make_base(tmp_path / "base", name)
    model = train(tmp_path / "run", weights=str(tmp_path / "base")).model
    wanted = logits(model)
    again = sg.models.from_peft(sg.models.export(tmp_path / "run", tmp_path / "adapters"))
    np.testing.assert_array_equal(logits(again), wanted)
    merged = sg.models.export(tmp_path / "run", tmp_path / "merged", merge=True)
    np.testing.assert_allclose(logits(sg.models.from_safetensors(merged)), wanted, rtol=1e-5, atol=1e-5)
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 4)
    assert config["base_model_name_or_path"] == str(tmp_path / "base")
    targets = {"llama-tiny": ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
               "tiny": ["c_attn", "c_fc", "c_proj"]}  # fmt: skip
    assert config["target_modules"] == targets[name]
    assert config["fan_in_fan_out"] == (name == "tiny")


def test_weights_that_a_run_drew_itself_are_drawn_again(tmp_path: Path):
    model = train(tmp_path / "run").model
    wanted = logits(model)
    state = sg.default_generator.get_state()
    merged = sg.models.export(tmp_path / "run", tmp_path / "merged", merge=True)
    assert sg.default_generator.get_state() == state
    np.testing.assert_allclose(logits(sg.models.from_safetensors(merged)), wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(ArgumentError, match="is in no files of its own"):
        sg.models.export(tmp_path / "run", tmp_path / "adapters")


def test_a_run_that_trained_the_whole_model_is_a_folder(tmp_path: Path):
    model = train(tmp_path / "run", lora=None).model
    exported = sg.models.export(tmp_path / "run", tmp_path / "exported")
    np.testing.assert_array_equal(logits(sg.models.from_safetensors(exported)), logits(model))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_sum_with_adapters_is_rounded_once(dtype: str, tmp_path: Path, base: Path):
    model = random_adapters(sg.models.from_safetensors(base), rank=2, alpha=3.0)
    sg.models.to_peft(model, tmp_path / "adapters", base)
    merged = sg.models.export(tmp_path / "adapters", tmp_path / "merged", merge=True, dtype=dtype)
    found, weights = load_file(merged / "model.safetensors"), load_file(base / "model.safetensors")
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    for name, weight in weights.items():
        layer = model.get_submodule(name.rpartition(".")[0])
        if hasattr(layer, "lora_A"):
            product = layer.lora_B.weight.numpy().astype(np.float64) @ layer.lora_A.weight.numpy()
            weight = weight + product * 1.5
        assert found[name].dtype == kind
        step = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
        np.testing.assert_allclose(found[name].astype(np.float64), weight, rtol=step * 1.01, atol=1e-5)
    assert json.loads((merged / "config.json").read_text())["torch_dtype"] == dtype


def test_ranks_and_alphas_that_differ_come_back(tmp_path: Path, base: Path):
    model = random_adapters(sg.models.from_safetensors(base), rank=2)
    sg.models.to_peft(model, tmp_path / "one", base)
    config = json.loads((tmp_path / "one" / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "one" / "adapter_model.safetensors")
    path = "model.layers.1.mlp.up_proj"
    for part, shape in (("A", (3, 64)), ("B", (176, 3))):
        tensors[f"base_model.model.{path}.lora_{part}.weight"] = np.full(shape, 0.5, np.float32)
    config |= {"rank_pattern": {"1.mlp.up_proj": 3}, "alpha_pattern": {".*down_proj": 5.5}}
    save_file(tensors, tmp_path / "one" / "adapter_model.safetensors", {"format": "pt"})
    (tmp_path / "one" / "adapter_config.json").write_text(json.dumps(config))
    again = sg.models.from_peft(tmp_path / "one")
    layers = dict(again.named_modules())
    assert (layers[path].rank, layers[path].alpha) == (3, 2)
    down = layers["model.layers.0.mlp.down_proj"]
    assert (down.rank, down.alpha, down.scaling) == (2, 5.5, 2.75)
    exported = sg.models.export(tmp_path / "one", tmp_path / "two")
    told = json.loads((exported / "adapter_config.json").read_text())
    assert told["rank_pattern"] == {path: 3}
    assert sorted(told["alpha_pattern"].values()) == [5.5, 5.5]
    np.testing.assert_array_equal(logits(sg.models.from_peft(exported)), logits(again))


def test_a_layer_whose_name_others_have_is_named_by_its_whole_path(tmp_path: Path, base: Path):
    model = random_adapters(sg.models.from_safetensors(base), rank=2, target=["layers.1.mlp.up_proj", "q_proj"])
    sg.models.to_peft(model, tmp_path / "adapters", base)
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.1.mlp.up_proj", "q_proj"]


def test_a_given_model_takes_the_adapters_of_a_folder(tmp_path: Path, base: Path):
    model = random_adapters(sg.models.from_safetensors(base), rank=2)
    sg.models.to_peft(model, tmp_path / "adapters", "nowhere")
    own = sg.models.from_safetensors(base).train()
    assert sg.models.from_peft(tmp_path / "adapters", own) is own
    assert not own.training
    assert {name for name, p in own.named_parameters() if p.requires_grad} == set(sg.nn.lora_state_dict(own))
    np.testing.assert_array_equal(logits(own), logits(model))
    with pytest.raises(ArgumentError, match="names the base 'nowhere', which is not here"):
        sg.models.from_peft(tmp_path / "adapters")
    with pytest.raises(ArgumentError, match="got a model that has adapters"):
        sg.models.from_peft(tmp_path / "adapters", own)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"peft_type": "IA3"}, "has peft_type 'IA3'; wanted plain LoRA"),
        ({"use_dora": True}, "has use_dora True"),
        ({"bias": "lora_only"}, "has bias 'lora_only'"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save"),
        ({"init_lora_weights": "pissa"}, "has init_lora_weights 'pissa'"),
        ({"trainable_token_indices": [1]}, "has trainable_token_indices"),
        ({"r": 3}, "gives other ranks than"),
        ({"r": "many"}, "that is no number"),
        ({"rank_pattern": {"(": 2}}, "got the pattern"),
    ],
    ids=str,
)
def test_adapters_that_compute_something_else_are_refused(
    changes: dict[str, Any], said: str, tmp_path: Path, base: Path
):
    model = random_adapters(sg.models.from_safetensors(base), rank=2)
    sg.models.to_peft(model, tmp_path / "adapters", base)
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    (tmp_path / "adapters" / "adapter_config.json").write_text(json.dumps(config | changes))
    own = sg.models.from_safetensors(base)
    for refused in (lambda: sg.models.from_peft(tmp_path / "adapters", own),
                    lambda: sg.models.export(tmp_path / "adapters", tmp_path / "merged", merge=True)):  # fmt: skip
        with pytest.raises(CheckpointError, match="peft: ") as caught:
            refused()
        assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not sg.nn.lora_state_dict(own)


@pytest.mark.parametrize(
    ("rename", "said"),
    [
        ({"lora_A.weight": "lora_magnitude_vector.weight"}, "wanted weights lora_A and lora_B alone"),
        ({"base_model.model.model.layers.1.mlp.up_proj.lora_A.weight": None}, "has none and"),
        ({"model.layers.1.mlp": "model.layers.7.mlp"}, "layers.7.mlp"),
        ({"": None}, "holds no adapters"),
    ],
    ids=str,
)
def test_other_tensors_than_adapters_of_the_base_are_refused(
    rename: dict[str, Any], said: str, tmp_path: Path, base: Path
):
    model = random_adapters(sg.models.from_safetensors(base), rank=2)
    sg.models.to_peft(model, tmp_path / "adapters", base)
    file = tmp_path / "adapters" / "adapter_model.safetensors"
    ((old, new),) = rename.items()
    tensors = load_file(file)
    kept = {n if new is None else n.replace(old, new): t for n, t in tensors.items() if new is not None or old not in n}
    save_file(kept, file, {"format": "pt"})
    for refused in (lambda: sg.models.from_peft(tmp_path / "adapters"),
                    lambda: sg.models.export(tmp_path / "adapters", tmp_path / "merged", merge=True)):  # fmt: skip
        with pytest.raises(SpillgradError) as caught:
            refused()
        assert said in str(caught.value)


def test_the_base_must_be_the_one_that_the_run_trained_beside(tmp_path: Path, base: Path, run: Path):
    wanted = logits(sg.models.from_peft(sg.models.export(run, tmp_path / "adapters")))
    base.rename(tmp_path / "moved")
    with pytest.raises(MissingFileError, match="are not there; name where these are"):
        sg.models.export(run, tmp_path / "adapters")
    exported = sg.models.export(run, tmp_path / "adapters", weights=tmp_path / "moved")
    np.testing.assert_array_equal(logits(sg.models.from_peft(exported)), wanted)
    shutil.copytree(tmp_path / "moved", tmp_path / "other")
    file = tmp_path / "other" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="holds adapters of other weights than those at"):
        sg.models.export(run, tmp_path / "merged", weights=tmp_path / "other", merge=True)


def test_a_base_that_another_run_saved_is_found_in_its_folder(tmp_path: Path):
    train(tmp_path / "first", lora=None)
    model = train(tmp_path / "second", weights=str(tmp_path / "first")).model
    exported = sg.models.export(tmp_path / "second", tmp_path / "adapters")
    config = json.loads((exported / "adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"]).parent == tmp_path / "first"
    np.testing.assert_array_equal(logits(sg.models.from_peft(exported)), logits(model))


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path, run: Path):
    (file,) = run.glob("step-*/model.safetensors")
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="is damaged"):
        sg.models.export(run, tmp_path / "merged", merge=True)


def test_the_files_of_the_tokenizer_go_along(tmp_path: Path, base: Path):
    names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "generation_config.json"]
    for name in (*names, "README.md"):
        (base / name).write_text(f'{{"of": "{name}"}}')
    run = tmp_path / "run"
    train(run, weights=str(base), tokenizer=str(base / "tokenizer.json"))
    sg.models.to_peft(random_adapters(sg.models.from_safetensors(base), rank=2), tmp_path / "adapters", base)
    for path in (run, tmp_path / "adapters", run):
        merged = sg.models.export(path, tmp_path / "merged", merge=True)
        assert sorted(path.name for path in merged.iterdir()) == sorted([*names, "config.json", "model.safetensors"])
        assert all((merged / name).read_text() == (base / name).read_text() for name in names)
    base.rename(tmp_path / "moved")
    exported = sg.models.export(run, tmp_path / "merged", merge=True, weights=tmp_path / "moved")
    assert (exported / "tokenizer.json").is_file()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match="has no file of a tokenizer"):
        sg.models.export(run, exported, merge=True, weights=tmp_path / "moved", tokenizer=tmp_path / "empty")


def test_a_run_on_bytes_takes_no_tokenizer_along_and_a_lost_one_is_a_warning(tmp_path: Path, base: Path, run: Path):
    (base / "tokenizer.json").write_text("{}")
    merged = sg.models.export(run, tmp_path / "merged", merge=True)
    assert not (merged / "tokenizer.json").exists()
    train(run, weights=str(base), tokenizer=str(tmp_path / "lost"))
    with pytest.warns(UserWarning, match="the tokenizer of .* is not in .*lost; none goes along"):
        sg.models.export(run, tmp_path / "merged", merge=True)


def test_a_large_model_is_in_several_files(tmp_path: Path, base: Path):
    exported = sg.models.export(base, tmp_path / "exported", max_shard_size="100KB")
    index = json.loads((exported / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    np.testing.assert_array_equal(
        logits(sg.models.from_safetensors(exported)), logits(sg.models.from_safetensors(base))
    )
    again = sg.models.export(exported, tmp_path / "again")
    assert (again / "model.safetensors").is_file()


@pytest.mark.parametrize("is_quantized", [False, True], ids=["float32", "nf4"])
@pytest.mark.parametrize("place", ["merged", "merged.gguf"])
def test_an_export_needs_memory_for_few_tensors(place: str, is_quantized: bool, tmp_path: Path):
    config = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 12, "vocab_size": 256}
    model, options = sg.models.build("llama-tiny", **config), {}
    if is_quantized:
        sg.save_checkpoint(tmp_path / "whole", model)
        options = {"weights": sg.models.quantize(tmp_path / "whole", "nf4", tmp_path / "small")}
        model = sg.models.from_safetensors(options["weights"])
    sg.save_checkpoint(tmp_path / "run", random_adapters(model, rank=4), trainable_only=is_quantized)
    largest_bytes = 256 * 1024 * 4
    del model
    sg.models.export(tmp_path / "run", tmp_path / place, merge=True, **options)  # imports, and warms up
    tracemalloc.start()
    try:
        sg.models.export(tmp_path / "run", tmp_path / place, merge=True, **options)
        assert tracemalloc.get_traced_memory()[1] < 6 * largest_bytes  # of 48
    finally:
        tracemalloc.stop()


def test_an_export_replaces_exports_alone(tmp_path: Path, base: Path, run: Path):
    place = tmp_path / "place"
    for options in ({}, {"merge": True}, {}):
        sg.models.export(run, place, **options)
    names = {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in place.iterdir()} == names
    shutil.copytree(base, tmp_path / "other")
    with pytest.raises(ArgumentError, match="no export wrote it; name another place, or give overwrite"):
        sg.models.export(run, tmp_path / "other")
    (tmp_path / "other" / "notes").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ArgumentError, match="holds notes, which no export writes"):
            sg.models.export(run, tmp_path / "other", overwrite=overwrite)
    (tmp_path / "other" / "notes").unlink()
    sg.models.export(run, tmp_path / "other", overwrite=True)
    assert {path.name for path in (tmp_path / "other").iterdir()} == names
    for other in (run, base, tmp_path):
        with pytest.raises(ArgumentError, match=r"which the export reads|which no export writes"):
            sg.models.export(run, other, overwrite=True)
    (tmp_path / "a.gguf").write_bytes(b"GGUF of another")
    with pytest.raises(ArgumentError, match="no export wrote it"):
        sg.models.export(run, tmp_path / "a.gguf")
    for _ in range(2):
        sg.models.export(run, tmp_path / "a.gguf", overwrite=True)
    sg.models.export(run, tmp_path / "a.gguf")
    assert sorted(os.listdir(tmp_path)) == ["a.gguf", "base", "other", "place", "run"]


def test_a_place_behind_a_link_is_replaced_and_the_link_stays(tmp_path: Path, run: Path):
    (tmp_path / "link").symlink_to("place")
    for _ in range(2):
        sg.models.export(run, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "place" / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "onnx"}, "got format 'onnx'; known are safetensors, peft, gguf"),
        ({"dtype": "int4"}, "got dtype 'int4'; known are float32"),
        ({"dtype": "q8_0"}, "got dtype q8_0, which files of the format gguf alone have"),
        ({"merge": True, "format": "peft"}, "got merge and the format peft"),
        ({"format": "gguf"}, "wanted the name of a file *.gguf"),
        ({"to": "a.gguf", "format": "peft"}, "wanted the name of a folder"),
        ({"max_shard_size": 0}, "it must be at least one byte"),
        ({"to": "none/place"}, "none is no folder"),
        ({"path": "base", "merge": True}, "has no adapters"),
        ({"path": "base", "weights": "base"}, "holds no adapters, so it needs no other weights"),
        ({"path": "none"}, "does not exist"),
        ({"to": "file"}, "is a file; name a folder"),
        ({"weights": "none"}, "does not exist"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises((ArgumentError, CheckpointError)) as caught:
        sg.models.export(**{"path": "run", "to": "place", **options})
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["base", "file", "run"]


def test_what_no_library_knows_is_not_exported(tmp_path: Path):
    sg.save_checkpoint(tmp_path / "run", sg.nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match="holds a 'Linear', which Hugging Face's libraries do not know"):
        sg.models.export(tmp_path / "run", tmp_path / "exported")
    with pytest.raises(ArgumentError, match="Linear has no adapters"):
        sg.models.to_peft(sg.nn.Linear(2, 2), tmp_path / "adapters", "base")


def test_weights_that_are_quantized_in_another_way_are_refused(tmp_path: Path, base: Path):
    config = json.loads((base / "config.json").read_text()) | {"quantization_config": {"quant_method": "gptq"}}
    (base / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"are quantized .* in a way that is not read; name those that are not"):
        sg.models.export(base, tmp_path / "exported")


def test_a_checkpoint_of_a_quantized_model_says_what_to_save(tmp_path: Path):
    model = sg.nn.quantize(sg.models.build("llama-tiny").requires_grad_(False), "nf4")
    sg.save_checkpoint(tmp_path / "run", sg.nn.lora(model, rank=2))
    for use in (lambda: sg.models.export(tmp_path / "run", tmp_path / "place", merge=True),
                lambda: sg.models.from_pretrained(tmp_path / "run")):  # fmt: skip
        with pytest.raises(CheckpointError, match=r"holds a quantized model, .* with trainable_only") as caught:
            use()
        assert "\n" not in str(caught.value)


def make_quantizable(folder: Path, name: str) -> None:
    """Make a base; of "short names", GPT-2's weights leave out the name of the inner model, as in the first files."""
    folder.mkdir()
    make_base(folder, "tiny" if name == "short names" else name)
    if name == "short names":
        file = folder / "model.safetensors"
        arrays = load_file(file)
        save_file({key.removeprefix("transformer."): array for key, array in arrays.items()}, file)


def floats_of(folder: Path, adapters: bool = False) -> dict[str, bytes]:
    """Return the weights that a quantized folder stands for, of the model in RAM."""
    model = sg.models.from_safetensors(folder)
    if adapters:
        random_adapters(model, rank=2)
    sg.nn.dequantize(model)
    if adapters:
        sg.nn.merge_lora(model)
    return {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("name", ["llama-tiny", "tiny", "short names"])
@pytest.mark.parametrize("to", ["nf4", "int8"])
@pytest.mark.parametrize("embeddings", [False, True], ids=["linear layers", "tables too"])
def test_quantized_weights_are_exported_as_the_numbers_that_they_stand_for(
    tmp_path: Path, name: str, to: str, embeddings: bool
):
    make_quantizable(tmp_path / "base", name)
    small = sg.models.quantize(tmp_path / "base", to, tmp_path / "small", embeddings=embeddings)
    exported = sg.models.export(small, tmp_path / "exported", dtype="float32")
    model = sg.models.from_safetensors(exported)
    found = {key: tensor.numpy().tobytes() for key, tensor in model.state_dict().items()}
    assert found == floats_of(small)
    config = json.loads((exported / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["torch_dtype"] == "float32"
    assert {array.dtype.name for array in load_file(exported / "model.safetensors").values()} == {"float32"}


@pytest.mark.parametrize("name", ["llama-tiny", "tiny", "short names"])
@pytest.mark.parametrize("to", ["nf4", "int8"])
def test_adapters_of_a_quantized_base_are_merged_into_its_numbers(tmp_path: Path, name: str, to: str):
    make_quantizable(tmp_path / "base", name)
    small = sg.models.quantize(tmp_path / "base", to, tmp_path / "small")
    model = random_adapters(sg.models.from_safetensors(small), rank=2)
    version = sg.save_checkpoint(tmp_path / "run", model, trainable_only=True)
    assert all("lora_" in key for key in load_file(version / "model.safetensors"))
    merged = sg.models.export(tmp_path / "run", tmp_path / "merged", merge=True, weights=small)
    found = sg.models.from_safetensors(merged).state_dict()
    wanted = floats_of(small, adapters=True)
    for key, tensor in found.items():
        exact = np.frombuffer(wanted[key], np.float32).reshape(tensor.shape)
        np.testing.assert_allclose(tensor.numpy(), exact, rtol=1e-5, atol=1e-5, err_msg=key)
    np.testing.assert_allclose(
        logits(sg.models.from_safetensors(merged)), logits(model), rtol=1e-3, atol=1e-3 * np.abs(logits(model)).max()
    )
    adapters = sg.models.to_peft(model, tmp_path / "adapters", small)
    again = sg.models.export(adapters, tmp_path / "again", merge=True, dtype="bfloat16")
    arrays, exact = load_file(again / "model.safetensors"), load_file(merged / "model.safetensors")
    assert {key: array.astype(ml_dtypes.bfloat16).tobytes() for key, array in exact.items()} == {
        key: array.tobytes() for key, array in arrays.items()
    }


def test_the_numbers_of_quantized_weights_are_of_the_dtype_that_the_config_says(tmp_path: Path, base: Path):
    half = sg.models.export(base, tmp_path / "half", dtype="bfloat16")
    small = sg.models.quantize(half, "nf4", tmp_path / "small")
    exported = sg.models.export(small, tmp_path / "exported")
    assert {array.dtype.name for array in load_file(exported / "model.safetensors").values()} == {"bfloat16"}


def test_parameters_trained_beside_adapters_are_merged_and_not_adapters(tmp_path: Path, base: Path):
    model = random_adapters(sg.models.from_safetensors(base), rank=2)
    model.model.norm.weight.requires_grad_(True)
    model.model.norm.weight.data.fill_(1.25)
    sg.save_checkpoint(tmp_path / "run", model, trainable_only=True)
    with pytest.raises(ArgumentError, match="does not say of which weights"):
        sg.models.export(tmp_path / "run", tmp_path / "merged", merge=True)
    merged = sg.models.export(tmp_path / "run", tmp_path / "merged", merge=True, weights=base)
    np.testing.assert_allclose(logits(sg.models.from_safetensors(merged)), logits(model), rtol=1e-4, atol=1e-4)
    with pytest.raises(CheckpointError, match=r"also has trained model.norm.weight; peft's files hold adapters alone"):
        sg.models.export(tmp_path / "run", tmp_path / "adapters", weights=base)
