"""Complex tensors: dtypes that operands promote to, gradients at zeros and in real operands, and what is refused."""

from typing import Any

from tests.peers.record import Note

_NAMES = ("bool", "int32", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def promotion(torch: Any, note: Note) -> None:
    for name in _NAMES:
        x, scalar = torch.ones(2, dtype=getattr(torch, name)), torch.ones((), dtype=getattr(torch, name))
        for other in ("complex64", "complex128"):
            z, zero_d = torch.ones(2, dtype=getattr(torch, other)), torch.ones((), dtype=getattr(torch, other))
            note(f"{name} and {other}", (x * z).dtype, (x * zero_d).dtype if name != "float16" else None)
            note(f"{name} without dimensions and {other}", (scalar * z).dtype)
        if name != "float16":  # PyTorch has complex numbers of half precision
            note(f"{name} and 1j", (x * 1j).dtype, (1j + x).dtype, torch.result_type(x, 2j))
        note(f"{name} is complex", x.is_complex())


def gradients(torch: Any, note: Note) -> None:
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    z = torch.tensor([1 + 2j, 0.5 - 1j, -2j], dtype=torch.complex128, requires_grad=True)
    (x * z + x / z).abs().sum().backward()
    note("a real operand has a real gradient", x.grad, z.grad)
    zero = torch.zeros(2, dtype=torch.complex128, requires_grad=True)
    for name in ("abs", "sgn", "angle"):
        (gradient,) = torch.autograd.grad(getattr(zero, name)().abs().sum(), zero)
        note(f"{name} at zero", gradient)
    (gradient,) = torch.autograd.grad((z * z.conj()).sum(), z, torch.ones((), dtype=torch.complex128))
    note("a squared size", gradient)
    (first,) = torch.autograd.grad((z**3).abs().sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.abs().sum(), z)
    note("a second derivative", first.detach(), second)
    y = z * 1
    y.mul_(2j).add_(x).exp_()
    y.abs().sum().backward()
    note("changed in place", x.grad, z.grad)


def special_values(torch: Any, note: Note) -> None:
    inf, nan = float("inf"), float("nan")
    z = torch.tensor([complex(1e308, 1e308), complex(inf, 0), complex(0, -inf), complex(nan, inf), complex(0, nan)])
    note("tests", torch.isinf(z), torch.isnan(z), torch.isfinite(z))
    large = torch.tensor([3e200 + 4e200j, 3e-200 + 4e-200j], dtype=torch.complex128)
    note("no overflow", (large.abs() / torch.tensor([1e200, 1e-200], dtype=torch.float64)), large / large)


def refusals(torch: Any, note: Note) -> None:
    z, x = torch.tensor([1 + 2j, 3j]), torch.ones(2)
    for name in ("floor", "ceil", "round", "trunc", "frac", "erf", "lgamma", "sign", "relu", "deg2rad", "logit"):
        note.error(name, lambda name=name: getattr(torch, name)(z))
    for name in ("lt", "ge", "maximum", "fmin", "remainder", "floor_divide", "atan2", "hypot", "copysign", "xlogy"):
        note.error(name, lambda name=name: getattr(torch, name)(z, z))
    note.error("clamp", lambda: z.clamp(0, 1))
    note.error("abs_", lambda: z.clone().abs_(), "In-place abs is not supported for complex tensors")
    note.error("a real target", lambda: x.add_(1j), "result type", "can't be cast")
    note.error("a real out", lambda: torch.exp(z, out=torch.empty(2)), "can't be cast")
    note.error("alpha", lambda: torch.add(x, x, alpha=2j), "argument alpha must not be a complex number")
