"""Optimizer state in 8 bits beside that of bitsandbytes: the same maps, scales and numbers."""

import numpy as np
import pytest
import torch

from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.tables.state_codes import BLOCK, SIGNED, UNSIGNED

functional = pytest.importorskip("bitsandbytes.functional", reason="pip install 'spillgrad[peers]' brings it")

MAPS = {"signed": SIGNED, "unsigned": UNSIGNED}


def draw(kind: str) -> np.ndarray:
    generator = np.random.default_rng(1)
    drawn = (generator.standard_normal(40 * BLOCK) * 10.0 ** generator.uniform(-8, 1, 40 * BLOCK)).astype(np.float32)
    return drawn if kind == "signed" else np.abs(drawn)


@pytest.mark.parametrize("kind", MAPS)
def test_maps_scales_and_decoded_numbers_are_the_same_bits(kind: str):
    shares = functional.create_dynamic_map(signed=kind == "signed")
    np.testing.assert_array_equal(MAPS[kind], shares.numpy())
    encoded = state_codes.encode(draw(kind), kind)
    _, state = functional.quantize_blockwise(torch.from_numpy(draw(kind)), code=shares, blocksize=BLOCK)
    np.testing.assert_array_equal(encoded.scales, state.absmax.numpy())
    theirs = functional.dequantize_blockwise(
        torch.from_numpy(encoded.codes), absmax=state.absmax, code=shares, blocksize=BLOCK
    )
    np.testing.assert_array_equal(state_codes.decode(encoded), theirs.numpy())


@pytest.mark.parametrize("kind", MAPS)
def test_codes_are_those_of_the_nearest_share_and_beside_theirs(kind: str):
    shares = functional.create_dynamic_map(signed=kind == "signed")
    encoded = state_codes.encode(draw(kind), kind)
    blocks = torch.from_numpy(draw(kind)).reshape(-1, BLOCK)
    scaled = (blocks * (1 / blocks.abs().amax(1, keepdim=True))).reshape(-1)
    # What bitsandbytes computes where it has no loop in C, which looks shares up in steps of 2^-16 instead.
    nearest = (scaled[:, None] - shares).abs().argmin(1).numpy()
    if kind == "unsigned":  # ours has the code of 0 for 0 alone
        nearest = np.where((nearest == 0) & (scaled.numpy() > 0), 1, nearest)
    np.testing.assert_array_equal(encoded.codes, nearest)
    codes, _ = functional.quantize_blockwise(torch.from_numpy(draw(kind)), code=shares, blocksize=BLOCK)
    is_large = scaled.abs().numpy() > 2e-3
    apart = np.abs(encoded.codes.astype(int) - codes.numpy().astype(int))
    assert apart[is_large].max() <= 1
