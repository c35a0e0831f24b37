"""NVIDIA's GPUs under the names of `torch.cuda`: queries, memory, random numbers, streams, and mixed precision (`amp`).

Scripts can choose a device by `"cuda" if sg.cuda.is_available() else "cpu"`. Only the first device is used.
"""

from spillgrad.cuda import amp, nvtx
from spillgrad.cuda.queries import *
from spillgrad.cuda.random_numbers import *
from spillgrad.cuda.streams import *
from spillgrad.typed_tensors import on_cuda as _typed

FloatTensor, DoubleTensor, HalfTensor = (_typed[f"{word}Tensor"] for word in ("Float", "Double", "Half"))
BFloat16Tensor, BoolTensor, ByteTensor = (_typed[f"{word}Tensor"] for word in ("BFloat16", "Bool", "Byte"))
CharTensor, ShortTensor, IntTensor, LongTensor = (_typed[f"{word}Tensor"] for word in ("Char", "Short", "Int", "Long"))
