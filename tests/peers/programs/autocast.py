"""Mixed precision: the dtypes of results and gradients, and where the mode applies."""

import warnings

import numpy as np

_ROWS = """
F.linear(x, y)  F.linear(x, y, v)  torch.matmul(x, q)  x @ q  torch.mm(x, q)  torch.bmm(a, a)  torch.matmul(x, v)
torch.addmm(x, x, q)  torch.baddbmm(a, a, a)  torch.addbmm(q, a, a)  torch.einsum('ij,jk->ik', x, q)
torch.tensordot(x, q, 1)  torch.mv(x, v)  torch.dot(v, v)  torch.outer(v, v)  torch.inner(x, x)
F.scaled_dot_product_attention(a, a, a)  F.conv1d(a, a)  F.conv2d(img, img)  F.conv_transpose2d(img, img)
F.softmax(x, -1)  F.log_softmax(x, -1)  F.layer_norm(x, (3,))  F.gelu(x)  torch.exp(x)  x.sum()  x.mean()  x * v
torch.norm(x)  torch.cumsum(x, 0)  torch.prod(x)  torch.trace(q)  torch.cdist(x, x)  torch.quantile(x, 0.5)
torch.linalg.inv(q)  torch.linalg.qr(q)[0]  torch.linalg.matrix_power(q, 2)  torch.linalg.cond(q)
F.mse_loss(x, x)  F.l1_loss(x, x)  F.smooth_l1_loss(x, x)  F.huber_loss(x, x)  F.kl_div(x, x)
F.binary_cross_entropy_with_logits(x, x)  F.cross_entropy(x, i)  F.nll_loss(x, i)  F.multi_margin_loss(x, i)
torch.cat([x, x])  F.dropout(x, 0.0)  F.avg_pool2d(img, 2)  F.interpolate(img, scale_factor=2)
"""


def _inputs(torch, dtype):
    drawn = np.random.default_rng(0)
    shapes = {"x": (2, 3), "y": (4, 3), "v": (3,), "q": (3, 3), "a": (2, 3, 3), "img": (2, 2, 4, 4)}
    made = {name: torch.tensor(drawn.uniform(0.2, 1.8, shape), dtype=dtype) for name, shape in shapes.items()}
    made["v4"] = torch.tensor(drawn.uniform(0.2, 1.8, (4,)), dtype=dtype)
    return {**made, "torch": torch, "F": torch.nn.functional, "i": torch.tensor([0, 2])}


def _dtype(tensor):
    return str(tensor.dtype).replace("torch.", "")


def the_dtype_of_each_operation(torch, note):
    rows = [row.strip() for line in _ROWS.strip().splitlines() for row in line.split("  ")]
    for row in [row.replace("F.linear(x, y, v)", "F.linear(x, y, v4)") for row in rows]:
        found = []
        for dtype in (torch.float32, torch.bfloat16):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found.append(_dtype(eval(row, _inputs(torch, dtype))))
        note(row, found)


def regions_nest_and_decorate(torch, note):
    x = torch.ones(2, 2)

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def product():
        return _dtype(x @ x)

    note("outside", torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu")).replace("torch.", ""))
    note("cache", torch.is_autocast_cache_enabled())
    with torch.autocast("cpu", cache_enabled=False):
        note("inside", torch.is_autocast_enabled("cpu"), _dtype(x @ x), torch.is_autocast_cache_enabled())
        with torch.autocast("cpu", enabled=False):
            note("disabled", torch.is_autocast_enabled("cpu"), _dtype(x @ x))
        with torch.autocast("cpu", dtype=torch.float16):
            note("another", _dtype(x @ x), str(torch.get_autocast_dtype("cpu")).replace("torch.", ""))
        torch.clear_autocast_cache()
        note("again", _dtype(x @ x))
    note("decorated", product(), _dtype(x @ x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("cpu", dtype=torch.float64):
            note("float64", torch.is_autocast_enabled("cpu"), len(caught) > 0)


def gradients_have_the_parameters_dtype(torch, note):
    w = torch.ones(3, 3, requires_grad=True)
    x = torch.tensor(np.arange(6.0).reshape(2, 3) / 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            note("without", (x @ w).requires_grad)
        y = torch.tanh(x @ w) @ w
        loss = torch.nn.functional.mse_loss(y, x)
    note("results", _dtype(y), _dtype(loss))
    loss.backward()
    note("gradient", _dtype(w.grad))


def mixed_dtypes_meet(torch, note):
    x, w = torch.ones(2, 3), torch.ones(3, 3)
    half = x.to(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        note(
            "products", _dtype(half @ w), _dtype(x @ w.to(torch.bfloat16)), _dtype(torch.nn.functional.linear(half, w))
        )
        note("losses", _dtype(torch.nn.functional.mse_loss(half, x)))
        note("normalization", _dtype(torch.nn.functional.layer_norm(half, (3,), w[0], w[0])))
        note("float64", _dtype(x.to(torch.float64) @ w.to(torch.float64)))
