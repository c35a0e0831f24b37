import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file

import spillgrad as sg
from spillgrad import checkpoint, nn
from spillgrad.errors import CheckpointError
from spillgrad.optim import SGD, AdamW, Lion
from spillgrad.optim.lr_scheduler import CosineWithWarmup

STEPS = 6


class Run:
    """A small model with dropout and a tied weight, its optimizer and schedule."""

    def __init__(self, dtype="float32", width=4, kind=AdamW):
        self.model = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3), nn.Linear(width, width, bias=False))
        self.model[2].weight = self.model[0].weight
        self.model.register_buffer("seen", sg.zeros(1, dtype="int64"))
        self.model.to(dtype)
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.schedule = CosineWithWarmup(self.optimizer, 2, STEPS)
        self.dtype = dtype
        self.width = width

    def train(self, start, stop):
        losses = []
        for step in range(start, stop):
            x = sg.tensor(np.random.default_rng(step).standard_normal((3, self.width))).to(self.dtype)
            self.optimizer.zero_grad()
            loss = (self.model(x) ** 2).sum()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.model.seen.add_(3)
            losses.append(loss.item())
        return losses

    def save(self, directory, **options):
        return checkpoint.save(directory, self.model, self.optimizer, scheduler=self.schedule, **options)

    def load(self, directory):
        return checkpoint.load(directory, self.model, self.optimizer, scheduler=self.schedule)

    def weights(self):
        return {name: tensor.numpy().tobytes() for name, tensor in self.model.state_dict().items()}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", [AdamW, SGD, Lion])
def test_a_resumed_run_is_bit_identical(tmp_path, dtype, kind):
    sg.manual_seed(1)
    straight = Run(dtype, kind=kind)
    losses = straight.train(0, 3)
    straight.save(tmp_path, step=3, extra={"seed": 1, "note": "half"})
    losses += straight.train(3, STEPS)
    sg.manual_seed(2)
    resumed = Run(dtype, kind=kind)
    state = resumed.load(tmp_path)
    assert (state["step"], state["extra"]) == (3, {"seed": 1, "note": "half"})
    assert resumed.train(3, STEPS) == losses[3:]
    assert resumed.weights() == straight.weights()
    assert resumed.model[2].weight is resumed.model[0].weight


def test_the_files_are_plain_safetensors_with_each_tensor_once(tmp_path):
    run = Run()
    run.train(0, 1)
    where = run.save(tmp_path, step=1)
    assert where.parent == tmp_path
    assert sorted(path.name for path in where.iterdir()) == ["model.safetensors", "optimizer.safetensors", "state.json"]
    tensors = load_file(where / "model.safetensors")
    assert sorted(tensors) == ["0.bias", "0.weight", "seen"]
    np.testing.assert_array_equal(tensors["0.weight"], run.model[0].weight.numpy())
    assert sorted(load_file(where / "optimizer.safetensors")) == [
        "0.exp_avg",
        "0.exp_avg_sq",
        "1.exp_avg",
        "1.exp_avg_sq",
    ]


def test_the_model_alone_can_be_saved_and_loaded_without_touching_the_random_state(tmp_path):
    run = Run()
    checkpoint.save(tmp_path, run.model)
    other = Run()
    sg.manual_seed(7)
    expected = sg.rand(3).tolist()
    sg.manual_seed(7)
    checkpoint.load(tmp_path, other.model)
    assert sg.rand(3).tolist() == expected
    assert other.weights() == run.weights()
    with pytest.raises(CheckpointError, match="no optimizer state"):
        other.load(tmp_path)


def test_the_state_tells_how_to_build_the_model(tmp_path):
    model = sg.models.build("tiny", context=8, n_layer=1)
    checkpoint.save(tmp_path, model, step=4)
    state = checkpoint.load(tmp_path)
    assert (state["step"], state["model"]) == (4, "GPT")
    assert sg.models.GPTConfig(**state["config"]) == model.config


def test_a_later_save_replaces_the_former_one(tmp_path):
    run = Run()
    first = run.save(tmp_path, step=1)
    run.train(0, 1)
    second = run.save(tmp_path, step=2)
    assert not first.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", second.name]
    assert Run().load(tmp_path)["step"] == 2


