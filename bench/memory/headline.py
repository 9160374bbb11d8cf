#!/usr/bin/env python3
"""The published case of Activation Stagehand from compiled programs, simulated: 48 blocks with adapters on a card of 24 GiB.

    python bench/memory/headline.py                                          # beside the published line
    python bench/memory/headline.py --frozen-storage int8_row --table out/headline.md

`dual_stream_mlir.py` writes the model, segue-compile compiles it, and `segue-run train` trains it on a device of virtual time:
the session, the services and the allocator that would train, memory counted in their books, and each kernel and copy timed by
what its program states of flops and bytes (`--device`). Nothing is computed, and no weight is there. Each row is a run of its
own: a cap, and keys of the services. Two steps come before the one that counts. Two more tables play the same caps with less
page-locked memory and on slower cards, and bisect for the smallest cap that trains. Exit status 1 if a run fails, if
steps of a run keep not to its cap, or if the same run gives other figures a second time.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dual_stream_mlir import Model, text  # noqa: E402
from run import output  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MIB = 2**20
#: RTX 3090 Ti: 71 TFLOP/s in bf16 with sums in f32, 1008 GB/s; PCIe 4.0 x16. Peak figures: what is hidden has least time to hide in.
DEVICE = "host=128GiB,pinned=64GiB,link=25GB/s,latency=10us,flops=71TFLOP/s,membw=1008GB/s,launch=5us"
#: GB of the published run without and with watermarks, seconds, spilled tensors, MiB.
PUBLISHED = [("published, without", 19.4, 9.3, 0, 0), ("published, watermarks 16000/12000", 16.9, 10.0, 422, 376)]


@dataclass(frozen=True)
class Run:
    """A cap, and keys of `memory.stagehand`; watermarks of weights in MiB, or None for never."""

    name: str
    cap_gb: float
    window: int
    watermarks: tuple[float, float] | None = None
    activations: tuple[float, float] | str | None = None

    def config(self, folder: Path) -> dict:
        """The cap is the device's memory. Watermarks that are never reached leave it to the allocator to ask for room."""
        high, low = self.watermarks or (2 * self.cap_gb * 1e9 / MIB, self.cap_gb * 1e9 / MIB)
        section = {"prefetch_window_blocks": self.window, "vram_high_watermark_mb": high, "vram_low_watermark_mb": low,
                   "telemetry_interval_steps": 1, "telemetry_file": str(folder / "weights.jsonl")}
        if self.activations:
            keys = {"mode": "planned"} if self.activations == "planned" else dict(
                zip(("vram_high_watermark_mb", "vram_low_watermark_mb"), self.activations))
            section["activation_stagehand"] = {"enabled": True, "telemetry_file": str(folder / "activations.jsonl"), **keys}
        return {"memory": {"stagehand": section}}


def pair(given: str) -> tuple[float, float]:
    """`16000/12000`."""
    high, low = map(float, given.split("/"))
    return high, low


def listed(given: str) -> list[str]:
    """`64GiB,36GiB`."""
    return [value for value in given.split(",") if value]


def runs(args: argparse.Namespace) -> list[Run]:
    """The first is what added time refers to."""
    free, cap, card, window = args.free_gb, args.cap_gb, args.card_gb, args.window
    named = lambda watermarks: "/".join(f"{mib:g}" for mib in watermarks)  # noqa: E731
    own, published, tuned = args.watermarks, args.weight_watermarks, args.tuned_watermarks
    return [
        Run(f"without, {free:g} GB", free, window),
        Run(f"without, weights' watermarks {named(tuned)}", card, window, tuned),
        Run(f"without, weights' watermarks {named(args.lower_watermarks)}", card, window, args.lower_watermarks),
        Run(f"watermarks {named(own)}, weights' {named(published)}", card, window, published, own),
        Run(f"watermarks {named(own)}, weights' {named(own)}", card, window, own, own),
        Run(f"without, {cap:g} GB", cap, window),
        Run(f"planned, {cap:g} GB", cap, window, None, "planned"),
        Run(f"planned, {cap:g} GB, window {args.wide_window}", cap, args.wide_window, None, "planned"),
    ]


def beside(args: argparse.Namespace) -> list[Run]:
    """What the sweeps play: the free run, and at the cap the ring alone and a plan."""
    return [Run("without", args.free_gb, args.window), Run("without", args.cap_gb, args.window),
            Run("planned", args.cap_gb, args.window, None, "planned")]


