#!/usr/bin/env python3
"""Tokens per second behind a prompt, by `segue.Generator` and by PyTorch, interleaved, with tokens compared.

    OMP_NUM_THREADS=1 python bench/generate/run.py --config S
    OMP_NUM_THREADS=2 python bench/generate/run.py --config G --tokens 40 --rounds 3

The model is that of examples/generate.py in the sizes of bench/peers: S has 6 layers of width 384 over bytes, G is as large as GPT-2 small. In PyTorch the cache is
written in place (`index_copy_`), eagerly and, with `--compile`, by inductor. Times are those of the processors by the process, and by the clock; the
best of the rounds counts. With --profile each command of a token is shown beside its limit, on stderr.
"""
import argparse
import json
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "bench" / "peers")]

import generate  # noqa: E402 - of the examples
import gpt_common as g  # noqa: E402

import segue  # noqa: E402


def model_of(config: str, length: int) -> generate.GPT:
    cfg = g.CONFIGS[config]
    torch.manual_seed(0)
    model = generate.GPT(cfg.layers, cfg.dim, cfg.heads, cfg.vocab, length).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, 0, 0.2 if name.startswith("wte") else 0.05)
    return model


class InPlace:
    """PyTorch's loop, with a cache that is written where it lies."""

    def __init__(self, model: generate.GPT, call):
        self.cache, self.call = model.cache(), call

    @torch.no_grad()
    def __call__(self, prompt: list[int], count: int) -> list[int]:
        for tensor in self.cache:
            tensor.zero_()
        tokens, written = list(prompt), segue.write_rows
        segue.write_rows = lambda cache, positions, rows: cache.index_copy_(0, positions, rows)
        try:
            for at in range(len(prompt) + count - 1):
                logits, _ = self.call(torch.tensor([[tokens[at]]]), torch.tensor([at]), self.cache)
                if at + 1 >= len(prompt):
                    tokens.append(int(logits.argmax()))
        finally:
            segue.write_rows = written
        return tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=["T", "S", "G"], default="S")
    parser.add_argument("--length", type=int, default=256, help="positions of the cache")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="PyTorch by inductor, too")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, prompt = model_of(args.config, args.length), [5, 7, 9, 11, 13]
    generator = segue.Generator(model, model.cache(), device=f"cpu:threads={args.threads}")
    ways = {"segue": lambda count: generator.generate(prompt, count)[0].tolist()}
    eager = InPlace(model, model)
    ways["eager"] = lambda count: eager(prompt, count)
    if args.compile:
        compiled = InPlace(model, torch.compile(model))
        ways["compile"] = lambda count: compiled(prompt, count)
    found = {name: way(args.tokens) for name, way in ways.items()}  # compiles and warms up
    best: dict[str, list[float]] = {name: [float("inf")] * 2 for name in ways}
    for _ in range(args.rounds):
        for name, way in ways.items():
            clock, own = time.perf_counter(), time.process_time()
            way(args.tokens)
            taken = time.perf_counter() - clock, time.process_time() - own
            best[name] = [min(a, b) for a, b in zip(best[name], taken)]
    steps = len(prompt) + args.tokens - 1
    print(f"config {args.config}, {args.tokens} tokens behind a prompt of {len(prompt)}, a cache of {args.length}, {args.threads} threads; best of {args.rounds}")
    print("| | tokens/s by the clock | by CPU time | ratio to eager | tokens |\n| --- | --: | --: | --: | --- |")
    for name, (clock, own) in best.items():
        same = "equal" if found[name] == found["eager"] else "DIFFER"
        print(f"| {name} | {steps / clock:.1f} | {steps / own:.1f} | {best['eager'][1] / own:.2f} | {same} |")
    if args.profile:
        timer, count = segue._runtime.CommandTimer(generator._device), min(args.tokens, 20)
        begin = time.perf_counter()
        generator.generate(prompt, count)
        timer.stop()
        print(json.loads(timer.table("token", len(prompt) + count - 1, time.perf_counter() - begin))["text"], file=sys.stderr)
    return 0 if all(tokens == found["eager"] for tokens in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
