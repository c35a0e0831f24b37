"""The core of autograd: it records operations and runs backward. It does not import the class `Tensor`."""