def test_a_run_killed_while_it_saves_leaves_the_former_checkpoint(tmp_path):
    run = Run()
    run.save(tmp_path, step=1)
    before = run.weights()
    script = textwrap.dedent(
        f"""
        import os, signal, sys
        from spillgrad import checkpoint, nn
        sync = checkpoint._sync
        def killed(path):
            if path.name == {{victim!r}} or path.name.startswith({{victim!r}}):
                os.kill(os.getpid(), signal.SIGKILL)
            sync(path)
        checkpoint._sync = killed
        checkpoint.save({str(tmp_path)!r}, nn.Linear(4, 4), step=2)
        """
    )
    for victim in ("model.safetensors", "step-"):
        ended = subprocess.run([sys.executable, "-c", script.format(victim=victim)], env=_environment(), check=False)
        assert ended.returncode == -signal.SIGKILL
        other = Run()
        assert other.load(tmp_path)["step"] == 1
        assert other.weights() == before
    latest = run.save(tmp_path, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@pytest.mark.parametrize(("function", "step"), [(os.fsync, 1), (os.replace, 2)])
def test_an_interrupt_at_any_point_leaves_a_checkpoint(tmp_path, function, step):
    run = Run()
    run.save(tmp_path, step=1)

    def interrupt(frame, event, argument):
        if event == "c_return" and argument is function:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            run.save(tmp_path, step=2)
    finally:
        sys.setprofile(None)
    assert Run().load(tmp_path)["step"] == step
    latest = run.save(tmp_path, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


def test_a_disk_that_fills_up_leaves_the_former_checkpoint(tmp_path):
    run = Run()
    run.save(tmp_path, step=1)
    script = textwrap.dedent(
        f"""
        import resource, signal, sys
        from spillgrad import checkpoint, nn
        from spillgrad.errors import CheckpointError
        model = nn.Linear(100, 100)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            checkpoint.save({str(tmp_path)!r}, model, step=2)
        except CheckpointError as error:
            print(error)
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], env=_environment(), check=True, capture_output=True, text=True
    )
    assert "cannot be written" in ended.stdout
    assert str(tmp_path) in ended.stdout
    assert Run().load(tmp_path)["step"] == 1
    assert len(list(tmp_path.iterdir())) == 2


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize(
    "damage", [_flip, lambda path: os.truncate(path, path.stat().st_size - 5), lambda path: path.unlink()]
)
def test_damage_is_found_before_anything_changes(tmp_path, name, damage):
    where = Run().save(tmp_path)
    damage(where / name)
    other = Run()
    before = other.weights()
    with pytest.raises(CheckpointError, match="damaged") as caught:
        other.load(tmp_path)
    assert str(where / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert other.weights() == before


def test_a_checkpoint_of_another_model_names_what_differs_and_changes_nothing(tmp_path):
    Run(width=4).save(tmp_path)
    other = Run(width=5)
    other.model.extra = nn.Linear(2, 2)
    before = other.weights()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path, other.model)
    message = str(caught.value)
    assert "4 tensors differ" in message
    assert "0.weight ((4, 4), wanted (5, 5))" in message
    assert "extra.bias (missing, wanted (2,))" in message
    assert "\n" not in message
    assert other.weights() == before


def test_a_difference_in_many_tensors_is_counted_not_listed(tmp_path):
    checkpoint.save(tmp_path, sg.models.build("tiny", context=8))
    with pytest.raises(CheckpointError, match="30 tensors differ") as caught:
        checkpoint.load(tmp_path, nn.Linear(2, 2))
    assert len(str(caught.value)) < 500


def test_a_schedule_or_optimizer_of_another_run_changes_nothing(tmp_path):
    run = Run()
    run.train(0, 1)
    run.save(tmp_path)
    other = Run()
    before = other.weights()
    few = AdamW([other.model[0].weight])
    with pytest.raises(CheckpointError, match="of another run"):
        checkpoint.load(tmp_path, other.model, few)
    assert other.weights() == before
    checkpoint.save(tmp_path, run.model, run.optimizer)
    with pytest.raises(CheckpointError, match="no schedule"):
        other.load(tmp_path)
    assert other.weights() == before
    assert other.optimizer.state_dict()["state"] == {}


def _nothing(path):
    return path / "missing"


def _empty(path):
    return path


def _file(path):
    (path / "file").touch()
    return path / "file"


def _foreign(path):
    (path / "checkpoint.json").write_text(json.dumps({"format": "tfjs", "current": "x"}))
    return path


def _no_json(path):
    (path / "checkpoint.json").write_text("{")
    return path


def _no_object(path):
    (path / "checkpoint.json").write_text("[]")
    return path


def _of_the_future(path):
    pointer = {"format": "spillgrad checkpoint", "version": 99, "current": "x", "checksum": ""}
    (path / "checkpoint.json").write_text(json.dumps(pointer))
    return path


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_nothing, "is not a directory"),
        (_empty, "holds no checkpoint.json"),
        (_file, "is not a directory"),
        (_foreign, "is not one of a spillgrad checkpoint"),
        (_no_json, "damaged"),
        (_no_object, "damaged"),
        (_of_the_future, "format version 99"),
    ],
)
def test_what_is_no_checkpoint_is_an_error_of_one_line(tmp_path, make, says):
    path = make(tmp_path)
    with pytest.raises(CheckpointError, match=says) as caught:
        checkpoint.load(path, nn.Linear(2, 2))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.save(tmp_path / "file" / "sub", nn.Linear(2, 2))
