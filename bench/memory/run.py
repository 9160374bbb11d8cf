#!/usr/bin/env python3
"""What a memory cap costs: Segue on the simulated device beside PyTorch's ways to hold less, in one sitting.

    python bench/memory/run.py                       # config S, caps of 80 and 60 %, one thread each
    python bench/memory/run.py --caps 100,80,60,40 --rounds 3 --table out/memory.md

Segue trains on `sim`: one compute thread, copies on the link's own threads at 16 GB/s each way, within a percentage of what the
step holds by itself; by a plan (`mode: planned`) and by watermarks; and with the weights of its blocks streamed from the host,
where the cap is that of the weights alone. PyTorch trains on the CPU with one thread: plain, with
`save_on_cpu` (every saved tensor is copied, here from host to host) and with `checkpoint` (every block computed twice). Each is a
process of its own that starts from the same weights and reads the same bytes; they run in rounds, and the best median of each
counts. Ratios are to the unconstrained run of the same system. Exit status 1 if one failed, if Segue's losses under a cap are not
those without to the bit, or if PyTorch's differ.
"""
import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import LOSS_TOLERANCE, chosen, output, processor, publish, run_rounds  # noqa: E402

DEVICE = "sim:dram=1GiB,pinned=2GiB,link=16GB/s,threads=1"


def commands(caps: list[float]) -> dict[str, list[str]]:
    """Name -> script and arguments. The two that ratios refer to come first."""
    segue = ["gpt_segue.py", "--device", DEVICE]
    torch = ["gpt_torch.py", "--mode", "eager", "--saved-bytes"]
    peers = {"segue": segue, "torch": torch}
    for mode in ("planned", "watermark"):
        for cap in caps:
            peers[f"segue-{mode}-{cap:g}"] = [*segue, "--mode", mode, "--cap", str(cap)]
    peers["segue-watermark-streamed-60"] = [*segue, "--mode", "watermark-streamed", "--cap", "60"]
    peers["segue-streamed"] = [*segue, "--mode", "streamed"]
    return peers | {"torch-save_on_cpu": [*torch, "--offload"], "torch-checkpoint": [*torch, "--checkpoint"]}


def errors_of(results: dict[str, list[dict]]) -> list[str]:
    """A cap changes no bit of Segue's losses; PyTorch's are those of Segue as far as f32 goes."""
    errors, want = [], results["segue"][0] if "segue" in results else None
    for name, runs in results.items():
        for key in ("loss0", "late_loss"):
            if want is None or "refused" in runs[0]:
                continue
            found, wanted = runs[0][key], want[key]
            same = found == wanted if name.startswith("segue") else abs(found - wanted) <= LOSS_TOLERANCE * abs(wanted)
            if not same:
                errors.append(f"{name}: {key} is {found}, the unconstrained run of Segue has {wanted}")
    return errors


def table(results: dict[str, list[dict]], args: argparse.Namespace) -> str:
    median = lambda row: row.get("step_ms_median", float("inf"))  # noqa: E731
    best = {name: min(runs, key=median) for name, runs in results.items()}
    lines = [
        f"### What a cap costs, config {args.config}, one compute thread", "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end; "
        f"`python bench/memory/run.py {' '.join(args.given)}`; best of {args.rounds} medians over {args.steps - 5} steps; Segue on "
        f"`{DEVICE}`.", "",
        f"| | cap MiB | step ms (each run) | ratio | held on the device MiB | left for the host MiB | stalls ms | CPU share | loss after {min(20, args.steps - 1)} |",
        "| --- | --: | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in best.items():
        show = lambda key: "-" if row.get(key) is None else str(row[key])  # noqa: E731
        if "refused" in row:
            lines.append(f"| {row['peer']} | {show('cap_mb')} | refused: {row['refused'].split(': ', 1)[-1]} | | | | | | |")
            continue
        reference = best.get(name.split("-")[0])
        ratio = f"{row['step_ms_median'] / reference['step_ms_median']:.3f}" if reference else "-"
        each = ", ".join(f"{run['step_ms_median']:.1f}" for run in results[name])
        held = show("peak_device_mb") if "peak_device_mb" in row else f"{show('saved_device_mb')} saved"
        left = show("out_mb") if "out_mb" in row else show("saved_host_mb")
        lines.append(f"| {row['peer']} | {show('cap_mb')} | {each} | {ratio} | {held} | {left} | {show('stall_ms')} | {row['cpu_share']} |"
                     f" {row['late_loss']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=["T", "S", "M"], default="S")
    parser.add_argument("--caps", default="80,60", help="percent of the unconstrained peak")
    parser.add_argument("--steps", type=int, default=25, help="per run; the first 5 are left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", help="some of them, by name; default: all")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    parser.add_argument("--json", type=output, help="write all results to this file")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the generated weights")
    args = parser.parse_args()
    args.given, args.threads = sys.argv[1:], 1
    peers = commands([float(cap) for cap in args.caps.split(",")])
    results, whole = run_rounds(chosen(parser, args, peers), peers, args)
    if not results:
        return 1
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    return publish(table(results, args), args.table, errors_of(results), whole)


if __name__ == "__main__":
    sys.exit(main())
