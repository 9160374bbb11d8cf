#!/usr/bin/env python3
"""Generates tokens by a small GPT whose keys and values lie in a cache of fixed length.

    python examples/generate.py
    python examples/generate.py --tokens 200 --temperature 0.8 --top-k 40

Two programs are compiled, one for pieces of the prompt and one for a token, whatever the lengths. They write the cache where it lies. The
weights are drawn, so the text is none; the tokens are compared with PyTorch's.
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

import segue


class Block(nn.Module):
    """A block of GPT-2, with one position of its cache per token: keys and values are [length, rows, width]."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, positions, seen, keys, values):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        keys = segue.write_rows(keys, positions, k.transpose(0, 1))
        values = segue.write_rows(values, positions, v.transpose(0, 1))
        split = lambda t: t.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # noqa: E731
        y = F.scaled_dot_product_attention(split(q), split(keys.transpose(0, 1)), split(values.transpose(0, 1)), attn_mask=seen)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh")), keys, values


class GPT(nn.Module):
    def __init__(self, layers: int, dim: int, heads: int, vocabulary: int, length: int):
        super().__init__()
        self.length, self.dim = length, dim
        self.wte, self.wpe = nn.Embedding(vocabulary, dim), nn.Embedding(length, dim)
        self.h = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)

    def forward(self, tokens, positions, cache):
        x, new = self.wte(tokens) + self.wpe(positions), []
        seen = torch.arange(self.length)[None, :] <= positions[:, None]
        for block, keys, values in zip(self.h, cache[::2], cache[1::2]):
            x, keys, values = block(x, positions, seen, keys, values)
            new += [keys, values]
        return self.head(self.lnf(x[:, -1])), new

    def cache(self, rows: int = 1):
        return [torch.zeros(self.length, rows, self.dim) for _ in range(2 * len(self.h))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT(layers=2, dim=64, heads=2, vocabulary=256, length=256).eval()
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, 0, 0.15)
    generator = segue.Generator(model, model.cache())
    prompt = list(b"Once upon a time there was a program that wrote its cache in place")
    for turn in ("with compiling for the prompt", "again"):
        begin = time.perf_counter()
        tokens = generator.generate(prompt, args.tokens, temperature=args.temperature, top_k=args.top_k, seed=args.seed)
        seconds = time.perf_counter() - begin
        print(f"{args.tokens} tokens in {seconds * 1e3:.0f} ms, {turn}")
    print(tokens[0, len(prompt) :].tolist())

    if not args.temperature:  # PyTorch's, token by token, by a cache that is copied
        cache, expected = model.cache(), list(prompt)
        with torch.no_grad():
            for at in range(len(prompt) + args.tokens - 1):
                logits, cache = model(torch.tensor([[expected[at]]]), torch.tensor([at]), cache)
                if at + 1 >= len(prompt):
                    expected.append(int(logits.argmax()))
        same = expected == tokens[0].tolist()
        print("the tokens are those of PyTorch" if same else "the tokens are not those of PyTorch, as rounding decided between two of them")


if __name__ == "__main__":
    main()
