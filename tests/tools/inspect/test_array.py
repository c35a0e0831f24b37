"""`spillgrad inspect --tree` and `--tensor`: what is printed of files, and that none of it is obeyed."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from spillgrad.storage.disk_store import DiskStore
from spillgrad_tools.cli import main
from tests.inspection.segments import ARRAYS, NORMAL, stored

NAMES = list(ARRAYS)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("segment"), codec="lossless")


def told(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> str:
    assert main(["inspect", *map(str, arguments)]) == status
    printed = capsys.readouterr()
    assert printed.err.count("\n") == (status == 2)
    return printed.out if status != 2 else printed.err


def told_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0) -> Any:
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(told(capsys, *arguments, "--json", status=status), parse_constant=refused)


def test_a_tree_names_every_dataset_with_its_origin_and_place(segment: Path, capsys: pytest.CaptureFixture[str]):
    tree = told(capsys, segment, "--tree")
    for words in ("00000000  <f4 (300, 500), chunked (100, 500), filters 2, 32015", "mul.self in net.0 at step 3",
                  "bfloat16 (3, 500)", "<f8 (), contiguous", "@spillgrad", "codec lossless"):  # fmt: skip
        assert words in tree
    found = told_json(capsys, segment, "--tree")["segments"][0]
    assert [item["path"] for item in found["items"]] == [f"/{array['key']}" for array in found["arrays"]]
    assert found["arrays"][0]["codec"] == "lossless"
    assert (found["problems"], found["left_out"]) == ([], 0)


def test_an_array_is_told_with_its_checksum_statistics_and_histogram(segment: Path, capsys: pytest.CaptureFixture[str]):
    shown = told(capsys, segment, "--tensor", "0")
    for words in ("00000000", "mul.self in net.0 at step 3", "float32", "(300, 500): 150,000 elements, 585.9 KiB",
                  "lossless", "3 pieces: ", "verified", "NaN", "mean", "█", "strides (4,), 0 bytes in"):  # fmt: skip
        assert words in shown
    found = told_json(capsys, segment, "--tensor", "0")
    array = ARRAYS["float32"]
    assert (found["key"], found["shape"], found["dtype"], found["nbytes"]) == (
        "00000000",
        [300, 500],
        "float32",
        600_000,
    )
    assert sum(chunk["nbytes"] for chunk in found["chunks"]) == found["stored_bytes"] < array.nbytes
    contents = found["contents"]
    assert (contents["checksum"], contents["min"], contents["max"]) == (
        "verified",
        0,
        pytest.approx(float(array.max())),
    )
    assert sum(one["count"] for one in contents["histogram"]) == array.size


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_every_kind_of_array_is_told_in_words_and_in_json(
    segment: Path, number: int, capsys: pytest.CaptureFixture[str]
):
    assert "verified" in told(capsys, segment, "--tensor", f"{number}")
    assert told_json(capsys, segment, "--tensor", f"{number}")["contents"]["checksum"] == "verified"
    assert "\x1b" not in told(capsys, segment, "--tensor", f"{number}", "--slice", "...")
    found = told_json(
        capsys, segment, "--tensor", f"{number}", "--slice", "..., 0:2" if ARRAYS[NAMES[number]].ndim else ""
    )
    assert found["slice"]["shape"] == list(ARRAYS[NAMES[number]][..., 0:2].shape if ARRAYS[NAMES[number]].ndim else ())


VALUES = [
    ("float32", ":2, :3", ARRAYS["float32"][:2, :3].tolist()),
    ("bfloat16", "0, :3", ARRAYS["bfloat16"][0, :3].astype(float).tolist()),
    ("int4", ":4", ARRAYS["int4"][:4].astype(int).tolist()),
    ("bool", "0, :3", ARRAYS["bool"][0, :3].tolist()),
    ("complex64", "0, :2", [[value.real, value.imag] for value in ARRAYS["complex64"][0, :2].tolist()]),
    ("not finite", ":4", ["NaN", "Infinity", "-Infinity", 1.0]),
    ("dates", ":", ["2026-01-01T00:00:00", "NaT", "1969-07-20T00:00:00"]),
    ("text", ":", ["as it is", "\\x1b[31mred"]),
    ("bytes", ":", ["6162", "1b63"]),
    ("records", ":1", ["01000000" + np.float64(2).tobytes().hex()]),
    ("0-d", "", 3.5),
    ("empty", ":", []),
    ("int64", "6, -1, -1", 69_999),
]  # fmt: skip


@pytest.mark.parametrize(("name", "index", "values"), VALUES, ids=[name for name, _, _ in VALUES])
def test_values_in_json_are_strict_json(
    segment: Path, name: str, index: str, values: object, capsys: pytest.CaptureFixture[str]
):
    found = told_json(capsys, segment, "--tensor", f"{NAMES.index(name)}", "--slice", index)
    assert found["slice"]["values"] == values


@pytest.mark.parametrize("index", ["0:4, :", "3, 4", "::-50, ::100", "...", "5:5"])
def test_values_print_as_numpy_prints_them(segment: Path, index: str, capsys: pytest.CaptureFixture[str]):
    array = ARRAYS["float32"]
    expected = str(array[eval(f"np.s_[{index}]", {"np": np})])
    assert told(capsys, segment, "--tensor", "0", "--slice", index) == expected + "\n"


def test_too_many_values_for_json_are_refused(segment: Path, capsys: pytest.CaptureFixture[str]):
    line = told(capsys, segment, "--tensor", "0", "--slice", ":", "--json", status=2)
    assert "150,000 values to print; name fewer, or write them with --export" in line


def test_an_export_says_what_it_wrote_and_how_to_read_it(
    segment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out.npy"
    number = f"{NAMES.index('bfloat16')}"
    assert told(capsys, segment, "--tensor", number, "--export", out) == (
        f"wrote bfloat16 (3, 500), 2.9 KiB, to {out}; read it with np.load('{out}').view(ml_dtypes.bfloat16)\n"
    )
    assert "--force" in told(capsys, segment, "--tensor", number, "--export", out, status=2)
    found = told_json(capsys, segment, "--tensor", "0", "--slice", "0", "--export", out, "--force")
    assert found["export"] == {"path": str(out), "shape": [500], "nbytes": 2000}
    np.testing.assert_array_equal(np.load(out), ARRAYS["float32"][0])


REFUSED = [
    (["--tensor", "99"], ["'99'", "there are 23", "00000022, 00000021"]),
    (["--tensor", "0000001x"], ["'0000001x'", "nearest", "0000001"]),
    (["--tensor", "\x1b[2J"], ["'\\x1b[2J'"]),
    (["--tensor", "0", "--slice", "0, a"], ["'0, a'", "character 4"]),
    (["--tensor", "0", "--slice", "__import__('os')"], ["character 1"]),
    (["--tensor", "0", "--slice", "0, 0, 0"], ["2-dimensional, but 3 were indexed", "(300, 500)"]),
    (["--tensor", "0", "--slice", "300"], ["index 300 is out of bounds for axis 0 with size 300"]),
    (["--tensor", "0", "--export", "/nowhere/at/all.npy"], ["/nowhere/at/all.npy", "No such file or directory"]),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[ascii(" ".join(arguments)) for arguments, _ in REFUSED])
def test_a_users_mistake_is_one_line(
    segment: Path, arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
):
    line = told(capsys, segment, *arguments, status=2)
    for word in words:
        assert word in line


def test_a_key_is_looked_for_in_all_segments_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = DiskStore(tmp_path / "spill", ram_budget=0, segment_bytes=1 << 20)
    try:
        for value in range(4):
            store.put(np.full((100, 1000), float(value)))
        store.flush()
        assert len(list(store.directory.glob("*.h5"))) == 4
        for key in ("3", "00000003", "segment-00003.h5/00000003", f"{store.directory.name}/segment-00003.h5/00000003"):
            for place in (tmp_path / "spill", store.directory):
                if place == tmp_path / "spill" or "run-" not in key:
                    assert told(capsys, place, "--tensor", key, "--slice", "0, 0") == "3.0\n"
        told(capsys, tmp_path / "spill", "--tensor", "segment-00001.h5/00000003", status=2)
    finally:
        store.close()


def test_a_key_that_several_runs_have_is_asked_for_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for number in range(2):
        run = tmp_path / f"run-{number:016x}"
        run.mkdir()
        stored(tmp_path, [NORMAL + number]).rename(run / "segment-00000.h5")
    line = told(capsys, tmp_path, "--tensor", "0", status=2)
    names = [f"run-{number:016x}/segment-00000.h5/00000000" for number in range(2)]
    assert f"2 have for a name: {names[0]}, {names[1]}" in line
    assert told(capsys, tmp_path, "--tensor", names[1], "--slice", "0, 0") == f"{NORMAL[0, 0] + 1}\n"


def test_a_folder_without_segments_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "there is no segment" in told(capsys, tmp_path, "--tensor", "0", status=2)
    assert "there is no segment" in told(capsys, tmp_path, "--tree", status=2)


WRONG = "its bytes are not those that were written: the checksum is wrong"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a segment with an array of which one bit is another."""
    path = stored(tmp_path, [NORMAL])
    data = bytearray(path.read_bytes())
    data[4096 + 100] ^= 1
    path.write_bytes(data)
    return path


