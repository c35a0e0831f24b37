"""Schedules of the learning rate: their rates, momentums, states, warnings and errors."""

import functools
import json
import math
import warnings

_FACTORIES = {
    "StepLR": lambda S, o: S.StepLR(o, 3, gamma=0.3),
    "MultiStepLR": lambda S, o: S.MultiStepLR(o, [2, 5, 5, 9], gamma=0.5),
    "ConstantLR": lambda S, o: S.ConstantLR(o, factor=0.4, total_iters=4),
    "ConstantLR defaults": lambda S, o: S.ConstantLR(o),
    "LinearLR": lambda S, o: S.LinearLR(o, start_factor=0.2, end_factor=0.7, total_iters=6),
    "LinearLR defaults": lambda S, o: S.LinearLR(o),
    "ExponentialLR": lambda S, o: S.ExponentialLR(o, 0.8),
    "PolynomialLR": lambda S, o: S.PolynomialLR(o, total_iters=7, power=2.0),
    "PolynomialLR defaults": lambda S, o: S.PolynomialLR(o),
    "CosineAnnealingLR": lambda S, o: S.CosineAnnealingLR(o, 5, eta_min=0.01),
    "CosineAnnealingLR T_max 1": lambda S, o: S.CosineAnnealingLR(o, 1),
    "CosineAnnealingWarmRestarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 3, T_mult=2, eta_min=0.02),
    "CosineAnnealingWarmRestarts, equal": lambda S, o: S.CosineAnnealingWarmRestarts(o, 4),
    "LambdaLR": lambda S, o: S.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LambdaLR, each": lambda S, o: S.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1 + step]),
    "MultiplicativeLR": lambda S, o: S.MultiplicativeLR(o, lambda step: 0.95),
    "CyclicLR": lambda S, o: S.CyclicLR(o, 0.01, 0.3, step_size_up=3),
    "CyclicLR triangular2": lambda S, o: S.CyclicLR(
        o, 0.01, [0.3, 0.4], step_size_up=2, step_size_down=5, mode="triangular2"
    ),
    "CyclicLR exp_range": lambda S, o: S.CyclicLR(o, 0.01, 0.3, step_size_up=4, mode="exp_range", gamma=0.9),
    "CyclicLR scale_fn": lambda S, o: S.CyclicLR(
        o, 0.01, 0.3, step_size_up=4, scale_fn=lambda x: 5 ** (-x * 0.1), scale_mode="iterations", cycle_momentum=False
    ),
    "OneCycleLR": lambda S, o: S.OneCycleLR(o, [0.5, 0.6], total_steps=14),
    "OneCycleLR linear": lambda S, o: S.OneCycleLR(
        o, 0.5, epochs=4, steps_per_epoch=5, anneal_strategy="linear", pct_start=0.4
    ),
    "OneCycleLR three phases": lambda S, o: S.OneCycleLR(
        o, 0.5, total_steps=20, three_phase=True, cycle_momentum=False
    ),
    "ChainedScheduler": lambda S, o: S.ChainedScheduler([S.ConstantLR(o, 0.1, total_iters=2), S.ExponentialLR(o, 0.9)]),
    "SequentialLR": lambda S, o: S.SequentialLR(
        o, [S.ConstantLR(o, 0.1, total_iters=2), S.CosineAnnealingLR(o, 5), S.ExponentialLR(o, 0.9)], milestones=[3, 8]
    ),
    "warm-up, then cosine": lambda S, o: S.SequentialLR(
        o, [S.LinearLR(o, 1e-3, 1.0, 4), S.CosineAnnealingLR(o, 9, eta_min=1e-3)], milestones=[4]
    ),
}  # fmt: skip
_STEPS = 13


def _optimizer(torch, kind="SGD", rates=(0.5, 0.25)):
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr": rate} for rate in rates]
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(torch.optim, kind)(groups, lr=0.1, **options)


def _step(optimizer, schedule):
    optimizer.step()
    schedule.step()


def _momentum(group):
    return group["momentum"] if "momentum" in group else group["betas"][0]


def rates(torch, note):
    for name, make in _FACTORIES.items():
        for kind in ("SGD", "AdamW"):
            optimizer = _optimizer(torch, kind)
            schedule = make(torch.optim.lr_scheduler, optimizer)
            for step in range(_STEPS):
                set_now = [group["lr"] for group in optimizer.param_groups]
                momentums = [_momentum(group) for group in optimizer.param_groups]
                note(f"{name} {kind} {step}", set_now, list(schedule.get_last_lr()), momentums)
                _step(optimizer, schedule)


