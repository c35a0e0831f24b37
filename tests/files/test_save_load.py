"""`save` and `load`: what comes back is what went in, or an error says why not."""

import io
import json
import os
import random
import subprocess
import sys
import textwrap
import zipfile
from collections import Counter, OrderedDict, namedtuple

import numpy as np
import pytest
import safetensors.numpy
import xxhash

import spillgrad as sg
from spillgrad import nn
from spillgrad.errors import ArgumentError, CheckpointError, DeviceError, OperandError
from spillgrad.files import safetensors_io
from tests.crafted import HUGE, altered

DTYPES = [
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
    "uint64", "bool", "complex64", "complex128",
]  # fmt: skip


def round_trip(value, tmp_path):
    sg.save(value, tmp_path / "file")
    return sg.load(tmp_path / "file")


def test_a_state_dict_comes_back_and_fits_its_model(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    loaded = round_trip(model.state_dict(), tmp_path)
    assert list(loaded) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert not any(tensor.requires_grad for tensor in loaded.values())
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    other.load_state_dict(loaded)
    assert all((a == b).all() for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_run_goes_on_from_what_was_saved_of_it(tmp_path):
    def step(model, optimizer):
        optimizer.zero_grad()
        loss = (sg.dropout(model(sg.ones(2, 3)), 0.5) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.item()

    model = nn.Linear(3, 3)
    optimizer = sg.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": sg.get_rng_state(), "epoch": 3}
    sg.save(state, tmp_path / "run")
    expected = [step(model, optimizer) for _ in range(3)]
    loaded = sg.load(tmp_path / "run")
    other = nn.Linear(3, 3)
    other.load_state_dict(loaded["model"])
    optimizer = sg.optim.AdamW(other.parameters(), lr=0.5)
    optimizer.load_state_dict(loaded["optimizer"])
    sg.set_rng_state(loaded["rng"])
    assert [step(other, optimizer) for _ in range(3)] == expected and loaded["epoch"] == 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_dtype_and_shape_comes_back(tmp_path, dtype, shape):
    tensor = sg.tensor(np.arange(np.prod(shape)).reshape(shape)).to(dtype)
    for loaded in (round_trip([tensor], tmp_path)[0], _through_stream(tensor)):
        assert (loaded.shape, loaded.dtype) == (shape, tensor.dtype)
        assert loaded.numpy().tobytes() == tensor.numpy().tobytes()
        loaded.fill_(1)  # writable


def _through_stream(value):
    stream = io.BytesIO()
    sg.save(value, stream)
    stream.seek(0)
    return sg.load(stream)


Point = namedtuple("Point", "x y")

PLAIN = [
    None, True, False, 0, -1, 10**30, 0.1, -0.0, 1e-320, float("inf"), float("-inf"), "", "a.b", "ü\n\0", b"",
    b"\x00\xff", 1 + 2j, complex("nan+infj"), [], [[]], (), (1,), {}, {"a": {"b": [1, (2, {3})]}},
    {1: "a", None: 2, (1, "x"): 3, False: 0}, {"float": 1}, {"tensor": 0, "dict": {"pairs": []}}, set(), {1, "a"},
    frozenset({(1, 2)}), OrderedDict([("b", 1), ("a", 2)]), np.float32(0.1), np.int8(-3), np.bool_(True), sg.float32,
    sg.bfloat16, sg.int64, sg.device("cpu"), sg.get_rng_state(), Counter("aab"), Counter({(1, 2): -1}),
    sg.ones(2, 3).size(), [sg.ones(()).size()],
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN)
def test_plain_values_and_containers_come_back_as_they_were(tmp_path, value):
    for loaded in (round_trip(value, tmp_path), _through_stream({"k": [value]})["k"][0]):
        assert type(loaded) is type(value)
        assert repr(loaded) == repr(value)


def test_arrays_parameters_and_gradients_flags_come_back(tmp_path):
    value = {
        "array": np.arange(3.0),
        "parameter": nn.Parameter(sg.ones(2)),
        "frozen": nn.Parameter(sg.ones(2), requires_grad=False),
        "leaf": sg.ones(2, requires_grad=True),
        "result": sg.ones(2, requires_grad=True) * 2,
    }
    loaded = round_trip(value, tmp_path)
    assert type(loaded["array"]) is np.ndarray and loaded["array"].tolist() == [0.0, 1.0, 2.0]
    assert type(loaded["parameter"]) is nn.Parameter and type(loaded["leaf"]) is sg.Tensor
    flags = {key: tensor.requires_grad for key, tensor in loaded.items() if key != "array"}
    assert flags == {"parameter": True, "frozen": False, "leaf": True, "result": True}
    assert loaded["result"].is_leaf and loaded["result"].tolist() == [2.0, 2.0]


def test_what_was_one_tensor_is_one_and_shared_memory_is_shared(tmp_path):
    tensor = sg.zeros(1000)
    value = {"a": tensor, "b": [tensor], "c": tensor.detach(), "d": tensor[:2], "e": tensor.clone()}
    loaded = round_trip(value, tmp_path)
    assert loaded["a"] is loaded["b"][0] and loaded["a"] is not loaded["c"]
    loaded["a"].add_(1)
    assert loaded["c"].sum().item() == 1000 and loaded["c"]._version == 1
    assert loaded["d"].tolist() == [0.0, 0.0] and loaded["e"].sum().item() == 0
    sg.save({"a": tensor, "c": tensor.detach()}, tmp_path / "shared")
    sg.save({"a": tensor}, tmp_path / "single")
    assert os.path.getsize(tmp_path / "shared") < os.path.getsize(tmp_path / "single") + 500


def test_a_small_view_of_a_large_tensor_makes_a_small_file(tmp_path):
    sg.save(sg.zeros(100_000)[::50_000], tmp_path / "file")
    assert os.path.getsize(tmp_path / "file") < 1000
    transposed = sg.tensor(np.arange(6.0).reshape(2, 3)).t()
    assert round_trip(transposed, tmp_path).tolist() == transposed.tolist()
    assert round_trip(sg.ones(1).expand(3, 2), tmp_path).tolist() == [[1.0, 1.0]] * 3


def test_the_file_is_a_safetensors_file_with_names_that_say_where(tmp_path):
    sg.save({"model": {"0.weight": sg.ones(2)}, "list": [sg.zeros(1), 3]}, tmp_path / "file")
    arrays = safetensors.numpy.load_file(tmp_path / "file")
    assert {name: array.tolist() for name, array in arrays.items()} == {"model.0.weight": [1.0, 1.0], "list.0": [0.0]}


def test_names_that_meet_are_kept_apart(tmp_path):
    value = {"a": {"b": sg.ones(1)}, "a.b": sg.zeros(1), "__metadata__": sg.ones(2), "": sg.ones(3)}
    assert repr(round_trip(value, tmp_path)) == repr(value)


def test_any_safetensors_file_can_be_loaded(tmp_path):
    safetensors.numpy.save_file({"x": np.arange(3.0), "y": np.ones(1, np.int32)}, tmp_path / "file")
    loaded = sg.load(tmp_path / "file")
    assert {name: tensor.tolist() for name, tensor in loaded.items()} == {"x": [0.0, 1.0, 2.0], "y": [1]}
    assert sg.load(io.BytesIO((tmp_path / "file").read_bytes()))["y"].dtype == sg.int32


@pytest.mark.parametrize(
    "device", [None, "cpu", sg.device("cpu"), {"cuda:0": "cpu"}, lambda storage, location: storage]
)
def test_tensors_are_mapped_to_the_cpu(tmp_path, device):
    sg.save(sg.ones(1), tmp_path / "file")
    assert sg.load(tmp_path / "file", device).item() == 1
    assert sg.load(tmp_path / "file", map_location=device, weights_only=True).item() == 1


def test_a_device_that_does_not_exist_is_an_error(tmp_path):
    sg.save(sg.ones(1), tmp_path / "file")
    for device in ("cuda", {"cpu": "cuda:1"}):
        with pytest.raises(DeviceError):
            sg.load(tmp_path / "file", map_location=device)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"model": nn.Identity()}, r"got Identity at \['model'\]; .* save its state_dict\(\)"),
        ([1, {"p": Point(1, 2)}], r"got Point at \[1\]\['p'\]"),
        (object(), "got object at the top"),
        ({"f": len}, "got builtin_function_or_method"),
        ({Point(1, 2): 1}, "got Point"),
    ],
)
def test_what_needs_code_to_come_back_is_refused(tmp_path, value, says):
    with pytest.raises(OperandError, match=says):
        sg.save(value, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_container_within_itself_is_refused_and_one_used_twice_is_not(tmp_path):
    inner = [1]
    assert round_trip([inner, inner], tmp_path) == [[1], [1]]
    inner.append({"again": inner})
    with pytest.raises(ArgumentError, match=r"the list at \[1\]\['again'\] contains itself"):
        sg.save(inner, tmp_path / "other")


def test_a_file_that_is_not_there_is_a_file_not_found_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load: .*nothing does not exist") as caught:
        sg.load(tmp_path / "nothing")
    assert isinstance(caught.value, CheckpointError)
    with pytest.raises(CheckpointError, match=r"is a directory; load_checkpoint\(\)"):
        sg.load(tmp_path)


def test_a_file_cut_off_anywhere_is_damaged(tmp_path):
    sg.save({"a": sg.ones(5), "b": [sg.zeros(2), "text"]}, tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        (tmp_path / "torn").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"torn is damaged, or no safetensors file"):
            sg.load(tmp_path / "torn")
        with pytest.raises(CheckpointError, match="the stream is damaged"):
            sg.load(io.BytesIO(whole[:length]))


def test_a_flipped_bit_anywhere_is_found(tmp_path):
    sg.save({"a": sg.ones(5), "b": [sg.zeros(2), "text"]}, tmp_path / "file")
    whole = (tmp_path / "file").read_bytes()
    start = whole.index(b'"spillgrad"')
    for place in range(start, len(whole), 3):
        content = bytearray(whole)
        content[place] ^= 1
        (tmp_path / "file").write_bytes(content)
        try:
            loaded = sg.load(tmp_path / "file")
        except CheckpointError:
            continue
        # What the description does not cover: the padding, and the name under which it is found.
        assert chr(whole[place]) == " " or b'"spillgrad"' not in content or loaded["a"].tolist() == [1.0] * 5


ARRAYS = {
    "a": np.arange(4, dtype=np.float32), "b": np.arange(4.0), "c": np.arange(3), "d": np.zeros((0, 2), np.float32),
}  # fmt: skip
CHECKSUMS = {name: xxhash.xxh3_128_hexdigest(array.tobytes()) for name, array in ARRAYS.items()}
TENSOR = {"name": "a", "kind": "tensor", "requires_grad": False}


def crafted(description):
    """Return a file that says so of itself, by JSON text or what becomes that, with the right checksums."""
    text = description if isinstance(description, str) else json.dumps(description)
    metadata = {"format": "np", "spillgrad": text, "checksum": xxhash.xxh3_128_hexdigest(text.encode())}
    return safetensors.numpy.save(ARRAYS, metadata)


def described(value=1, tensors=(TENSOR,), **others):
    return {"version": 1, "value": value, "tensors": list(tensors), "checksums": CHECKSUMS, **others}


def test_a_description_made_here_is_one_that_load_takes():
    loaded = sg.load(io.BytesIO(crafted(described({"tuple": [{"tensor": 0}, {"float": "inf"}]}))))
    assert repr(loaded) == "(tensor([0., 1., 2., 3.]), inf)"


NESTED = '{"version": 1, "tensors": [], "checksums": {}, "value": %s1%s}'
DESCRIPTIONS = {
    "a list": "[]",
    "no JSON": "{",
    "nothing": {},
    "a number": "1",
    "no value": {"version": 1, "tensors": [], "checksums": CHECKSUMS},
    "no tensors": {"version": 1, "value": 1, "checksums": CHECKSUMS},
    "no checksums": {"version": 1, "value": 1, "tensors": []},
    "checksums in a list": described(checksums=[]),
    "checksums of nothing": described(checksums=None),
    "the checksum of more": described(checksums={**CHECKSUMS, "z": ""}),
    "a checksum that is a number": described(checksums={**CHECKSUMS, "a": 1}),
    "a version in words": described(version="x"),
    "no version": described(version=None),
    "version 0": described(version=0),
    "a version of lists": described(version=[1]),
    "a huge version": described(version=HUGE),
    "lists in lists": NESTED % ("[" * 600, "]" * 600),
    "many more lists": NESTED % ("[" * 200_000, "]" * 200_000),
    "objects in objects": NESTED % ('{"dict": {"a": ' * 300, "}}" * 300),
    "more digits than are read": NESTED % ("9" * 5000, ""),
    "an unknown kind": described({"frob": [1]}),
    "a class": described({"__reduce__": ["os.system", "true"]}),
    "two kinds": described({"tuple": [], "set": []}),
    "no kind": described({}),
    "kind list": described({"list": []}),
    "a tensor that is not there": described({"tensor": 1}),
    "a tensor from the end": described({"tensor": -1}),
    "a tensor by name": described({"tensor": "a"}),
    "a tensor by truth": described({"tensor": False}),
    "a tensor between": described({"tensor": 0.0}),
    "a huge tensor": described({"tensor": HUGE}),
    "a dict of a list": described({"dict": [1]}),
    "a dict of text": described({"dict": "ab"}),
    "pairs of one": described({"pairs": [[1]]}),
    "pairs of three": described({"OrderedDict": [[1, 2, 3]]}),
    "pairs of text": described({"pairs": ["ab"]}),
    "pairs of nothing": described({"pairs": None}),
    "a key that changes": described({"pairs": [[[1], 2]]}),
    "a set of lists": described({"set": [[1]]}),
    "a set of text": described({"set": "ab"}),
    "a tuple of an object": described({"tuple": {"a": 1}}),
    "a float in words": described({"float": "x"}),
    "a float of nothing": described({"float": None}),
    "a complex number of one": described({"complex": ["1"]}),
    "a complex number of huge ones": described({"complex": [HUGE, 1]}),
    "bytes of other letters": described({"bytes": "ü"}),
    "bytes that are cut": described({"bytes": "abc"}),
    "bytes of a number": described({"bytes": 5}),
    "a dtype that is none": described({"dtype": "float1"}),
    "a dtype of objects": described({"dtype": "object"}),
    "a dtype of fields": described({"dtype": [["a", "f4"]]}),
    "a device that is none": described({"device": "nowhere"}),
    "a device of lists": described({"device": ["cuda"]}),
    "a generator of one": described({"generator_state": [1]}),
    "a generator in words": described({"generator_state": ["1", "2"]}),
    "a generator below zero": described({"generator_state": [-1, 0]}),
    "a huge generator": described({"generator_state": [HUGE, 0]}),
    "a scalar of nothing": described({"scalar": []}),
    "a scalar of no dtype": described({"scalar": ["x", 1]}),
    "a scalar that does not fit": described({"scalar": ["int8", 300]}),
    "a huge scalar": described({"scalar": ["float32", HUGE]}),
    "a scalar of several": described({"scalar": ["float32", [1, 2]]}),
    "a scalar of a dict": described({"scalar": ["float32", {"dict": {}}]}),
    "tensors in an object": described(tensors={"a": TENSOR}) | {"tensors": {"a": TENSOR}},
    "tensors that are numbers": described(tensors=[5]),
    "a tensor without a name": described(tensors=[{"kind": "tensor", "requires_grad": False}]),
    "a tensor of another name": described(tensors=[{**TENSOR, "name": "z"}]),
    "a tensor whose name is a list": described(tensors=[{**TENSOR, "name": ["a"]}]),
    "a tensor of no kind": described(tensors=[{"name": "a", "requires_grad": False}]),
    "a tensor of another kind": described(tensors=[{**TENSOR, "kind": "module"}]),
    "a tensor that does not say": described(tensors=[{"name": "a", "kind": "tensor"}]),
    "gradients of integers": described(tensors=[{"name": "c", "kind": "parameter", "requires_grad": True}]),
    "gradients of integers of a tensor": described(tensors=[{"name": "c", "kind": "tensor", "requires_grad": True}]),
    "complex numbers of float32": described(tensors=[{**TENSOR, "complex128": [2]}]),
    "complex numbers of another shape": described(tensors=[{**TENSOR, "name": "b", "complex128": [3]}]),
    "complex numbers of a shape below zero": described(tensors=[{**TENSOR, "name": "b", "complex128": [-1]}]),
    "complex numbers of a shape that overflows": described(tensors=[{**TENSOR, "name": "b", "complex128": [2**63, 2]}]),
    "complex numbers of a huge shape": described(tensors=[{**TENSOR, "name": "b", "complex128": [HUGE, 0]}]),
    "complex numbers of a shape in words": described(tensors=[{**TENSOR, "name": "b", "complex128": "2"}]),
    "complex numbers of no shape": described(tensors=[{**TENSOR, "name": "b", "complex128": 2}]),
    "complex numbers of 71 dimensions": described(tensors=[{**TENSOR, "name": "b", "complex128": [2] + [1] * 70}]),
}  # fmt: skip


@pytest.mark.parametrize("description", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_a_description_that_no_save_wrote_is_damaged_whatever_its_checksum_says(tmp_path, description):
    content = crafted(description)
    (tmp_path / "file").write_bytes(content)
    for source in (tmp_path / "file", io.BytesIO(content)):
        with pytest.raises(CheckpointError, match=r"is damaged|has format version") as caught:
            sg.load(source)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def header(content, data=b""):
    text = content if isinstance(content, str) else json.dumps(content)
    return len(text).to_bytes(8, "little") + text.encode() + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HEADERS = {
    "of no bytes": b"",
    "cut off": b"\5\0\0",
    "of a length beyond all": b"\xff" * 16,
    "a list": header("[]"),
    "nested": header('{"__metadata__":' + '{"a":' * 300 + "1" + "}" * 301),
    "metadata in a list": header({"__metadata__": []}),
    "metadata of numbers": header({"__metadata__": {"spillgrad": 1}}),
    "a dtype that is none": header({"a": entry("F31")}, b"0123"),
    "a dtype of eight bits": header({"a": entry("F8_E4M3", (4,))}, b"0123"),
    "a dtype of four bits": header({"a": entry("F4", (8,))}, b"0123"),
    "a dtype that is a number": header({"a": entry(4)}, b"0123"),
    "a shape below zero": header({"a": entry(shape=(-1, -1))}, b"0123"),
    "a shape of fractions": header({"a": entry(shape=(1.0,))}, b"0123"),
    "a shape in words": header({"a": entry(shape="1")}, b"0123"),
    "a shape that overflows": header({"a": entry(shape=(2**33, 2**33))}, b"0123"),
    "an empty shape that overflows": header({"a": entry(shape=(0, 2**62, 4), offsets=(0, 0))}),
    "an empty shape of a huge size": header({"a": entry(shape=(0, 2**63), offsets=(0, 0))}),
    "an empty shape of a larger size": header({"a": entry(shape=(0, HUGE), offsets=(0, 0))}),
    "too many dimensions": header({"a": entry(shape=(1,) * 65)}, b"0123"),
    "far too many dimensions": header({"a": entry(shape=(1,) * 10_000)}, b"0123"),
    "another size": header({"a": entry(shape=(2,))}, b"0123"),
    "offsets beyond the end": header({"a": entry(offsets=(0, 8), shape=(2,))}, b"0123"),
    "offsets below zero": header({"a": entry(offsets=(-4, 0))}, b"0123"),
    "offsets the other way round": header({"a": entry(offsets=(4, 0))}, b"0123"),
    "a gap": header({"a": entry(offsets=(4, 8))}, b"01234567"),
    "an overlap": header({"a": entry(), "b": entry()}, b"0123"),
    "one name twice": header(f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry(offsets=(4, 8)))}}}', b"01234567"),
    "nothing of a tensor": header({"a": {}}),
    "a tensor that is a number": header({"a": 1}),
    "half a letter": header(f'{{"\\ud800": {json.dumps(entry())}}}', b"0123"),
}


