import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import namedtuple

import numpy as np
import pytest
import xxhash
from safetensors.numpy import load_file

import spillgrad as sg
from spillgrad import nn
from spillgrad.data import DataLoader, TensorDataset
from spillgrad.errors import CheckpointError, SpillCorruptionError
from spillgrad.files import checkpoint, checkpoint_directory
from spillgrad.files.checkpoint_directory import of_current
from spillgrad.models import pretrained
from spillgrad.optim import LBFGS, SGD, AdamW, Lion
from spillgrad.optim.lr_scheduler import CosineWithWarmup
from spillgrad.spill.offload.needs import largest_need
from spillgrad.spill.offload.training import FRAMEWORK
from tests.crafted import HUGE, altered, deep, rewrite
from tests.storage.test_disk_store import in_own_mounts

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
        return checkpoint.save_checkpoint(directory, self.model, self.optimizer, scheduler=self.schedule, **options)

    def load(self, directory):
        return checkpoint.load_checkpoint(directory, self.model, self.optimizer, scheduler=self.schedule)

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


def _losses(model, optimizer, loader, passes):
    losses = []
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            yield losses


@pytest.mark.parametrize("stop", [2, 4, 5])  # in the first pass, at its end, in the second
def test_a_run_over_a_data_loader_goes_on_in_the_middle_of_a_pass(tmp_path, stop):
    def parts():
        sg.manual_seed(0)
        model = nn.Linear(3, 2)
        rows = sg.tensor(np.random.default_rng(0).standard_normal((15, 5)).astype(np.float32))
        loader = DataLoader(TensorDataset(rows[:, :3], rows[:, 3:]), batch_size=4, shuffle=True, seed=3)
        return model, AdamW(model.parameters(), lr=0.1), loader

    model, optimizer, loader = parts()
    for losses in _losses(model, optimizer, loader, 3):
        if len(losses) == stop:
            checkpoint.save_checkpoint(tmp_path, model, optimizer, data=loader)
    resumed = parts()
    checkpoint.load_checkpoint(tmp_path, *resumed[:2], data=resumed[2])
    assert list(_losses(*resumed, 3 if stop < 4 else 2))[-1] == losses[stop:]
    checkpoint.save_checkpoint(tmp_path, model)
    with pytest.raises(CheckpointError, match="holds no position of the data"):
        checkpoint.load_checkpoint(tmp_path, model, data=loader)


def _put(*path, value=None, gone=False):
    """Return a function that changes what is at a place of a state, or takes it out."""

    def change(state):
        place = state
        for key in path[:-1]:
            place = place[key]
        if gone:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return state

    return change


def _minimise(model, optimizer, steps):
    x = sg.tensor(np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32))

    def closure():
        optimizer.zero_grad()
        loss = ((model(x) - 1.0) ** 4).sum()
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(steps)]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_history_of_tensors_goes_on_bit_identically(tmp_path, search):
    def parts():
        sg.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, LBFGS(model.parameters(), lr=0.1, max_iter=3, line_search_fn=search)

    straight, resumed = parts(), parts()
    _minimise(*straight, 4)
    where = checkpoint.save_checkpoint(tmp_path, *straight)
    assert len(straight[1].state_dict()["state"][0]["old_dirs"]) > 2
    assert {"0.old_dirs.0", "0.old_dirs.1", "0.d"} <= load_file(where / "optimizer.safetensors").keys()
    checkpoint.load_checkpoint(tmp_path, *resumed)
    assert _minimise(*resumed, 4) == _minimise(*straight, 4)


def _with_state(entries):
    """Return a model and its optimizer with `entries` in the state of the first parameter."""
    model = nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), momentum=0.9)
    optimizer.state[model.weight] = entries
    return model, optimizer


def test_tensors_within_lists_tuples_and_dicts_come_back_in_them(tmp_path):
    entries = {
        "blocks": [sg.ones(2), {"left": (sg.zeros(1), 3), 4: [], "none": None}],
        "blocks.0": sg.full((2, 2), 7.0),
        "plain": [{"tensor": "0.blocks.0"}],
        "step": 2,
        "range": (0, [(1.5, "all")]),
        "counts": {"by size": {3: 4}},
    }
    checkpoint.save_checkpoint(tmp_path, *_with_state(entries))
    model, optimizer = _with_state({})
    checkpoint.load_checkpoint(tmp_path, model, optimizer)
    assert str(optimizer.state[model.weight]) == str(
        {key: entries[key] for key in ("plain", "step", "blocks", "range", "counts", "blocks.0")}
    )


@pytest.mark.parametrize(
    ("entries", "phrase"),
    [
        ({"seen": {sg.ones(1)}}, "tensors in a set"),
        ({"by": {(1, 2): sg.ones(1)}}, r"key \(1, 2\)"),
        ({"deep": deep(40)}, "optimizer.*nested more than 32 deep"),
        ({"pair": [namedtuple("Pair", "x y")(1, 2)]}, "0.pair.0 is a Pair; .* no named tuples"),
    ],
)
def test_tensors_that_json_cannot_place_are_refused_before_anything_is_written(tmp_path, entries, phrase):
    with pytest.raises(TypeError, match=phrase):
        checkpoint.save_checkpoint(tmp_path, *_with_state(entries))
    assert list(tmp_path.iterdir()) == []


NESTED = {
    "a list": _put("optimizer", "nested", value=[]),
    "of another parameter": _put("optimizer", "nested", value={"7": {}}),
    "a parameter of lists": _put("optimizer", "nested", "0", value=[]),
    "a tensor that is not there": _put("optimizer", "nested", "0", "blocks", value=[{"tensor": "0.gone"}]),
    "a tensor twice": _put("optimizer", "nested", "0", "blocks", value=[{"tensor": "0.blocks.0"}] * 2),
    "a tensor of lists": _put("optimizer", "nested", "0", "blocks", value=[{"tensor": ["0.blocks.0"]}]),
    "an unknown kind": _put("optimizer", "nested", "0", "blocks", value={"set": []}),
    "two kinds": _put("optimizer", "nested", "0", "blocks", value={"tuple": [], "dict": []}),
    "a dict of no pairs": _put("optimizer", "nested", "0", "blocks", value={"dict": [1]}),
    "a dict with keys of lists": _put("optimizer", "nested", "0", "blocks", value={"dict": [[[1], 2]]}),
    "a tuple of nothing": _put("optimizer", "nested", "0", "blocks", value={"tuple": None}),
    "an entry that is there already": _put("optimizer", "nested", "0", "step", value=[]),
    "nothing, with a tensor left": _put("optimizer", "nested", value={}),
    "too deep": _put("optimizer", "nested", "0", "blocks", value=deep(400)),
}


