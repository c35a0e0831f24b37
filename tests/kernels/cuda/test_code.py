"""The code of CUDA kernels, made without a GPU."""

import os
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from cuda.bindings import nvjitlink

from spillgrad_kernels.cuda import (
    attention,
    attention_backward,
    channel_norm,
    conv,
    conv_direct,
    elementwise,
    index_sums,
    indexing,
    losses,
    matmul,
    normalization,
    optim,
    plain_cores,
    pooling,
    random,
    reductions,
    resampling,
    rows,
    sorting,
    tensor_cores,
    windows,
)
from spillgrad_kernels.cuda.pointers import computing_dtype
from spillgrad_kernels.layout import dense
from spillgrad_kernels.tables.elementwise_derivatives import ROWS
from spillgrad_kernels.tables.formula import CONVERSIONS, Symbol, Trace, parameters
from spillgrad_kernels.tables.optim import (
    adadelta_element,
    adagrad_element,
    adam_element,
    adamax_element,
    amsgrad_element,
    asgd_element,
    lion_element,
    maximizing,
    nadam_element,
    radam_element,
    rmsprop_centered_momentum_element,
    rprop_element,
    scale_element,
    sgd_element,
    sgd_momentum_element,
)
from tests.kernels.cuda.integer_rows import FORMULAS, as_by_numpy, operands_of

CAPABILITIES = [(7, 5), (8, 0), (9, 0)]


# Rows of which a GPU's library, or our own code, computes parts in float64 whatever the dtype.
IN_FLOAT64 = ("digamma", "polygamma", "lgamma", "sin", "cos", "tan", "sinc")


def layouts_of(names, dtype):
    kinds = [np.dtype(bool) if name == "condition" else np.dtype(dtype) for name in names]
    return tuple([dense((1000,), kind) for kind in kinds])


def together(formulas, dtype):
    """One piece of code for formulas that share operands: the compiler takes as long to begin as for one of them."""
    record = Trace(list(dict.fromkeys(name for formula in formulas for name in parameters(formula))))
    number = CONVERSIONS[np.dtype(dtype).name]
    results = [
        record.apply(formula, [Symbol(record, name) for name in parameters(formula)], number) for formula in formulas
    ]
    record.results = tuple(map(record.name_of, results))
    return record


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ROWS)
def test_every_row_compiles_for_every_generation(name, dtype):
    row = ROWS[name]
    # Derivatives call what forwards do: in float64, those are enough.
    derivatives = row.derivatives.values() if dtype is np.float32 else ()
    body = together([row.forward, *derivatives], dtype)
    kinds = (np.dtype(bool if row.result == "bool" else dtype), *[np.dtype(dtype) for _ in derivatives])
    kernel = elementwise.prepare(body, name, kinds, layouts_of(body.inputs, dtype)).kernel
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert ".entry kernel(" in code
        assert dtype == np.float64 or ".f64" not in code or name in IN_FLOAT64


@pytest.mark.parametrize("name", ["abs", "neg", "hardshrink"])
def test_negated_int16_wrap_although_cuda_13_0_computes_them_in_32_bits(name):
    layouts = layouts_of(parameters(FORMULAS[name]), np.int16)
    kernel = elementwise.prepare(FORMULAS[name], name, (np.dtype(np.int16),), layouts, (), True).kernel
    for capability in CAPABILITIES:
        assert not re.search(r"\b(neg|abs)\.s16\b", kernel.ptx(capability))
        assert kernel.code(capability).startswith(b"\x7fELF")


# Rows in which an integer meets a float.
OF_FLOATS = ("elu", "celu", "lerp", "nan_to_num", "isinf", "isfinite", "isposinf", "isneginf", "signbit")


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_integers_are_computed_as_integers_on_every_generation(name, dtype):
    result = as_by_numpy(name, operands_of(name, np.dtype(dtype)), np.dtype(dtype)).dtype
    layouts = layouts_of(parameters(FORMULAS[name]), dtype)
    kernel = elementwise.prepare(FORMULAS[name], name, (result,), layouts, (), True).kernel
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert name in OF_FLOATS or not re.search(r"\.f(32|64)", code)


