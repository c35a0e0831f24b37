"""Benchmarks: spillgrad compared with other libraries, each in a process of its own."""