def states_go_through_json(torch, note):
    for name, make in _FACTORIES.items():
        optimizer = _optimizer(torch)
        schedule = make(torch.optim.lr_scheduler, optimizer)
        for _ in range(6):
            _step(optimizer, schedule)
        state = json.loads(json.dumps(schedule.state_dict(), default=lambda value: None))
        other = _optimizer(torch)
        resumed = make(torch.optim.lr_scheduler, other)
        other.load_state_dict(optimizer.state_dict())
        if name != "CyclicLR scale_fn" and not name.startswith("MultiStepLR"):  # PyTorch pickles these
            resumed.load_state_dict(state)
            for step in range(5):
                _step(other, resumed)
                _step(optimizer, schedule)
                rates_now = [[group["lr"] for group in each.param_groups] for each in (optimizer, other)]
                note(f"{name} {step}", *rates_now)
        note(f"{name} keys", "_schedulers" in state, state.get("last_epoch"))


def going_to_an_epoch(torch, note):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (
            "StepLR", "MultiStepLR", "ConstantLR", "LinearLR", "ExponentialLR", "PolynomialLR", "CosineAnnealingLR",
            "LambdaLR",
        ):  # fmt: skip
            optimizer = _optimizer(torch)
            schedule = _FACTORIES[name](torch.optim.lr_scheduler, optimizer)
            for epoch in (3, 0, 7, 11):
                optimizer.step()
                schedule.step(epoch)
                note(f"{name} {epoch}", schedule.last_epoch, list(schedule.get_last_lr()))


def restarts_at_fractions_of_an_epoch(torch, note):
    for times in (1, 2, 3):
        optimizer = _optimizer(torch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2, T_mult=times)
        for epoch in range(8):
            for batch in range(4):
                optimizer.step()
                schedule.step(epoch + batch / 4)
                note(f"{times} {epoch} {batch}", schedule.last_epoch, schedule.T_i, list(schedule.get_last_lr()))
        schedule.step()
        note("on", schedule.last_epoch, list(schedule.get_last_lr()))
    note.error("before 0", lambda: schedule.step(-1), "Expected non-negative epoch, but got -1")


def rates_that_others_change_are_changed_further(torch, note):
    scheduler = torch.optim.lr_scheduler
    for make in (
        lambda o: scheduler.ExponentialLR(o, 0.5),
        lambda o: scheduler.StepLR(o, 2),
        lambda o: scheduler.LinearLR(o),
    ):
        optimizer = _optimizer(torch)
        schedule = make(optimizer)
        for step in range(6):
            if step == 2:
                optimizer.param_groups[0]["lr"] = 7.0
            _step(optimizer, schedule)
            note(f"step {step}", [group["lr"] for group in optimizer.param_groups])
    optimizer = _optimizer(torch)
    both = [scheduler.ExponentialLR(optimizer, 0.9), scheduler.StepLR(optimizer, 2)]
    for step in range(6):
        optimizer.step()
        for schedule in both:
            schedule.step()
        note(f"both {step}", [group["lr"] for group in optimizer.param_groups])


def plateaus(torch, note):
    falling = [5.0, 4.0, 3.9999, 3.99, 3.99, 3.99, 3.99, 3.5, 3.5, 3.5, 3.5, 3.5, math.nan, 3.5, 3.5, 1.0]
    rising = [-value for value in falling]
    for number, (values, options) in enumerate([
        (falling, {"patience": 2}),
        (falling, {"patience": 1, "cooldown": 2, "factor": 0.5}),
        (rising, {"mode": "max", "patience": 0, "threshold": 0.01}),
        (rising, {"mode": "max", "patience": 0, "threshold_mode": "abs", "threshold": 0.1}),
        (falling, {"patience": 0, "threshold_mode": "abs", "threshold": 0.1, "min_lr": [0.1, 0.01]}),
        (falling, {"patience": 0, "factor": 0.1, "eps": 1e-2}),
    ]):  # fmt: skip
        optimizer = _optimizer(torch)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        for step, value in enumerate(values):
            optimizer.step()
            schedule.step(value)
            note(f"{number} {step}", schedule.num_bad_epochs, schedule.best, list(schedule.get_last_lr()))
        state = json.loads(json.dumps(schedule.state_dict()))
        resumed = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **options)
        resumed.load_state_dict(state)
        resumed.step(torch.tensor(9.0))
        note(f"{number} resumed", resumed.num_bad_epochs, resumed.best, resumed.last_epoch, list(resumed.get_last_lr()))


