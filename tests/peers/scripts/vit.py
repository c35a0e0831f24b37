"""A vision transformer on scikit-learn's digits, written for PyTorch: prints the loss of every step, and the share of
right answers at the end, as a JSON list.
"""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Subset, TensorDataset

PATCH, WIDTH, HEADS, LAYERS, BATCH, EPOCHS = 2, 32, 4, 2, 50, 3


class PatchEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Conv2d(1, WIDTH, kernel_size=PATCH, stride=PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.position = nn.Parameter(torch.zeros(1, (8 // PATCH) ** 2 + 1, WIDTH))

    def forward(self, image):
        x = self.project(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1)
        return x + self.position


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = PatchEmbedding()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, image):
        return self.head(self.encoder(self.embed(image))[:, 0])


torch.manual_seed(0)
torch.set_num_threads(2)
model = VisionTransformer()
random = np.random.default_rng(0)
state = model.state_dict()
for name, value in state.items():  # the same weights everywhere
    if value.dim() > 1:
        scale = value[0].numel() ** -0.5
        state[name] = torch.from_numpy(random.normal(0, scale, tuple(value.shape)).astype(np.float32))
    elif name.endswith("bias"):
        state[name] = torch.zeros_like(value)
model.load_state_dict(state)
decayed = [p for p in model.parameters() if p.dim() >= 2]
others = [p for p in model.parameters() if p.dim() < 2]

images, labels = load_digits(return_X_y=True)
dataset = TensorDataset(torch.tensor(images).float().reshape(-1, 1, 8, 8) / 16, torch.tensor(labels).long())
order = random.permutation(len(dataset)).tolist()
train = DataLoader(Subset(dataset, order[:1000]), batch_size=BATCH, shuffle=False, pin_memory=False)
test = DataLoader(Subset(dataset, order[1000:]), batch_size=256)
groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-3)
scheduler = OneCycleLR(optimizer, max_lr=3e-3, epochs=EPOCHS, steps_per_epoch=len(train), pct_start=0.3)

losses = []
for _ in range(EPOCHS):
    model.train()
    for image, label in train:
        loss = F.cross_entropy(model(image), label, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())

model.eval()
right = 0
with torch.inference_mode():
    for image, label in test:
        right += (model(image).argmax(-1) == label).sum().item()
print(json.dumps([*losses, right / len(test.dataset)]))
