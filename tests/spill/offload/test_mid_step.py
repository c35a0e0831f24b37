"""What a user does to parameters and gradients in the middle of a step has the effect that it has in RAM, or raises."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import GraphError
from spillgrad.spill.offload.needs import largest_need
from spillgrad.spill.offload.training import FRAMEWORK

X = np.random.default_rng(0).standard_normal((16, 40)).astype(np.float32)


class Run:
    """Three steps of a small model, in RAM or offloaded, into which a test reaches."""

    def __init__(self, directory: Path | None, **options: object) -> None:
        sg.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 40), nn.Linear(40, 1))
        self.optimizer = sg.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.offload = None
        if directory is not None:
            budget = largest_need(FRAMEWORK, self.model, self.optimizer).nbytes
            self.offload = sg.disk_offload(self.model, self.optimizer, directory, ram_budget=budget, **options)

    def param(self) -> nn.Parameter:
        return self.model[2].weight  # type: ignore[no-any-return]

    def churn(self) -> None:
        """Have what is in RAM evicted, as far as nobody holds it."""
        for module in self.model:
            with sg.no_grad():
                module(sg.ones(1, module.weight.shape[1]) if isinstance(module, nn.Linear) else sg.ones(1))

    def steps(self, **touch: Callable[["Run"], None]) -> list[np.ndarray]:
        for number in range(3):
            calls = touch if number == 1 else {}
            result = self.model(sg.tensor(X))
            if "in_backward" in calls:
                result.register_hook(lambda grad, touch=calls["in_backward"]: self._touch(touch))
            loss = result.square().mean()
            self._touch(calls.get("after_forward"))
            loss.backward()
            self._touch(calls.get("after_backward"))
            self.optimizer.step()
            self._touch(calls.get("after_step"))
            self.optimizer.zero_grad()
        self.churn()
        return [parameter.numpy().copy() for parameter in self.model.parameters()]

    def _touch(self, touch: Callable[["Run"], None] | None) -> None:
        self.churn()
        if touch is not None:
            touch(self)
        self.churn()


def assign_data(run: Run) -> None:
    run.param().data = sg.full((40, 40), 0.01)


def assign_own_data(run: Run) -> None:
    run.param().data = run.param().data * 2


def assign_a_view(run: Run) -> None:
    run.param().data = sg.full((40, 40), 0.01).t()


def change(run: Run) -> None:
    with sg.no_grad():
        run.param().mul_(0.5)


def change_a_view(run: Run) -> None:
    with sg.no_grad():
        run.param()[3:5] = 1.0


def change_detached(run: Run) -> None:
    run.param().detach().add_(0.25)


def write_to_numpy(run: Run) -> None:
    run.param().numpy()[1] = 2.0


def write_to_detached_numpy(run: Run) -> None:
    run.param().detach().numpy()[:, 2] = 0.5


def write_to_numpy_of_a_view(run: Run) -> None:
    run.param()[7].numpy()[...] = 0.125


def write_to_numpy_twice(run: Run) -> None:
    values = run.param().numpy()
    values[0] = 1
    run.churn()
    values[1] = 2


def write_through_dlpack(run: Run) -> None:
    np.from_dlpack(run.param().detach())  # read-only in NumPy: only held
    memoryview(run.param().numpy().data)[0, 0] = 3.0


def in_another_thread(touch: Callable[[Run], None]) -> Callable[[Run], None]:
    def work(run: Run) -> None:
        thread = threading.Thread(target=touch, args=(run,))
        thread.start()
        thread.join()

    work.__name__ = f"{touch.__name__}_in_another_thread"
    return work


def replace_grad(run: Run) -> None:
    run.param().grad = sg.ones(40, 40)


def replace_grad_by_another_parameters(run: Run) -> None:
    run.param().grad = run.model[0].weight.grad


def replace_grad_by_a_view_of_itself(run: Run) -> None:
    run.param().grad = run.param().grad.t()


def forget_grad(run: Run) -> None:
    run.param().grad = None


def change_grad(run: Run) -> None:
    run.param().grad.mul_(0.1)


def write_to_grads_numpy(run: Run) -> None:
    run.param().grad.numpy()[...] *= 3


def zero_grad_in_place(run: Run) -> None:
    run.optimizer.zero_grad(set_to_none=False)


def freeze(run: Run) -> None:
    run.param().requires_grad_(False)


def change_state(run: Run) -> None:
    run.optimizer.state[run.param()]["exp_avg"].zero_()


def replace_state(run: Run) -> None:
    run.optimizer.state[run.param()]["exp_avg"] = sg.ones(40, 40)


def load_state(run: Run) -> None:
    run.model.load_state_dict({name: tensor * 2 for name, tensor in run.model.state_dict().items()})


def convert_twice(run: Run) -> None:
    run.model.double().float()


PARAMETER = [
    assign_data, assign_own_data, assign_a_view, change, change_a_view, change_detached, write_to_numpy,
    write_to_detached_numpy, write_to_numpy_of_a_view, write_to_numpy_twice, write_through_dlpack, load_state,
    freeze, convert_twice,
]  # fmt: skip
GRADIENT = [
    replace_grad, replace_grad_by_another_parameters, replace_grad_by_a_view_of_itself, forget_grad, change_grad,
    write_to_grads_numpy, zero_grad_in_place,
]  # fmt: skip
STATE = [change_state, replace_state]
THREADED = [in_another_thread(touch) for touch in (assign_data, change, write_to_numpy)]
CASES = [
    *[("after_forward", touch) for touch in (*PARAMETER, *THREADED)],
    *[("in_backward", touch) for touch in (*PARAMETER, *THREADED, replace_grad, *STATE)],
    *[("after_backward", touch) for touch in (*PARAMETER, *THREADED, *GRADIENT, *STATE)],
    *[("after_step", touch) for touch in (*PARAMETER, *GRADIENT, *STATE)],
]


def outcome(run: Run, when: str, touch: Callable[[Run], None]) -> list[np.ndarray] | tuple[type[BaseException], str]:
    try:
        return run.steps(**{when: touch})
    except GraphError as error:
        return type(error), str(error).partition(":")[0]


def assert_same(got: object, wanted: list[np.ndarray] | tuple[type[BaseException], str]) -> None:
    if isinstance(wanted, tuple):
        assert got == wanted
    else:
        assert not isinstance(got, tuple), got
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("when", "touch"), CASES, ids=[f"{touch.__name__} {when}" for when, touch in CASES])
def test_it_is_as_in_ram(tmp_path: Path, when: str, touch: Callable[[Run], None]):
    assert_same(outcome(Run(tmp_path), when, touch), outcome(Run(None), when, touch))


IN_BACKWARD = [(when, touch) for when, touch in CASES if when == "in_backward"]


@pytest.mark.parametrize(
    ("when", "touch"), IN_BACKWARD, ids=[f"{touch.__name__} {when}" for when, touch in IN_BACKWARD]
)
@pytest.mark.parametrize("clip", [None, 1e9], ids=["at once", "when backward ends"])
def test_it_is_as_in_ram_with_steps_in_backward(
    tmp_path: Path, when: str, touch: Callable[[Run], None], clip: float | None
):
    run = Run(tmp_path, step_in_backward=True, max_grad_norm=clip)
    assert_same(outcome(run, when, touch), outcome(Run(None), when, touch))
