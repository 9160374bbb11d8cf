#!/usr/bin/env python3
"""The GPT training step of Segue beside PyTorch eager and torch.compile, in one sitting.

    python bench/run.py                        # config S, 2 threads
    python bench/run.py --config M --rounds 1
    python bench/run.py --peers segue,eager --table out/step.md
    python bench/run.py --bf16                 # all of them with autocast
    python bench/run.py --dropout 0.1          # of embeddings, of the weights of attention, and of what blocks add

Every peer is a process of its own that starts from the same weights, reads the same bytes and prints one JSON line
(bench/peers). They run one after the other, in rounds, and the best median of each counts: other load on the machine only
ever adds time. The table goes to stdout, ready for bench/RESULTS.md; exit status 1 if a peer failed or the losses differ.
"""
import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"

#: Name -> script and arguments. The first PyTorch row is what ratios refer to.
COMMANDS = {
    "segue": ["gpt_segue.py"],
    "segue-2": ["gpt_segue.py", "--modules", "2"],
    "eager": ["gpt_torch.py", "--mode", "eager"],
    "compile": ["gpt_torch.py", "--mode", "compile-fused"],
}

#: Relative difference of losses that f32 peers may show (they show 1e-6), and those with products in bf16 (1e-5).
LOSS_TOLERANCE = 1e-4
BF16_TOLERANCE = 1e-3
#: With dropout each peer draws masks of its own.
DROPOUT_TOLERANCE = 5e-2


def weights_file(config: str, folder: Path) -> Path:
    path = folder / f"gpt_{config.lower()}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, PEERS / "gpt_gen.py", config, path], check=True, stdout=subprocess.DEVNULL)
    return path


def run_peer(name: str, command: list[str], weights: Path, args: argparse.Namespace) -> dict | None:
    """One process of a script of PEERS; its result line, or None with the reason on stderr."""
    line = [sys.executable, str(PEERS / command[0]), str(weights), *command[1:],
            "--config", args.config, "--threads", str(args.threads), "--steps", str(args.steps)]
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=args.timeout, env=environment)
    except subprocess.TimeoutExpired:
        print(f"{name}: no result within {args.timeout} s", file=sys.stderr)
        return None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"{name}: exit status {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr)
        return None
    return json.loads(lines[-1])


def chosen(parser: argparse.ArgumentParser, args: argparse.Namespace, commands: dict[str, list[str]]) -> list[str]:
    """The names of --peers, by default all; ends the program for options that make no sense."""
    names = args.peers.split(",") if args.peers else list(commands)
    unknown = [name for name in names if name not in commands]
    if unknown:
        parser.error(f"--peers: {unknown[0]!r} is none of {', '.join(commands)}")
    if args.steps < 8:
        parser.error(f"--steps: {args.steps} given, 8 are needed: the first 5 are left out, and a median of less than 3 says little")
    return names


def run_rounds(names: list[str], commands: dict[str, list[str]], args: argparse.Namespace) -> tuple[dict[str, list[dict]], bool]:
    """The result lines of each peer, one per round, and whether all runs gave one."""
    weights, results, whole = weights_file(args.config, args.work), {}, True
    for turn in range(args.rounds):
        for name in names:
            print(f"round {turn + 1} of {args.rounds}: {name}", file=sys.stderr)
            row = run_peer(name, commands[name], weights, args)
            whole &= row is not None
            if row is not None:
                results.setdefault(name, []).append(row)
    return results, whole


def output(text: str) -> Path:
    """A path for results, which an hour of measuring must not find to be none: for argparse."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written")
    return path


def publish(text: str, path: Path | None, errors: list[str], whole: bool) -> int:
    """Prints the table, writes it to `path` too, says what is wrong; the exit status."""
    print(text, end="")
    if path:
        path.write_text(text)
    for error in errors:
        print(error, file=sys.stderr)
    return 0 if whole and not errors else 1


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def loss_errors(results: dict[str, list[dict]], tolerance: float = LOSS_TOLERANCE) -> list[str]:
    """Peers whose losses are not those of PyTorch eager."""
    if "eager" not in results:
        return []
    want, errors = results["eager"][0], []
    for name, runs in results.items():
        for key in ("loss0", "late_loss"):
            error = abs(runs[0][key] - want[key]) / abs(want[key])
            if not error <= tolerance:  # NaN is an error too
                errors.append(f"{name}: {key} is {runs[0][key]}, PyTorch eager has {want[key]} (relative {error:.1e})")
    return errors


def table(results: dict[str, list[dict]], args: argparse.Namespace) -> str:
    best = {name: min(runs, key=lambda r: r["step_ms_median"]) for name, runs in results.items()}
    reference = best.get("eager")
    command = f"python bench/run.py {' '.join(args.given)}".strip()
    lines = [
        f"### Training step, config {args.config}, {args.threads} threads{', bf16' * args.bf16}{f', dropout {args.dropout:g}' if args.dropout else ''}", "",
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end;"
        f" `{command}`; best of {args.rounds} medians over {args.steps - 5} steps.", "",
        f"| peer | step ms (each run) | ratio to eager | CPU share | peak RSS MiB (before the model) | start-up s | loss0 | loss after {min(20, args.steps - 1)} |",
        "| --- | --- | --: | --: | --: | --: | --: | --: |",
    ]
    for name, row in best.items():
        each = ", ".join(f"{r['step_ms_median']:.0f}" for r in results[name])
        ratio = f"{row['step_ms_median'] / reference['step_ms_median']:.2f}" if reference else "-"
        lines.append(f"| {row['peer']} | {each} | {ratio} | {row['cpu_share']} | {row['peak_rss_mb']} ({row['before_rss_mb']}) | {row['compile_s']} |"
                     f" {row['loss0']} | {row['late_loss']} |")
    if any(row["cpu_share"] < 0.9 * args.threads for row in best.values()):
        lines += ["", "A CPU share below 0.9 per thread: something else held the processors; read ratios, not times."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=["T", "S", "M"], default="S")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--steps", type=int, default=25, help="per run; the first 5 are left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", help=f"of {', '.join(COMMANDS)}; default: all")
    parser.add_argument("--bf16", action="store_true", help="with autocast: products, convolutions and attention in bfloat16")
    parser.add_argument("--dropout", type=float, default=0, help="the probability with which numbers are dropped")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run")
    parser.add_argument("--table", type=output, help="write the table to this file too")
    parser.add_argument("--work", type=Path, default=Path("out/bench"), help="folder of the generated weights")
    args = parser.parse_args()
    args.given = sys.argv[1:]
    options = ["--bf16"] * args.bf16 + ["--dropout", str(args.dropout)] * bool(args.dropout)
    commands = {name: [*command, *options] for name, command in COMMANDS.items()}
    results, whole = run_rounds(chosen(parser, args, commands), commands, args)
    errors = loss_errors(results, DROPOUT_TOLERANCE if args.dropout else BF16_TOLERANCE if args.bf16 else LOSS_TOLERANCE)
    return publish(table(results, args), args.table, errors, whole) if results else 1


if __name__ == "__main__":
    sys.exit(main())