@pytest.mark.parametrize("change", NESTED.values(), ids=NESTED)
def test_a_nested_state_that_no_save_wrote_is_an_error(tmp_path, change):
    version = checkpoint.save_checkpoint(tmp_path, *_with_state({"blocks": [sg.ones(2)], "step": 1}))
    rewrite(version, change(json.loads((version / "state.json").read_text())))
    model, optimizer = _with_state({})
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_checkpoint(tmp_path, model, optimizer)
    assert str(tmp_path) in str(caught.value)
    assert not optimizer.state[model.weight]


@pytest.mark.parametrize("generators", [[], [[1, 2], [3, 4]], [[1]], [[-1, 2]], [[HUGE, 2]], [[1.5, 2]], [["1", 2]]])
def test_generators_of_data_that_no_save_wrote_are_an_error(tmp_path, generators):
    def loader():
        return DataLoader(range(4), shuffle=True, generator=sg.Generator(3))

    version = checkpoint.save_checkpoint(tmp_path, nn.Linear(2, 2), data=loader())
    state = json.loads((version / "state.json").read_text())
    assert state["data"]["generators"] == [[3, 0]]
    rewrite(version, _put("data", "generators", value=generators)(state))
    data = loader()
    with pytest.raises(CheckpointError, match="generator"):
        checkpoint.load_checkpoint(tmp_path, data=data)
    assert data.state_dict()["generators"] == [[3, 0]]


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
    checkpoint.save_checkpoint(tmp_path, run.model)
    other = Run()
    sg.manual_seed(7)
    expected = sg.rand(3).tolist()
    sg.manual_seed(7)
    checkpoint.load_checkpoint(tmp_path, other.model)
    assert sg.rand(3).tolist() == expected
    assert other.weights() == run.weights()
    with pytest.raises(CheckpointError, match="no optimizer state"):
        other.load(tmp_path)


def test_the_state_tells_how_to_build_the_model(tmp_path):
    model = sg.models.build("tiny", context=8, n_layer=1)
    checkpoint.save_checkpoint(tmp_path, model, step=4)
    state = checkpoint.load_checkpoint(tmp_path)
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


