import json
import math

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, StateDictError
from spillgrad.optim import SGD
from spillgrad.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineWithWarmup,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LinearWithWarmup,
    MultiStepLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)
from tests.peers import record
from tests.peers.programs import schedules


def optimizer(*rates):
    return SGD([{"params": [nn.Parameter(sg.ones(1))], "lr": rate} for rate in rates])


def step(schedule):
    schedule.optimizer.step()
    schedule.step()


def cosine(done):
    return (1 + math.cos(math.pi * done)) / 2


# Schedule of one group that begins at 2.0, its rates.
SCHEDULES = [
    (lambda o: LambdaLR(o, lambda step: 0.5**step), [2.0, 1.0, 0.5, 0.25]),
    (lambda o: CosineAnnealingLR(o, T_max=4, eta_min=1.0), [1 + cosine(step / 4) for step in range(9)]),
    (
        lambda o: CosineWithWarmup(o, 3, 7, 0.1),
        [0.5, 1.0, 1.5, *(0.2 + 1.8 * cosine(s / 4) for s in range(5)), 0.2, 0.2],
    ),
    (lambda o: CosineWithWarmup(o, 0, 2, 0.0), [2.0, 1.0, 0.0, 0.0]),
    (lambda o: CosineWithWarmup(o, 2, 2, 0.5), [2 / 3, 4 / 3, 2.0]),
    (lambda o: LinearWithWarmup(o, 1, 5, 0.5), [1.0, 2.0, 1.75, 1.5, 1.25, 1.0, 1.0]),
    (lambda o: LinearWithWarmup(o, 1, 5, 1.0), [1.0, 2.0, 2.0, 2.0]),
]


@pytest.mark.parametrize(("make", "rates"), SCHEDULES)
def test_rates_follow_the_formula(make, rates):
    tuned = optimizer(2.0)
    schedule = make(tuned)
    got = []
    for _ in rates:
        got.append(tuned.param_groups[0]["lr"])
        assert schedule.get_last_lr() == got[-1:]
        step(schedule)
    assert got == pytest.approx(rates)


@pytest.mark.parametrize(("make", "rates"), SCHEDULES)
def test_a_schedule_resumes_exactly_through_json(make, rates):
    straight = make(optimizer(2.0))
    for _ in range(2):
        step(straight)
    state = json.loads(json.dumps(straight.state_dict()))
    resumed = make(optimizer(2.0))
    resumed.optimizer.load_state_dict(straight.optimizer.state_dict())
    resumed.load_state_dict(state)
    assert resumed.get_last_lr() == straight.get_last_lr()
    step(straight)
    step(resumed)
    assert resumed.get_last_lr() == straight.get_last_lr()


def test_groups_may_have_functions_of_their_own():
    tuned = optimizer(1.0, 10.0)
    schedule = LambdaLR(tuned, [lambda step: 1.0, lambda step: 1 / (step + 1)])
    step(schedule)
    assert schedule.get_last_lr() == [1.0, 5.0]
    with pytest.raises(ArgumentError, match="1 values of lr_lambda, expected 2"):
        LambdaLR(tuned, [lambda step: 1.0])


def test_the_state_of_another_schedule_is_refused():
    schedule = CosineWithWarmup(optimizer(1.0), 1, 2)
    with pytest.raises(StateDictError, match="same schedule"):
        schedule.load_state_dict(CosineAnnealingLR(optimizer(1.0), 3).state_dict())
    with pytest.raises(StateDictError, match="1 groups"):
        schedule.load_state_dict(CosineWithWarmup(optimizer(1.0, 2.0), 1, 2).state_dict())


@pytest.mark.parametrize(
    "make",
    [
        lambda o: CosineWithWarmup(o, 3, 2),
        lambda o: CosineWithWarmup(o, -1, 2),
        lambda o: CosineAnnealingLR(o, 0),
    ],
)
def test_lengths_that_make_no_sense_are_refused(make):
    with pytest.raises(ArgumentError, match=r"3|-1|0"):
        make(optimizer(1.0))


def test_loading_a_schedule_leaves_the_rates_that_another_one_has_set():
    def made():
        tuned = optimizer(1.0)
        return tuned, ExponentialLR(tuned, 0.5), ReduceLROnPlateau(tuned)

    tuned, falling, plateau = made()
    for _ in range(3):
        step(falling)
    other, other_falling, other_plateau = made()
    other.load_state_dict(tuned.state_dict())
    other_falling.load_state_dict(falling.state_dict())
    other_plateau.load_state_dict(plateau.state_dict())
    assert other.param_groups[0]["lr"] == 0.125


