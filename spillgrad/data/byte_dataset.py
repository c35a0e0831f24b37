"""Windows of a text, byte by byte."""

import numpy as np

from spillgrad.data.token_dataset import TokenDataset


class ByteDataset(TokenDataset):
    """A `TokenDataset` whose tokens are the bytes of a text. Raises DataError when it is too short."""

    _unit = "bytes"

    def __init__(self, text: bytes, context: int, batch: int, seed: int, held_out_fraction: float = 0.1) -> None:
        super().__init__(np.frombuffer(text, np.uint8), context, batch, seed, held_out_fraction)

    @property
    def train_bytes(self) -> int:
        """Return how many bytes are trained on."""
        return self.train_tokens

    @property
    def held_out_bytes(self) -> int:
        """Return how many bytes are held out."""
        return self.held_out_tokens
