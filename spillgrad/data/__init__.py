"""Text and other data, in batches."""

from spillgrad.data.bpe import BPEDataset, BPETokenizer
from spillgrad.data.dataset import DataLoader, Dataset, TensorDataset, collate
from spillgrad.data.text import load_text
from spillgrad.data.token_dataset import ByteDataset, TokenDataset

__all__ = [
    "BPEDataset", "BPETokenizer", "ByteDataset", "DataLoader", "Dataset", "TensorDataset", "TokenDataset", "collate",
    "load_text",
]  # fmt: skip
