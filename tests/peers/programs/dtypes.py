"""What dtypes are: their attributes, limits, how they mix, and how programs use them as values."""

import copy
import pickle

NAMES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip
OLD_NAMES = ["half", "float", "double", "short", "int", "long", "cfloat", "cdouble"]


def attributes(torch, note):
    for name in NAMES:
        dtype = getattr(torch, name)
        note(name, dtype.is_floating_point, dtype.is_complex, dtype.is_signed, dtype.itemsize, dtype.to_real())
    for name in ("bfloat16", "float32", "float64", "complex64", "complex128"):
        note(f"{name} to complex", getattr(torch, name).to_complex())
    for name in ("int32", "bool"):
        note.error(f"{name} to complex", getattr(torch, name).to_complex)


def a_dtype_is_one_object_of_one_class(torch, note):
    for name in NAMES:
        dtype = getattr(torch, name)
        note(
            name, isinstance(dtype, torch.dtype), type(dtype) is torch.dtype, torch.empty(2, dtype=dtype).dtype is dtype
        )
        copies = copy.copy(dtype), copy.deepcopy({"dtype": [dtype]})["dtype"][0], pickle.loads(pickle.dumps(dtype))
        note(f"{name} copied", [copied is dtype for copied in copies])
        note(f"{name}'s text", str(dtype).split(".")[-1], repr(dtype).split(".")[-1], f"{dtype}".split(".")[-1])
    note("whole text", str(torch.float32), repr(torch.float32))
    note("other names", [getattr(torch, name) for name in OLD_NAMES])
    note("of other classes", [isinstance(x, torch.dtype) for x in ("float32", 1, torch.ones(1), torch.dtype, None)])
    note.error("subclass", lambda: type("Mine", (torch.dtype,), {}), "is not an acceptable base type")
    note.error("attribute", lambda: torch.float32.no_such_attribute, "object has no attribute 'no_such_attribute'")
    note.error("new attribute", lambda: setattr(torch.float32, "mine", 1))
    note.error("call", lambda: torch.float32(1), "object is not callable")


def dtypes_are_compared_and_are_keys(torch, note):
    x = torch.ones(2, dtype=torch.float16)
    sizes = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}
    note("key", sizes[x.dtype], sizes.get(torch.int8), len({*sizes, torch.half, torch.float}))
    note("in", x.dtype in (torch.bfloat16, torch.float16), x.dtype in (torch.float32,), x.dtype in {torch.half})
    note("equal", x.dtype == torch.half, x.dtype != torch.half, x.dtype == torch.float32, torch.float64 == None)  # noqa: E711
    note("by name", {"float32": torch.float32, "bf16": torch.bfloat16}["bf16"], getattr(torch, "bfloat16"))  # noqa: B009
    note("truth", bool(torch.float32))

    def annotated(dtype: torch.dtype = torch.float32) -> torch.dtype:
        return dtype

    note("annotated", annotated(), annotated.__annotations__["return"] is torch.dtype)


def limits(torch, note):
    for name in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        found = torch.finfo(getattr(torch, name))
        note(name, found.bits, found.eps, found.max, found.min, found.tiny, found.smallest_normal, found.dtype)
        note(f"{name}'s resolution", found.resolution / 10)
    for name in ("int8", "int16", "int32", "int64", "uint8"):
        found = torch.iinfo(getattr(torch, name))
        note(name, found.bits, found.max, found.min, found.dtype)
    note("default", torch.finfo().dtype)
    note.error("integer", lambda: torch.finfo(torch.int32))
    note.error("floating", lambda: torch.iinfo(torch.float32))
    note.error("bool", lambda: torch.iinfo(torch.bool))


def dtypes_mix(torch, note):
    names = [name for name in NAMES if name not in ("uint16", "uint32", "uint64")]
    for name in names:
        dtype = getattr(torch, name)
        note(f"promoted with {name}", [torch.promote_types(dtype, getattr(torch, other)) for other in names])
        note(f"cast from {name}", [torch.can_cast(dtype, getattr(torch, other)) for other in names])
    x, i = torch.ones(2, dtype=torch.float32), torch.ones(2, dtype=torch.int32)
    operands = (x, i), (i, 1.5), (i, 2), (i, torch.tensor(2.0, dtype=torch.float64)), (x, torch.tensor(2.0).double())
    note("results", [torch.result_type(*pair) for pair in operands])
    note("same object", torch.result_type(x, i) is torch.float32)


def tensors_ask_and_change(torch, note):
    x = torch.ones(2, dtype=torch.float32)
    for name in NAMES:
        y = x.to(getattr(torch, name))
        note(name, y.dtype, y.is_floating_point(), y.is_complex(), y.is_signed(), y.element_size())
        note(f"{name} by functions", torch.is_floating_point(y), torch.is_complex(y), torch.is_signed(y))
        found = x.type_as(y), x.to(y), torch.zeros_like(x, dtype=y.dtype)
        note(f"{name} as another", [each.dtype is y.dtype for each in found])
    note("same", x.to(torch.float32) is x, x.type(torch.float32) is x, x.to(dtype=torch.float32) is x)
    note("view", torch.ones(2, dtype=torch.float32).view(torch.int32))
    note("half of a module", [p.dtype for p in torch.nn.Linear(2, 2).to(torch.bfloat16).parameters()])


def the_default_dtype_is_set(torch, note):
    note("at first", torch.get_default_dtype(), torch.get_default_dtype() is torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        note("set", torch.get_default_dtype() is torch.float64, torch.ones(1).dtype, torch.finfo().dtype)
        note("of numbers", torch.tensor(1.5).dtype, torch.tensor(1j).dtype, torch.tensor(1).dtype)
    finally:
        torch.set_default_dtype(torch.float32)
    note.error("integers", lambda: torch.set_default_dtype(torch.int32))
    note("still", torch.get_default_dtype())
