"""A power cut at any moment leaves a whole checkpoint: the one that was saved last, or the one that was being saved."""

from pathlib import Path

import pytest

from tests.ext4 import Ext4

ROUNDS = """
    import random, threading, warnings
    import spillgrad as sg

    warnings.simplefilter("ignore")  # former versions cannot be removed either, and stay until the next save
    seconds = random.Random(0)
    saved = 0
    for cut in range(8):
        cut_off = threading.Timer(seconds.uniform(0.02, 0.3), cut_power)
        cut_off.start()
        step = saved
        try:
            while True:
                save(step + 1)
                step += 1
        except sg.errors.CheckpointError as error:
            assert "Input/output error" in str(error), error
        cut_off.join()
        restart()
        if step or exists():
            saved, is_whole = load()
            assert saved in (step, step + 1), (saved, step)
            assert is_whole, saved
    assert saved > 8, saved
"""
CHECKPOINT = """
    import spillgrad as sg

    model = sg.nn.Linear(400, 300)
    optimizer = sg.optim.AdamW(model.parameters())

    def save(step):
        for parameter in model.parameters():
            parameter.data.fill_(step)
        sg.save_checkpoint(place + "/run", model, optimizer, step=step)

    def exists():
        return os.path.exists(place + "/run/checkpoint.json")

    def load():
        step = sg.load_checkpoint(place + "/run", model, optimizer)["step"]
        return step, all(bool((parameter == step).all()) for parameter in model.parameters())
"""
FILE = """
    import spillgrad as sg

    def save(step):
        sg.save({"step": step, "w": sg.full((400, 300), float(step))}, place + "/weights")

    def exists():
        return os.path.exists(place + "/weights")

    def load():
        saved = sg.load(place + "/weights")
        return saved["step"], bool((saved["w"] == saved["step"]).all())
"""

# What was there and what comes change places in one step.
EXPORT = """
    import spillgrad as sg
    from spillgrad.files import safetensors_io

    model = sg.nn.lora(sg.nn.Sequential(sg.nn.Linear(400, 300)), rank=64)
    folder = place + "/adapters"

    def save(step):
        for parameter in model.parameters():
            parameter.data.fill_(step)
        sg.models.to_peft(model, folder, "base")

    def exists():
        return os.path.exists(folder)

    def load():
        tensors = safetensors_io.read(safetensors_io.absolute(folder) / "adapter_model.safetensors").values()
        values = {value for tensor in tensors for value in tensor.tensor().numpy().ravel().tolist()}
        assert os.path.exists(folder + "/adapter_config.json")
        return int(min(values)), len(values) == 1
"""


@pytest.mark.parametrize("functions", [CHECKPOINT, FILE, EXPORT], ids=["checkpoint", "file", "export"])
def test_a_power_cut_at_any_moment_leaves_what_was_saved_last(tmp_path: Path, functions: str):
    ran = Ext4(tmp_path / "disk").run(functions + ROUNDS)
    assert (ran.stderr, ran.returncode) == ("", 0)


SPILL = """
    import spillgrad as sg

    x = sg.ones(400, 400, requires_grad=True)
    with sg.save_on_disk(place, ram_budget=0) as spill:
        y = x.tanh().tanh()
    spill.flush()
    os.sync()
    cut_power()
    os._exit(0)
"""
SPILL_AGAIN = """
    import spillgrad as sg

    (left,) = [name for name in os.listdir(place) if name.startswith("run-")]
    x = sg.ones(400, 400, requires_grad=True)
    with sg.save_on_disk(place, ram_budget=0) as spill:
        y = x.tanh()
    assert [spill.directory.name] == [name for name in os.listdir(place) if name.startswith("run-")]
    assert spill.directory.name != left
    y.sum().backward()
"""


def test_what_a_run_left_when_the_power_was_cut_goes_with_the_next_run(tmp_path: Path):
    disk = Ext4(tmp_path / "disk")
    assert disk.run(SPILL).stderr == ""
    ran = disk.run(SPILL_AGAIN)
    assert (ran.returncode, ran.stderr) == (0, "")
