"""Training with spilled saved tensors: the same numbers to the last bit, in less memory."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg

TOKENS = np.random.default_rng(0).integers(0, 256, (6, 4, 33))
# No derivative of this model needs more than this at once.
LARGEST_DERIVATIVE_BYTES = 256 << 10


def train(context: Callable[[], AbstractContextManager[object]]) -> tuple[list[str], list[bytes]]:
    """Train a small GPT with dropout; return the losses and the final weights, exactly."""
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in TOKENS:
        with context():
            _, loss = model(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses, [parameter.numpy().tobytes() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def unspilled() -> tuple[list[str], list[bytes]]:
    trained = train(sg.enable_grad)
    assert len(set(trained[0])) == len(TOKENS)
    return trained


@pytest.fixture(scope="module")
def saved_bytes() -> int:
    """What the model saves on a batch, each storage once."""
    model = sg.models.build("tiny", dropout=0.1)
    with tempfile.TemporaryDirectory() as directory:
        spill = sg.save_on_disk(directory, ram_budget="1GiB")
        with spill:
            _, loss = model(TOKENS[0, :, :-1], TOKENS[0, :, 1:])
        found = spill.stats().live_bytes
        loss.backward()
    return found


@pytest.mark.parametrize("share", [0, 1 / 3, 2])
@pytest.mark.parametrize("fresh", [False, True], ids=["one object", "one object for each step"])
def test_losses_and_weights_are_the_same_to_the_last_bit(
    unspilled: tuple[list[str], list[bytes]], saved_bytes: int, tmp_path: Path, share: float, fresh: bool
):
    budget = int(share * saved_bytes)
    made = []

    def make() -> sg.save_on_disk:
        if fresh or not made:
            made.append(sg.save_on_disk(tmp_path, ram_budget=budget))
        return made[-1]

    assert train(make) == unspilled
    assert len(made) == (len(TOKENS) if fresh else 1)
    for stats in (spill.stats() for spill in made):
        steps = len(TOKENS) // len(made)
        # What fits stays in RAM; the rest, or nearly, is written and read back.
        least = (1 - share) * saved_bytes * steps * 0.8
        assert stats.live_bytes == 0
        assert stats.peak_ram_bytes <= budget + LARGEST_DERIVATIVE_BYTES
        if share < 1:
            assert min(stats.written_bytes, stats.read_bytes) >= least
        else:
            assert (stats.written_bytes, stats.read_bytes) == (0, 0)


def test_two_threads_train_with_one_object(tmp_path: Path, saved_bytes: int):
    def train_on(batch: np.ndarray, model: sg.nn.Module, context: AbstractContextManager[object]) -> list[str]:
        optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for _ in range(5):
            with context:
                _, loss = model(batch[:, :-1], batch[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item().hex())
        return losses

    def models() -> list[sg.nn.Module]:
        sg.manual_seed(0)
        return [sg.models.build("tiny") for _ in range(2)]

    wanted = [train_on(TOKENS[i], model, sg.enable_grad()) for i, model in enumerate(models())]
    spill = sg.save_on_disk(tmp_path, ram_budget=saved_bytes // 2)
    got: list[list[str]] = [[], []]

    def work(i: int, model: sg.nn.Module) -> None:
        got[i] = train_on(TOKENS[i], model, spill)

    threads = [threading.Thread(target=work, args=each) for each in enumerate(models())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == wanted
    assert spill.stats().written_bytes > 0


# Each of 24 layers saves 4 MiB twice over; the weights are small.
DEEP_STACK = """
    import contextlib, resource, sys, threading, time
    import numpy as np
    import spillgrad as sg
    budget, cap_bytes = sys.argv[2], int(sys.argv[3])

    def data_bytes():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))

    sg.manual_seed(0)
    layers = [part for _ in range(24) for part in (sg.nn.Linear(128, 128), sg.nn.GELU())]
    model = sg.nn.Sequential(*layers, sg.nn.Linear(128, 1))
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    x = sg.tensor(np.random.default_rng(0).standard_normal((8192, 128)), dtype=sg.float32)

    def step(x):
        spill = sg.save_on_disk(sys.argv[1], ram_budget=budget) if budget else contextlib.nullcontext()
        with spill:
            loss = model(x).square().mean()
        after_forward.append(data_bytes())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    after_forward = []
    step(x[:2])  # loads the kernels
    resource.setrlimit(resource.RLIMIT_DATA, (cap_bytes, cap_bytes))
    losses = [step(x) for _ in range(2)]
    print(max(after_forward), *(loss.hex() for loss in losses))
