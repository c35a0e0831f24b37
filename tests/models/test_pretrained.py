"""Models from safetensors files: what paths, names and configs are understood, and what is refused."""

import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spillgrad as sg
from spillgrad.errors import CheckpointError, MissingFileError
from spillgrad.models import GPT, GPTConfig, Llama, LlamaConfig, decoder, gpt
from tests.crafted import altered

CONFIG = GPTConfig(vocab_size=11, context=6, n_layer=2, n_head=2, n_embd=8, layer_norm_epsilon=1e-4)
LLAMA = LlamaConfig(
    vocab_size=11, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=6,
)  # fmt: skip


@pytest.fixture
def model():
    sg.manual_seed(0)
    return GPT(CONFIG)


def arrays(model):
    return {name: np.array(tensor.numpy()) for name, tensor in model.named_parameters()}


def same(model, other):
    mine, its = (m.state_dict() for m in (model, other))
    return mine.keys() == its.keys() and all(mine[name].tolist() == its[name].tolist() for name in mine)


@pytest.mark.parametrize("kind", ["folder", "text", "file", "index", "shards", "root", "other name"])
def test_a_file_an_index_a_folder_and_a_checkpoint_are_paths(model, tmp_path, kind):
    where = sg.save_checkpoint(tmp_path, model, max_shard_size=600 if kind in ("index", "shards") else "5GB")
    path = {
        "text": str(where), "file": where / "model.safetensors", "index": where / "model.safetensors.index.json",
        "root": tmp_path,
    }.get(kind, where)  # fmt: skip
    if kind == "other name":
        (where / "model.safetensors").rename(where / "weights.safetensors")
        (where / "optimizer.safetensors").unlink(missing_ok=True)
    found = gpt.from_safetensors(path)
    assert found.config == CONFIG
    assert same(found, model)
    assert found.lm_head.weight is found.transformer.wte.weight
    assert not found.training


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_masks_prefixes_and_a_copied_head_are_understood(model, tmp_path, prefix):
    content = {name.replace("transformer.", prefix): array for name, array in arrays(model).items()}
    for layer in range(2):
        content[f"{prefix}h.{layer}.attn.bias"] = np.tril(np.ones((1, 1, 6, 6), np.uint8))
        content[f"{prefix}h.{layer}.attn.masked_bias"] = np.array(-1e4, np.float32)
    content["lm_head.weight"] = content[f"{prefix}wte.weight"].copy()
    save_file(content, tmp_path / "model.safetensors")
    assert same(gpt.from_safetensors(tmp_path, CONFIG), model)


def test_without_a_config_it_is_inferred_from_the_shapes(tmp_path):
    made = GPT(GPTConfig(vocab_size=7, context=5, n_layer=3, n_head=2, n_embd=128))
    save_file(arrays(made), tmp_path / "model.safetensors")
    found = gpt.from_safetensors(tmp_path / "model.safetensors")
    assert found.config == made.config
    assert same(found, made)


def test_weights_may_go_into_a_model_that_is_there(model, tmp_path):
    sg.save_checkpoint(tmp_path, model)
    other = GPT(CONFIG)
    assert gpt.from_safetensors(tmp_path, model=other) is other
    assert same(other, model)


def test_no_random_number_is_drawn_for_weights_that_are_read(model, tmp_path):
    sg.save_checkpoint(tmp_path, model)
    before = sg.get_rng_state()
    gpt.from_safetensors(tmp_path)
    assert sg.get_rng_state() == before
    assert GPT(CONFIG).transformer.wte.weight.std().item() > 0.01


@pytest.mark.parametrize("stored", ["float16", "bfloat16", "float64"])
def test_weights_of_another_precision_are_converted(model, tmp_path, stored):
    rounded = GPT(CONFIG)
    rounded.load_state_dict(model.to(stored).state_dict())
    sg.save_checkpoint(tmp_path, model)
    found = gpt.from_safetensors(tmp_path)
    assert str(found.lm_head.weight.dtype) == "float32"
    assert same(found, rounded)


