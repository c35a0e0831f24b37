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