def test_a_relative_directory_is_returned_so_that_it_holds_anywhere(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    where = Run().save("saved", step=1)
    monkeypatch.chdir("elsewhere")
    assert where.parent == tmp_path / "saved"
    assert (where / "model.safetensors").is_file()


def test_a_change_of_the_working_directory_while_a_checkpoint_is_written_moves_nothing(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = Run()
    run.save("saved", step=1)
    fsync = os.fsync

    def fsync_elsewhere(descriptor):
        fsync(descriptor)
        os.chdir(tmp_path / "elsewhere")

    monkeypatch.setattr(os, "fsync", fsync_elsewhere)
    where = run.save("saved", step=2)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["checkpoint.json", where.name]
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert Run().load(tmp_path / "saved")["step"] == 2


def test_a_relative_directory_below_one_that_was_removed_is_named(tmp_path, monkeypatch):
    run, gone = Run(), tmp_path / "gone"
    run.train(0, 1)  # the compiler wants a current directory
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for use in (run.save, checkpoint.load_checkpoint, pretrained.read):
        with pytest.raises(CheckpointError, match="got saved, and the current directory was removed"):
            use("saved")


OF_USERS = [
    "step-1-baseline", "step-100-finetune", "step-00000001-baseline", "step-00000001-deadbeef",
    "step-00000001-0123456789", "step-1-deadbeef", "old-step-00000001-deadbeef", "step-00000001-DEADBEEF",
]  # fmt: skip


@pytest.mark.parametrize("name", OF_USERS)
def test_what_a_user_put_beside_the_versions_stays(tmp_path, name):
    run = Run()
    for step in (1, 2):
        run.save(tmp_path, step=step)
        mine = tmp_path / name
        mine.mkdir(exist_ok=True)
        (mine / "model.safetensors").write_text("mine")
        (mine / "state.json").write_text('{"step": 1}')
    run.save(tmp_path, step=3)
    assert {path.name: path.read_text() for path in mine.iterdir()} == {
        "model.safetensors": "mine",
        "state.json": '{"step": 1}',
    }


def test_a_copy_of_a_version_a_link_to_one_and_files_within_one_stay(tmp_path):
    run = Run()
    root = tmp_path / "saved"
    first = run.save(root, step=1)
    (first / "notes.txt").write_text("mine")
    shutil.copytree(first, root / f"{first.name}-best")
    shutil.copytree(first, tmp_path / "elsewhere")
    (root / "step-00000001-00000000").symlink_to(tmp_path / "elsewhere")
    run.save(root, step=2)
    run.save(root, step=3)
    assert [path.name for path in first.iterdir()] == ["notes.txt"]
    for copy in (root / f"{first.name}-best", tmp_path / "elsewhere"):
        assert sorted(path.name for path in copy.iterdir()) == [
            "model.safetensors",
            "notes.txt",
            "optimizer.safetensors",
            "state.json",
        ]


def test_a_former_version_that_cannot_be_removed_is_warned_of(tmp_path):
    run = Run()
    first = run.save(tmp_path, step=1)
    (first / "model.safetensors").unlink()
    (first / "model.safetensors").mkdir()  # which no save removes
    with pytest.warns(UserWarning, match=f"{first} could not be removed .*; remove it by hand") as caught:
        second = run.save(tmp_path, step=2)
    assert caught[0].filename == __file__
    assert Run().load(tmp_path)["step"] == 2
    shutil.rmtree(first)
    third = run.save(tmp_path, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", third.name]
    assert not second.exists()


# The first process that saves is killed at its first `fsync`, the second at its second, and so on.
KILLED = """
import os, signal, sys
import spillgrad as sg
model, sync = sg.nn.Linear(4, 4), os.fsync
for number, folder in enumerate(sys.argv[1:], 1):
    child = os.fork()
    if child == 0:
        calls = []
        def killed(descriptor):
            calls.append(descriptor)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(descriptor)
        os.fsync = killed
        try:
            sg.save_checkpoint(folder, model, step=2, max_shard_size=64)
        finally:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        sys.exit(f"{folder}: the process that saves was not killed")
"""


@pytest.fixture(scope="module")
def killed_saves(tmp_path_factory):
    """Folders with the checkpoint of a run, and the run, in each of which a process was killed while it saved."""
    runs = [(tmp_path_factory.mktemp("killed"), Run()) for _ in range(8)]
    for folder, run in runs:
        run.save(folder, step=1)
    command = [sys.executable, "-c", KILLED, *(str(folder) for folder, _ in runs)]
    subprocess.run(command, env=_environment(), check=True)
    return runs


@pytest.mark.parametrize("number", range(1, 9))
def test_a_run_killed_while_it_saves_leaves_the_former_checkpoint(killed_saves, number):
    tmp_path, run = killed_saves[number - 1]
    before = run.weights()
    if number < 8:  # the eighth is that of the directory, after the rename
        other = Run()
        assert other.load(tmp_path)["step"] == 1
        assert other.weights() == before
    latest = run.save(tmp_path, step=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_version_whose_pointer_was_cut_short_by_a_kill_is_removed(tmp_path, length):
    run = Run()
    run.save(tmp_path, step=1)
    begun = checkpoint_directory.new_version(tmp_path, 2)
    checkpoint_directory.begin(begun)
    pointer = begun / "checkpoint.json"
    assert len(pointer.read_bytes()) > 40
    os.truncate(pointer, length)
    assert Run().load(tmp_path)["step"] == 1
    second = run.save(tmp_path, step=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", second.name]


@pytest.mark.parametrize("files", [{"checkpoint.json": "mine"}, {"checkpoint.json": "", "model.safetensors": "mine"}])
def test_a_folder_named_as_a_version_that_no_save_made_stays(tmp_path, files):
    mine = tmp_path / "step-00000007-00000000"
    mine.mkdir()
    for name, text in files.items():
        (mine / name).write_text(text)
    run = Run()
    for step in (1, 2):
        run.save(tmp_path, step=step)
    assert {path.name: path.read_text() for path in mine.iterdir()} == files


@pytest.mark.exhaustive
def test_a_run_killed_at_random_moments_leaves_a_whole_checkpoint(tmp_path):
    script = textwrap.dedent(
        f"""
        import itertools
        import spillgrad as sg
        model = sg.nn.Linear(1000, 500)
        model.register_buffer("step", sg.zeros(1))
        for step in itertools.count():
            for tensor in (model.weight, model.bias, model.step):
                tensor.data.fill_(step)
            sg.save_checkpoint({str(tmp_path)!r}, model, step=step, max_shard_size="1MB")
            if step == 1:
                print("saving", flush=True)
        """
    )
    random = np.random.default_rng(3)
    for _ in range(6):
        with subprocess.Popen([sys.executable, "-c", script], env=_environment(), stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"saving\n"
            time.sleep(random.uniform(0, 0.05))
            process.kill()
        model = nn.Linear(1000, 500)
        model.register_buffer("step", sg.zeros(1))
        step = checkpoint.load_checkpoint(tmp_path, model)["step"]
        assert step >= 1
        for tensor in model.state_dict().values():
            assert (tensor.numpy() == step).all()
    checkpoint.save_checkpoint(tmp_path, model)
    assert len(list(tmp_path.iterdir())) == 2


KEEP_SAVING = """
import itertools, sys
import spillgrad as sg
directory, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = sg.nn.Linear(300, 200)
model.register_buffer("step", sg.zeros(1))
saved = refused = 0
for step in range(first, first + count):
    for tensor in (model.weight, model.bias, model.step):
        tensor.data.fill_(step)
    try:
        sg.save_checkpoint(directory, model, step=step)
        saved += 1
    except sg.errors.CheckpointError as error:
        refused += 1
    if step == first + 1:
        print("saving", flush=True)
print(saved, refused, flush=True)
"""


def _saver(directory, first, count=1_000_000):
    command = [sys.executable, "-c", KEEP_SAVING, str(directory), str(first), str(count)]
    return subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, text=True)


def _load_whole(directory):
    model = nn.Linear(300, 200)
    model.register_buffer("step", sg.zeros(1))
    step = checkpoint.load_checkpoint(directory, model)["step"]
    for tensor in model.state_dict().values():
        assert (tensor.numpy() == step).all()
    return step


def test_two_processes_that_save_to_one_directory_both_do(tmp_path):
    with _saver(tmp_path, 0, 40) as first, _saver(tmp_path, 1000, 40) as second:
        told = [process.communicate()[0].split() for process in (first, second)]
    assert told == [["saving", "40", "0"]] * 2
    assert _load_whole(tmp_path) in (39, 1039)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.exhaustive
def test_two_processes_killed_while_they_save_to_one_directory_leave_a_whole_checkpoint(tmp_path):
    random = np.random.default_rng(5)
    for _ in range(5):
        with _saver(tmp_path, 0) as first, _saver(tmp_path, 1_000_000) as second:
            for process in (first, second):
                assert process.stdout.readline() == "saving\n"
            for process in random.permutation([first, second]):
                time.sleep(random.uniform(0, 0.03))
                process.kill()
        _load_whole(tmp_path)
    latest = Run().save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


def test_a_load_beside_saves_of_another_process_gets_a_whole_checkpoint(tmp_path):
    with _saver(tmp_path, 0) as process:
        try:
            assert process.stdout.readline() == "saving\n"
            steps = [_load_whole(tmp_path) for _ in range(150)]
        finally:
            process.kill()
    assert steps == sorted(steps)
    assert len(set(steps)) > 1


SAVE_AND_STOP = """
import os, signal, sys
import spillgrad as sg
sync = os.fsync
def stopped(descriptor):
    print(os.getpid(), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    sync(descriptor)
os.fsync = stopped
sg.save_checkpoint(sys.argv[1], sg.nn.Linear(4, 4))
"""


def test_who_still_saves_is_named_and_waited_for_no_longer_than_it_lives(tmp_path, monkeypatch):
    run = Run()
    run.save(tmp_path, step=1)
    says = f"process {{}} on {socket.gethostname()} is saving to {tmp_path}; wait until it has ended"
    with subprocess.Popen([sys.executable, "-c", SAVE_AND_STOP, str(tmp_path)], stdout=-1, env=_environment()) as other:
        try:
            assert int(other.stdout.readline()) == other.pid
            with monkeypatch.context() as patched:
                patched.setattr(checkpoint_directory, "_PATIENCE_S", 0.05)
                with pytest.raises(CheckpointError, match=says.format(other.pid)):
                    run.save(tmp_path, step=2)
            assert Run().load(tmp_path)["step"] == 1
            killer = threading.Timer(0.2, other.kill)
            killer.start()
            latest = run.save(tmp_path, step=3)
            killer.join()
        finally:
            other.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


FORK_WHILE_SAVING = """
import os, signal, sys, time
import spillgrad as sg
sync = os.fsync
def forked(descriptor):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    print(os.getpid(), flush=True)
    time.sleep(60)
os.fsync = forked
sg.save_checkpoint(sys.argv[1], sg.nn.Linear(4, 4))
"""


def test_a_child_forked_while_its_parent_saved_keeps_nobody_from_it(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_SAVING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment()) as parent:
        child = int(parent.stdout.readline())
        try:
            assert parent.wait() == -signal.SIGKILL
            os.kill(child, 0)  # it lives
            latest = Run().save(tmp_path)
        finally:
            os.kill(child, signal.SIGKILL)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint.json", latest.name]


def test_two_threads_save_one_after_the_other(tmp_path):
    runs = [Run() for _ in range(2)]
    failed = []

    def save(run):
        try:
            for step in range(20):
                run.save(tmp_path, step=step)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=save, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert Run().load(tmp_path)["step"] == 19
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_pointer_can_be_saved_over(tmp_path):
    run = Run()
    run.save(tmp_path, step=1)
    (tmp_path / "checkpoint.json").write_text("{")
    run.save(tmp_path, step=2)
    assert Run().load(tmp_path)["step"] == 2


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


FILL = """
import signal, resource, sys
import spillgrad as sg
directory, limit = sys.argv[1:]
small, large = sg.nn.Linear(4, 4), sg.nn.Linear(300, 1000)
before = sg.save_checkpoint(directory, small, step=1)
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
for size in ("5GB", "100KB"):
    try:
        sg.save_checkpoint(directory, large, step=2, max_shard_size=size)
    except sg.errors.CheckpointError as error:
        print(error)
    state = sg.load_checkpoint(directory, sg.nn.Linear(4, 4))
    print(state["step"], sorted(path.name for path in before.parent.iterdir()) == ["checkpoint.json", before.name])
print(sg.save_checkpoint(directory, small, step=3).exists())
"""


@pytest.mark.parametrize("full", ["file system", "limit of a file"])
def test_a_disk_that_fills_up_leaves_the_former_checkpoint(tmp_path, full):
    place = () if full == "limit of a file" else in_own_mounts(tmp_path, 600)
    limit = "10000" if full == "limit of a file" else ""
    command = [*place, sys.executable, "-c", FILL, str(tmp_path), limit]
    ended = subprocess.run(command, env=_environment(), capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    reason = "File too large" if limit else "No space left on device"
    said = f"checkpoint: {tmp_path} cannot be written ({reason}); free space there or give another directory"
    assert ended.stdout.splitlines() == [said, "1 True"] * 2 + ["True"]


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


@pytest.mark.parametrize("name", ["checkpoint.json", "model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_byte_changed_anywhere_is_found_before_anything_changes(tmp_path, name):
    run = Run()
    run.train(0, 2)
    version = run.save(tmp_path, step=2, extra={"note": ["half"]})
    path = tmp_path / name if name == "checkpoint.json" else version / name
    whole, other = path.read_bytes(), Run()
    before = other.weights(), other.optimizer.state_dict(), other.schedule.state_dict()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            other.load(tmp_path)
    assert (other.weights(), other.optimizer.state_dict(), other.schedule.state_dict()) == before
    path.write_bytes(whole)
    other.load(tmp_path)
    assert other.weights() == run.weights()


def test_a_checkpoint_of_another_model_lists_all_that_differs_and_changes_nothing(tmp_path):
    Run(width=4).save(tmp_path)
    other = Run(width=5)
    other.model.extra = nn.Linear(2, 2)
    del other.model.seen
    before = other.weights()
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_checkpoint(tmp_path, other.model)
    assert isinstance(caught.value, RuntimeError)
    assert str(caught.value).splitlines()[1:] == [
        '\tMissing key(s) in state_dict: "extra.weight", "extra.bias".',
        '\tUnexpected key(s) in state_dict: "seen".',
        *(
            f"\tsize mismatch for {name}: copying a param with shape {saved} from checkpoint, the shape in current "
            f"model is {own}."
            for name, saved, own in (
                ("0.weight", (4, 4), (5, 5)),
                ("0.bias", (4,), (5,)),
                ("2.weight", (4, 4), (5, 5)),
            )
        ),
        "Nothing was loaded; give the state of the same model (strict=False skips missing and unexpected keys)",
    ]
    assert other.weights() == before


def test_every_one_of_many_differences_is_listed(tmp_path):
    model = sg.models.build("tiny", context=8)
    checkpoint.save_checkpoint(tmp_path, model)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_checkpoint(tmp_path, nn.Linear(2, 2))
    assert [name for name, _ in model.named_parameters() if name not in str(caught.value)] == []


def test_what_fits_is_loaded_and_the_rest_returned_where_that_is_asked(tmp_path):
    run = Run()
    checkpoint.save_checkpoint(tmp_path, run.model, step=2)
    other = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3), nn.Linear(1, 1, bias=False))
    kept = {name: tensor.tolist() for name, tensor in other.state_dict().items()}
    state = checkpoint.load_checkpoint(tmp_path, other, strict=False)
    assert state["missing_keys"] == ["2.weight", "2.bias", "3.weight"]
    assert state["unexpected_keys"] == ["seen"]
    assert state["mismatched_keys"] == []
    wide = nn.Sequential(nn.Linear(4, 5))
    assert checkpoint.load_checkpoint(tmp_path, wide, strict=False)["mismatched_keys"] == [
        ("0.weight", (4, 4), (5, 4)),
        ("0.bias", (4,), (5,)),
    ]
    now = {name: tensor.tolist() for name, tensor in other.state_dict().items()}
    assert now["0.weight"] == run.model[0].weight.tolist()
    assert now["0.bias"] == run.model[0].bias.tolist()
    assert [now[name] for name in state["missing_keys"]] == [kept[name] for name in state["missing_keys"]]


def test_a_large_model_is_in_several_files_with_hugging_faces_index(tmp_path):
    run = Run(kind=AdamW)
    run.train(0, 2)
    where = run.save(tmp_path, max_shard_size=64)
    assert sorted(path.name for path in where.glob("model*")) == [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((where / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": 64 + 16 + 8},
        "weight_map": {
            "seen": "model-00001-of-00003.safetensors",
            "0.weight": "model-00002-of-00003.safetensors",
            "0.bias": "model-00003-of-00003.safetensors",
        },
    }
    for name, file in index["weight_map"].items():
        tensors = load_file(where / file)
        assert tensors.keys() == {name}
        assert tensors[name].tobytes() == run.model.state_dict()[name].numpy().tobytes()
    resumed = Run()
    resumed.load(tmp_path)
    assert resumed.weights() == run.weights()
    losses = resumed.train(2, STEPS)
    run.load(tmp_path)  # the random state is one for both
    assert run.train(2, STEPS) == losses


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "model.safetensors.index.json"])
def test_a_missing_file_of_several_is_found_before_anything_changes(tmp_path, name):
    where = Run().save(tmp_path, max_shard_size=64)
    (where / name).unlink()
    other = Run()
    before = other.weights()
    with pytest.raises(CheckpointError, match="damaged"):
        other.load(tmp_path)
    assert other.weights() == before


@pytest.mark.parametrize("wrong", [0, -1, "many"])
def test_a_size_of_files_that_means_nothing_is_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match=str(wrong)):
        checkpoint.save_checkpoint(tmp_path, nn.Linear(2, 2), max_shard_size=wrong)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "tensor",
    [
        sg.arange(12).reshape(3, 4).t(),
        sg.arange(12, dtype="float32").reshape(3, 4)[:, ::2],
        sg.zeros(0, 3),
        sg.tensor(3.5),
        sg.tensor([True, False, True]),
        sg.tensor([1 + 2j, 3j], dtype="complex64"),
        sg.ones(3).expand(4, 3),
        sg.tensor([1.5, -2], dtype="bfloat16"),
    ],
    ids=["transposed", "strided", "empty", "scalar", "bool", "complex", "expanded", "bfloat16"],
)
def test_any_layout_and_dtype_comes_back(tmp_path, tensor):
    model, other = nn.Module(), nn.Module()  # in the other it lies dense
    for module in (model, other):
        module.register_buffer("first", sg.tensor([1], dtype="uint8"))
    model.register_buffer("it", tensor)
    other.register_buffer("it", sg.zeros_like(tensor))
    checkpoint.save_checkpoint(tmp_path, model)
    checkpoint.load_checkpoint(tmp_path, other)
    assert other.it.numpy().tobytes() == tensor.numpy().tobytes()


def test_what_a_file_cannot_hold_is_said_before_anything_is_written(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(TypeError, match="JSON cannot hold extra"):
        checkpoint.save_checkpoint(tmp_path, model, extra={"weights": sg.ones(2)})
    model.register_buffer("waves", sg.zeros(2, dtype="complex128"))
    with pytest.raises(CheckpointError, match=r"cannot hold waves \(complex128\)"):
        checkpoint.save_checkpoint(tmp_path, model)
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_overwritten_in_place_whatever_their_dtype_and_layout(tmp_path):
    model = nn.Linear(3, 2, bias=False)
    checkpoint.save_checkpoint(tmp_path, model)
    saved = model.weight.tolist()
    for own in (sg.zeros(2, 3), sg.zeros(3, 2).t(), sg.zeros(2, 6)[:, ::2], sg.zeros(2, 3, dtype="float64")):
        other = nn.Linear(3, 2, bias=False)
        other.weight = nn.Parameter(own)
        y = (other.weight**2).sum()
        checkpoint.load_checkpoint(tmp_path, other)
        assert own.tolist() == saved
        with pytest.raises(sg.errors.GraphError, match="modified"):
            y.backward()


def test_a_tensor_that_must_not_change_is_refused(tmp_path):
    model, other = nn.Module(), nn.Module()
    model.register_buffer("it", sg.ones(4, 3))
    other.register_buffer("it", sg.zeros(3).expand(4, 3))
    checkpoint.save_checkpoint(tmp_path, model)
    with pytest.raises(sg.errors.GraphError, match="clone"):
        checkpoint.load_checkpoint(tmp_path, other)


class Counting(nn.Linear):
    """A layer with state that is no tensor."""

    calls = 0

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


def test_extra_state_of_modules_is_kept(tmp_path):
    model, other = nn.Sequential(Counting(2, 2)), nn.Sequential(Counting(2, 2))
    model[0].calls = 5
    checkpoint.save_checkpoint(tmp_path, model)
    checkpoint.load_checkpoint(tmp_path, other)
    assert other[0].calls == 5


def test_a_schedule_or_optimizer_of_another_run_changes_nothing(tmp_path):
    run = Run()
    run.train(0, 1)
    run.save(tmp_path)
    other = Run()
    before = other.weights()
    few = AdamW([other.model[0].weight])
    with pytest.raises(CheckpointError, match="of another run"):
        checkpoint.load_checkpoint(tmp_path, other.model, few)
    assert other.weights() == before
    checkpoint.save_checkpoint(tmp_path, run.model, run.optimizer)
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
        checkpoint.load_checkpoint(path, nn.Linear(2, 2))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Pass(Run):
    """A run that is in the middle of a pass through its data."""

    def __init__(self):
        super().__init__()
        self.data = DataLoader(TensorDataset(sg.ones(6, 4)), batch_size=2, shuffle=True)

    def save(self, directory, **options):
        return super().save(directory, data=self.data, **options)

    def load(self, directory):
        return checkpoint.load_checkpoint(
            directory, self.model, self.optimizer, scheduler=self.schedule, data=self.data
        )

    def all(self):
        """What a load may change."""
        groups = [{**group, "params": None} for group in self.optimizer.param_groups]
        tensors = {name: tensor.tolist() for name, tensor in self.model.state_dict().items()}
        return repr((tensors, len(self.optimizer.state), groups, self.schedule.state_dict(), self.data.state_dict()))


STATES = {
    "a list": lambda _: [],
    "no JSON": lambda _: "{",
    "many lists": lambda _: f'{{"step": {"[" * 200_000}1{"]" * 200_000}}}',
    "more digits than are read": lambda state: json.dumps(state).replace('"step": 3', '"step": ' + "3" * 5000),
    "nothing": lambda _: {},
    **{f"no {key}": _put(key, gone=True) for key in ("step", "model", "config", "extra", "rng", "scheduler", "data")},
    "no checksums": _put("checksums", gone=True),
    "no optimizer": _put("optimizer", gone=True),
    "a step in words": _put("step", value="3"),
    "a step of lists": _put("step", value=[3]),
    "a step that is broken": _put("step", value=3.5),
    "a model that is a number": _put("model", value=5),
    "a config in a list": _put("config", value=[]),
    "extra of nothing": _put("extra", value=None),
    "checksums in a list": _put("checksums", value=[]),
    "checksums of nothing": _put("checksums", value={}),
    "checksums that are numbers": _put("checksums", "model.safetensors", value=5),
    "checksums of files elsewhere": _put("checksums", "model./../../../../etc/passwd", value=""),
    "checksums of files that are not there": _put("checksums", "model-00001-of-00002.safetensors", value=""),
    "state of modules in a list": _put("model_extra", value=[]),
    "state of modules for a tensor": _put("model_extra", value={"0.weight": 5}),
    "state of modules for no module": _put("model_extra", value={"9._extra_state": 5}),
    "adapters in words": _put("trainable_only", value="yes"),
    "a generator of nothing": _put("rng", value={}),
    "a generator in a list": _put("rng", value=[1, 2]),
    "a generator of more": _put("rng", "more", value=1),
    "a generator in words": _put("rng", "seed", value="1"),
    "a generator below zero": _put("rng", "seed", value=-1),
    "a huge generator": _put("rng", "offset", value=HUGE),
    "a schedule in a list": _put("scheduler", value=[]),
    "a schedule of nothing": _put("scheduler", value={}),
    "a schedule of more": _put("scheduler", "more", value=1),
    "a schedule of rates in words": _put("scheduler", "base_lrs", value="x"),
    "a schedule of one rate": _put("scheduler", "base_lrs", value=0.1),
    "a schedule of rates of rates": _put("scheduler", "base_lrs", value=[[0.1]]),
    "a schedule at a step in words": _put("scheduler", "last_epoch", value="x"),
    "a schedule at a step of lists": _put("scheduler", "last_epoch", value=[1]),
    "a deep schedule": _put("scheduler", "last_epoch", value=deep(100)),
    "an optimizer in a list": _put("optimizer", value=[]),
    "an optimizer without state": _put("optimizer", "state", gone=True),
    "an optimizer without groups": _put("optimizer", "param_groups", gone=True),
    "an optimizer whose state is a list": _put("optimizer", "state", value=[]),
    "an optimizer of a named parameter": _put("optimizer", "state", value={"first": {}}),
    "an optimizer of a parameter below zero": _put("optimizer", "state", value={"-1": {}}),
    "an optimizer of a huge parameter": _put("optimizer", "state", value={"9" * 5000: {}}),
    "an optimizer of another parameter": _put("optimizer", "state", "7", value={"step": 1}),
    "an optimizer of fewer parameters": _put("optimizer", "state", "0", gone=True),
    "an optimizer of parameters in lists": _put("optimizer", "state", "0", value=[]),
    "an optimizer with groups in an object": _put("optimizer", "param_groups", value={}),
    "an optimizer with no group": _put("optimizer", "param_groups", value=[]),
    "an optimizer with groups that are numbers": _put("optimizer", "param_groups", 0, value=5),
    "an optimizer with a group of nothing": _put("optimizer", "param_groups", 0, value={}),
    "an optimizer with parameters of nothing": _put("optimizer", "param_groups", 0, "params", value=None),
    "an optimizer with parameters in words": _put("optimizer", "param_groups", 0, "params", value=["a", "b"]),
    "an optimizer with parameters of lists": _put("optimizer", "param_groups", 0, "params", value=[[0], [1]]),
    "an optimizer with one parameter twice": _put("optimizer", "param_groups", 0, "params", value=[0, 0]),
    "an optimizer with fewer parameters": _put("optimizer", "param_groups", 0, "params", value=[0]),
    "an optimizer without a rate": _put("optimizer", "param_groups", 0, "lr", gone=True),
    "an optimizer with a rate in words": _put("optimizer", "param_groups", 0, "lr", value="fast"),
    "an optimizer with a rate of lists": _put("optimizer", "param_groups", 0, "lr", value=[0.1]),
    "an optimizer with betas that are one": _put("optimizer", "param_groups", 0, "betas", value=0.9),
    "an optimizer with betas in words": _put("optimizer", "param_groups", 0, "betas", value="ab"),
    "a deep optimizer": _put("optimizer", "param_groups", 0, "more", value=deep(400)),
    "a deep state of an optimizer": _put("optimizer", "state", "0", "step", value=deep(400)),
    "data in a list": _put("data", value=[]),
    "data at a batch in words": _put("data", "batch", value="x"),
    "data in a pass of lists": _put("data", "epoch", value=[1]),
    "data that are nowhere": _put("data", value={}),
    "data without a batch": _put("data", "batch", gone=True),
}  # fmt: skip


@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_a_state_that_no_save_wrote_is_an_error_whatever_its_checksum_says(tmp_path, change):
    run = Pass()
    run.train(0, 1)
    version = run.save(tmp_path, step=3)
    rewrite(version, change(json.loads((version / "state.json").read_text())))
    other = Pass()
    before = other.all()
    with pytest.raises(CheckpointError) as caught:
        other.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert other.all() == before


@pytest.mark.parametrize(("key", "value"), [("last_epoch", HUGE), ("total_steps", 10**308), ("min_ratio", 1e308)])
def test_a_schedule_of_numbers_beyond_all_is_an_error_or_a_schedule(tmp_path, key, value):
    version = Run().save(tmp_path)
    rewrite(version, _put("scheduler", key, value=value)(json.loads((version / "state.json").read_text())))
    with contextlib.suppress(CheckpointError):
        Run().load(tmp_path)


POINTERS = {
    "no version": {"version": None},
    "a version in words": {"version": "1"},
    "a version of lists": {"version": [1]},
    "a huge version": {"version": HUGE},
    "a name that is a number": {"current": 5},
    "no name": {"current": None},
    "an empty name": {"current": ""},
    "the folder itself": {"current": "."},
    "the folder above": {"current": ".."},
    "a file elsewhere": {"current": "../elsewhere"},
    "an absolute name": {"current": "/etc"},
    "a name of lists": {"current": ["step-00000001-01234567"]},
    "a name with a nought": {"current": "step-00000001-0123\0567"},
    "a version that is not there": {"current": "step-00000001-01234567"},
    "a checksum that is a number": {"checksum": 5},
    "no checksum": {"checksum": None},
    "another format": {"format": ["spillgrad checkpoint"]},
}


@pytest.mark.parametrize("pointed", POINTERS.values(), ids=POINTERS)
def test_a_pointer_that_no_save_wrote_is_an_error(tmp_path, pointed):
    root = tmp_path / "saved"
    version = Run().save(root)
    shutil.copytree(version, tmp_path / "elsewhere")
    for place in (root, tmp_path):
        shutil.copy(version / "state.json", place)
    rewrite(version, json.loads((version / "state.json").read_text()), **pointed)
    for read in (Run().load, checkpoint.load_checkpoint, pretrained.read):
        with pytest.raises(CheckpointError) as caught:
            read(root)
        assert len(str(caught.value)) < 1000


INDEXES = {
    "no map": {},
    "a map that is a list": {"weight_map": []},
    "files that are numbers": {"weight_map": {"0.weight": 5}},
    "files in lists": {"weight_map": {"0.weight": ["model-00001-of-00003.safetensors"]}},
    "a file that is nothing": {"weight_map": {"0.weight": None}},
    "a file without a name": {"weight_map": {"0.weight": ""}},
    "the folder": {"weight_map": {"0.weight": "."}},
    "itself": {"weight_map": {"0.weight": "model.safetensors.index.json"}},
    "a file with a nought": {"weight_map": {"0.weight": "model\0.safetensors"}},
    "a file that is not there": {"weight_map": {"0.weight": "model-00009-of-00003.safetensors"}},
    "a tensor that is not there": {"weight_map": {"more": "model-00001-of-00003.safetensors"}},
    "nothing": {"weight_map": {}},
}


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_an_index_that_no_save_wrote_is_an_error(tmp_path, index):
    version = Run().save(tmp_path, max_shard_size=64)
    path = version / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    state = json.loads((version / "state.json").read_text())
    state["checksums"][path.name] = xxhash.xxh3_128_hexdigest(path.read_bytes())
    rewrite(version, state)
    other = Run()
    before = other.weights()
    with pytest.raises(CheckpointError):
        other.load(tmp_path)
    assert other.weights() == before


def test_a_checkpoint_of_version_1_whose_checksums_are_of_whole_files_is_loaded(tmp_path):
    saved = Run()
    saved.train(0, 1)
    version = saved.save(tmp_path)
    state = json.loads((version / "state.json").read_text())
    for name in state["checksums"]:
        state["checksums"][name] = xxhash.xxh3_128_hexdigest((version / name).read_bytes())
    rewrite(version, state, version=1)
    other = Run()
    other.load(tmp_path)
    assert other.weights() == saved.weights()
    path = version / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="its checksum is"):
        other.load(tmp_path)


@pytest.mark.parametrize("seed", range(3))
def test_a_state_altered_anywhere_is_an_error_or_still_one(tmp_path, seed):
    run = Pass()
    run.train(0, 1)
    version = run.save(tmp_path, step=3, extra={"note": ["half"]})
    whole = json.loads((version / "state.json").read_text())
    rng, outcomes = random.Random(seed), set()
    for _ in range(100):
        rewrite(version, altered(whole, rng))
        try:
            Pass().load(tmp_path)
            outcomes.add("loaded")
        except CheckpointError:
            outcomes.add("refused")
    assert outcomes == {"loaded", "refused"}


def test_what_is_too_deep_to_be_read_again_is_refused(tmp_path):
    with pytest.raises(TypeError, match="JSON cannot hold extra"):
        checkpoint.save_checkpoint(tmp_path, nn.Linear(2, 2), extra={"deep": deep(2000)})
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.save_checkpoint(tmp_path / "file" / "sub", nn.Linear(2, 2))


def test_an_offloaded_tensor_that_came_back_damaged_is_no_fault_of_the_checkpoints_place(tmp_path):
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100), nn.Linear(100, 100))
    weight = model[0].weight.numpy().copy()
    offload = sg.disk_offload(model, directory=tmp_path / "spill", ram_budget=40_400)
    saved = checkpoint.save_checkpoint(tmp_path / "saved", model, step=1)
    (path,) = offload.directory.glob("*.h5")
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(weight.tobytes()) + 1000)
        file.write(b"?")
    with pytest.raises(SpillCorruptionError, match=r"0\.weight came back damaged"):
        checkpoint.save_checkpoint(tmp_path / "saved", model, step=2)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["checkpoint.json", saved.name]


# 200 MiB in tensors of 40. A model's memory may have been larger while it was made: the peak begins anew.
MEMORY = """
import sys
import psutil
import spillgrad as sg
from spillgrad.spill.offload.needs import largest_need
from spillgrad.spill.offload.training import FRAMEWORK

def peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

directory, verb, kept, place = sys.argv[1:]
model = sg.nn.Sequential(*(sg.nn.Linear(4096, 2560, bias=False) for _ in range(5)))
optimizer = sg.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
if verb == "save":
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = sg.ones_like(parameter)
if place == "disk":
    least = largest_need(FRAMEWORK, model, optimizer).nbytes
    offload = sg.disk_offload(model, optimizer, directory + "/spill", ram_budget=least)
sg.empty_cache()
before_bytes = psutil.Process().memory_info().rss
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
getattr(sg, f"{verb}_checkpoint")(directory, model, optimizer if kept == "with" else None)
print((peak_bytes() - before_bytes) / 2**20)
"""


@pytest.mark.parametrize(
    ("state", "place"),
    [
        pytest.param("with", "RAM", marks=pytest.mark.exhaustive),
        pytest.param("without", "RAM", marks=pytest.mark.exhaustive),
        ("with", "disk"),
    ],
)
def test_saving_and_loading_need_memory_for_one_tensor(tmp_path, state, place):
    # What is loaded into a new optimizer in RAM stays: the model's size once more. On disk, the tensor before is still
    # being written while one is read, and the model's last one is in RAM.
    stay = {("with", "RAM"): 200, ("with", "disk"): 80}.get((state, place), 0)
    for verb, stays in (("save", 0), ("load", stay)):
        ended = subprocess.run(
            [sys.executable, "-c", MEMORY, str(tmp_path), verb, state, place],
            env=_environment(),
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout) < stays + 40 + 32, verb


def _offloaded(directory, seed):
    sg.manual_seed(seed)
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Dropout(0.2), nn.Linear(40, 30, bias=False))
    model[3].weight = nn.Parameter(model[0].weight.detach().t().clone())
    optimizer = AdamW(model.parameters(), lr=0.1)
    if directory is not None:
        sg.disk_offload(model, optimizer, directory, ram_budget=largest_need(FRAMEWORK, model, optimizer).nbytes)
    return model, optimizer


