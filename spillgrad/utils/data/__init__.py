"""Datasets, samplers and batches, under PyTorch's path."""

from spillgrad.data.collate import default_collate, default_convert
from spillgrad.data.data_loader import DataLoader
from spillgrad.data.dataset import *
from spillgrad.data.fetching import WorkerInfo, get_worker_info
from spillgrad.data.sampler import *