def with_option(device: str, key: str, value: str) -> str:
    """`device` with `key=value` in place of what it has."""
    return ",".join([option for option in device.split(",") if not option.startswith(f"{key}=")] + [f"{key}={value}"])


def tool(name: str) -> str:
    return os.environ.get(f"SEGUE_{name.upper()}", str(ROOT / "build" / "bin" / f"segue-{name}"))


def last_line(path: Path) -> dict:
    return json.loads(path.read_text().splitlines()[-1]) if path.exists() else {}


def play(run: Run, program: Path, folder: Path, args: argparse.Namespace) -> dict:
    """The figures of the last of three steps. Raises RuntimeError with what the tool said."""
    for file in folder.glob("*.jsonl"):
        file.unlink()
    config = folder / "config.json"
    config.write_text(json.dumps(run.config(folder)))
    device = f"sim:virtual,dram={int(run.cap_gb * 1e9)},{args.device}"
    done = subprocess.run([tool("run"), "train", str(program), "--device", device, "--config", str(config), "--steps", "3", "--json"],
                          capture_output=True, text=True, timeout=args.timeout)
    if done.returncode:
        raise RuntimeError(f"{run.name}: {done.stderr.strip()}")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    saved, weights = last_line(folder / "activations.jsonl"), last_line(folder / "weights.jsonl")
    return {"name": run.name, "cap_bytes": int(run.cap_gb * 1e9), "seconds": steps[-1]["seconds"],
            "peak_bytes": max(step["peak_bytes"] for step in steps[1:]), "first_peak_bytes": steps[0]["peak_bytes"],
            "saved": saved.get("activations_saved"), "spilled": saved.get("activations_spilled", 0), "spill_bytes": saved.get("spill_bytes", 0),
            "loads": weights.get("loads", 0), "load_bytes": weights.get("h2d_bytes", 0)}


def swept(program: Path, args: argparse.Namespace) -> list[dict]:
    """Rows of `beside` for each size of page-locked memory and each speed of computing."""
    rows = []
    for key, values in (("pinned", args.pinned), ("flops", args.flops)):
        for value in values:
            given = argparse.Namespace(**{**vars(args), "device": with_option(args.device, key, value)})
            rows.append({"key": key, "value": value, "runs": [play(run, program, args.work, given) for run in beside(args)]})
    return rows


def smallest_cap(run: Run, program: Path, args: argparse.Namespace) -> float:
    """GB, to `--grain-gb`: the least cap at which `run` trains. Any refusal counts as too small."""
    low, high = 0, round(run.cap_gb / args.grain_gb)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            play(replace(run, cap_gb=middle * args.grain_gb), program, args.work, args)
            high = middle
        except RuntimeError:
            low = middle
    return high * args.grain_gb


def sweep_tables(rows: list[dict], smallest: dict[str, float], args: argparse.Namespace) -> str:
    titles = {"pinned": "page-locked memory", "flops": "the card computes"}
    names = [f"{run.name}, {run.cap_gb:g} GB" for run in beside(args)]
    lines = []
    for key, title in titles.items():
        lines += ["", f"| {title} | " + " | ".join(f"{name}: s/step" for name in names) + " | planned beside the ring alone |",
                  "| --- |" + " --: |" * (len(names) + 1)]
        for row in (row for row in rows if row["key"] == key):
            free, ring, planned = row["runs"]
            cells = [f"{free['seconds']:.3f}"] + [f"{run['seconds']:.3f} ({run['seconds'] / free['seconds'] - 1:+.1%})" for run in (ring, planned)]
            lines.append(f"| {row['value']} | {' | '.join(cells)} | {planned['seconds'] / ring['seconds'] - 1:+.1%} |")
    lines += ["", "| | smallest cap, GB |", "| --- | --: |"] + [f"| {name} | {gb:.3g} |" for name, gb in smallest.items()]
    return "\n".join(lines) + "\n"


def errors_of(results: list[dict], again: list[dict]) -> list[str]:
    errors = [f"{row['name']}: {max(row['peak_bytes'], row['first_peak_bytes'])} bytes held under a cap of {row['cap_bytes']}"
              for row in results if max(row["peak_bytes"], row["first_peak_bytes"]) > row["cap_bytes"]]
    return errors + [f"{a['name']}: {a} the first time, {b} the second" for a, b in zip(results, again) if a != b]


