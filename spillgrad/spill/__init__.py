"""Spilling: saved tensors, parameters, gradients and optimizer state live on disk, and in RAM within a budget."""
