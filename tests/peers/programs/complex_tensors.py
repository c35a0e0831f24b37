"""Complex tensors: views of their parts, rotary embeddings, optimizers, derivatives of functions, what is refused."""

from typing import Any

import numpy as np

from tests.peers.record import Note, name_of


def _numbers(torch: Any, *shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.standard_normal(shape) + 1j * rng.standard_normal(shape))


def rotary_embeddings(torch: Any, note: Note) -> None:
    """Llama's reference code: queries and keys as complex numbers, turned by their positions."""

    def precompute_freqs_cis(dim: int, end: int, dtype: Any, theta: float = 10000.0) -> Any:
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: (dim // 2)].to(dtype) / dim))
        t = torch.arange(end, device=freqs.device)
        freqs = torch.outer(t.to(dtype), freqs)
        return torch.polar(torch.ones_like(freqs), freqs)

    def reshape_for_broadcast(freqs_cis: Any, x: Any) -> Any:
        shape = [d if i == 1 or i == x.ndim - 1 else 1 for i, d in enumerate(x.shape)]
        return freqs_cis.view(*shape)

    def apply_rotary_emb(xq: Any, xk: Any, freqs_cis: Any, dtype: Any) -> Any:
        xq_ = torch.view_as_complex(xq.to(dtype).reshape(*xq.shape[:-1], -1, 2))
        xk_ = torch.view_as_complex(xk.to(dtype).reshape(*xk.shape[:-1], -1, 2))
        freqs_cis = reshape_for_broadcast(freqs_cis, xq_)
        xq_out = torch.view_as_real(xq_ * freqs_cis).flatten(3)
        xk_out = torch.view_as_real(xk_ * freqs_cis).flatten(3)
        return xq_out.type_as(xq), xk_out.type_as(xk)

    rng = np.random.default_rng(0)
    values = [np.round(rng.standard_normal((2, 5, 2, 8)) * 64) / 64 for _ in range(2)]
    found = {}
    for given, computed in (("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")):
        wide = getattr(torch, computed)
        xq, xk = (torch.tensor(v, dtype=getattr(torch, given), requires_grad=True) for v in values)
        freqs_cis = precompute_freqs_cis(8, 12, wide)
        turned_q, turned_k = apply_rotary_emb(xq, xk, freqs_cis[:5], wide)
        scores = torch.einsum("bqhd,bkhd->bhqk", turned_q.to(wide), turned_k.to(wide))
        (scores**2).mean().backward()
        note(given, freqs_cis.dtype, str(turned_q.dtype).rpartition(".")[2], list(turned_q.shape))
        found[given] = [t.detach().double().numpy() for t in (scores, xq.grad, xk.grad)]
    note("scores and gradients", *found["float64"])
    close = [np.allclose(a, b, 1e-4, 1e-5) for a, b in zip(found["float32"], found["float64"], strict=True)]
    note("as close as float32 is", *map(bool, close))


def changes_of_views(torch: Any, note: Note) -> None:
    z = _numbers(torch, 3, 2).requires_grad_()
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64, requires_grad=True)
    y = z * 1
    part, pairs = y.imag, torch.view_as_real(y)
    note("nodes", *map(name_of, (part.grad_fn, pairs.grad_fn)))
    y.real.mul_(w)
    pairs[0, :, 1] = 7.0
    note("the changed tensor", name_of(y.grad_fn), y._version, part._version)
    (part * y.real**2).sum().backward()
    note("gradients", z.grad, w.grad)
    x = torch.tensor(np.arange(8.0).reshape(4, 2), requires_grad=True)
    y = x * 2
    torch.view_as_complex(y)[1:].mul_(2j)
    (y**2).sum().backward()
    note("numbers over pairs", y, x.grad)
    plain = torch.zeros(2, dtype=torch.complex64)
    plain.real, plain.imag = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    note("assigned parts", plain, plain._version)
    note.error("a leaf's part", lambda: z.real.mul_(2), "leaf Variable that requires grad")
    note.error("a real tensor's", lambda: torch.ones(2).imag, "not implemented for tensors with non-complex dtypes")


