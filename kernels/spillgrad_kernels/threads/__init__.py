"""Threads that compute shares of a kernel's range."""
