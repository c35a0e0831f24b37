"""Weights that are computed from others, and layers joined with their normalization."""

import warnings


def _layer(torch, kind, *sizes):
    layer = getattr(torch.nn, kind)(*sizes).double()
    with torch.no_grad():
        for n, parameter in enumerate(layer.parameters()):
            parameter.copy_(_ramp(torch, *parameter.shape) / (n + 1))
    return layer


def _ramp(torch, *shape):
    count = 1
    for size in shape:
        count *= size
    return torch.sin(torch.arange(count, dtype=torch.float64) * 1.3 + 0.4).reshape(*shape)


def _noted(torch, note, name, layer, *shape):
    x = _ramp(torch, *shape).requires_grad_()
    out = layer(x)
    (out * _ramp(torch, *out.shape)).sum().backward()
    note(f"{name} keys", list(layer.state_dict()))
    note(f"{name} result", out, x.grad)
    note(f"{name} gradients", {key: parameter.grad for key, parameter in layer.named_parameters()})
    layer.zero_grad()


LAYERS = (
    ("Linear", (3, 4), (2, 3)),
    ("Conv2d", (2, 3, 2), (2, 2, 4, 3)),
    ("ConvTranspose1d", (2, 3, 2), (2, 2, 4)),
)


def weight_norms(torch, note):
    for kind, sizes, shape in LAYERS:
        for dim in (0, 1, None):
            new = torch.nn.utils.parametrizations.weight_norm(_layer(torch, kind, *sizes), dim=dim)
            _noted(torch, note, f"parametrization {kind} {dim}", new, *shape)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                old = torch.nn.utils.weight_norm(_layer(torch, kind, *sizes), dim=dim)
            note("warnings", [w.category.__name__ for w in caught])
            _noted(torch, note, f"hook {kind} {dim}", old, *shape)
            note("loading the old form's state", str(new.load_state_dict(old.state_dict())))
            torch.nn.utils.remove_weight_norm(old)
            torch.nn.utils.parametrize.remove_parametrizations(new, "weight")
            _noted(torch, note, f"removed hook {kind} {dim}", old, *shape)
            _noted(torch, note, f"removed {kind} {dim}", new, *shape)
    note.error("none to remove", lambda: torch.nn.utils.remove_weight_norm(old), "not found in")


def _set_vectors(torch, u, v):
    with torch.no_grad():
        u.copy_(torch.nn.functional.normalize(_ramp(torch, *u.shape), dim=0))
        v.copy_(torch.nn.functional.normalize(_ramp(torch, *v.shape), dim=0))


def spectral_norms(torch, note):
    for kind, sizes, shape in LAYERS:
        new = torch.nn.utils.parametrizations.spectral_norm(_layer(torch, kind, *sizes))
        made = new.parametrizations.weight[0]
        _set_vectors(torch, made._u, made._v)
        old = torch.nn.utils.spectral_norm(_layer(torch, kind, *sizes), n_power_iterations=2)
        _set_vectors(torch, old.weight_u, old.weight_v)
        for mode in ("train", "eval"):
            _noted(torch, note, f"parametrization {kind} {mode}", getattr(new, mode)(), *shape)
            _noted(torch, note, f"hook {kind} {mode}", getattr(old, mode)(), *shape)
        note("vectors", made._u, made._v, old.weight_u, old.weight_v)
        torch.nn.utils.remove_spectral_norm(old)
        torch.nn.utils.parametrize.remove_parametrizations(new, "weight", leave_parametrized=False)
        _noted(torch, note, f"removed hook {kind}", old, *shape)
        _noted(torch, note, f"removed {kind}", new, *shape)
    note.error("iterations", lambda: torch.nn.utils.spectral_norm(new, n_power_iterations=0), "to be positive")


def parametrizations_of_ones_own(torch, note):
    class Symmetric(torch.nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, x):
            return x.triu()

    class Doubled(torch.nn.Module):
        def forward(self, x):
            return 2 * x

    class Longer(torch.nn.Module):
        def forward(self, x):
            return torch.cat((x, x))

    parametrize = torch.nn.utils.parametrize
    layer = _layer(torch, "Linear", 3, 3)
    note("before", parametrize.is_parametrized(layer))
    parametrize.register_parametrization(layer, "weight", Symmetric())
    _noted(torch, note, "symmetric", layer, 2, 3)
    note("is", parametrize.is_parametrized(layer, "weight"), parametrize.is_parametrized(layer, "bias"))
    layer.weight = _ramp(torch, 3, 3) + _ramp(torch, 3, 3).t()
    _noted(torch, note, "assigned", layer, 2, 3)
    parametrize.register_parametrization(layer, "weight", Doubled())
    _noted(torch, note, "two", layer, 2, 3)
    with parametrize.cached():
        note("cached", layer.weight is layer.weight)
    note("not cached", layer.weight is layer.weight)
    note.error("other shape", lambda: parametrize.register_parametrization(layer, "bias", Longer()), "may not change")
    note.error(
        "no tensor", lambda: parametrize.register_parametrization(layer, "scale", Doubled()), "with name 'scale'"
    )
    note.error("not parametrized", lambda: parametrize.remove_parametrizations(layer, "bias"), "does not have a param")
    parametrize.remove_parametrizations(layer, "weight")
    note("class", type(layer).__name__)
    _noted(torch, note, "removed", layer, 2, 3)


def fused_layers(torch, note):
    for conv, norm, sizes, shape in (
        ("Conv2d", "BatchNorm2d", (2, 3, 2), (2, 2, 4, 3)),
        ("ConvTranspose1d", "BatchNorm1d", (2, 3, 2), (2, 2, 4)),
        ("Linear", "BatchNorm1d", (3, 4), (2, 3)),
    ):
        layer, bn = _layer(torch, conv, *sizes).eval(), _layer(torch, norm, sizes[1]).eval()
        with torch.no_grad():
            bn.running_mean.copy_(_ramp(torch, sizes[1]))
            bn.running_var.copy_(_ramp(torch, sizes[1]).abs() + 0.5)
        if conv == "Linear":
            fused = torch.nn.utils.fusion.fuse_linear_bn_eval(layer, bn)
        else:
            fused = torch.nn.utils.fusion.fuse_conv_bn_eval(layer, bn, transpose=conv.startswith("ConvT"))
        x = _ramp(torch, *shape)
        note(f"{conv} close", torch.allclose(fused(x), bn(layer(x))))
        _noted(torch, note, conv, fused, *shape)


def joint_norms(torch, note):
    layer = _layer(torch, "Linear", 3, 4)
    layer(_ramp(torch, 2, 3)).sum().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    total = torch.nn.utils.get_total_norm(gradients)
    note("norms", total, torch.nn.utils.get_total_norm(gradients, norm_type=1.0))
    torch.nn.utils.clip_grads_with_norm_(layer.parameters(), 0.5, total)
    note("clipped", gradients)
