"""A device's memory, streams and copies: NVIDIA's driver, or a device simulated in the host's memory."""
