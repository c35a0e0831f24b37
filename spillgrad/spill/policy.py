"""The policy of `save_on_disk`: which saved tensors are spilled, kept or recomputed, by module or operation."""

import fnmatch
from collections.abc import Callable, Mapping
from typing import Any

from spillgrad.autograd.recompute.region import checkpoint, is_in_region
from spillgrad.errors import ArgumentError
from spillgrad.ops.operation import all_operations
from spillgrad.spill.module_paths import around, is_numbered

CHOICES = ("spill", "keep", "recompute")

# A function from the name of an operation, or the path of a module, to a choice or None.
Chooser = Callable[[str], str | None]


class Policy:
    """Chooses what happens to each saved value: by its operation, else by its modules, the innermost first.

    A value without a choice is spilled. Raises ArgumentError if `policy` is not a valid policy.
    """

    def __init__(self, policy: str | Mapping[str, str] | Chooser) -> None:
        if isinstance(policy, str):
            _require_choice(policy)
            self._of_module: Chooser = _of_repeated if policy == "recompute" else lambda path: policy
            self._of_operation: Chooser = lambda name: None
        elif isinstance(policy, Mapping):
            choices = dict(policy)
            names = {operation.name for operation in all_operations}
            for key, choice in choices.items():
                if not isinstance(key, str):
                    raise ArgumentError(
                        f"save_on_disk: got a policy for {key!r}; wanted the path of a module, or an operation's name"
                    )
                _require_choice(choice)
                if choice == "recompute" and key in names:
                    raise _no_recomputation(key)
            fits = fnmatch.fnmatchcase
            self._of_module = lambda path: next((choice for key, choice in choices.items() if fits(path, key)), None)
            self._of_operation = choices.get
        elif callable(policy):
            self._of_module = self._of_operation = _checked(policy)
        else:
            raise ArgumentError(
                f"save_on_disk: got policy {policy!r}; wanted auto, one of {', '.join(CHOICES)}, or a mapping or "
                "function from the path of a module, or an operation's name, to one of them"
            )
        self._known: dict[tuple[str, str], bool] = {}

    def keeps(self, operation: str, path: str) -> bool:
        """Return whether a value that `operation` saves within the module at `path` stays in RAM."""
        known = self._known.get((operation, path))
        if known is None:
            known = self._known[operation, path] = self._keeps(operation, path)
        return known

    def _keeps(self, operation: str, path: str) -> bool:
        choice = self._of_operation(operation)
        if choice == "recompute":
            raise _no_recomputation(operation)
        if choice is not None:
            return choice == "keep"
        for outer in (path, *around(path)):
            choice = self._of_module(outer)
            # A recomputed module saves its arguments. These belong to the modules around it.
            if choice is not None and choice != "recompute":
                return choice == "keep"
        return False

    def around(self, path: str, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the forward of the module at `path`; if the policy says "recompute", backward runs the forward again.

        Modules within one that is recomputed, by the policy or by a `checkpoint` of the model's own, are recomputed
        with it.
        """
        if self._of_module(path) != "recompute" or is_in_region():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **kwargs)


def _of_repeated(path: str) -> str | None:
    return "recompute" if is_numbered(path) else None


def _require_choice(choice: Any) -> None:
    if choice not in CHOICES:
        raise ArgumentError(
            f"save_on_disk: got {choice!r} as a policy; accepted are {', '.join(CHOICES)}; and, for all, auto"
        )


def _checked(policy: Chooser) -> Chooser:
    def choose(name: str) -> str | None:
        choice = policy(name)
        if choice is not None:
            _require_choice(choice)
        return choice

    return choose


def _no_recomputation(operation: str) -> ArgumentError:
    return ArgumentError(
        f"save_on_disk: got 'recompute' for the operation {operation}; operations are kept or spilled: recompute a "
        "module around it, by its path"
    )
