"""Optimizers: what they make of a parameter in twenty steps, their states, hooks and errors."""

import copy
import importlib
import math
import warnings

import numpy as np

_CASES = {
    "SGD": [
        {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    ],
    "Adam": [
        {"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 0.1}, {"lr": 0.1, "amsgrad": True},
    ],
    "AdamW": [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True, "eps": 0.01}],
    "NAdam": [{}, {"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RAdam": [
        {}, {"lr": 0.1, "betas": (0.5, 0.6), "weight_decay": 0.1}, {"lr": 0.1, "weight_decay": 0.1, "eps": 0.1},
        {"lr": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ],
    "Adamax": [{}, {"lr": 0.1, "betas": (0.5, 0.6), "weight_decay": 0.1, "eps": 0.1}],
    "Adagrad": [{}, {"lr": 0.3, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 0.1}],
    "Adadelta": [{}, {"lr": 0.5, "rho": 0.7, "eps": 0.1, "weight_decay": 0.1}],
    "RMSprop": [
        {}, {"lr": 0.1, "alpha": 0.8, "eps": 0.1, "weight_decay": 0.1}, {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.1, "alpha": 0.5, "centered": True, "eps": 0.1},
        {"lr": 0.1, "alpha": 0.5, "centered": True, "eps": 0.1, "momentum": 0.7, "weight_decay": 0.1},
    ],
    "Rprop": [{}, {"lr": 0.1, "etas": (0.3, 1.7), "step_sizes": (0.05, 0.4)}],
    "Adafactor": [{}, {"lr": 0.3, "beta2_decay": -0.5, "eps": (1e-3, 0.1), "d": 1.5, "weight_decay": 0.1}],
    "ASGD": [{}, {"lr": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 4, "weight_decay": 0.1}],
}  # fmt: skip
_STEPS = 20


def _gradients():
    random = np.random.default_rng(0)
    gradients = random.standard_normal((_STEPS, 3, 2))
    gradients[5, 0, 0] = gradients[9] = 0.0
    return gradients


def _parameter(torch):
    return torch.nn.Parameter(torch.tensor(np.random.default_rng(1).standard_normal((3, 2))))


def _run(torch, kind, options, steps=_STEPS):
    parameter = _parameter(torch)
    optimizer = getattr(torch.optim, kind)([parameter], **options)
    for gradient in _gradients()[:steps]:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
    return parameter, optimizer


def twenty_steps(torch, note):
    for kind, cases in _CASES.items():
        for number, options in enumerate(cases):
            for maximize in (False, True):
                parameter, optimizer = _run(torch, kind, {**options, "maximize": maximize})
                note(f"{kind} {number} {maximize}", parameter)
                state = optimizer.state[parameter]
                for name in sorted(state):
                    if name not in ("step", "mu_product", "eta", "mu") and state[name] is not None:
                        note(f"{kind} {number} {maximize} {name}", state[name])


def a_loaded_state_goes_on(torch, note):
    for kind, cases in _CASES.items():
        for number, options in enumerate(cases):
            parameter, optimizer = _run(torch, kind, options, 7)
            other = torch.nn.Parameter(parameter.detach().clone())
            resumed = getattr(torch.optim, kind)([other])
            resumed.load_state_dict(optimizer.state_dict())
            for gradient in _gradients()[7:]:
                other.grad = torch.tensor(gradient)
                resumed.step()
            note(f"{kind} {number}", other)


def options_of_implementations_are_accepted(torch, note):
    for kind in _CASES:
        optimizer = getattr(torch.optim, kind)([_parameter(torch)], foreach=False)
        note(kind, optimizer.param_groups[0]["lr"], optimizer.defaults["lr"])
        note.error(
            f"{kind} unknown", lambda kind=kind: getattr(torch.optim, kind)([_parameter(torch)], wrong=1), "wrong"
        )
        note.error(f"{kind} lr", lambda kind=kind: getattr(torch.optim, kind)([_parameter(torch)], lr=-1.0))


def lbfgs(torch, note):
    for search in (None, "strong_wolfe"):
        for history in (2, 10):
            x = torch.nn.Parameter(torch.tensor([-1.5, 2.0], dtype=torch.float64))
            y = torch.nn.Parameter(torch.tensor([[0.3], [-0.7]], dtype=torch.float64))
            optimizer = torch.optim.LBFGS([x, y], lr=0.3 if search is None else 1.0, history_size=history, max_iter=4,
                                          line_search_fn=search)  # fmt: skip
            calls = []

            def closure(x=x, y=y, optimizer=optimizer, calls=calls):
                optimizer.zero_grad()
                loss = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2 + ((y - 0.5) ** 4).sum()
                loss.backward()
                calls.append(loss.item())
                return loss

            for step in range(6):
                loss = optimizer.step(closure)
                note(f"{search} {history} {step}", loss.item(), x, y, len(calls))


def lbfgs_refuses(torch, note):
    groups = [{"params": [_parameter(torch)]}, {"params": [_parameter(torch)]}]
    note.error("groups", lambda: torch.optim.LBFGS(groups), "per-parameter options")
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([x], line_search_fn="golden")

    def closure():
        optimizer.zero_grad()
        loss = (x * x).sum()
        loss.backward()
        return loss

    note.error("search", lambda: optimizer.step(closure), "only 'strong_wolfe' is supported")


def hooks_around_steps(torch, note):
    parameter = _parameter(torch)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(3, 2, dtype=torch.float64)
    seen = []
    before = optimizer.register_step_pre_hook(
        lambda o, args, kwargs: seen.append(("before", o is optimizer, len(args), sorted(kwargs)))
    )
    after = optimizer.register_step_post_hook(
        lambda o, args, kwargs: seen.append(("after", o is optimizer, len(args), sorted(kwargs)))
    )
    optimizer.step()
    optimizer.step(closure=lambda: None)
    before.remove()
    optimizer.step()
    after.remove()
    optimizer.step()
    note("called", [list(map(str, call)) for call in seen])

    def replaced(optimizer, args, kwargs):
        return args, {"closure": lambda: 7}

    with optimizer.register_step_pre_hook(replaced):
        note("other arguments", optimizer.step())
    with optimizer.register_step_pre_hook(lambda o, args, kwargs: 3):
        note.error("no pair", optimizer.step)

    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

        def step(self, closure=None):
            seen.append("own step")

    own = Own([parameter])
    seen.clear()
    own.register_step_pre_hook(lambda o, args, kwargs: seen.append("before"))
    own.register_step_post_hook(lambda o, args, kwargs: seen.append("after"))
    own.step()
    note("own", list(seen))


def hooks_around_states(torch, note):
    _, optimizer = _run(torch, "Adam", {"lr": 0.1}, 2)
    seen = []
    optimizer.register_state_dict_pre_hook(lambda o: seen.append("before"))
    optimizer.register_state_dict_post_hook(lambda o, state: seen.append(sorted(state)))

    def with_more(o, state):
        return {**state, "more": 1}

    optimizer.register_state_dict_post_hook(with_more, prepend=True)
    state = optimizer.state_dict()
    note("saved", seen, sorted(state))
    seen.clear()

    def without_more(o, state):
        seen.append("load")
        return {key: value for key, value in state.items() if key != "more"}

    optimizer.register_load_state_dict_pre_hook(without_more)
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append("loaded"))
    optimizer.load_state_dict(state)
    note("loaded", seen)


def bounds(torch, note):
    def make(kind, **options):
        return lambda: getattr(torch.optim, kind)([_parameter(torch)], **options)

    for name, call in {
        "betas": make("Adam", betas=(1.0, 0.9)), "eps": make("NAdam", eps=-1.0), "rho": make("Adadelta", rho=1.5),
        "momentum_decay": make("NAdam", momentum_decay=-1.0), "lr_decay": make("Adagrad", lr_decay=-1.0),
        "etas": make("Rprop", etas=(1.5, 1.2)), "alpha": make("RMSprop", alpha=-1.0),
        "momentum": make("RMSprop", momentum=-1.0), "weight_decay": make("ASGD", weight_decay=-1.0),
        "nesterov": make("SGD", lr=0.1, nesterov=True), "nan": make("Adamax", lr=math.nan),
    }.items():  # fmt: skip
        note.error(name, call)


def named_parameters(torch, note):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False))
    for kind in ("SGD", "AdamW", "LBFGS"):
        optimizer = getattr(torch.optim, kind)(model.named_parameters(), lr=0.1)
        note(f"{kind} groups", len(optimizer.param_groups), optimizer.param_groups[0]["param_names"])
        note(f"{kind} order", [list(param.shape) for param in optimizer.param_groups[0]["params"]])
        note(f"{kind} state", optimizer.state_dict()["param_groups"][0]["param_names"])
    groups = [
        {"params": list(model[0].named_parameters()), "lr": 0.3}, {"params": list(model[1].named_parameters("second"))},
    ]  # fmt: skip
    optimizer = torch.optim.SGD(groups, lr=0.1)
    note("groups", [[group["lr"], group["param_names"]] for group in optimizer.param_groups])
    state = optimizer.state_dict()
    for group in state["param_groups"]:
        group["param_names"] = [f"other.{name}" for name in group["param_names"]]
    optimizer.load_state_dict(state)
    note("loaded", [group["param_names"] for group in optimizer.param_groups])
    for group in state["param_groups"]:
        del group["param_names"]
    optimizer.load_state_dict(state)
    note("kept", [group["param_names"] for group in optimizer.param_groups])
    mixed = [("a", _parameter(torch)), _parameter(torch)]
    note.error("some names", lambda: torch.optim.SGD(mixed, lr=0.1), "with/without names. Some param names are missing")
    nameless = {"params": [_parameter(torch)]}
    note.error("no names", lambda: optimizer.add_param_group(nameless), "cannot add param group without names to the")
    nameless = torch.optim.SGD([_parameter(torch)], lr=0.1)
    named = {"params": [("a", _parameter(torch))]}
    note.error("names", lambda: nameless.add_param_group(named), "cannot add param group with names to the optimizer")


def what_is_no_parameter(torch, note):
    one = _parameter(torch)
    optimizer = torch.optim.SGD([one], lr=0.1)
    for name, call, phrase in (
        ("a tensor", lambda: torch.optim.SGD(one), "params argument given to the optimizer should be an iterable of"),
        ("a tensor to Adam", lambda: torch.optim.Adam(one), "Tensors or dicts, but got"),
        (
            "a group that is a tensor",
            lambda: optimizer.add_param_group(one),
            "param_group must be a dict, but got",
        ),
        ("a group that is a list", lambda: optimizer.add_param_group([one]), "param_group must be a dict, but got"),
        ("a set", lambda: torch.optim.SGD([{"params": {one}}]), "need to be organized in ordered collections"),
        ("nothing", lambda: torch.optim.SGD([]), "optimizer got an empty parameter list"),
        ("a number", lambda: torch.optim.SGD([1.0]), "optimizer can only optimize Tensors, but one of the params is"),
        ("a result", lambda: torch.optim.SGD([one * 2]), "can't optimize a non-leaf Tensor"),
        (
            "a second time",
            lambda: optimizer.add_param_group({"params": one}),
            "in more than one parameter group",
        ),
    ):
        note.error(name, call, phrase)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        note.error("twice in a group", lambda: torch.optim.SGD([one, one]))
    kept = one * 2
    kept.retain_grad()
    note("a result with its gradient", len(torch.optim.SGD([kept], lr=0.1).param_groups))
    group = {"params": _parameter(torch), "lr": 0.5}
    optimizer.add_param_group(group)
    note(
        "the group is the one given",
        optimizer.param_groups[1] is group,
        sorted(group.keys() & {"momentum", "nesterov"}),
    )


def adam_and_adamw_load_each_others_states(torch, note):
    for kind, other in (("Adam", "AdamW"), ("AdamW", "Adam")):
        _, optimizer = _run(torch, kind, {"lr": 0.1, "weight_decay": 0.3}, 5)
        parameter = _parameter(torch)
        resumed = getattr(torch.optim, other)([parameter], lr=0.5)
        resumed.load_state_dict(optimizer.state_dict())
        note(f"{kind} to {other}", resumed.param_groups[0]["decoupled_weight_decay"], resumed.param_groups[0]["lr"])
        for gradient in _gradients()[5:9]:
            parameter.grad = torch.tensor(gradient)
            resumed.step()
        note(f"{kind} to {other} after", parameter)


def optimizers_in_pytorchs_way(torch, note):
    class Lamb(torch.optim.Optimizer):
        def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.01):
            if lr < 0.0:
                raise ValueError(f"Invalid learning rate: {lr}")
            super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

        def __setstate__(self, state):
            super().__setstate__(state)
            for group in self.param_groups:
                group.setdefault("trust", True)

        @torch.no_grad()
        def step(self, closure=None):
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is None:
                        continue
                    grad, state = p.grad, self.state[p]
                    if len(state) == 0:
                        state["step"] = 0
                        state["exp_avg"] = torch.zeros_like(p)
                        state["exp_avg_sq"] = torch.zeros_like(p)
                        state["rows"] = torch.zeros(p.shape[0], dtype=p.dtype)
                    state["step"] += 1
                    beta1, beta2 = group["betas"]
                    state["exp_avg"].mul_(beta1).add_(grad, alpha=1 - beta1)
                    state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
                    state["rows"].add_(grad.abs().sum(1))
                    update = state["exp_avg"] / state["exp_avg_sq"].sqrt().add_(1e-6)
                    update.add_(p, alpha=group["weight_decay"])
                    ratio = p.norm() / update.norm() if group.get("trust", True) else 1.0
                    p.add_(update * -group["lr"] * ratio)
            return loss

    parameter = _parameter(torch)
    optimizer = Lamb([{"params": [parameter]}], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for gradient in _gradients()[:5]:
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        schedule.step()
    note("five steps", parameter, optimizer.param_groups[0]["lr"], sorted(optimizer.state[parameter]))
    other = torch.nn.Parameter(parameter.detach().clone())
    resumed = Lamb([other])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    note("groups", sorted(resumed.param_groups[0]))
    for gradient in _gradients()[5:9]:
        for each, by in ((parameter, optimizer), (other, resumed)):
            each.grad = torch.tensor(gradient)
            by.step()
    note("resumed", parameter, other, resumed.state[other]["rows"])
    note("closure", resumed.step(lambda: 3.5))
    note.error("negative", lambda: Lamb([other], lr=-1.0), "Invalid learning rate")


def required_options(torch, note):
    required = importlib.import_module(f"{torch.__name__}.optim.optimizer").required

    class Own(torch.optim.Optimizer):
        def __init__(self, params, lr=required):
            super().__init__(params, {"lr": lr})

    note("given", Own([{"params": [_parameter(torch)], "lr": 0.5}]).param_groups[0]["lr"])
    note.error("missing", lambda: Own([_parameter(torch)]), "value of required optimization parameter lr")


def averaged_models(torch, note):
    swa = torch.optim.swa_utils

    def model():
        return torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.BatchNorm1d(2)).to(torch.float64)

    def fill(model, value):
        for number, tensor in enumerate([*model.parameters(), *model.buffers()]):
            tensor.data.copy_(torch.full(list(tensor.shape), value + number, dtype=tensor.dtype))

    for name, options in {
        "swa": {}, "swa of buffers": {"use_buffers": True}, "ema": {"avg_fn": swa.get_ema_avg_fn(0.9)},
        "multi ema": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.8)},
        "multi": {"multi_avg_fn": swa.get_swa_multi_avg_fn()},
        "own": {"avg_fn": lambda averaged, current, count: averaged + current * count},
        "ema of buffers": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.5), "use_buffers": True},
    }.items():  # fmt: skip
        trained = model()
        averaged = swa.AveragedModel(trained, **options)
        for step in range(3):
            fill(trained, float(step * step))
            averaged.update_parameters(trained)
            note(f"{name} {step}", *averaged.module.parameters(), averaged.n_averaged.item())
        note(f"{name} buffers", *averaged.module.buffers())
        note(f"{name} state", sorted(averaged.state_dict()))
        averaged.eval()
        note(f"{name} forward", averaged(torch.ones(2, 2, dtype=torch.float64)))
    note.error("decay", lambda: swa.get_ema_avg_fn(1.5), "Invalid decay value 1.5 provided")
    note.error("multi decay", lambda: swa.get_ema_multi_avg_fn(-1.0), "Invalid decay value -1.0 provided")
    both = {"avg_fn": swa.get_swa_avg_fn(), "multi_avg_fn": swa.get_swa_multi_avg_fn()}
    note.error("both", lambda: swa.AveragedModel(model(), **both), "Only one of avg_fn and multi_avg_fn")


