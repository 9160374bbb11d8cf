#!/usr/bin/env python3
"""What states of 8 bits cost and give: losses, bytes and the time of an AdamW step beside states in f32.

    python bench/states/run.py --steps 300                # a GPT of 3.3 M parameters in Segue, with 32 and with 8 bits
    python bench/states/run.py --steps 300 --codes        # other codes beside ours, written in PyTorch

Without --codes, ends with status 1 where the last losses (the mean of a tenth of the steps) of 8 bits are above those of 32 by more than one
per cent. With it, the codes are those of blocks of 256: whole numbers, as INT8; the dynamic tree of 8-bit optimizers (arXiv:2110.02861);
FP8 (E4M3); ours, to the nearest code; and ours. Each trains by itself. Beside it, means in f32 of the same gradients say how far the update
of each weight is from what it should be, and how far the root of the second moment.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench/peers"), str(ROOT / "test/python")]
import gpt_common as g  # noqa: E402
import state_codes as sc  # noqa: E402
from gpt_torch import GPT  # noqa: E402

CONFIGS = {"A": g.Config(layers=4, dim=256, heads=4, seq=128, batch=8), "T": g.CONFIGS["T"]}
BLOCK = 256


def rate(step: int, steps: int) -> float:
    """Up to 1e-3 over 20 steps, and down to a tenth of that."""
    return 1e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / steps)


def batch(data, cfg, step):
    return [torch.from_numpy(a) for a in g.batch_at(data, cfg, step)]


def model_of(cfg):
    model = GPT(cfg)
    model.load(g.initial_weights(cfg))
    return model


def summary(losses) -> str:
    tenth = max(1, len(losses) // 10)
    at = [losses[k - 1] for k in (len(losses) // 4, len(losses) // 2) if k]
    return ", ".join(f"{loss:.4f}" for loss in [losses[0], *at, sum(losses[-tenth:]) / tenth])


def trained(cfg, args, bits):
    """Losses, bytes of states, and microseconds of the optimizer program."""
    import segue
    data = g.corpus()
    optimizer = segue.AdamW(lr=lambda step: rate(step, args.steps), betas=(0.9, args.beta2), weight_decay=0.1, state_bits=bits)
    module = segue.compile(model_of(cfg), tuple(batch(data, cfg, 0)), optimizer=optimizer)
    trainer = segue.Trainer([module], optimizer=optimizer)
    losses = []
    for step in range(args.steps):
        tokens, targets = batch(data, cfg, step)
        losses.append(trainer.step(tokens=tokens, targets=targets))
    with tempfile.TemporaryDirectory() as folder:
        trainer.save(Path(folder) / "run.safetensors")
        states = sum(t.nbytes for name, t in load_file(Path(folder) / "run.safetensors").items() if name.startswith("segue.state."))
        if args.repeat == 0:
            return losses, states, 0.0
        module.save(Path(folder) / "gpt.segue")
        tool = Path(os.environ.get("SEGUE_BUILD", ROOT / "build")) / "bin/segue-run"
        found = subprocess.run([tool, "bench", Path(folder) / "gpt.segue", "--program", "optimizer", "--device", f"cpu:threads={args.threads}",
                                "--repeat", str(args.repeat), "--allow-native", "--json"], capture_output=True, text=True, check=True).stdout
    return losses, states, json.loads(found)["submit_us"]["least"]


def in_segue(cfg, args) -> int:
    last = {}
    print(f"bits | loss at step 1, {args.steps // 4}, {args.steps // 2}, mean of the last tenth | MiB of states | least ms of the "
          f"optimizer, {args.threads} thread(s)")
    for bits in (32, 8):
        losses, states, least = trained(cfg, args, bits)
        last[bits] = sum(losses[-max(1, args.steps // 10):])
        print(f"{bits} | {summary(losses)} | {states / 2**20:.2f} | {least / 1e3:.3f}", flush=True)
    return int(not last[8] < last[32] * 1.01)


def dynamic_tree(signed: bool) -> torch.Tensor:
    """All values of the data type: a sign or none, zeros that count powers of ten, a one, and the mean of an interval of (0.1, 1)."""
    values = [0.0, 1.0]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2**(power if signed else power + 1) + 1)
        means = ((edges[:-1] + edges[1:]) / 2 * 10.0**(power - 6)).tolist()
        values += means + ([-mean for mean in means] if signed else [])
    return torch.tensor(sorted(values))


TREES = {code: dynamic_tree(code == sc.SIGNED) for code in (sc.SIGNED, sc.SQUARE)}


def rounded(codes: str, code: str, x: torch.Tensor, step: int) -> torch.Tensor:
    """What is left of a state, given as blocks x elements."""
    if codes in ("ours", "nearest"):
        return sc.decoded(code, *sc.encoded(code, x, step if codes == "ours" else None)[:2]).float()
    scale = x.abs().amax(1, keepdim=True).clamp(min=1e-30)
    if codes == "int8":
        most = 127 if code == sc.SIGNED else 255
        return (x / scale * most).round() / most * scale
    if codes == "fp8":
        return (x / scale * 448).to(torch.float8_e4m3fn).float() / 448 * scale
    tree = TREES[code]
    return tree[torch.bucketize(x / scale, (tree[1:] + tree[:-1]) / 2)] * scale


def in_torch(cfg, args) -> int:
    print(f"codes | loss at step 1, {args.steps // 4}, {args.steps // 2}, mean of the last tenth | error of updates: tables, others | largest "
          "update, in f32 | root of v over that in f32: 1 %, 50 %, 99 %")
    for codes in ("f32", "int8", "dynamic", "fp8", "nearest", "ours"):
        model, data, losses = model_of(cfg), g.corpus(), []
        weights = dict(model.named_parameters())
        kept = {name: {key: torch.zeros_like(p) for key in ("m", "v")} for name, p in weights.items()}
        exact = {name: {key: torch.zeros_like(p) for key in ("m", "v")} for name, p in weights.items()}
        for step in range(1, args.steps + 1):
            tokens, targets = batch(data, cfg, step - 1)
            loss = model(tokens, targets)
            model.zero_grad()
            loss.backward()
            losses.append(loss.item())
            errors, sizes, shares, largest = {}, {}, [], [0.0, 0.0]
            with torch.no_grad():
                for name, p in weights.items():
                    new, should = ({key: beta * states[name][key] + (1 - beta) * value for key, beta, value in
                                    (("m", 0.9, p.grad), ("v", args.beta2, p.grad**2))} for states in (kept, exact))
                    update, wanted = (state["m"] / (1 - 0.9**step) / ((state["v"] / (1 - args.beta2**step)).sqrt() + 1e-8)
                                      for state in (new, should))
                    p.mul_(1 - rate(step - 1, args.steps) * 0.1).sub_(rate(step - 1, args.steps) * update)
                    exact[name] = should
                    if codes != "f32" and sc.block_of(p.numel()) == BLOCK:
                        new = {key: rounded(codes, sc.CODES[key], new[key].reshape(-1, BLOCK), step).reshape(p.shape) for key in new}
                        kind = "tables" if name.startswith("w") else "others"
                        errors[kind] = errors.get(kind, 0) + (update - wanted).square().sum().item()
                        sizes[kind] = sizes.get(kind, 0) + wanted.square().sum().item()
                        largest = [max(old, new.abs().max().item()) for old, new in zip(largest, (update, wanted))]
                        shares.append((new["v"].sqrt() / should["v"].sqrt().clamp(min=1e-20))[should["v"] > 0][::7])
                    kept[name] = new
            if losses[-1] != losses[-1]:
                break
        line = f"{codes} | {summary(losses)}"
        if codes != "f32" and losses[-1] == losses[-1]:
            quantiles = torch.cat(shares).quantile(torch.tensor([0.01, 0.5, 0.99]))
            line += (f" | {', '.join(f'{(errors[kind] / sizes[kind])**0.5:.3f}' for kind in ('tables', 'others'))} | "
                     f"{largest[0]:.2f}, {largest[1]:.2f} | {', '.join(f'{q:.3f}' for q in quantiles.tolist())}")
        print(line, flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="A")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--codes", action="store_true", help="other codes beside ours")
    parser.add_argument("--threads", type=int, default=1, help="of the optimizer that is timed, and of PyTorch")
    parser.add_argument("--repeat", type=int, default=100, help="submits of the optimizer that are timed; 0: none")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return (in_torch if args.codes else in_segue)(CONFIGS[args.config], args)


if __name__ == "__main__":
    sys.exit(main())
