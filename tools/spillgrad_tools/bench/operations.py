"""The operations that `spillgrad bench kernels` times: their names in each library, and their references in NumPy.

spillgrad and PyTorch have the same interface, so one name serves both. NumPy is timed if it has a function of its own
for the operation. To time a composition of NumPy's functions would be unfair: it only serves as the reference.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from spillgrad_tools.bench import references
from spillgrad_tools.bench.gpt import GPT_CONFIG, gpt_weights, inputs_and_targets

Function = Callable[..., Any]
# The timed call: an operation with its operands.
Call = Callable[[], Any]


class Library:
    """A library under test, in a process of its own: it makes arrays, and prepares and times calls of operations.

    The defaults are for PyTorch's interface, which spillgrad has, too: `top` is the module of functions;
    `functional` is the module of the functions of layers. `training` is the class that trains a GPT-2. If `version` is
    None, the library cannot be used on this machine.
    """

    version: str | None
    has_gradients = True
    top: Any
    functional: Any
    training: Callable[..., Any]
    grad: Function
    adamw: Function

    def set_num_threads(self, count: int) -> None:
        """Set the number of threads that the library uses."""
        self.top.set_num_threads(count)

    def no_grad(self) -> Any:
        """Return a context manager under which no graph is recorded."""
        return self.top.no_grad()

    def about(self) -> dict[str, Any]:
        """Return the name and memory of the device; on the CPU, an empty dictionary."""
        return {}

    def release_memory(self) -> None:
        """Do nothing: on the CPU, the operands of the next case reuse the memory."""

    def prepare(self, operand: np.ndarray, requires_grad: bool) -> Any:
        """Return the operand as a tensor of this library, with the same strides."""
        return self.top.from_numpy(operand).requires_grad_(requires_grad)

    def as_numpy(self, result: Any) -> np.ndarray:
        """Return a result as a NumPy array; bfloat16 becomes float32, as not every library can export bfloat16."""
        if isinstance(result, float):
            return np.asarray(result)
        result = result.detach()
        array: np.ndarray = (result.float() if str(result.dtype).endswith("bfloat16") else result).cpu().numpy()
        return array

    def seconds_of(self, calls: int, call: Call) -> float:
        """Make a call `calls` times, and return the seconds that all calls took."""
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - started

    def fuse(self, function: Function) -> Function:
        """Return `function`, a chain of elementwise operations, fused into one operation if the library can fuse."""
        return function

    def call(self, operation: "Operation", *operands: Any) -> Call | None:
        """Return a function that calls an operation with its operands; None if the library lacks the operation."""
        if operation.prepared:
            made: Call | None = getattr(self, operation.prepared)(*operands)
            return made
        return partial(operation.function(self), *operands)

    def into(self, operation: "Operation", *operands: Any) -> Call | None:
        """Return a function that calls an operation with its last operand as `out`; None if the library lacks it."""
        raise NotImplementedError

    def adamw_step(self, param: Any, grad: Any) -> Call:
        """Return a function that makes a step of AdamW on one parameter with the gradient `grad`."""
        optimizer = self.adamw([param])
        param.grad = grad

        def step() -> Any:
            optimizer.step()
            return param

        return step

    def gpt_step(self, tokens: Any, **options: Any) -> Call:
        """Return a function that makes a training step of a GPT-2 on a CUDA device."""
        training = self.training(GPT_CONFIG, gpt_weights(GPT_CONFIG), device="cuda", **options)
        inputs, targets = inputs_and_targets(tokens.cpu().numpy())

        def step() -> Any:
            with self.top.enable_grad():
                return training.step(inputs, targets)

        return step

    def spilled_gpt_step(self, tokens: Any) -> Call | None:
        """Return None: only spillgrad has a training step that keeps few of its saved tensors on the device."""
        return None


@dataclass(frozen=True)
class Operation:
    """An operation: its function is `spelled` in spillgrad and PyTorch, and `numpy` in NumPy; both default to `name`.

    `options` are keyword arguments of every call. If `composed` is given, it makes the function for a library, in place
    of `spelled`. If `prepared` is given, it names the method of Library that takes the operands and returns the timed
    call. `reference` computes the result for operations that NumPy lacks.
    """

    name: str
    reference: Function | None = None
    spelled: str = ""
    numpy: str = ""
    is_functional: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    composed: Callable[[Library], Function] | None = None
    prepared: str = ""

    def function(self, library: Library) -> Function:
        """Return the function of the operation in a library with PyTorch's interface; it takes the operands."""
        if self.composed is not None:
            return self.composed(library)
        found: Function = getattr(library.functional if self.is_functional else library.top, self.spelled or self.name)
        return partial(found, **self.options) if self.options else found

    def numpy_function(self) -> Function | None:
        """Return NumPy's own function; None if NumPy lacks the operation."""
        return None if self.reference else getattr(np, self.numpy or self.name)

    def expected(self, *inputs: np.ndarray) -> Any:
        """Return the correct result for the inputs, computed with NumPy."""
        function = self.reference or self.numpy_function()
        assert function is not None
        return function(*inputs)


