#!/usr/bin/env python3
"""What a submit costs, beside the peers, one after the other in one sitting.

    run.py --build build [--peers torch,iree] [--python PYTHON ...]

Each --python is asked for every peer (torch, jax, onnxruntime, iree); the first that has one measures it. Prints a table.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
PEERS = ("torch", "jax", "onnxruntime", "iree")
WIDE = 100


def lines(command):
    run = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if run.returncode:
        sys.exit(f"{' '.join(map(str, command))}: status {run.returncode}\n{run.stderr[-2000:]}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def segue(build):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        inputs = ",\n".join(f'%x{i}: tensor<16xf32> {{segue.name = "x{i}", segue.role = #segue.role<input>}}'
                            for i in range(WIDE + 2))
        (folder / "wide.mlir").write_text(f"func.func @forward({inputs}) {{\n  return\n}}\n")
        files = []
        for source in (HERE / "empty.mlir", HERE / "add.mlir", folder / "wide.mlir"):
            files.append(folder / f"{source.stem}.segue")
            subprocess.run([build / "bin/segue-compile", "--inference-only", source, "-o", files[-1]], check=True,
                           timeout=60)
        return lines([build / "bin/segue-bench-submit", *files])


def peer_rows(peer, pythons):
    rows = []
    for python in pythons:
        rows = lines([python, HERE / "peers.py", peer])
        if any(row["us"] is not None for row in rows):
            break
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parent.parent / "build")
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--peers", default=",".join(PEERS), help="some of them, by name; empty: none")
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"no peer is called {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    rows = segue(options.build.resolve())
    for peer in peers:
        rows += peer_rows(peer, [*options.python, sys.executable] if options.python else [sys.executable])
    print("| peer | call | us |\n| --- | --- | --: |")
    for row in rows:
        print(f"| {row['peer']} | {row['what']} | {'-' if row['us'] is None else format(row['us'], '.3f')} |")


if __name__ == "__main__":
    main()
