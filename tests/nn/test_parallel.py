"""Wrappers for several processes and devices give, with one, what their module gives."""

import pytest

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad import nn
from spillgrad.errors import DeviceError, DistributedError
from spillgrad.nn.parallel import DistributedDataParallel


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", [nn.DataParallel, DistributedDataParallel])
def test_a_wrapped_module_gives_its_results_gradients_and_prefixed_names(group, wrap):
    module, x = nn.Linear(3, 2), sg.arange(12.0).reshape(4, 3)
    wrapped = wrap(module)
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    assert sg.equal(wrapped(x), module(x))
    wrapped(x).sum().backward()
    assert sg.equal(module.weight.grad, x.sum(0).expand(2, 3))
    assert wrapped.module is module


def test_no_sync_tells_that_gradients_would_not_be_reduced(group):
    wrapped = DistributedDataParallel(nn.Linear(3, 2), device_ids=[0], find_unused_parameters=True)
    assert wrapped.require_backward_grad_sync
    with wrapped.no_sync():
        assert not wrapped.require_backward_grad_sync
    assert wrapped.require_backward_grad_sync


def test_a_wrapper_needs_a_group_parameters_and_the_first_device():
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        DistributedDataParallel(nn.Linear(3, 2))
    dist.init_process_group("gloo", rank=0, world_size=1)
    try:
        with pytest.raises(DistributedError, match="doesn't have any parameter that requires a gradient"):
            DistributedDataParallel(nn.ReLU())
        with pytest.raises(DeviceError, match="of several GPUs the first is used"):
            DistributedDataParallel(nn.Linear(3, 2), device_ids=[1])
    finally:
        dist.destroy_process_group()


def test_the_prefix_of_a_wrapper_is_taken_off():
    state = nn.DataParallel(nn.Linear(3, 2)).state_dict()
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert list(state) == ["weight", "bias"]
