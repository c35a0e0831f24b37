"""Convolutional networks: classifiers, a diffusion model's U-Net, a GAN, and style transfer."""

import math
from typing import Any

import numpy as np

from spillgrad_tools.bench.programs.program import Program, Step, fill, given, normal, training, whole_numbers


def _classifier(
    torch: Any, random: np.random.Generator, model: Any, batch: int, size: int, channels: int = 3, lr: float = 0.01
) -> Step:
    """Return the step of a classifier of ten classes, which stochastic gradient descent with momentum trains."""
    fill(torch, model, random)
    model.train()
    x, y = normal(torch, random, batch, channels, size, size), whole_numbers(torch, random, 10, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    return training(optimizer, lambda: torch.nn.functional.cross_entropy(model(x), y))


def mnist_cnn(torch: Any, random: np.random.Generator) -> Step:
    """Make the network of PyTorch's MNIST example, without dropout: 64 images of 28 x 28."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return _classifier(torch, random, model, 64, 28, channels=1, lr=0.001)


def resnet18(torch: Any, random: np.random.Generator) -> Step:
    """Make ResNet-18 for CIFAR (He et al. 2016): 32 images of 32 x 32."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, inner: int, outer: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
            self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
            self.shortcut = nn.Sequential()
            if stride != 1 or inner != outer:
                self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))

    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(width, outer, stride), Block(outer, outer, 1)]
        width = outer
    model = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    return _classifier(torch, random, model, 32, 32)


def densenet(torch: Any, random: np.random.Generator) -> Step:
    """Make a DenseNet-BC of 40 layers with 12 channels each (Huang et al. 2017): 32 images of 32 x 32."""
    nn, growth = torch.nn, 12

    class Dense(nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.bn1, self.conv1 = nn.BatchNorm2d(inner), nn.Conv2d(inner, 4 * growth, 1, bias=False)
            self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.conv2(torch.relu(self.bn2(self.conv1(torch.relu(self.bn1(x))))))
            return torch.cat([y, x], 1)

    width = 2 * growth
    layers: list[Any] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    for part in range(3):
        for _ in range(6):
            layers.append(Dense(width))
            width += growth
        layers += [nn.BatchNorm2d(width), nn.ReLU()]
        if part < 2:
            layers += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
    model = nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(width, 10))
    return _classifier(torch, random, model, 32, 32)


def mobilenet(torch: Any, random: np.random.Generator) -> Step:
    """Make MobileNetV2 for CIFAR (Sandler et al. 2018): 32 images of 32 x 32."""
    nn = torch.nn

    class Inverted(nn.Module):
        def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
            super().__init__()
            wide = inner * expansion
            self.adds = stride == 1 and inner == outer
            self.body = nn.Sequential(
                nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer),
            )  # fmt: skip

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.adds else self.body(x)

    width = 32
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU6()]
    plan = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, outer, count, stride in plan:
        for i in range(count):
            layers.append(Inverted(width, outer, stride if i == 0 else 1, expansion))
            width = outer
    layers += [nn.Conv2d(width, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(), nn.AvgPool2d(4), nn.Flatten()]
    return _classifier(torch, random, nn.Sequential(*layers, nn.Linear(1280, 10)), 32, 32)


def style_transfer(torch: Any, random: np.random.Generator) -> Step:
    """Make style transfer (Gatys et al. 2016): an image of 128 x 128 is learned through the first layers of VGG."""
    nn = torch.nn
    layers: list[Any] = []
    width = 3
    for outer in (64, 64, 0, 128, 128, 0, 256, 256):
        if outer:
            layers += [nn.Conv2d(width, outer, 3, padding=1), nn.ReLU()]
            width = outer
        else:
            layers.append(nn.MaxPool2d(2))
    model = fill(torch, nn.Sequential(*layers), random).requires_grad_(False)
    picture = normal(torch, random, 1, 3, 128, 128).requires_grad_(True)
    style = normal(torch, random, 1, 3, 128, 128)

    def gram(x: Any) -> Any:
        rows = x.view(x.shape[1], -1)
        return rows @ rows.t() / rows.numel()

    def features(x: Any) -> list[Any]:
        found = []
        for layer in model:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                found.append(x)
        return found

    with torch.no_grad():
        goals = [gram(x) for x in features(style)]
        content = features(picture)[-1]
    optimizer = torch.optim.Adam([picture], lr=0.02)

    def loss_of() -> Any:
        found = features(picture)
        loss = nn.functional.mse_loss(found[-1], content)
        for x, goal in zip(found, goals, strict=True):
            loss = loss + 1e3 * nn.functional.mse_loss(gram(x), goal)
        return loss

    return training(optimizer, loss_of)


def dcgan(torch: Any, random: np.random.Generator) -> Step:
    """Make a DCGAN (Radford et al. 2016) of 32 channels: 16 images of 64 x 64; a step trains both networks."""
    nn, width, batch = torch.nn, 32, 16
    up: list[Any] = [nn.ConvTranspose2d(100, 8 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * width), nn.ReLU()]
    down: list[Any] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for factor in (8, 4, 2):
        half = factor // 2 * width
        up += [nn.ConvTranspose2d(factor * width, half, 4, 2, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU()]
    for factor in (1, 2, 4):
        twice = 2 * factor * width
        down += [nn.Conv2d(factor * width, twice, 4, 2, 1, bias=False), nn.BatchNorm2d(twice), nn.LeakyReLU(0.2)]
    generator = nn.Sequential(*up, nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh())
    critic = nn.Sequential(*down, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten())
    fill(torch, generator, random)
    fill(torch, critic, random)
    real, noise = normal(torch, random, batch, 3, 64, 64), normal(torch, random, batch, 100, 1, 1)
    ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)
    optimizers = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999)) for part in (critic, generator)]
    judge = nn.BCEWithLogitsLoss()

    def step() -> Any:
        optimizers[0].zero_grad()
        made = generator(noise)
        loss = judge(critic(real), ones) + judge(critic(made.detach()), zeros)
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        deceived = judge(critic(made), ones)
        deceived.backward()
        optimizers[1].step()
        return loss + deceived

    return step


