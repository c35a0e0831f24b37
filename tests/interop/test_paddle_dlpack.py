"""Paddle's CPU tensors and spillgrad's share memory by DLPack, both ways."""

import pytest

import spillgrad as sg

paddle = pytest.importorskip("paddle", reason="`make test-peers` installs Paddle")

FLOATING = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
WHOLE = ["int8", "int16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("name", FLOATING + WHOLE)
def test_memory_is_shared_both_ways(name: str):
    theirs = paddle.arange(6).reshape([2, 3]).astype(name)
    ours = sg.from_dlpack(theirs)
    assert (ours.data_ptr(), ours.shape, str(ours.dtype)) == (theirs.data_ptr(), (2, 3), name)
    ours[1, 2] = 0
    assert theirs.astype("complex128").tolist() == ours.to("complex128").tolist()

    ours = sg.arange(6).reshape(2, 3).to(name).T
    theirs = paddle.from_dlpack(ours)
    assert (theirs.data_ptr(), theirs.shape, theirs.strides) == (ours.data_ptr(), [3, 2], [1, 3])
    assert theirs.dtype == getattr(paddle, name)
    theirs[2, 1] = 0
    assert theirs.astype("complex128").tolist() == ours.to("complex128").tolist()
    assert sg.from_dlpack(theirs).data_ptr() == ours.data_ptr()


def test_memory_outlives_its_other_owner():
    ours = sg.from_dlpack(paddle.full([2], 3.0))
    assert (ours * 2).tolist() == [6, 6]
    theirs = paddle.from_dlpack(sg.full((2,), 3.0))
    assert (theirs * 2).tolist() == [6, 6]
