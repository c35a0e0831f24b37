"""A generative adversarial network of convolutions on scikit-learn's digits, written for PyTorch: prints both losses of
every step as a JSON list.
"""

import json

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

LATENT, WIDTH, BATCH, STEPS = 16, 16, 32, 24


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(LATENT, 2 * WIDTH, 2, 1, 0, bias=False),
            nn.BatchNorm2d(2 * WIDTH),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * WIDTH, WIDTH, 4, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(True),
            nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * WIDTH),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * WIDTH, 1, 2, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, image):
        return self.main(image).view(-1)


random = np.random.default_rng(0)


def init_weights(m):
    name = m.__class__.__name__
    if name.find("Conv") != -1:
        m.weight.data.copy_(torch.from_numpy(random.normal(0, 0.05, tuple(m.weight.shape)).astype(np.float32)))
    elif name.find("BatchNorm") != -1:
        nn.init.ones_(m.weight.data)
        nn.init.constant_(m.bias.data, 0)


torch.manual_seed(0)
torch.set_num_threads(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float).view(-1, 1, 8, 8).div_(8).sub_(1)
loader = DataLoader(TensorDataset(images, torch.tensor(labels)), batch_size=BATCH, drop_last=True, num_workers=0)

generator, discriminator = Generator().to(device), Discriminator().to(device)
generator.apply(init_weights)
discriminator.apply(init_weights)
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))

losses = []
for _, (real, _) in zip(range(STEPS), loader):
    discriminator.zero_grad()
    real = real.to(device)
    label = torch.full((BATCH,), 1.0, device=device)
    loss_real = criterion(discriminator(real), label)
    loss_real.backward()
    noise = torch.from_numpy(random.normal(size=(BATCH, LATENT, 1, 1)).astype(np.float32)).to(device)
    fake = generator(noise)
    label.fill_(0.0)
    loss_fake = criterion(discriminator(fake.detach()), label)
    loss_fake.backward()
    optimizer_d.step()

    generator.zero_grad()
    label.fill_(1.0)
    loss_g = criterion(discriminator(fake), label)
    loss_g.backward()
    optimizer_g.step()
    losses += [(loss_real + loss_fake).item(), loss_g.item()]
print(json.dumps(losses))
