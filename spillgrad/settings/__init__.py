"""Settings of PyTorch that change nothing here, or little, and read back."""
