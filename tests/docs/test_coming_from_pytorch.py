"""The page for people who come from PyTorch tells the truth: its programs run, its names exist, its refusals say what
they say."""

import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spillgrad
from spillgrad.errors import SpillgradError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/coming_from/pytorch.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
SECTIONS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^###? |\Z)", PAGE, re.M | re.S))
HAVE = {
    name for title in ("Done", "Accepted, without effect") for name in re.findall(r"`torch\.([\w.]+)`", SECTIONS[title])
}
REFUSED = re.findall(r"^\| `(torch.*?)` \| (.*) \|$", SECTIONS["Refused"], re.M)


def found(path):
    """Return what stands at a path of names, importing modules on the way."""
    names = path.split(".")
    for count in range(len(names), 0, -1):
        try:
            module = importlib.import_module(".".join(["spillgrad", *names[:count]]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, names[count:], module)
    return functools.reduce(getattr, names, spillgrad)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_runs_as_printed(program, tmp_path):
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "kernels"))
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", sorted(HAVE))
def test_a_name_it_lists_exists(name):
    assert hasattr(spillgrad, name.split(".")[0])  # also after `import spillgrad` alone
    found(name)


def test_a_name_that_does_not_exist_is_found():
    with pytest.raises(AttributeError):
        found("nn.modules.conv.Conv9d")


@pytest.mark.parametrize(("call", "says"), REFUSED)
def test_what_it_lists_as_refused_says_what_to_do(call, says):
    with pytest.raises(SpillgradError) as raised:
        eval(call, {"torch": spillgrad})
    assert says in str(raised.value)


def test_the_tables_are_read():
    assert (len(PROGRAMS), len(REFUSED)) == (4, 20)
    assert len(HAVE) > 150
