"""An encoder-decoder transformer that learns to reverse sequences, written for PyTorch: prints the loss of every step,
and the share of symbols it decodes right, as a JSON list.
"""

import json
import math

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS, SYMBOLS = 0, 1, 2, 10
LONGEST, WIDTH, BATCH, STEPS = 6, 32, 32, 50


class Reversals(Dataset):
    def __init__(self, count):
        random = np.random.default_rng(1)
        self.items = [random.integers(3, SYMBOLS, random.integers(3, LONGEST + 1)).tolist() for _ in range(count)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        return torch.tensor(item + [EOS]), torch.tensor([BOS] + item[::-1] + [EOS])


def collate(batch):
    sources, targets = zip(*batch)
    return nn.utils.rnn.pad_sequence(sources, padding_value=PAD), nn.utils.rnn.pad_sequence(targets, padding_value=PAD)


class PositionalEncoding(nn.Module):
    def __init__(self, longest=16):
        super().__init__()
        rates = torch.exp(-torch.arange(0, WIDTH, 2) * math.log(10000) / WIDTH)
        places = torch.arange(0, longest).reshape(longest, 1)
        encoding = torch.zeros((longest, WIDTH))
        encoding[:, 0::2] = torch.sin(places * rates)
        encoding[:, 1::2] = torch.cos(places * rates)
        self.register_buffer("encoding", encoding.unsqueeze(-2))

    def forward(self, x: Tensor):
        return x + self.encoding[: x.size(0), :]


class Seq2SeqTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=WIDTH, nhead=4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=64, dropout=0.0
        )
        self.generator = nn.Linear(WIDTH, SYMBOLS)
        self.embedding = nn.Embedding(SYMBOLS, WIDTH, padding_idx=PAD)
        self.positions = PositionalEncoding()

    def embed(self, tokens):
        return self.positions(self.embedding(tokens.long()) * math.sqrt(WIDTH))

    def forward(self, source, target):
        mask = torch.triu(torch.ones(target.shape[0], target.shape[0], dtype=torch.bool), diagonal=1)
        hidden = (source == PAD).transpose(0, 1)
        out = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=mask,
            src_key_padding_mask=hidden,
            tgt_key_padding_mask=(target == PAD).transpose(0, 1),
            memory_key_padding_mask=hidden,
        )
        return self.generator(out)


torch.manual_seed(0)
torch.set_num_threads(2)
model = Seq2SeqTransformer()
random = np.random.default_rng(0)
for name, p in model.named_parameters():  # the same weights everywhere
    if "bias" in name:
        nn.init.zeros_(p)
    elif p.dim() > 1:
        bound = math.sqrt(6 / sum(p.shape))
        p.data.copy_(torch.from_numpy(random.uniform(-bound, bound, tuple(p.shape)).astype(np.float32)))
loader = DataLoader(Reversals(BATCH * STEPS), batch_size=BATCH, collate_fn=collate)
loss_function = torch.nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)

losses = []
model.train()
for source, target in loader:
    logits = model(source, target[:-1, :])
    optimizer.zero_grad()
    loss = loss_function(logits.reshape(-1, logits.shape[-1]), target[1:, :].reshape(-1))
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

model.eval()
with torch.no_grad():  # with the right beginning given
    source, target = next(iter(DataLoader(Reversals(200), batch_size=200, collate_fn=collate)))
    chosen = model(source, target[:-1]).argmax(-1)
    counted = target[1:].ne(PAD)
    right = chosen.eq(target[1:])[counted].float().mean()
print(json.dumps([*losses, right.item()]))