def diffusion_unet(torch: Any, random: np.random.Generator) -> Step:
    """Make the U-Net of a diffusion model (Ho et al. 2020), of 32 channels: 16 images of 32 x 32."""
    nn, width, batch = torch.nn, 32, 16
    functional = nn.functional

    class Residual(nn.Module):
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.norm1, self.conv1 = nn.GroupNorm(8, inner), nn.Conv2d(inner, outer, 3, padding=1)
            self.time = nn.Linear(4 * width, outer)
            self.norm2, self.conv2 = nn.GroupNorm(8, outer), nn.Conv2d(outer, outer, 3, padding=1)
            self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            y = self.conv1(functional.silu(self.norm1(x)))
            y = y + self.time(functional.silu(time))[:, :, None, None]
            return self.conv2(functional.silu(self.norm2(y))) + self.skip(x)

    class Attention(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.norm, self.qkv = nn.GroupNorm(8, channels), nn.Conv2d(channels, 3 * channels, 1)
            self.proj = nn.Conv2d(channels, channels, 1)

        def forward(self, x: Any) -> Any:
            n, c, h, w = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(n, 3, c, h * w).transpose(2, 3).unbind(1)
            mixed = functional.scaled_dot_product_attention(q, k, v)
            return x + self.proj(mixed.transpose(1, 2).reshape(n, c, h, w))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
            self.first = nn.Conv2d(3, width, 3, padding=1)
            self.down1, self.shrink1 = Residual(width, width), nn.Conv2d(width, width, 3, 2, 1)
            self.down2, self.shrink2 = Residual(width, 2 * width), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)
            self.middle, self.attention = Residual(2 * width, 4 * width), Attention(4 * width)
            self.up2, self.up1 = Residual(6 * width, 2 * width), Residual(3 * width, width)
            self.norm, self.last = nn.GroupNorm(8, width), nn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x: Any, time: Any) -> Any:
            time = self.time(time)
            first = self.down1(self.first(x), time)
            second = self.down2(self.shrink1(first), time)
            y = self.attention(self.middle(self.shrink2(second), time))
            y = self.up2(torch.cat([functional.interpolate(y, scale_factor=2.0), second], 1), time)
            y = self.up1(torch.cat([functional.interpolate(y, scale_factor=2.0), first], 1), time)
            return self.last(functional.silu(self.norm(y)))

    model = fill(torch, UNet(), random)
    pictures, noise = normal(torch, random, batch, 3, 32, 32), normal(torch, random, batch, 3, 32, 32)
    angles = random.integers(0, 1000, (batch, 1)) * np.exp(np.arange(width // 2) * -math.log(10000) / (width // 2 - 1))
    time = given(torch, np.concatenate([np.sin(angles), np.cos(angles)], 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    return training(optimizer, lambda: functional.mse_loss(model(0.8 * pictures + 0.6 * noise, time), noise))


PROGRAMS = (
    Program("MNIST CNN", "two convolutions and two linear layers; 64 x 28 x 28", mnist_cnn),
    Program("ResNet-18", "for CIFAR; 32 x 32 x 32", resnet18),
    Program("DenseNet", "40 layers with 12 channels each; 32 x 32 x 32", densenet),
    Program("MobileNetV2", "for CIFAR; 32 x 32 x 32", mobilenet),
    Program("style transfer", "VGG's first six convolutions; 1 x 128 x 128", style_transfer),
    Program("DCGAN", "32 channels; 16 x 64 x 64", dcgan),
    Program("diffusion U-Net", "32 channels; 16 x 32 x 32", diffusion_unet),
)
