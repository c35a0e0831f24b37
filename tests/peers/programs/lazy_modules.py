"""Programs about lazy modules: their classes, shapes, state dicts, copies and errors."""

import copy
import pickle

LAYERS = {
    "LazyLinear": ((3,), {}, (5, 4)),
    "LazyConv1d": ((4, 3), {}, (2, 6, 9)),
    "LazyConv2d": ((4, (3, 2)), {"groups": 2, "padding": 1}, (2, 6, 9, 8)),
    "LazyConv3d": ((4, 2), {"bias": False}, (2, 3, 4, 4, 4)),
    "LazyConvTranspose1d": ((4, 3), {"stride": 2}, (2, 6, 5)),
    "LazyConvTranspose2d": ((4, 3), {"groups": 2}, (6, 5, 5)),
    "LazyConvTranspose3d": ((2, 2), {}, (1, 3, 2, 2, 2)),
    "LazyBatchNorm1d": ((), {}, (3, 4)),
    "LazyBatchNorm2d": ((), {"affine": False}, (3, 4, 2, 2)),
    "LazyBatchNorm3d": ((), {"track_running_stats": False}, (3, 4, 2, 2, 2)),
    "LazyInstanceNorm1d": ((), {}, (3, 4, 5)),
    "LazyInstanceNorm2d": ((), {"affine": False}, (3, 4, 5, 5)),
    "LazyInstanceNorm3d": ((), {"track_running_stats": False}, (3, 4, 2, 3, 2)),
}


def _state(module):
    return {name: list(tensor.shape) for name, tensor in module.state_dict().items()}


def each_layer_takes_its_size_from_its_first_input(torch, note):
    for name, (arguments, options, shape) in LAYERS.items():
        layer = getattr(torch.nn, name)(*arguments, **options)
        uninitialized = torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer
        kinds = {key: isinstance(value, uninitialized) for key, value in layer.state_dict().items()}
        note(name, repr(layer), kinds, layer.has_uninitialized_params())
        y = layer(torch.ones(shape))
        note("after", repr(layer), _state(layer), list(y.shape), type(layer).__name__)
        kinds = [type(tensor).__name__ for tensor in (*layer.parameters(), *layer.buffers())]
        note("kinds", kinds, [p.requires_grad for p in layer.parameters()])
        note("again", list(layer(torch.ones(shape)).shape))


def dtypes_modes_and_freezing_before_the_first_call(torch, note):
    layer = torch.nn.LazyLinear(3)
    note("dtype", layer.double().weight.dtype, repr(layer.weight))
    note("other", layer.to(torch.float16).weight.dtype, layer.float().bias.dtype)
    note("given", torch.nn.LazyConv2d(2, 3, dtype=torch.float64).weight.dtype)
    layer.double().eval()
    layer.zero_grad()
    y = layer(torch.ones(2, 4, dtype=torch.float64))
    note("first", y.dtype, layer.weight.dtype, layer.training)
    y.sum().backward()
    note("gradient", layer.bias.grad)
    parameter = torch.nn.UninitializedParameter(requires_grad=False, dtype=torch.float64)
    parameter.materialize((2, 3))
    note("frozen", type(parameter).__name__, parameter.requires_grad, parameter.dtype, list(parameter.shape))
    parameter = torch.nn.UninitializedParameter()
    parameter.materialize((2,), dtype=torch.float64)
    note("materialized", parameter.requires_grad, parameter.dtype, parameter.is_leaf)
    buffer = torch.nn.UninitializedBuffer(dtype=torch.float64)
    buffer.materialize((2,))
    note("buffer", type(buffer).__name__, buffer.dtype, buffer.requires_grad)


