# ===- test_generation.py - tokens one after the other -------------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""`segue.Generator`: the tokens of PyTorch, two programs whatever the lengths, a cache that is written where it lies; and what is refused."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
import warm
from compare import assert_close

import segue
from segue.generation import _choose

ROOT = Path(__file__).resolve().parents[2]
LENGTH, WIDTH, HEADS, VOCABULARY = 24, 16, 2, 13


class Block(nn.Module):

    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, positions, seen, keys, values):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        keys = segue.write_rows(keys, positions, k.transpose(0, 1))
        values = segue.write_rows(values, positions, v.transpose(0, 1))
        heads = lambda t: t.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)  # noqa: E731
        y = F.scaled_dot_product_attention(heads(q), heads(keys.transpose(0, 1)), heads(values.transpose(0, 1)), attn_mask=seen)
        return x + self.out(y.transpose(1, 2).flatten(2)), keys, values


class Model(nn.Module):

    def __init__(self, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(layers)), nn.Linear(WIDTH, VOCABULARY)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens, positions, cache):
        x, new = self.dropout(self.tokens(tokens) + self.places(positions)), []
        seen = torch.arange(LENGTH)[None, :] <= positions[:, None]
        for block, keys, values in zip(self.blocks, cache[::2], cache[1::2]):
            x, keys, values = block(x, positions, seen, keys, values)
            new += [keys, values]
        return self.head(x[:, -1]), new


def model_and_cache(rows=1):
    torch.manual_seed(2)
    model = Model().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.4)  # so that tokens differ
    return model, [torch.zeros(LENGTH, rows, WIDTH) for _ in range(4)]


@torch.no_grad()
def in_torch(model, prompt, new_tokens, rows=1, temperature=0.0, top_k=None, seed=0):
    """The same without a cache that stays: each token runs through the model by itself."""
    tokens = torch.as_tensor(prompt)
    tokens = tokens.expand(rows, -1) if tokens.dim() == 1 else tokens
    cache, drawn = [torch.zeros(LENGTH, rows, WIDTH) for _ in range(4)], torch.Generator().manual_seed(seed)
    for at in range(tokens.shape[1] + new_tokens - 1):
        logits, cache = model(tokens[:, at : at + 1], torch.tensor([at]), cache)
        if at + 1 >= tokens.shape[1]:
            tokens = torch.cat([tokens, _choose(logits, temperature, top_k, drawn)[:, None]], 1)
    return tokens, cache


@pytest.fixture(scope="module")
def one():
    """A generator that several tests call, which also says that a call leaves nothing for the next one."""
    model, cache = model_and_cache()
    return model, segue.Generator(model, cache, chunk=4)


@pytest.mark.parametrize("prompt", [[3], [3, 1, 4, 1], [5, 9, 2, 6, 5, 3, 5], list(range(11))], ids=len)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "seed": 5}, {"temperature": 1.5, "top_k": 3, "seed": 9}], ids=["greedy", "drawn", "top_k"])
def test_tokens_are_those_of_pytorch(one, prompt, options):
    model, generator = one
    found = generator.generate(prompt, 10, **options)
    expected, caches = in_torch(model, prompt, 10, **options)
    assert torch.equal(found, expected)
    for ours, theirs in zip(generator.cache, caches):
        assert_close(ours, theirs)


def test_two_programs_whatever_the_lengths_and_a_cache_that_stays_where_it_is():
    model, cache = model_and_cache()
    generator = segue.Generator(model, cache, chunk=4)
    assert generator.programs == 1
    places = [tensor.data_ptr() for tensor in generator.cache]
    for length in (1, 2, 3, 5, 9, 4, 13):
        prompt = torch.arange(length) % VOCABULARY
        assert torch.equal(generator.generate(prompt, 8), in_torch(model, prompt, 8)[0])
    assert generator.programs == 2 and places == [tensor.data_ptr() for tensor in generator.cache]
    assert all(not tensor.any() for tensor in cache)  # an example alone
    counters = [segue._runtime.counters(generator._device, piece._program) for piece in generator._programs.values()]
    assert all(c["inputs_converted"] == 0 and c["inputs_elided"] == c["inputs"] for c in counters)


