"""Recurrent networks, a state-space model, reinforcement learning, a graph network and an autoencoder."""

from typing import Any

import numpy as np

from spillgrad_tools.bench.programs.program import Program, Step, fill, given, normal, training, whole_numbers


def makemore_gru(torch: Any, random: np.random.Generator) -> Step:
    """Make makemore's GRU, whose cell is written out: width 64, 32 names of 16 letters."""
    nn, functional = torch.nn, torch.nn.functional
    width, vocabulary, batch, length = 64, 27, 32, 16

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.xh_to_z, self.xh_to_r = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
            self.xh_to_hbar = nn.Linear(2 * width, width)

        def forward(self, xt: Any, hprev: Any) -> Any:
            xh = torch.cat([xt, hprev], dim=1)
            r = torch.sigmoid(self.xh_to_r(xh))
            hbar = torch.tanh(self.xh_to_hbar(torch.cat([xt, r * hprev], dim=1)))
            z = torch.sigmoid(self.xh_to_z(xh))
            return (1 - z) * hprev + z * hbar

    class GRU(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.wte = nn.Parameter(torch.zeros(1, width)), nn.Embedding(vocabulary, width)
            self.cell, self.lm_head = Cell(), nn.Linear(width, vocabulary)

        def forward(self, idx: Any) -> Any:
            embedded = self.wte(idx)
            hprev = self.start.expand((idx.shape[0], -1))
            hiddens = []
            for i in range(idx.shape[1]):
                hprev = self.cell(embedded[:, i, :], hprev)
                hiddens.append(hprev)
            return self.lm_head(torch.stack(hiddens, 1))

    model = fill(torch, GRU(), random)
    x, y = whole_numbers(torch, random, vocabulary, batch, length), whole_numbers(torch, random, vocabulary, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, betas=(0.9, 0.99))
    return training(optimizer, lambda: functional.cross_entropy(model(x).view(-1, vocabulary), y))


def lstm(torch: Any, random: np.random.Generator) -> Step:
    """Make PyTorch's word language model: an LSTM of 2 layers of width 200, 35 words of 20 texts, clipped gradients."""
    nn, functional = torch.nn, torch.nn.functional
    width, words, batch, length = 200, 1000, 20, 35

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.rnn = nn.Embedding(words, width), nn.LSTM(width, width, 2)
            self.decoder = nn.Linear(width, words)

        def forward(self, x: Any) -> Any:
            return self.decoder(self.rnn(self.encoder(x))[0]).view(-1, words)

    model = fill(torch, Words(), random)
    x, y = whole_numbers(torch, random, words, length, batch), whole_numbers(torch, random, words, length * batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def step() -> Any:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss

    return step


def mamba(torch: Any, random: np.random.Generator) -> Step:
    """Make a Mamba (Gu and Dao 2023) whose scan is a loop: 2 layers of width 64, 8 texts of 64 characters."""
    nn, functional = torch.nn, torch.nn.functional
    width, inner, state, rank, vocabulary, batch, length = 64, 128, 16, 4, 65, 8, 64

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.in_proj = nn.LayerNorm(width), nn.Linear(width, 2 * inner, bias=False)
            self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
            self.x_proj = nn.Linear(inner, rank + 2 * state, bias=False)
            self.dt_proj = nn.Linear(rank, inner)
            rates = given(torch, np.arange(1, state + 1)).repeat(inner, 1)
            self.rates, self.D = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(inner))
            self.register_buffer("A", -rates)
            self.out_proj = nn.Linear(inner, width, bias=False)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            u, gate = self.in_proj(self.norm(x)).split([inner, inner], dim=-1)
            u = functional.silu(self.conv1d(u.transpose(1, 2))[:, :, :t].transpose(1, 2))
            delta, b, c = self.x_proj(u).split([rank, state, state], dim=-1)
            delta = functional.softplus(self.dt_proj(delta))
            decay = torch.exp(delta.unsqueeze(-1) * (self.A * torch.exp(self.rates)))
            given = delta.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
            h = torch.zeros(n, inner, state)
            ys = []
            for i in range(t):
                h = decay[:, i] * h + given[:, i]
                ys.append((h @ c[:, i].unsqueeze(-1)).squeeze(-1))
            y = torch.stack(ys, dim=1) + u * self.D
            return x + self.out_proj(y * functional.silu(gate))

    class Mamba(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.layers = nn.Embedding(vocabulary, width), nn.ModuleList([Mixer(), Mixer()])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, x: Any) -> Any:
            x = self.embedding(x)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    model = fill(torch, Mamba(), random)
    x = whole_numbers(torch, random, vocabulary, batch, length)
    y = whole_numbers(torch, random, vocabulary, batch * length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(optimizer, lambda: functional.cross_entropy(model(x).view(-1, vocabulary), y))


def ppo(torch: Any, random: np.random.Generator) -> Step:
    """Make the update of CleanRL's PPO for CartPole: actor and critic of width 64, 4 minibatches of 128."""
    nn = torch.nn

    def network(outputs: int) -> Any:
        return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    critic, actor = fill(torch, network(1), random), fill(torch, network(2), random)
    both = [*critic.parameters(), *actor.parameters()]
    optimizer = torch.optim.Adam(both, lr=2.5e-4, eps=1e-5)
    seen, actions = normal(torch, random, 512, 4), whole_numbers(torch, random, 2, 512)
    advantages, returns, values = (normal(torch, random, 512) for _ in range(3))
    with torch.no_grad():
        before = torch.distributions.Categorical(logits=actor(seen)).log_prob(actions)

    def step() -> Any:
        order = random.permutation(512)
        for start in range(0, 512, 128):
            chosen = torch.from_numpy(order[start : start + 128])
            policy = torch.distributions.Categorical(logits=actor(seen[chosen]))
            ratio = (policy.log_prob(actions[chosen]) - before[chosen]).exp()
            gain = advantages[chosen]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            loss = torch.max(-gain * ratio, -gain * torch.clamp(ratio, 0.8, 1.2)).mean()
            value, old = critic(seen[chosen]).view(-1), values[chosen]
            clipped = old + torch.clamp(value - old, -0.2, 0.2)
            far = torch.max((value - returns[chosen]) ** 2, (clipped - returns[chosen]) ** 2)
            loss = loss - 0.01 * policy.entropy().mean() + 0.25 * far.mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(both, 0.5)
            optimizer.step()
        return loss

    return step


def gcn(torch: Any, random: np.random.Generator) -> Step:
    """Make a graph convolutional network (Kipf and Welling 2017) of Cora's size: 2708 nodes, 1433 features, sparse."""
    nn, functional = torch.nn, torch.nn.functional
    nodes, features, edges = 2708, 1433, 13264
    places = np.unique(random.integers(0, nodes, (edges, 2)), axis=0).T.copy()
    adjacency = torch.sparse_coo_tensor(
        torch.from_numpy(places), torch.ones(places.shape[1]) * (nodes / edges), (nodes, nodes)
    ).coalesce()

    class Layer(nn.Module):
        def __init__(self, inner: int, outer: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.zeros(inner, outer)), nn.Parameter(torch.zeros(outer))

        def forward(self, x: Any) -> Any:
            return torch.spmm(adjacency, torch.mm(x, self.weight)) + self.bias

    class GCN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gc1, self.gc2 = Layer(features, 16), Layer(16, 7)

        def forward(self, x: Any) -> Any:
            return functional.log_softmax(self.gc2(functional.relu(self.gc1(x))), dim=1)

    model = fill(torch, GCN(), random)
    x = given(torch, (random.random((nodes, features)) < 0.0127).astype(np.float32))
    chosen, y = torch.arange(140), whole_numbers(torch, random, 7, 140)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    return training(optimizer, lambda: functional.nll_loss(model(x)[chosen], y))


def autoencoder(torch: Any, random: np.random.Generator) -> Step:
    """Make PyTorch's variational autoencoder (Kingma and Welling 2014), with given noise: 128 images of 28 x 28."""
    nn, functional = torch.nn, torch.nn.functional

    class VAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
            self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

        def forward(self, x: Any, noise: Any) -> Any:
            h = functional.relu(self.fc1(x))
            mu, logvar = self.fc21(h), self.fc22(h)
            z = mu + noise * torch.exp(0.5 * logvar)
            return torch.sigmoid(self.fc4(functional.relu(self.fc3(z)))), mu, logvar

    model = fill(torch, VAE(), random)
    x = given(torch, random.random((128, 784)))
    noise = normal(torch, random, 128, 20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of() -> Any:
        made, mu, logvar = model(x, noise)
        divergence = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
        return functional.binary_cross_entropy(made, x, reduction="sum") + divergence

    return training(optimizer, loss_of)


PROGRAMS = (
    Program("makemore GRU", "a cell of single operations, width 64; 32 x 16 letters", makemore_gru),
    Program("LSTM", "2 layers of width 200; 20 x 35 words", lstm),
    Program("Mamba", "2 layers of width 64, a loop over time; 8 x 64 characters", mamba),
    Program("PPO", "two networks of width 64; 4 minibatches of 128", ppo),
    Program("GCN", "2708 nodes, 1433 features, a sparse matrix", gcn),
    Program("VAE", "784 - 400 - 20; 128 images", autoencoder),
)
