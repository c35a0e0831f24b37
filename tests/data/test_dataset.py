import pytest

import spillgrad as sg
from spillgrad.errors import ArgumentError, ShapeError
from spillgrad.utils.data import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)  # fmt: skip


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index


class Letters(IterableDataset):
    def __init__(self, text):
        self.text = text

    def __iter__(self):
        return iter(self.text)

    def __len__(self):
        return len(self.text)


def test_datasets_are_put_one_after_the_other():
    both = Squares() + TensorDataset(sg.arange(3))
    assert isinstance(both, ConcatDataset)
    assert len(both) == 7
    assert [both[index] for index in range(4)] == [0, 1, 4, 9]
    assert both[5][0].item() == 1
    assert both[-7] == 0
    with pytest.raises(IndexError):
        both[7]
    with pytest.raises(ArgumentError, match="empty"):
        ConcatDataset([])
    with pytest.raises(ArgumentError, match="IterableDataset"):
        ConcatDataset([Letters("a")])
    chain = Letters("ab") + Letters("c")
    assert isinstance(chain, ChainDataset)
    assert "".join(chain) == "abc"
    assert len(chain) == 3


def test_datasets_are_put_beside_each_other():
    assert StackDataset(Squares(), range(4))[3] == (9, 3)
    assert StackDataset(x=Squares(), y=range(4))[2] == {"x": 4, "y": 2}
    with pytest.raises(ShapeError, match=r"\[4, 3\]"):
        StackDataset(Squares(), range(3))
    with pytest.raises(ArgumentError, match="At least one dataset"):
        StackDataset()


def test_a_subset_has_the_samples_at_its_indices():
    subset = Subset(Squares(), [3, 1])
    assert len(subset) == 2
    assert [subset[0], subset[1]] == [9, 1]
    assert subset.__getitems__([1, 0]) == [1, 9]


@pytest.mark.parametrize(
    ("lengths", "sizes"), [([7, 3], [7, 3]), ([0.5, 0.5], [5, 5]), ([0.34, 0.33, 0.33], [4, 3, 3]), ([10, 0], [10, 0])]
)
def test_a_dataset_is_split_at_random(lengths, sizes):
    parts = random_split(range(10), lengths, sg.Generator(1))
    assert [len(part) for part in parts] == sizes
    assert sorted(sample for part in parts for sample in part) == list(range(10))
    again = random_split(range(10), lengths, sg.Generator(1))
    assert [list(part) for part in again] == [list(part) for part in parts]
    assert any(list(part) != sorted(part) for part in parts)


def test_lengths_that_do_not_add_up_are_refused():
    with pytest.raises(ArgumentError, match="does not equal the length"):
        random_split(range(10), [5, 4])
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        random_split(range(10), [1.5, -0.5])


def test_a_dataset_without_samples_says_what_to_define():
    with pytest.raises(NotImplementedError, match="implement __getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(IterableDataset())
