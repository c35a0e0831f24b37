"""A variational autoencoder on scikit-learn's digits, written for PyTorch: prints the loss of every step, and of all
digits, as a JSON list.
"""

import json

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.distributions import Bernoulli, Independent, Normal, kl_divergence
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

LATENT, BATCH, EPOCHS = 8, 128, 4


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 48)
        self.fc21 = nn.Linear(48, LATENT)
        self.fc22 = nn.Linear(48, LATENT)
        self.fc3 = nn.Linear(LATENT, 48)
        self.fc4 = nn.Linear(48, 64)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return Normal(self.fc21(h), F.softplus(self.fc22(h)) + 1e-4)

    def decode(self, z):
        return Independent(Bernoulli(logits=self.fc4(F.relu(self.fc3(z)))), 1)


torch.manual_seed(0)
torch.set_num_threads(2)
model = VAE()
random = np.random.default_rng(0)
with torch.no_grad():  # the same weights everywhere
    for p in model.parameters():
        scale = p.shape[1] ** -0.5 if p.dim() == 2 else 0.0
        p.copy_(torch.from_numpy(random.normal(0, scale, tuple(p.shape))).float())
optimizer = optim.Adamax(model.parameters(), lr=1e-2)
prior = Normal(torch.zeros(LATENT), torch.ones(LATENT))
digits = (torch.tensor(load_digits().data) > 7).float()
loader = DataLoader(TensorDataset(digits), batch_size=BATCH)


def bound(x):
    posterior = model.encode(x)
    noise = torch.from_numpy(random.standard_normal(tuple(posterior.loc.shape))).float()
    z = posterior.loc + posterior.scale * noise  # rsample, with the same noise everywhere
    return (kl_divergence(posterior, prior).sum(-1) - model.decode(z).log_prob(x)).mean() / 64  # per pixel


losses = []
for _ in range(EPOCHS):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = bound(x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

subset = DataLoader(TensorDataset(digits), batch_size=100, sampler=SubsetRandomSampler(range(100)))
with torch.no_grad():
    (some,) = next(iter(subset))  # in another order with each library
    entropy = model.encode(some).entropy().sum()
    print(json.dumps([*losses, bound(digits).item(), entropy.item() / 100]))
