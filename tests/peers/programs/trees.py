"""Nested containers as leaves and a structure: what packages take from `torch.utils._pytree`."""

import importlib
from collections import OrderedDict, defaultdict, deque, namedtuple

Pair = namedtuple("Pair", "first second")


class Box:
    """A container of one's own."""

    def __init__(self, inside, label):
        self.inside, self.label = inside, label


def _module(torch):
    return importlib.import_module(f"{torch.__name__}.utils._pytree")


def _containers():
    grouped = defaultdict(list, {"a": 1, "b": (2, 3)})
    return {
        "leaf": 7,
        "none": None,
        "empty": ((), [], {}),
        "nested": {"z": [1, (2, 3)], "a": {"b": 4}},
        "named": Pair(1, [2, 3]),
        "ordered": OrderedDict([("y", 1), ("x", 2)]),
        "grouped": grouped,
        "queue": deque([1, 2], maxlen=3),
        "a set": [{1, 2}, "text", range(2)],
    }


def _shown(tree):
    if isinstance(tree, tuple | list | deque):
        return [type(tree).__name__, *map(_shown, tree)]
    if isinstance(tree, dict):
        return [type(tree).__name__, [[key, _shown(value)] for key, value in tree.items()]]
    return repr(tree)


def leaves_and_structure(torch, note):
    pytree = _module(torch)
    for name, tree in _containers().items():
        leaves, spec = pytree.tree_flatten(tree)
        note(name, [repr(leaf) for leaf in leaves], spec.num_leaves, spec.num_nodes, spec.num_children, spec.is_leaf())
        note(f"{name}, again", _shown(pytree.tree_unflatten(leaves, spec)), spec == pytree.tree_structure(tree))
        note(f"{name}, mapped", _shown(pytree.tree_map(lambda leaf: [leaf], tree)))
        note(f"{name}, hash", hash(spec) == hash(pytree.tree_structure(tree)))


def leaves_that_a_function_chooses(torch, note):
    pytree = _module(torch)
    tree = {"a": (1, 2), "b": [3, (4, 5.0)]}
    is_pair = lambda node: isinstance(node, tuple)  # noqa: E731
    note("leaves", _shown(pytree.tree_leaves(tree, is_leaf=is_pair)), pytree.tree_is_leaf((1, 2), is_leaf=is_pair))
    note("mapped", _shown(pytree.tree_map(len, {"a": (1, 2), "b": [(3,)]}, is_leaf=is_pair)))
    note("only", _shown(pytree.tree_map_only(float, str, tree)))
    note("only of two", _shown(pytree.tree_map_only((float, int), lambda n: n + 1, tree)))
    note("only where", _shown(pytree.tree_map_only(lambda leaf: leaf > 2, lambda leaf: -leaf, tree)))
    note("all, any", pytree.tree_all(lambda n: n > 0, tree), pytree.tree_any(lambda n: n > 4, tree))
    note("of ints", pytree.tree_all_only(int, lambda n: n < 5, tree), pytree.tree_any_only(int, lambda n: n > 4, tree))
    seen = []
    note("in place", pytree.tree_map_(seen.append, tree) is tree, seen, list(pytree.tree_iter(tree)))


def several_trees(torch, note):
    pytree = _module(torch)
    total = pytree.tree_map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"y": [20], "x": 10})
    note("sum", _shown(total))
    note("deeper", _shown(pytree.tree_map(lambda a, b: [a, b], (1, 2), ([3, 4], {"k": 5}))))
    for name, first, other, phrase in (
        ("kind", (1, 2), [1, 2], "Node type mismatch"),
        ("length", (1, 2), (1,), "Node arity mismatch"),
        ("keys", ({"a": 1}, 2), ({"b": 1}, 2), "Node keys mismatch"),
    ):
        note.error(name, lambda first=first, other=other: pytree.tree_map(max, first, other), phrase)


def a_class_of_ones_own(torch, note):
    pytree = _module(torch)
    box = Box([torch.ones(2), 3], "label")
    note("a leaf before", len(pytree.tree_leaves(box)))
    pytree.register_pytree_node(Box, lambda b: ([b.inside], b.label), lambda parts, label: Box(*parts, label))
    try:
        moved = pytree.tree_map_only(torch.Tensor, lambda t: t * 2, {"box": box})["box"]
        note("after", type(moved).__name__, moved.label, moved.inside[0], moved.inside[1])
    finally:
        pytree.SUPPORTED_NODES.pop(Box)


def what_does_not_fit(torch, note):
    pytree = _module(torch)
    leaves, spec = pytree.tree_flatten((1, [2]))
    note.error("too few", lambda: spec.unflatten(leaves[:1]), "`leaves` has length 1", "holds 2 items")
    note.error("no structure", lambda: pytree.tree_unflatten(leaves, 3), "Expected `treespec` to be instance of")
    note.error("twice", lambda: pytree.register_pytree_node(list, None, None), "already registered as pytree node")


def parameters_and_other_values_in_one_container(torch, note):
    nn = torch.nn
    inner = nn.ParameterList([torch.ones(2), torch.zeros(1)])
    values = nn.ParameterList([inner, 3, torch.ones(1), "text", nn.Linear(1, 2), None])
    note("list", [type(value).__name__ for value in values], len(values), [n for n, _ in values.named_parameters()])
    note("part", [type(value).__name__ for value in values[1:4]], type(values[0][0]).__name__, values[-3])
    values[1] = torch.ones(4)
    note("replaced", [n for n, _ in values.named_parameters()], sorted(values.state_dict()))
    named = nn.ParameterDict({"layer": nn.Linear(1, 1), "number": 3, "weight": torch.ones(2)})
    note("dict", list(named), len(named), [n for n, _ in named.named_parameters()], "number" in named, named["number"])
    note("popped", named.pop("number"), type(named.pop("layer")).__name__, list(named), [n for n, _ in named.items()])
    note("default", list(nn.ParameterDict().fromkeys(["a", "b"])), named.setdefault("new", 5), list(named.keys()))
