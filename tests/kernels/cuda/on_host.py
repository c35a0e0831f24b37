"""Kernels for a device, as compiled for it, run by one thread of this machine's processor, the first of its block.

Numba writes the same code for a device as for a processor, in an older spelling, but for the numbers of threads and
what the device's library computes. Here the C library does that; its functions have the same names without a prefix.
The simulator runs Python functions, and shows nothing of what their values become when compiled.
"""

import ctypes
import re
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from spillgrad_kernels.cuda import elementwise
from spillgrad_kernels.layout import layout_of

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

_POINTEE = r"(?:void|i\d+|float|double|half|ptr|<\d+ x \w+>|\[\d+ x \w+\]|(?<!\")\{[^{}]*\})"
_POINTER = re.compile(rf"(?<![\w\"%@.]){_POINTEE}\s*\*")
_COUNTS = {"tid": 0, "ntid": 1, "ctaid": 0, "nctaid": 1}
_engines: list[Any] = []  # they own the code


def _for_host(text: str) -> str:
    """Return a device's module of LLVM code with pointers of one type, a single thread, and no target."""
    text = re.sub(r"(?m)^(target |!nvvm|@\"?llvm\.).*$|^.*\bcall void @\"?llvm\.nvvm\.barrier.*$", "", text)
    text = re.sub(r" addrspace\(\d\)", "", text).replace("addrspacecast", "bitcast").replace('@"__nv_', '@"')
    while (changed := _POINTER.sub("ptr", text)) != text:
        text = changed
    for register, count in _COUNTS.items():
        name = rf"\"?llvm\.nvvm\.read\.ptx\.sreg\.{register}\.x\"?\(\)"
        text = re.sub(rf"(?m)^declare i32 @{name}.*$", "", re.sub(rf"call i32 @{name}", f"add i32 0, {count}", text))
    return text


def compiled(kernel: Any) -> Any:
    """Return a function that runs a kernel of one thread; addresses are the host's."""
    first, *others = [llvm.parse_assembly(_for_host(text)) for text in kernel._library.llvm_strs]
    for other in others:
        first.link_in(other)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
    first.triple, first.data_layout = llvm.get_process_triple(), str(machine.target_data)
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(first, passes)
    engine = llvm.create_mcjit_compiler(first, machine)
    engine.finalize_object()
    _engines.append(engine)
    names = {"float32": "float", "float64": "double", "boolean": "bool"}
    kinds = [getattr(ctypes, f"c_{names.get(kind.name, kind.name)}") for kind in kernel.parameters]
    return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(kernel._library._entry_name))


def compute(formula: Any, name: str, operands: list[Any], dtype: Any) -> np.ndarray:
    """Return what `elementwise.compute` does of a formula, over arrays of the host."""
    layouts = tuple([layout_of(o) if isinstance(o, np.ndarray) else o.dtype for o in operands])
    call = elementwise.prepare(formula, name, (np.dtype(dtype),), layouts)
    out = np.empty(call.results[0].layout.shape, dtype)
    given = [o.ctypes.data if isinstance(o, np.ndarray) else o.item() for o in (*operands, out)]
    compiled(call.kernel)(call.turns, *call.words, *given)
    return out