@pytest.mark.parametrize("tied", [True, False])
def test_a_llama_comes_back(tmp_path, tied):
    made = Llama(LlamaConfig(**{**vars(LLAMA), "tie_word_embeddings": tied, "num_key_value_heads": 1}))
    where = sg.save_checkpoint(tmp_path, made)
    found = Llama.from_safetensors(where)
    assert same(found, made)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
    content = load_file(where / "model.safetensors")
    content["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, np.float32)
    if tied:
        content["lm_head.weight"] = content["model.embed_tokens.weight"]
    save_file({name.removeprefix("model."): array for name, array in content.items()}, tmp_path / "old.safetensors")
    assert same(decoder.from_safetensors(tmp_path / "old.safetensors", made.config), made)


def test_the_config_beside_weights_says_which_kind_of_model_they_are(model, tmp_path):
    made = Llama(LLAMA)
    for name, each in {"gpt": model, "llama": made}.items():
        sg.save_checkpoint(tmp_path / name, each)
        found = sg.models.from_safetensors(tmp_path / name)
        assert type(found) is type(each)
        assert sg.models.config_of(tmp_path / name) == found.config
        assert same(found, each)
    bare = GPT(GPTConfig(vocab_size=7, context=5, n_layer=1, n_head=1, n_embd=64))
    (tmp_path / "alone").mkdir()
    save_file(arrays(bare), tmp_path / "alone" / "model.safetensors")
    assert same(sg.models.from_safetensors(tmp_path / "alone"), bare)
    assert sg.models.config_of(tmp_path / "alone") == bare.config
    with pytest.raises(CheckpointError, match=r"model_type 'bert' \(accepted: 'gpt2', 'llama', 'mistral', "):
        sg.models.from_safetensors(_saved(tmp_path / "alone", arrays(bare), model_type="bert"))


def _missing(path, content):
    return path / "nowhere"


def _empty_folder(path, content):
    return path


def _pickle(path, content):
    (path / "model.safetensors").write_bytes(b"PK\x03\x04 and more")
    return path


def _cut(path, content):
    save_file(content, path / "model.safetensors")
    os.truncate(path / "model.safetensors", 500)
    return path


def _another_head(path, content):
    content["lm_head.weight"] = content["transformer.wte.weight"] + 1
    return _saved(path, content)


def _no_model(path, content):
    save_file({"a": np.zeros(2)}, path / "model.safetensors")
    return path


def _narrow(path, content):
    save_file(content, path / "model.safetensors")
    return path


def _another_type(path, content):
    return _saved(path, content, model_type="bert")


def _untied(path, content):
    return _saved(path, content, tie_word_embeddings=False)


def _several_dropouts(path, content):
    return _saved(path, content, attn_pdrop=0.5)


def _several(path, content):
    for name in "ab":
        save_file(content, path / f"{name}.safetensors")
    return path


def _lacking(path, content):
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    save_file(content, path / "part.safetensors")
    return path


def _saved(path, content, **changes):
    save_file(content, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({**CONFIG.to_hugging_face(), **changes}))
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_missing, "does not exist"),
        (_empty_folder, "wanted model.safetensors or model.safetensors.index.json"),
        (_several, "2 .safetensors files"),
        (_pickle, "pickle"),
        (_cut, "is damaged"),
        (_lacking, r"lack tensors it names: a \(part.safetensors\)"),
        (_another_head, "lm_head.weight is not transformer.wte.weight"),
        (_no_model, "holds no GPT-2"),
        (_narrow, "width of 8 is no multiple of 64"),
        (_another_type, r"model_type 'bert' \(accepted: 'gpt2'\)"),
        (_untied, "tie_word_embeddings False"),
        (_several_dropouts, "0.0, 0.5"),
    ],
)
def test_what_is_no_gpt_is_refused(model, tmp_path, make, says):
    path = make(tmp_path, arrays(model))
    with pytest.raises(CheckpointError, match=says) as caught:
        gpt.from_safetensors(path)
    assert isinstance(caught.value, MissingFileError) == (make is _missing)
    assert "\n" not in str(caught.value)


