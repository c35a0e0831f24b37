"""Pruned parameters: names, masks, forward and backward, pruning again, removal, and what is refused."""

import importlib


def _prune(torch):
    return importlib.import_module(f"{torch.__name__}.nn.utils.prune")


def _layer(torch, kind="Linear"):
    layer = torch.nn.Linear(4, 3) if kind == "Linear" else torch.nn.Conv2d(2, 3, 2)
    with torch.no_grad():
        for i, parameter in enumerate(layer.parameters()):
            steps = torch.arange(parameter.numel(), dtype=torch.float32) * 7 + i
            values = steps % 29 - 14.25 + parameter.numel() / 256  # no two are as large
            parameter.copy_(values.view(parameter.shape))
    return layer


def _names(layer):
    return [[n for n, _ in layer.named_parameters()], [n for n, _ in layer.named_buffers()]]


def a_pruned_layer(torch, note):
    prune = _prune(torch)
    layer = _layer(torch)
    original = layer.weight
    note("before", prune.is_pruned(layer), _names(layer))
    note("returned", prune.l1_unstructured(layer, "weight", amount=5) is layer)
    note("after", prune.is_pruned(layer), prune.is_pruned(torch.nn.Sequential(layer)), _names(layer))
    note("state", sorted(layer.state_dict()))
    note("mask", layer.weight_mask, layer.weight, layer.weight_orig is original)
    layer(torch.ones(2, 4)).square().sum().backward()
    note("gradients", layer.weight_orig.grad, layer.bias.grad)
    with torch.no_grad():
        layer.weight_orig.add_(1)
    note("forward follows", layer(torch.ones(1, 4)))
    prune.l1_unstructured(layer, "weight", amount=0.5)
    note("again", layer.weight_mask)
    prune.ln_structured(layer, "weight", amount=1, n=2, dim=1)
    note("slices", layer.weight_mask, layer.weight)
    note("removed", prune.remove(layer, "weight") is layer, layer.weight is original, _names(layer), layer.weight)
    note("no longer", prune.is_pruned(layer))
    note.error("twice", lambda: prune.remove(layer, "weight"), "has to be pruned before pruning can be removed")


def ways_to_prune(torch, note):
    prune = _prune(torch)
    for name, call in {
        "identity": lambda layer: prune.identity(layer, "weight"),
        "fraction": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
        "none": lambda layer: prune.l1_unstructured(layer, "weight", 0),
        "all": lambda layer: prune.l1_unstructured(layer, "weight", 1.0),
        "bias": lambda layer: prune.l1_unstructured(layer, "bias", 2),
        "scores": lambda layer: prune.l1_unstructured(layer, "weight", 3, -layer.weight.detach().abs()),
        "1-norm": lambda layer: prune.ln_structured(layer, "weight", 0.4, n=1, dim=0),
        "largest": lambda layer: prune.ln_structured(layer, "weight", 1, n=float("inf"), dim=-1),
        "given": lambda layer: prune.custom_from_mask(layer, "weight", layer.weight.detach() > 0),
    }.items():
        for kind in ("Linear", "Conv2d"):
            layer = _layer(torch, kind)
            call(layer)
            note(f"{name} {kind}", [b for _, b in layer.named_buffers()], layer.weight)
    for name in ("random_unstructured", "random_structured"):
        layer = _layer(torch)
        getattr(prune, name)(layer, "weight", 2, **({"dim": 0} if "un" not in name else {}))
        note(name, layer.weight_mask.sum(), sorted(layer.weight_mask.sum(1).tolist())[-1])
    note("a tensor", prune.L1Unstructured(2).prune(torch.tensor([3.0, -1, 2, 4])))


def pruning_over_several_layers(torch, note):
    prune = _prune(torch)
    model = torch.nn.Sequential(_layer(torch), _layer(torch, "Conv2d"))
    prune.l1_unstructured(model[0], "weight", 2)
    pairs = ((model[0], "weight"), (model[1], "weight"), (model[1], "bias"))
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=0.3)
    note("masks", {n: b for n, b in model.named_buffers()})
    hooks = [list(m._forward_pre_hooks.values()) for m in model]
    note("hooks", [len(h) for h in hooks])


def a_way_of_ones_own(torch, note):
    prune = _prune(torch)

    class EveryOther(prune.BasePruningMethod):
        PRUNING_TYPE = "unstructured"

        def compute_mask(self, t, default_mask):
            mask = default_mask.clone()
            mask.view(-1)[::2] = 0
            return mask

    layer = _layer(torch)
    method = EveryOther.apply(layer, "bias")
    note("once", layer.bias_mask, isinstance(method, EveryOther))
    method = EveryOther.apply(layer, "bias")
    note("twice", layer.bias_mask, isinstance(method, prune.PruningContainer), len(method))
    note("members", [isinstance(m, EveryOther) for m in method], method[0]._tensor_name)


def refusals(torch, note):
    prune = _prune(torch)
    layer = _layer(torch)
    for name, call, phrase in (
        ("kind", lambda: prune.l1_unstructured(layer, "weight", "a"), "Invalid type for amount: a. Must be int or"),
        ("fraction", lambda: prune.l1_unstructured(layer, "weight", 1.5), "should either be a float in the range"),
        ("negative", lambda: prune.l1_unstructured(layer, "weight", -1), "should either be a float in the range"),
        ("too many", lambda: prune.l1_unstructured(layer, "weight", 13), "should be smaller than the number of"),
        ("a vector", lambda: prune.random_structured(layer, "bias", 1, 0), "can only be applied to multidimensional"),
        ("dimension", lambda: prune.random_structured(layer, "weight", 1, 2), "Invalid index 2 for tensor of size"),
        (
            "global",
            lambda: prune.global_unstructured([(layer, "weight")], prune.LnStructured, amount=1, n=1),
            'Only "unstructured" PRUNING_TYPE supported',
        ),
        ("pairs", lambda: prune.global_unstructured(3, prune.L1Unstructured, amount=1), "parameters is not an"),
    ):
        note.error(name, call, phrase)
        note("left alone", sorted(_names(layer)[0]), prune.is_pruned(layer))
