"""The Python code of an operation: its call and its backward, written out for the inputs it has and what it saves.

Loops over "the inputs, those that are tensors, those that want a gradient" cost more than a thousand elements take. So
the code is written per operation, as the kernels' loops are. That of `mul`, whose derivatives name the other input:

    def call(p0, p1):
        try:
            a0 = p0._array if isinstance(p0, Tensor) else p0
            a1 = p1._array if isinstance(p1, Tensor) else p1
        except Unrecorded:
            return symbolic(p0, p1)
        found = forward(a0, a1)
        if found is None:
            return anew(p0, p1)
        r0, plan = found
        o0 = new(Tensor)
        o0._array = r0
        o0._storage = Storage(r0)
        if mode.enabled:
            n0 = isinstance(p0, Tensor) and (p0._requires_grad if p0._base is None else p0.requires_grad)
            n1 = isinstance(p1, Tensor) and (p1._requires_grad if p1._base is None else p1.requires_grad)
            if n0 or n1:
                e0 = p0.gradient_edge() if n0 else NO_EDGE
                e1 = p1.gradient_edge() if n1 else NO_EDGE
                node = new(NodeType)
                node.sequence = next_sequence()
                node.edges = (e0, e1)
                node.outputs = plan.outputs
                node._inputs = plan.inputs
                o0._grad_fn = node
                o0._requires_grad = True
                node._saved = saved = {}
                if n1:
                    saved["self"] = SavedTensor(p0, name, "self", e0) if isinstance(p0, Tensor) else p0
                if n0:
                    saved["other"] = SavedTensor(p1, name, "other", e1) if isinstance(p1, Tensor) else p1
                if hooks.pairs:
                    node.pack()
        return o0

    def apply(node, grads):
        g = grads[0]
        if g is None:
            return [None, None]
        values = node.unpacked()
        held = [*grads, *values.values()]
        results = [None, None]
        if node.edges[0][0] is not None:
            results[0] = hold(derivative0(g, values["other"], node._inputs[0][0]), held)
        if node.edges[1][0] is not None:
            results[1] = hold(derivative1(g, values["self"], node._inputs[1][0]), held)
        return results

p are parameters, a their arrays, r the forward function's results, o output tensors; n says who needs a gradient, e is
where it flows.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple


class Structure(NamedTuple):
    """What the code depends on; operations of one structure share it."""

    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    aux: tuple[str, ...]
    # Per derivative: the positions of its inputs, and what its parameters name.
    derivatives: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]
    metadata: tuple[int, ...]  # inputs whose shape or dtype a derivative names
    view: bool
    planned: bool  # the forward function returns its result and a plan, with metadata; or None

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The positions of the inputs that can have a gradient."""
        return tuple([position for positions, _ in self.derivatives for position in positions])


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def call_source(structure: Structure, made: bool) -> str:
    """Return the code of the call: its arguments in; with `made`, also the result that another kernel made."""
    parameters = [f"p{i}" for i in range(len(structure.parameters))]
    given = [*parameters, "r0"] if made else parameters
    lines = [
        "try:",
        *(f"    a{i} = p{i}._array if isinstance(p{i}, Tensor) else p{i}" for i in range(len(parameters))),
        "except Unrecorded:",
        f"    return symbolic({', '.join(parameters)})",
        *([] if made else _forward(structure)),
        *_wrapped(structure),
    ]
    if structure.derivatives:
        lines += ["if mode.enabled:", *_indented(list(_recorded(structure, structure.planned and not made)))]
    lines.append("return o0" if len(structure.outputs) == 1 else "return tuple(o)")
    return "\n".join([f"def call({', '.join(given)}):", *_indented(lines)])


def _forward(structure: Structure) -> list[str]:
    arguments = ", ".join([f"a{i}" for i in range(len(structure.parameters))])
    if structure.planned:
        anew = f"    return anew({', '.join(f'p{i}' for i in range(len(structure.parameters)))})"
        return [f"found = forward({arguments})", "if found is None:", anew, "r0, plan = found"]
    if len(structure.outputs) > 1:
        return [f"r = forward({arguments})"]
    return [f"{', '.join(f'r{i}' for i in range(1 + len(structure.aux)))} = forward({arguments})"]


def _wrapped(structure: Structure) -> list[str]:
    if len(structure.outputs) > 1:
        first = len(structure.outputs)
        if structure.view:
            return ["shares = share_memory(r[0], a0)", f"o = [view_of(p0, a) if shares else wrap(a) for a in r[:{first}]]"]
        return [f"o = [wrap(a) for a in r[:{first}]]"]
    if structure.view:
        return ["o0 = view_of(p0, r0) if share_memory(r0, a0) else wrap(r0)"]
    return ["o0 = new(Tensor)", "o0._array = r0", "o0._storage = Storage(r0)"]


def _recorded(structure: Structure, planned: bool) -> Iterator[str]:
    for i in structure.differentiable:
        yield f"n{i} = isinstance(p{i}, Tensor) and (p{i}._requires_grad if p{i}._base is None else p{i}.requires_grad)"
    yield f"if {' or '.join(f'n{i}' for i in structure.differentiable)}:"
    yield from _indented(list(_node(structure, planned)))


