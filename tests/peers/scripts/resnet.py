"""A small ResNet on scikit-learn's digits, written for PyTorch: prints the loss of every step as a JSON list."""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

BATCH, STEPS = 64, 40


class Block(nn.Module):
    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(torch.flatten(self.pool(self.blocks(self.stem(x))), 1))


torch.manual_seed(0)
torch.set_num_threads(2)
model = ResNet()
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for p in model.parameters():
        if p.dim() > 1:
            fan_in = p[0].numel()
            p.copy_(torch.tensor(random.normal(0, np.sqrt(2 / fan_in), tuple(p.shape)).astype(np.float32)))
    model.head.bias.zero_()

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
labels = torch.tensor(labels)
order = random.permutation(len(labels))
train, test = order[:1500], order[1500:]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

model.train()
losses = []
for _ in range(STEPS):
    batch = torch.from_numpy(random.choice(train, BATCH, replace=False))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images[batch]), labels[batch], label_smoothing=0.05)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())

model.eval()
with torch.no_grad():
    logits = model(images[torch.from_numpy(test)])
    right = (logits.argmax(dim=1) == labels[torch.from_numpy(test)]).float().mean().item()
print(json.dumps([*losses, right]))
