"""Sparse matrices in coordinate form: products with dense ones, their gradients, and a layer of a graph network."""

import importlib

import numpy as np


def _tensor(torch, *shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).uniform(0.2, 1.8, shape)).requires_grad_()


def _matrix(torch):
    """Return a 2 × 3 matrix in which one position is there twice, and its values."""
    values = _tensor(torch, 4)
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 1, 0], [2, 0, 0, 1]]), values, (2, 3)), values


def making_and_reading(torch, note):
    sparse, _ = _matrix(torch)
    note("shape", list(sparse.shape), list(sparse.size()), sparse.size(1), sparse.dim(), sparse.numel(), sparse._nnz())
    note("raw", sparse._indices(), sparse._values(), sparse.is_coalesced(), sparse.is_sparse, sparse.requires_grad)
    ordered = sparse.coalesce()
    note("ordered", ordered.indices(), ordered.values().detach(), ordered.is_coalesced(), ordered._nnz())
    note("dense", sparse.to_dense().detach(), torch.ones(2).is_sparse, torch.ones(2).to_dense())
    note("inferred", list(torch.sparse_coo_tensor([[0, 1], [3, 0]], [1.0, 2.0]).shape))
    note("dtype", torch.sparse_coo_tensor([[0, 1], [3, 0]], [1, 2], dtype=torch.float64).dtype)
    module = importlib.import_module(f"{torch.__name__}.sparse")
    older = module.FloatTensor(torch.tensor([[0, 1], [3, 0]]), torch.tensor([1.0, 2.0]), torch.Size([2, 4]))
    note("older", older.dtype, older.to_dense())
    found = torch.tensor([[0.0, 2.0], [3.0, 0.0]]).to_sparse()
    note("of dense", found.indices(), found.values(), found.is_coalesced(), list(found.shape))
    note("three", torch.sparse_coo_tensor([[0, 1], [1, 0], [2, 2]], [1.0, 2.0], (2, 2, 3)).to_dense())
    note("others", sparse.double().dtype, sparse.float().dtype, sparse.detach().requires_grad, sparse.to("cpu").dtype)


def arithmetic(torch, note):
    sparse, values = _matrix(torch)
    for name, made in {
        "t": sparse.t(), "transposed": sparse.transpose(0, 1), "times": sparse * 2, "swapped": 2 * sparse,
        "over": sparse / 4, "scaled by": sparse * torch.tensor(3.0), "negative": -sparse,
    }.items():  # fmt: skip
        dense = made.to_dense()
        note(name, dense.detach(), torch.autograd.grad((dense * dense).sum(), values, retain_graph=True))


def sums(torch, note):
    sparse, values = _matrix(torch)
    dense = _tensor(torch, 2, 3, seed=1)
    for name, result in {
        "dense and sparse": dense + sparse,
        "numbers of another dtype": torch.eye(2, 3) + sparse.detach().to(torch.int64),
        "two sparse": (sparse + sparse * 2).to_dense(), "difference": (sparse - sparse * 3).to_dense(),
    }.items():  # fmt: skip
        grads = torch.autograd.grad((result * result).sum(), values, retain_graph=True) if result.requires_grad else 0
        note(name, result.detach(), grads)


def products(torch, note):
    module = importlib.import_module(f"{torch.__name__}.sparse")
    for name, product in {
        "spmm": torch.spmm, "sparse.mm": module.mm, "mm": torch.mm, "matmul": torch.matmul, "@": lambda a, b: a @ b,
        "transposed": lambda a, b: a.t() @ b[:2], "scaled": lambda a, b: (a * 2) @ b,
        "ordered": lambda a, b: a.coalesce() @ b,
    }.items():  # fmt: skip
        sparse, values = _matrix(torch)
        dense = _tensor(torch, 3, 4, seed=1)
        result = product(sparse, dense)
        note(name, result.detach(), torch.autograd.grad((result * result).sum(), [values, dense]))
    sparse, values = _matrix(torch)
    for name, product in {"from the right": lambda a, b: b @ a, "dense first": lambda a, b: torch.mm(b, a)}.items():
        dense = _tensor(torch, 4, 2, seed=1)
        result = product(sparse, dense)
        note(name, result.detach(), torch.autograd.grad((result * result).sum(), [values, dense], retain_graph=True))
    vector = _tensor(torch, 3, seed=1)
    note("vector", (sparse @ vector).detach(), torch.autograd.grad((sparse @ vector).sum(), vector))


def a_graph_network_trains(torch, note):
    edges = torch.tensor([[0, 1, 1, 2, 3, 3], [1, 0, 2, 1, 0, 3]])
    adjacency = torch.sparse_coo_tensor(edges, torch.full((6,), 0.5), (4, 4)).double()
    x, first, second = (_tensor(torch, *shape, seed=i) for i, shape in enumerate(((4, 5), (5, 3), (3, 2))))
    for _ in range(3):
        hidden = torch.relu(torch.spmm(adjacency, x @ first))
        loss = (torch.spmm(adjacency, hidden @ second) ** 2).mean()
        grads = torch.autograd.grad(loss, [first, second])
        note("step", loss.detach(), grads)
        with torch.no_grad():
            first -= 0.1 * grads[0]
            second -= 0.1 * grads[1]


def what_is_refused(torch, note):
    sparse, _ = _matrix(torch)
    note.error("indices", lambda: sparse.indices(), "on an uncoalesced tensor, please call .coalesce() first")
    note.error("count", lambda: torch.sparse_coo_tensor([[0, 1], [0, 0]], [1.0], (2, 3)))
    note.error("inner", lambda: sparse @ torch.ones(4, 2).double())
    note.error("dtype", lambda: torch.spmm(sparse, torch.ones(3, 2)))
