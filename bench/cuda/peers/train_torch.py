#!/usr/bin/env python3
"""A training step of a GPT-2 or a Llama-style model in PyTorch on a GPU, in bf16: seconds and memory.

    python train_torch.py --config gpt2 --mode compile
    python train_torch.py --config llama --mode budget --budget 0.5

Modes: eager; compile (inductor); graphs (inductor with CUDA graphs); checkpoint and checkpoint-compile (every block computed
twice); offload (`save_on_cpu`, page-locked); budget (inductor with `activation_memory_budget`). Weights and AdamW's states are
f32 under autocast to bf16, or all bf16 (`--weights bf16`). Prints one line of JSON. With `--wait` the timed steps begin when a line
comes on the standard input, so that run.py can let several compile at once and time one.
"""
import argparse
import contextlib
import json
import statistics
import sys
import time
from dataclasses import dataclass

import torch
import torch._functorch.config
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    kind: str
    layers: int
    dim: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int


CONFIGS = {
    "gpt2": Config("gpt", 12, 768, 12, 3072, 50304, 1024, 8),
    "llama": Config("llama", 24, 2048, 16, 5504, 32000, 2048, 2),
    "tiny-gpt": Config("gpt", 2, 64, 2, 256, 512, 64, 2),
    "tiny-llama": Config("llama", 2, 64, 2, 176, 512, 64, 2),
}


class GptBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.ln1, self.ln2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim), nn.Linear(c.dim, c.dim)
        self.fc, self.out = nn.Linear(c.dim, c.ffn), nn.Linear(c.ffn, c.dim)

    def forward(self, x):
        c = self.c
        q, k, v = self.qkv(self.ln1(x)).view(-1, c.seq, 3, c.heads, c.dim // c.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(-1, c.seq, c.dim))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.norm1, self.norm2 = nn.RMSNorm(c.dim, eps=1e-5), nn.RMSNorm(c.dim, eps=1e-5)
        self.qkv, self.proj = nn.Linear(c.dim, 3 * c.dim, bias=False), nn.Linear(c.dim, c.dim, bias=False)
        self.gate, self.up = nn.Linear(c.dim, c.ffn, bias=False), nn.Linear(c.dim, c.ffn, bias=False)
        self.down = nn.Linear(c.ffn, c.dim, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)

    def forward(self, x, cos, sin):
        c = self.c
        q, k, v = self.qkv(self.norm1(x)).view(-1, c.seq, 3, c.heads, c.dim // c.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(-1, c.seq, c.dim))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, c, use_checkpoint):
        super().__init__()
        self.c, self.use_checkpoint = c, use_checkpoint
        self.wte = nn.Embedding(c.vocab, c.dim)
        self.wpe = nn.Embedding(c.seq, c.dim) if c.kind == "gpt" else None
        self.blocks = nn.ModuleList((GptBlock if c.kind == "gpt" else LlamaBlock)(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.dim) if c.kind == "gpt" else nn.RMSNorm(c.dim, eps=1e-5)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)
        if c.kind == "llama":
            half = c.dim // c.heads // 2
            angle = torch.outer(torch.arange(c.seq).float(), 10000.0 ** (-torch.arange(half).float() / half))
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
        if c.kind == "gpt":
            self.head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight
        extra = () if self.c.kind == "gpt" else (self.cos, self.sin)
        for block in self.blocks:
            x = checkpoint(block, x, *extra, use_reentrant=False) if self.use_checkpoint else block(x, *extra)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


LR, BETAS, EPS, DECAY = 3e-4, (0.9, 0.95), 1e-8, 0.1


def arguments(text, modes, device):
    """What train_torch.py and train_segue.py are told, and the config of it."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="gpt2")
    parser.add_argument("--mode", default=modes[0], choices=modes)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--weights", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--device", default=device)
    parser.add_argument("--wait", action="store_true")
    args = parser.parse_args()
    c = CONFIGS[args.config]
    return args, Config(**{**vars(c), "batch": args.batch}) if args.batch else c


def batches_of(c):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(c.vocab, (c.batch, c.seq + 1), generator=generator) for _ in range(4)]


def row_of(peer, args, c, parameters, times, losses, **more):
    """The line of a run: `times` of its steps, and the losses, that of the very first step before them."""
    median = statistics.median(times)
    # 6 flops per parameter of products and token, and the causal half of attention.
    products = parameters - (c.seq * c.dim if c.kind == "gpt" else c.vocab * c.dim)
    return {"peer": peer, "config": args.config, "mode": args.mode, "weights": args.weights, "parameters": parameters,
            "tokens": c.batch * c.seq, "step_ms": round(median * 1e3, 2), "least_ms": round(min(times) * 1e3, 2),
            "loss0": round(losses[0], 5), "losses": [round(value, 4) for value in losses[1:]],
            "tflops": round(c.batch * c.seq * (6 * products + 6 * c.layers * c.seq * c.dim) / median / 1e12, 1), **more}


def main():
    args, c = arguments(__doc__, ["eager", "compile", "graphs", "checkpoint", "checkpoint-compile", "offload", "budget"], "cuda")
    mode, on_gpu = args.mode, args.device == "cuda"
    if mode == "budget":
        torch._functorch.config.activation_memory_budget = args.budget
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    with torch.device(args.device):
        model = Model(c, mode.startswith("checkpoint"))
    if args.weights == "bf16":
        model = model.to(torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    compiled = mode in ("compile", "checkpoint-compile", "budget", "graphs")
    call = torch.compile(model, mode="reduce-overhead" if mode == "graphs" else None) if compiled else model
    batches = [batch.to(args.device) for batch in batches_of(c)]

    def step(i):
        data = batches[i % len(batches)]
        hooks = torch.autograd.graph.save_on_cpu(pin_memory=on_gpu) if mode == "offload" else contextlib.nullcontext()
        cast = torch.autocast(args.device, torch.bfloat16) if args.weights == "f32" else contextlib.nullcontext()
        with hooks, cast:
            loss = call(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def synchronize():
        if on_gpu:
            torch.cuda.synchronize()

    started = time.perf_counter()
    first_loss = step(0).item()
    first = time.perf_counter() - started
    for i in range(1, 4):
        step(i)
    synchronize()
    warm = time.perf_counter() - started
    if args.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    for i in range(2):
        step(i)
    synchronize()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated() if on_gpu else 0
    times, queued, losses = [], [], []
    for i in range(args.steps):
        started = time.perf_counter()
        loss = step(i)
        queued.append(time.perf_counter() - started)
        synchronize()
        times.append(time.perf_counter() - started)
        losses.append(loss.detach().clone())
    row = row_of(f"torch {torch.__version__}", args, c, parameters, times, [first_loss, *(value.item() for value in losses)],
                 queued_ms=round(statistics.median(queued) * 1e3, 2), first_step_s=round(first, 2), warm_s=round(warm, 2))
    if mode == "budget":
        row["budget"] = args.budget
    if on_gpu:
        row |= {"peak_mib": torch.cuda.max_memory_allocated() >> 20, "held_mib": held >> 20,
                "reserved_mib": torch.cuda.max_memory_reserved() >> 20}
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