def test_rows_and_a_stop():
    model, cache = model_and_cache(rows=3)
    generator = segue.Generator(model, cache, rows=3, chunk=2)
    prompt = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    expected, _ = in_torch(model, prompt, 9, rows=3)
    assert torch.equal(generator.generate(prompt, 9), expected)
    assert torch.equal(generator.generate([1, 2, 3], 9)[2], in_torch(model, prompt[:1].expand(3, -1), 9, rows=3)[0][0])
    stop = int(expected[0, 5])
    found = generator.generate(prompt, 9, stop=stop)
    for ours, theirs in zip(found, expected):
        until = next((at for at in range(3, 12) if theirs[at] == stop), 11)
        assert ours[: until + 1].tolist() == theirs[: until + 1].tolist()[: len(ours)]
        assert all(token == stop for token in ours[until:]) or until == 11


def test_the_seed_says_what_is_drawn(one):
    _, generator = one
    draw = lambda seed: generator.generate([1], 20, temperature=2.0, seed=seed).tolist()  # noqa: E731
    assert draw(1) == draw(1) != draw(2)
    assert generator.generate([1], 20, temperature=2.0, top_k=1).tolist() == generator.generate([1], 20).tolist()


def test_weights_are_used_where_they_lie():
    model, cache = model_and_cache()
    generator = segue.Generator(model, cache)
    before = generator.generate([1, 2], 12)
    with torch.no_grad():
        model.head.weight.mul_(-1)
    after = generator.generate([1, 2], 12)
    assert not torch.equal(before, after) and torch.equal(after, in_torch(model, [1, 2], 12)[0])


def test_no_new_token_and_the_whole_cache(one):
    model, generator = one
    assert generator.generate([1, 2], 0).tolist() == [[1, 2]]
    assert torch.equal(generator.generate([1, 2], LENGTH - 2), in_torch(model, [1, 2], LENGTH - 2)[0])


@pytest.mark.parametrize("call, said", [
    (lambda g: g.generate([], 3), "at least one token"),
    (lambda g: g.generate([[1], [2]], 3), "has 1 rows"),
    (lambda g: g.generate([1] * 20, 5), "24 positions"),
    (lambda g: g.generate([1], -1), "new_tokens is -1"),
    (lambda g: g.generate([1], 2.0), "new_tokens is 2.0"),
    (lambda g: g.generate([1], 2, temperature=-1), "temperature is -1"),
    (lambda g: g.generate([1], 2, temperature=float("nan")), "temperature is nan"),
    (lambda g: g.generate([1], 2, top_k=0), "top_k is 0"),
])
def test_calls_that_are_refused(one, call, said):
    with pytest.raises(segue.InvalidArgumentError, match=said):
        call(one[1])


def test_models_and_caches_that_are_refused():
    model, cache = model_and_cache()
    for given, options, said in [(cache, {"rows": 0}, "rows is 0"), (cache, {"chunk": 1.5}, "chunk is 1.5"), ([], {}, "a cache is tensors"),
                                 ([torch.zeros(3), torch.zeros(4)], {}, "a cache is tensors"), ([torch.zeros(())], {}, "a cache is tensors")]:
        with pytest.raises(segue.InvalidArgumentError, match=said):
            segue.Generator(model, given, **options)
    with pytest.raises(segue.InvalidArgumentError, match="training mode"):
        segue.Generator(Model(), cache)
    with pytest.raises(segue.UnsupportedError, match="memory of its own"):
        segue.Generator(model, cache, device="sim:dram=64MiB")

    class Forgets(nn.Module):
        def forward(self, tokens, positions, cache):
            return tokens.float()

    class Narrows(nn.Module):
        def forward(self, tokens, positions, cache):
            return tokens.float(), [tensor[1:] for tensor in cache]

    for wrong, said in [(Forgets(), "the result that is its new value is none"), (Narrows(), r"the result that is its new value is \[23, 1, 16\]")]:
        with pytest.raises(segue.InvalidArgumentError, match=said):
            segue.Generator(wrong.eval(), cache)


def test_the_example_runs():
    done = subprocess.run([warm.python(), ROOT / "examples" / "generate.py", "--tokens", "12"], capture_output=True, text=True, timeout=280,
                          env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "the tokens are those of PyTorch" in done.stdout and done.stdout.count("12 tokens") == 2
