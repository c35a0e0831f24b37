"""Ordinary models in training, which `spillgrad bench models` times; each is written once, for PyTorch's names.

A function that makes a program gets the library as `torch`: PyTorch, or spillgrad, which has the same names. Its
classes derive from that library's `Module`, so they are made inside the function.
"""
