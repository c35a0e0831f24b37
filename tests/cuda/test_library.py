"""Training, files and text on a device behave as on the host."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.autograd import functional
from spillgrad.errors import DeviceError
from spillgrad.nn import functional as F
from spillgrad.nn.utils import rnn
from spillgrad.optim import lr_scheduler

A, B = (np.random.default_rng(0).normal(size=size).astype(np.float32) for size in ((3, 4), (2,)))


def leaves(device: str) -> list[sg.Tensor]:
    """Return two parameters with gradients."""
    found = [sg.tensor(array, device=device, requires_grad=True) for array in (A, B)]
    for leaf in found:
        (leaf**3).sum().backward()
    return found


def trained(make: Callable[..., Any], schedule: Callable[..., Any] | None = None) -> Callable[[str], Any]:
    """Return a function that makes two steps, then one by another optimizer that continues from the state."""

    def train(device: str) -> Any:
        parameters = leaves(device)
        optimizer = make(parameters)
        scheduler = schedule(optimizer) if schedule else None
        for _ in range(2):
            optimizer.step()
            if scheduler:
                scheduler.step()
        other = make(parameters)
        other.load_state_dict(optimizer.state_dict())
        other.step()
        return parameters, [list(state.values()) for state in other.state.values()]

    return train


OPTIMIZERS = {
    "SGD": trained(lambda p: sg.optim.SGD(p, 0.1)),
    "SGD with momentum": trained(lambda p: sg.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "Adam": trained(lambda p: sg.optim.Adam(p, 0.1, weight_decay=0.1)),
    "AdamW": trained(lambda p: sg.optim.AdamW(p, 0.1)),
    "Lion": trained(lambda p: sg.optim.Lion(p, 0.1)),
    "LambdaLR": trained(lambda p: sg.optim.SGD(p, 0.1), lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch)),
    "CosineAnnealingLR": trained(lambda p: sg.optim.AdamW(p, 0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 4)),
    "CosineWithWarmup": trained(lambda p: sg.optim.AdamW(p, 0.1), lambda o: lr_scheduler.CosineWithWarmup(o, 2, 4)),
}


def clipped(norm_type: float) -> Callable[[str], Any]:
    def clip(device: str) -> Any:
        parameters = leaves(device)
        return float(nn.utils.clip_grad_norm_(parameters, 1.0, norm_type)), [p.grad for p in parameters]

    return clip


def clamped(device: str) -> Any:
    parameters = leaves(device)
    nn.utils.clip_grad_value_(parameters, 0.5)
    return [p.grad for p in parameters]


def vectors(device: str) -> Any:
    parameters = leaves(device)
    vector = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(vector * 2, parameters)
    return vector, parameters


GRADIENTS = {
    **{f"clip_grad_norm_ of {norm_type}": clipped(norm_type) for norm_type in (2.0, 1.0, float("inf"))},
    "clip_grad_value_": clamped,
    "vectors": vectors,
}
FILLS = {
    name: lambda device, name=name, rest=rest: getattr(nn.init, name)(sg.empty(3, 4, device=device), *rest)
    for name, rest in {
        "constant_": (0.3,), "eye_": (), "kaiming_normal_": (), "kaiming_uniform_": (), "normal_": (), "ones_": (),
        "orthogonal_": (), "sparse_": (0.5,), "trunc_normal_": (), "uniform_": (), "xavier_normal_": (),
        "xavier_uniform_": (), "zeros_": (),
    }.items()
}  # fmt: skip


def packed(device: str) -> Any:
    parts = [sg.tensor(A[:rows], device=device, requires_grad=True) for rows in (2, 3, 1)]
    sequences = rnn.pack_sequence(parts, enforce_sorted=False)
    output, state = nn.GRU(4, 2).to(device)(sequences)
    padded, lengths = rnn.pad_packed_sequence(output, batch_first=True)
    padded.sum().backward()
    assert lengths.device == output.batch_sizes.device == "cpu"
    moved = sequences.cpu().to(device)
    return (
        padded, state, [part.grad for part in parts], rnn.unpack_sequence(output), rnn.pad_sequence(parts), moved.data,
        moved.sorted_indices, moved.unsorted_indices,
    )  # fmt: skip


def batches(device: str) -> Any:
    data = sg.data.TensorDataset(sg.tensor(A, device=device), sg.arange(3, device=device))
    return list(sg.data.DataLoader(data, 2, shuffle=True)), sg.data.collate([{"a": sg.tensor(B, device=device)}] * 2)


def recomputed(device: str) -> Any:
    x = sg.tensor(A, device=device, requires_grad=True)
    y = sg.utils.checkpoint.checkpoint(lambda t: F.dropout(t.sin(), 0.5) * t, x)
    y.sum().backward()
    with sg.autograd.graph.save_on_cpu():
        z = x.sin() * x
    z.sum().backward()
    return y, z, x.grad


def adapted(device: str) -> Any:
    model = nn.lora(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(device), rank=1)
    x, results = sg.tensor(A, device=device), []
    model(x).sum().backward()
    results.append([p.grad for p in model.parameters() if p.grad is not None])
    for change in ("merge", "unmerge"):
        for layer in model.eval():
            getattr(layer, change)()
        results.append([model(x), list(model.parameters())])
    return results


def drawn(device: str) -> Any:
    generator = sg.Generator(5, device=device)
    assert generator.device == device
    options: dict[str, Any] = {"generator": generator}
    return (
        sg.rand(3, **options, device=device), sg.randn(3, **options, device=device),
        sg.randperm(4, **options, device=device), sg.randint(0, 5, (3,), **options, device=device),
        sg.normal(0.0, 1.0, (2,), **options, device=device), sg.bernoulli(sg.full((3,), 0.5, device=device), **options),
        sg.multinomial(sg.ones(3, device=device), 2, **options), sg.empty(3, device=device).uniform_(**options),
        sg.empty(3, device=device).exponential_(**options),
    )  # fmt: skip


def derived(device: str) -> Any:
    x, matrix = sg.tensor(B, device=device), sg.tensor(A[:, :3] + 3 * np.eye(3), sg.float64, device, requires_grad=True)
    (first,) = sg.grad(sg.linalg.det(matrix), matrix, create_graph=True)  # the host computes this
    return (
        functional.hessian(lambda t: (t**3).sum(), x), functional.vhp(lambda t: (t**3).sum(), x, x),
        functional.jvp(sg.sin, x, x), functional.vjp(sg.sin, x, x), sg.grad((first * first).sum(), matrix),
    )  # fmt: skip


def language(kind: Any, config: Any) -> Callable[[str], Any]:
    def run(device: str) -> Any:
        model = kind(config).to(device)
        result = model(np.array([[1, 2, 3]]), np.array([[2, 3, 4]]))
        result[1].backward()
        return result[1], [p.grad for p in model.parameters()], model.generate(np.array([[1, 2]]), 2)

    return run


OTHERS = {
    "packed sequences": packed, "batches": batches, "recomputed": recomputed, "adapters": adapted, "generator": drawn,
    "derivatives": derived,
    "GPT": language(sg.models.GPT, sg.models.GPTConfig(11, 6, 1, 2, 4)),
    "Llama": language(sg.models.Llama, sg.models.LlamaConfig(11, 4, 4, 1, 2)),
}  # fmt: skip
CASES = {**OPTIMIZERS, **GRADIENTS, **FILLS, **OTHERS}


def flat(results: Any) -> Iterator[Any]:
    if isinstance(results, list | tuple):
        for result in results:
            yield from flat(result)
    elif isinstance(results, dict):
        yield from flat(list(results.values()))
    else:
        yield results


@pytest.mark.filterwarnings("ignore::spillgrad.errors.HostComputeWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_library_does_on_a_device_what_it_does_on_the_host(name):
    results = []
    for device in ("cpu", "cuda"):
        sg.manual_seed(2)
        results.append(list(flat(CASES[name](device))))
    for wanted, found in zip(*results, strict=True):
        if isinstance(wanted, sg.Tensor):
            assert (found.device, found.dtype, found.shape) == ("cuda", wanted.dtype, wanted.shape)
            np.testing.assert_allclose(found.numpy(force=True), wanted.numpy(), 1e-4, 1e-5)
        else:
            assert found == pytest.approx(wanted, 1e-4)


def test_what_is_saved_on_a_device_goes_on_there_and_on_the_host(tmp_path):
    model = nn.BatchNorm1d(4).cuda()
    optimizer = sg.optim.AdamW(model.parameters())
    x = sg.tensor(A, device="cuda")
    (model(x) * x).sum().backward()
    optimizer.step()
    sg.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "file")
    sg.save_checkpoint(tmp_path / "run", model=model, optimizer=optimizer, step=3)
    found = []
    for device in ("cuda", "cpu"):
        for location in ("cuda", "cpu", None):
            other = nn.BatchNorm1d(4).to(device)
            going_on = sg.optim.AdamW(other.parameters())
            if location is None:
                sg.load_checkpoint(tmp_path / "run", model=other, optimizer=going_on)
            else:
                loaded = sg.load(tmp_path / "file", map_location=location)
                other.load_state_dict(loaded["model"])
                going_on.load_state_dict(loaded["optimizer"])
            (other(x.to(device)) * x.to(device)).sum().backward()
            going_on.step()
            assert {str(t.device.type) for t in other.state_dict().values()} == {device}
            found.append([t.numpy(force=True) for t in other.state_dict().values()])
    for values in found[1:]:
        for value, wanted in zip(values, found[0], strict=True):
            np.testing.assert_allclose(value, wanted, 1e-5, 1e-6)


NUMBERS = {
    "float32": A, "bool": np.array([True, False]), "int": np.array(3), "complex": np.array([1 + 2j]),
    "empty": np.zeros((0, 3)), "long": np.arange(2000),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_a_tensor_of_a_device_is_read_as_one_of_the_host(name):
    here, there = sg.tensor(NUMBERS[name]), sg.tensor(NUMBERS[name], device="cuda")
    assert repr(there).replace(", device='cuda:0'", "") == repr(here)
    assert there.tolist() == here.tolist()
    for other in (copy.copy(there), copy.deepcopy(there), pickle.loads(pickle.dumps(there))):
        assert (other.device, other.tolist()) == ("cuda", here.tolist())
    if here.numel() == 1:
        assert (there.item(), bool(there)) == (here.item(), True)
    if here.ndim:
        assert len(there) == len(here)
        assert [row.tolist() for row in there] == here.tolist()
        assert (1 in there, there[:1] in there) == (1 in here, here[:1] in here)
    else:
        assert (int(there), float(there), f"{there:03d}", [0, 1, 2, 3][there]) == (3, 3.0, "003", 3)


@pytest.mark.parametrize("read", [np.asarray, np.array, lambda x: x.numpy()])
def test_numpy_is_refused_the_memory_of_a_device(read):
    with pytest.raises(DeviceError, match=r"use cpu\(\) first"):
        read(sg.tensor(A, device="cuda"))
