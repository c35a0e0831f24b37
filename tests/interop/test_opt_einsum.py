"""opt_einsum plans `sg.einsum` of three and more tensors where it is installed, and contracts tensors itself."""

import os
import subprocess
import sys

import numpy as np
import opt_einsum
import pytest

import spillgrad as sg

RNG = np.random.default_rng(0)
# A chain whose two smallest operands, which are multiplied first without a plan, make the last product large.
CHAIN = "ab,bc,cd,de->ae"
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 6, "f": 2}
EQUATIONS = [
    CHAIN, "ab,bc,ca->", "ab,ab,ab->ab", "a,b,c->abc", "abc,cd,bde,e->ad", "aab,bc,cd->d", "a...b,bc,c...->a...",
    ",ab,bc->ac", "ab,bc,cd,de,ef,fa->", "ba,cb,ad",
]  # fmt: skip


def operands(equation: str) -> list[np.ndarray]:
    inputs = equation.split("->")[0].split(",")
    shapes = [
        [n for label in text.replace("...", ".") for n in ((3, 1) if label == "." else (SIZES[label],))]
        for text in inputs
    ]
    return [RNG.normal(size=shape) for shape in shapes]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_a_planned_product_is_numpys_and_differentiable(equation):
    arrays = operands(equation)
    tensors = [sg.tensor(a, requires_grad=True) for a in arrays]
    got, wanted = sg.einsum(equation, *tensors), np.einsum(equation, *arrays)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got.numpy(), wanted, 1e-9, 1e-12)
    got.sum().backward()
    assert all(x.grad.shape == x.shape for x in tensors)
    # The sum is linear in each operand.
    assert all((x.grad * x).sum().item() == pytest.approx(wanted.sum(), rel=1e-9, abs=1e-9) for x in tensors)


def test_the_plans_order_is_taken():
    shapes = [(2, 50), (50, 2), (2, 50), (50, 30)]
    path, _ = opt_einsum.contract_path(CHAIN, *shapes, shapes=True)
    x = [sg.ones(*shape, requires_grad=True) for shape in shapes]
    saved = []
    with sg.autograd.graph.saved_tensors_hooks(lambda t: saved.append(tuple(t.shape)) or t, lambda t: t):
        sg.einsum(CHAIN, *x)
    left = [tuple(s) for s in shapes]
    products = []
    for i, j in path:
        first, second = left[i], left[j]
        left = [s for place, s in enumerate(left) if place not in (i, j)]
        first, second = (first, second) if first[1] == second[0] else (second, first)
        left.append((first[0], second[1]))
        products.append({first, second, first[::-1], second[::-1]})
    pairs = [saved[k : k + 2] for k in range(0, len(saved), 2)]
    assert len(pairs) == len(products) == 3
    assert all(set(pair) <= allowed for pair, allowed in zip(pairs, products, strict=True))


CONTRACTIONS = {
    "chain": (CHAIN, {}),
    "no blas": (CHAIN, {"use_blas": False}),
    "elementwise": ("ab,ab,ab->ab", {}),
    "transposed": ("ab,bc->ca", {}),
    "tensordot": ("abc,cb->a", {}),
    "all": ("ab,bc,ca->", {}),
    "greedy": (CHAIN, {"optimize": "greedy"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_opt_einsum_contracts_tensors(name):
    equation, options = CONTRACTIONS[name]
    arrays = operands(equation)
    tensors = [sg.tensor(a, requires_grad=True) for a in arrays]
    got = opt_einsum.contract(equation, *tensors, **options)
    assert type(got) is sg.Tensor
    np.testing.assert_allclose(got.numpy(), np.einsum(equation, *arrays), 1e-9)
    got.sum().backward()
    assert all(x.grad is not None for x in tensors)


def test_a_contraction_made_before_takes_tensors():
    arrays = operands(CHAIN)
    expression = opt_einsum.contract_expression(CHAIN, *[a.shape for a in arrays])
    got = expression(*[sg.tensor(a) for a in arrays])
    np.testing.assert_allclose(got.numpy(), np.einsum(CHAIN, *arrays), 1e-9)


def run(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_opt_einsum_is_loaded_by_the_first_product_of_three():
    program = (
        "import sys, spillgrad as sg; x = sg.ones(2, 2); loaded = ['opt_einsum' in sys.modules];"
        "sg.einsum('ab,bc->ac', x, x); loaded.append('opt_einsum' in sys.modules);"
        "sg.einsum('ab,bc,cd->ad', x, x, x); loaded.append('opt_einsum' in sys.modules); print(loaded)"
    )
    assert run(program) == "[False, False, True]\n"


def test_without_opt_einsum_products_are_the_same():
    program = (
        "import sys; sys.modules['opt_einsum'] = None; import numpy as np, spillgrad as sg;"
        "arrays = [np.random.default_rng(i).normal(size=(i + 2, i + 3)) for i in range(4)];"
        "got = sg.einsum('ab,bc,cd,de->ae', *map(sg.tensor, arrays)).numpy();"
        "print(np.allclose(got, np.einsum('ab,bc,cd,de->ae', *arrays)))"
    )
    assert run(program) == "True\n"
