"""State in fewer bits: codes against the nearest shares in NumPy, and updates against those of decoded state."""

import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding
import ml_dtypes
import numpy as np
import pytest

from spillgrad_kernels.cpu import optim, state_codes
from spillgrad_kernels.cpu.state_vectors import has_vectors
from spillgrad_kernels.jit.compile import DISABLE_JIT
from spillgrad_kernels.tables import optim as tables
from spillgrad_kernels.tables.state_codes import BLOCK, SIGNED, UNSIGNED, Encoded

SHARES = {"signed": SIGNED, "unsigned": UNSIGNED}
SIZES = [(), (1,), (255,), (256,), (257,), (3, 1000), (9000,)]


def draw(shape, seed, kind="signed"):
    """Numbers of very different sizes."""
    generator = np.random.default_rng(seed)
    drawn = np.asarray(generator.standard_normal(shape) * 10.0 ** generator.uniform(-9, 1, shape), np.float32)
    return drawn if kind == "signed" else np.asarray(np.abs(drawn))


def nearest(values, kind):
    """Codes and scales in NumPy."""
    flat = np.asarray(values, np.float32).reshape(-1)
    starts = range(0, flat.size, BLOCK)
    scales = np.array([np.abs(flat[at : at + BLOCK]).max() for at in starts], np.float32)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales >= np.finfo(np.float32).tiny, np.float32(1) / scales, np.float32(0))
    found = flat * np.repeat(inverse, BLOCK)[: flat.size]
    shares = SHARES[kind][SHARES[kind] >= 0]
    ranks = np.searchsorted((shares[:-1] + shares[1:]) / np.float32(2), np.abs(found), side="right")
    codes = np.where(found < 0, 127 - np.minimum(ranks, 127), ranks + 256 - shares.size)
    if kind == "unsigned":  # only 0 has the code of 0
        codes = np.where((codes == 0) & (found > 0), 1, codes)
    return codes.astype(np.uint8).reshape(np.shape(values)), scales


def in_numpy(encoded):
    kind, codes, scales = encoded
    if scales is None:
        return codes.astype(np.float32)
    return SHARES[kind][codes] * np.repeat(scales, BLOCK)[: codes.size].reshape(codes.shape)


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("shape", SIZES)
def test_codes_are_those_of_the_nearest_shares(shape, kind):
    values = draw(shape, 1, kind)
    encoded = state_codes.encode(values, kind)
    codes, scales = nearest(values, kind)
    np.testing.assert_array_equal(encoded.codes, codes)
    np.testing.assert_array_equal(encoded.scales, scales)
    np.testing.assert_array_equal(state_codes.decode(encoded), in_numpy(encoded))


@pytest.mark.parametrize("kind", SHARES)
def test_a_share_beside_a_middle_goes_to_the_nearer_side(kind):
    shares = SHARES[kind]
    middles = (shares[:-1] + shares[1:]) / np.float32(2)
    for values in (middles, np.nextafter(middles, np.float32(2)), np.nextafter(middles, np.float32(-2))):
        whole = np.append(values, np.float32(1))  # the scale is 1
        np.testing.assert_array_equal(state_codes.encode(whole, kind).codes, nearest(whole, kind)[0])


