import socket

import pytest

from spillgrad.data import load_text
from spillgrad.errors import DataError


def test_the_default_text_is_pythons_reference():
    text = load_text()
    assert len(text) > 300_000
    assert b"The `with` statement" in text or b'The "with" statement' in text


def test_a_file_is_read_byte_for_byte(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xff\x00caf\xc3\xa9")
    assert load_text(path) == load_text(str(path)) == b"\xff\x00caf\xc3\xa9"


def test_a_folder_is_read_in_the_order_of_its_paths_without_hidden_and_empty_files(tmp_path):
    (tmp_path / "sub").mkdir()
    for name, content in (("b.txt", "two"), ("a.txt", "one"), ("sub/c.txt", "three"), (".hidden", "no"), ("0", "")):
        (tmp_path / name).write_text(content)
    assert load_text(tmp_path) == b"one\ntwo\nthree"


def _missing(path):
    return path / "nowhere"


def _empty_file(path):
    (path / "empty").touch()
    return path / "empty"


def _folder_without_files(path):
    (path / "folder").mkdir()
    return path / "folder"


def _folder_of_empty_files(path):
    (path / "folder").mkdir()
    (path / "folder" / "a").touch()
    return path / "folder"


def _endless_link(path):
    (path / "loop").symlink_to(path / "loop")
    return path / "loop"


def _socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path / "s"))
    return path / "s"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (_missing, "does not exist"),
        (_empty_file, "is empty"),
        (_folder_without_files, "holds no files"),
        (_folder_of_empty_files, "is empty"),
        (_endless_link, "cannot be read"),
        (_socket, "neither a file nor a folder"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_line_that_names_it(tmp_path, make, says):
    path = make(tmp_path)
    with pytest.raises(DataError, match=says) as caught:
        load_text(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
