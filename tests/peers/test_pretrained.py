"""Models with weights in Hugging Face's layout compute what plain PyTorch computes from the same file.

PyTorch's numbers are in `records/pretrained.json`, which `pretrained.py` writes and, where PyTorch is installed, is
compared with it; where `transformers` is too, Hugging Face's own classes are asked as well.
"""

import json
import subprocess

import numpy as np
import pytest

import spillgrad as sg
from tests.peers import peer, pretrained

WANTED = json.loads(pretrained.RECORD.read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models") / "all"
    pretrained.write(made)
    return made


def assert_close(got, wanted):
    """Logits within 1e-4, gradients within 1e-3 of the largest element of each."""
    np.testing.assert_allclose(got["logits"], wanted["logits"], rtol=0, atol=1e-4)
    assert got["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert got["gradients"].keys() == wanted["gradients"].keys()
    for name, gradient in wanted["gradients"].items():
        np.testing.assert_allclose(got["gradients"][name], gradient, rtol=0, atol=1e-3 * np.abs(gradient).max())


def ours(model):
    logits = model(pretrained.IDX)[0]
    _, loss = model(pretrained.IDX, pretrained.TARGETS)
    loss.backward()
    gradients = {name: parameter.grad.tolist() for name, parameter in model.named_parameters()}
    return {"logits": logits.tolist(), "loss": loss.item(), "gradients": gradients}


def module_of(name):
    return sg.models.gpt if name == "gpt2" else sg.models.decoder


@pytest.mark.parametrize("name", pretrained.MODELS)
def test_logits_and_gradients_are_pytorchs(name, folder):
    assert_close(ours(module_of(name).from_safetensors(folder / name)), WANTED[name])


def test_the_record_is_of_weights_that_matter():
    for name, wanted in WANTED.items():
        assert all(np.abs(gradient).max() > 1e-4 for gradient in wanted["gradients"].values()), name


def printed(verb, folder):
    done = subprocess.run(
        [peer.python("torch"), "-m", "tests.peers.pretrained", verb, str(folder)],
        cwd=peer.ROOT, capture_output=True, text=True,
    )  # fmt: skip
    if "No module named 'transformers'" in done.stderr:
        pytest.skip("transformers is not installed beside PyTorch")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_record_is_pytorchs(folder):
    found = printed("run", folder)
    assert found.keys() == WANTED.keys()
    for name, got in found.items():
        assert_close(got, WANTED[name])


def test_the_record_is_hugging_faces(folder):
    for name, got in printed("transformers", folder).items():
        assert_close(got, WANTED[name])


@pytest.mark.parametrize("size", ["5GB", 1000])
def test_hugging_faces_loader_finds_what_save_checkpoint_writes(folder, tmp_path, size):
    (tmp_path / "written").mkdir()
    for name in pretrained.MODELS:
        model = module_of(name).from_safetensors(folder / name)
        where = sg.save_checkpoint(tmp_path / name, model, max_shard_size=size)
        where.rename(tmp_path / "written" / name)
    for name, got in printed("transformers", tmp_path / "written").items():
        assert_close(got, WANTED[name])
