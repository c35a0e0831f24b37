"""Transformers of a few hundred thousand to a few million parameters."""

import math
from typing import Any

import numpy as np

from spillgrad_tools.bench.programs.program import Program, Step, fill, given, normal, training, whole_numbers


def _language_model(
    torch: Any, random: np.random.Generator, model: Any, vocabulary: int, batch: int, length: int
) -> Step:
    """Return the step of a model of tokens, which AdamW trains."""
    fill(torch, model, random)
    x, y = (whole_numbers(torch, random, vocabulary, batch, length) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01, betas=(0.9, 0.99))
    flat = y.view(-1)
    return training(optimizer, lambda: torch.nn.functional.cross_entropy(model(x).view(-1, vocabulary), flat))


def _gpt(torch: Any, vocabulary: int, length: int, width: int, heads: int, layers: int) -> Any:
    """Return a GPT as makemore and minGPT write it: attention of single operations, with a mask of ones."""
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

        def forward(self, x: Any) -> Any:
            n, t, c = x.size()
            q, k, v = self.c_attn(x).split(width, dim=2)
            k = k.view(n, t, heads, c // heads).transpose(1, 2)
            q = q.view(n, t, heads, c // heads).transpose(1, 2)
            v = v.view(n, t, heads, c // heads).transpose(1, 2)
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
            y = functional.softmax(att, dim=-1) @ v
            return self.c_proj(y.transpose(1, 2).contiguous().view(n, t, c))

    class NewGELU(nn.Module):
        def forward(self, x: Any) -> Any:
            return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), NewGELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.h = nn.ModuleList([Block() for _ in range(layers)])
            self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, idx: Any) -> Any:
            x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]).unsqueeze(0))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    return GPT()


def makemore(torch: Any, random: np.random.Generator) -> Step:
    """Make makemore's transformer: 4 layers of width 64, 32 names of 16 letters."""
    return _language_model(torch, random, _gpt(torch, 27, 16, 64, 4, 4), 27, 32, 16)


def mingpt(torch: Any, random: np.random.Generator) -> Step:
    """Make minGPT's gpt-mini: 6 layers of width 192, 16 texts of 128 characters."""
    return _language_model(torch, random, _gpt(torch, 65, 128, 192, 6, 6), 65, 16, 128)


