"""A GPT-2 style transformer, whole or cut in two modules that are compiled apart."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class GPTConfig:
    layers: int = 4
    dim: int = 192
    heads: int = 6
    seq: int = 128
    vocab: int = 256


class Block(nn.Module):
    """Pre-norm attention and MLP with residuals: [batch, seq, dim] to the same."""

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.heads = cfg.heads
        self.ln1, self.ln2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.qkv, self.proj = nn.Linear(cfg.dim, 3 * cfg.dim), nn.Linear(cfg.dim, cfg.dim)
        self.fc, self.out = nn.Linear(cfg.dim, 4 * cfg.dim), nn.Linear(4 * cfg.dim, cfg.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, dim = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, seq, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, seq, dim))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


def initialise(module: nn.Module, layers: int) -> None:
    """GPT-2 style: normal(0, 0.02), residual projections scaled by 1/sqrt(2 layers), biases 0."""
    for name, p in module.named_parameters():
        if p.dim() < 2:
            continue
        std = 0.02 / (2 * layers) ** 0.5 if name.endswith(("proj.weight", "out.weight")) else 0.02
        nn.init.normal_(p, std=std)
    for m in module.modules():
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)


class GPTFirst(nn.Module):
    """Embedding and the first `layers` blocks: tokens i64 [batch, seq] to f32 [batch, seq, dim]."""

    def __init__(self, cfg: GPTConfig, layers: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(cfg.vocab, cfg.dim), nn.Embedding(cfg.seq, cfg.dim)
        self.h = nn.ModuleList(Block(cfg) for _ in range(layers))
        initialise(self, cfg.layers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return x


class GPTLast(nn.Module):
    """The last `layers` blocks and the head: f32 [batch, seq, dim] to the loss, or to logits without targets."""

    def __init__(self, cfg: GPTConfig, layers: int):
        super().__init__()
        self.h = nn.ModuleList(Block(cfg) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(cfg.dim), nn.Linear(cfg.dim, cfg.vocab, bias=False)
        initialise(self, cfg.layers)

    def forward(self, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        logits = self.head(self.lnf(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class GPT(nn.Module):
    """Both halves, one after the other."""

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.first = GPTFirst(cfg, cfg.layers // 2)
        self.last = GPTLast(cfg, cfg.layers - cfg.layers // 2)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        return self.last(self.first(tokens), targets)
