"""PyTorch's module `torch.utils._pytree`: nested containers as a list of leaves and a structure.

Containers are tuples, named tuples, lists, dicts, ordered dicts, default dicts, deques, and classes that
`register_pytree_node` names; an object of any other class, a subclass of these included, is a leaf.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from spillgrad.errors import ArgumentError, OperandError

__all__ = [
    "SUPPORTED_NODES", "LeafSpec", "PyTree", "TreeSpec", "register_pytree_node", "tree_all", "tree_all_only",
    "tree_any", "tree_any_only", "tree_flatten", "tree_is_leaf", "tree_iter", "tree_leaves", "tree_map", "tree_map_",
    "tree_map_only", "tree_map_only_", "tree_structure", "tree_unflatten", "treespec_leaf",
]  # fmt: skip

PyTree = Any
IsLeaf = Callable[[Any], bool] | None


class NodeDef(NamedTuple):
    """How a container is taken apart: into children and a context, from which it is put together again."""

    type: type
    flatten_fn: Callable[[Any], tuple[list[Any], Any]]
    unflatten_fn: Callable[[Iterable[Any], Any], Any]


def _keyed(made: Callable[[Iterable[tuple[Any, Any]]], Any]) -> tuple[Any, Any]:
    return (
        lambda node: (list(node.values()), list(node)),
        lambda children, keys: made(zip(keys, children, strict=True)),
    )


class _NamedTuple:
    """The type of the nodes that are named tuples, whatever their class, which is the context."""


_DICTS = (dict, OrderedDict, defaultdict)

_BUILT_IN: dict[type, tuple[Any, Any]] = {
    tuple: (lambda node: (list(node), None), lambda children, _: tuple(children)),
    list: (lambda node: (node, None), lambda children, _: list(children)),
    dict: _keyed(dict),
    OrderedDict: _keyed(OrderedDict),
    defaultdict: (
        lambda node: (list(node.values()), [node.default_factory, list(node)]),
        lambda children, context: defaultdict(context[0], zip(context[1], children, strict=True)),
    ),
    deque: (lambda node: (list(node), node.maxlen), lambda children, length: deque(children, maxlen=length)),
    _NamedTuple: (lambda node: (list(node), type(node)), lambda children, named: named(*children)),
}
SUPPORTED_NODES = {kind: NodeDef(kind, *functions) for kind, functions in _BUILT_IN.items()}


def register_pytree_node(
    cls: type, flatten_fn: Callable[[Any], tuple[list[Any], Any]],
    unflatten_fn: Callable[[Iterable[Any], Any], Any], *, serialized_type_name: str | None = None,
    to_dumpable_context: Any = None, from_dumpable_context: Any = None, flatten_with_keys_fn: Any = None,
) -> None:  # fmt: skip
    """Make a class a container: `flatten_fn` returns its children and a context, `unflatten_fn` makes it of these.

    The other arguments, for writing structures to files, have no effect. Raises ValueError for a class that is one.
    """
    if cls in SUPPORTED_NODES:
        raise ArgumentError(f"{cls} is already registered as pytree node.")
    SUPPORTED_NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn)


def _kind(node: Any) -> Any:
    """Return the key of `SUPPORTED_NODES` that a node has, or None for a leaf."""
    kind = type(node)
    if kind in SUPPORTED_NODES:
        return kind
    return _NamedTuple if isinstance(node, tuple) and hasattr(kind, "_fields") else None


class TreeSpec:
    """The structure of nested containers: the class of each, its context (such as its keys), and its children."""

    def __init__(self, type: Any, context: Any, children_specs: list["TreeSpec"]) -> None:
        self.type, self.context, self.children_specs = type, context, children_specs
        is_leaf = type is None
        self.num_nodes: int = 1 + sum(child.num_nodes for child in children_specs)
        self.num_leaves: int = 1 if is_leaf else sum(child.num_leaves for child in children_specs)
        self.num_children = len(children_specs)

    def is_leaf(self) -> bool:
        """Return whether the structure is that of one leaf."""
        return self.type is None

    def children(self) -> list["TreeSpec"]:
        """Return the structures of the children."""
        return list(self.children_specs)

    def child(self, index: int) -> "TreeSpec":
        """Return the structure of one child."""
        return self.children_specs[index]

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Return the containers with these leaves. Raises ValueError unless there are as many as the structure has."""
        given = list(leaves)
        if len(given) != self.num_leaves:
            raise ArgumentError(
                f"treespec.unflatten(leaves): `leaves` has length {len(given)} but the spec refers to a pytree that "
                f"holds {self.num_leaves} items ({self})."
            )
        return self._made_of(iter(given))

    def _made_of(self, leaves: Iterator[Any]) -> Any:
        if self.is_leaf():
            return next(leaves)
        children = [child._made_of(leaves) for child in self.children_specs]
        return SUPPORTED_NODES[self.type].unflatten_fn(children, self.context)

    def flatten_up_to(self, tree: Any) -> list[Any]:
        """Return what a tree has at the places of this structure's leaves. Raises ValueError if it has other places."""
        return list(self._parts(tree))

    def _parts(self, tree: Any) -> Iterator[Any]:
        if self.is_leaf():
            yield tree
            return
        kind = _kind(tree)
        dicts = self.type in _DICTS and kind in _DICTS
        if kind != self.type and not dicts:
            raise ArgumentError(f"Node type mismatch; expected {self.type!r}, but got {type(tree)!r}.")
        children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
        if len(children) != self.num_children:
            raise ArgumentError(f"Node arity mismatch; expected {self.num_children}, but got {len(children)}.")
        if dicts:
            keys = self.context[1] if self.type is defaultdict else self.context
            if set(keys) != set(tree):
                raise ArgumentError(f"Node keys mismatch; expected {list(keys)}, but got {list(tree)}.")
            children = [tree[key] for key in keys]
        elif kind is not deque and context != self.context:
            raise ArgumentError(
                f"Node context mismatch for node type {self.type!r}; expected {self.context!r}, but got {context!r}."
            )
        for part, child in zip(children, self.children_specs, strict=True):
            yield from child._parts(part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TreeSpec):
            return NotImplemented
        mine = (self.type, self.context, self.children_specs)
        return mine == (other.type, other.context, other.children_specs)

    def __hash__(self) -> int:
        return hash((self.type, self.num_nodes, tuple(self.children_specs)))

    def __repr__(self) -> str:
        if self.is_leaf():
            return "*"
        name = "namedtuple" if self.type is _NamedTuple else self.type.__name__
        return f"TreeSpec({name}, {self.context}, [{', '.join(map(repr, self.children_specs))}])"


