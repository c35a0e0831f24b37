"""Every error that spillgrad raises on purpose, and its one warning class.

Each error is a `SpillgradError` and the built-in type a user would expect.

Messages read "who: got, wanted; what to do".
"""


class SpillgradError(Exception):
    """Base of all errors raised on purpose."""


class ShapeError(SpillgradError, RuntimeError, ValueError):
    """Shapes do not fit the operation.

    PyTorch raises RuntimeError here, NumPy ValueError: code for either keeps working.
    """


class DtypeError(SpillgradError, TypeError, RuntimeError):
    """A dtype the operation does not take, or two that do not go together."""


class DeviceError(SpillgradError, RuntimeError):
    """A device that does not exist here, or operands on different ones."""


class DimensionError(SpillgradError, IndexError, RuntimeError):
    """A dimension out of range or named twice, an index out of range or no index at all."""


class ExportError(SpillgradError, BufferError):
    """Memory that cannot be handed to another library as it is."""


class LinAlgError(SpillgradError, RuntimeError, ValueError):
    """A matrix that cannot be inverted or factorized: it is singular, not positive-definite, or did not converge."""


class ArgumentError(SpillgradError, ValueError, RuntimeError):
    """An argument outside what is accepted (PyTorch mostly raises RuntimeError, Python ValueError)."""


class GraphError(SpillgradError, RuntimeError):
    """The autograd graph cannot do what was asked: freed, without gradient, modified in place."""


class SavedTensorError(GraphError):
    """A saved tensor changed, came back different, or was already freed."""


class RecomputationError(SavedTensorError):
    """A recomputed function saved other values than in its first run."""


class GradcheckError(GraphError):
    """A gradient differs from central differences, or a backward breaks another rule that gradcheck tests."""


class HookTypeError(SpillgradError, TypeError):
    """A hook returned something of the wrong type."""


class GradientMismatchError(SpillgradError, ValueError):
    """A custom backward returned the wrong number, type or shape of gradients."""


class SpillError(SpillgradError, OSError):
    """The spill store could not write, read or reserve; the message names path and bytes."""


class SpillCorruptionError(SpillError):
    """Data read from disk differs from the data written."""


class SpillFormatError(SpillError, ValueError):
    """A spill file of an unknown version."""


class BudgetError(SpillgradError, ValueError):
    """A byte budget that does not parse or cannot be met."""


class DataError(SpillgradError, ValueError):
    """Training data that is missing, empty or too short."""


class WorkerError(SpillgradError, RuntimeError):
    """A process that loads data ended, or took too long."""


class StateDictError(SpillgradError, RuntimeError):
    """A state dict of another module, optimizer or scheduler."""


class CheckpointError(SpillgradError, ValueError, RuntimeError):
    """A checkpoint that is missing, damaged or of another model."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """A file to load that does not exist."""


class _KeyError(SpillgradError, KeyError):
    """A KeyError that shows its message, where `KeyError` shows the message's repr."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownModelError(_KeyError):
    """A model name that is not in the list."""


class MissingOptionError(_KeyError):
    """A group of an optimizer's parameters that lacks an option."""


class OperandError(SpillgradError, TypeError, RuntimeError):
    """An operand that is not a tensor, number or array (PyTorch raises TypeError or RuntimeError)."""


class MissingPackageError(SpillgradError, ModuleNotFoundError):
    """A module that needs a package that is not installed."""


class FusionError(SpillgradError, TypeError, RuntimeError):
    """A function that cannot become one kernel."""


class HostComputeWarning(UserWarning):
    """An operation without a kernel for the device ran on the host, with copies of its tensors there and back."""