@pytest.mark.parametrize("dtype, access", [
    (np.float32, "v4.f32"), (np.float64, "v2.f64"), (np.float16, "v4.b32"), (ml_dtypes.bfloat16, "v4.b32"),
    (np.int64, "v2.u64"),
])  # fmt: skip
def test_neighbours_move_in_one_access_of_16_bytes(dtype, access):
    kind = np.dtype(dtype)
    layout = dense((64, 1024), kind)
    row = dense((1024,), kind)
    code = elementwise.prepare(ROWS["add"].forward, "add", (kind,), (layout, row), (), True).kernel.ptx((8, 0))
    accesses = set(re.findall(r"(?:ld|st)\.global\.(\S+)", code))
    assert {a.split(".")[0] for a in accesses} == {access.split(".")[0]}, accesses


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "bool"])
@pytest.mark.parametrize("name", reductions.RULES)
def test_every_fold_compiles_for_every_generation(name, dtype):
    kind = np.dtype(dtype)
    kernels = [reductions.kernel(name, name, kind, reductions._result_dtype(name, kind))]
    if dtype in ("float32", "int32"):  # what is not finished differs in the last line alone
        kernels.append(reductions.kernel(name, None, kind, np.dtype("f8")))
    for kernel in kernels:
        for major, minor in CAPABILITIES:
            assert f".target sm_{major}{minor}" in kernel.ptx((major, minor))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint64", "bool"])
@pytest.mark.parametrize("name, is_dense", [("sum", True), ("prod", False)])
def test_every_running_fold_compiles_for_every_generation(name, is_dense, dtype):
    kernel = reductions.scan(name, np.dtype(dtype), is_dense)
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert (".f64" in code) == (dtype not in ("uint64", "bool"))


@pytest.mark.parametrize("dtype, lanes, rows, turned", [
    ("float32", "v4.f32", 1024, False), ("float32", "v4.f32", 1024, True), ("float32", "v4.f32", 64, True),
    ("float64", "v2.f64", 1024, False), ("float64", "v2.f64", 1024, True), ("float16", None, 1024, False),
])  # fmt: skip
def test_a_product_keeps_its_sums_in_registers_and_moves_neighbours_together(dtype, lanes, turned, rows):
    kind = np.dtype(dtype)
    plain = dense((rows, 1024), kind)
    other = dense((1024, 1024), kind, (1, 0) if turned else (0, 1))
    kernel = matmul.prepare(plain, other, plain, (), None, "", (True, True, True)).kernel
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert not re.search(r"\b(ld|st)\.local", code)
        assert {access for access in re.findall(r"ld\.shared\.(\S+)", code)} == {
            "v2.f64" if dtype == "float64" else "v4.f32"
        }
        if lanes:
            assert set(re.findall(r"(?:ld|st)\.global\.(\S+)", code)) == {lanes}
    tile = (plain_cores.TILES if rows > 64 else plain_cores.LOW_TILES)["float64" if dtype == "float64" else "float32"]
    assert kernel.threads == tile.threads
    assert len(re.findall(r"\bfma\.rn", code)) == plain_cores._UNROLLED * tile.thread_rows * tile.thread_columns


def assembled(code, capability):
    """What NVIDIA's assembler makes of a kernel; it raises for instructions that devices do not have."""
    linker = nvjitlink.create(2, [f"-arch=sm_{capability[0]}{capability[1]}", "-verbose"])
    nvjitlink.add_data(linker, nvjitlink.InputType.PTX, code.encode(), len(code), "kernel")
    nvjitlink.complete(linker)
    log = bytearray(nvjitlink.get_info_log_size(linker))
    nvjitlink.get_info_log(linker, log)
    nvjitlink.destroy(linker)
    return log.decode()


