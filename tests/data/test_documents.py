import numpy as np
import pytest

from spillgrad.data import Documents, Records
from spillgrad.errors import ArgumentError, DataError
from tests.data.chat_templates import write_folder


def test_bytes_are_tokens_without_a_tokenizer():
    documents = Documents.from_records([{"text": "naïve"}, {"prompt": "é=", "completion": "☃!"}])
    assert documents.tokens.dtype == np.uint8
    assert documents.tokens.tobytes() == "naïveé=☃!".encode()
    assert documents.offsets.tolist() == [0, 6, 13]
    assert documents[0][1].all()
    assert documents[1][1].tolist() == [False] * 3 + [True] * 4
    assert documents[-1][0].tobytes() == "é=☃!".encode()


def test_messages_are_no_bytes():
    with pytest.raises(DataError, match="record 1: got messages for a model of bytes; wanted"):
        Documents.from_records([{"messages": [{"role": "user", "content": "Hi"}]}])


def test_tokens_take_the_narrowest_type_that_holds_them(tmp_path):
    documents = Documents.from_records([{"text": "What is it?"}], write_folder(tmp_path))
    assert documents.tokens.dtype == np.uint16


def test_many_texts_are_tokenized_as_each_alone(tmp_path):
    write_folder(tmp_path)
    texts = [f"What {'is' * (number % 7)} {number}?" for number in range(2500)]
    records = [
        {"text": text} if number % 3 else {"prompt": text, "completion": "it"} for number, text in enumerate(texts)
    ]
    documents = Documents.from_records(records, tmp_path)
    assert len(documents) == 2500
    for number in (0, 1, 1023, 1024, 2499):
        tokens, counted = Documents.from_records([records[number]], tmp_path)[0]
        assert (documents[number][0] == tokens).all()
        assert (documents[number][1] == counted).all()


def test_texts_without_a_character_are_no_documents(tmp_path):
    documents = Documents.from_records([{"text": ""}, {"text": "a"}, {"text": ""}], write_folder(tmp_path))
    assert len(documents) == 1


def test_no_record_at_all_is_an_error(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("{}\n")
    with pytest.raises(DataError, match=r"data.jsonl holds no records; give some \(data: left out 1 bad record, at"):
        Documents.from_records(Records(path, skip_bad=True))
    with pytest.raises(DataError, match=r"the records holds no records; give some$"):
        Documents.from_records([])


@pytest.mark.parametrize(
    ("says", "arrays"),
    [
        ("float64 tokens", (np.zeros(3), [0, 3])),
        (r"tokens of shape \(1, 3\)", (np.zeros((1, 3), int), [0, 1])),
        ("offsets .* from 0 to 3", (np.zeros(3, int), [0, 2])),
        ("offsets .* from 0 to 3", (np.zeros(3, int), [1, 3])),
        ("offsets .* from 0 to 3", (np.zeros(3, int), [0, 2, 1, 3])),
        ("offsets .* from 0 to 3", (np.zeros(3, int), np.zeros(0, int))),
        ("float64 offsets", (np.zeros(3, int), [0.0, 3.0])),
        (r"bool counted of shape \(2,\)", (np.zeros(3, int), [0, 3], np.ones(2, bool))),
        ("int64 counted", (np.zeros(3, int), [0, 3], np.ones(3, int))),
    ],
)
def test_arrays_that_do_not_fit_are_refused(says, arrays):
    with pytest.raises(ArgumentError, match=says):
        Documents(*arrays)


def test_a_number_out_of_range_is_an_index_error():
    with pytest.raises(IndexError, match="got number 1; there are 1 documents"):
        Documents.from_records([{"text": "a"}])[1]
    assert repr(Documents.from_records([{"text": "abc"}])) == "Documents(1 documents, 3 tokens)"
