"""Image and text encoders that learn to agree (as CLIP's do), on scikit-learn's digits and their names, written for
PyTorch: prints the loss of every step, and the share of images that find their name, as a JSON list.
"""

import json
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

NAMES = "zero one two three four five six seven eight nine".split()
STEPS = 40


@dataclass
class Options:
    width: int = 32
    heads: int = 2
    embed: int = 24
    batch: int = 20


class QuickGELU(nn.Module):
    def forward(self, x: torch.Tensor):
        return x * torch.sigmoid(1.702 * x)


class ResidualAttentionBlock(nn.Module):
    def __init__(self, width, heads, mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, heads)
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            OrderedDict(
                [("c_fc", nn.Linear(width, width * 4)), ("gelu", QuickGELU()), ("c_proj", nn.Linear(width * 4, width))]
            )
        )
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=self.mask)[0]
        return x + self.mlp(self.ln_2(x))


class TextEncoder(nn.Module):
    def __init__(self, o: Options, length):
        super().__init__()
        self.token_embedding = nn.Embedding(27, o.width)
        self.positional_embedding = nn.Parameter(torch.empty(length, o.width))
        mask = torch.empty(length, length).fill_(float("-inf")).triu_(1)
        self.block = ResidualAttentionBlock(o.width, o.heads, mask)
        self.ln_final = nn.LayerNorm(o.width)
        self.projection = nn.Parameter(torch.empty(o.width, o.embed))

    def forward(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.block(x.permute(1, 0, 2)).permute(1, 0, 2))
        return x[torch.arange(x.shape[0]), (text != 0).sum(dim=-1) - 1] @ self.projection  # at the last letter


class CLIP(nn.Module):
    def __init__(self, o: Options, length):
        super().__init__()
        self.image = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.Hardswish(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, o.embed)
        )
        self.text = TextEncoder(o, length)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, image, text):
        image = self.image(image)
        text = self.text(text)
        image = image / image.norm(dim=1, keepdim=True)
        text = F.normalize(text, dim=-1)
        logits = self.logit_scale.exp() * image @ text.t()
        return logits, logits.t()


torch.manual_seed(0)
torch.set_num_threads(2)
options = Options()
length = max(map(len, NAMES))
text = torch.tensor([[ord(c) - 96 for c in name] + [0] * (length - len(name)) for name in NAMES])
model = CLIP(options, length)
random = np.random.default_rng(0)
for name, p in sorted(model.named_parameters()):  # the same weights everywhere
    if p.ndim > 1:
        nn.init.constant_(p, 0.0)
        p.data.add_(torch.from_numpy(random.normal(0, 0.15, tuple(p.shape)).astype(np.float32)))
    elif "bias" in name:
        nn.init.zeros_(p)

digits = load_digits()
images = torch.as_tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
first = [int(np.flatnonzero(digits.target == d)[0]) for d in range(10)]
optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3)
losses = []
for _ in range(STEPS):
    chosen = [int(random.choice(np.flatnonzero(digits.target == d))) for d in range(10)]  # one image of each digit
    of_image, of_text = model(images[chosen], text)
    target = torch.arange(10)
    loss = (F.cross_entropy(of_image, target) + F.cross_entropy(of_text, target)) / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    model.logit_scale.data.clamp_(0, np.log(100))
    losses.append(loss.item())

model.eval()
with torch.no_grad():
    logits, _ = model(images, text)
    right = (logits.topk(1, dim=-1).indices.squeeze(-1) == torch.tensor(digits.target)).double().mean()
print(json.dumps([*losses, float(right)]))
