"""GPT-2 and Llama in plain PyTorch, on weights in Hugging Face's layout; needs neither spillgrad nor `transformers`.

`python -m tests.peers.pretrained write FOLDER` writes the tiny random models of `MODELS` (NumPy suffices for that);
`python -m tests.peers.pretrained run FOLDER` prints PyTorch's logits, loss and gradients of each, as JSON;
`python -m tests.peers.pretrained transformers FOLDER` prints those of Hugging Face's own classes;
`python -m tests.peers.pretrained record` makes PyTorch's the stored ones, `records/pretrained.json`.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

RECORD = Path(__file__).parent / "records" / "pretrained.json"
IDX = np.random.default_rng(5).integers(0, 13, (2, 7))
TARGETS = np.roll(IDX, -1, 1)
GPT2 = {
    "model_type": "gpt2", "vocab_size": 13, "n_positions": 9, "n_embd": 8, "n_layer": 2, "n_head": 2,
    "layer_norm_epsilon": 1e-3, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 13, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 16,
    "rms_norm_eps": 1e-3, "rope_theta": 100.0, "hidden_act": "silu", "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "architectures": ["LlamaForCausalLM"],
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip
MODELS = {
    "gpt2": GPT2,
    "llama": LLAMA,
    "llama-tied-biased": {**LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True,
                          "num_key_value_heads": 4, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama-3": {**LLAMA, "num_key_value_heads": 1, "rope_scaling": SCALED},
}  # fmt: skip


def shapes(config):
    """Return the shape of each weight by its name."""
    if config["model_type"] == "gpt2":
        vocab, width, positions = config["vocab_size"], config["n_embd"], config["n_positions"]
        found = {"transformer.wte.weight": (vocab, width), "transformer.wpe.weight": (positions, width)}
        parts = {"attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width), "mlp.c_fc": (width, 4 * width),
                 "mlp.c_proj": (4 * width, width)}  # fmt: skip
        for layer in range(config["n_layer"]):
            h = f"transformer.h.{layer}"
            for name in ("ln_1", "ln_2"):
                found |= {f"{h}.{name}.weight": (width,), f"{h}.{name}.bias": (width,)}
            for name, shape in parts.items():
                found |= {f"{h}.{name}.weight": shape, f"{h}.{name}.bias": shape[1:]}
        return found | {"transformer.ln_f.weight": (width,), "transformer.ln_f.bias": (width,)}
    vocab, width, inner = config["vocab_size"], config["hidden_size"], config["intermediate_size"]
    heads, shared = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    found = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    attention = {"q": (heads, width), "k": (shared, width), "v": (shared, width), "o": (width, heads)}
    mlp = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        found |= {f"{at}.input_layernorm.weight": (width,), f"{at}.post_attention_layernorm.weight": (width,)}
        for place, parts, biased in (("self_attn", attention, "attention_bias"), ("mlp", mlp, "mlp_bias")):
            for name, shape in parts.items():
                found[f"{at}.{place}.{name}_proj.weight"] = shape
                if config[biased]:
                    found[f"{at}.{place}.{name}_proj.bias"] = shape[:1]
    return found if config["tie_word_embeddings"] else found | {"lm_head.weight": (vocab, width)}


def weights(config):
    """Return random weights by name, the same everywhere."""
    random = np.random.default_rng(11)
    made = {name: random.standard_normal(shape).astype(np.float32) * 0.4 for name, shape in shapes(config).items()}
    return {name: array + ("ln_" in name or "norm" in name) for name, array in made.items()}


def write(folder):
    """Write each of the models into a folder of its name."""
    for name, config in MODELS.items():
        place = Path(folder) / name
        place.mkdir(parents=True)
        save_file(weights(config), place / "model.safetensors", {"format": "pt"})
        (place / "config.json").write_text(json.dumps(config))


def gpt2(torch, w, config, idx):
    """Return the logits of GPT-2."""
    F = torch.nn.functional
    heads, eps = config["n_head"], config["layer_norm_epsilon"]
    batch, length = idx.shape

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], eps)

    def project(x, name):
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][idx] + w["transformer.wpe.weight"][:length]
    for layer in range(config["n_layer"]):
        h = f"transformer.h.{layer}"
        parts = project(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").split(x.shape[-1], -1)
        q, k, v = (part.view(batch, length, heads, -1).transpose(1, 2) for part in parts)
        attended = attend(torch, q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + project(attended, f"{h}.attn.c_proj")
        inner = F.gelu(project(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), approximate="tanh")
        x = x + project(inner, f"{h}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["transformer.wte.weight"].T


def attend(torch, q, k, v):
    """Return causal attention, composed."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v