def test_an_array_whose_checksum_is_wrong_is_shown_with_status_1(damaged: Path, capsys: pytest.CaptureFixture[str]):
    shown = told(capsys, damaged, "--tensor", "0", status=1)
    assert re.search(r"checksum +wrong", shown)
    assert re.search(f"problem +{WRONG}", " ".join(shown.split()))
    found = told_json(capsys, damaged, "--tensor", "0", status=1)
    assert (found["contents"]["checksum"], found["problem"]) == ("wrong", WRONG)


def test_values_of_a_damaged_array_are_given_with_a_word_on_stderr_and_status_1(
    damaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["inspect", str(damaged), "--tensor", "0", "--slice", "1, :2"]) == 1
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{NORMAL[1, :2]}\n", f"spillgrad: {damaged}/00000000: {WRONG}\n")
    out = tmp_path / "out.npy"
    assert main(["inspect", str(damaged), "--tensor", "0", "--slice", "1", "--export", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("wrote float64 (500,)")
    assert printed.err == f"spillgrad: {damaged}/00000000: {WRONG}\n"
    np.testing.assert_array_equal(np.load(out), NORMAL[1])
    assert told_json(capsys, damaged, "--tensor", "0", "--slice", "0, 0", status=1)["problem"] == WRONG


def test_a_damaged_array_of_a_run_that_goes_on_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = DiskStore(tmp_path / "spill", ram_budget=0)
    try:
        store.put(NORMAL)
        store.flush()
        (path,) = store.directory.glob("*.h5")
        with open(path, "r+b") as file:
            file.seek(4096 + 100)
            file.write(b"other")
        assert "the checksum is wrong" in told_json(capsys, path, "--tensor", "0", status=1)["problem"]
    finally:
        store.close()


def test_an_encrypted_array_shows_its_structure_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = stored(tmp_path, [NORMAL], encrypt=True)
    shown = told(capsys, path, "--tensor", "0")
    assert "aes256gcm" in shown
    assert "encrypted, under a key that only the run's own process has" in shown
    assert "is encrypted" in told(capsys, path, "--tensor", "0", "--slice", "0", status=2)


def hostile(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        dataset = file.create_dataset("\x1b[2J[red]<script>\u202e", data=np.arange(6.0), chunks=(6,))
        about = {"format": 1, "sequence": 0, "op": "\x1b]0;owned\x07[bold]", "slot": "a\nb", "module": "\udc80",
                 "step": 1, "views": [{"op": "\x1b[8m", "slot": None, "dtype": "\r", "shape": [1], "strides": [8],
                 "offset": 0}], "dtype": "float64", "shape": [6], "xxh3_64": None}  # fmt: skip
        dataset.attrs["spillgrad"] = np.bytes_(json.dumps(about))
        dataset.attrs["\x1b[31m[blink]"] = 1
        file["link\x1b[5m"] = h5py.SoftLink("/\x1b[7m")
        file["external"] = h5py.ExternalLink("\x1b[9m", "/[/red]")
        file.create_group("[/]\x9b31m")
    return path


def test_nothing_from_a_hostile_file_reaches_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = hostile(tmp_path / "hostile.h5")
    tree = told(capsys, path, "--tree", status=1)
    shown = told(capsys, path, "--tensor", "\x1b[2J[red]<script>\u202e")
    refused = told(capsys, path, "--tensor", "0", status=2)
    for text in (tree, shown, refused):
        assert all(character.isprintable() or character == "\n" for character in text)
    for words in ("\\x1b[2J[red]<script>\\u202e", "\\x1b]0;owned\\x07[bold]", "soft link to /\\x1b[7m, not followed",
                  "external link to \\x1b[9m:/[/red], not followed", "[/]\\x9b31m", "@\\x1b[31m[blink]"):  # fmt: skip
        assert words in tree
    assert "a\\nb" in shown
    assert "module" in told_json(capsys, path, "--tensor", "\x1b[2J[red]<script>\u202e")


def test_what_a_hostile_file_cannot_give_is_told_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "hostile.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("00000000", (1 << 60,), "u1", chunks=(1 << 20,))
    assert "declared with 1152921504606846976 bytes" in " ".join(told(capsys, path, "--tensor", "0", status=1).split())
    line = told(capsys, path, "--tensor", "0", "--slice", "0", status=2)
    assert "no values that can be read" in line


@pytest.mark.parametrize("option", [["--tree"], ["--tensor", "0"]], ids=str)
@pytest.mark.parametrize("kind", ["text", "missing", "empty"])
def test_what_is_no_segment_is_one_line(
    tmp_path: Path, kind: str, option: list[str], capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "file.h5"
    if kind != "missing":
        path.write_text("no segment" if kind == "text" else "")
    assert str(path) in told(capsys, path, *option, status=2)
