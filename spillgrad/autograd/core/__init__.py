"""What records operations and runs backward; it knows tensors only as objects registered with it."""