def _train_on_noise(model, optimizer, steps):
    losses = []
    for step in steps:
        x = sg.tensor(np.random.default_rng(step).standard_normal((5, 30)).astype(np.float32))
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("saved_on_disk", [True, False])
@pytest.mark.parametrize("loaded_on_disk", [True, False])
def test_a_model_on_disk_is_saved_and_goes_on_bit_for_bit(tmp_path, saved_on_disk, loaded_on_disk):
    parts = _offloaded(tmp_path / "one" if saved_on_disk else None, 1)
    _train_on_noise(*parts, range(3))
    checkpoint.save_checkpoint(tmp_path / "saved", *parts, max_shard_size="4KB")
    wanted = _train_on_noise(*parts, range(3, 6))
    resumed = _offloaded(tmp_path / "two" if loaded_on_disk else None, 2)
    checkpoint.load_checkpoint(tmp_path / "saved", *resumed)
    states = [value for state in resumed[1].state.values() for value in state.values() if isinstance(value, sg.Tensor)]
    assert len(states) == 6
    assert all(tensor.storage.offloaded == loaded_on_disk for tensor in (*resumed[0].parameters(), *states))
    assert _train_on_noise(*resumed, range(3, 6)) == wanted


@pytest.mark.parametrize("quantized", [False, True], ids=["float32", "nf4"])
@pytest.mark.parametrize("offloaded", [False, True])
def test_a_frozen_base_is_left_out_and_stays_where_only_adapters_are_saved(tmp_path, offloaded, quantized):
    def start(seed):
        sg.manual_seed(7)  # of the base
        model = sg.models.build("tiny")
        if quantized:
            model = nn.quantize(model.requires_grad_(False), "nf4")
        sg.manual_seed(seed)
        model = nn.lora(model, rank=2)
        optimizer = AdamW(p for p in model.parameters() if p.requires_grad)
        if offloaded:
            sg.disk_offload(model, optimizer, tmp_path / "store", ram_budget="100KiB")
        return model, optimizer

    def train(model, optimizer, steps):
        losses = []
        for step in steps:
            tokens = np.random.default_rng(step).integers(0, 256, (2, 9))
            loss = model(tokens[:, :-1].copy(), tokens[:, 1:].copy())[1]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    model, optimizer = start(1)
    train(model, optimizer, range(2))
    folder = checkpoint.save_checkpoint(tmp_path / "saved", model, optimizer, trainable_only=True)
    assert load_file(folder / "model.safetensors").keys() == nn.lora_state_dict(model).keys()
    assert not (folder / "config.json").exists()  # nobody else could load that as a model
    wanted = train(model, optimizer, range(2, 4))
    again, its_optimizer = start(2)
    checkpoint.load_checkpoint(tmp_path / "saved", again, its_optimizer)
    assert train(again, its_optimizer, range(2, 4)) == wanted