def test_a_group_that_is_added_later_begins_at_its_own_rate():
    tuned = optimizer(1.0)
    schedule = ExponentialLR(tuned, 0.5)
    step(schedule)
    tuned.add_param_group({"params": [nn.Parameter(sg.ones(1))], "lr": 8.0})
    step(schedule)
    assert schedule.get_last_lr() == [0.25, 4.0]


@pytest.mark.parametrize(("length", "factor", "epoch", "wanted"), [(5, 1, 12, 3 / 5), (5, 2, 20, 6 / 20)])
def test_restarts_go_on_in_the_right_cycle(length, factor, epoch, wanted):
    tuned = optimizer(1.0)
    tuned.param_groups[0]["initial_lr"] = 1.0
    schedule = CosineAnnealingWarmRestarts(tuned, length, factor, last_epoch=epoch)
    assert schedule.get_last_lr() == pytest.approx([cosine(wanted)])


RECORDED = {name: values for name, values in record.stored("torch")["schedules.state_dicts"]}
MAKERS = {
    **schedules._FACTORIES,
    "SWALR": lambda S, o: sg.optim.swa_utils.SWALR(o, [0.05, 0.9], anneal_epochs=4, anneal_strategy="linear"),
    "ReduceLROnPlateau": lambda S, o: S.ReduceLROnPlateau(o, "max", patience=1),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_state_dict_of_pytorchs_schedule_goes_on_here(name):
    state, rates = RECORDED[f"{name} state"]
    tuned = schedules._optimizer(sg)
    schedule = MAKERS[name](sg.optim.lr_scheduler, tuned)
    for group, rate in zip(tuned.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule.load_state_dict(state)
    for number in range(4):
        tuned.step()
        schedule.step(*[(2.0, 2.0, 2.0, 5.0)[number]] if name == "ReduceLROnPlateau" else [])
        assert [group["lr"] for group in tuned.param_groups] == pytest.approx(*RECORDED[f"{name} {number}"])


def test_a_composed_schedule_begins_at_its_milestone():
    tuned = optimizer(1.0)
    chain = ChainedScheduler([ConstantLR(tuned, 0.5, total_iters=2), ExponentialLR(tuned, 0.5)])
    sequence = SequentialLR(tuned, [LinearLR(tuned, 0.5, 1.0, 2), StepLR(tuned, 2)], milestones=[2])
    schedule = SequentialLR(tuned, [ConstantLR(tuned, 0.1, total_iters=9), chain, sequence], milestones=[2, 5])
    rates = []
    for _ in range(10):
        rates.append(*schedule.get_last_lr())
        step(schedule)
    assert rates == pytest.approx([0.1, 0.1, 0.5, 0.25, 0.25, 0.5, 0.75, 1.0, 1.0, 0.1])


class Slotted:
    __slots__ = ("__hidden", "steps")

    def __init__(self, steps):
        self.steps, self.__hidden = steps, 2.0 / steps

    def __call__(self, step):
        return min(self.__hidden, step / self.steps)


def test_functions_keep_their_slots_and_attributes_in_the_state():
    straight, resumed = (LambdaLR(optimizer(1.0), Slotted(steps)) for steps in (4, 9))
    for _ in range(2):
        step(straight)
    resumed.load_state_dict(json.loads(json.dumps(straight.state_dict())))
    step(straight)
    step(resumed)
    assert resumed.get_last_lr() == straight.get_last_lr() == [0.5]
    assert LambdaLR(optimizer(1.0), float).state_dict()["lr_lambdas"] == [None]


@pytest.mark.parametrize("milestones", [{"2": 1, "4": 2}, [4, 2, 4], {2: 1, 4: 2}])
def test_milestones_are_counted_however_they_are_saved(milestones):
    schedule, saved = (MultiStepLR(optimizer(1.0), [3]) for _ in range(2))
    schedule.load_state_dict({**saved.state_dict(), "milestones": milestones})
    assert schedule.milestones == {2: 1, 4: 2}


@pytest.mark.parametrize("milestones", [{"x": 1}, {"2": "y"}, 5, [[1]]])
def test_milestones_that_are_no_steps_are_refused(milestones):
    schedule = MultiStepLR(optimizer(1.0), [3])
    with pytest.raises(StateDictError, match="how often"):
        schedule.check_state_dict({**schedule.state_dict(), "milestones": milestones})


def test_groups_that_a_plateau_has_no_least_rate_for_are_refused():
    tuned = optimizer(1.0)
    schedule = ReduceLROnPlateau(tuned, patience=0, min_lr=[0.5])
    tuned.add_param_group({"params": [nn.Parameter(sg.ones(1))]})
    schedule.step(1.0)
    with pytest.raises(RuntimeError, match="number of param groups"):
        schedule.step(1.0)
