"""PyTorch's options of `torch._dynamo`: any may be set, and reads back; none has an effect."""

suppress_errors = False
verbose = False
cache_size_limit = 8
recompile_limit = 8
capture_scalar_outputs = False
optimize_ddp = True