def averaged_weights(torch, note):
    swa = torch.optim.swa_utils
    for strategy in ("cos", "linear"):
        for epochs in (0, 1, 4):
            optimizer = _optimizer(torch)
            before = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            _step(optimizer, before)
            schedule = swa.SWALR(optimizer, swa_lr=[0.05, 0.9], anneal_epochs=epochs, anneal_strategy=strategy)
            for step in range(7):
                note(f"{strategy} {epochs} {step}", [group["lr"] for group in optimizer.param_groups])
                _step(optimizer, schedule)


def resuming_by_the_number_of_the_step(torch, note):
    scheduler = torch.optim.lr_scheduler
    note.error("no initial_lr", lambda: scheduler.ExponentialLR(_optimizer(torch), 0.9, last_epoch=3), "initial_lr")
    for name, *options in (
        ("StepLR", 2), ("StepLR", 3), ("MultiStepLR", [2, 4]), ("MultiStepLR", [2, 5]), ("ConstantLR", 0.5, 4),
        ("ConstantLR", 0.5, 6), ("LinearLR", 0.5, 1.0, 3), ("LinearLR", 0.5, 1.0, 6), ("ExponentialLR", 0.9),
        ("PolynomialLR", 4), ("PolynomialLR", 7), ("LambdaLR", lambda step: 0.5**step),
        ("MultiplicativeLR", lambda step: 0.5), ("CosineAnnealingLR", 10), ("CosineAnnealingLR", 3),
        ("CosineAnnealingWarmRestarts", 10), ("CosineAnnealingWarmRestarts", 3), ("CyclicLR", 0.1, 0.4, 3),
    ):  # fmt: skip
        optimizer = _optimizer(torch)
        for group in optimizer.param_groups:
            group["initial_lr"] = 2.0
        schedule = getattr(scheduler, name)(optimizer, *options, last_epoch=3)
        for step in range(3):
            note(
                f"{name} {'function' if callable(options[0]) else options} {step}",
                schedule.last_epoch,
                list(schedule.get_last_lr()),
            )
            _step(optimizer, schedule)


def warnings_about_order(torch, note):
    def warned(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return [[w.category.__name__, str(w.message).split(".")[0]] for w in caught]

    optimizer = _optimizer(torch)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    note("step before the optimizer's", warned(schedule.step))
    note("once only", warned(schedule.step))
    optimizer = _optimizer(torch)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    note("in order", warned(optimizer.step), warned(schedule.step))
    note("epoch", warned(lambda: schedule.step(4)))


def own_schedules(torch, note):
    class Halved(torch.optim.lr_scheduler.LRScheduler):
        def get_lr(self):
            return [base / 2**self.last_epoch for base in self.base_lrs]

    optimizer = _optimizer(torch)
    schedule = Halved(optimizer)
    for step in range(4):
        note(f"step {step}", schedule.last_epoch, schedule.base_lrs, list(schedule.get_last_lr()))
        _step(optimizer, schedule)


class _Warmup:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, step):
        return min(1.0, step / self.steps)


def states_of_function_objects(torch, note):
    optimizer = _optimizer(torch)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _Warmup(10))
    state = schedule.state_dict()
    note("kept", state["lr_lambdas"])
    resumed = torch.optim.lr_scheduler.LambdaLR(_optimizer(torch), _Warmup(3))
    resumed.load_state_dict(state)
    note("loaded", resumed.lr_lambdas[0].steps)


