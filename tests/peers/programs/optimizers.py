"""Optimizers: what they make of a parameter in twenty steps, their states, hooks and errors."""

import math

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
