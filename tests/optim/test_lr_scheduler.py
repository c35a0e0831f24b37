import json
import math

import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, StateDictError
from spillgrad.optim import SGD
from spillgrad.optim.lr_scheduler import (
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CosineWithWarmup,
    ExponentialLR,
    LambdaLR,
    ReduceLROnPlateau,
)


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