def what_makes_no_sense(torch, note):
    scheduler, o = torch.optim.lr_scheduler, _optimizer(torch)
    plain = torch.optim.Adagrad([torch.nn.Parameter(torch.ones(1))]) if hasattr(torch.optim, "Adagrad") else None
    other = scheduler.ExponentialLR(_optimizer(torch), 0.9)
    for name, make, phrase in (
        ("no optimizer", lambda: scheduler.StepLR(3, 1), "is not an Optimizer"),
        ("functions", lambda: scheduler.LambdaLR(o, [lambda step: 1.0]), ""),
        ("constant", lambda: scheduler.ConstantLR(o, factor=1.5), "expected to be between 0 and 1"),
        ("start", lambda: scheduler.LinearLR(o, start_factor=0), "expected to be greater than 0"),
        ("end", lambda: scheduler.LinearLR(o, end_factor=2), "Ending multiplicative factor expected"),
        ("T_0", lambda: scheduler.CosineAnnealingWarmRestarts(o, 0), "Expected positive integer T_0, but got 0"),
        ("T_mult", lambda: scheduler.CosineAnnealingWarmRestarts(o, 1, T_mult=0), "Expected integer T_mult >= 1"),
        ("factor", lambda: scheduler.ReduceLROnPlateau(o, factor=1.0), "Factor should be < 1.0."),
        ("mode", lambda: scheduler.ReduceLROnPlateau(o, mode="down"), "is unknown!"),
        ("cyclic", lambda: scheduler.CyclicLR(o, 0.1, 0.2, mode="up"), "mode is invalid and scale_fn is None"),
        ("no momentum", lambda: scheduler.CyclicLR(plain, 0.1, 0.2), "optimizer must support momentum or beta1"),
        ("steps", lambda: scheduler.OneCycleLR(o, 0.1), "You must define either total_steps OR"),
        ("pct", lambda: scheduler.OneCycleLR(o, 0.1, total_steps=3, pct_start=2.0), "between 0 and 1 pct_start"),
        ("strategy", lambda: scheduler.OneCycleLR(o, 0.1, total_steps=3, anneal_strategy="x"), "anneal_strategy"),
        ("rates", lambda: scheduler.OneCycleLR(o, [0.1], total_steps=3), ""),
        ("chained none", lambda: scheduler.ChainedScheduler([]), "at least one scheduler"),
        ("chained others", lambda: scheduler.ChainedScheduler([other], o), "belong to the same optimizer"),
        ("chained plateau", lambda: scheduler.ChainedScheduler([scheduler.ReduceLROnPlateau(o)]), "does not support"),
        ("sequential", lambda: scheduler.SequentialLR(o, [scheduler.ExponentialLR(o, 0.9)], [2]), "one more than"),
        ("swa", lambda: torch.optim.swa_utils.SWALR(o, 0.1, anneal_strategy="x"), "anneal_strategy"),
    ):
        note.error(name, make, *[phrase] if phrase else [])
    optimizer = _optimizer(torch)
    schedule = scheduler.OneCycleLR(optimizer, 0.1, total_steps=2)
    _step(optimizer, schedule)
    _step(optimizer, schedule)
    note.error("beyond the end", lambda: _step(optimizer, schedule), "Tried to step 3 times")


def _nested(S, o):
    def warm():
        return S.SequentialLR(o, [S.LinearLR(o, 0.1, 1.0, 3), S.ExponentialLR(o, 0.9)], milestones=[3])

    def both():
        return S.ChainedScheduler([S.ConstantLR(o, 0.1, total_iters=2), S.ExponentialLR(o, 0.9)], optimizer=o)

    return {
        "a sequence first": lambda: S.SequentialLR(o, [warm(), S.CosineAnnealingLR(o, 5)], milestones=[6]),
        "a sequence of a sequence": lambda: S.SequentialLR(
            o, [S.SequentialLR(o, [warm(), S.StepLR(o, 2)], milestones=[5]), S.CosineAnnealingLR(o, 5)], milestones=[9]
        ),
        "a chain first": lambda: S.SequentialLR(o, [both(), S.StepLR(o, 2)], milestones=[4]),
        "a chain of a sequence": lambda: S.ChainedScheduler([warm(), S.StepLR(o, 4, 0.5)]),
        "a chain of a chain": lambda: S.ChainedScheduler([both(), S.PolynomialLR(o, 6)]),
        "restarts in a sequence": lambda: S.SequentialLR(
            o, [S.LinearLR(o, 0.2, 1.0, 2), S.CosineAnnealingWarmRestarts(o, 3)], milestones=[2]
        ),
        "a cycle in a sequence": lambda: S.SequentialLR(
            o, [S.CosineAnnealingWarmRestarts(o, 3), S.CyclicLR(o, 0.1, 0.4, 3)], milestones=[5]
        ),
        "a milestone at the beginning": lambda: S.SequentialLR(
            o, [S.LinearLR(o, 0.2, 1.0, 2), S.ExponentialLR(o, 0.9)], milestones=[0]
        ),
        "a polynomial after a chain": lambda: S.SequentialLR(
            o, [S.ChainedScheduler([S.PolynomialLR(o, 4), S.CosineAnnealingLR(o, 4)]), S.MultiplicativeLR(o, _half)],
            milestones=[3],
        ),
    }  # fmt: skip


def _half(step):
    return 0.5


def nested_schedules(torch, note):
    scheduler = torch.optim.lr_scheduler
    for name in _nested(scheduler, _optimizer(torch)):
        optimizer = _optimizer(torch)
        schedule = _nested(scheduler, optimizer)[name]()
        for step in range(_STEPS):
            note(f"{name} {step}", [group["lr"] for group in optimizer.param_groups], list(schedule.get_last_lr()))
            _step(optimizer, schedule)