def _node(structure: Structure, planned: bool) -> Iterator[str]:
    for i in structure.differentiable:
        yield f"e{i} = p{i}.gradient_edge() if n{i} else NO_EDGE"
    edges = [f"e{i}" if i in structure.differentiable else "NO_EDGE" for i in range(len(structure.parameters))]
    yield "node = new(NodeType)"
    yield "node.sequence = next_sequence()"
    yield f"node.edges = ({''.join(f'{edge}, ' for edge in edges)})"
    single = len(structure.outputs) == 1
    if planned:
        yield "node.outputs = plan.outputs"
        yield "node._inputs = plan.inputs"
    else:
        metas = [f"(a{i}.shape, a{i}.dtype) if isinstance(a{i}, ndarray) else ((), None), " for i in structure.metadata]
        meta = "new_output(({0}.shape, {0}.dtype, CPU))"
        yield f"node.outputs = ({meta.format('r0')}, )" if single else f"node.outputs = tuple([{meta.format('x')} for x in o])"
        yield f"node._inputs = ({''.join(metas)})"
    if single:
        if not planned:
            yield "if is_floating_point(r0.dtype):"
            yield from _indented(["o0._grad_fn = node", "o0._requires_grad = True"])
        else:
            yield "o0._grad_fn = node"
            yield "o0._requires_grad = True"
    else:
        yield "for i, x in enumerate(o):"
        yield "    if is_floating_point(x.dtype):"
        yield "        x.attach(node, i)"
    yield "node._saved = saved = {}"
    for position, name in enumerate((*structure.parameters, *structure.outputs, *structure.aux)):
        users = [i for inputs, names in structure.derivatives if name in names for i in inputs]
        if not users:
            continue
        line = f'saved["{name}"] = {_saved(structure, position, name)}'
        if set(users) == set(structure.differentiable):
            yield line
        else:
            yield f"if {' or '.join(f'n{i}' for i in users)}:"
            yield f"    {line}"
    yield "if hooks.pairs:"
    yield "    node.pack()"


def _saved(structure: Structure, position: int, name: str) -> str:
    number = position - len(structure.parameters)
    if number < 0:
        edge = f"e{position}" if position in structure.differentiable else f"p{position}.gradient_edge()"
        what = f"p{position}"
        return f'SavedTensor({what}, name, "{name}", {edge}) if isinstance({what}, Tensor) else {what}'
    outputs = len(structure.outputs)
    if number < outputs:
        return f'SavedTensor({"o0" if outputs == 1 else f"o[{number}]"}, name, "{name}", NO_EDGE, node, {number})'
    return f'SavedTensor(wrap({f"r{number}" if outputs == 1 else f"r[{number}]"}), name, "{name}", NO_EDGE)'


def apply_source(structure: Structure) -> str:
    """Return the code of the backward: gradients of outputs in, those of inputs out."""
    nothing = f"[{', '.join(['None'] * len(structure.parameters))}]"
    single = len(structure.outputs) == 1
    names = {name for _, parameters in structure.derivatives for name in parameters}
    lines = ["g = grads[0]", "if g is None:"] if single else ["if not any([g is not None for g in grads]):"]
    lines += [f"    return {nothing}", "values = node.unpacked()"]
    lines.append("held = [*grads, *values.values()]")
    if not single and "g" in names:
        lines += ["g = node.zeros(0) if grads[0] is None else grads[0]"]
    if "grads" in names:
        lines += ["grads = tuple([node.zeros(i) if g is None else g for i, g in enumerate(grads)])"]
    lines.append(f"results = {nothing}")
    for number, (inputs, parameters) in enumerate(structure.derivatives):
        needs = [f"node.edges[{i}][0] is not None" for i in inputs]
        call = f"derivative{number}({', '.join([_value(structure, name) for name in parameters])})"
        if len(inputs) == 1:
            needs_it = f"({needs[0]},)"
            lines += [f"if {needs[0]}:", f"    results[{inputs[0]}] = hold({call.replace('NEEDS', needs_it)}, held)"]
        else:
            lines += [
                f"needs = ({', '.join(needs)})",
                "if True in needs:",
                f"    hold_all({call.replace('NEEDS', 'needs')}, held, results, {inputs})",
            ]
    return "\n".join(["def apply(node, grads):", *_indented([*lines, "return results"])])


def _value(structure: Structure, name: str) -> str:
    if name in (*structure.parameters, *structure.outputs, *structure.aux):
        return f'values["{name}"]'
    if name in ("g", "grads"):
        return name
    if name == "needs":
        return "NEEDS"
    source, _, what = name.rpartition("_")
    place = structure.metadata.index(structure.parameters.index(source))
    return f"node._inputs[{place}][{0 if what == 'shape' else 1}]"


@functools.lru_cache(maxsize=1024)
def _compiled(source: str, name: str) -> CodeType:
    return compile(source, f"<{name}>", "exec")


def function(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """Return the function that `source` defines, with what it calls given by `names`."""
    namespace = {"__name__": __name__, **names}
    exec(_compiled(source, "generated"), namespace)
    made: Callable[..., Any] = namespace[source[4 : source.index("(")]]
    made.__name__ = made.__qualname__ = name
    return made
