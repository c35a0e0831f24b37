"""Every error that spillgrad raises on purpose, and its warning classes.

Each error class derives from `SpillgradError` and from the built-in error that a user would expect.

Messages read "who: got, wanted; what to do".
"""


class SpillgradError(Exception):
    """Base of all errors raised on purpose."""


class ShapeError(SpillgradError, RuntimeError, ValueError):
    """Raised for shapes that do not fit the operation.

    PyTorch raises RuntimeError for these, NumPy ValueError: code that catches either works.
    """


class DtypeError(SpillgradError, TypeError, RuntimeError):
    """Raised for a dtype that the operation does not accept, or for dtypes that cannot be combined."""


class ComplexDtypeError(DtypeError, NotImplementedError):
    """Raised for complex numbers by an operation that is not defined for them."""


class DeviceError(SpillgradError, RuntimeError):
    """Raised for a device that does not exist on this machine, and for operands on different devices."""


class DimensionError(SpillgradError, IndexError, RuntimeError):
    """Raised for a dimension out of range or named twice, and for an index that is out of range or is no index."""


class ExportError(SpillgradError, BufferError):
    """Raised for memory that cannot be exported to another library without a copy."""


class LinAlgError(SpillgradError, RuntimeError, ValueError):
    """Raised for a matrix that is singular or not positive-definite, or whose factorization did not converge."""


class ArgumentError(SpillgradError, ValueError, RuntimeError):
    """Raised for an argument that is not accepted (PyTorch mostly raises RuntimeError, Python ValueError)."""


class GraphError(SpillgradError, RuntimeError):
    """Raised if the autograd graph cannot do what was asked: it was freed, has no gradient or was modified in place."""


class InferenceTensorError(GraphError):
    """Raised if a tensor that was made in inference mode is changed, saved for backward or asked for its version."""


class SavedTensorError(GraphError):
    """Raised if a saved tensor was changed, differs after unpacking, or was already freed."""


class RecomputationError(SavedTensorError):
    """Raised if a recomputed function saved other values than in its first run."""


class GradcheckError(GraphError):
    """Raised if a gradient differs from central differences, or a backward breaks another rule of gradcheck."""


class HookTypeError(SpillgradError, TypeError):
    """Raised for a hook or a hook's result of the wrong type, and for a `grad` or `data` of the wrong type."""


class GradientMismatchError(SpillgradError, ValueError):
    """Raised if a custom backward returned the wrong number, type or shape of gradients."""


class SpillError(SpillgradError, OSError):
    """Raised if the spill store could not write, read or reserve; the message names the path and the bytes."""


class SpillCorruptionError(SpillError):
    """Raised if the data read from disk differs from the data written."""


class SpillFormatError(SpillError, ValueError):
    """Raised for a spill file of an unknown version."""


class BudgetError(SpillgradError, ValueError):
    """Raised for a byte budget that cannot be parsed or cannot be met; `least_bytes` would do, if it is not 0."""

    least_bytes = 0


class DataError(SpillgradError, ValueError):
    """Raised for training data that is missing, empty or too short."""


class WorkerError(SpillgradError, RuntimeError):
    """Raised for a worker of a `DataLoader` that ended, or took too long."""


class StateDictError(SpillgradError, RuntimeError):
    """Raised for a state dict of another module, optimizer or scheduler."""


class CheckpointError(SpillgradError, ValueError, RuntimeError):
    """Raised for a checkpoint that is missing, damaged or of another model."""


class MissingFileError(CheckpointError, FileNotFoundError):
    """Raised for a file to load that does not exist."""


class _KeyError(SpillgradError, KeyError):
    """A KeyError that shows its message, where `KeyError` shows the message's repr."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownModelError(_KeyError):
    """Raised for a model name that is not in the list of models."""


class MissingOptionError(_KeyError):
    """Raised for a group of an optimizer that lacks an option."""


class OperandError(SpillgradError, TypeError, RuntimeError):
    """Raised for an operand that is not a tensor, number or array (PyTorch raises TypeError or RuntimeError)."""


class MissingPackageError(SpillgradError, ModuleNotFoundError):
    """Raised for a module of spillgrad that needs a package that is not installed."""


class DistributedError(SpillgradError, RuntimeError, ValueError):
    """Raised for what needs more than one process, and for collectives before `init_process_group`.

    PyTorch raises ValueError or RuntimeError for these.
    """


class UnsupportedError(SpillgradError, NotImplementedError):
    """Raised for what PyTorch has and spillgrad does not do on purpose; the message says what to do instead."""


class NotCloseError(SpillgradError, AssertionError):
    """Raised by `testing.assert_close` for values that differ by more than the tolerances."""


class FusionError(SpillgradError, TypeError, RuntimeError):
    """Raised by `fuse` for a function that cannot become one kernel."""


class HostComputeWarning(UserWarning):
    """Issued if the host computes an operation that has no kernel for the device, and copies its tensors both ways."""


class CompilationWarning(UserWarning):
    """Issued once for each name of PyTorch's compilers, which return what they are given."""
