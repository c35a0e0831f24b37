"""The base of layers that call one function with fixed options."""

import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, dataclass_transform, get_origin

from spillgrad.nn.module import Module


@dataclass_transform(eq_default=False)
class FunctionLayer(Module):
    """The base of layers whose forward calls `_function` with the inputs and with the layer's options.

    As in a dataclass, the annotated attributes of a class are its options. Each option is an argument of the
    constructor, in this order (keyword-only after `_: KW_ONLY`), an attribute of the layer, and a keyword argument of
    `_function`. This holds for classes in `spillgrad.nn`; subclasses elsewhere are ordinary classes.
    """

    _function: ClassVar[Callable[..., Any]]
    _options: ClassVar[dict[str, inspect.Parameter]] = {}
    # The options that the layer's representation shows; None means all options, but `inplace` only if it is true.
    _shown: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.__module__.startswith("spillgrad.nn."):
            return
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        options = dict(cls._options)
        for name, annotation in inspect.get_annotations(cls).items():
            origin: Any = get_origin(annotation)
            if annotation is KW_ONLY:
                kind = inspect.Parameter.KEYWORD_ONLY
            elif origin is not ClassVar:
                default = vars(cls).get(name, inspect.Parameter.empty)
                options[name] = inspect.Parameter(name, kind, default=default, annotation=annotation)
                if name in vars(cls):
                    delattr(cls, name)  # it would hide a buffer
        cls._options = options
        if "__init__" not in vars(cls):
            cls.__init__ = _constructor(list(options.values()))  # type: ignore[method-assign]

    def _set_up(self) -> None:
        """Check and complete the options. The constructor calls this last; subclasses override it."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return type(self)._function(*inputs, **named, **{name: getattr(self, name) for name in self._options})

    def extra_repr(self) -> str:
        shown = self._shown
        if shown is None:
            shown = tuple(name for name in self._options if name != "inplace" or getattr(self, name))
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)


def _constructor(options: list[inspect.Parameter]) -> Callable[..., None]:
    """Return the constructor of a class with these options."""
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.Signature([this, *options])

    def __init__(self: FunctionLayer, *values: Any, **named: Any) -> None:
        bound = signature.bind(self, *values, **named)
        bound.apply_defaults()
        Module.__init__(self)
        for name in list(bound.arguments)[1:]:
            setattr(self, name, bound.arguments[name])
        self._set_up()

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return __init__