@pytest.mark.parametrize("kind", SHARES)
def test_all_shares_have_the_codes_of_the_nearest(kind):
    # Among shares with the same high 16 bits, at most one next share becomes nearer, and codes never fall with size. So
    # the first and the last of them, and both sides of each middle, stand for all.
    starts = np.arange(1 << 16, dtype=np.uint32) << 16
    middles = ((SHARES[kind][:-1] + SHARES[kind][1:]) / np.float32(2)).view(np.uint32)
    shares = np.concatenate([starts, starts | 0xFFFF, middles - 1, middles]).view(np.float32)
    shares = shares[abs(shares) <= 1]
    shares = np.resize(shares, (-(-shares.size // (BLOCK - 1)), BLOCK - 1))
    values = np.concatenate([shares, np.ones((len(shares), 1), np.float32)], 1)  # all scales are 1
    codes, scales = nearest(values, kind)
    if kind == "unsigned":
        codes[values < 0] = 0
    encoded = state_codes.encode(values, kind)
    np.testing.assert_array_equal(encoded.codes, codes)
    np.testing.assert_array_equal(encoded.scales, scales)


@pytest.mark.parametrize("kind", SHARES)
def test_every_code_is_encoded_again_as_it_was(kind):
    codes = np.arange(256, dtype=np.uint8)
    for scale in (1.0, 3.7e-12, 5e30):
        encoded = Encoded(kind, codes, np.array([scale], np.float32))
        again = state_codes.encode(state_codes.decode(encoded), kind)
        np.testing.assert_array_equal(again.codes, codes)
        np.testing.assert_array_equal(again.scales, encoded.scales)


@pytest.mark.parametrize("kind", SHARES)
def test_decoded_numbers_get_their_codes_and_scales_again(kind):
    values = draw((3000 * BLOCK + 17,), 5, kind) * np.repeat(np.logspace(-30, 30, 3001), BLOCK)[: 3000 * BLOCK + 17]
    encoded = state_codes.encode(values.astype(np.float32), kind)
    decoded = state_codes.decode(encoded)
    again = state_codes.encode(decoded, kind, recovers_scales=True)
    np.testing.assert_array_equal(again.codes, encoded.codes)
    np.testing.assert_array_equal(again.scales, encoded.scales)


@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_leaves_no_finite_one_in_its_block(kind, value):
    values = np.abs(draw((3 * BLOCK,), 2))
    values[BLOCK + 7] = value
    decoded = state_codes.decode(state_codes.encode(values, kind))
    assert not np.isfinite(decoded[BLOCK : 2 * BLOCK]).any()
    assert np.isfinite(decoded[:BLOCK]).all()
    assert np.isfinite(decoded[2 * BLOCK :]).all()


@pytest.mark.parametrize("kind", SHARES)
def test_blocks_of_zeros_and_of_subnormal_numbers_become_zeros(kind):
    values = np.concatenate([np.zeros(BLOCK), np.full(BLOCK, 1e-40)]).astype(np.float32)
    np.testing.assert_array_equal(state_codes.decode(state_codes.encode(values, kind)), 0)


def test_bfloat16_is_rounded_to_the_nearest():
    values = np.append(draw((5000,), 3), np.array([np.nan, np.inf, -np.inf, 0.0], np.float32))
    encoded = state_codes.encode(values, "nearest")
    np.testing.assert_array_equal(encoded.codes.view(np.uint16), values.astype(ml_dtypes.bfloat16).view(np.uint16))
    np.testing.assert_array_equal(state_codes.decode(encoded), values.astype(ml_dtypes.bfloat16).astype(np.float32))


def made(values, kind):
    return values.copy() if kind is None else state_codes.encode(values, kind)


def array_of(state):
    return in_numpy(state) if isinstance(state, Encoded) else state


UPDATES = {
    "adamw": (tables.adamw, ("signed", "unsigned"), (1e-2, 0.9, 0.999, 1e-8, 0.1, 3)),
    "adam": (tables.adam, ("signed", "unsigned"), (1e-2, 0.9, 0.999, 1e-8, 0.1, 3)),
    "amsgrad": (tables.amsgrad, ("signed", "unsigned", "unsigned"), (1e-2, 0.9, 0.999, 1e-8, 0.1, True, 3)),
    "lion": (tables.lion, ("signed",), (1e-3, 0.9, 0.99, 0.1)),
    "sgd": (tables.sgd, ("signed",), (1e-2, 0.9, 0.0, 0.1, True, False)),
}
IN_BF16 = {"signed": "nearest", "unsigned": "random"}


@pytest.mark.parametrize("bits", ["int8", "bf16"])
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("shape", SIZES)
def test_an_update_decodes_applies_the_formula_and_encodes(shape, name, bits):
    make, kinds, numbers = UPDATES[name]
    param, grad = draw(shape, 4), draw(shape, 5)
    states = [
        state_codes.encode(draw(shape, 6 + i, kind), kind if bits == "int8" else IN_BF16[kind])
        for i, kind in enumerate(kinds)
    ]
    wide = [np.array(in_numpy(state), np.float32).reshape(shape) for state in states]
    expected = param.copy()
    optim.run([make(expected, grad, *wide, *numbers)])
    optim.run([make(param, grad, *states, *numbers)])
    np.testing.assert_allclose(param, expected, rtol=3e-6, atol=1e-9)
    for state, exact in zip(states, wide, strict=True):
        if state.scales is None:
            apart = np.abs(state.codes.astype(np.float32) - exact)
            assert (apart <= np.abs(exact) * 2.0**-7 * (1 + 1e-5) + 1e-38).all()
        else:
            codes, scales = nearest(exact, state.kind)
            np.testing.assert_allclose(state.scales, scales, rtol=1e-6)  # the loops may fuse other products
            differ = state.codes != codes
            assert np.abs(state.codes.astype(int) - codes)[differ].max(initial=0) <= 1
            assert differ.mean() <= 0.001 if differ.size > 5000 else differ.sum() <= 1


def test_a_second_moment_in_bfloat16_falls_though_a_step_takes_less_than_a_place():
    count = 20_000
    param, zeros = draw((count,), 8), np.zeros(count, np.float32)
    second = state_codes.encode(np.ones(count, np.float32), "random")
    first = state_codes.encode(np.full(count, 1e-3, np.float32), "nearest")
    for step in range(1, 201):
        optim.run([tables.adamw(param, zeros, first, second, 1e-3, 0.9, 0.999, 1e-8, 0.0, step)])
        first.codes[...] = 1e-3  # so that parameters go on moving
    assert abs(second.codes.astype(np.float64).mean() / 0.999**200 - 1) < 0.01


def test_updates_of_parts_that_begin_at_chunks_give_the_bits_of_the_whole():
    size = 3 * optim.CHUNK + 300
    make, kinds, numbers = UPDATES["adamw"]
    whole, parts = (
        (draw((size,), 9), [state_codes.encode(draw((size,), 10, kind), kind) for kind in kinds]) for _ in range(2)
    )
    grad = draw((size,), 11)
    optim.run([make(whole[0], grad, *whole[1], *numbers)])
    for at in range(0, size, optim.CHUNK):
        some = slice(at, at + optim.CHUNK)
        blocks = slice(at // BLOCK, (at + optim.CHUNK) // BLOCK)
        states = [Encoded(state.kind, state.codes[some], state.scales[blocks]) for state in parts[1]]
        optim.run([make(parts[0][some], grad[some], *states, *numbers)])
    np.testing.assert_array_equal(whole[0], parts[0])
    for one, other in zip(whole[1], parts[1], strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)
        np.testing.assert_array_equal(one.scales, other.scales)


@pytest.mark.parametrize("name", UPDATES)
def test_an_element_does_not_depend_on_how_many_follow(name):
    # Whole runs, whole blocks and what is left take other instructions.
    make, kinds, numbers = UPDATES[name]
    size = 2 * BLOCK

    def updated(count, total):
        """The results of `count` elements, and of zeros up to `total`."""
        param, grad = (np.append(draw((size,), seed)[:count], np.zeros(total - count, np.float32)) for seed in (12, 13))
        states = [
            state_codes.encode(np.append(draw((size,), 14, kind)[:count], np.zeros(total - count, np.float32)), kind)
            for kind in kinds
        ]
        optim.run([make(param, grad, *states, *numbers)])
        return [param[:count], *[array[:count] for state in states for array in (state.codes, state.scales)]]

    for count in (1, 63, 64, 65, 191, 255, 256, 257, 320, 383, 511):
        for alone, followed in zip(updated(count, count), updated(count, size), strict=True):
            np.testing.assert_array_equal(alone, followed[: alone.size])


CODES_AND_UPDATES = """
import hashlib, sys
sys.path.insert(0, {folder!r})
import numpy as np
import test_state_codes as tests
from spillgrad_kernels.cpu import state_codes
from spillgrad_kernels.cpu.state_vectors import has_vectors

print(has_vectors())
for kind in tests.SHARES:
    encoded = state_codes.encode(tests.draw((1_000_003,), 3, kind), kind)
    for array in (encoded.codes, encoded.scales, state_codes.decode(encoded)):
        print(hashlib.sha256(array.tobytes()).hexdigest())
for name in tests.UPDATES:
    tests.test_an_update_decodes_applies_the_formula_and_encodes((9000,), name, "int8")
    tests.test_an_element_does_not_depend_on_how_many_follow(name)
"""


@pytest.mark.skipif(DISABLE_JIT or not has_vectors(), reason="this processor does not look bytes up in registers")
@pytest.mark.parametrize(
    "variables",
    [
        {"NUMBA_CPU_FEATURES": f"{llvmlite.binding.get_host_cpu_features().flatten()},-avx512vbmi"},
        {"NUMBA_CPU_NAME": "generic"},
        {"NUMBA_ENABLE_AVX": "0"},
    ],
    ids=lambda variables: "".join(variables),
)
def test_a_processor_that_looks_no_bytes_up_gets_the_same_codes_and_numbers(variables):
    script = CODES_AND_UPDATES.format(folder=str(Path(__file__).parent))
    found = []
    for chosen in ({}, {"NUMBA_CPU_NAME": llvmlite.binding.get_host_cpu_name()} | variables):
        environment = {**os.environ, **chosen, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", script]
        ran = subprocess.run(command, env=environment, check=True, timeout=600, capture_output=True, text=True)
        found.append(ran.stdout.split())
    assert [has for has, *_ in found] == ["True", "False"]
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize(
    ("param", "state", "message"),
    [
        (np.ones(300, np.float64), ("signed", np.zeros(300, np.uint8), np.zeros(2, np.float32)), "float64"),
        (np.ones(300, np.float32), ("signed", np.zeros(299, np.uint8), np.zeros(2, np.float32)), r"shape \(299,\)"),
        (np.ones(300, np.float32), ("signed", np.zeros(300, np.uint8), np.zeros(1, np.float32)), r"scales \(1,\)"),
        (np.ones(300, np.float32), ("signed", np.zeros(300, np.uint8), None), "scales None"),
        (np.ones(300, np.float32), ("nearest", np.zeros(300, np.uint8), None), "wanted bfloat16"),
        (np.ones(300, np.float32), ("signed", np.zeros(300, np.uint8), np.zeros(2)), r"scales \(2,\) of float64"),
        (np.ones(300, np.float32), ("signed", np.zeros(600, np.uint8)[::2], np.zeros(2, np.float32)), "contiguous"),
    ],
)
def test_encoded_state_that_does_not_fit_is_refused(param, state, message):
    with pytest.raises(ValueError, match=rf"lion: got .*{message}"):
        tables.lion(param, param.copy(), Encoded(*state), 1e-3, 0.9, 0.99, 0.0)
