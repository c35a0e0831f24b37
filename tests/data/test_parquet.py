import builtins
import sys

import pyarrow
import pyarrow.parquet
import pytest

from spillgrad.data import Records
from spillgrad.errors import ArgumentError, DataError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def write(path, columns, **options):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def test_rows_are_records_and_other_columns_are_not_read(tmp_path):
    path = write(
        tmp_path / "data.parquet",
        {
            "id": range(3), "text": ["a text", None, None], "prompt": [None, "2 + 2 =", None],
            "completion": [None, " 4", None], "messages": [None, None, CHAT],
        },
    )  # fmt: skip
    text, completion, chat = Records(path)
    assert text.text == "a text"
    assert (completion.prompt, completion.completion) == ("2 + 2 =", " 4")
    assert (chat.messages, chat.place) == (CHAT, f"{path}, row 3")


def test_keys_that_only_other_messages_have_are_left_out(tmp_path):
    messages = [
        {"role": "assistant", "content": "a", "tool_calls": None},
        {"role": "tool", "content": "b", "name": "c"},
    ]
    (record,) = Records(write(tmp_path / "data.parquet", {"messages": [messages]}))
    assert record.messages == [{"role": "assistant", "content": "a"}, {"role": "tool", "content": "b", "name": "c"}]


@pytest.mark.parametrize("options", [{}, {"row_group_size": 700}, {"compression": "zstd"}])
def test_all_rows_come_in_order_and_in_any_type_of_text(options, tmp_path):
    texts = [f"text {number % 13}" for number in range(3000)]
    for kind in (pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())):
        path = write(tmp_path / "data.parquet", {"text": pyarrow.array(texts).cast(kind)}, **options)
        assert [record.text for record in Records(path)] == texts


def test_a_bad_row_is_an_error_that_names_it_or_is_left_out(tmp_path):
    path = write(tmp_path / "data.parquet", {"text": ["one", None, "three"]})
    with pytest.raises(DataError, match=r"data.parquet, row 2: got an object with the keys text without a value"):
        list(Records(path))
    records = Records(path, skip_bad=True)
    assert [record.text for record in records] == ["one", "three"]
    assert records.bad_count == 1


def test_a_row_that_is_not_utf_8_is_an_error_that_names_it_or_is_left_out(tmp_path):
    content = pyarrow.array([b"one", b"tw\xff", b"three"], pyarrow.binary())
    path = write(tmp_path / "data.parquet", {"text": content.view(pyarrow.string())})
    with pytest.raises(DataError, match=r"data.parquet, row 2: got text that is not UTF-8"):
        list(Records(path))
    assert [record.text for record in Records(path, skip_bad=True)] == ["one", "three"]


def test_a_file_without_any_of_the_columns_is_an_error(tmp_path):
    path = write(tmp_path / "data.parquet", {"id": [1], "content": ["a"]})
    with pytest.raises(DataError, match="with the columns id, content; wanted one of text, prompt"):
        list(Records(path, skip_bad=True))


@pytest.mark.parametrize("cut", [0, 3, 200])
def test_a_damaged_file_is_an_error_of_one_line(cut, tmp_path):
    path = write(tmp_path / "data.parquet", {"text": ["a", "b"] * 99})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"data.parquet cannot be read as Parquet") as caught:
        list(Records(path))
    assert "\n" not in str(caught.value)


def test_without_the_package_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    path = write(tmp_path / "data.parquet", {"text": ["a"]})
    real = builtins.__import__

    def without(name, *arguments):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    with pytest.raises(ArgumentError, match=r"pip install 'spillgrad\[parquet\]'"):
        list(Records(path))
