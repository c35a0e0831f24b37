"""Proximal policy optimization on a corridor whose end pays, written for PyTorch: prints the share of actions that lead
away from the end in every batch, and the last loss, as a JSON list.
"""

import json

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical

CORRIDOR, ENVS, STEPS, UPDATES, EPOCHS = 6, 8, 16, 12, 3
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, LARGEST_NORM = 0.97, 0.95, 0.2, 0.01, 0.5, 0.5


class Corridors:
    """Places 0 to CORRIDOR - 1 in each of ENVS corridors; the last place pays 1 and leads back to the first."""

    def __init__(self):
        self.places = np.zeros(ENVS, int)

    def observation(self):
        return np.eye(CORRIDOR, dtype=np.float32)[self.places]

    def step(self, actions):
        self.places = np.maximum(self.places + np.where(actions == 1, 1, -1), 0)
        done = self.places == CORRIDOR - 1
        self.places[done] = 0
        return self.observation(), done.astype(np.float32), done.astype(np.float32)


random = np.random.default_rng(3)


def layer_init(layer, std=np.sqrt(2), bias_const=0.0):
    torch.nn.init.constant_(layer.bias, bias_const)
    with torch.no_grad():
        layer.weight.copy_(torch.Tensor(random.normal(0, std / layer.in_features**0.5, tuple(layer.weight.shape))))
    return layer


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(
            layer_init(nn.Linear(CORRIDOR, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0)
        )
        self.actor = nn.Sequential(
            layer_init(nn.Linear(CORRIDOR, 32)), nn.Tanh(), layer_init(nn.Linear(32, 2), std=0.01)
        )

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        logits = self.actor(x)
        probs = Categorical(logits=logits)
        if action is None:  # as probs.sample(), with the same draws everywhere
            action = torch.LongTensor((random.random(len(x)) < probs.probs[:, 1].numpy()).astype(np.int64))
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


torch.manual_seed(1)
torch.set_num_threads(2)
torch.backends.cudnn.deterministic = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
envs, agent = Corridors(), Agent().to(device)
optimizer = optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)

obs = torch.zeros((STEPS, ENVS, CORRIDOR)).to(device)
actions, logprobs, rewards, dones, values = (torch.zeros((STEPS, ENVS)).to(device) for _ in range(5))
next_obs, next_done = torch.Tensor(envs.observation()).to(device), torch.zeros(ENVS).to(device)
left = []
for update in range(1, UPDATES + 1):
    optimizer.param_groups[0]["lr"] = (1.0 - (update - 1.0) / UPDATES) * 1e-2
    for step in range(STEPS):
        obs[step], dones[step] = next_obs, next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step], logprobs[step] = action, logprob
        next_obs, reward, done = envs.step(action.cpu().numpy())
        rewards[step] = torch.tensor(reward).to(device).view(-1)
        next_obs, next_done = torch.Tensor(next_obs).to(device), torch.Tensor(done).to(device)
    with torch.no_grad():  # generalized advantage estimation
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages, last = torch.zeros_like(rewards).to(device), 0
        for t in reversed(range(STEPS)):
            going_on = 1.0 - (next_done if t == STEPS - 1 else dones[t + 1])
            following = next_value if t == STEPS - 1 else values[t + 1]
            delta = rewards[t] + GAMMA * following * going_on - values[t]
            advantages[t] = last = delta + GAMMA * LAMBDA * going_on * last
        returns = advantages + values
    left.append((actions == 0).float().mean().item())

    b_obs, b_logprobs, b_actions = obs.reshape((-1, CORRIDOR)), logprobs.reshape(-1), actions.reshape(-1)
    b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
    b_inds = np.arange(ENVS * STEPS)
    for _ in range(EPOCHS):
        random.shuffle(b_inds)
        for start in range(0, len(b_inds), 32):
            mb_inds = b_inds[start : start + 32]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions.long()[mb_inds])
            ratio = (newlogprob - b_logprobs[mb_inds]).exp()
            mb_advantages = b_advantages[mb_inds]
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
            pg_loss = torch.max(-mb_advantages * ratio, -mb_advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
            loss = pg_loss - ENTROPY * entropy.mean() + v_loss * VALUE
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), LARGEST_NORM)
            optimizer.step()
print(json.dumps([*left, loss.item()]))
