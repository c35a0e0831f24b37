"""What keeps training within its memory: saved tensors, parameters, gradients and optimizer state that live on disk."""
