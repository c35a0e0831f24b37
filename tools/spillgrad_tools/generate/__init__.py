"""The command `spillgrad generate`."""
