"""APOLLO: the reference's steps, projections by seed, and what its options may be."""

import json
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn, optim
from spillgrad.errors import ArgumentError, ComplexDtypeError
from tests.peers.record_apollo import CASES, RECORD, groups, starts_and_gradients


class Given(optim.APOLLOAdamW):
    """Takes the projections that the reference has drawn."""

    drawn: dict[str, Any]

    def projection(self, seed: int, place: int, number: int, shape: tuple[int, int]) -> sg.Tensor:
        found = sg.tensor(self.drawn[f"{place} {number}"])
        assert tuple(found.shape) == shape
        return found


@pytest.mark.parametrize("case", range(len(CASES)))
def test_twenty_steps_end_where_those_of_the_reference_do(case: int):
    options, of_matrices = CASES[case]
    record = json.loads(RECORD.read_text())[case]
    starts, gradients = starts_and_gradients()
    params = [nn.Parameter(sg.tensor(start)) for start in starts]
    optimizer = Given(groups(params, of_matrices), **options)
    optimizer.drawn = record["projections"]
    for of_step in gradients:
        for param, gradient in zip(params, of_step, strict=True):
            param.grad = sg.tensor(gradient)
        optimizer.step()
    for param, end in zip(params, record["ends"], strict=True):
        np.testing.assert_allclose(param.detach().numpy(), np.array(end, np.float32), rtol=1e-6, atol=1e-6)


SHAPES = [(30, 20), (20, 30), (9,)]


def trained(steps: int = 5, dtype: str = "float32", **options: Any) -> tuple[list[np.ndarray], optim.Optimizer]:
    random = np.random.default_rng(0)
    params = [nn.Parameter(sg.tensor(random.standard_normal(shape)).to(dtype)) for shape in SHAPES]
    optimizer = optim.APOLLOAdamW(params, lr=0.01, **{"rank": 4, "update_proj_gap": 2, **options})
    for _ in range(steps):
        for param in params:
            param.grad = sg.tensor(random.standard_normal(param.shape)).to(dtype)
        optimizer.step()
    return [param.detach().float().numpy() for param in params], optimizer


def test_a_seed_gives_the_same_steps_and_another_one_others():
    sg.manual_seed(1)
    first, _ = trained(seed=3)
    sg.manual_seed(2)
    sg.rand(7)
    again, _ = trained(seed=3)
    other, _ = trained(seed=4)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert [np.array_equal(a, b) for a, b in zip(first, other, strict=True)] == [False, False, True]


def test_matrices_and_gaps_have_projections_of_their_own():
    optimizer = optim.APOLLOAdamW([nn.Parameter(sg.ones(3, 3))], rank=2)
    drawn = [optimizer.projection(0, place, number, (2, 5000)).numpy() for place in (1, 2) for number in (0, 1)]
    assert len({each.tobytes() for each in drawn}) == 4
    for each in drawn:
        assert each.var() == pytest.approx(1 / 2, rel=0.05)
        assert each.mean() == pytest.approx(0, abs=0.03)


def test_the_random_numbers_of_a_program_stay_as_they_are():
    sg.manual_seed(0)
    wanted = sg.rand(3).numpy()
    sg.manual_seed(0)
    trained()
    assert np.array_equal(sg.rand(3).numpy(), wanted)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_steps_of_another_dtype_follow_those_of_float32(dtype: str):
    wanted, _ = trained()
    found, optimizer = trained(dtype=dtype)
    near = {"float64": 1e-5, "float16": 2e-2, "bfloat16": 0.1}[dtype]
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=near)
    state = next(iter(optimizer.state.values()))
    assert str(state["exp_avg"].dtype) == ("float64" if dtype == "float64" else "float32")


def test_a_resumed_optimizer_goes_on_bit_for_bit():
    wanted, _ = trained(steps=5, seed=5)
    random = np.random.default_rng(0)
    params = [nn.Parameter(sg.tensor(random.standard_normal(shape)).to("float32")) for shape in SHAPES]
    optimizer = optim.APOLLOAdamW(params, lr=0.01, rank=4, update_proj_gap=2, seed=5)
    for step in range(5):
        if step == 3:
            resumed = optim.APOLLOAdamW(params, lr=7.0)
            resumed.load_state_dict(optimizer.state_dict())
            optimizer = resumed
        for param in params:
            param.grad = sg.tensor(random.standard_normal(param.shape)).to("float32")
        optimizer.step()
    assert all(np.array_equal(param.detach().numpy(), each) for param, each in zip(params, wanted, strict=True))


def test_the_state_is_that_of_a_few_rows():
    _, optimizer = trained()
    sizes = [tuple(state["exp_avg"].shape) for state in optimizer.state.values()]
    assert sizes == [(30, 4), (4, 30), (9,)]
    group = optimizer.param_groups[0]
    assert [optimizer.state_bytes(param, group) for param in group["params"]] == [960, 960, 72]


REFUSED = [
    ({"rank": 0}, "got rank 0; wanted a whole number from 1 on, or None"),
    ({"rank": 1.5}, "got rank 1.5"),
    ({"scale": 0.0}, "got scale 0.0; it must be above 0"),
    ({"scale_type": "row"}, "got scale_type 'row'; wanted channel or tensor"),
    ({"update_proj_gap": 0}, "got update_proj_gap 0"),
    ({"seed": -1}, "got seed -1; wanted a whole number from 0 on"),
    ({"lr": -1.0}, "got lr -1.0; it must not be negative"),
    ({"betas": (0.9, 1.0)}, "got betas"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED)
def test_an_option_out_of_its_range_is_named(options: dict[str, Any], says: str):
    with pytest.raises(ArgumentError, match=f"APOLLOAdamW: {says}"):
        optim.APOLLOAdamW([nn.Parameter(sg.ones(2, 2))], **options)


@pytest.mark.parametrize("option", [{"proj": "svd"}, {"proj_type": "left"}])
def test_projections_that_are_not_there_are_named(option: dict[str, str]):
    with pytest.raises(ArgumentError, match=r"APOLLOAdamW: got proj\w* '\w+'; only '\w+' is known"):
        optim.APOLLOAdamW([{"params": [nn.Parameter(sg.ones(2, 2))], "rank": 1, **option}])


def test_complex_parameters_are_refused():
    with pytest.raises(ComplexDtypeError, match="its numbers are real"):
        optim.APOLLOAdamW([nn.Parameter(sg.ones(2, dtype="complex64"))])
