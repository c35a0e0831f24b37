"""The edit that CONTRIBUTING.md shows for an elementwise operation, on a copy of the tree: what it promises works."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FUNCTION = """
import pydoc
import numpy as np, spillgrad as sg
from spillgrad.autograd import gradcheck, gradgradcheck

assert sg.__file__.startswith(ROOT)
values = np.array([-27.0, -1e-3, 0.0, 0.5, 8.0, 1e300, np.inf])
x = sg.tensor(values)

np.testing.assert_allclose(sg.cbrt(x).numpy(), np.cbrt(values), 1e-15)
np.testing.assert_allclose(sg.cbrt(x[:5].float()).numpy(), np.cbrt(values[:5]), 1e-6)
assert sg.cbrt(sg.tensor([8, 27])).tolist() == [2.0, 3.0]
assert "cbrt" in sg.__all__ and sg.Tensor.cbrt is sg.cbrt
assert x.clone().cbrt_().equal(sg.cbrt(x)) and "cbrt_" in dir(x)
assert isinstance(np.cbrt(x), sg.Tensor) and np.cbrt(x).equal(sg.cbrt(x))
assert sg.array_api.cbrt(x).equal(sg.cbrt(x)) and "cbrt" in sg.array_api.__all__

leaf = sg.tensor([-2.0, 0.5, 3.0], dtype="float64", requires_grad=True)
y = sg.cbrt(leaf)
assert y.grad_fn.name() == "CbrtBackward0"
assert [n for n in dir(y.grad_fn) if n.startswith("_saved_")] == ["_saved_result"]
assert gradcheck(sg.cbrt, (leaf,)) and gradgradcheck(sg.cbrt, (leaf,))
assert gradcheck(lambda t: (t * 1).cbrt_(), (leaf,))

fused = sg.fuse(lambda t: sg.cbrt(t) * 2)
np.testing.assert_allclose(fused(leaf).numpy(force=True), 2 * np.cbrt(leaf.numpy(force=True)), 1e-15)
assert gradcheck(fused, (leaf,)) and gradgradcheck(fused, (leaf,))

for function in (sg.cbrt, sg.array_api.cbrt):
    assert "Return the cube root of each element." in pydoc.render_doc(function, renderer=pydoc.plaintext)
assert sg.Tensor.cbrt_.__doc__
print("works")
"""
DEVICE = """
import numpy as np, spillgrad as sg
x = sg.tensor([-27.0, 0.5, 8.0], device="cuda", requires_grad=True)
y = sg.cbrt(x)
y.sum().backward()
roots = np.cbrt([-27.0, 0.5, 8.0])
assert y.is_cuda and x.grad.is_cuda
np.testing.assert_allclose(y.numpy(force=True), roots, 1e-6)
np.testing.assert_allclose(x.grad.numpy(force=True), 1 / (3 * roots**2), 1e-5)
print("works")
"""


def edit_of(text):
    """What the only diff in a text says, by path: lines of a place as they are, and as they become."""
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", text, re.M | re.S)
    for path, body in re.findall(r"^--- (\S+)\n(.*?)(?=^--- |\Z)", diff, re.M | re.S):
        # A place ends before what follows an added line.
        for place in re.findall(r"(?:^(?:-.*| .*)\n)+(?:^\+.*\n)+", body, re.M):
            lines = place.splitlines()
            yield path, [x[1:] for x in lines if x[0] != "+"], [x[1:] for x in lines if x[0] != "-"]


@pytest.fixture(scope="module")
def edited(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    for package in ("spillgrad", "kernels"):
        shutil.copytree(REPOSITORY / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    touched = []
    for path, old, new in edit_of((REPOSITORY / "CONTRIBUTING.md").read_text()):
        text = (root / path).read_text()
        before = "".join(f"{line}\n" for line in old)
        assert text.count(before) == 1, f"{path} has not, or more than once:\n{before}"
        (root / path).write_text(text.replace(before, "".join(f"{line}\n" for line in new)))
        touched.append(path)
    table = "kernels/spillgrad_kernels/tables/elementwise_derivatives.py"
    assert set(touched) == {table, "spillgrad/ops/arithmetic.py"}
    # The standard has no cube root: its name is declared here to see that the argument does what it says.
    family = root / "spillgrad/ops/arithmetic.py"
    declared = re.sub(r"^(cbrt = .*numpy=True)", r"\1, standard=True", family.read_text(), flags=re.M)
    assert declared != family.read_text()
    family.write_text(declared)
    return root


@pytest.mark.parametrize(
    ("program", "variables"),
    [(FUNCTION, {}), pytest.param(DEVICE, {"NUMBA_ENABLE_CUDASIM": "1"}, marks=pytest.mark.exhaustive)],
)
def test_the_edit_that_contributing_shows_is_all_that_an_operation_needs(edited, program, variables):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"ROOT = {str(edited)!r}\n{program}"],
        env={**os.environ, **variables, "PYTHONPATH": f"{edited}:{edited}/kernels", "XDG_CACHE_HOME": str(edited)},
        cwd=edited, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stderr == ""
    assert (done.stdout, done.returncode) == ("works\n", 0)