@pytest.mark.parametrize("dtype, a_turned, b_turned", [
    (np.float16, False, False), (ml_dtypes.bfloat16, True, True), (np.float32, False, True),
])  # fmt: skip
def test_a_product_is_made_by_tensor_cores_out_of_registers(dtype, a_turned, b_turned):
    kind = np.dtype(dtype)
    depth, tile = tensor_cores.KINDS[kind.name].depth, tensor_cores.KINDS[kind.name].tile
    plain, turned = dense((1024, 1024), kind), dense((1024, 1024), kind, (1, 0))
    kernel = matmul.prepare(
        turned if a_turned else plain,
        turned if b_turned else plain,
        plain,
        (),
        None,
        "",
        (True, True, True),
        (kind.name,),
    ).kernel
    of_step = tile.warp_rows // 16 * (tile.warp_columns // 8) * (tile.depth // depth)
    for capability in CAPABILITIES[1:]:
        code = kernel.ptx(capability)
        assert len(re.findall(rf"mma\.sync\.aligned\.m16n8k{depth}", code)) == of_step
        assert ("ldmatrix.sync.aligned.m8n8.x4.trans" in code) == (kind.itemsize == 2)
        fetched = set(re.findall(r"ld\.global\.(\S+)", code))
        assert fetched == (set() if kind.itemsize == 2 else {"v4.u32"})
        assert ("cp.async.cg.shared.global" in code) == (kind.itemsize == 2)
        if capability == (8, 0):  # what it has, later ones have too
            assert re.search(r"\b0 bytes spill stores, 0 bytes spill loads", assembled(code, capability))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("m, n, k", [(1024, 1023, 1024), (64, 1024, 1021)])
def test_tensor_cores_also_multiply_what_is_not_aligned(m, n, k, dtype):
    kind = np.dtype(dtype)
    call = matmul.prepare(
        dense((m, k), kind), dense((k, n), kind), dense((m, n), kind), (), None, "", (True, True, True), (kind.name,)
    )
    code = call.kernel.ptx((8, 0))
    assert "mma.sync.aligned" in code
    fetched = set(re.findall(r"ld\.global\.(\S+)", code))  # one operand has whole accesses
    assert len(fetched - {"v4.u32"}) == 1 and ("v4.u32" in fetched) != ("cp.async.cg.shared.global" in code)


@pytest.mark.parametrize("dtype, n", [(np.float32, 64), (np.float32, 63), (np.float16, 64), (np.float64, 64)])
def test_the_parts_of_a_product_are_joined_by_wide_accesses(dtype, n):
    kind = np.dtype(dtype)
    layouts = dense((64, 4096), kind), dense((4096, n), kind), dense((64, n), kind)
    bias = ("addend", dense((64, n), kind))
    call = matmul.prepare(*layouts, (bias,), ROWS["gelu_tanh"].forward, "gelu", (True, True, True))
    assert call.blocks > 8 and call.joining.shape[1] == 64 * n
    code = call.joining.kernel.ptx((7, 5))
    loads = set(re.findall(r"ld\.global\.(\S+)", code))
    assert loads - {"b32"} == ({"f32"} if n == 63 else {"v2.f64"} if kind.itemsize == 8 else {"v4.f32"})


@pytest.mark.parametrize("dtype, width, mask", [
    ("float32", 64, attention.NO_MASK), ("float32", 64, attention.CHOICE), ("float32", 128, attention.BIAS),
    ("float64", 64, attention.NO_MASK), ("bfloat16", 64, attention.NO_MASK),
])  # fmt: skip
@pytest.mark.parametrize("make", [
    attention.forward_kernel, lambda variant: attention_backward.backward_kernel(variant, False),
    lambda variant: attention_backward.backward_kernel(variant, True),
])  # fmt: skip
def test_attention_keeps_its_rows_in_registers(make, dtype, width, mask):
    kernel = make(attention.Variant(dtype, width, width, mask, mask == 0, mask == 0, 2 if dtype == "float64" else 4))
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert not re.search(r"\b(ld|st)\.local", code)
        assert "ld.shared.v" in code


ROW_LOOPS = {
    loop.name: loop
    for module in (normalization, losses, reductions)
    for loop in vars(module).values()
    if isinstance(loop, rows.RowLoop)
}


def row_kernel(name, dtype, lanes, are_columns_there=True):
    """The kernel of a loop whose arrays are all of one dtype, but for targets and numbers of float32."""
    loop, kind = ROW_LOOPS[name], np.dtype(dtype)
    number = np.dtype(np.float64 if kind == np.float64 else np.float32)
    dtypes = {name: kind if are_columns_there else None for name in loop.columns}
    dtypes |= dict.fromkeys([*loop.numbers, *loop.constants, *loop.results], number)
    dtypes |= dict.fromkeys(["target", "ignore_index"], np.dtype(np.int64))
    dtypes |= dict.fromkeys([*loop.elements, "element_out"], kind)
    return rows.kernel(loop, tuple([dtypes[name] for name in [*loop.operands, *loop.results]]), lanes)


