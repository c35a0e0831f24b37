"""Memory, streams and copies of a device, through NVIDIA's driver or through a device simulated in host memory."""
