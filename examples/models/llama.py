"""A Llama style transformer: rms_norm, rotary positions, grouped queries, SwiGLU."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass(frozen=True)
class LlamaConfig:
    layers: int = 2
    dim: int = 64
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 160
    seq: int = 32
    vocab: int = 256
    theta: float = 10000.0


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates pairs (i, i + d/2) of the last dimension (Su et al., arXiv:2104.09864)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.cfg, d = cfg, cfg.dim // cfg.heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(cfg.dim, eps=1e-5), nn.RMSNorm(cfg.dim, eps=1e-5)
        self.wq = nn.Linear(cfg.dim, cfg.heads * d, bias=False)
        self.wk = nn.Linear(cfg.dim, cfg.kv_heads * d, bias=False)
        self.wv = nn.Linear(cfg.dim, cfg.kv_heads * d, bias=False)
        self.wo = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.w1 = nn.Linear(cfg.dim, cfg.hidden, bias=False)
        self.w2 = nn.Linear(cfg.hidden, cfg.dim, bias=False)
        self.w3 = nn.Linear(cfg.dim, cfg.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        cfg = self.cfg
        batch, seq, dim = x.shape
        y = self.attention_norm(x)
        q = self.wq(y).view(batch, seq, cfg.heads, -1).transpose(1, 2)
        k = self.wk(y).view(batch, seq, cfg.kv_heads, -1).transpose(1, 2)
        v = self.wv(y).view(batch, seq, cfg.kv_heads, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(cfg.heads // cfg.kv_heads, dim=1)
        v = v.repeat_interleave(cfg.heads // cfg.kv_heads, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(batch, seq, dim))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    """tokens i64 [batch, seq] to the loss, or to logits without targets."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        d = cfg.dim // cfg.heads
        angles = torch.outer(torch.arange(cfg.seq), cfg.theta ** (-torch.arange(0, d, 2) / d))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())
        self.embedding = nn.Embedding(cfg.vocab, cfg.dim)
        self.layers = nn.ModuleList(LlamaBlock(cfg) for _ in range(cfg.layers))
        self.norm, self.output = nn.RMSNorm(cfg.dim, eps=1e-5), nn.Linear(cfg.dim, cfg.vocab, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x, seq = self.embedding(tokens), tokens.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:seq], self.sin[:seq])
        logits = self.output(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