def state_dicts_before_and_after(torch, note):
    nn = torch.nn
    lazy, known = nn.LazyLinear(3), nn.Linear(4, 3)
    note("both lazy", str(lazy.load_state_dict(nn.LazyLinear(3).state_dict())), lazy.has_uninitialized_params())
    note("into lazy", str(lazy.load_state_dict(known.state_dict())), lazy.has_uninitialized_params())
    note("equal", bool((lazy.weight == known.weight).all()), type(lazy).__name__)
    lazy(torch.ones(1, 4))
    note("kept", bool((lazy.weight == known.weight).all()), type(lazy).__name__, lazy.in_features)
    unshaped = nn.LazyLinear(3).state_dict()
    note.error("into known", lambda: known.load_state_dict(unshaped), "the shape of an uninitialized")
    model, other = (nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)) for _ in range(2))
    model(torch.ones(1, 5))
    note("nested", str(other.load_state_dict(model.state_dict())), [list(p.shape) for p in other.parameters()])
    note("kinds", [type(m).__name__ for m in other])
    other(torch.ones(1, 5))
    note("kinds", [type(m).__name__ for m in other])
    norm, tracked = nn.LazyBatchNorm1d(), nn.BatchNorm1d(4)
    tracked(torch.arange(8.0).reshape(2, 4))
    norm.load_state_dict(tracked.state_dict())
    note("statistics", norm.running_mean, norm.num_batches_tracked)
    norm(torch.ones(2, 4))
    note("norm", norm.num_batches_tracked)
    assigned = nn.LazyLinear(3)
    assigned.load_state_dict(known.state_dict(), assign=True)
    note("assigned", bool((assigned.weight == known.weight).all()), type(assigned.weight).__name__)


def copies_and_pickles(torch, note):
    layer = torch.nn.LazyLinear(3)
    for name, made in (("copy", copy.deepcopy(layer)), ("pickle", pickle.loads(pickle.dumps(layer)))):
        note(name, type(made).__name__, made.has_uninitialized_params(), type(made.weight).__name__)
        made(torch.ones(2, 4))
        note("called", type(made).__name__, list(made.weight.shape), list(made.state_dict()))
        again = pickle.loads(pickle.dumps(made))
        note("again", type(again).__name__, bool((again.weight == made.weight).all()))
    note("untouched", type(layer).__name__, layer.has_uninitialized_params())


def _lazy_modules(torch):
    class Scale(torch.nn.Module):
        def forward(self, x, factor=1):
            return x * self.scale * factor

    class LazyScale(torch.nn.modules.lazy.LazyModuleMixin, Scale):
        cls_to_become = Scale

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.UninitializedParameter()

        def initialize_parameters(self, x, factor=1):
            if self.has_uninitialized_params():
                self.scale.materialize(x.shape[-1:])
                with torch.no_grad():
                    self.scale.fill_(float(factor))

    class Forgetful(LazyScale):
        def initialize_parameters(self, x):
            pass

    class Undefined(torch.nn.modules.lazy.LazyModuleMixin, Scale):
        pass

    return LazyScale, Forgetful, Undefined


def modules_of_ones_own(torch, note):
    LazyScale, Forgetful, Undefined = _lazy_modules(torch)
    module = LazyScale()
    module.register_forward_pre_hook(lambda m, args: note("before", type(m).__name__) or (args[0] + 1,))
    module.register_forward_hook(lambda m, args, y: note("after", type(m).__name__))
    note("result", module(torch.ones(2, 3), factor=2), type(module).__name__, module.scale)
    note("result", module(torch.ones(1)))
    note.error("forgotten", lambda: Forgetful()(torch.ones(2)), "has not been fully initialized")
    note.error("undefined", lambda: Undefined()(torch.ones(2)), "initialize_parameters is not implemented for")
    outer = torch.nn.Sequential(LazyScale(), LazyScale())
    note("applied", [type(m).__name__ for m in outer.modules()])
    note("outer", outer(torch.ones(2)), [type(m).__name__ for m in outer.modules()])


def what_an_uninitialized_parameter_cannot_do(torch, note):
    p = torch.nn.UninitializedParameter()
    calls = {
        "add": lambda: p + p,
        "relu": lambda: torch.relu(p),
        "numel": lambda: p.numel(),
        "detach": lambda: p.detach(),
        "sum": lambda: p.sum(),
        "linear": lambda: torch.nn.functional.linear(torch.ones(2), p),
        "vector": lambda: torch.nn.utils.parameters_to_vector([p]),
        "counted": lambda: sum(q.numel() for q in torch.nn.LazyLinear(2).parameters()),
        "requires_grad_": lambda: p.requires_grad_(True),
    }
    for name, call in calls.items():
        note.error(name, call, "Attempted to use an uninitialized parameter")
    note.error("shape", lambda: p.shape, "Can't access the shape of an uninitialized parameter or buffer")
    note.error("share", lambda: torch.nn.LazyLinear(2).share_memory(), "Can't share memory on an uninitialized")
    note.error("dims", lambda: torch.nn.LazyConv2d(4, 3)(torch.ones(2, 2)), "Expected 3D (unbatched) or 4D (batched)")
    note.error("groups", lambda: torch.nn.LazyConv2d(4, 3, groups=2)(torch.ones(1, 3, 5, 5)), "divisible by groups")
