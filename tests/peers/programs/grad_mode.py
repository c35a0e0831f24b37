"""Where operations are recorded and where not."""

import threading

import numpy as np


def _leaf(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape), requires_grad=True)


def modes_nest(torch, note):
    x = _leaf(torch, 2)
    with torch.no_grad():
        note("no_grad", torch.is_grad_enabled(), (x * 2).requires_grad)
        with torch.enable_grad():
            note("enable_grad", torch.is_grad_enabled(), (x * 2).requires_grad)
        with torch.set_grad_enabled(True):
            note("set True", (x * 2).requires_grad)
        note("back", torch.is_grad_enabled())
    with torch.set_grad_enabled(False):
        note("set False", (x * 2).requires_grad)
    torch.set_grad_enabled(False)
    note("from here on", (x * 2).requires_grad)
    torch.set_grad_enabled(True)
    note("end", torch.is_grad_enabled())


def decorators(torch, note):
    x = _leaf(torch, 2)

    @torch.no_grad()
    def called():
        return (x * 2).requires_grad

    @torch.no_grad
    def bare():
        return (x * 2).requires_grad

    @torch.set_grad_enabled(False)
    def with_argument():
        return (x * 2).requires_grad

    note("after a decorator", torch.is_grad_enabled())
    note("calls", called(), bare(), with_argument(), called.__name__)


def decorated_generators_keep_their_mode_to_themselves(torch, note):
    x = _leaf(torch, 2)

    @torch.no_grad()
    def generate():
        for _ in range(2):
            sent = yield (x * 2).requires_grad
            note("sent", sent, torch.is_grad_enabled())

    generator = generate()
    note("first", next(generator), torch.is_grad_enabled())
    note("second", generator.send("hello"), torch.is_grad_enabled())
    note("end", list(generator), torch.is_grad_enabled())


def the_mode_survives_an_exception(torch, note):
    def fails():
        with torch.no_grad():
            raise KeyError("inside")

    note.error("fails", fails, "inside")
    note("after", torch.is_grad_enabled())


def the_mode_is_the_threads_own(torch, note):
    seen = []
    with torch.no_grad():
        thread = threading.Thread(target=lambda: seen.append(torch.is_grad_enabled()))
        thread.start()
        thread.join()
    note("in the thread", seen)


def leaves_made_without_recording_may_require_gradients(torch, note):
    with torch.no_grad():
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        z = x.detach().requires_grad_()
    note("flags", x.requires_grad, y.requires_grad, y.is_leaf, z.requires_grad)
    y.requires_grad_()
    (y * 3).sum().backward()
    note("gradient", y.grad, x.grad)


def inference_tensors(torch, note):
    x = _leaf(torch, 2)
    with torch.inference_mode():
        y = x * 2
        note("inside", torch.is_inference_mode_enabled(), y.requires_grad, torch.is_grad_enabled())
    note("outside", torch.is_inference_mode_enabled())
    note("kind", y.is_inference(), torch.is_inference(y))
    note("kind of others", x.is_inference(), torch.is_inference(torch.ones(2)))
    note.error("saved", lambda: x * y, "Inference tensors cannot be saved for backward")
    note.error("changed", lambda: y.add_(x), "inference")
    note("allowed", (x + y).requires_grad)
    with torch.inference_mode(False):
        note("off", (x * 2).requires_grad)

    @torch.inference_mode()
    def decorated():
        return (x * 2).requires_grad

    note("decorated", decorated())


def anomalies_are_found(torch, note):
    x = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)

    def run():
        y = (x * 0) / (x * 0)
        y.sum().backward()

    run()
    note("without", x.grad)
    with torch.autograd.detect_anomaly():
        note.error("nan", run, "returned nan values in its 0th output", "DivBackward0")
        note("enabled", torch.is_anomaly_enabled())
    with torch.autograd.detect_anomaly(check_nan=False):
        run()
    torch.autograd.set_detect_anomaly(True)
    note.error("set", run, "nan")
    torch.autograd.set_detect_anomaly(False)
    with torch.autograd.set_detect_anomaly(True):
        note.error("context", run, "nan")
    run()


def saved_tensors_may_change_where_that_is_allowed(torch, note):
    x = _leaf(torch, 2)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        a = x * 1
        y = a.sin() + a.exp()
        a.mul_(2)
        z = a.cos()
        a.zero_()
        (y.sum() + z.sum()).backward()
    note("gradient", x.grad, a)


