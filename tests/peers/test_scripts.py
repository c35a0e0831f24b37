"""Training scripts written for PyTorch run after changing only their imports, and from the same weights their losses
are PyTorch's.

The losses in `records/scripts.json` were printed by PyTorch: `python -m tests.peers.test_scripts` writes them anew.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.peers import peer

SCRIPTS = sorted(path.stem for path in (peer.HERE / "scripts").glob("*.py"))
QUICK = ("gpt", "lstm", "resnet", "vae")
LOSSES = peer.HERE / "records" / "scripts.json"
# The losses of two networks that train against each other do not fall.
NOT_FALLING = ("gan",)


def printed(python, source, **environment):
    """Return the list that a script prints."""
    done = subprocess.run(
        [python, "-c", source], cwd=peer.ROOT, capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def source(script):
    return (peer.HERE / "scripts" / f"{script}.py").read_text()


def with_our_imports(text):
    text = re.sub(r"^import torch$", "import spillgrad as torch", text, flags=re.MULTILINE)
    return re.sub(r"^(import|from) torch\b", r"\1 spillgrad", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "script",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in SCRIPTS],
)
def test_a_script_for_pytorch_gives_its_losses_after_changing_only_the_imports(script):
    text = with_our_imports(source(script))
    assert not re.search(r"^ *(import|from) torch\b", text, flags=re.MULTILINE)
    losses = printed(sys.executable, text, PYTHONPATH=os.pathsep.join(peer.PATHS))
    np.testing.assert_allclose(losses, json.loads(LOSSES.read_text())[script], rtol=0, atol=1e-4)
    assert script in NOT_FALLING or losses[-2] < 0.8 * losses[0]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_stored_losses_are_pytorchs(script):
    losses = printed(peer.python("torch"), source(script))
    np.testing.assert_allclose(losses, json.loads(LOSSES.read_text())[script], rtol=0, atol=1e-4)


if __name__ == "__main__":
    found = {script: [round(loss, 6) for loss in printed(sys.executable, source(script))] for script in SCRIPTS}
    LOSSES.write_text(json.dumps(found, indent=1) + "\n")