def llama(torch: Any, random: np.random.Generator) -> Step:
    """Make a Llama as its reference code: 4 layers of width 128, complex rotary embeddings, 8 x 128 tokens."""
    nn, functional = torch.nn, torch.nn.functional
    vocabulary, width, heads, length, layers = 256, 128, 4, 128, 4

    class RMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x: Any) -> Any:
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight

    def rotated(x: Any, turns: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.wv, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.w1, self.w3 = nn.Linear(width, 344, bias=False), nn.Linear(width, 344, bias=False)
            self.w2 = nn.Linear(344, width, bias=False)
            self.attention_norm, self.ffn_norm = RMSNorm(), RMSNorm()

        def forward(self, x: Any, turns: Any) -> Any:
            n, t, _ = x.shape
            h = self.attention_norm(x)
            q, k, v = (part(h).view(n, t, heads, -1) for part in (self.wq, self.wk, self.wv))
            q, k, v = (part.transpose(1, 2) for part in (rotated(q, turns), rotated(k, turns), v))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.wo(mixed.transpose(1, 2).reshape(n, t, width))
            h = self.ffn_norm(x)
            return x + self.w2(functional.silu(self.w1(h)) * self.w3(h))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embeddings, self.layers = (
                nn.Embedding(vocabulary, width),
                nn.ModuleList(Block() for _ in range(layers)),
            )
            self.norm, self.output = RMSNorm(), nn.Linear(width, vocabulary, bias=False)
            rates = given(torch, 10000.0 ** (-np.arange(0, width // heads, 2) / (width // heads)))
            angles = torch.outer(given(torch, np.arange(length)), rates)
            self.turns = torch.polar(torch.ones_like(angles), angles).view(1, length, 1, -1)

        def forward(self, tokens: Any) -> Any:
            x = self.embeddings(tokens)
            for layer in self.layers:
                x = layer(x, self.turns)
            return self.output(self.norm(x))

    return _language_model(torch, random, Llama(), vocabulary, 8, length)


def vit(torch: Any, random: np.random.Generator) -> Step:
    """Make a small vision transformer: 6 layers of width 128, 32 images of 32 x 32 in patches of 4 x 4."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads, batch = 128, 4, 32

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.to_qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False)
            self.to_out = nn.Linear(width, width, bias=False)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            q, k, v = (p.view(n, t, heads, -1).transpose(1, 2) for p in self.to_qkv(self.norm(x)).chunk(3, dim=-1))
            attention = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * (width // heads) ** -0.5, -1)
            return self.to_out(torch.matmul(attention, v).transpose(1, 2).reshape(n, t, width))

    class ViT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.cls = nn.Linear(48, width), nn.Parameter(torch.zeros(1, 1, width))
            self.place = nn.Parameter(torch.zeros(1, 65, width))
            self.attention = nn.ModuleList([Attention() for _ in range(6)])
            self.mlp = nn.ModuleList([
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 256), nn.GELU(), nn.Linear(256, width))
                for _ in range(6)
            ])  # fmt: skip
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, pictures: Any) -> Any:
            n = pictures.shape[0]
            patches = pictures.reshape(n, 3, 8, 4, 8, 4).permute(0, 2, 4, 3, 5, 1).reshape(n, 64, 48)
            x = torch.cat([self.cls.expand(n, -1, -1), self.patch(patches)], dim=1) + self.place
            for attention, mlp in zip(self.attention, self.mlp, strict=True):
                x = x + attention(x)
                x = x + mlp(x)
            return self.head(self.norm(x)[:, 0])

    model = fill(torch, ViT(), random)
    x, y = normal(torch, random, batch, 3, 32, 32), whole_numbers(torch, random, 10, batch)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return training(optimizer, lambda: functional.cross_entropy(model(x), y))


def whisper(torch: Any, random: np.random.Generator) -> Step:
    """Make a small Whisper: 8 spectrograms of 80 x 200, encoder and decoder of 2 layers of width 128."""
    nn, functional = torch.nn, torch.nn.functional
    width, heads, batch, words = 128, 4, 8, 512

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
            self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

        def forward(self, x: Any, other: Any = None, mask: Any = None) -> Any:
            other = x if other is None else other
            q, k, v = self.query(x), self.key(other), self.value(other)
            n, t, _ = q.shape
            scale = (width // heads) ** -0.25
            q = q.view(n, t, heads, -1).permute(0, 2, 1, 3) * scale
            k = k.view(n, k.shape[1], heads, -1).permute(0, 2, 3, 1) * scale
            v = v.view(n, v.shape[1], heads, -1).permute(0, 2, 1, 3)
            scores = q @ k
            if mask is not None:
                scores = scores + mask[:t, :t]
            mixed = functional.softmax(scores, dim=-1) @ v
            return self.out(mixed.permute(0, 2, 1, 3).flatten(start_dim=2))

    class Block(nn.Module):
        def __init__(self, crosses: bool) -> None:
            super().__init__()
            self.attn, self.attn_ln = Attention(), nn.LayerNorm(width)
            self.cross: Any = Attention() if crosses else None
            self.cross_ln: Any = nn.LayerNorm(width) if crosses else None
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.mlp_ln = nn.LayerNorm(width)

        def forward(self, x: Any, heard: Any = None, mask: Any = None) -> Any:
            x = x + self.attn(self.attn_ln(x), mask=mask)
            if self.cross is not None:
                x = x + self.cross(self.cross_ln(x), heard)
            return x + self.mlp(self.mlp_ln(x))

    class Whisper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(80, width, 3, padding=1), nn.Conv1d(width, width, 3, 2, padding=1)
            self.encoder = nn.ModuleList([Block(False) for _ in range(2)])
            self.token, self.place = nn.Embedding(words, width), nn.Parameter(torch.zeros(32, width))
            self.decoder = nn.ModuleList([Block(True) for _ in range(2)])
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.register_buffer("mask", torch.full((32, 32), float("-inf")).triu_(1))

        def forward(self, mel: Any, tokens: Any) -> Any:
            x = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).permute(0, 2, 1)
            for block in self.encoder:
                x = block(x)
            heard = self.norm1(x)
            y = self.token(tokens) + self.place[: tokens.shape[-1]]
            for block in self.decoder:
                y = block(y, heard, self.mask)
            return self.norm2(y) @ self.token.weight.t()

    model = fill(torch, Whisper(), random)
    mel, tokens = normal(torch, random, batch, 80, 200), whole_numbers(torch, random, words, batch, 32)
    targets = whole_numbers(torch, random, words, batch * 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return training(optimizer, lambda: functional.cross_entropy(model(mel, tokens).view(-1, words), targets))


def translation(torch: Any, random: np.random.Generator) -> Step:
    """Make `nn.Transformer` for translation: 3 + 3 layers of width 128, 16 sentences of 20 words."""
    nn, functional = torch.nn, torch.nn.functional
    width, words, batch, length = 128, 500, 16, 20

    class Translator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source, self.target = nn.Embedding(words, width), nn.Embedding(words, width)
            self.transformer = nn.Transformer(width, 4, 3, 3, 512, dropout=0.0, batch_first=True)
            self.generator = nn.Linear(width, words)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

        def forward(self, source: Any, target: Any) -> Any:
            root = math.sqrt(width)
            y = self.transformer(self.source(source) * root, self.target(target) * root, tgt_mask=self.mask)
            return self.generator(y)

    model = fill(torch, Translator(), random)
    model.train()
    source, target = (whole_numbers(torch, random, words, batch, length) for _ in range(2))
    wanted = whole_numbers(torch, random, words, batch * length)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    return training(optimizer, lambda: functional.cross_entropy(model(source, target).reshape(-1, words), wanted))


PROGRAMS = (
    Program("makemore transformer", "4 layers of width 64; 32 x 16 letters", makemore),
    Program("minGPT", "6 layers of width 192; 16 x 128 characters", mingpt),
    Program("Llama", "4 layers of width 128; 8 x 128 tokens", llama),
    Program("ViT", "6 layers of width 128; 32 x 32 x 32", vit),
    Program("Whisper", "2 + 2 layers of width 128; 8 x 80 x 200", whisper),
    Program("translation transformer", "3 + 3 layers of width 128; 16 x 20 words", translation),
)