def statistics_of_batches_anew(torch, note):
    swa = torch.optim.swa_utils
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.0)).to(torch.float64)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(
                torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape) * 0.3 + number
            )
    model.eval()
    batches = [torch.tensor(np.random.default_rng(number).standard_normal((4, 2))) for number in range(3)]
    swa.update_bn(batches, model)
    note("tensors", model[1].running_mean, model[1].running_var, model[1].momentum, model.training)
    swa.update_bn([(batch, 0) for batch in batches[:2]], model)
    note("pairs", model[1].running_mean, model[1].num_batches_tracked.item())
    swa.update_bn(batches, torch.nn.Linear(2, 1))


def _minimise(torch, x, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
        loss.backward()
        return loss

    return optimizer.step(closure).item()


def _as_noted(value):
    """Return a value with lists of tensors as lists of dicts, which `_as_tensors` makes tensors of."""
    if isinstance(value, list):
        return [_as_noted(part) for part in value]
    if hasattr(value, "detach"):
        return {"elements": value.tolist()} if value.ndim else value.item()
    return value


def _as_tensors(torch, value):
    if isinstance(value, list):
        return [_as_tensors(torch, part) for part in value]
    return torch.tensor(value["elements"], dtype=torch.float64) if isinstance(value, dict) else value


def states_of_lbfgs(torch, note):
    x = torch.nn.Parameter(torch.tensor([-1.5, 2.0], dtype=torch.float64))
    optimizer = torch.optim.LBFGS([x], lr=0.3, history_size=3, max_iter=4)
    for _ in range(3):
        _minimise(torch, x, optimizer)
    state = copy.deepcopy(optimizer.state_dict()["state"][0])
    note("x", x)
    note("state", {name: _as_noted(value) for name, value in state.items() if name != "al"})
    note("loss", _minimise(torch, x, optimizer))
    note("next", x)


def adafactor_of_vectors_and_more(torch, note):
    random = np.random.default_rng(3)
    shapes = [(5,), (2, 3, 4), (4, 1), ()]
    parameters = [torch.nn.Parameter(torch.tensor(random.standard_normal(shape))) for shape in shapes]
    optimizer = torch.optim.Adafactor(parameters, lr=0.5)
    for _ in range(6):
        for parameter, shape in zip(parameters, shapes, strict=True):
            parameter.grad = torch.tensor(random.standard_normal(shape))
        optimizer.step()
    note("parameters", *parameters)
    for parameter in parameters:
        names = sorted(name for name in optimizer.state[parameter] if name != "step")
        note(f"state {list(parameter.shape)}", names, *[optimizer.state[parameter][name] for name in names])


def muon(torch, note):
    matrix = torch.nn.Parameter(torch.ones(3, 2))
    for name, call, phrase in (
        ("a vector", lambda: torch.optim.Muon([torch.nn.Parameter(torch.ones(3))]), "Muon only supports 2D parameters"),
        ("a rule", lambda: torch.optim.Muon([matrix], adjust_lr_fn="x"), "Adjust learning rate function x is not"),
        ("momentum", lambda: torch.optim.Muon([matrix], momentum=-1.0), ""),
        ("clipping", lambda: torch.optim.Adafactor([matrix], d=0.5), "Clipping threshold d should be >= 1"),
        ("decay", lambda: torch.optim.Adafactor([matrix], beta2_decay=0.5), "beta2_decay should be <= 0"),
        ("eps", lambda: torch.optim.Adafactor([matrix], eps=(-1.0, 0.0)), "epsilon1"),
    ):
        note.error(name, call, phrase)
    optimizer = torch.optim.Muon([matrix])
    note("options", sorted(optimizer.defaults), list(optimizer.defaults["ns_coefficients"]), optimizer.defaults["eps"])
    matrix.grad = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    optimizer.step()
    note("buffer", optimizer.state[matrix]["momentum_buffer"])
    other = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    for rule in ("original", "match_rms_adamw"):  # the step is small against the decay, and of bfloat16
        optimizer = torch.optim.Muon([other], lr=1e-4, weight_decay=1e3, adjust_lr_fn=rule)
        other.grad = torch.zeros(2, 3)
        optimizer.step()
        note(f"no gradient {rule}", other)
