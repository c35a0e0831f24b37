"""Generate the Python code of an operation: its call and its backward, unrolled for its inputs and saved values.

Loops over the inputs, over the tensors and over the inputs that need a gradient would take longer than the arithmetic
of a thousand elements. So code is generated for each operation, as the kernels' loops are. This is the code of `mul`,
whose derivatives name the other input:

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
                if hooks.watched:
                    node.recorded()
        return o0

    def apply(node, grads):
        g = grads[0]
        if g is None:
            return [None] * 2
        saved, recording = node._saved, mode.enabled
        v_self = saved.get("self")
        if type(v_self) is SavedTensor:
            v_self = v_self.unpack(recording)
        v_other = saved.get("other")
        if type(v_other) is SavedTensor:
            v_other = v_other.unpack(recording)
        held = {id(g), id(v_self), id(v_other)}
        results = [None] * 2
        if node.edges[0][0] is not None:
            try:
                found = derivative0(g, v_other, node._inputs[0][0])
            except NotOnDevice:
                found = on_host(node.name(), derivative0, g, v_other, node._inputs[0][0])
            results[0] = hold(found, held)
        if node.edges[1][0] is not None:
            try:
                found = derivative1(g, v_self, node._inputs[1][0])
            except NotOnDevice:
                found = on_host(node.name(), derivative1, g, v_self, node._inputs[1][0])
            results[1] = hold(found, held)
        return results

p is a parameter, a its array, r a result of the forward function, o an output tensor, v a saved value. n says whether
an input needs a gradient, and e is the edge that this gradient flows to. `on_host` computes on the host if the device
has no kernel. A saved value of which no gradient is recorded needs no place in the graph. With more than
UNROLLED parameters, as `cat` may have, p, a, n and e are lists: every generated line costs some microseconds, once.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

UNROLLED = 8


class Structure(NamedTuple):
    """The properties of an operation that its code depends on; operations with the same structure share code."""

    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    aux: tuple[str, ...]
    # For each derivative: the positions of its inputs, and the names of its parameters.
    derivatives: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]
    metadata: tuple[int, ...]  # inputs whose shape or dtype a derivative names
    view: bool
    planned: bool  # the forward function returns its result and a plan, with metadata; or None

    @property
    def single(self) -> bool:
        """Whether there is exactly one output; the code holds several outputs in a list."""
        return len(self.outputs) == 1

    @property
    def named(self) -> tuple[str, ...]:
        """The names of all values that can be saved, in the order of packing."""
        return (*self.parameters, *self.outputs, *self.aux)

    @property
    def results(self) -> str:
        """The variables to which the code assigns the results of the forward function."""
        return ", ".join([f"r{i}" for i in range(1 + len(self.aux))]) if self.single else "r"

    @property
    def listed(self) -> bool:
        """Whether the code holds the parameters in a list, because there are more than UNROLLED."""
        return len(self.parameters) > UNROLLED

    def of(self, letter: str) -> list[str]:
        """Return the names of the variables of a letter, one for each parameter: p0, p1, … or p[0], p[1], … for "p"."""
        return [f"{letter}[{i}]" if self.listed else f"{letter}{i}" for i in range(len(self.parameters))]

    def all_of(self, letter: str) -> str:
        """Return the variables of a letter (see `of`) as the code of the arguments of a call."""
        return f"*{letter}" if self.listed else ", ".join(self.of(letter))

    def needs(self, inputs: Iterable[int]) -> str:
        """Return the code of the condition that any of the inputs at these positions needs a gradient."""
        return " or ".join([f"{i} in n" if self.listed else f"n{i}" for i in inputs])

    @property
    def differentiable(self) -> tuple[int, ...]:
        """The positions of the inputs that can have a gradient."""
        return tuple([position for positions, _ in self.derivatives for position in positions])


def call_source(structure: Structure, made: bool) -> str:
    """Return the code of the call. With `made`, the call takes the results, which another kernel computed, first."""
    array = "{0}._array if isinstance({0}, Tensor) else {0}"
    if structure.listed:
        arrays = [f"a = [{array.format('x')} for x in p]"]
    else:
        arrays = [f"a{i} = {array.format(p)}" for i, p in enumerate(structure.of("p"))]
    lines = [
        "try:",
        *_indented(arrays),
        "except Unrecorded:",
        f"    return symbolic({structure.all_of('p')})",
        *([] if made else _forward(structure)),
        *_wrapped(structure),
    ]
    if structure.derivatives:
        lines += ["if mode.enabled:", *_indented(_recorded(structure, structure.planned and not made))]
    lines.append("return o0" if structure.single else "return tuple(o)")
    results = f"{structure.results}, " if made else ""
    return "\n".join([f"def call({results}{structure.all_of('p')}):", *_indented(lines)])


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _positions(numbers: tuple[int, ...]) -> str:
    """Return the code of a tuple of positions, or of a range for many in a row: a tuple of 10,000 compiles in 50 ms."""
    if len(numbers) > UNROLLED and numbers == tuple(range(numbers[0], numbers[0] + len(numbers))):
        return f"range({numbers[0]}, {numbers[0] + len(numbers)})"
    return str(numbers)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _forward(structure: Structure) -> list[str]:
    arrays, tensors = structure.all_of("a"), structure.all_of("p")
    if structure.planned:
        anew = f"    return anew({tensors})"
        return [f"found = forward({arrays})", "if found is None:", anew, "r0, plan = found"]
    first = "r0" if structure.single else "r[0]"
    return [
        "try:",
        f"    {structure.results} = forward({arrays})",
        "except NotOnDevice as reason:",
        f"    require_one_device(name, ({tensors},))",
        f"    {structure.results} = {'refuse(name, reason' if structure.view else 'on_host(name, forward'}, {arrays})",
        f"if type({first}) is DeviceArray:",
        f"    require_one_device(name, ({tensors},))",
    ]


def _wrapped(structure: Structure) -> list[str]:
    p, a = structure.of("p")[0], structure.of("a")[0]
    if not structure.single:
        tensor = f"view_of({p}, x) if share_memory(r[0], {a}) else wrap(x)" if structure.view else "wrap(x)"
        return [f"o = [{tensor} for x in r[:{len(structure.outputs)}]]"]
    if structure.view:
        return [f"o0 = view_of({p}, r0) if share_memory(r0, {a}) else wrap(r0)"]
    return ["o0 = new(Tensor)", "o0._array = r0", "o0._storage = Storage(r0)"]


def _recorded(structure: Structure, planned: bool) -> Iterator[str]:
    needs = "isinstance({0}, Tensor) and ({0}._requires_grad if {0}._base is None else {0}.requires_grad)"
    if structure.listed:
        yield f"n = [i for i in {_positions(structure.differentiable)} if {needs.format('p[i]')}]"
        yield "if n:"
    else:
        for i in structure.differentiable:
            yield f"n{i} = {needs.format(f'p{i}')}"
        yield f"if {structure.needs(structure.differentiable)}:"
    yield from _indented(_node(structure, planned))


def _node(structure: Structure, planned: bool) -> Iterator[str]:
    differentiable = frozenset(structure.differentiable)
    if structure.listed:
        yield "e = [NO_EDGE] * len(p)"
        yield "for i in n:"
        yield "    e[i] = p[i].gradient_edge()"
        edges = "tuple(e)"
    else:
        for i in structure.differentiable:
            yield f"e{i} = p{i}.gradient_edge() if n{i} else NO_EDGE"
        found = [e if i in differentiable else "NO_EDGE" for i, e in enumerate(structure.of("e"))]
        edges = _tuple(found)
    yield "node = new(NodeType)"
    yield "node.sequence = next_sequence()"
    yield f"node.edges = {edges}"
    yield from _metadata(structure, planned)
    yield from _attached(structure, planned)
    yield "node._saved = saved = {}"
    for position, name in enumerate(structure.named):
        users = [i for inputs, names in structure.derivatives if name in names for i in inputs]
        if not users:
            continue
        save = f'saved["{name}"] = {_saved(structure, position, name)}'
        if differentiable.issubset(users):
            yield save
        else:
            yield f"if {structure.needs(users)}:"
            yield f"    {save}"
    yield "if hooks.watched:"
    yield "    node.recorded()"


def _metadata(structure: Structure, planned: bool) -> Iterator[str]:
    if planned:
        yield "node.outputs = plan.outputs"
        yield "node._inputs = plan.inputs"
        return
    if structure.single:
        yield "node.outputs = (new_output((r0.shape, r0.dtype, device_of(r0))),)"
    else:
        yield "node.outputs = tuple([new_output((x.shape, x.numpy_dtype, x.device)) for x in o])"
    of_input, arrays = "({0}.shape, {0}.dtype) if isinstance({0}, ARRAYS) else ((), None)", structure.of("a")
    yield f"node._inputs = {_tuple([of_input.format(arrays[i]) for i in structure.metadata])}"


def _attached(structure: Structure, planned: bool) -> Iterator[str]:
    if not structure.single:
        yield "for i, x in enumerate(o):"
        yield "    if is_differentiable(x.numpy_dtype):"
        yield "        x.attach(node, i)"
        return
    attach = ["o0._grad_fn = node", "o0._requires_grad = True"]
    if planned:  # a plan whose operands can have gradients gives floating-point numbers
        yield from attach
    else:
        yield "if is_differentiable(r0.dtype):"
        yield from _indented(attach)


def _saved(structure: Structure, position: int, name: str) -> str:
    """Return the expression that saves an input, output or auxiliary result; it wraps tensors in SavedTensor."""
    number = position - len(structure.parameters)
    if number < 0:
        p, e = structure.of("p")[position], structure.of("e")[position]
        edge = e if position in structure.differentiable else f"{p}.gradient_edge()"
        return f'SavedTensor({p}, name, "{name}", {edge}) if isinstance({p}, Tensor) else {p}'
    if number < len(structure.outputs):
        output = "o0" if structure.single else f"o[{number}]"
        return f'SavedTensor({output}, name, "{name}", NO_EDGE, node, {number})'
    result = f"r{number}" if structure.single else f"r[{number}]"
    return f'SavedTensor(wrap({result}), name, "{name}", NO_EDGE)'


def apply_source(structure: Structure) -> str:
    """Return the code of the backward, which takes the gradients of outputs and returns the gradients of inputs."""
    nothing = f"[None] * {len(structure.parameters)}"
    named = {name for _, parameters in structure.derivatives for name in parameters}
    lines = [
        *(["g = grads[0]", "if g is None:"] if structure.single else ["if all([g is None for g in grads]):"]),
        f"    return {nothing}",
        "saved, recording = node._saved, mode.enabled",
    ]
    values = [name for name in structure.named if name in named]
    for name in values:
        lines += [
            f'v_{name} = saved.get("{name}")',
            f"if type(v_{name}) is SavedTensor:",
            f"    v_{name} = v_{name}.unpack(recording)",
        ]
    given = "id(g)" if structure.single else "*map(id, grads)"
    lines.append(f"held = {{{', '.join([given, *(f'id(v_{name})' for name in values)])}}}")
    if not structure.single and "g" in named:
        lines.append("g = node.zeros(0) if grads[0] is None else grads[0]")
    if "grads" in named:
        lines.append("grads = tuple([node.zeros(i) if x is None else x for i, x in enumerate(grads)])")
    lines.append(f"results = {nothing}")
    for number, (inputs, parameters) in enumerate(structure.derivatives):
        arguments = ", ".join([_value(structure, name) for name in parameters])
        call = [
            "    try:",
            f"        found = derivative{number}({arguments})",
            "    except NotOnDevice:",
            f"        found = on_host(node.name(), derivative{number}, {arguments})",
        ]
        if len(inputs) > 1 or "needs" in parameters:
            lines.append(f"needs = tuple([node.edges[i][0] is not None for i in {_positions(inputs)}])")
            lines += ["if True in needs:", *call, f"    hold_all(found, held, results, {_positions(inputs)})"]
        else:
            lines += [f"if node.edges[{inputs[0]}][0] is not None:", *call]
            lines.append(f"    results[{inputs[0]}] = hold(found, held)")
    return "\n".join(["def apply(node, grads):", *_indented([*lines, "return results"])])


def _value(structure: Structure, name: str) -> str:
    """Return the expression for the value that a derivative's parameter names."""
    if name in structure.named:
        return f"v_{name}"
    if name in ("g", "grads", "needs"):
        return name
    source, _, what = name.rpartition("_")
    place = structure.metadata.index(structure.parameters.index(source))
    return f"node._inputs[{place}][{0 if what == 'shape' else 1}]"


@functools.lru_cache(maxsize=1024)
def _compiled(source: str) -> CodeType:
    return compile(source, "<generated>", "exec")


def function(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """Return the function that `source` defines, renamed to `name`; `names` holds the objects that the source uses."""
    namespace = {"__name__": __name__, **names}
    exec(_compiled(source), namespace)
    made: Callable[..., Any] = namespace[source[len("def ") : source.index("(")]]
    made.__name__ = made.__qualname__ = name
    return made
