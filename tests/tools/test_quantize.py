"""`spillgrad quantize`: folders of quantized models, written, read, trained and refused; what a kill leaves."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import spillgrad as sg
from spillgrad_tools.cli import main

FORMATS = ("nf4", "int8")


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _base(folder: Path, name: str = "llama-tiny", **sizes: Any) -> Path:
    """Write a model as a folder like Hugging Face's."""
    sg.manual_seed(0)
    sg.save_checkpoint(folder / "run", sg.models.build(name, **sizes))
    return sg.models.export(folder / "run", folder / "base")


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", ["llama-tiny", "tiny"])
def test_a_folder_holds_what_quantizing_the_model_gives(
    name: str, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = _base(tmp_path, name)
    assert main(["quantize", str(base), "--to", to, "--out", str(tmp_path / "small")]) == 0
    assert capsys.readouterr().out.endswith("small: config.json, model.safetensors.\n")
    found = sg.models.from_pretrained(tmp_path / "small").state_dict()
    wanted = sg.nn.quantize(sg.models.from_pretrained(base).requires_grad_(False), to).state_dict()
    assert list(found) == list(wanted)
    assert all((found[key] == value).all() for key, value in wanted.items())
    named = sg.models.describe(tmp_path / "small")
    assert named.weight_bytes < sg.models.describe(base).weight_bytes / 2


def test_a_sharded_folder_is_read_like_one_file(tmp_path: Path) -> None:
    base = _base(tmp_path)
    one = sg.models.quantize(base, "nf4", tmp_path / "one")
    several = sg.models.quantize(base, "nf4", tmp_path / "several", max_shard_size="40KiB", embeddings=True)
    assert len(list(several.glob("*.safetensors"))) > 1
    state = sg.models.from_safetensors(several).state_dict()
    assert all((state[key] == value).all() for key, value in sg.models.from_safetensors(one).state_dict().items())


def test_generate_and_train_take_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    sg.models.quantize(_base(tmp_path), "nf4", "small")
    Path("text").write_text("to be or not to be " * 200)
    assert main(["generate", "--weights", "small", "--prompt", "to be", "--max-tokens", "3"]) == 0
    train = ["train", "--weights", "small", "--data", "text", "--steps", "3", "--context", "32", "--batch", "2"]
    assert main([*train, "--lora", "2", "--out", "adapters"]) == 0
    assert main(["generate", "--weights", "adapters", "--prompt", "to be", "--max-tokens", "3"]) == 0
    assert main(["export", "adapters", "--to", "merged", "--merge"]) == 0
    assert main(["generate", "--weights", "merged", "--prompt", "to be", "--max-tokens", "3"]) == 0
    capsys.readouterr()
    assert main([*train, "--out", "whole"]) == 2
    assert "train adapters beside them with --lora" in capsys.readouterr().err


_ALL = [f"--skip={each}_proj" for each in ("q", "k", "v", "o", "gate", "up", "down")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--to", "nf4", "--out", "place"], "nowhere does not exist"),
        (["base", "--to", "nf5", "--out", "place"], "'nf5' is not one of 'nf4', 'int8'"),
        (["base", "--out", "place"], "Missing option '--to'"),
        (["base", "--to", "nf4", "--out", "base"], "name another place"),
        (["base", "--to", "nf4", "--out", "other"], "holds notes"),
        (["small", "--to", "int8", "--out", "place"], "are quantized already"),
        (["adapters", "--to", "int8", "--out", "place"], "merge them first"),
        (["base", "--to", "int8", "--out", "place", *_ALL], "name fewer"),
        (["base", "--to", "int8", "--out", "place", "--skip", "up_prof"], "'up_prof'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    sg.models.quantize(_base(tmp_path), "nf4", "small")
    sg.save_checkpoint("adapters", sg.nn.lora(sg.models.build("llama-tiny"), rank=2))
    Path("other").mkdir()
    Path("other/notes").touch()
    before = _content(tmp_path)
    assert main(["quantize", *arguments]) == 2
    found = capsys.readouterr()
    assert found.out == "" and found.err.count("\n") == 1 and said in found.err
    assert _content(tmp_path) == before


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)

    return apply


def _state(**entries: Any) -> Callable[[Path], None]:
    def change(tensors: dict[str, Any]) -> None:
        name = next(name for name in tensors if name.endswith("bitsandbytes__nf4"))
        state = json.loads(bytes(tensors[name])) | entries
        tensors[name] = np.frombuffer(json.dumps(state).encode(), np.uint8)

    return _changed(change)


_UP = "model.layers.0.mlp.up_proj.weight"
DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "codes of another size": (_changed(lambda t: t.update({_UP: t[_UP][:-1]})), "use another copy"),
    "no scales": (_changed(lambda t: t.pop(f"{_UP}.absmax")), "got nothing"),
    "no state": (_changed(lambda t: t.pop(f"{_UP}.quant_state.bitsandbytes__nf4")), "of no format that is read"),
    "other levels": (_changed(lambda t: t.update({f"{_UP}.quant_map": -t[f"{_UP}.quant_map"]})), "other numbers"),
    "fp4": (_state(quant_type="fp4"), "wanted a matrix as nf4"),
    "other blocks": (_state(blocksize=128), "in blocks of 128"),
    "a vector": (_state(shape=[4096]), "wanted a matrix"),
    "another matrix": (_state(shape=[64, 32]), "use another copy"),
    "a mean that is none": (_state(nested_offset="x"), "is damaged"),
    "another model": (
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace('"intermediate_size": 176', '"intermediate_size": 128')
        ) and None,
        "and the model's has",
    ),
    "a truncated file": (
        lambda folder: os.truncate(folder / "model.safetensors", 50_000), "model.safetensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders_are_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    place = sg.models.quantize(_base(tmp_path), "nf4", tmp_path / "small")
    change, message = DAMAGE[damage]
    change(place)
    with pytest.raises(sg.errors.CheckpointError, match=message) as caught:
        sg.models.from_pretrained(place)
    assert "\n" not in str(caught.value)


KILLED = """
import os, signal, time
from spillgrad.files import safetensors_io
from spillgrad_tools.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
write = safetensors_io.write_ranges
def part_of(folder, ranges):
    write(folder, ranges[: len(ranges) // 2])
    os.kill(os.getpid(), signal.{signal})
    time.sleep(60)  # another thread may receive it
safetensors_io.write_ranges = part_of
print(main(["quantize", "base", "--to", "nf4", "--out", "small"]))
"""


@pytest.mark.parametrize(("sent", "status"), [("SIGKILL", -9), ("SIGINT", 0)])
def test_a_kill_in_the_middle_leaves_what_was_there(sent: str, status: int, tmp_path: Path) -> None:
    base = _base(tmp_path)
    sg.models.quantize(base, "int8", tmp_path / "small")
    before = _content(tmp_path / "small")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", KILLED.format(signal=sent)]
    ended = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == status, ended.stderr
    if sent == "SIGINT":
        assert ended.stdout == "Interrupted; nothing is half written.\n130\n"
    assert _content(tmp_path / "small") == before
    sg.models.quantize(base, "nf4", tmp_path / "small")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "run", "small"]
