"""Kernels by their address: one caller reaches whichever it is told of, for good."""

import gc

import numpy as np

from spillgrad_kernels.cpu.pointers import array_at
from spillgrad_kernels.jit.by_address import call, code_address, integers
from spillgrad_kernels.jit.compile import jit
from spillgrad_kernels.layout import address_of

_LIKE = np.zeros(1, np.int64)


@jit
def _call_with(code, target, value):
    call(code, (target, value))


def _made(function):
    return code_address(jit(function, name=f"test_by_address.{function.__name__}", by_address=True), integers(2))


def _add(target, value):
    array_at(_LIKE, target, 1)[0] += value


def _multiply(target, value):
    array_at(_LIKE, target, 1)[0] *= value


def test_one_caller_reaches_every_kernel():
    out = np.array([5])
    for code, value, wanted in ((_made(_add), 2, 7), (_made(_multiply), 3, 21), (_made(_add), -1, 20)):
        _call_with(code, address_of(out), value)
        assert out[0] == wanted


def test_what_is_at_an_address_outlives_its_kernel():
    code, out = _made(_multiply), np.array([5])
    gc.collect()
    others = [_made(_add) for _ in range(3)]
    _call_with(code, address_of(out), 4)
    assert out[0] == 20
    assert code not in others