@pytest.mark.parametrize("content", HEADERS.values(), ids=HEADERS)
def test_a_header_that_no_save_wrote_is_refused(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    for read in (lambda: sg.load(path), lambda: sg.load(io.BytesIO(content)), lambda: safetensors_io.read(path)):
        with pytest.raises(CheckpointError) as caught:
            read()
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


def test_metadata_may_be_null():
    assert sg.load(io.BytesIO(header('{"__metadata__": null}'))) == {}


@pytest.mark.parametrize("seed", range(4))
def test_a_description_altered_anywhere_is_damaged_or_still_one(seed):
    value = {
        "model": {"w": sg.ones(2, 2), "v": nn.Parameter(sg.ones(2))}, "pairs": {1: (1, {2, 3}), None: frozenset("a")},
        "ordered": OrderedDict([("b", 1.5), ("a", float("nan"))]), "waves": sg.tensor([1 + 2j], dtype="complex128"),
        "plain": [b"x", 1j, np.float32(2), sg.float32, sg.device("cpu"), sg.get_rng_state(), np.arange(3)],
    }  # fmt: skip
    stream = io.BytesIO()
    sg.save(value, stream)
    content = stream.getvalue()
    arrays = safetensors.numpy.load(content)
    found = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    rng, outcomes = random.Random(seed), set()
    for _ in range(250):
        text = json.dumps(altered(json.loads(found["spillgrad"]), rng))
        metadata = {**found, "spillgrad": text, "checksum": xxhash.xxh3_128_hexdigest(text.encode())}
        try:
            sg.load(io.BytesIO(safetensors.numpy.save(arrays, metadata)))
            outcomes.add("loaded")
        except (CheckpointError, DeviceError) as error:  # "cuda:99" is a device, elsewhere
            outcomes.add(type(error).__name__)
    assert {"loaded", "CheckpointError"} <= outcomes


def test_containers_too_deep_to_be_read_again_are_refused(tmp_path):
    value = []
    for _ in range(2000):
        value = [value]
    with pytest.raises(ArgumentError, match="too deep"):
        sg.save(value, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_newer_version_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("spillgrad.files.save_load._VERSION", 2)
    sg.save(1, tmp_path / "file")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format version 2, this library reads 1"):
        sg.load(tmp_path / "file")


def test_a_file_of_pytorch_is_refused_with_a_way_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02.")
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a\n")
    for name in ("model.pt", "old.pt"):
        with pytest.raises(CheckpointError, match=r"PyTorch's \(pickle\) format, and reading one can run code; "):
            sg.load(tmp_path / name)


@pytest.mark.parametrize("length", [128, 384])
def test_a_header_whose_length_begins_like_a_pickle_is_no_pickle(tmp_path, length):
    name = "x" * 40
    while True:
        content = safetensors.numpy.save({name: np.arange(3)})
        if int.from_bytes(content[:8], "little") == length:
            break
        name += "x"
        assert len(name) < 1000
    assert content[0] == 0x80
    assert sg.load(io.BytesIO(content))[name].tolist() == [0, 1, 2]
    (tmp_path / "file").write_bytes(content)
    assert sg.load(tmp_path / "file")[name].tolist() == [0, 1, 2]


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    sg.save("first", tmp_path / "file")
    script = textwrap.dedent(
        f"""
        import resource, signal, spillgrad as sg
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        try:
            sg.save(sg.zeros(100_000), {str(tmp_path / "file")!r})
        except sg.errors.CheckpointError as error:
            print(error)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    assert f"save: {tmp_path / 'file'} cannot be written" in ended.stdout
    assert sg.load(tmp_path / "file") == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(CheckpointError, match="cannot be written"):
        sg.save(1, tmp_path / "missing" / "file")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    sg.save(1, tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and sg.load(str(tmp_path / "file")) == 1


def test_the_description_is_plain_json(tmp_path):
    sg.save({"lr": float("nan"), "step": 3}, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    described = json.loads(header["__metadata__"]["spillgrad"], parse_constant=pytest.fail)
    assert described["value"] == {"dict": {"lr": {"float": "nan"}, "step": 3}}
