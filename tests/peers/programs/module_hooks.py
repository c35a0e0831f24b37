"""Programs about hooks on all modules: their order, what they replace, and their removal."""

import contextlib


def _module(torch):
    return torch.nn.modules.module


def _leaf(torch, *values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def hooks_of_all_modules_run_before_a_modules_own(torch, note):
    m = _module(torch)
    layer = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Tanh())

    def say(name):
        return lambda module, *_: note(name, type(module).__name__)

    own = [
        layer[1].register_forward_pre_hook(say("own before")),
        layer[1].register_forward_hook(say("own after")),
        layer[1].register_full_backward_hook(say("own backward")),
        layer[1].register_full_backward_pre_hook(say("own before backward")),
    ]
    handles = [
        m.register_module_forward_pre_hook(say("before")),
        m.register_module_forward_hook(say("after")),
        m.register_module_forward_hook(say("second after")),
        m.register_module_full_backward_hook(say("backward")),
        m.register_module_full_backward_pre_hook(say("before backward")),
    ]
    try:
        layer(_leaf(torch, 1.0, 2.0)).sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    note("removed")
    layer(_leaf(torch, 1.0, 2.0)).sum().backward()
    for handle in own:
        handle.remove()
    layer(_leaf(torch, 1.0, 2.0)).sum().backward()


def what_hooks_of_all_modules_return_replaces(torch, note):
    m = _module(torch)
    layer = torch.nn.Identity()
    x = _leaf(torch, 1.0, 2.0)
    with contextlib.ExitStack() as stack:
        stack.callback(m.register_module_forward_pre_hook(lambda module, args: args[0] + 1).remove)
        note("argument", layer(x))
        stack.callback(m.register_module_forward_hook(lambda module, args, y: y * 10).remove)
        note("result", layer(x))
        layer.register_forward_hook(lambda module, args, y: note("own sees", args[0], y))
        layer(x)
        stack.callback(m.register_module_full_backward_hook(lambda module, gx, gy: (gx[0] * 2,)).remove)
        stack.callback(m.register_module_full_backward_pre_hook(lambda module, gy: (gy[0] + 1,)).remove)
        layer(x).sum().backward()
        note("gradient", x.grad)
    note("after", layer(x))


def keyword_arguments_and_errors(torch, note):
    m = _module(torch)

    class Fails(torch.nn.Module):
        def forward(self, x, factor=1):
            raise ZeroDivisionError("mine")

    class Scales(torch.nn.Module):
        def forward(self, x, factor=1):
            return x * factor

    x = _leaf(torch, 1.0)
    with contextlib.ExitStack() as stack:
        seen = m.register_module_forward_hook(
            lambda module, args, kwargs, y: note("with kwargs", len(args), kwargs, y), with_kwargs=True
        )
        stack.callback(seen.remove)
        Scales()(x, factor=3)
        stack.callback(m.register_module_forward_hook(lambda *_: note("not after an error")).remove)
        always = m.register_module_forward_hook(lambda module, args, y: note("always", y), always_call=True)
        stack.callback(always.remove)
        failing = Fails()
        failing.register_forward_hook(lambda module, args, y: note("own always", y), always_call=True)
        failing.register_forward_hook(lambda module, args, y: note("own not"))
        note.error("error", lambda: failing(x), "mine")
    wrong = Scales()
    wrong.register_forward_pre_hook(lambda module, args, kwargs: args, with_kwargs=True)
    note.error("pre-hook", lambda: wrong(x), "forward pre-hook must return None or a tuple of (new_args, new_kwargs)")


def registrations_in_all_modules(torch, note):
    m = _module(torch)
    with contextlib.ExitStack() as stack:
        for name in ("parameter", "buffer", "module"):
            register = getattr(m, f"register_module_{name}_registration_hook")

            def hook(module, key, value, name=name):
                note(name, type(module).__name__, key, type(value).__name__)

            stack.callback(register(hook).remove)
        torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    torch.nn.Linear(2, 1)
