"""Common parts of the programs: transformer blocks, and a limit by steps or by seconds."""
import math
import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(2)
DEV = "cuda"
FACTOR = float(os.environ.get("STEP_FACTOR", "0.8"))


def steps(n, seconds=None):
    """Yields: 0 to n - 1, or fewer if the time is over."""
    end = time.monotonic() + (seconds or 7) * FACTOR
    for i in range(n):
        if i > 2 and time.monotonic() > end:
            return
        yield i


def seed(s=0):
    random.seed(s)
    torch.manual_seed(s)


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.qkv, self.out, self.heads = nn.Linear(d, 3 * d), nn.Linear(d, d), heads

    def forward(self, x, causal=False, plain=False):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if plain:  # materialized attention scores, as in older code
            s = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
            if causal:
                s = s.masked_fill(torch.ones(t, t, device=x.device, dtype=torch.bool).triu(1), float("-inf"))
            y = F.dropout(s.softmax(-1), 0.1, self.training) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d, heads, causal=False, plain=False, mult=4):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.mlp = nn.Sequential(nn.Linear(d, mult * d), nn.GELU(), nn.Linear(mult * d, d))
        self.causal, self.plain = causal, plain

    def forward(self, x):
        x = x + self.attn(self.n1(x), self.causal, self.plain)
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, vocab, d, layers, heads, context, plain=False):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, d), nn.Embedding(context, d)
        self.blocks = nn.ModuleList(Block(d, heads, True, plain) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))
