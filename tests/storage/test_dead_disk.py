"""A disk that goes away while a store uses it is told of, and costs neither a wrong gradient nor the store."""

import re
from pathlib import Path

import pytest

from tests.ext4 import Ext4

STEPS = """
    import sys, warnings
    import spillgrad as sg

    on_full = sys.argv[3]
    x = sg.full((256, 256), 0.5, requires_grad=True)

    def forward():
        y = x * 1
        for _ in range(8):
            y = y.tanh()
        return y.sum()

    (wanted,) = sg.autograd.grad(forward(), x)
    spill = sg.save_on_disk(place, ram_budget="512KiB", on_full=on_full)
    with spill:
        loss = forward()
    cut_power()
    warnings.simplefilter("always")
    for step in range(3):
        try:
            if step > 0:
                with spill:
                    loss = forward()
            (got,) = sg.autograd.grad(loss, x)
            print("right" if (got == wanted).all() else "wrong")
        except sg.errors.SpillError as error:
            print(error)
        loss = None
"""
READ = (
    r"spill: could not read 256 KiB \(tanh\.result\) in \S+: Input/output error; check that disk, and run the step "
    r"again"
)
WRITE = (
    r"spill: could not write 256 KiB \(tanh\.result\) in \S+: Input/output error; .*; check that disk, pass another "
    r"directory, or raise ram_budget"
)
STAYS = r"meanwhile arrays stay in RAM beyond ram_budget \(on_full='ram'\)"


@pytest.mark.parametrize("on_full", ["raise", "ram"])
def test_a_disk_that_goes_away_is_told_of_and_the_store_goes_on_as_it_was_asked_to(tmp_path: Path, on_full: str):
    ran = Ext4(tmp_path / "disk").run(STEPS, on_full)
    assert ran.returncode == 0, ran.stderr
    first, *later = ran.stdout.splitlines()
    assert re.fullmatch(READ, first), first
    assert "Exception in thread" not in ran.stderr
    assert re.search(r"SpillError: spill: could not remove \S+: Input/output error; remove it by hand$", ran.stderr)
    if on_full == "ram":
        assert later == ["right", "right"]
        assert re.search(f"UserWarning: {WRITE}; {STAYS}", ran.stderr), ran.stderr
    else:
        assert [bool(re.fullmatch(WRITE, line)) for line in later] == [True, True], later
