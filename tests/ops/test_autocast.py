"""Mixed precision: which operations compute in which dtype, what parameters and gradients keep, and where it ends."""

import gc
import threading
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.nn import functional as F
from spillgrad.ops import convert
from spillgrad.ops.intercept import is_active
from spillgrad.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

FLOAT, HALF = sg.float32, sg.bfloat16


def numbers(*shape: int, dtype=FLOAT, requires_grad: bool = False) -> sg.Tensor:
    drawn = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return sg.tensor(drawn).to(dtype).requires_grad_(requires_grad)


PRODUCTS = {
    "linear": (F.linear, (3, 4), (5, 4)),
    "linear with bias": (F.linear, (3, 4), (5, 4), (5,)),
    "matmul": (sg.matmul, (2, 3, 4), (4, 5)),
    "matmul of vectors": (sg.matmul, (4,), (4,)),
    "mm": (sg.mm, (3, 4), (4, 5)),
    "bmm": (sg.bmm, (2, 3, 4), (2, 4, 5)),
    "addmm": (sg.addmm, (3, 5), (3, 4), (4, 5)),
    "baddbmm": (sg.baddbmm, (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "addbmm": (sg.addbmm, (3, 5), (2, 3, 4), (2, 4, 5)),
    "matmul by a vector": (sg.matmul, (3, 4), (4,)),
    "einsum": (lambda a, b: sg.einsum("ij,jk->ik", a, b), (3, 4), (4, 5)),
    "tensordot": (lambda a, b: sg.tensordot(a, b, 1), (3, 4), (4, 5)),
    "@": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "conv1d": (F.conv1d, (1, 2, 8), (3, 2, 3), (3,)),
    "conv2d": (F.conv2d, (1, 2, 8, 8), (3, 2, 3, 3)),
    "conv3d": (F.conv3d, (1, 2, 4, 4, 4), (3, 2, 3, 3, 3)),
    "conv_transpose2d": (F.conv_transpose2d, (1, 3, 8, 8), (3, 2, 3, 3)),
    "attention": (F.scaled_dot_product_attention, (2, 3, 4), (2, 3, 4), (2, 3, 4)),
    "masked attention": (F.scaled_dot_product_attention, (2, 3, 4), (2, 3, 4), (2, 3, 4), (3, 3)),
}
CLASSES = sg.tensor([0, 1, 2])
EXACT = {
    "mse_loss": (F.mse_loss, (3, 4), (3, 4)),
    "l1_loss": (F.l1_loss, (3, 4), (3, 4)),
    "cross_entropy": (lambda a: F.cross_entropy(a, CLASSES), (3, 4)),
    "cross_entropy of probabilities": (F.cross_entropy, (3, 4), (3, 4)),
    "nll_loss": (lambda a: F.nll_loss(a, CLASSES), (3, 4)),
    "linear_cross_entropy": (lambda a, w: F.linear_cross_entropy(a, w, CLASSES), (3, 4), (5, 4)),
    "binary cross entropy of logits": (F.binary_cross_entropy_with_logits, (3, 4), (3, 4)),
    "kl_div": (F.kl_div, (3, 4), (3, 4)),
    "prod": (sg.prod, (3, 4)),
    "trace": (sg.trace, (4, 4)),
    "cdist": (sg.cdist, (3, 4), (5, 4)),
    "quantile": (lambda a: sg.quantile(a, 0.5), (3, 4)),
    "inv": (sg.linalg.inv, (4, 4)),
    "det": (sg.linalg.det, (4, 4)),
    "dot": (sg.dot, (4,), (4,)),
    "mv": (sg.mv, (3, 4), (4,)),
    "bilinear": (F.bilinear, (3, 4), (3, 5), (2, 4, 5)),
}
UNCHANGED = {
    "softmax": (F.softmax, (3, 4)),
    "layer_norm": (lambda a: F.layer_norm(a, (4,)), (3, 4)),
    "gelu": (F.gelu, (3, 4)),
    "exp": (sg.exp, (3, 4)),
    "sum": (sg.sum, (3, 4)),
    "add": (sg.add, (3, 4), (3, 4)),
    "cumsum": (lambda a: sg.cumsum(a, 0), (3, 4)),
    "norm": (sg.norm, (3, 4)),
}


def in_autocast(row, *dtypes):
    function, *shapes = row
    with sg.autocast("cpu"):
        return function(*[numbers(*shape, dtype=dtypes[i % len(dtypes)]) for i, shape in enumerate(shapes)])


@pytest.mark.parametrize("dtypes", [(FLOAT,), (HALF,), (FLOAT, HALF), (HALF, FLOAT)], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_computes_in_half_precision_whatever_its_operands(name, dtypes):
    result = in_autocast(PRODUCTS[name], *dtypes)
    function, *shapes = PRODUCTS[name]
    wanted = function(*[numbers(*shape).to(HALF).to(FLOAT) for shape in shapes])
    assert result.dtype == HALF
    np.testing.assert_allclose(result.to(FLOAT).numpy(), wanted.numpy(), rtol=2**-7, atol=0.03)


@pytest.mark.parametrize("dtypes", [(FLOAT,), (HALF,), (FLOAT, HALF)], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_what_loses_too_much_takes_float32_for_half_precision(name, dtypes):
    assert in_autocast(EXACT[name], *dtypes).dtype == FLOAT


@pytest.mark.parametrize("name", UNCHANGED)
def test_all_else_computes_in_the_dtype_it_is_given(name):
    assert [in_autocast(UNCHANGED[name], dtype).dtype for dtype in (FLOAT, HALF)] == [FLOAT, HALF]


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("double", [False, True], ids=["first derivative", "recorded"])
def test_a_linear_cross_entropy_rounds_the_operands_of_its_products_alone(reduction, double):
    x, weight, bias = (numbers(*shape).requires_grad_() for shape in ((3, 40), (5, 40), (5,)))
    with sg.autocast("cpu"):
        loss = F.linear_cross_entropy(x, weight, CLASSES, bias, reduction=reduction)
    found = sg.autograd.grad(loss.sum(), (x, weight, bias), create_graph=double)
    rounded = [tensor.detach().to(HALF).to(sg.float64).requires_grad_() for tensor in (x, weight)]
    exact = [*rounded, bias.detach().to(sg.float64).requires_grad_()]
    wanted = F.linear_cross_entropy(*exact[:2], CLASSES, exact[2], reduction=reduction)
    np.testing.assert_allclose(loss.detach().numpy(), wanted.detach().numpy(), rtol=1e-5)
    for gradient, right in zip(found, sg.autograd.grad(wanted.sum(), exact), strict=True):
        assert gradient.dtype == FLOAT
        np.testing.assert_allclose(gradient.detach().numpy(), right.numpy(), rtol=2**-7, atol=2**-8)


def test_products_sum_in_float32_and_round_once():
    ones = sg.ones(1, 4096)
    with sg.autocast("cpu"):
        assert (ones @ ones.t()).item() == 4096  # a sum in bfloat16 would stop at 256


def test_float64_and_integers_stay():
    with sg.autocast("cpu"):
        assert (numbers(2, 2, dtype=sg.float64) @ numbers(2, 2, dtype=sg.float64)).dtype == sg.float64
        assert (sg.ones(2, 2).to(sg.int32) @ sg.ones(2, 2).to(sg.int32)).dtype == sg.int32
        with pytest.raises(sg.errors.DtypeError, match="float64 and bfloat16"):
            numbers(2, 2, dtype=sg.float64) @ numbers(2, 2)


@pytest.mark.parametrize("shapes", [((3, 4), (5, 4)), ((3, 4), (5, 4), (5,))], ids=["weight", "weight and bias"])
def test_gradients_arrive_in_float32_and_are_those_of_the_rounded_operands(shapes):
    operands = [numbers(*shape, requires_grad=True) for shape in shapes]
    with sg.autocast("cpu"):
        result = F.linear(*operands)
    result.sum().backward()
    rounded = [x.detach().to(HALF).to(FLOAT).requires_grad_() for x in operands]
    F.linear(*rounded).sum().backward()
    for mine, wanted in zip(operands, rounded, strict=True):
        assert mine.grad.dtype == mine.dtype == FLOAT
        np.testing.assert_allclose(mine.grad.numpy(), wanted.grad.numpy(), rtol=2**-7)


def test_fused_linear_layers_convert_too():
    x, w, b = numbers(3, 4), numbers(5, 4, requires_grad=True), numbers(5)
    with sg.autocast("cpu"):
        assert F.linear(x, w, b, activation="gelu").dtype == HALF
        assert F.linear(x, w, b, residual=numbers(3, 5)).dtype == FLOAT  # as PyTorch's sum of the two
        assert F.linear(x.to(HALF), w, b, activation="relu").dtype == HALF


@pytest.mark.parametrize("layer", ["layer_norm", "rms_norm", "batch_norm", "group_norm"])
def test_half_precision_is_normalized_by_float32_parameters_whose_gradients_are_not_rounded(layer):
    norm = {
        "layer_norm": lambda: sg.nn.LayerNorm(64), "rms_norm": lambda: sg.nn.RMSNorm(64),
        "batch_norm": lambda: sg.nn.BatchNorm1d(64), "group_norm": lambda: sg.nn.GroupNorm(4, 64),
    }[layer]()  # fmt: skip
    x = numbers(300, 64, dtype=HALF, requires_grad=True)
    result = norm(x)
    assert result.dtype == HALF
    (result.to(FLOAT) * numbers(300, 64)).sum().backward()
    wide = x.detach().to(FLOAT).requires_grad_()
    mine = norm.weight.grad
    norm.zero_grad()
    (norm(wide) * numbers(300, 64).to(HALF)).sum().backward()
    assert x.grad.dtype == HALF
    assert mine.dtype == FLOAT
    np.testing.assert_allclose(mine.numpy(), norm.weight.grad.numpy(), rtol=1e-5, atol=1e-4)


@pytest.fixture
def conversions(monkeypatch):
    """Count conversions by the parameter."""
    counts = []
    plain = convert._to

    def count(tensor, dtype):
        counts.append(tensor.shape)
        return plain(tensor, dtype)

    monkeypatch.setattr(convert, "_to", count)
    return counts


def test_a_parameter_is_converted_once_in_the_outermost_region(conversions):
    x, w = numbers(3, 4), numbers(4, 4, requires_grad=True)
    with sg.autocast("cpu"):
        for _ in range(3):
            x @ w
        with sg.autocast("cpu"):
            x @ w
        x @ w
        assert conversions.count(w.shape) == 1
    with sg.autocast("cpu", cache_enabled=False):
        x @ w
        x @ w
    assert conversions.count(w.shape) == 3


def test_conversions_are_freed_with_the_region():
    w = numbers(4, 4, requires_grad=True)
    with sg.autocast("cpu"):
        node = weakref.ref((numbers(3, 4) @ w).grad_fn.next_functions[1][0])
        gc.collect()
        assert node() is not None
    gc.collect()
    assert node() is None


def test_a_parameter_that_changes_or_gets_other_memory_is_converted_again():
    x, w = sg.ones(1, 2), sg.ones(2, 1).requires_grad_()
    with sg.autocast("cpu"):
        assert (x @ w).item() == 2
        with sg.no_grad():
            w.mul_(3)
        assert (x @ w).item() == 6
        w.data = sg.zeros(2, 1)
        assert (x @ w).item() == 0


def test_a_conversion_made_in_no_grad_does_not_cut_later_gradients():
    x, w = numbers(3, 4), numbers(4, 4, requires_grad=True)
    with sg.autocast("cpu"):
        with sg.no_grad():
            assert not (x @ w).requires_grad
        (x @ w).sum().backward()
    assert w.grad is not None


def test_a_parameter_used_in_two_backwards_of_one_region_gets_both_gradients():
    x, w = sg.ones(1, 4), sg.ones(4, 1).requires_grad_()
    with sg.autocast("cpu"):
        for _ in range(2):
            (x @ w).sum().backward()
    assert w.grad.tolist() == [[2.0]] * 4


def test_regions_nest_and_can_be_disabled_inside():
    x = numbers(3, 3)
    dtypes = []
    with sg.autocast("cpu"):
        with sg.autocast("cpu", dtype=sg.float16):
            dtypes.append((x @ x).dtype)
            assert sg.get_autocast_dtype("cpu") == sg.float16
        with sg.autocast("cpu", enabled=False):
            assert not sg.is_autocast_enabled("cpu")
            dtypes.append((x @ x).dtype)
        dtypes.append((x @ x).dtype)
        assert sg.is_autocast_enabled("cpu")
    dtypes.append((x @ x).dtype)
    assert dtypes == [sg.float16, FLOAT, HALF, FLOAT]
    assert not is_active()


def test_operations_have_their_own_code_again_after_the_region_even_after_an_error():
    from spillgrad.ops.matrix_products import _mm

    x = numbers(3, 3)
    x @ x
    own = vars(_mm)["run"]
    with pytest.raises(KeyError), sg.autocast("cpu"):
        assert vars(_mm)["run"] is not own
        raise KeyError
    assert vars(_mm)["run"] is own
    assert not sg.is_autocast_enabled()


def test_it_decorates_functions_and_generators():
    x = numbers(3, 3)

    @sg.autocast("cpu")
    def product():
        return x @ x

    @sg.amp.autocast("cpu")
    def products():
        yield x @ x
        yield x @ x

    found = []
    for result in products():
        assert (x @ x).dtype == FLOAT  # outside while the generator waits
        found.append(result.dtype)
    assert (product().dtype, found) == (HALF, [HALF, HALF])


def test_another_thread_computes_as_ever():
    x = numbers(3, 3)
    found = []
    with sg.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
        assert (x @ x).dtype == HALF
    assert found == [FLOAT]


def test_backward_inside_the_region_computes_in_the_dtypes_of_the_forward():
    x, w = numbers(3, 4), numbers(4, 5, requires_grad=True)
    loss = ((x @ w) * numbers(3, 5)).sum()
    outside = sg.grad(loss, [w], retain_graph=True)[0]
    with sg.autocast("cpu"):
        inside = sg.grad(loss, [w])[0]
    assert inside.dtype == FLOAT
    assert inside.numpy().tobytes() == outside.numpy().tobytes()


def test_second_gradients_flow_through_conversions():
    x, w = numbers(3, 4, requires_grad=True), numbers(4, 5, requires_grad=True)
    with sg.autocast("cpu"):
        loss = (x @ w).to(FLOAT).square().sum()
    (first,) = sg.grad(loss, [x], create_graph=True)
    (second,) = sg.grad(first.sum(), [w])
    assert second.dtype == FLOAT
    assert float(second.abs().sum()) > 0


@pytest.mark.parametrize("selected", [None, ["mm"], ["mm", "to_copy"]], ids=["all again", "products kept", "casts too"])
def test_a_checkpoint_recomputes_in_the_mode_of_its_forward(selected):
    x, w = numbers(3, 4), numbers(4, 4, requires_grad=True)

    def chain(x):
        return sg.tanh(sg.tanh(x @ w) @ w).to(FLOAT).square().sum()

    options = {} if selected is None else {"context_fn": lambda: create_selective_checkpoint_contexts(selected)}
    with sg.autocast("cpu"):
        (plain,) = sg.grad(chain(x), [w])
        loss = checkpoint(chain, x, determinism_check="values", **options)
    (again,) = sg.grad(loss, [w])  # outside: the mode comes back for the recomputation alone
    assert again.numpy().tobytes() == plain.numpy().tobytes()
    assert not sg.is_autocast_enabled()


def test_save_on_disk_keeps_a_parameter_instead_of_its_conversion(tmp_path: Path):
    x, w = numbers(64, 64, requires_grad=True), numbers(64, 64, requires_grad=True)

    def gradients():
        with sg.autocast("cpu"):
            loss = (x @ w.t() @ w).to(FLOAT).sum()
        return [g.numpy().tobytes() for g in sg.grad(loss, [x, w])]

    wanted = gradients()
    with sg.save_on_disk(tmp_path, ram_budget=0) as spill:
        assert gradients() == wanted
    stats = spill.stats()
    # The first product alone: no conversion of a leaf, nor of its transpose.
    assert stats.packed_bytes == 64 * 64 * 2


def test_save_on_disk_keeps_the_bits_of_a_conversion_as_they_are(tmp_path: Path):
    x, w = numbers(64, 64, requires_grad=True), numbers(64, 64, requires_grad=True)
    with sg.autocast("cpu"):
        product = x @ w
    bits = product.grad_fn._saved_mat2.view(sg.int16)[1:]
    spill = sg.save_on_disk(tmp_path, ram_budget=0, min_bytes=0)
    got = spill.unpack_hook(spill.pack_hook(bits))
    assert got.numpy().tobytes() == bits.numpy().tobytes()


def test_save_on_disk_refuses_a_conversion_of_a_parameter_that_changed_since(tmp_path: Path):
    x, w = numbers(64, 64, requires_grad=True), numbers(64, 64, requires_grad=True)
    with sg.save_on_disk(tmp_path, ram_budget=0), sg.autocast("cpu"):
        loss = (x @ w).to(FLOAT).sum()
    with sg.no_grad():
        w.mul_(2)
    with pytest.raises(sg.errors.SavedTensorError, match=r"mm saved a parameter of \(64, 64\) as 'mat2'"):
        loss.backward()


def test_a_gpt_learns_in_bfloat16_as_in_float32():
    # Each loss within 1 % of float32's; without training they would differ from these by more than 20 % at the end.
    text = np.frombuffer(b"It was the best of times, it was the worst of times. " * 8, np.uint8).astype(np.int64)
    x, y = text[:256].reshape(4, 64), text[1:257].reshape(4, 64)

    def losses(enabled: bool) -> list[float]:
        sg.manual_seed(0)
        model = sg.models.build("tiny")
        optimizer = sg.optim.AdamW(model.parameters(), lr=2e-3)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            with sg.autocast("cpu", enabled=enabled):
                _, loss = model(x, y)
            loss.backward()
            assert all(p.grad.dtype == p.dtype == FLOAT for p in model.parameters())
            optimizer.step()
            found.append(loss.item())
        return found

    exact, mixed = losses(False), losses(True)
    assert exact != mixed
    assert exact[-1] < 0.8 * exact[0]
    np.testing.assert_allclose(mixed, exact, rtol=0.01)


def test_recurrent_layers_and_attention_run_in_mixed_precision():
    x = numbers(2, 3, 4)
    with sg.autocast("cpu"):
        for layer in (sg.nn.RNN(4, 4), sg.nn.LSTM(4, 4), sg.nn.GRU(4, 4)):
            layer(x)[0].to(FLOAT).sum().backward()
            assert all(p.grad.dtype == FLOAT for p in layer.parameters())
        assert sg.nn.MultiheadAttention(4, 2)(x, x, x)[0].dtype == HALF


@pytest.mark.parametrize("dtype", [sg.float32, sg.float64, sg.int32], ids=str)
def test_a_dtype_that_is_not_half_precision_warns_and_does_nothing(dtype):
    with pytest.warns(UserWarning, match=rf"dtype={dtype}.*Disabling"), sg.autocast("cpu", dtype=dtype):
        assert not sg.is_autocast_enabled("cpu")


def test_cuda_warns_and_does_nothing_as_in_pytorch_without_it():
    with pytest.warns(UserWarning, match="cuda"), sg.autocast("cuda"):
        assert not sg.is_autocast_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sg.autocast("cuda", enabled=False)


@pytest.mark.parametrize("device", ["gpu", 3, None])
def test_another_device_is_refused(device):
    with pytest.raises(sg.errors.ArgumentError, match="device_type"):
        sg.autocast(device)


@pytest.mark.parametrize("cast_inputs", [None, sg.float32], ids=str)
def test_custom_functions_go_backward_in_the_mode_of_their_forward(cast_inputs):
    seen = []

    class Product(sg.autograd.Function):
        @staticmethod
        @sg.amp.custom_fwd(device_type="cpu", cast_inputs=cast_inputs)
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            seen.append((a @ b).dtype)
            return a @ b

        @staticmethod
        @sg.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            seen.append((g @ b.t()).dtype)
            return g @ b.t(), a.t() @ g

    a, b = numbers(3, 3, requires_grad=True), numbers(3, 3, requires_grad=True)
    with sg.autocast("cpu"):
        loss = Product.apply(a, b).to(FLOAT).sum()
    loss.backward()
    dtype = HALF if cast_inputs is None else FLOAT
    assert seen == [dtype, dtype]
    assert a.grad.dtype == b.grad.dtype == FLOAT


def test_amp_says_where_there_is_something_to_gain_and_refuses_other_devices():
    assert sg.amp.is_autocast_available("cpu")
    assert not sg.amp.is_autocast_available("cuda")
    for decorator in (sg.amp.custom_fwd, sg.amp.custom_bwd):
        with pytest.raises(sg.errors.ArgumentError, match="tpu"):
            decorator(device_type="tpu")
