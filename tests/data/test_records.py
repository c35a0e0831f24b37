import codecs
import json
import os

import pytest

from spillgrad.data import Record, Records
from spillgrad.errors import DataError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def write_lines(path, *objects):
    path.write_text("".join(json.dumps(value) + "\n" for value in objects))
    return path


def test_each_kind_of_object_becomes_a_record_and_other_keys_are_ignored(tmp_path):
    objects = [
        {"text": "a text", "id": 3, "meta": {"text": 1}},
        {"prompt": "2 + 2 =", "completion": " 4"},
        {"messages": CHAT, "source": None},
        {"text": None, "prompt": "p", "completion": ""},
        {"text": "all of it", "prompt": "of another kind", "messages": CHAT},
    ]
    path = write_lines(tmp_path / "data.jsonl", *objects)
    places = [f"{path}, line {number}" for number in range(1, 6)]
    assert list(Records(path)) == [
        Record(text="a text", place=places[0]),
        Record(prompt="2 + 2 =", completion=" 4", place=places[1]),
        Record(messages=CHAT, place=places[2]),
        Record(prompt="p", completion="", place=places[3]),
        Record(messages=CHAT, place=places[4]),
    ]
    assert [record.text for record in Records(objects[:1])] == ["a text"]


def test_a_folder_is_read_in_the_order_of_its_paths_whatever_its_files_are(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "notes.md").write_text("in\nlines")
    (tmp_path / "a.TXT").write_text("A")
    write_lines(tmp_path / "c.ndjson", {"text": "C"})
    (tmp_path / "d.json").write_text(' [{"text": "D1"},\n {"text": "D2"}]')
    write_lines(tmp_path / "e.json", {"text": "E1"}, {"text": "E2"})
    (tmp_path / ".hidden.jsonl").write_text("no JSON")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("no")
    (tmp_path / "f.txt").write_text("")
    assert [record.text for record in Records(tmp_path)] == ["A", "in\nlines", "C", "D1", "D2", "E1", "E2"]


def test_blank_lines_and_a_byte_order_mark_are_no_records(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + b'{"text": "one"}\r\n\r\n  \n{"text": "\xe2\x80\xa8two"}')
    assert [record.text for record in Records(path)] == ["one", "\u2028two"]
    (tmp_path / "data.json").write_bytes(codecs.BOM_UTF8 + b'\n[{"text": "three"}]')
    assert [record.text for record in Records(tmp_path / "data.json")] == ["three"]
    (tmp_path / "data.txt").write_bytes(codecs.BOM_UTF8 + b"four")
    assert [record.text for record in Records(tmp_path / "data.txt")] == ["four"]


BAD_LINES = {
    b"{'text': 1}": "got no JSON",
    b'{"text": "a"': "got no JSON",
    b'"a text"': "got a string: 'a text'; wanted an object",
    b"[1, 2]": "got an array",
    b"null": "got null",
    b"{}": r"got an object with the keys \(none\)",
    b'{"txt": "a", "id": 1}': "got an object with the keys txt, id",
    b'{"text": null}': "without a value",
    b'{"prompt": "a"}': 'the keys prompt; wanted .* "prompt" and "completion"',
    b'{"text": 3}': "got a number as text: 3; wanted a string",
    b'{"text": ["a"]}': "got an array as text",
    b'{"prompt": "a", "completion": 4}': "got a number as completion",
    b'{"prompt": [{"role": "user"}], "completion": "a"}': "got an array as prompt",
    b'{"messages": []}': "got no messages",
    b'{"messages": "Hi"}': "got a string as messages",
    b'{"messages": ["Hi"]}': "got a string as message 1",
    b'{"messages": [{"content": "Hi"}]}': "got the role None in message 1; wanted system, .* or tool",
    b'{"messages": [{"role": "robot", "content": "Hi"}]}': "got the role 'robot'",
    b'{"messages": [{"role": ["user"], "content": "Hi"}]}': r"got the role \['user'\]",
    b'{"messages": [{"role": "user"}]}': "got null as content of message 1",
    b'{"messages": [{"role": "user", "content": {"a": 1}}]}': "got an object as content of message 1",
    b'{"text": "caf\xe9"}': "not UTF-8",
    b'{"text": "\\ud83d"}': r"got half a character \(\\ud83d\) in text",
    b"[" * 100_000: "JSON",
    b'{"text": ' + b"9" * 10_000 + b"}": "JSON that cannot be read",
}


@pytest.mark.parametrize(("line", "says"), BAD_LINES.items())
def test_a_bad_line_is_an_error_that_names_it_and_says_what_to_do(line, says, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "one"}\n\n' + line + b'\n{"text": "two"}\n')
    with pytest.raises(DataError, match=says) as caught:
        list(Records(path))
    message = str(caught.value)
    assert message.startswith(f"data: {path}, line 3: got ")
    assert "wanted" in message and "skip_bad" in message
    assert "\n" not in message and len(message) < 500


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_left_out_and_counted_if_asked_for(line, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    records = Records(path, skip_bad=True)
    for _ in range(2):
        assert [record.text for record in records] == ["one", "two"]
        assert records.bad_count == 1
        assert records.report().startswith(f"data: left out 1 bad record, at {path}, line 2: got ")


def test_many_bad_lines_are_counted_and_the_first_are_told(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", *[{"txt": "a"}] * 100, {"text": "b"})
    records = Records(path, skip_bad=True)
    assert [record.text for record in records] == ["b"]
    assert (records.bad_count, len(records.first_bad)) == (100, 5)
    assert records.report().startswith(f"data: left out 100 bad records, the first at {path}, line 1: got ")
    assert Records([{"text": "a"}]).report() == ""


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b'[{"text": "a"},\n{"text": }]', "line 2, column 10"),
        ("a.json", b'[{"text": "a"}, {"txt": "b"}]', "a.json, record 2: got an object"),
        ("a.txt", b"one\ntw\xff", "a.txt, line 2: got bytes that are not UTF-8"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_place(name, content, says, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        list(Records(tmp_path))
    assert "\n" not in str(caught.value)


def test_an_object_that_is_no_record_is_named_by_its_number():
    with pytest.raises(DataError, match="record 2: got an object with the keys a"):
        list(Records([{"text": "a"}, {"a": "text"}]))


def test_lines_are_read_as_they_are_asked_for(tmp_path):
    path = tmp_path / "pipe.jsonl"
    path.touch()
    records = iter(Records(path))
    path.unlink()
    os.mkfifo(path)
    both_ways = os.open(path, os.O_RDWR)
    try:
        # More than a reader's buffer, and no end of the file: only a reader that streams returns.
        os.write(both_ways, (json.dumps({"text": "a" * 1000}) + "\n").encode() * 20)
        assert next(records).text == "a" * 1000
        records.close()
    finally:
        os.close(both_ways)


@pytest.mark.parametrize("name", ["nowhere", "folder"])
def test_nothing_to_read_is_an_error(name, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=f"{name}.*; give a file or a folder"):
        Records(tmp_path / name)


def test_a_file_that_is_gone_is_an_error(tmp_path):
    path = write_lines(tmp_path / "data.jsonl", {"text": "a"})
    records = Records(path)
    path.unlink()
    with pytest.raises(DataError, match=r"data.jsonl cannot be read \(No such file"):
        list(records)
