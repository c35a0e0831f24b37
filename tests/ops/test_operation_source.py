"""The code written for operations: what it looks like, and that its variants do the same."""

import textwrap
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.autograd.graph import saved_tensors_hooks
from spillgrad.ops import operation_source
from spillgrad.ops.elementwise import OPERATIONS
from spillgrad.ops.join_split import _cat
from spillgrad.ops.operation import operation
from tests.ops.checks import leaf


@pytest.mark.parametrize(
    "source", [lambda s: operation_source.call_source(s, made=False), operation_source.apply_source]
)
def test_the_documented_code_is_what_is_written(source):
    written = textwrap.indent(source(OPERATIONS["mul"].structure), "    ")
    assert operation_source.__doc__ is not None and written in operation_source.__doc__


def test_operations_of_one_structure_share_their_code():
    sin, cos = OPERATIONS["sin"], OPERATIONS["cos"]
    assert sin.structure == cos.structure
    assert sin.run.__code__.co_code is cos.run.__code__.co_code
    assert (sin.run.__name__, cos.run.__name__) == ("sin", "cos")


@pytest.mark.parametrize("count", [operation_source.UNROLLED - 1, operation_source.UNROLLED + 1])
def test_many_inputs_behave_as_few(count):
    values = np.linspace(0.5, 2.5, count)
    packed: list[float] = []

    def pack(tensor: sg.Tensor) -> sg.Tensor:
        packed.append(tensor.item())
        return tensor

    names = [f"in{i}" for i in range(count)]

    def of_others(name: str) -> Any:
        others = [other for other in names if other != name]
        return eval(f"lambda g, {', '.join(others)}: g * {' * '.join(others)}")

    forward = eval(f"lambda {', '.join(names)}: {' * '.join(names)}")
    product = operation("product", forward, **{name: of_others(name) for name in names})
    leaves = [leaf(value) for value in values]
    leaves[1].requires_grad = False
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = product(*leaves)
    assert packed == values.tolist()
    assert [node is None for node, _ in result.grad_fn.next_functions] == [i == 1 for i in range(count)]
    result.backward()
    expected = [None if i == 1 else np.prod(np.delete(values, i)) for i in range(count)]
    assert [x.grad is None for x in leaves] == [e is None for e in expected]
    np.testing.assert_allclose(
        [x.grad.item() for x in leaves if x.grad is not None], [e for e in expected if e is not None], rtol=1e-14
    )


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_a_concatenation_of_any_number_of_tensors_has_the_same_gradient(count):
    leaves = [leaf(np.full(i % 3 + 1, float(i))) for i in range(count)]
    joined = sg.cat(leaves)
    weights = np.arange(float(joined.numel()))
    (joined * sg.tensor(weights)).sum().backward()
    np.testing.assert_array_equal(np.concatenate([x.grad.numpy() for x in leaves]), weights)
    assert _cat(count).structure.listed == (count + 2 > operation_source.UNROLLED)


def test_the_code_for_thousands_of_inputs_is_as_short_as_for_ten():
    few, many = (_cat(count).structure for count in (10, 4000))
    for source in (lambda s: operation_source.call_source(s, made=False), operation_source.apply_source):
        assert len(source(many)) < len(source(few)) + 20


def test_a_gradient_that_several_inputs_share_is_copied_by_each_leaf():
    x, y = leaf([1.0, 2.0]), leaf([3.0, 4.0])
    g = sg.tensor(np.ones(2))
    (x + y).backward(g)
    x.grad.add_(5)
    assert y.grad.tolist() == [1.0, 1.0] and g.tolist() == [1.0, 1.0]
