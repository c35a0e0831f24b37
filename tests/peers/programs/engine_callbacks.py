"""Programs about the engine's callbacks and switches, and about what tensors warn of and refuse."""

import warnings


def _leaf(torch, *values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def _engine(torch):
    return torch.autograd.Variable._execution_engine


def callbacks_run_at_the_end_of_backward(torch, note):
    x = _leaf(torch, 1.0, 2.0)

    def last():
        note("last", x.grad)

    def first():
        note("first", x.grad)
        _engine(torch).queue_callback(last)

    y = x * 2
    y.register_hook(lambda g: note("hook") or _engine(torch).queue_callback(first))
    x.register_post_accumulate_grad_hook(lambda x: note("accumulated"))
    y.sum().backward(retain_graph=True)
    note("after")
    note("grad", torch.autograd.grad(y.sum(), x))
    says = "Final callbacks can only be installed during backward pass"
    note.error("outside", lambda: _engine(torch).queue_callback(first), says)


def callbacks_of_a_backward_within_backward(torch, note):
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                y = _leaf(torch, 3.0)
                z = y * 2
                z.register_hook(lambda g: _engine(torch).queue_callback(lambda: note("inner end")))
                z.sum().backward()
                note("inner done")
            return g

    x = _leaf(torch, 1.0)
    y = Inner.apply(x) * 2
    y.register_hook(lambda g: _engine(torch).queue_callback(lambda: note("outer end")))
    y.sum().backward()
    note("done", x.grad)


def a_callback_that_fails_ends_backward_with_its_error(torch, note):
    x = _leaf(torch, 1.0)

    def fail():
        raise ZeroDivisionError("mine")

    y = x * 2
    y.register_hook(lambda g: _engine(torch).queue_callback(fail))
    note.error("error", y.sum().backward, "mine")
    note("gradient", x.grad)


def the_switch_for_threads(torch, note):
    x = _leaf(torch, 1.0)
    with torch.autograd.set_multithreading_enabled(False):
        (x * 2).sum().backward()
    switch = torch.autograd.grad_mode.set_multithreading_enabled

    @switch(False)
    def run():
        (x * 3).sum().backward()

    run()
    switch(True)
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(True)
    note("gradient", x.grad)


def the_former_class_of_tensors(torch, note):
    Variable = torch.autograd.Variable
    x = Variable(torch.ones(2), requires_grad=True)
    note("made", type(x).__name__, x.requires_grad, isinstance(x, Variable), isinstance(torch.ones(1), Variable))
    note("not", isinstance(1, Variable), isinstance(torch.nn.Parameter(torch.ones(1)), Variable))
    data = torch.ones(2)
    Variable(data).add_(1)
    note("shared", data)
    note("module", torch.autograd.variable.Variable is Variable)


def _warned(call, *phrases):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [[phrase in str(warning.message) for phrase in phrases] for warning in found]


def what_warns(torch, note):
    x = _leaf(torch, 1.0, 2.0)
    y = x * 2
    says = (
        ".grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        "won't be populated",
        ".retain_grad()",
    )
    note("non-leaf", _warned(lambda: y.grad, *says), _warned(lambda: x.view(-1).grad, *says))
    note("leaf", _warned(lambda: x.grad), _warned(lambda: torch.ones(1).grad), _warned(lambda: y.detach().grad))
    y.retain_grad()
    note("retained", _warned(lambda: y.grad))
    y.sum().backward()
    note("filled", _warned(lambda: y.grad), y.grad)
    z = x * 3
    z.grad = torch.ones(2, dtype=torch.float64)
    note("assigned", _warned(lambda: z.grad), z.grad)

    def detect():
        with torch.autograd.detect_anomaly():
            pass

    def set_detect():
        with torch.autograd.set_detect_anomaly(True):
            pass

    says = "Anomaly Detection has been enabled. This mode will increase the runtime"
    note("anomaly", _warned(detect, says), _warned(set_detect, says))

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError("mine")

    def fail(before, text):
        y = Fails.apply(x).sum() if before else None
        with torch.autograd.set_detect_anomaly(True):
            y = Fails.apply(x).sum() if y is None else y
            note.error("error", y.backward, "mine")

    says = "Error detected in FailsBackward. Traceback of forward call that caused the error:", "Fails.apply(x).sum()"
    note("traceback", _warned(lambda: fail(False, says), *says))
    says = (
        "Error detected in FailsBackward. No forward pass information available. Enable detect anomaly during forward"
    )
    note("no traceback", _warned(lambda: fail(True, says), says))


def what_tensors_refuse(torch, note):
    x, y = _leaf(torch, 1.0, 2.0), torch.ones(2, dtype=torch.float64)

    def assign(tensor, name, value):
        return lambda: setattr(tensor, name, value)

    def delete_data():
        del x.data

    note.error("del data", delete_data, "Deleting tensor data is not allowed. Delete tensor instead!")
    note.error("data of a number", assign(x, "data", 3), "Variable data has to be a tensor, but got int")
    says = "data set to a tensor that requires gradients must be floating point or complex dtype"
    note.error("data of integers", assign(x, "data", torch.ones(2, dtype=torch.int64)), says)
    note.error("grad", assign(x, "grad", 3), "assigned grad expected to be a Tensor or None but got grad of type")
    says = "attempting to assign a gradient of size '[5]' to a tensor of size '[2]'"
    note.error("size", assign(x, "grad", torch.ones(5, dtype=torch.float64)), says)
    note.error("dtype", assign(x, "grad", torch.ones(2)), "attempting to assign a gradient with dtype")
    note.error("flag", assign(y, "requires_grad", "yes"), "requires_grad must be a bool")
    says = "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in"
    note.error("flag of a non-leaf", assign(x * 2, "requires_grad", False), says)
    for name in ("grad_fn", "is_leaf", "_version", "output_nr"):
        note.error(name, assign(y, name, None))
    note.error(
        "hook", lambda: y.register_hook(print), "cannot register a hook on a tensor that doesn't require gradient"
    )
    note.error("retain", y.retain_grad, "can't retain_grad on Tensor that has requires_grad=False")
    x.grad = torch.ones(2, dtype=torch.float64)
    del x.grad
    note("deleted", x.grad)
    x.data = torch.ones(3, dtype=torch.float64)
    note("other size", x)


def views_and_their_bases(torch, note):
    x, y = _leaf(torch, 1.0, 2.0), torch.ones(2, 3)
    note("views", x._is_view(), x.view(-1)._is_view(), y[0]._is_view(), y.t()._is_view(), (y + 1)._is_view())
    note(
        "bases",
        y._base is None,
        y[0]._base is y,
        y[0].view(-1)._base is y,
        x.view(-1)._base is x,
        (x * 1)._base is None,
    )
    view = y[0]
    view.add_(1)
    y.mul_(2)
    note("versions", view._version, y._version, y.view(-1)._version, y.clone()._version)
    z = x * 1
    part = z[:1]
    note("before", part.grad_fn.name(), part.retains_grad)
    z.mul_(3)
    part.retain_grad()
    note("after", part.grad_fn.name(), part.retains_grad, x.retains_grad)
