"""The core of autograd records operations and runs backward. It imports no tensors."""
