"""Benchmarks: spillgrad beside its peers, each in a process of its own."""