def steps_of_optimizers(torch: Any, note: Note) -> None:
    options: dict[str, dict[str, Any]] = {
        "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, "Adam": {"lr": 0.1, "amsgrad": True},
        "AdamW": {"lr": 0.1}, "Adagrad": {"lr": 0.1, "initial_accumulator_value": 0.1}, "RMSprop": {"lr": 0.1},
        "Rprop": {"lr": 0.1}, "Adadelta": {"lr": 0.5},
    }  # fmt: skip
    for name, given in options.items():
        parameter = torch.nn.Parameter(_numbers(torch, 3))
        optimizer = getattr(torch.optim, name)([parameter], **given)
        for step in range(4):
            optimizer.zero_grad()
            ((parameter * (step + 1j) - 2) * (parameter - 1j)).abs().sum().backward()
            optimizer.step()
        note(name, parameter)


def whole_derivatives(torch: Any, note: Note) -> None:
    z, functional = _numbers(torch, 2), torch.autograd.functional
    note("jacobian of real outputs", functional.jacobian(lambda a: a.abs(), z))
    note("vjp", functional.vjp(lambda a: a * a, z, z + 1)[1])
    phrase = "grad can be implicitly created only for real scalar outputs but got"
    note.error("jacobian", lambda: functional.jacobian(lambda a: a * a, z), phrase)
    note.error("backward", lambda: (z.clone().requires_grad_() * 2).sum().backward(), phrase)
    note("gradcheck", torch.autograd.gradcheck(lambda a: a * a.conj(), z.clone().requires_grad_()))
    note("gradgradcheck", torch.autograd.gradgradcheck(lambda a: a.abs(), z.clone().requires_grad_()))

    class Wrong(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, a: Any) -> Any:
            return a * 2j

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2j  # not the conjugate

    for fast in (False, True):
        inputs = z.clone().requires_grad_()
        note.error(f"wrong gradients, fast: {fast}", lambda inputs=inputs, fast=fast: torch.autograd.gradcheck(
            Wrong.apply, inputs, fast_mode=fast), "Jacobian mismatch")  # fmt: skip


_OF_AN_ORDER = (
    "sort", "argsort", "argmax", "argmin", "amax", "amin", "max", "min", "median", "unique", "nansum", "msort",
)  # fmt: skip


def refusals(torch: Any, note: Note) -> None:
    z, x = _numbers(torch, 3).to(torch.complex64), torch.ones(3)
    for name in _OF_AN_ORDER:
        note.error(name, lambda name=name: getattr(torch, name)(z))
    for name in ("topk", "kthvalue"):
        note.error(name, lambda name=name: getattr(torch, name)(z, 1))
    for name in ("cummax", "cummin", "max", "min", "softmax", "quantile"):
        note.error(f"{name} along", lambda name=name: getattr(torch, name)(z, 0))
    note.error("mm", lambda: z[None] @ x[:, None])
    note.error("dot", lambda: z @ x)
    note.error("float", lambda: float(z[0]), "cannot be converted to")
    note.error("int", lambda: int(z[0]), "cannot be converted to")
    for name, call in {
        "fill_": lambda: x.fill_(1j), "full": lambda: torch.full((2,), 1j, dtype=torch.float32),
        "masked_fill": lambda: x.masked_fill(x > 0, 1j), "setitem": lambda: x.__setitem__(0, 1j),
    }.items():  # fmt: skip
        note.error(name, call, "without overflow")
    note.error("rfft", lambda: torch.fft.rfft(z), "expects a real input tensor, but got")
    hermitian = (z[:, None] + z.conj() + 3 * torch.eye(3)).requires_grad_()
    by_phase = torch.linalg.eigh(hermitian)[1].real.sum()
    note.error("a result that depends on the phase of eigenvectors", by_phase.backward, "is ill-defined")
    note("counted and converted", complex(z[0]) == z[0].item(), int(torch.tensor(2 + 0j)), bool(torch.tensor(1j)))
