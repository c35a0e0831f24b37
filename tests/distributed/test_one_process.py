"""One process is a group of its own: collectives give what they are given."""

import pytest

import spillgrad as sg
import spillgrad.distributed as dist
from spillgrad.distributed import process_group
from spillgrad.distributed.process_group import ProcessGroup
from spillgrad.errors import ArgumentError, DistributedError

LAUNCHED = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group():
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_before_and_after_the_group_there_is_none():
    assert (dist.is_available(), dist.is_initialized()) == (True, False)
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.get_rank()
    dist.init_process_group("gloo", rank=0, world_size=1)
    assert dist.is_initialized()
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
    with pytest.raises(DistributedError, match="twice"):
        dist.init_process_group("gloo", rank=0, world_size=1)
    dist.destroy_process_group()
    assert not dist.is_initialized()


def test_the_environment_of_a_launcher_of_one_process_is_enough(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    dist.init_process_group("nccl")
    assert dist.get_backend() == "nccl"
    dist.destroy_process_group()


def test_processes_that_mpi_did_not_start_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(DistributedError, match=r"got 4 processes; MPI starts those: use spillgrad launch -n 4 program"):
        dist.init_process_group("mpi")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(DistributedError, match="got 2 processes"):
        dist.init_process_group("gloo", init_method="tcp://localhost:29500", rank=0, world_size=2)
    assert not dist.is_initialized()


def test_an_incomplete_environment_and_an_unknown_backend_are_refused():
    with pytest.raises(ValueError, match="environment variable RANK expected, but not set"):
        dist.init_process_group("gloo")
    with pytest.raises(ArgumentError, match="wanted one of gloo, mpi, nccl, ucc"):
        dist.init_process_group("smoke", rank=0, world_size=1)


def test_collectives_in_place_leave_the_tensor(group):
    x = sg.tensor([1.0, 2.0])
    for collective in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.reduce(t, 0, dist.ReduceOp.MAX)):
        assert collective(x) is None
        assert x.tolist() == [1, 2]
    assert dist.all_reduce(x, op=dist.ReduceOp.AVG, async_op=True).wait() is True
    dist.barrier()


@pytest.mark.parametrize(
    "copy",
    [
        lambda out, x: dist.all_gather([out], x),
        lambda out, x: dist.all_gather_into_tensor(out, x),
        lambda out, x: dist.gather(x, [out], dst=0),
        lambda out, x: dist.scatter(out, [x], src=0),
        lambda out, x: dist.reduce_scatter(out, [x]),
        lambda out, x: dist.reduce_scatter_tensor(out, x),
        lambda out, x: dist.all_to_all([out], [x]),
        lambda out, x: dist.all_to_all_single(out, x),
    ],
)
def test_collectives_into_another_tensor_copy(group, copy):
    out = sg.zeros(2, requires_grad=True)
    copy(out, sg.tensor([1.0, 2.0]))
    assert out.tolist() == [1, 2]


def test_objects_arrive(group):
    found, scattered, sent = [None], [None], ["a", {"b": 1}]
    dist.all_gather_object(found, {"loss": 1.5})
    dist.scatter_object_list(scattered, ["mine"], src=0)
    dist.broadcast_object_list(sent, src=0)
    assert (found, scattered, sent) == ([{"loss": 1.5}], ["mine"], ["a", {"b": 1}])


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dist.broadcast(x, src=1),
        lambda x: dist.all_gather([x, x], x),
        lambda x: dist.send(x, 1),
        lambda x: dist.recv(x, 1),
        lambda x: dist.new_group([0, 1]),
        lambda x: dist.gather_object(x, [None, None]),
    ],
)
def test_what_needs_another_process_is_refused(group, call):
    with pytest.raises(DistributedError):
        call(sg.ones(1))


def test_further_groups_are_of_this_process(group):
    own = dist.new_group([0])
    assert (dist.get_rank(own), dist.get_process_group_ranks(own)) == (0, [0])
    assert dist.new_group([]) is dist.GroupMember.NON_GROUP_MEMBER
    dist.destroy_process_group(own)
    assert dist.is_initialized()


class _Third(ProcessGroup):
    """A group as a launcher of four processes will make it, in its third process."""

    def rank(self):
        return 2

    def size(self):
        return 4


def indices(**options):
    return list(sg.utils.data.DistributedSampler(range(10), shuffle=False, **options))


def test_a_sampler_is_that_of_this_process_in_the_group(monkeypatch):
    assert indices() == list(range(10))
    monkeypatch.setattr(process_group._Default, "group", _Third("gloo"))
    assert indices() == [2, 6, 0]
    assert indices(rank=3) == [3, 7, 1]
    assert indices(num_replicas=3) == [2, 5, 8, 1]
    with pytest.raises(ArgumentError, match=r"Invalid rank 2, rank should be in the interval \[0, 1\]"):
        indices(num_replicas=2)
