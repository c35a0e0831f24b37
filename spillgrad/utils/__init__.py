"""Utilities, in the places where PyTorch has them."""