def table(results: list[dict], model: Model, saved: str, args: argparse.Namespace) -> str:
    base, free = results[0]["seconds"], results[0]
    lines = [f"{time.strftime('%Y-%m-%d')}; simulated, the same on every machine: `python bench/memory/headline.py "
             f"{' '.join(args.given)}`; {model.layers} blocks, {saved}; device `sim:virtual,{args.device}`.", "",
             "| | peak GB | s/step | added | tensors spilled | MiB out | blocks loaded | GB in |",
             "| --- | --: | --: | --: | --: | --: | --: | --: |"]
    for name, peak, seconds, spilled, mib in PUBLISHED:
        lines.append(f"| {name} | {peak:.2f} | {seconds:.2f} | {seconds / PUBLISHED[0][2] - 1:+.1%} | {spilled} | {mib} | | |")
    for row in results:
        added = "" if row is free else f"{row['seconds'] / base - 1:+.1%}"
        lines.append(f"| Segue, {row['name']} | {row['peak_bytes'] / 1e9:.2f} | {row['seconds']:.3f} | {added} | {row['spilled']} |"
                     f" {row['spill_bytes'] / MIB:.0f} | {row['loads']} | {row['load_bytes'] / 1e9:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = Model()
    for field, value in vars(model).items():
        parser.add_argument(f"--{field.replace('_', '-')}", type=int, default=value, help=f"of the model; default: {value}")
    parser.add_argument("--frozen-storage", default="", help="of the base weights, as int8_row; default: bf16")
    parser.add_argument("--device", default=DEVICE, help=f"options of sim:virtual but dram; default: {DEVICE}")
    parser.add_argument("--card-gb", type=float, default=24 * 2**30 / 1e9)
    parser.add_argument("--free-gb", type=float, default=19.4, help="cap of the run that the others are compared with")
    parser.add_argument("--cap-gb", type=float, default=16.9)
    parser.add_argument("--watermarks", type=pair, default=(16000, 12000), help="MiB of Activation Stagehand; default: 16000/12000")
    parser.add_argument("--weight-watermarks", type=pair, default=(20000, 16000), help="of Weight Stagehand, as published: 20000/16000")
    parser.add_argument("--tuned-watermarks", type=pair, default=(18000, 17000), help="of the fastest run without; default: 18000/17000")
    parser.add_argument("--lower-watermarks", type=pair, default=(16000, 15500),
                        help="of a run without whose ring alone is lowered, on the whole card; default: 16000/15500")
    parser.add_argument("--pinned", type=listed, default=listed("64GiB,36GiB,20GiB,9GiB"), help="sizes of page-locked memory to try")
    parser.add_argument("--flops", type=listed, default=listed("71TFLOP/s,35TFLOP/s,16TFLOP/s"), help="speeds of the card to try")
    parser.add_argument("--grain-gb", type=float, default=0.1, help="of the smallest caps; default: 0.1")
    parser.add_argument("--window", type=int, default=2, help="blocks that are loaded ahead; as published: 2")
    parser.add_argument("--wide-window", type=int, default=16)
    parser.add_argument("--work", type=Path, default=Path("out/headline"), help="folder of the program and the telemetry")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    parser.add_argument("--json", type=output, help="write all results to this file")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    model = Model(**{field: getattr(args, field) for field in vars(model)})
    args.work.mkdir(parents=True, exist_ok=True)
    source, program = args.work / "model.mlir", args.work / "model.segue"
    source.write_text(text(model))
    storage = [f"--frozen-storage={args.frozen_storage}"] if args.frozen_storage else []
    try:
        subprocess.run([tool("compile"), str(source), "--target=x86-64-v3", "--optimizer=adamw", *storage, "-o", str(program)], check=True,
                       timeout=args.timeout)
        results = [play(run, program, args.work, args) for run in runs(args)]
        again = [play(run, program, args.work, args) for run in runs(args)]
        sweeps = swept(program, args)
        smallest = {run.name: smallest_cap(run, program, args) for run in beside(args)[1:]}
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    count = next(row["saved"] for row in results if row["saved"])
    saved = f"{count} tensors saved, base weights {args.frozen_storage or 'bf16'}"
    if args.json:
        args.json.write_text(json.dumps({"runs": results, "sweeps": sweeps, "smallest_gb": smallest}, indent=1))
    shown = table(results, model, saved, args) + sweep_tables(sweeps, smallest, args)
    print(shown, end="")
    if args.table:
        args.table.write_text(shown)
    errors = errors_of(results, again)
    print("".join(f"{error}\n" for error in errors), end="", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