def test_adapters_of_other_layers_are_all_listed(tmp_path):
    def adapted(rank, target):
        return nn.lora(sg.models.build("tiny"), rank=rank, target=target)

    checkpoint.save_checkpoint(tmp_path, adapted(2, ["c_attn"]), trainable_only=True)
    other = adapted(3, ["c_attn", "c_fc"])
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load_checkpoint(tmp_path, other)
    for words in ("Missing key", "h.1.mlp.c_fc.lora_B.weight", "size mismatch for transformer.h.0.attn.c_attn.lora_A"):
        assert words in str(caught.value)
    assert "c_attn.weight" not in str(caught.value)
    plain = sg.models.build("tiny")
    with pytest.raises(CheckpointError, match=r"Missing key.*transformer\.wte\.weight"):
        checkpoint.load_checkpoint(tmp_path, plain)


def test_a_place_in_data_may_be_that_of_a_users_object(tmp_path):
    class Lines:
        line = 3

        def state_dict(self):
            return {"line": self.line}

        def load_state_dict(self, state):
            self.line = state["line"]

    model, data = nn.Linear(2, 2), Lines()
    checkpoint.save_checkpoint(tmp_path, model, data=data)
    data.line = 0
    checkpoint.load_checkpoint(tmp_path, model, data=data)
    assert data.line == 3


@pytest.mark.parametrize("error", [FileNotFoundError, CheckpointError])
def test_a_reader_whose_files_a_save_has_removed_reads_the_new_version(tmp_path, error):
    model = nn.Linear(2, 2)
    sg.save_checkpoint(tmp_path, model)
    seen = []

    def read(version, state):
        seen.append(version)
        if len(seen) == 1:
            sg.save_checkpoint(tmp_path, model)
            raise error("gone")
        return version.name

    assert of_current(tmp_path, read) == seen[1].name != seen[0].name
    with pytest.raises(error, match="broken"):
        of_current(tmp_path, lambda version, state: (_ for _ in ()).throw(error("broken")))