class LeafSpec(TreeSpec):
    """The structure of one leaf."""

    def __init__(self) -> None:
        super().__init__(None, None, [])


_LEAF = LeafSpec()


def treespec_leaf() -> LeafSpec:
    """Return the structure of one leaf."""
    return _LEAF


def tree_is_leaf(tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Return whether an object is no container, or one that `is_leaf` takes for a leaf."""
    return (is_leaf is not None and is_leaf(tree)) or _kind(tree) is None


def _flattened(tree: Any, leaves: list[Any], is_leaf: IsLeaf) -> TreeSpec:
    if tree_is_leaf(tree, is_leaf):
        leaves.append(tree)
        return _LEAF
    kind = _kind(tree)
    children, context = SUPPORTED_NODES[kind].flatten_fn(tree)
    return TreeSpec(kind, context, [_flattened(child, leaves, is_leaf) for child in children])


def tree_flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """Return the leaves of nested containers in order, and the structure; `is_leaf` says what is not taken apart."""
    leaves: list[Any] = []
    return leaves, _flattened(tree, leaves, is_leaf)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """Return containers of a structure with these leaves. Raises TypeError unless `treespec` is a structure."""
    if not isinstance(treespec, TreeSpec):
        raise OperandError(
            "tree_unflatten(leaves, treespec): Expected `treespec` to be instance of PyTreeSpec but got item of type "
            f"{type(treespec)}."
        )
    return treespec.unflatten(leaves)


def tree_iter(tree: Any, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Yield the leaves in order."""
    yield from tree_leaves(tree, is_leaf)


def tree_leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """Return the leaves in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: IsLeaf = None) -> TreeSpec:
    """Return the structure of nested containers."""
    return tree_flatten(tree, is_leaf)[1]


def tree_map(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Return the containers with `func(leaf, ...)` in place of each leaf; `rests` give its further arguments."""
    leaves, spec = tree_flatten(tree, is_leaf)
    columns = [leaves, *(spec.flatten_up_to(rest) for rest in rests)]
    return spec.unflatten(map(func, *columns))


def tree_map_(func: Callable[..., Any], tree: Any, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Call `func(leaf, ...)` for each leaf, and return the tree itself."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def _chosen(which: Any) -> Callable[[Any], bool]:
    if isinstance(which, type | tuple) or not callable(which):
        return lambda leaf: isinstance(leaf, which)
    predicate: Callable[[Any], bool] = which
    return predicate


def tree_map_only(
    type_or_types_or_pred: Any, func: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None
) -> Any:  # fmt: skip
    """Return the containers with `func(leaf)` in place of the leaves of given classes, or that a predicate chooses."""
    chosen = _chosen(type_or_types_or_pred)
    return tree_map(lambda leaf: func(leaf) if chosen(leaf) else leaf, tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, func: Callable[[Any], Any], tree: Any, is_leaf: IsLeaf = None
) -> Any:  # fmt: skip
    """Call `func(leaf)` for the leaves of given classes, or that a predicate chooses, and return the tree itself."""
    tree_map_only(type_or_types_or_pred, func, tree, is_leaf)
    return tree


def tree_all(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of all leaves."""
    return all(map(pred, tree_leaves(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None) -> bool:
    """Return whether `pred` is true of a leaf."""
    return any(map(pred, tree_leaves(tree, is_leaf)))


def tree_all_only(
    type_or_types: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None
) -> bool:  # fmt: skip
    """Return whether `pred` is true of all leaves of given classes."""
    return all(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if isinstance(leaf, type_or_types))


def tree_any_only(
    type_or_types: Any, pred: Callable[[Any], bool], tree: Any, is_leaf: IsLeaf = None
) -> bool:  # fmt: skip
    """Return whether `pred` is true of a leaf of given classes."""
    return any(pred(leaf) for leaf in tree_leaves(tree, is_leaf) if isinstance(leaf, type_or_types))
