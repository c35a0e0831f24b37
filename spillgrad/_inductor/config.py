"""PyTorch's options of `torch._inductor`: any may be set, and reads back; none has an effect."""

from types import SimpleNamespace

coordinate_descent_tuning = False
epilogue_fusion = True
force_fuse_int_mm_with_mul = False
fx_graph_cache = True
max_autotune = False
shape_padding = True
cpp = SimpleNamespace(threads=-1)
triton = SimpleNamespace(cudagraphs=False, unique_kernel_names=True)
