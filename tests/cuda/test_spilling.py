"""Saved tensors of a device go to pinned memory and disk, and come back, under both budgets."""

import concurrent.futures
import gc
import resource
import signal

import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import SavedTensorError, SpillError
from spillgrad.nn import functional as F
from spillgrad.storage.disk_store import DiskStore
from tests.waiting import wait_until

WIDTH = 8  # the simulator takes milliseconds for each element of a product
LAYERS = 3
STATE_BYTES = WIDTH * WIDTH * 4


@pytest.fixture
def leaves() -> list[sg.Tensor]:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for _ in range(LAYERS)]
    return [sg.tensor(array, device="cuda", requires_grad=True) for array in arrays]


def loss_of(leaves: list[sg.Tensor]) -> sg.Tensor:
    x = sg.ones(WIDTH, WIDTH, device="cuda")
    for leaf in leaves:
        x = (x @ leaf).tanh()
        x = x.T * x.reshape(WIDTH, WIDTH)  # two views of one storage
    return (x * x).mean()


def gradients(leaves: list[sg.Tensor]) -> list[np.ndarray]:
    found = [leaf.grad.numpy(force=True) for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return found


def plain(leaves: list[sg.Tensor]) -> list[np.ndarray]:
    loss_of(leaves).backward()
    return gradients(leaves)


@pytest.mark.parametrize("ram_budget", [0, "1MiB"])
@pytest.mark.parametrize("device_budget", [0, 3 * STATE_BYTES, "1MiB"])
def test_gradients_are_the_same_under_any_budgets(leaves, tmp_path, ram_budget, device_budget):
    wanted = plain(leaves)
    with sg.save_on_disk(tmp_path, ram_budget=ram_budget, device_budget=device_budget, min_bytes=0) as spill:
        for _ in range(2):
            with spill:
                loss = loss_of(leaves)
            stats = spill.stats()
            assert stats.device_bytes <= spill._device_budget
            loss.backward()
            for found, value in zip(gradients(leaves), wanted, strict=True):
                np.testing.assert_array_equal(found, value)
            del loss
            assert spill.stats().device_bytes == 0
            assert spill.stats().live_bytes == 0
    if device_budget == 0:
        assert spill.stats().packed_bytes > LAYERS * STATE_BYTES
    if device_budget == ram_budget == 0:
        assert spill.stats().written_bytes > LAYERS * STATE_BYTES


def test_a_graph_that_is_kept_is_read_again_within_the_budget(leaves, tmp_path):
    wanted = plain(leaves)
    with sg.save_on_disk(tmp_path, ram_budget=2048, device_budget=2 * STATE_BYTES, min_bytes=0) as spill:
        loss = loss_of(leaves)
    for _ in range(3):
        loss.backward(retain_graph=True)
        for found, value in zip(gradients(leaves), wanted, strict=True):
            np.testing.assert_array_equal(found, value)
    assert spill.stats().device_bytes <= 3 * STATE_BYTES


def test_a_change_of_what_is_saved_on_the_device_is_an_error(leaves, tmp_path):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0):
        x = leaves[0] * 2
        y = x * x
    x.add_(1)
    with pytest.raises((SavedTensorError, SpillError), match="modified"):
        y.sum().backward()


def test_a_change_of_what_was_copied_from_the_device_is_none_of_the_copy(leaves, tmp_path):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget=0, min_bytes=0):
        x = leaves[0] * 2
        y = x * x
        sg.cuda.synchronize()
        further = leaves[1] * 2
        further * further  # another save notices which copies are done
    x.add_(1)
    y.sum().backward()
    np.testing.assert_array_equal(leaves[0].grad.numpy(force=True), 8 * leaves[0].numpy(force=True))


def test_what_is_saved_twice_is_stored_once(leaves, tmp_path):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0) as spill:
        x = leaves[0] * 2
        y = x * x + x.T.exp() * x
    assert spill.stats().device_bytes <= 3 * STATE_BYTES  # x, exp(x.T), and no copy of x
    y.sum().backward()
    del x, y
    assert spill.stats().device_bytes == 0


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_a_lossy_codec_never_alters_what_looks_at_floats_as_something_else(tmp_path, codec):
    values = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    x = sg.tensor(values, device="cuda")
    lossy = sg.save_on_disk(tmp_path, ram_budget=0, device_budget=0, codec=codec)
    exact = sg.save_on_disk(tmp_path, ram_budget=0, device_budget=0)
    packed = [lossy.pack_hook(tensor) for tensor in (x, x.view(sg.int32))]
    copy, bits = (lossy.unpack_hook(each) for each in packed)
    assert 0 < np.abs(copy.numpy(force=True) - values).max() < 0.02
    np.testing.assert_array_equal(bits.numpy(force=True), values.view(np.int32))
    wanted = [values, copy.numpy(force=True).copy(), values.view(np.int32)]
    kept = [exact.pack_hook(tensor) for tensor in (x, copy, bits)]
    del x, copy, bits
    for each, value in zip(kept, wanted, strict=True):
        np.testing.assert_array_equal(exact.unpack_hook(each).numpy(force=True), value)


