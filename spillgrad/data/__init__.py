"""Text and other data, in batches."""

from spillgrad.data.byte_dataset import ByteDataset
from spillgrad.data.dataset import DataLoader, Dataset, TensorDataset, collate
from spillgrad.data.text import load_text

__all__ = ["ByteDataset", "DataLoader", "Dataset", "TensorDataset", "collate", "load_text"]
