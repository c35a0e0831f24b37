import itertools

import numpy as np
import pytest

from spillgrad.data import DocumentDataset, Documents
from spillgrad.errors import ArgumentError, DataError


def documents_of(lengths, counted=None):
    """Return documents whose token i is its place in all of them, so that a row tells where it comes from."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Documents(np.arange(offsets[-1]), offsets, counted)


RANDOM = np.random.default_rng(0)
LENGTHS = RANDOM.integers(0, 40, 200)
MASKED = documents_of(LENGTHS, RANDOM.random(LENGTHS.sum()) < 0.3)
WHOLE = documents_of(LENGTHS)


def take(dataset, count, start_step=0):
    return list(itertools.islice(dataset.train_batches(start_step), count))


def epoch(dataset):
    """Return the batches of one epoch; its rows must fill them."""
    assert dataset.train_rows % dataset.batch == 0
    return take(dataset, dataset.train_rows // dataset.batch)


def bounds(starts):
    """Return, for each document of a row, its first position and the one after its last."""
    return itertools.pairwise([*np.flatnonzero(starts == np.arange(len(starts))), len(starts)])


def targets_of(documents, context, packed):
    """Return each (token, next token) that counts, one by one."""
    found = set()
    for start, end in itertools.pairwise(documents.offsets.tolist()):
        last = end - 1 if packed else min(end - 1, start + context)
        found |= {(token, token + 1) for token in range(start, last) if documents.counted[token + 1]}
    return found


def seen(batches):
    return [(int(a), int(b)) for x, y, _ in batches for a, b in zip(x.flat, y.flat, strict=True) if b != -100]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("documents", [WHOLE, MASKED], ids=["whole", "masked"])
def test_an_epoch_and_what_is_held_out_have_each_target_that_counts_once(documents, packed):
    dataset = DocumentDataset(documents, context=16, batch=1, seed=0, packed=packed)
    trained, held_out = seen(epoch(dataset)), seen(dataset.held_out_batches())
    assert len(set(trained)) == len(trained) and len(set(held_out)) == len(held_out)
    assert not set(trained) & set(held_out)
    assert {*trained, *held_out} == targets_of(documents, 16, packed)


@pytest.mark.parametrize("packed", [True, False])
def test_starts_tell_where_in_the_row_each_document_begins(packed):
    dataset = DocumentDataset(MASKED, context=16, batch=3, seed=0, packed=packed)
    document_of = np.searchsorted(MASKED.offsets, np.arange(len(MASKED.tokens)), side="right") - 1
    several = 0
    for x, y, starts in take(dataset, 40):
        assert x.shape == y.shape == starts.shape == (3, 16)
        assert x.dtype == y.dtype == starts.dtype == np.int64
        assert x.flags.c_contiguous and y.flags.c_contiguous and starts.flags.c_contiguous
        for tokens, targets, begins in zip(x, y, starts, strict=True):
            assert begins[0] == 0
            several += len(set(document_of[tokens[targets != -100]])) > 1
            for start, end in bounds(begins):
                assert (begins[start:end] == start).all()
                piece = tokens[start:end]
                if (targets[start:end] == -100).all():  # padding, which comes last
                    assert end == 16 and (piece == 0).all()
                    continue
                assert (np.diff(piece) == 1).all()
                assert len(set(document_of[piece])) == 1
                counts = targets[start:end] != -100
                assert (targets[start:end][counts] == piece[counts] + 1).all()
                assert counts[-1]  # nothing is computed after the last target
    assert bool(several) == packed


def test_documents_that_fit_are_not_cut_and_little_room_is_wasted():
    lengths = np.random.default_rng(1).integers(2, 60, 3000)
    documents = documents_of(lengths)
    dataset = DocumentDataset(documents, context=64, batch=1, seed=0)
    pieces = [
        (int(x[0, start]), end - start)
        for x, y, starts in epoch(dataset)
        for start, end in bounds(starts[0])
        if y[0, start] != -100
    ]
    whole = dict(zip(documents.offsets[:-1].tolist(), (lengths - 1).tolist(), strict=True))
    assert len(pieces) == dataset.train_documents
    assert all(whole[token] == length for token, length in pieces)
    assert dataset.train_tokens / (dataset.train_rows * 64) > 0.98


def test_a_long_document_is_cut_into_pieces_of_the_context_without_losing_a_target():
    dataset = DocumentDataset(documents_of([36]), 16, 1, 0, held_out=documents_of([2]))
    rows = sorted((y[0].tolist(), x[0].tolist(), starts[0].tolist()) for x, y, starts in epoch(dataset))
    assert rows == [
        (list(range(1, 17)), list(range(16)), [0] * 16),
        (list(range(17, 33)), list(range(16, 32)), [0] * 16),
        ([33, 34, 35] + [-100] * 13, [32, 33, 34] + [0] * 13, [0] * 3 + [3] * 13),
    ]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("start_step", [1, 7, 40, 1000, 10**12])
def test_resuming_at_a_step_gives_the_batches_of_an_uninterrupted_run(start_step, packed):
    def made():
        return DocumentDataset(MASKED, context=16, batch=5, seed=3, packed=packed)

    straight, fresh = made(), made()
    take(straight, 3, max(0, start_step - 2))
    for one, two in zip(take(straight, 6, start_step), take(fresh, 6, start_step), strict=True):
        assert all((a == b).all() for a, b in zip(one, two, strict=True))
    if start_step <= 40:
        through = take(made(), start_step + 6)[start_step:]
        assert all((a[0] == b[0]).all() for a, b in zip(through, take(made(), 6, start_step), strict=True))


@pytest.mark.parametrize("packed", [True, False])
def test_each_epoch_and_each_seed_has_an_order_of_its_own(packed):
    dataset = DocumentDataset(WHOLE, 16, 1, 0, packed=packed)
    rows = dataset.train_rows
    batches = take(dataset, 2 * rows)
    assert set(seen(batches[:rows])) == set(seen(batches[rows:]))
    assert seen(batches[:rows]) != seen(batches[rows:])
    assert seen(batches[:rows]) != seen(take(DocumentDataset(WHOLE, 16, 1, 1, packed=packed), rows))


def test_the_order_is_the_same_on_every_machine():
    dataset = DocumentDataset(documents_of([3, 4, 2, 6, 5, 4, 9]), context=6, batch=2, seed=0)
    assert [x.tolist() for x, _, _ in take(dataset, 2)] == [
        [[15, 16, 17, 18, 30, 31], [9, 10, 11, 12, 13, 7]],
        [[3, 4, 5, 20, 21, 22], [24, 25, 26, 27, 28, 29]],
    ]
    assert [x.tolist() for x, _, _ in dataset.held_out_batches()] == [[[0, 1, 0, 0, 0, 0]]]


def test_what_is_held_out_does_not_depend_on_the_seed_and_the_last_batch_has_the_rest():
    first, second = (DocumentDataset(WHOLE, 16, 4, seed, held_out_fraction=0.25) for seed in (0, 1))
    for dataset in (first, second):
        batches = list(dataset.held_out_batches())
        assert len(batches) == dataset.held_out_count
        assert {len(x) for x, _, _ in batches[:-1]} == {4}
        assert 1 <= len(batches[-1][0]) <= 4
    assert seen(first.held_out_batches()) == seen(second.held_out_batches())
    learnable = int((LENGTHS > 1).sum())
    assert first.held_out_documents == learnable // 4
    assert first.train_documents == learnable - learnable // 4
    assert first.left_out_documents == len(LENGTHS) - learnable


def test_a_second_set_is_held_out_instead():
    dataset = DocumentDataset(WHOLE, 16, 1, 0, held_out=MASKED)
    assert set(seen(epoch(dataset))) == targets_of(WHOLE, 16, True)
    assert set(seen(dataset.held_out_batches())) == targets_of(MASKED, 16, True)
    assert (dataset.train_documents, dataset.train_tokens) == ((LENGTHS > 1).sum(), np.maximum(LENGTHS - 1, 0).sum())
    assert dataset.held_out_tokens < dataset.train_tokens


def test_one_document_to_train_on_and_one_to_hold_out_are_enough():
    dataset = DocumentDataset(documents_of([2, 0, 1, 2]), context=8, batch=3, seed=0)
    assert (dataset.train_documents, dataset.held_out_documents, dataset.left_out_documents) == (1, 1, 2)
    ((x, y, starts),) = take(dataset, 1)
    assert sorted({int(x[0, 0]), *(int(x[0, 0]) for x, _, _ in dataset.held_out_batches())}) == [0, 3]
    assert (x == x[0]).all() and (y[:, 1:] == -100).all() and (starts[:, 1:] == 1).all()


NOTHING = documents_of([5, 5], np.array([1, 0, 0, 0, 0, 1, 0, 0, 0, 0], np.bool_))


@pytest.mark.parametrize(
    ("says", "make"),
    [
        ("0 of 2 documents have a token to learn from", lambda: DocumentDataset(NOTHING, 4, 1, 0)),
        ("1 of 3 documents .* give more", lambda: DocumentDataset(documents_of([9, 1, 0]), 4, 1, 0)),
        ("none of 2 documents to train on", lambda: DocumentDataset(NOTHING, 4, 1, 0, held_out=WHOLE)),
        ("none of 2 documents to hold out", lambda: DocumentDataset(WHOLE, 4, 1, 0, held_out=NOTHING)),
        (
            "0 of 1 documents .* longer context if prompts fill it",
            lambda: DocumentDataset(documents_of([9], np.arange(9) > 6), 4, 1, 0, packed=False),
        ),
    ],
)
def test_documents_without_a_token_to_learn_from_are_an_error(says, make):
    with pytest.raises(DataError, match=says):
        make()


@pytest.mark.parametrize("wrong", [{"context": 0}, {"batch": 0}, {"held_out_fraction": 0.0}, {"held_out_fraction": 1}])
def test_sizes_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ArgumentError, match=f"DocumentDataset: got .*{next(iter(wrong))}"):
        DocumentDataset(WHOLE, **{"context": 8, "batch": 2, "seed": 0} | wrong)
