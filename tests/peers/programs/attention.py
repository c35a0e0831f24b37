"""Attention with several heads: every option of the function, and of the layer's further keys and values."""


def _ramp(torch, *shape, seed=1.0):
    count = 1
    for size in shape:
        count *= size
    return torch.sin(torch.arange(count, dtype=torch.float64) * 1.7 + seed).reshape(*shape)


def _parameters(torch):
    named = {
        "in_proj_weight": (12, 4), "in_proj_bias": (12,), "out_proj_weight": (4, 4), "out_proj_bias": (4,),
        "q_proj_weight": (4, 4), "k_proj_weight": (4, 3), "v_proj_weight": (4, 5), "bias_k": (1, 1, 4),
        "bias_v": (1, 1, 4), "static_k": (4, 6, 2), "static_v": (4, 6, 2),
    }  # fmt: skip
    return {name: _ramp(torch, *shape, seed=float(n)).requires_grad_() for n, (name, shape) in enumerate(named.items())}


def the_function_with_each_option(torch, note):
    causal = torch.ones(5, 5).triu(1).bool()
    padding = torch.tensor([[False] * 4 + [True], [False] * 5])
    own = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
    cases = {
        "plain": (own, {}),
        "no weights": (own, {"need_weights": False}),
        "no bias": (("in_proj_weight", "out_proj_weight"), {}),
        "each head": (own, {"average_attn_weights": False}),
        "causal": (own, {"attn_mask": causal, "is_causal": True, "need_weights": False}),
        "causal with weights": (own, {"attn_mask": causal, "is_causal": True}),
        "mask of numbers": (own, {"attn_mask": _ramp(torch, 5, 5)}),
        "a mask for each head": (own, {"attn_mask": _ramp(torch, 4, 5, 5)}),
        "padding": (own, {"key_padding_mask": padding}),
        "padding, causal": (own, {"key_padding_mask": padding, "attn_mask": causal, "need_weights": False}),
        "zeros": (own, {"add_zero_attn": True, "attn_mask": causal, "key_padding_mask": padding}),
        "further key": ((*own, "bias_k", "bias_v"), {"attn_mask": causal}),
        "further key, zeros": ((*own, "bias_k", "bias_v"), {"add_zero_attn": True, "need_weights": False}),
        "static": ((*own, "static_k", "static_v"), {}),
    }
    for name, (used, options) in cases.items():
        parameters = {key: value for key, value in _parameters(torch).items() if key in used}
        _attend(torch, note, name, parameters, _ramp(torch, 5, 2, 4), None, None, options)
    _attend(torch, note, "no batch", {k: v for k, v in _parameters(torch).items() if k in own}, _ramp(torch, 5, 4),
            None, None, {"key_padding_mask": padding[0]})  # fmt: skip
    separate = {k: v for k, v in _parameters(torch).items() if "proj" in k and k != "in_proj_weight"}
    _attend(torch, note, "separate", separate, _ramp(torch, 5, 2, 4), _ramp(torch, 6, 2, 3), _ramp(torch, 6, 2, 5),
            {"use_separate_proj_weight": True})  # fmt: skip


def _attend(torch, note, name, parameters, query, key, value, options):
    query = query.requires_grad_()
    given = {"in_proj_weight": None, "in_proj_bias": None, "bias_k": None, "bias_v": None, "out_proj_bias": None}
    given |= {"add_zero_attn": False, "dropout_p": 0.0, **parameters, **options}
    result, weights = torch.nn.functional.multi_head_attention_forward(
        query, query if key is None else key, query if value is None else value, 4, 2, **given
    )
    (result * _ramp(torch, *result.shape)).sum().backward()
    note(name, result, weights, query.grad, {key: parameter.grad for key, parameter in parameters.items()})


def what_the_function_refuses(torch, note):
    given = _parameters(torch)
    own = {key: given[key] for key in ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")}
    own |= {"bias_k": None, "bias_v": None, "add_zero_attn": False, "dropout_p": 0.0}
    x = _ramp(torch, 5, 2, 4)
    forward = torch.nn.functional.multi_head_attention_forward
    note.error("causal", lambda: forward(x, x, x, 4, 2, **own, is_causal=True), "Need attn_mask")


def the_layer_with_further_keys(torch, note):
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"add_bias_kv": True, "kdim": 4, "vdim": 4}):
        layer = torch.nn.MultiheadAttention(4, 2, **options).double()
        with torch.no_grad():
            for n, parameter in enumerate(layer.parameters()):
                parameter.copy_(_ramp(torch, *parameter.shape, seed=float(n)))
        x = _ramp(torch, 5, 2, 4).requires_grad_()
        result, weights = layer(x, x, x)
        result.sum().backward()
        note(str(options), result, weights, x.grad, list(layer.state_dict()))
        note("gradients", {name: parameter.grad for name, parameter in layer.named_parameters()})