def test_everything_that_differs_is_listed_and_nothing_changes(model, tmp_path):
    content = arrays(model)
    del content["transformer.ln_f.bias"], content["transformer.h.1.mlp.c_fc.weight"]
    content |= {"transformer.wpe.weight": np.zeros((7, 8), np.float32), "transformer.more": np.zeros(1, np.float32)}
    _saved(tmp_path, content)
    other = GPT(CONFIG)
    before = arrays(other)
    with pytest.raises(CheckpointError) as caught:
        gpt.from_safetensors(tmp_path, model=other)
    for words in ("transformer.ln_f.bias", "transformer.h.1.mlp.c_fc.weight", "transformer.more", "(7, 8)", "(6, 8)"):
        assert words in str(caught.value)
    assert all((array == before[name]).all() for name, array in arrays(other).items())


def test_a_llama_without_a_config_asks_for_one(tmp_path):
    save_file(arrays(Llama(LLAMA)), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="give a config"):
        decoder.from_safetensors(tmp_path)


MEMORY = """
import sys
import psutil
import spillgrad as sg
from spillgrad.models import GPT, GPTConfig

def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

config = GPTConfig(vocab_size=12000, context=64, n_layer=12, n_head=16, n_embd=1024)
if sys.argv[2] == "write":
    sg.save_checkpoint(sys.argv[1], GPT(config))
else:
    before_bytes = psutil.Process().memory_info().rss
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    model = sg.models.gpt.from_safetensors(sys.argv[1])
    own_bytes = sum(parameter.nbytes for parameter in model.parameters())
    largest_bytes = max(parameter.nbytes for parameter in model.parameters())
    print((peak_bytes() - before_bytes - own_bytes - largest_bytes) / 2**20)
"""


def test_reading_a_model_needs_memory_for_one_tensor_beside_its_own(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for verb in ("write", "read"):
        ended = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path), verb], env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 32


KEEP_SAVING = """
import itertools, sys
import spillgrad as sg
# Heads that are not as wide as they are taken to be where no config.json says so.
model = sg.models.GPT(sg.models.GPTConfig(vocab_size=11, context=6, n_layer=2, n_head=4, n_embd=64))
for step in itertools.count():
    for parameter in model.parameters():
        parameter.data.fill_(step)
    sg.save_checkpoint(sys.argv[1], model, step=step)
    if step == 1:
        print("saving", flush=True)
"""


def test_weights_beside_saves_of_another_process_are_those_of_one_save(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KEEP_SAVING, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "saving\n"
            steps = []
            for _ in range(100):
                found = sg.models.from_safetensors(tmp_path)
                assert found.config.n_head == sg.models.config_of(tmp_path).n_head == 4
                (step,) = {value for parameter in found.parameters() for value in parameter.numpy().ravel().tolist()}
                steps.append(step)
        finally:
            process.kill()
    assert steps == sorted(steps)
    assert len(set(steps)) > 1


@pytest.mark.parametrize("config", [CONFIG, LLAMA])
def test_a_description_altered_anywhere_is_refused_or_still_one(tmp_path, config):
    version = sg.save_checkpoint(tmp_path / "saved", sg.models.build(config))
    shutil.copy(version / "model.safetensors", tmp_path)
    whole = json.loads((version / "config.json").read_text())
    rng, outcomes = random.Random(0), set()
    for _ in range(200):
        (tmp_path / "config.json").write_text(json.dumps(altered(whole, rng)))
        try:
            sg.models.from_safetensors(tmp_path)
            outcomes.add("loaded")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}
