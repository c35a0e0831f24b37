"""The table of elementwise operations: compiled loops against the uncompiled formulas, over every kind of shape."""

import numpy as np
import pytest

from spillgrad_kernels.cpu.elementwise import elementwise
from spillgrad_kernels.jit import cache
from spillgrad_kernels.jit.compile import DISABLE_JIT
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import parameters, trace
from spillgrad_kernels.threads import dispatch
from tests.kernels.cpu.layouts import any_layout

SHAPES = [
    [(7,), (7,)],
    [(5, 7), (7,)],
    [(5, 1), (1, 7)],
    [(), (4, 3)],
    [(4, 3), ()],
    [(2, 1, 3, 1), (4, 1, 5)],
    [(3, 0), (1,)],
    [(1, 1), (1,)],
    [(6, 4, 1), (6, 1, 5)],
]


def operands_of(formula, rng, shape, dtype):
    bounds = {
        "min": -0.5, "max": 0.5, "negative_slope": 0.1, "alpha": 1.5, "beta": 2.0, "threshold": 0.3, "value": -0.7,
        "min_val": 0.3, "max_val": 0.6, "lambd": 0.5, "nan": 0.5, "posinf": 2.0, "neginf": -2.0, "n": 2,
    }  # fmt: skip
    made = []
    for name in parameters(formula):
        if name == "condition":
            made.append(rng.random(shape) > 0.5)
        elif name in bounds:
            made.append(np.array(bounds[name], dtype))
        else:
            made.append((rng.random(shape) * 0.8 + 0.1).astype(dtype))
    return made


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_of_another_formula_the_loop_alone_is_compiled(monkeypatch):
    asked = []
    read = cache.read
    monkeypatch.setattr(cache, "read", lambda name: (asked.append(name), read(name))[1])
    for formula in (lambda x, y: x * y + 3, lambda x, y: (x - y) * 7):
        asked.clear()
        elementwise(formula, "test", [np.ones(100_000, np.float32)] * 2, np.float32)
    assert [name.split(".")[:3] for name in asked if name.startswith("elementwise")] == [["elementwise", "test", "vv"]]


@pytest.mark.skipif(DISABLE_JIT, reason="nothing is compiled")
def test_for_no_elements_no_loop_is_compiled(monkeypatch):
    asked = []
    monkeypatch.setattr(cache, "read", lambda name, read=cache.read: (asked.append(name), read(name))[1])
    none = elementwise(lambda x: x * 5 - 1, "none", [np.ones((0, 3), np.float32)], np.float32)
    assert none.shape == (0, 3)
    assert [name for name in asked if "none" in name] == []
    some = elementwise(lambda x: x * 5 - 1, "none", [np.ones((1, 3), np.float32)], np.float32)
    assert some.tolist() == [[4, 4, 4]]
    assert [name for name in asked if "none" in name] != []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROWS)
def test_a_compiled_row_agrees_with_its_formula(name, dtype):
    rng = np.random.default_rng(0)
    row = ROWS[name]
    formulas = {name: row.forward, **{f"{name}.{source}": formula for source, formula in row.derivatives.items()}}
    for kernel_name, formula in formulas.items():
        operands = operands_of(formula, rng, (3, 5), dtype)
        if name == "acosh":
            operands = [operand + 1 for operand in operands]
        wanted = np.asarray(formula(*[o.astype(np.float64) if o.dtype != bool else o for o in operands]))
        result = elementwise(formula, kernel_name, operands, np.bool_ if wanted.dtype == bool else dtype)
        tolerance = 2e-5 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(
            result.astype(np.float64),
            np.broadcast_to(wanted.astype(np.float64), result.shape),
            rtol=tolerance,
            atol=tolerance,
            err_msg=kernel_name,
        )


@pytest.mark.parametrize("shapes", SHAPES)
def test_operands_broadcast_as_in_numpy(shapes):
    rng = np.random.default_rng(1)
    a, b = (rng.random(shape).astype(np.float32) for shape in shapes)
    result = elementwise(ROWS["sub"].forward, "sub", [a, b], np.float32)
    assert result.shape == (a - b).shape
    assert np.array_equal(result, a - b)


@pytest.mark.parametrize("shape", [(), (7,), (1, 5), (4, 6), (70, 130), (3, 1, 4), (2, 3, 4, 5), (5, 2), (1, 1, 1)])
def test_any_strides_are_walked_in_operands_and_in_out(shape):
    rng = np.random.default_rng(len(shape))
    for _ in range(30):
        shapes = [shape, tuple(1 if rng.random() < 0.3 else n for n in shape)[rng.integers(len(shape) + 1) :]]
        a, b, out = (any_layout(rng, s) for s in (*shapes, shape))
        wanted = a - b
        assert np.array_equal(elementwise(ROWS["sub"].forward, "sub", [a, b], np.float32), wanted)
        assert elementwise(ROWS["sub"].forward, "sub", [a, b], np.float32, out) is out
        assert np.array_equal(out, wanted)
        elementwise(ROWS["sub"].forward, "sub", [a, b], np.float32, a)
        assert np.array_equal(a, wanted)


def test_out_receives_the_result_and_may_be_an_operand():
    a = np.arange(5, dtype=np.float32)
    assert elementwise(ROWS["add"].forward, "add", [a, a], np.float32, a) is a
    assert np.array_equal(a, [0, 2, 4, 6, 8])


def test_an_array_whose_elements_lie_across_each_other_s_places_is_read_where_they_are():
    record = np.zeros(100, [("name", "S3"), ("x", "f4"), ("y", "f8")])  # 15 bytes apart, and never aligned
    record["x"], record["y"] = np.arange(100), -np.arange(100)
    for field, dtype in (("x", np.float32), ("y", np.float64)):
        assert np.array_equal(elementwise(ROWS["neg"].forward, "neg", [record[field]], dtype), -record[field])


def test_a_numpy_scalar_is_an_operand():
    result = elementwise(ROWS["add"].forward, "add", [np.float32(2), np.ones(3, np.float32)], np.float32)
    assert np.array_equal(result, [3, 3, 3])


def test_results_do_not_depend_on_the_number_of_threads():
    x = np.random.default_rng(2).standard_normal(300_001).astype(np.float32)
    before = dispatch.get_num_threads()
    try:
        results = []
        for threads in (1, 2):
            dispatch.set_num_threads(threads)
            results.append(elementwise(ROWS["gelu_tanh"].forward, "gelu_tanh", [x], np.float32))
    finally:
        dispatch.set_num_threads(before)
    assert np.array_equal(*results)


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(ValueError, match="broadcast"):
        elementwise(ROWS["add"].forward, "add", [np.ones(3), np.ones(4)], np.float64)
    with pytest.raises(ValueError, match=r"add: got out of shape \(3,\); the result has shape \(2, 3\)"):
        elementwise(ROWS["add"].forward, "add", [np.ones((2, 3)), np.ones(3)], np.float64, np.ones(3))


def test_equal_subexpressions_are_computed_once():
    body = trace(lambda self: (self * self) + (self * self))
    assert body.lines == ["t0 = in_self * in_self", "t1 = t0 + t0"]


def test_what_no_result_needs_is_left_out():
    assert trace(lambda self: (self * 3, self + 1)[1]).lines == ["t1 = in_self + c1_0_float"]


def test_a_branch_on_a_value_is_refused():
    with pytest.raises(TypeError, match="where"):
        trace(lambda self: self if self > 0 else -self)
