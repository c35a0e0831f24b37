"""Encryption: what is in the files is noise, what was damaged or moved is refused, and the key is only here."""

import builtins
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, SpillCorruptionError
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.encryption import Encrypted, sealed_bytes
from spillgrad.storage.store import Handle, Label

RNG = np.random.default_rng(0)
MakeStore = Callable[..., DiskStore]
CODECS = [None, "lossless", "bf16", "int8"]

SPILL_AND_WAIT = """
import sys, time
import numpy as np
from spillgrad.storage.disk_store import DiskStore
from spillgrad.storage.store import Label
store = DiskStore(sys.argv[1], ram_budget=0, encrypt=sys.argv[2] == "True")
array = np.frombuffer(bytearray(b"a known pattern " * 100_000), np.uint8)
handles = [store.put(array, label=Label("softmax", "result", "blocks.7", 99)) for _ in range(2)]
handles.append(store.put(array[:0], label=Label("softmax")))
handles.append(store.put(array[0], label=Label("softmax")))
store.flush()
print(store.directory, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("encrypt", [False, True])
def test_files_of_a_killed_run_are_noise(tmp_path: Path, encrypt: bool):
    command = [sys.executable, "-c", SPILL_AND_WAIT, str(tmp_path / "spill"), str(encrypt)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        run = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
        process.wait()
    (path,) = run.glob("*.h5")
    found = path.read_bytes()
    for secret in (b"a known pattern", b"softmax", b"result", b"blocks.7"):
        assert (secret in found) != encrypt
    with h5py.File(path, "r") as file:
        first, second, *small = file.values()
        if not encrypt:
            return
        assert [each.dtype for each in (first, second, *small)] == [np.uint8] * 4
        described = json.loads(first.attrs["spillgrad"])
        assert described.pop("xxh3_64")
        assert described == {
            "format": 1,
            "views": [],
            "sequence": 0,
            **dict.fromkeys(("op", "slot", "module", "step")),
            "dtype": "uint8",
            "shape": [1_600_000],
            "codec": "aes256gcm",
        }
        # Neither a pattern of its own nor that of its equal.
        assert not np.array_equal(first[()], second[()])
        counts = np.bincount(first[()], minlength=256)
        assert np.abs(counts / counts.mean() - 1).max() < 0.1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("checksums", [True, False])
def test_damage_anywhere_is_refused(make_store: MakeStore, codec: str | None, checksums: bool):
    array = np.maximum(RNG.standard_normal((900, 1000)).astype(np.float32), 0)
    store = make_store(0, codec=codec, encrypt=True, checksums=checksums)
    handle = store.put(array, label=Label("mul", "self", "net.0"))
    assert np.allclose(store.get(handle), array, atol=0.05)
    (path,) = store.directory.glob("*.h5")
    (file_offset, _, nbytes), *_ = handle.extent.pieces  # type: ignore[attr-defined]
    for place in (0, 12, nbytes // 2, nbytes - 1):  # a nonce, what follows it, the middle, a tag
        with path.open("r+b") as file:
            file.seek(file_offset + place)
            byte = file.read(1)
            file.seek(file_offset + place)
            file.write(bytes([byte[0] ^ 1]))
        with pytest.raises(SpillCorruptionError, match=r"mul\.self in net\.0 came back damaged"):
            store.get(handle)
        with path.open("r+b") as file:
            file.seek(file_offset + place)
            file.write(byte)
    assert np.allclose(store.get(handle), array, atol=0.05)


def swap(path: Path, first: int, second: int, nbytes: int) -> None:
    with path.open("r+b") as file:
        data = [os.pread(file.fileno(), nbytes, place) for place in (first, second)]
        for place, bytes_ in zip((second, first), data, strict=True):
            os.pwrite(file.fileno(), bytes_, place)


def test_bytes_of_another_array_or_another_place_are_refused(make_store: MakeStore):
    store = make_store(0, encrypt=True, checksums=False)
    arrays = [np.full((3 << 20) + 5, i, np.uint8) for i in range(2)]
    handles = [store.put(array, label=Label("mul", "self")) for array in arrays]
    (path,) = store.directory.glob("*.h5")
    places = [handle.extent.pieces[0][0] for handle in handles]  # type: ignore[attr-defined]
    sealed = sealed_bytes(1 << 20)
    for first, second in [(places[0], places[1]), (places[0], places[0] + sealed)]:
        swap(path, first, second, sealed)
        with pytest.raises(SpillCorruptionError, match="does not authenticate"):
            store.get(handles[0])
        swap(path, first, second, sealed)
    for handle, array in zip(handles, arrays, strict=True):
        np.testing.assert_array_equal(store.get(handle), array)


def test_another_stores_key_opens_nothing():
    array = RNG.standard_normal(5000)
    handle = Handle(array, 0, Label("mul"))
    mine, other = Encrypted(None), Encrypted(None)
    encoded = mine.encode(array, handle)
    assert encoded is not None
    out = np.empty_like(array)
    mine.decode(encoded.payload, encoded.encoding, handle, out)
    np.testing.assert_array_equal(out, array)
    with pytest.raises(ValueError, match="does not authenticate"):
        other.decode(encoded.payload, encoded.encoding, handle, out)
    with pytest.raises(ValueError, match="does not authenticate"):
        mine.decode(encoded.payload, encoded.encoding, Handle(array, 0, Label("add")), out)


def test_no_nonce_comes_twice():
    cipher = Encrypted(None)
    array = np.zeros(3 << 20, np.uint8)
    nonces = set()
    for i in range(10):
        encoded = cipher.encode(array, Handle(array, i, None))
        assert encoded is not None
        nonces |= {encoded.payload[piece * sealed_bytes(1 << 20) :][:12].tobytes() for piece in range(3)}
    assert len(nonces) == 30


@pytest.mark.parametrize("codec", CODECS[1:])
def test_codecs_shrink_what_is_then_encrypted(make_store: MakeStore, tmp_path: Path, codec: str):
    array = np.maximum(RNG.standard_normal((300, 1000)).astype(np.float32), 0)
    store = make_store(0, codec=codec, encrypt=True)
    np.testing.assert_allclose(store.get(store.put(array)), array, atol=0.05)
    assert store.stats().stored_bytes < 0.8 * array.nbytes
    store.flush()
    (path,) = store.directory.glob("*.h5")
    with h5py.File(shutil.copy(path, tmp_path / "copy.h5"), "r") as file:
        (dataset,) = file.values()
        assert json.loads(dataset.attrs["spillgrad"])["codec"] == f"{codec}+aes256gcm"


def test_without_the_package_it_says_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch):
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return imported(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ArgumentError, match=r"encrypt=True .* pip install 'spillgrad\[crypto\]'"):
        DiskStore(directory, ram_budget=0, encrypt=True)


def test_gradients_of_encrypted_tensors_are_exact(tmp_path: Path):
    def gradient(**options: Any) -> np.ndarray:
        x = sg.tensor(np.linspace(-3, 3, 60_000).reshape(200, 300), requires_grad=True)
        with sg.save_on_disk(tmp_path, ram_budget=0, **options) as spill:
            y = ((x * x).exp() * x.sin()).sum()
        y.backward()
        assert spill.stats().stored_bytes >= spill.stats().written_bytes > 0
        assert x.grad is not None
        return x.grad.numpy()

    np.testing.assert_array_equal(gradient(encrypt=True), gradient())
