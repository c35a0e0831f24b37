"""Datasets, samplers and batches; and texts to train language models on."""

from spillgrad.data.bpe import BPEDataset, BPETokenizer
from spillgrad.data.chat_tokenizer import ChatTokenizer
from spillgrad.data.collate import default_collate as collate
from spillgrad.data.data_loader import DataLoader
from spillgrad.data.dataset import Dataset, TensorDataset
from spillgrad.data.document_dataset import DocumentDataset
from spillgrad.data.documents import Documents
from spillgrad.data.records import Record, Records
from spillgrad.data.text import load_text
from spillgrad.data.token_dataset import ByteDataset, TokenDataset

__all__ = [
    "BPEDataset", "BPETokenizer", "ByteDataset", "ChatTokenizer", "DataLoader", "Dataset", "DocumentDataset",
    "Documents", "Record", "Records", "TensorDataset", "TokenDataset", "collate", "load_text",
]  # fmt: skip
