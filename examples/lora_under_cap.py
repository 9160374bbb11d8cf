"""Fine-tunes adapters on a frozen base that does not fit on the device.

    python examples/lora_under_cap.py --out out/lora-cap

`segue-run quantize` makes a SquareQ slab of a GPT's weights. The device is simulated, with less memory than those weights
take as bf16; a config has Weight Stagehand bring each block's INT8 codes from the slab when the block runs, Activation
Stagehand spill what forward saves, and Conductor grant memory and slots of the link to both. The same adapters trained on
a device with room for everything, without services, give the same losses to the bit.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import segue

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
from lora_slab import batches, quantize  # noqa: E402
from models import GPT, GPTConfig, add_lora  # noqa: E402

MIB = 1 << 20


def adapted(config: GPTConfig, rank: int) -> torch.nn.Module:
    """The same adapters on a base of the same values each time."""
    torch.manual_seed(1)
    return add_lora(GPT(config), rank, ("qkv", "proj", "fc", "out"))


def services(slab: Path, cap_mib: float, records: Path) -> dict:
    """The config of the run under the cap; each service writes a line per step into the folder `records`."""
    return {"memory": {"stagehand": {
        "squareq_slab_path": str(slab), "squareq_manifest_path": str(slab.with_suffix(".manifest.json")),
        "prefetch_window_blocks": 1, "telemetry_file": str(records / "weights.jsonl"), "telemetry_interval_steps": 1,
        "vram_high_watermark_mb": 0.75 * cap_mib, "vram_low_watermark_mb": 0.6 * cap_mib,
        "conductor_config": {"enabled": True, "vram_hard_cap_mb": cap_mib, "vram_soft_cap_mb": cap_mib,
                             "telemetry_file": str(records / "conductor.jsonl"), "telemetry_interval_steps": 1},
        "activation_stagehand": {"enabled": True, "vram_high_watermark_mb": 0.6 * cap_mib,
                                 "vram_low_watermark_mb": 0.4 * cap_mib, "pinned_pool_classes_mb": [1],
                                 "slabs_per_class": 16, "telemetry_file": str(records / "activations.jsonl")}}}}


def last(file: Path) -> dict:
    """The record of the last step."""
    return json.loads(file.read_text().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/lora-cap"))
    parser.add_argument("--text", type=Path, default=ROOT / "LICENSE")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--cap-mib", type=float, default=8.0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = GPTConfig(layers=args.layers, dim=args.dim, heads=4, seq=32)

    # The slab has the base under the names that it has beneath the adapters.
    checkpoint, slab = args.out / "base.safetensors", args.out / "slab.safetensors"
    base = {name: p.detach() for name, p in adapted(config, args.rank).named_parameters() if not p.requires_grad}
    save_file(base, checkpoint)
    quantize(checkpoint, slab)

    def run(device: str, cap_mib: float | None):
        model = adapted(config, args.rank)
        adamw = segue.AdamW(lr=3e-3)
        data = batches(args.text, 2, config.seq, seed=2)
        batch = next(data)
        trainer = segue.Trainer([segue.compile(model, (batch["tokens"], batch["targets"]), optimizer=adamw)],
                                optimizer=adamw, device=device, config=services(slab, cap_mib, args.out) if cap_mib else None)
        if not cap_mib:
            trainer.load_slab(slab)
        return [trainer.step(**next(data)) for _ in range(args.steps)], trainer.peak_bytes

    weights = sum(2 * p.numel() for p in base.values())
    free, _ = run("cpu:threads=1", None)
    for file in args.out.glob("*.jsonl"):
        file.unlink()  # of a run before
    capped, peak = run(f"sim:dram={args.cap_mib}MiB,pinned=64MiB,threads=1", args.cap_mib)
    print(f"weights as bf16 {weights / MIB:.1f} MiB, device {args.cap_mib:.1f} MiB, peak {peak / MIB:.2f} MiB")
    weights_line, activations, conductor = (last(args.out / f"{name}.jsonl") for name in ("weights", "activations", "conductor"))
    print(f"in the last step: {weights_line['loads']} blocks loaded, {activations['activations_spilled']} activations spilled, "
          f"at most {conductor['h2d_peak']} copies in and {conductor['d2h_peak']} out at once")
    for step, (a, b) in enumerate(zip(free, capped), 1):
        print(f"step {step}: loss {b:.6f}{'' if a == b else f' DIFFERENT from {a:.6f}'}")
    equal = free == capped and peak <= args.cap_mib * MIB
    print("equal to the run without a cap, to the bit" if equal else "DIFFERENT from the run without a cap")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