def frequencies(torch, config):
    """Return Llama's angles per position, as its reference implementations compute them."""
    width = config["head_dim"]
    found = 1 / config["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return found
    if scaling.get("type") == "linear":
        return found / scaling["factor"]
    low, high, old = (
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
        scaling["original_max_position_embeddings"],
    )
    scaled = []
    for frequency in found:
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            scaled.append(frequency)
        elif wavelength > old / low:
            scaled.append(frequency / scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            scaled.append((1 - smooth) * frequency / scaling["factor"] + smooth * frequency)
    return torch.stack(scaled)


def llama(torch, w, config, idx):
    """Return the logits of Llama."""
    F = torch.nn.functional
    batch, length = idx.shape
    angles = torch.outer(torch.arange(length).float(), frequencies(torch, config))
    cos, sin = (torch.cat([part, part], -1) for part in (angles.cos(), angles.sin()))

    def norm(x, name):
        return x * (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt() * w[f"{name}.weight"]

    def project(x, name):
        return F.linear(x, w[f"{name}_proj.weight"], w.get(f"{name}_proj.bias"))

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    x = w["model.embed_tokens.weight"][idx]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (
            project(y, f"{at}.self_attn.{name}").view(batch, length, -1, config["head_dim"]).transpose(1, 2)
            for name in "qkv"
        )
        q, k = turned(q), turned(k)
        k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
        x = x + project(attend(torch, q, k, v).transpose(1, 2).reshape(batch, length, -1), f"{at}.self_attn.o")
        y = norm(x, f"{at}.post_attention_layernorm")
        x = x + project(F.silu(project(y, f"{at}.mlp.gate")) * project(y, f"{at}.mlp.up"), f"{at}.mlp.down")
    x = norm(x, "model.norm")
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T


def result(torch, logits, parameters):
    """Return logits, the loss and its gradients as lists."""
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(TARGETS).flatten())
    loss.backward()
    gradients = {name: parameter.grad.tolist() for name, parameter in parameters.items()}
    return {"logits": logits.tolist(), "loss": loss.item(), "gradients": gradients}


def run(folder):
    """Return what plain PyTorch makes of each model in a folder."""
    import torch

    found = {}
    for name in MODELS:
        config = json.loads((Path(folder) / name / "config.json").read_text())
        arrays = load_file(Path(folder) / name / "model.safetensors")
        w = {key: torch.tensor(array, requires_grad=True) for key, array in arrays.items()}
        compute = gpt2 if config["model_type"] == "gpt2" else llama
        found[name] = result(torch, compute(torch, w, config, torch.tensor(IDX)), w)
    return found


def run_transformers(folder):
    """Return what Hugging Face's classes make of each model in a folder."""
    import torch
    from transformers import AutoModelForCausalLM

    found = {}
    for path in sorted(Path(folder).iterdir()):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
        found[path.name] = result(torch, model(torch.tensor(IDX)).logits, dict(model.named_parameters()))
    return found


def rounded(value):
    """Return a record with as many digits as comparisons need."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return {key: rounded(part) for key, part in value.items()}


def record():
    """Write the stored record."""
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        found = rounded(run(folder))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in found)
    RECORD.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    if verb in ("run", "transformers"):
        print(json.dumps({"run": run, "transformers": run_transformers}[verb](*arguments)))
    else:
        {"write": write, "record": record}[verb](*arguments)
