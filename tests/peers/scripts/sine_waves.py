"""Sine waves continued by two LSTM cells that LBFGS trains, in float64, written for PyTorch: prints the loss of every
step, and of the continued waves, as a JSON list.
"""

import json

import numpy as np
import torch
from torch import nn, optim

LENGTH, WAVES, WIDTH, STEPS = 40, 6, 16, 4


class Sequence(nn.Module):
    def __init__(self):
        super(Sequence, self).__init__()
        self.lstm1 = nn.LSTMCell(1, WIDTH)
        self.lstm2 = nn.LSTMCell(WIDTH, WIDTH)
        self.linear = nn.Linear(WIDTH, 1)

    def forward(self, input, future=0):
        outputs = []
        h_t = torch.zeros(input.size(0), WIDTH, dtype=torch.double)
        c_t = torch.zeros(input.size(0), WIDTH, dtype=torch.double)
        h_t2 = torch.zeros(input.size(0), WIDTH, dtype=torch.double)
        c_t2 = torch.zeros(input.size(0), WIDTH, dtype=torch.double)
        for input_t in input.split(1, dim=1):
            h_t, c_t = self.lstm1(input_t, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        for _ in range(future):
            h_t, c_t = self.lstm1(output, (h_t, c_t))
            h_t2, c_t2 = self.lstm2(h_t, (h_t2, c_t2))
            output = self.linear(h_t2)
            outputs += [output]
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
torch.set_num_threads(2)
random = np.random.default_rng(0)
waves = np.sin((np.arange(LENGTH) + random.integers(-16, 16, (WAVES, 1))) / 4.0)
input, target = torch.from_numpy(waves[1:, :-1]), torch.from_numpy(waves[1:, 1:])
test_input, test_target = torch.from_numpy(waves[:1, :-1]), torch.from_numpy(waves[:1, 1:])

seq = Sequence()
seq.double()
with torch.no_grad():  # the same weights everywhere
    for p in seq.parameters():
        p.copy_(torch.from_numpy(random.uniform(-0.25, 0.25, tuple(p.shape))))
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=8, history_size=10)
losses = []
for _ in range(STEPS):

    def closure():
        optimizer.zero_grad()
        loss = criterion(seq(input), target)
        loss.backward()
        return loss

    losses.append(optimizer.step(closure).item())

with torch.no_grad():
    losses.append(criterion(seq(input), target).item())
    future = 10
    predicted = seq(test_input, future=future)
    losses.append(criterion(predicted[:, :-future], test_target).item())
print(json.dumps(losses))