"""


def run(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_training_fits_a_memory_limit_only_with_spilling(tmp_path: Path):
    no_limit = -1  # resource.RLIM_INFINITY

    def train(budget: str, cap_bytes: int) -> tuple[int, list[str]]:
        ran = run(DEEP_STACK, tmp_path, budget, cap_bytes)
        assert (ran.returncode, ran.stderr) == (0, "")
        peak, *losses = ran.stdout.split()
        return int(peak), losses

    train("", no_limit)  # compiles what the others find compiled: that takes memory, too
    unspilled_peak, wanted = train("", no_limit)
    spilled_peak, losses = train("8MiB", no_limit)
    assert losses == wanted
    assert spilled_peak < unspilled_peak - (128 << 20)
    cap_bytes = (spilled_peak + unspilled_peak) // 2
    failed = run(DEEP_STACK, tmp_path, "", cap_bytes)
    assert failed.returncode != 0
    assert "MemoryError: memory: the system gave no" in failed.stderr
    _, losses = train("8MiB", cap_bytes)
    assert losses == wanted


ENDLESS = """
    import sys
    import numpy as np
    import spillgrad as sg
    sg.manual_seed(0)
    model = sg.models.build("tiny", dropout=0.1)
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = np.zeros((4, 33), np.int64)
    with sg.save_on_disk(sys.argv[1], ram_budget=0) as spill:
        for step in range(10**9):
            _, loss = model(tokens[:, :-1], tokens[:, 1:])
            if step == 2:
                loss.register_hook(lambda grad: print(spill.directory, flush=True))
            loss.backward()
            optimizer.step()
"""


def test_a_run_killed_in_mid_step_leaves_what_the_next_run_removes(
    unspilled: tuple[list[str], list[bytes]], tmp_path: Path
):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ENDLESS), tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    orphan = Path(process.stdout.readline().strip())  # type: ignore[union-attr]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert sum(path.stat().st_blocks for path in orphan.glob("*.h5")) > 0
    spill = sg.save_on_disk(tmp_path, ram_budget=0)
    assert list(tmp_path.iterdir()) == [spill.directory]
    assert train(lambda: spill) == unspilled


KILLED_AGAIN_AND_AGAIN = """
    import os, random, signal, sys, time, warnings
    from pathlib import Path
    import numpy as np
    import spillgrad as sg
    from spillgrad.storage.disk.direct_io import speeds
    warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
    place, kills = Path(sys.argv[1]), int(sys.argv[2])
    tokens = np.zeros((4, 33), np.int64)

    def step(model, spill):
        with spill:
            _, loss = model(tokens[:, :-1], tokens[:, 1:])
        return loss

    def train(started):
        model = sg.models.build("tiny", dropout=0.1)
        spill = sg.save_on_disk(place, ram_budget=0)
        os.write(started, os.fsencode(spill.directory.name))
        while True:
            step(model, spill).backward()

    def fork(work, *arguments):
        child = os.fork()
        if child == 0:
            try:
                work(*arguments)
            finally:
                os._exit(1)
        return child

    def neighbour(started, go):
        model = sg.models.build("tiny")
        spill = sg.save_on_disk(place, ram_budget=0)
        loss = step(model, spill)
        spill.flush()
        os.write(started, os.fsencode(spill.directory.name))
        os.read(go, 1)
        assert list(spill.directory.glob("*.h5"))
        assert spill._store.check() == []
        loss.backward()
        os._exit(7)

    def name_of_run(started):
        return os.read(started, 100).decode()

    step(sg.models.build("tiny", dropout=0.1), sg.enable_grad()).backward()  # the kernels are loaded once
    speeds(place)  # and the disk is measured once
    started, write_end = os.pipe()
    go_on, go = os.pipe()
    beside = fork(neighbour, write_end, go_on)
    living = name_of_run(started)
    drawn = random.Random(0)
    dead, with_payload, left = set(), 0, set()
    for i in range(kills):
        child = fork(train, write_end)
        if i % 5:  # else at any moment from the very first
            run = name_of_run(started)
            left = {path.name for path in place.iterdir()} - {run}
            assert left == {living}, (left, living, run)  # the run before is gone, and only that
            while i % 2 and not any(path.stat().st_size for path in (place / run).glob("*.h5")):
                time.sleep(0.001)  # on a busy machine it may not have spilled yet
        time.sleep(drawn.random() ** 2 * 0.06)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        if not i % 5:  # it may have said its name, or not yet
            os.set_blocking(started, False)
            try:
                name_of_run(started)
            except BlockingIOError:
                pass
            os.set_blocking(started, True)
        with_payload += any(path.stat().st_size for path in place.glob("run-*/*.h5") if path.parent.name != living)
    os.write(go, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(beside, 0)[1]) == 7
    spill = sg.save_on_disk(place, ram_budget=0)
    assert list(place.iterdir()) == [spill.directory]
    step(sg.models.build("tiny"), spill).backward()
    print(with_payload)