def test_flushing_writes_what_is_on_the_device_and_leaves_it_there(leaves, tmp_path):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0) as spill:
        loss = loss_of(leaves)
    assert spill.stats().written_bytes == 0
    spill.flush()
    assert spill.stats().written_bytes >= LAYERS * STATE_BYTES
    wanted = plain(leaves)
    loss.backward()
    for found, value in zip(gradients(leaves), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


def test_a_model_of_layers_trains_the_same(tmp_path):
    def losses(device_budget: int | None) -> list[float]:
        sg.manual_seed(0)
        layers = [sg.nn.Linear(32, 32), sg.nn.GELU(), sg.nn.LayerNorm(32), sg.nn.Dropout(0.1), sg.nn.Linear(32, 8)]
        model = sg.nn.Sequential(*layers).to("cuda")
        optimizer = sg.optim.AdamW(model.parameters(), lr=1e-2)
        x, t = sg.randn(16, 32, device="cuda"), sg.randint(0, 8, (16,), device="cuda")
        found = []
        for _ in range(2):
            if device_budget is None:
                loss = F.cross_entropy(model(x), t)
            else:
                with sg.save_on_disk(tmp_path, ram_budget="8KiB", device_budget=device_budget, min_bytes=0):
                    loss = F.cross_entropy(model(x), t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(None) == losses(0) == losses(4096)


def test_a_change_of_what_was_copied_back_is_not_used_again(leaves, tmp_path):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget=0, min_bytes=0):
        loss = leaves[0].exp().sum()
    ((exp, _),) = loss.grad_fn.next_functions
    exp._saved_result.mul_(0)
    gc.collect()
    loss.backward()
    np.testing.assert_array_equal(leaves[0].grad.numpy(force=True), leaves[0].exp().numpy(force=True))


@pytest.fixture
def refusing(monkeypatch):
    """Let stores refuse arrays while the returned list is not empty."""
    because: list[str] = []
    put = DiskStore.put

    def refuse(*arguments, **options):
        if because:
            raise SpillError(because[0])
        return put(*arguments, **options)

    monkeypatch.setattr(DiskStore, "put", refuse)
    return because


def test_what_a_store_refuses_is_let_go_of(leaves, tmp_path, refusing):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget=2 * STATE_BYTES, min_bytes=0) as spill:
        refusing.append("the disk is full")
        for _ in range(3):
            with pytest.raises(SpillError, match="full"):
                loss_of(leaves)
        gc.collect()
        assert spill.stats().device_bytes == 0
        refusing.clear()
        loss = loss_of(leaves)
        assert spill.stats().device_bytes <= 2 * STATE_BYTES
    loss.backward()
    found = gradients(leaves)
    for a, b in zip(found, plain(leaves), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_could_not_be_flushed_is_flushed_later(leaves, tmp_path, refusing):
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0) as spill:
        kept = leaves[0].exp().sin().exp().sin().exp()
        refusing.append("the disk is full")
        with pytest.raises(SpillError, match="full"):
            spill.flush()
        refusing.clear()
        spill.flush()
    assert spill.stats().packed_bytes == spill.stats().device_bytes > 0
    kept.sum().backward()


def test_threads_share_a_store_and_its_budgets(tmp_path):
    spill = sg.save_on_disk(tmp_path, ram_budget=2048, device_budget=2 * STATE_BYTES, min_bytes=0)

    def loss_and_leaf(seed: int) -> tuple[sg.Tensor, sg.Tensor]:
        values = np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)).astype(np.float32)
        leaf = sg.tensor(values, device="cuda", requires_grad=True)
        x = leaf
        for _ in range(5):
            x = (x.exp() * leaf).sin()
        return x.sum(), leaf

    def gradient(seed: int) -> np.ndarray:
        with spill:
            loss, leaf = loss_and_leaf(seed)
            loss_and_leaf(seed)  # a graph that dies without backward
        loss.backward(retain_graph=True)
        loss.backward()
        return leaf.grad.numpy(force=True)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(gradient, range(6)))
    for seed, value in enumerate(found):
        loss, leaf = loss_and_leaf(seed)
        loss.backward()
        np.testing.assert_array_equal(value, 2 * leaf.grad.numpy(force=True))
    assert spill.stats().device_bytes == spill.stats().live_bytes == 0


class Compared(int):
    """A number that counts its comparisons."""

    times = 0

    def __add__(self, other: int) -> "Compared":
        return Compared(int(self) + other)

    def __lt__(self, other: int) -> bool:
        Compared.times += 1
        return int(self) < int(other)


def test_looking_for_room_behind_an_array_looks_at_few_of_those_on_the_device(tmp_path):
    arrays = 300
    with sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0) as spill:
        spill._on_device()._state.sequence = Compared(0)
        y = [sg.ones(2, device="cuda", requires_grad=True).exp() for _ in range(arrays)]
    Compared.times = 0
    y[arrays // 2].sum().backward()
    assert Compared.times < 100


def test_what_the_disk_refused_is_still_watched_for_changes(leaves, tmp_path):
    spill = sg.save_on_disk(tmp_path, ram_budget=0, device_budget=STATE_BYTES, min_bytes=0, direct_io=False)
    with spill:
        y = leaves[0].exp()  # its saved result stays on the device
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
        with pytest.raises(SpillError, match="could not write"):
            leaves[1].exp()  # moves the first one to the store
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with spill:
        leaves[1].sin()  # this notices which copies are done
    with sg.no_grad():
        y.mul_(0.5)
    with spill:
        other = leaves[1].exp()
    with pytest.raises((SavedTensorError, SpillError), match=r"modified"):
        y.sum().backward()
    del other


def test_what_dies_on_a_device_is_freed_though_nobody_asks_for_anything(leaves, tmp_path):
    spill = sg.save_on_disk(tmp_path, ram_budget="1MiB", device_budget="1MiB", min_bytes=0)
    with spill:
        loss = loss_of(leaves)
    tiers = [spill._on_device()._state.tier]
    assert tiers[0].used_bytes > 0
    del loss
    wait_until(lambda: tiers[0].used_bytes == 0)
    tiers.clear()
    del spill
    wait_until(lambda: list(tmp_path.iterdir()) == [])
