"""einops on tensors: NumPy's results, gradients, and registration without an import of einops by spillgrad."""

import os
import subprocess
import sys

import einops
import einops.array_api
import numpy as np
import pytest

import spillgrad as sg
import spillgrad.interop.einops

A = np.random.default_rng(0).normal(size=(2, 6, 4))
MASK = A > 0

CASES = {
    "rearrange": lambda e, x: e.rearrange(x, "b (h d) t -> b h t d", h=2),
    "rearrange and split": lambda e, x: e.rearrange(x, "b (h d) (t u) -> (b h u) d t", d=3, u=2),
    "rearrange a list": lambda e, x: e.rearrange([x, x * 2], "n b h w -> (n b) (h w)"),
    "rearrange ellipsis": lambda e, x: e.rearrange(x, "b ... -> ... b 1"),
    "repeat": lambda e, x: e.repeat(x, "b h w -> b (h 2) (k w)", k=3),
    "repeat an axis": lambda e, x: e.repeat(x, "b h w -> b n h w", n=5),
    "sum": lambda e, x: e.reduce(x, "b h w -> b w", "sum"),
    "mean pooling": lambda e, x: e.reduce(x, "b (h p) (w q) -> b h w", "mean", p=3, q=2),
    "max pooling": lambda e, x: e.reduce(x, "b (h p) w -> b h w ()", "max", p=2),
    "min": lambda e, x: e.reduce(x, "b h w -> h", "min"),
    "prod": lambda e, x: e.reduce(x, "b h w -> ", "prod"),
    "einsum": lambda e, x: e.einsum(x, x, "batch head t, batch head u -> batch t u"),
    "pack": lambda e, x: e.pack([x, x[:, :, 0]], "b *")[0],
    "unpack": lambda e, x: e.unpack(e.pack([x, x[:, :, :2]], "b h *")[0], [(4,), (2,)], "b h *")[1],
}


@pytest.mark.parametrize("name", CASES)
def test_einops_gives_what_it_gives_for_numpy_and_gradients_flow(name):
    x = sg.tensor(A, requires_grad=True)
    got, wanted = CASES[name](einops, x), CASES[name](einops, A)
    np.testing.assert_allclose(got.numpy(), wanted, 1e-12)
    weights = sg.tensor(np.random.default_rng(1).normal(size=wanted.shape))
    (got * weights).sum().backward()
    step = 1e-6 * np.random.default_rng(2).normal(size=A.shape)
    moved = (CASES[name](einops, A + step) - CASES[name](einops, A - step)) * weights.numpy() / 2
    assert (x.grad.numpy() * step).sum() == pytest.approx(moved.sum(), rel=1e-5, abs=1e-14)


@pytest.mark.parametrize("name", [name for name in CASES if name != "einsum"])
def test_einops_by_the_array_api_needs_no_registration(name):
    x = sg.tensor(A, requires_grad=True)
    got = CASES[name](einops.array_api, x)
    np.testing.assert_allclose(got.numpy(), CASES[name](einops, A), 1e-12)
    assert got.requires_grad


@pytest.mark.parametrize("reduction", ["any", "all"])
def test_truth_values_are_reduced(reduction):
    got = einops.reduce(sg.tensor(MASK), "b (h p) w -> h w", reduction, p=3)
    assert got.tolist() == einops.reduce(MASK, "b (h p) w -> h w", reduction, p=3).tolist()


def test_shapes_and_values_are_read():
    x = sg.tensor(A, requires_grad=True)
    assert einops.parse_shape(x, "b _ w") == {"b": 2, "w": 4}
    assert np.shares_memory(einops.asnumpy(x), x.numpy())
    assert einops.rearrange(x, "b h w -> b (h w)").storage is x.storage  # a view


def test_the_mean_of_integers_is_refused_as_everywhere_in_einops():
    with pytest.raises(NotImplementedError, match="not available for non-floating"):
        einops.reduce(sg.arange(4), "a -> ", "mean")


def run(program: str, **environment: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_the_module_named_after_it_imports_einops():
    program = (
        "import sys, spillgrad; print('einops' in sys.modules, 'spillgrad.interop.einops' in sys.modules);"
        "import spillgrad.interop.einops; from einops import rearrange;"
        "print(rearrange(spillgrad.zeros(2, 3), 'a b -> b a').shape)"
    )
    assert run(program) == "False False\n(3, 2)\n"


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    program = (
        "import sys; sys.modules['einops'] = None\n"
        "try: import spillgrad.interop.einops\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    assert run(program) == "spillgrad.interop.einops: got no package einops; pip install einops\n"
