"""A place where nothing may be written is refused before anything is done, in one line that says what to do."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
    import sys
    import spillgrad as sg

    for make in (
        lambda: sg.save_on_disk(sys.argv[1], ram_budget=0),
        lambda: sg.save_on_disk(sys.argv[1] + "/new", ram_budget=0),
        lambda: sg.save_on_disk(sys.argv[2], ram_budget=0, keep_journal=sys.argv[1] + "/run.jsonl"),
        lambda: sg.save_checkpoint(sys.argv[1] + "/run", sg.nn.Linear(3, 3)),
    ):
        try:
            make()
            print("made")
        except (sg.errors.SpillError, sg.errors.CheckpointError) as error:
            print(error)
"""


def read_only(place: Path) -> tuple[str, ...]:
    """The start of a command that runs with a read-only file system at `place`."""
    own_mounts = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
    mount = f"mount -t tmpfs -o ro none {place}"
    if shutil.which("unshare") is None or subprocess.run([*own_mounts, mount], capture_output=True).returncode:
        pytest.skip("this system does not let users mount a file system")
    return (*own_mounts, f'{mount} && exec "$@"', "sh")


def without_permission(place: Path) -> tuple[str, ...]:
    """The start of a command that may not write to `place`, even if root runs it."""
    place.chmod(0o500)
    if os.geteuid() != 0:
        return ()
    if shutil.which("setpriv") is None:
        pytest.skip("root may write anywhere")
    return ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")


@pytest.mark.parametrize(
    ("refusing", "reason"), [(read_only, "Read-only file system"), (without_permission, "Permission denied")]
)
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_done(tmp_path: Path, refusing, reason: str):
    place, spill = tmp_path / "place", tmp_path / "spill"
    place.mkdir()
    spill.mkdir(mode=0o700)
    ran = subprocess.run(
        [*refusing(place), sys.executable, "-c", textwrap.dedent(PROGRAM), str(place), str(spill)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines() == [
        f"spill: cannot use {place}: {reason}; pass a directory that can be written",
        f"spill: cannot use {place}/new: {reason}; pass a directory that can be written",
        f"spill: cannot keep a journal at {place}/run.jsonl: {reason}; name a file in a folder that can be written",
        f"checkpoint: {place}/run cannot be written ({reason}); free space there or give another directory",
    ]
    assert list(place.iterdir()) == list(spill.iterdir()) == []
