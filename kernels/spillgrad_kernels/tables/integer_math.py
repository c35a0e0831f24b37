"""Functions of integers, for kernels and for the code that launches kernels."""

from spillgrad_kernels.jit.compile import register_jitable


@register_jitable
def round_up(size: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is not below `size`."""
    return (size + multiple - 1) // multiple * multiple