# What differs with the dtype are loads and stores alone, which are the same functions in every loop.
@pytest.mark.parametrize("name, dtype, lanes, are_columns_there", [
    each for name in ROW_LOOPS for each in ((name, np.float32, 4, True), (name, ml_dtypes.bfloat16, 1, False))
] + [("layer_norm", np.float32, 1, False), ("layer_norm", ml_dtypes.bfloat16, 8, True)])  # fmt: skip
def test_every_row_loop_compiles_for_every_generation(name, dtype, lanes, are_columns_there):
    kernel = row_kernel(name, dtype, lanes, are_columns_there)
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert ".f64" not in code  # which is slow on most devices


@pytest.mark.parametrize("name", ROW_LOOPS)
def test_a_row_s_neighbours_move_in_one_access_of_16_bytes(name):
    loop = ROW_LOOPS[name]
    accesses = re.findall(r"(?:ld|st)\.global\.(v4\.\w+|\w+)", row_kernel(name, np.float32, 4).ptx((8, 0)))
    passes = [formula for formula in (loop.fold and loop.fold.term, loop.element) if formula]
    moved = sum(x in (*loop.elements, *loop.columns) for formula in passes for x in parameters(formula))
    assert accesses.count("v4.f32") == moved + (loop.element is not None), accesses
    assert len(accesses) - accesses.count("v4.f32") <= len(loop.numbers) + len(loop.picked) + len(loop.stored)


@pytest.mark.parametrize("name, dtype", [
    (name, dtype) for name in ("uniform", "normal") for dtype in ("float32", "float64", "float16", "bfloat16")
] + [("words64", "int64"), ("randint", "int64")])  # fmt: skip
def test_every_distribution_compiles_for_every_generation(name, dtype):
    for major, minor in CAPABILITIES:
        code = random.drawing(name, np.dtype(dtype)).ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert ".local" not in code  # the series' coefficients are in the code
        assert re.search(r"st\.global\.v[24]", code)


