"""Files: checkpoints of training runs, `save` and `load`, and tensors in safetensors files."""
