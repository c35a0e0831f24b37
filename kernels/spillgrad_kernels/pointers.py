"""The memory of NumPy arrays inside compiled code that is given their ids: an integer costs a call least."""

from spillgrad_kernels.atomics import WORD_BYTES, load
from spillgrad_kernels.compile import jit

# NumPy's C interface: the first field of an array object, behind what every Python object begins with.
_DATA_WORD = object.__basicsize__ // WORD_BYTES


@jit
def data_of(array_id: int) -> int:
    """Return the address of the first element of the array with an id; the caller keeps the array alive."""
    return load(array_id, _DATA_WORD)
