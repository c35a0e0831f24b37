"""Planning the training of a PyTorch model: the step is traced on tensors without values, and nothing is computed."""