def anomalies_of_custom_functions_and_errors(torch, note):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise ZeroDivisionError("mine")

    class GivesNan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, g):
            return g, g * float("nan")

    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    with torch.autograd.detect_anomaly():
        note.error("error", Fails.apply(x).sum().backward, "mine")
        says = "Function 'GivesNanBackward' returned nan values in its 1th output"
        note.error("nan", GivesNan.apply(x, y).sum().backward, says)
    note("off", torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    with torch.autograd.detect_anomaly(check_nan=False):
        note("check", torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
        with torch.autograd.set_detect_anomaly(False):
            note("inner", torch.is_anomaly_enabled())
        note("after", torch.is_anomaly_enabled())
    note("outside", torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())


def modes_in_backward(torch, note):
    x = _leaf(torch, 2)
    y = x * x
    y.register_hook(lambda g: note("in a hook", torch.is_grad_enabled()))
    with torch.no_grad():
        y.sum().backward(retain_graph=True) if y.sum().requires_grad else note("not recorded")
        y.backward(torch.ones(2, dtype=torch.float64), retain_graph=True)
        note("after", torch.is_grad_enabled())
    y.sum().backward(create_graph=True)
    note("after", torch.is_grad_enabled())
    x.grad = None


def modes_are_objects_functions_and_decorators_of_classes_methods(torch, note):
    class Model:
        @torch.no_grad()
        def predict(self, x):
            return (x * 2).requires_grad

        @classmethod
        @torch.no_grad()
        def of_class(cls, x):
            return (x * 2).requires_grad

        @staticmethod
        @torch.inference_mode()
        def static(x):
            return (x * 2).requires_grad

    x = _leaf(torch, 2)
    note("methods", Model().predict(x), Model.of_class(x), Model.static(x), Model.predict.__name__)
    previous = torch.is_grad_enabled()
    torch.set_grad_enabled(not previous)
    note("set", torch.is_grad_enabled())
    torch.set_grad_enabled(previous)
    note("set back", torch.is_grad_enabled())


def generators_that_end_early(torch, note):
    x = _leaf(torch, 2)

    @torch.no_grad()
    def generate():
        try:
            yield (x * 2).requires_grad
            yield "never"
        except KeyError as error:
            note("thrown", torch.is_grad_enabled())
            yield error.args[0]
        finally:
            note("finally", torch.is_grad_enabled())

    g = generate()
    note("first", next(g), torch.is_grad_enabled())
    note("thrown", g.throw(KeyError("text")), torch.is_grad_enabled())
    g.close()
    g = generate()
    next(g)
    g.close()
    note("closed", torch.is_grad_enabled())

    @torch.enable_grad()
    def inner():
        yield torch.is_grad_enabled()

    @torch.no_grad()
    def outer():
        yield torch.is_grad_enabled()
        yield from inner()
        yield torch.is_grad_enabled()

    note("nested", list(outer()), torch.is_grad_enabled())


def gradients_are_checked(torch, note):
    gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x

    class Undefined(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return torch.ones(2, dtype=torch.float64) if g is None else g

    class Random(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * (2 + torch.rand(g.shape) * 1e-8)

    class Constant(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return torch.ones(2, dtype=torch.float64)

    x, y = _leaf(torch, 2), _leaf(torch, 2, seed=1)
    note.error("constant", lambda: gradcheck(Constant.apply, (x,)), "backward not multiplied by grad_output")
    note("right", gradcheck(lambda x, y: x * y.sin(), (x, y)), gradgradcheck(lambda x, y: x * y.sin(), (x, y)))
    note("other arguments", gradcheck(lambda x, n: x**n, (x, 3)))
    note("several outputs", gradcheck(lambda x: (x.sin(), x.sum()), (x,)), gradcheck(lambda x: x * 2, x))
    note("fast", gradcheck(lambda x: x.sin(), (x,), fast_mode=True))
    note("batched", gradcheck(lambda x: x.sin(), (x,), check_batched_grad=True))
    for options in ({}, {"fast_mode": True}):
        note.error("wrong", lambda options=options: gradcheck(Wrong.apply, (x,), **options), "Jacobian mismatch")
    note("told", gradcheck(Wrong.apply, (x,), raise_exception=False))
    note("loose", gradcheck(Wrong.apply, (x,), atol=100.0))
    note.error(
        "undefined",
        lambda: gradcheck(Undefined.apply, (x,)),
        "Expected all input grads to be undefined or zero when all output grads are undefined or zero",
    )
    note("undefined unchecked", gradcheck(Undefined.apply, (x,), check_undefined_grad=False))
    note.error("random", lambda: gradcheck(Random.apply, (x,)), "not reentrant")
    note("random within", gradcheck(Random.apply, (x,), nondet_tol=1e-6))
    note.error("nothing requires", lambda: gradcheck(lambda x: x * 2, (x.detach(),)))
    note.error("of nothing", lambda: gradcheck(lambda: 1, ()))
    overlapping = torch.ones(1, dtype=torch.float64, requires_grad=True).expand(3)
    note.error("overlapping", lambda: gradcheck(lambda x: x * 2, (overlapping,)), "stride 0")
    note("no dependence", gradcheck(lambda x, y: x * 2, (x, y)))
    note("grad of grad", gradgradcheck(lambda x: x**3, (x,), (y,)))