@pytest.mark.parametrize("lanes, adds", [(4, True), (2, False), (1, True)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_dropout_compiles_for_every_generation(dtype, lanes, adds):
    kind = np.dtype(dtype)
    if lanes * kind.itemsize <= 16:
        for major, minor in CAPABILITIES:
            assert f".target sm_{major}{minor}" in random.dropping(kind, lanes, adds).ptx((major, minor))


@pytest.mark.parametrize("dtype, make", [
    ("float32", sorting.sorting_tiles), ("bfloat16", sorting.sorting_tiles), ("float64", sorting.merging_runs),
    ("uint8", sorting.merging_runs), ("uint64", sorting.searching),
])  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
def test_sorts_and_searches_compile_for_every_generation(make, dtype, turned):
    for major, minor in CAPABILITIES:
        code = make(dtype, turned).ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert "atom." not in code and ".local" not in code


@pytest.mark.parametrize("index", ["int64", "int32", "uint8"])
@pytest.mark.parametrize("nbytes", [1, 2, 4, 8, 16])
def test_reads_and_writes_by_index_compile_for_every_generation(nbytes, index):
    for major, minor in CAPABILITIES:
        for kernel in (indexing.choosing(nbytes, index), indexing.overwriting(nbytes, index)):
            assert f".target sm_{major}{minor}" in kernel.ptx((major, minor))


@pytest.mark.parametrize("dtype, lanes", [
    ("float32", 4), ("float32", 1), ("float64", 2), ("float16", 4), ("bfloat16", 4), ("bfloat16", 1), ("int64", 2),
])  # fmt: skip
def test_sums_by_index_compile_for_every_generation(dtype, lanes):
    kind = np.dtype(dtype)
    kernels = [index_sums.adding(kind, lanes, "int32"), index_sums.adding_partials(kind, lanes, "int64", "max")]
    if kind == computing_dtype(kind):
        kernels.append(index_sums.adding_columns(kind, "int64"))
    for kernel in kernels:
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert "atom." not in code and ".local" not in code


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_convolutions_compile_for_every_generation(dtype):
    kind, sums = np.dtype(dtype), computing_dtype(np.dtype(dtype))
    for kernel in (
        conv.gathering(kind.itemsize), windows.laying(sums, kind), conv_direct.adding_windows(kind),
        conv_direct.adding_inputs(kind),
        conv_direct.adding_products(kind, kind), conv_direct.adding_products(kind, np.dtype(np.float64)),
    ):  # fmt: skip
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert "atom." not in code and ".local" not in code
            # Threads add up in float32 what is not float64, and blocks in float64.
            products = re.findall(r"(?:fma|mul)\.rn\.(f\d+)", code)
            assert set(products) <= {f"f{8 * sums.itemsize}"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_normalization_by_channel_compiles_for_every_generation(dtype):
    kind, number = np.dtype(dtype), computing_dtype(np.dtype(dtype))
    for kernel in (
        channel_norm.adding(kind, 16 // kind.itemsize, False), channel_norm.adding(kind, 1, True),
        channel_norm.finishing(kind), channel_norm.tracking(number, kind), channel_norm.sharing(number, kind),
    ):  # fmt: skip
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert "atom." not in code and ".local" not in code


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_pooling_and_resampling_compile_for_every_generation(dtype):
    kind = np.dtype(dtype)
    for kernel in (
        pooling.finding(kind), pooling.spreading(kind), pooling.adding(kind, kind, False),
        pooling.adding(kind, kind, True), resampling.summing(kind),
    ):  # fmt: skip
        for major, minor in CAPABILITIES:
            code = kernel.ptx((major, minor))
            assert f".target sm_{major}{minor}" in code
            assert "atom." not in code and ".local" not in code
            assert dtype == "float64" or ".f64" not in code


# The formulas of updates, and how many states each has.
UPDATES = [
    (adam_element, 2), (amsgrad_element, 3), (nadam_element, 2), (radam_element, 2), (adamax_element, 2),
    (adagrad_element, 1), (adadelta_element, 2), (rmsprop_centered_momentum_element, 3), (asgd_element, 1),
    (rprop_element, 2), (lion_element, 1), (sgd_element, 0), (sgd_momentum_element, 1), (scale_element, 0),
    (maximizing(adam_element), 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype, access", [("float32", "v4.f32"), ("float64", "v2.f64")])
@pytest.mark.parametrize("formula, states", UPDATES)
def test_every_update_moves_16_bytes_at_a_time_on_every_generation(formula, states, dtype, access):
    kind = np.dtype(dtype)
    array = dense((1024,), kind)
    numbers = len(parameters(formula)) - 2 - states
    operands, outs = (array,) * (2 + states) + (kind,) * numbers, (array,) * (1 + states)
    kernel = elementwise.prepare(formula, "update", (kind,) * len(outs), operands, outs, True).kernel
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert set(re.findall(r"(?:ld|st)\.global\.(\S+)", code)) == {access}


@pytest.mark.parametrize("dtype, access", [("float32", "v4.f32"), ("float64", "v2.f64")])
@pytest.mark.parametrize("formula, states", UPDATES)
def test_updates_of_many_parameters_move_as_much_and_find_them_in_a_table(formula, states, dtype, access):
    kind = np.dtype(dtype)
    numbers = len(parameters(formula)) - 2 - states
    kernel = optim.updating(formula, kind, 2 + states, (None,) * numbers, 16 // kind.itemsize)
    for major, minor in CAPABILITIES:
        code = kernel.ptx((major, minor))
        assert f".target sm_{major}{minor}" in code
        assert ".local" not in code
        assert {found.rpartition(".")[2] for found in re.findall(r"st\.global\.(\S+)", code)} == {access[3:]}
        assert access in code and "ld.global.u64" in code


def test_the_places_of_a_mask_compile_for_every_generation():
    for major, minor in CAPABILITIES:
        assert f".target sm_{major}{minor}" in indexing.list_places.ptx((major, minor))


@pytest.mark.parametrize("make", [
    lambda: optim.adding(np.dtype(np.float32), True), lambda: optim.adding(np.dtype(np.float64), False), optim.writing,
])  # fmt: skip
def test_sums_of_squares_compile_for_every_generation(make):
    for major, minor in CAPABILITIES:
        assert f".target sm_{major}{minor}" in make().ptx((major, minor))


def test_what_the_cpu_compiled_before_is_not_taken_for_a_device_s(tmp_path):
    """In a process of its own, with an empty cache: what is found compiled is no danger."""
    program = """
import numpy as np
from spillgrad_kernels.cpu import random as host
host.normal((8,), np.float32, 1, 2)
from spillgrad_kernels.cuda import random
random.drawing("normal", np.dtype("float32")).ptx((8, 0))
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