def states_of_nested_schedules(torch, note):
    scheduler = torch.optim.lr_scheduler
    for name in _nested(scheduler, _optimizer(torch)):
        optimizer, other = _optimizer(torch), _optimizer(torch)
        schedule, resumed = _nested(scheduler, optimizer)[name](), _nested(scheduler, other)[name]()
        for _ in range(5):
            _step(optimizer, schedule)
        other.load_state_dict(optimizer.state_dict())
        resumed.load_state_dict(schedule.state_dict())
        for step in range(6):
            _step(optimizer, schedule)
            _step(other, resumed)
            note(f"{name} {step}", *[[group["lr"] for group in each.param_groups] for each in (optimizer, other)])


def _plain_state(value):
    """Return a state as JSON keeps it, without the attributes of objects."""
    if isinstance(value, dict):
        return {str(key): _plain_state(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_state(part) for part in value]
    return value


def state_dicts(torch, note):
    scheduler, swa = torch.optim.lr_scheduler, torch.optim.swa_utils
    factories = dict(_FACTORIES)
    factories["SWALR"] = lambda S, o: swa.SWALR(o, [0.05, 0.9], anneal_epochs=4, anneal_strategy="linear")
    for name, make in factories.items():
        optimizer = _optimizer(torch)
        schedule = make(scheduler, optimizer)
        for _ in range(6):
            _step(optimizer, schedule)
        state = _plain_state(schedule.state_dict())
        note(f"{name} keys", sorted(state))
        note(f"{name} state", state, [group["lr"] for group in optimizer.param_groups])
        for step in range(4):
            _step(optimizer, schedule)
            note(f"{name} {step}", [group["lr"] for group in optimizer.param_groups])
    optimizer = _optimizer(torch)
    schedule = scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    for value in (1.0, 2.0, 2.0):
        schedule.step(value)
    state = _plain_state(schedule.state_dict())
    note("ReduceLROnPlateau keys", sorted(state))
    note("ReduceLROnPlateau state", state, [group["lr"] for group in optimizer.param_groups])
    for step, value in enumerate((2.0, 2.0, 2.0, 5.0)):
        schedule.step(value)
        note(f"ReduceLROnPlateau {step}", [group["lr"] for group in optimizer.param_groups])


def options_in_groups(torch, note):
    for name, make in _FACTORIES.items():
        optimizer = _optimizer(torch)
        make(torch.optim.lr_scheduler, optimizer)
        note(name, sorted(optimizer.param_groups[0].keys() - {"foreach", "fused", "differentiable", "capturable"}))
    optimizer = _optimizer(torch)
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    note("ReduceLROnPlateau", "initial_lr" in optimizer.param_groups[0])


def functions_of_every_kind(torch, note):
    def share(scale, step):
        return scale / (1 + step)

    for name, function in (
        ("partial", functools.partial(share, 2.0)), ("method", _Warmup(3).__call__), ("class", float),
    ):  # fmt: skip
        optimizer = _optimizer(torch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, function)
        for step in range(3):
            note(f"{name} {step}", list(schedule.get_last_lr()))
            _step(optimizer, schedule)


def asking_for_rates(torch, note):
    optimizer = _optimizer(torch)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    _step(optimizer, schedule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        note("get_lr", list(schedule.get_lr()), [[w.category.__name__, str(w.message)] for w in caught])


def schedules_in_the_old_style(torch, note):
    class Warmup(torch.optim.lr_scheduler._LRScheduler):
        def __init__(self, optimizer, steps, after=None, last_epoch=-1):
            self.steps, self.after, self.seen = steps, after, []
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            self.seen.append([self._get_lr_called_within_step, self.last_epoch])
            if self.last_epoch > self.steps and self.after:
                self.after.base_lrs = list(self.base_lrs)
                return self.after.get_last_lr()
            return [base * min(1.0, (self.last_epoch + 1) / self.steps) for base in self.base_lrs]

        def step(self, epoch=None):
            if self.after and self.last_epoch >= self.steps:
                self.after.step()
            super().step(epoch)

    optimizer = _optimizer(torch)
    after = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
    schedule = Warmup(optimizer, 3, after)
    for step in range(8):
        note(f"step {step}", list(schedule.get_last_lr()), schedule.last_epoch)
        _step(optimizer, schedule)
    note("seen", schedule.seen)
    optimizer = _optimizer(torch)
    chosen = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 0.4, 3, mode="triangular2", scale_mode="iterations")
    for step in range(9):
        note(f"the mode decides {step}", list(chosen.get_last_lr()), chosen.scale_mode)
        _step(optimizer, chosen)