"""


@pytest.mark.exhaustive
def test_runs_killed_at_any_moment_leave_only_what_the_next_run_removes(tmp_path: Path):
    ran = run(KILLED_AGAIN_AND_AGAIN, tmp_path, 50)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert int(ran.stdout) > 10  # not killed before they spilled
    assert list(tmp_path.iterdir()) == []


# A step that saves nothing makes up what it would have saved, when it is needed.
PEAK = """
    import contextlib, sys
    from pathlib import Path
    import numpy as np
    import spillgrad as sg
    budget = sys.argv[2]
    layers = [part for _ in range(24) for part in (sg.nn.Linear(256, 256), sg.nn.GELU())]
    model = sg.nn.Sequential(*layers, sg.nn.Linear(256, 1))
    optimizer = sg.optim.AdamW(model.parameters(), lr=1e-3)
    x = sg.tensor(np.random.default_rng(0).standard_normal((8192, 256)), dtype=sg.float32)

    def forget(tensor):
        return tensor if tensor.storage.trainable else (tensor.shape, tensor.dtype)

    def make_up(forgotten):
        return forgotten if isinstance(forgotten, sg.Tensor) else sg.zeros(*forgotten[0], dtype=forgotten[1])

    def context():
        if budget == "nothing saved":
            return sg.autograd.saved_tensors_hooks(forget, make_up)
        return sg.save_on_disk(sys.argv[1], ram_budget=budget) if budget else contextlib.nullcontext()

    for batch in (x[:2], x, x):
        with context():
            loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:")))
"""


def peak_bytes(directory: Path, budget: object) -> int:
    ran = run(PEAK, directory, budget)
    assert (ran.returncode, ran.stderr) == (0, "")
    return int(ran.stdout)


@pytest.fixture(scope="module")
def least_bytes(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The most memory that the process takes when nothing is saved."""
    place = tmp_path_factory.mktemp("peak")
    least = peak_bytes(place, "nothing saved")
    assert peak_bytes(place, "") > least + (300 << 20)  # else a comparison would show nothing
    return least


@pytest.mark.parametrize("budget_bytes", [pytest.param(0, marks=pytest.mark.exhaustive), 48 << 20])
def test_the_process_takes_no_more_memory_than_without_saved_tensors_but_for_the_budget(
    tmp_path: Path, least_bytes: int, budget_bytes: int
):
    assert peak_bytes(tmp_path, budget_bytes) <= least_bytes + budget_bytes + (64 << 20)
