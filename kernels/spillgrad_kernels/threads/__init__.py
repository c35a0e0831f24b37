"""Threads that share out the range of a kernel."""
