"""Loss modules: each is the function of its name with its options; the functions are in tests/ops."""

import numpy as np
import pytest

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, DimensionError, ShapeError
from spillgrad.nn import functional as F

RNG = np.random.default_rng(1)
X, Y, Z = (sg.tensor(RNG.normal(size=(3, 4)).astype(np.float32)) for _ in range(3))
P, Q = (sg.tensor(RNG.uniform(0.1, 0.9, (3, 4)).astype(np.float32)) for _ in range(2))
CLASSES, SIGNS, W = sg.tensor([1, 0, 3]), sg.tensor(np.sign(Z.numpy())), sg.tensor([1.0, 2.0, 3.0, 4.0])
SUM = {"reduction": "sum"}

LOSSES = [
    (nn.BCELoss(W), F.binary_cross_entropy, {"weight": W}, (P, Q)),
    (nn.BCEWithLogitsLoss(pos_weight=W), F.binary_cross_entropy_with_logits, {"pos_weight": W}, (X, Q)),
    (nn.CosineEmbeddingLoss(0.1), F.cosine_embedding_loss, {"margin": 0.1}, (X, Y, SIGNS[:, 0])),
    (nn.CrossEntropyLoss(W, 0, "sum", 0.1), F.cross_entropy,
     {"weight": W, "ignore_index": 0, "label_smoothing": 0.1, **SUM}, (X, CLASSES)),
    (nn.GaussianNLLLoss(full=True, **SUM), F.gaussian_nll_loss, {"full": True, **SUM}, (X, Y, P)),
    (nn.HingeEmbeddingLoss(2.0), F.hinge_embedding_loss, {"margin": 2.0}, (X, SIGNS)),
    (nn.HuberLoss(delta=0.5), F.huber_loss, {"delta": 0.5}, (X, Y)),
    (nn.KLDivLoss("batchmean", log_target=True), F.kl_div, {"reduction": "batchmean", "log_target": True}, (X, Y)),
    (nn.L1Loss("none"), F.l1_loss, {"reduction": "none"}, (X, Y)),
    (nn.MSELoss("sum"), F.mse_loss, SUM, (X, Y)),
    (nn.MarginRankingLoss(0.2), F.margin_ranking_loss, {"margin": 0.2}, (X, Y, SIGNS)),
    (nn.MultiLabelMarginLoss("sum"), F.multilabel_margin_loss, SUM, (X, sg.tensor([[1, -1, 0, 0]] * 3))),
    (nn.MultiLabelSoftMarginLoss(W), F.multilabel_soft_margin_loss, {"weight": W}, (X, Q)),
    (nn.MultiMarginLoss(2, 0.5, W), F.multi_margin_loss, {"p": 2, "margin": 0.5, "weight": W}, (X, CLASSES)),
    (nn.NLLLoss(W, 3), F.nll_loss, {"weight": W, "ignore_index": 3}, (X, CLASSES)),
    (nn.PoissonNLLLoss(False, True), F.poisson_nll_loss, {"log_input": False, "full": True}, (P, Q)),
    (nn.SmoothL1Loss(beta=0.5), F.smooth_l1_loss, {"beta": 0.5}, (X, Y)),
    (nn.SoftMarginLoss(), F.soft_margin_loss, {}, (X, SIGNS)),
    (nn.TripletMarginLoss(2.0, 1.0, swap=True), F.triplet_margin_loss,
     {"margin": 2.0, "p": 1.0, "swap": True}, (X, Y, Z)),
    (nn.TripletMarginWithDistanceLoss(distance_function=F.cosine_similarity),
     F.triplet_margin_with_distance_loss, {"distance_function": F.cosine_similarity}, (X, Y, Z)),
]  # fmt: skip


@pytest.mark.parametrize(("module", "function", "options", "tensors"), LOSSES, ids=[repr(m) for m, *_ in LOSSES])
def test_a_loss_module_is_the_function_of_its_name(module, function, options, tensors):
    assert repr(module) == f"{type(module).__name__}()"
    np.testing.assert_array_equal(module(*tensors).numpy(), function(*tensors, **options).numpy())


def test_weights_are_buffers():
    assert sorted(nn.BCEWithLogitsLoss(W, pos_weight=W).state_dict()) == ["pos_weight", "weight"]
    assert nn.NLLLoss().state_dict() == {}
    module = nn.CrossEntropyLoss(W).double()
    assert module.weight.dtype == sg.float64
    assert module(X.double(), CLASSES).dtype == sg.float64


def test_probabilities_of_0_and_1_have_finite_losses_and_slopes_as_in_pytorch():
    x = sg.tensor([0.0, 1.0, 0.0, 1.0], dtype="float64", requires_grad=True)
    losses = F.binary_cross_entropy(x, sg.tensor([0.0, 1.0, 1.0, 0.0], dtype="float64"), reduction="none")
    assert losses.tolist() == [0, 0, 100, 100]
    losses.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0, 0, -1e12, 1e12])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: F.binary_cross_entropy(X, Q), ArgumentError, r"outside \[0, 1\].*binary_cross_entropy_with_logits"),
        (lambda: F.binary_cross_entropy(P, Q[0]), ShapeError, r"got input \(3, 4\) and target \(4,\)"),
        (lambda: F.gaussian_nll_loss(X, Y, -P), ArgumentError, "got a negative variance"),
        (lambda: F.gaussian_nll_loss(X, Y, P[:, :2]), ShapeError, r"and var \(3, 2\)"),
        (lambda: F.gaussian_nll_loss(X, Y, P, eps=0.0), ArgumentError, "got eps=0.0"),
        (lambda: F.cosine_embedding_loss(X, Y, SIGNS), ShapeError, "cosine_embedding_loss: got inputs"),
        (lambda: F.triplet_margin_loss(X, Y, Z, margin=0.0), ArgumentError, "got margin=0.0"),
        (lambda: F.multi_margin_loss(X, CLASSES, p=3), ArgumentError, "got p=3"),
        (lambda: F.multi_margin_loss(X, CLASSES + 1), DimensionError, "multi_margin_loss: got index 4"),
        (lambda: F.multilabel_margin_loss(X, CLASSES), ShapeError, "multilabel_margin_loss: got input"),
        (lambda: F.multilabel_margin_loss(X, sg.full((3, 4), 9)), DimensionError, "got a class outside 0 to 3"),
        (lambda: F.kl_div(X, P, reduction="all"), ArgumentError, "kl_div: got reduction='all'"),
    ],
)
def test_errors_say_what_was_given_and_what_is_wanted(call, error, message):
    with pytest.raises(error, match=message):
        call()
