"""The parts of `spillgrad.disk_offload`."""
