"""Programs about inference mode: the tensors made in it, their views, and what they refuse."""

SAVED = "Inference tensors cannot be saved for backward"
CHANGED = "Inplace update to inference tensor outside InferenceMode is not allowed"
VERSION = "Inference tensors do not track version counter."


def _ones(torch, requires_grad=False):
    return torch.ones(1, 2, 3, dtype=torch.float64, requires_grad=requires_grad)


def _kind(tensor):
    return [tensor.is_inference(), tensor.requires_grad, tensor.is_leaf, tensor.grad_fn is None]


def the_mode_and_its_switch(torch, note):
    note("outside", torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    for mode in (True, False):
        with torch.inference_mode(mode):
            note("inside", mode, torch.is_inference_mode_enabled(), torch.is_grad_enabled())
            with torch.inference_mode(not mode):
                note("nested", torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _kind(_ones(torch, True)))
            note("after", torch.is_inference_mode_enabled(), torch.is_grad_enabled())
    with torch.inference_mode(), torch.enable_grad():
        x = _ones(torch, True)
        note("recorded", (x * 2).requires_grad, _kind(x), torch.is_grad_enabled())
        with torch.no_grad():
            note("no_grad", torch.is_grad_enabled())
        torch.set_grad_enabled(True)
    note("grad mode outside", torch.is_grad_enabled())

    for decorator in (torch.inference_mode, torch.inference_mode(), torch.inference_mode(mode=False)):

        @decorator
        def make():
            return _ones(torch, True) * 2

        note("decorated", _kind(make()))


def what_is_made_in_it(torch, note):
    normal = {False: _ones(torch), True: _ones(torch, True)}
    with torch.inference_mode():
        for requires in (False, True):
            made = _ones(torch, requires)
            note("made", requires, _kind(made), _kind(made * made), _kind(made.view(-1)), _kind(made.detach()))
            note("changed", _kind(made.clone().mul_(2)), _kind(made.clone().view(-1).add_(1)))
            other = normal[requires]
            note("of normal", requires, _kind(other * 2), other.view(-1).is_inference(), _kind(other.clone()))
            note("mixed", _kind(other + made))
        note("set", _kind(torch.ones(2).requires_grad_(True)))
        note("view changed", _kind(normal[False].view(-1).mul_(2)), normal[False])
        note("normal changed", _kind(normal[False].mul_(3)), normal[False], normal[False]._version)


def views_of_what_requires_a_gradient(torch, note):
    x = _ones(torch, True)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            view = x.view(-1)
        note(f"view in {mode.__name__}", view.requires_grad)
        note("what it is", view.is_inference(), view.is_leaf, view.grad_fn is None)
        (view * x.view(-1)).sum().backward()
        note("gradient", x.grad, view.grad)


def what_it_made_outside(torch, note):
    with torch.inference_mode():
        x, y = _ones(torch), _ones(torch)
        leaf = _ones(torch, True)
    normal, wanted = _ones(torch), _ones(torch, True)
    note("kinds", _kind(x), _kind(leaf), torch.is_inference(x), torch.is_inference(normal))
    note("results", _kind(x * 2), _kind(x + normal), _kind(normal * x))
    note("views", _kind(x.view(-1)), _kind(x.detach()), _kind(x[0]), _kind(x.view(-1).clone()))
    note("recorded", _kind(x + wanted), _kind(leaf + 1))
    note.error("saved", lambda: wanted * x, SAVED)
    note.error("saved view", lambda: wanted * x.view(1, 2, 3), SAVED)
    note.error("saved leaf", lambda: wanted * leaf, SAVED)
    note.error("in place", lambda: y.add_(1), CHANGED)
    note.error("in place by a view", lambda: y.view(-1).add_(1), CHANGED)
    note.error("an item", lambda: y.__setitem__(0, 2.0), CHANGED)
    note.error("in no_grad", lambda: torch.no_grad()(y.mul_)(2), CHANGED)
    note.error("out", lambda: torch.add(normal, 1, out=y), CHANGED)
    note.error("version", lambda: x._version, VERSION)
    note.error("version of a view", lambda: x.view(-1)._version, VERSION)
    note.error("requires", lambda: x.requires_grad_(True), "Setting requires_grad=True on inference tensor outside")
    note("not required", _kind(x.requires_grad_(False)))
    clone = x.clone()
    note("clone", _kind(clone), _kind(clone.add_(1)), list(clone.shape))
    (clone.requires_grad_(True) * 3).sum().backward()
    note("gradient", clone.grad)
    normal.add_(x)
    note("normal", normal, normal._version)
    with torch.inference_mode():
        note("again inside", x.add_(1))
        note.error("version inside", lambda: x._version, VERSION)


def normal_tensors_that_were_changed_inside(torch, note):
    x = _ones(torch, True)
    y = x * 2
    z = y * y
    with torch.inference_mode():
        y.mul_(2)
    note.error("saved before", z.sum().backward, "modified by an inplace operation")
    a = _ones(torch)
    b = a.requires_grad_() * 1
    with torch.inference_mode():
        b.mul_(3)
    note("version", b._version, _kind(b))
    (b * b).sum().backward()
    note("gradient", a.grad)


def views_made_inside_change_outside(torch, note):
    for requires in (True, False):
        base = _ones(torch, requires) * 1
        with torch.inference_mode():
            view = base.view(-1)
        note("view", view.is_inference())
        if requires:
            note.error("changed", lambda view=view: view.mul_(2), "is being modified inplace")
        else:
            note("changed", _kind(view.mul_(2)), base)


def custom_functions(torch, note):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    with torch.inference_mode():
        x = _ones(torch)
        leaf = _ones(torch, True)
        note("inside", _kind(Square.apply(x)), _kind(Square.apply(leaf)))
    note("outside", _kind(Square.apply(x)))
    note.error("saved", lambda: Square.apply(leaf), SAVED)
