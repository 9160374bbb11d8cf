# ===- generation.py - tokens one after the other, with a cache of fixed length ------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Generation with a cache of keys and values: a program for pieces of the prompt and one for a token, which write the cache where it lies.

The two are compiled apart, each once, whatever the lengths of prompts and of what is generated, and share the tensors of the cache.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import nn

from . import _runtime
from .compile_process import compile_text
from .errors import InvalidArgumentError, UnsupportedError
from .frontend import capture
from .module import Module
from .tensors import device as open_device, give, wrap


def write_rows(cache: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A cache with `rows` at `positions` of its first dimension, which held zeros there.

    A program that gives it back in the place of the cache, as those of a `Generator` do, touches these rows alone: they are added to the zeros.

    Examples
    --------
    >>> keys = segue.write_rows(keys, positions, new_keys)      # [length, ...], [tokens], [tokens, ...]
    """
    return cache.index_add(0, positions, rows.to(cache.dtype))


class Generator:
    """Generates tokens by a model that is called with a cache.

    ``model(tokens, positions, cache)`` takes int64 `tokens` [rows, count] at the `positions` [count] behind each other, and a list of tensors whose
    first dimension is positions; it gives the logits [rows, vocabulary] behind the last of the tokens, and a list of the new values of the
    cache. `write_rows` makes them such that nothing else of a cache is touched.

    Parameters
    ----------
    model : torch.nn.Module
        In evaluation mode, on the CPU. Its weights are used where they lie: what changes them in place is seen.
    cache : sequence of Tensor
        Examples of the cache, of the length that it has for good: the most tokens that prompt and answer may have together. The generator has
        its own.
    rows : int
        How many sequences are generated at once.
    chunk : int
        Tokens of a prompt that go through the model at once; what is left of it goes token by token. Compiled when a prompt is as long.
    device : str
        ``cpu``, with threads as in ``cpu:threads=2``.

    Raises
    ------
    InvalidArgumentError
        The model trains, or cache or numbers are none.
    UnsupportedError
        A device with a memory of its own.
    UnsupportedOpError, ExportError
        As `segue.compile`.

    Examples
    --------
    >>> generator = segue.Generator(model, [torch.zeros(256, 384) for _ in range(12)])
    >>> tokens = generator.generate([5, 7, 9], 200)
    >>> tokens = generator.generate([5, 7, 9], 200, temperature=0.8, top_k=40, seed=1)
    """

    def __init__(self, model: nn.Module, cache: Sequence[torch.Tensor], *, rows: int = 1, chunk: int = 32, device: str = "cpu"):
        if isinstance(model, Module):
            raise InvalidArgumentError(f"{model.name} is compiled for one length, and a generator compiles for its own; give the torch.nn.Module that it was made of")
        if any(module.training for module in model.modules()):
            raise InvalidArgumentError("the model is in training mode, in which dropout and norms differ from call to call; call model.eval()")
        cache = list(cache)
        lengths = {tensor.shape[0] if tensor.dim() else 0 for tensor in cache}
        if len(lengths) != 1 or 0 in lengths:
            raise InvalidArgumentError(f"a cache is tensors whose first dimension is the same number of positions; shapes {[list(t.shape) for t in cache]} were given")
        for name, number in (("rows", rows), ("chunk", chunk)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidArgumentError(f"{name} is {number!r}; a whole number from 1 on is needed")
        self._device = open_device(device)
        if not self._device.has_unified_memory:
            raise UnsupportedError(f"device {self._device.name!r} has a memory of its own, and a generator writes its cache where PyTorch sees it; use cpu")
        (self.length,) = lengths
        self.rows, self.chunk = rows, min(chunk, self.length)
        #: Keys and values, zeros where nothing was generated yet.
        self.cache = [torch.zeros_like(tensor, requires_grad=False, memory_format=torch.contiguous_format) for tensor in cache]
        self._model = model
        self._weights = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
        self._programs: dict[int, _Pieces] = {}
        self._filled = 0
        self._piece(1)

    @property
    def programs(self) -> int:
        """How many programs were compiled: that of a token, and that of pieces of a prompt once one was long enough."""
        return len(self._programs)

    def generate(self, prompt: Sequence[int] | torch.Tensor, new_tokens: int, *, temperature: float = 0.0, top_k: int | None = None,
                 seed: int = 0, stop: int | None = None) -> torch.Tensor:
        """The prompt and up to `new_tokens` tokens behind it, [rows, count] of int64.

        Parameters
        ----------
        prompt : sequence of int, or Tensor
            [count], or [rows, count] of equal lengths.
        new_tokens : int
            How many tokens.
        temperature : float
            0 takes the likeliest token; otherwise one is drawn from the softmax of the logits over this.
        top_k : int, optional
            Draws from the likeliest so many alone.
        seed : int
            Of what is drawn: the same seed draws the same tokens.
        stop : int, optional
            Ends when each row has had this token; a row that has goes on with it.

        Raises
        ------
        InvalidArgumentError
            Prompt and tokens have no room in the cache, or a number is none.
        """
        given = torch.as_tensor(prompt, dtype=torch.int64)
        given = given.expand(self.rows, -1) if given.dim() == 1 else given
        if given.dim() != 2 or given.shape[0] != self.rows or not given.shape[1]:
            raise InvalidArgumentError(f"a prompt has {self.rows} rows of at least one token; its shape is {list(given.shape)}")
        if isinstance(new_tokens, bool) or not isinstance(new_tokens, int) or new_tokens < 0:
            raise InvalidArgumentError(f"new_tokens is {new_tokens!r}; a whole number from 0 on is needed")
        if not temperature >= 0 or temperature == float("inf"):
            raise InvalidArgumentError(f"temperature is {temperature!r}; 0 takes the likeliest token, and a number above draws")
        if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
            raise InvalidArgumentError(f"top_k is {top_k!r}; a whole number from 1 on is needed")
        count = given.shape[1]
        if count + new_tokens > self.length:
            raise InvalidArgumentError(f"a prompt of {count} tokens and {new_tokens} new ones were asked for, and the cache has {self.length} positions; make it longer")
        tokens = torch.empty(self.rows, count + new_tokens, dtype=torch.int64)
        tokens[:, :count] = given
        if not new_tokens:
            return tokens
        for tensor in self.cache:
            tensor[: self._filled].zero_()
        self._filled = count + new_tokens  # if an error ends this call, too
        at = 0
        while count - at >= self.chunk > 1:
            logits = self._piece(self.chunk)(tokens[:, at : at + self.chunk], at)
            at += self.chunk
        for at in range(at, count):
            logits = self._piece(1)(tokens[:, at : at + 1], at)
        drawn = torch.Generator().manual_seed(seed)
        has_stopped = torch.zeros(self.rows, dtype=torch.bool)
        step = self._piece(1)
        for at in range(count, count + new_tokens):
            chosen = _choose(logits, temperature, top_k, drawn)
            if stop is not None:
                chosen = torch.where(has_stopped, stop, chosen)
                has_stopped |= chosen == stop
            tokens[:, at] = chosen
            if at + 1 == count + new_tokens or stop is not None and bool(has_stopped.all()):
                break
            logits = step(tokens[:, at : at + 1], at)
        return tokens[:, : at + 1]

    def _piece(self, count: int) -> "_Pieces":
        if count not in self._programs:
            self._programs[count] = _Pieces(self._model, self._weights, self.cache, self.rows, count, self._device)
        return self._programs[count]


class _Pieces:
    """The program for so many tokens at once, with its inputs where they lie for good."""

    def __init__(self, model: nn.Module, weights: dict[str, torch.Tensor], cache: list[torch.Tensor], rows: int, count: int, on: "_runtime.Device"):
        self._tokens, self._positions = torch.zeros(rows, count, dtype=torch.int64), torch.arange(count)
        self._offsets, self._on = torch.arange(count), on
        name = f"{type(model).__name__} of {count} tokens" if count > 1 else f"{type(model).__name__} of a token"
        with torch.no_grad():
            captured = capture(model, (self._tokens, self._positions, cache), overwritten=len(cache))
        if len(captured.results) != 1 + len(cache) or captured.results[0].shape[:1] != (rows,):
            raise InvalidArgumentError(f"the model gives {[list(r.shape) for r in captured.results]}; logits [{rows}, vocabulary] and {len(cache)} tensors of "
                                       "the cache are wanted")
        random = next((a.name for a in captured.arguments if a.role == "hyper"), None)
        if random is not None:
            raise UnsupportedError(f"{type(model).__name__} draws random numbers of its own, which a generator has no seed for; call model.eval()")
        file = compile_text(captured.text, name, training=False, target=on.kernel_target)
        (self._program,) = _runtime.Binary.from_bytes(file, name).programs
        given = iter((self._tokens, self._positions, *cache))
        self._inputs = [wrap(next(given) if a.role == "input" else weights[a.name], on, writable=a.role == "input") for a in captured.arguments]

    def __call__(self, tokens: torch.Tensor, first: int) -> torch.Tensor:
        """The logits behind the last of these tokens, of which the first one is at the position `first`."""
        self._tokens.copy_(tokens)
        torch.add(self._offsets, first, out=self._positions)
        logits: torch.Tensor = give(_runtime.submit(self._on, self._program, self._inputs)[0], "torch")
        return logits


def _choose(logits: torch.Tensor, temperature: float, top_k: int | None, drawn: torch.Generator) -> torch.Tensor:
    """A token per row."""
    if temperature == 0 or top_k == 1:
        return logits.argmax(-1)
    scores = logits.float() / temperature
    if top_k is not None and top_k < scores.shape[-1]:
        least = scores.topk(top_k, -1).values[..., -1:]
        scores = scores.masked_fill(scores < least, float("-inf"))
    return torch.multinomial(scores.softmax(-1), 1, generator=drawn)[:, 0]