# The CPU's elementwise operations: those bound by arithmetic, and those bound by memory.
COMPUTING = (
    Operation("exp"),
    Operation("tanh"),
    Operation("sigmoid", references.sigmoid),
    Operation("gelu", references.gelu, is_functional=True),
    Operation("gelu_tanh", references.gelu_tanh, spelled="gelu", is_functional=True, options={"approximate": "tanh"}),
    Operation("erf", references.erf),
    Operation("silu", lambda x: x / (1 + np.exp(-x)), is_functional=True),
    Operation("softplus", lambda x: np.logaddexp(0, x), is_functional=True),
)
MOVING = (Operation("add"), Operation("mul", numpy="multiply"), Operation("copy", spelled="clone"))


def _softmax(library: Library) -> Function:
    return lambda x: library.functional.softmax(x, -1)


def _layer_norm(library: Library) -> Function:
    return lambda x, weight, bias: library.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def _attention(library: Library) -> Function:
    return partial(library.functional.scaled_dot_product_attention, is_causal=True)


def _cross_entropy_and_gradient(library: Library) -> Function:
    def forward_and_backward(logits: Any, target: Any) -> Any:
        loss = library.functional.cross_entropy(logits, target)
        return loss, *library.grad(loss, logits)

    return forward_and_backward


def _chain_of_5(library: Library) -> Function:
    return library.fuse(lambda x: ((x * 2 + 1).sigmoid() * x).clamp(min=0.1))


def _chain_of_7(library: Library) -> Function:
    return library.fuse(lambda x, y: ((x * y + x).tanh() * y.sigmoid() - x).relu())


def _with_gradients(forward: Callable[[Library], Function]) -> Callable[[Library], Function]:
    """Return `forward` with the inputs' gradients as further results; the last operand is the result's gradient."""

    def composed(library: Library) -> Function:
        function, grad = forward(library), library.grad

        def forward_and_backward(*operands: Any) -> Any:
            *inputs, g = operands
            y = function(*inputs)
            return y, *grad(y, inputs, g)

        return forward_and_backward

    return composed


_OTHERS = (
    Operation("matmul"),
    Operation("add number", lambda x: x + 1, composed=lambda library: lambda x: x + 1.0),
    Operation("relu", lambda x: np.maximum(x, 0)),
    Operation("sum"),
    Operation("linear", lambda x, weight, bias: x @ weight.T + bias, is_functional=True),
    Operation("reshape", np.ravel, composed=lambda library: lambda x: x.reshape(-1)),
    Operation("select", lambda x: x[3], composed=lambda library: lambda x: x[3]),
    Operation("softmax", references.softmax, composed=_softmax),
    Operation("softmax+", references.softmax_and_gradient, composed=_with_gradients(_softmax)),
    Operation("layer_norm", references.layer_norm, composed=_layer_norm),
    Operation("layer_norm+", references.layer_norm_and_gradients, composed=_with_gradients(_layer_norm)),
    Operation("cross_entropy", references.cross_entropy, is_functional=True),
    Operation("cross_entropy+", references.cross_entropy_and_gradient, composed=_cross_entropy_and_gradient),
    Operation("attention+", references.attention_and_gradients, composed=_with_gradients(_attention)),
    Operation("adamw", references.adamw_first_step, prepared="adamw_step"),
    Operation("chain of 5", references.chain_of_5, composed=_chain_of_5),
    Operation("chain of 7", references.chain_of_7, composed=_chain_of_7),
    Operation("chain of 7+", references.chain_of_7_and_gradients, composed=_with_gradients(_chain_of_7)),
    Operation("gpt step", references.gpt_step, prepared="gpt_step"),
    Operation("gpt step spilled", references.gpt_step, prepared="spilled_gpt_step"),
)
OPERATIONS = {operation.name: operation for operation in (*COMPUTING, *MOVING, *_OTHERS)}


def call_of(name: str, library: Library, operands: list[Any]) -> Call | None:
    """Return the function that a case times: operation `name` with its operands; None if the library lacks it."""
    operation = OPERATIONS[name.removesuffix(" out=")]
    return (library.into if name.endswith(" out=") else library.call)(operation, *operands)


def load(name: str, device: str = "cpu") -> Library:
    """Import the module of a library, such as "ours" or "torch", for a device; return the library."""
    on_device = "_cuda" if device == "cuda" and name != "numpy" else ""
    made: Library = importlib.import_module(f"spillgrad_tools.bench.{name}{on_device}").LIBRARY()
    return made
