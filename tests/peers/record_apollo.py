"""Write down where the package ``apollo-torch`` takes parameters: `python -m tests.peers.record_apollo`.

Its license forbids commercial use, so no environment of this project installs it. Its projections are written down,
too, because PyTorch draws other numbers than spillgrad. This module must run without spillgrad.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

RECORD = Path(__file__).parent / "records" / "apollo.json"
STEPS = 20
SHAPES = [(6, 4), (4, 6), (5, 5), (7,), (2, 3, 2)]
_CHANNELS = {"rank": 3, "scale": 1.0, "scale_type": "channel", "update_proj_gap": 200}
# Options of the optimizer, and of the group of matrices.
CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, _CHANNELS),
    ({"lr": 0.01}, {"rank": 1, "scale": 128.0, "scale_type": "tensor", "update_proj_gap": 200}),
    (
        {"lr": 0.02, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1, "correct_bias": False},
        {**_CHANNELS, "scale": 2.0},
    ),
    ({"lr": 0.01, "scale_front": True}, {**_CHANNELS, "scale": 4.0}),
    ({"lr": 0.01, "disable_nl": True}, _CHANNELS),
    ({"lr": 0.01}, {**_CHANNELS, "update_proj_gap": 7}),
]  # fmt: skip


def starts_and_gradients() -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Return the first values of parameters of all shapes, and their gradients of each step; one step's are large."""
    random = np.random.default_rng(0)
    starts = [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]
    scales = [10.0 if step == 9 else 1.0 for step in range(STEPS)]
    return starts, [
        [(scale * random.standard_normal(shape)).astype(np.float32) for shape in SHAPES] for scale in scales
    ]


def groups(params: list[Any], of_matrices: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the groups of an optimizer: matrices, then all else."""
    matrices = [param for param in params if param.ndim == 2]
    others = [param for param in params if param.ndim != 2]
    return [{"params": matrices, **of_matrices, "proj": "random", "proj_type": "std"}, {"params": others}]


def main() -> None:
    """Write the record."""
    import torch
    from apollo_torch import APOLLOAdamW

    torch.set_num_threads(1)
    starts, gradients = starts_and_gradients()
    record = []
    for options, of_matrices in CASES:
        params = [torch.nn.Parameter(torch.tensor(start)) for start in starts]
        optimizer = APOLLOAdamW(groups(params, of_matrices), **options)
        drawn: dict[str, Any] = {}
        for step, of_step in enumerate(gradients):
            for param, gradient in zip(params, of_step, strict=True):
                param.grad = torch.tensor(gradient)
            optimizer.step()
            for number, param in enumerate(params[:3], 1):
                matrix = optimizer.state[param]["projector"].ortho_matrix.numpy()
                is_tall = param.shape[0] >= param.shape[1]
                drawn[f"{number} {step // of_matrices['update_proj_gap']}"] = (matrix if is_tall else matrix.T).tolist()
        record.append({"projections": drawn, "ends": [param.detach().numpy().tolist() for param in params]})
    RECORD.write_text(json.dumps(record))


if __name__ == "__main__":
    main()
