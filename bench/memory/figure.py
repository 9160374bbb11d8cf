#!/usr/bin/env python3
"""Draws what the page of a run shows within a step: memory by service against the cap, and the link.

    segue-run train gpt.segue ... --device sim:dram=512MiB,pinned=512MiB,link=16GB/s,threads=1 --config cap.json --report capped.html
    segue-run train gpt.segue ... --device sim:dram=512MiB,pinned=512MiB,link=16GB/s,threads=1 --report free.html
    python bench/memory/figure.py capped.html --beside free.html -o docs/images/memory.png

Where a disk lies below the memory, what lies there is drawn, too. The figures are those that stand in the pages, as JSON. `--beside`: a run without the cap, drawn as a line.
"""
import argparse
import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from run import output  # noqa: E402

MIB = 2**20
ORDER = ["weights", "optimizer", "gradients", "activations", "inputs and outputs", "temporaries", "other"]
COLORS = dict(zip(ORDER, ["#2f6fb7", "#e08a1e", "#3a9a6b", "#8d5bb5", "#c8566b", "#6b7785", "#9aa5b1"]))


def data_of(page: Path) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    if not found:
        raise SystemExit(f"{page}: no page of a run; make one with --report")
    return json.loads(found[1])


def timeline_of(page: Path, data: dict, step: int | None) -> dict:
    for timeline in reversed(data["timelines"]):
        if step is None or timeline["step"] == step:
            return timeline
    raise SystemExit(f"{page}: step {step} was not traced; there are {[t['step'] for t in data['timelines']]}")


def stack(axes, held: dict) -> None:
    """Bytes by service over the step."""
    names = [name for name in ORDER if any(held["by"].get(name, []))]
    axes.stackplot(held["ms"], *[[b / MIB for b in held["by"][name]] for name in names], labels=names, step="post",
                   colors=[COLORS[name] for name in names], alpha=0.85)


def draw(page: Path, beside: Path | None, step: int | None):
    data = data_of(page)
    timeline = timeline_of(page, data, step)
    step = timeline["step"]
    disk_held = timeline.get("disk", {"ms": []})
    has_disk = bool(disk_held["ms"])
    figure, (memory, *disk, link) = plt.subplots(3 if has_disk else 2, 1, figsize=(9, 7.2 if has_disk else 5.2), sharex=True,
                                                 height_ratios=[2.2, 2.2, 1] if has_disk else [2.2, 1], layout="constrained")
    stack(memory, timeline["memory"])
    if has_disk:
        stack(disk[0], disk_held)
        disk[0].set_ylabel("on the disk, MiB")
        disk[0].legend(loc="lower center", ncols=4, fontsize=8, frameon=False, bbox_to_anchor=(0.5, 1))
    if beside:
        free = timeline_of(beside, data_of(beside), step)
        scale = timeline["ms"] / free["ms"]  # phase beside phase, though one took longer
        memory.step([ms * scale for ms in free["memory"]["ms"]], [b / MIB for b in free["memory"]["total"]], where="post",
                    color="black", linewidth=1, label="without a cap")
    if data["cap_bytes"]:
        memory.axhline(data["cap_bytes"] / MIB, color="#b42318", linestyle="--", linewidth=1.2, label="cap")
    memory.set_ylabel("device memory, MiB")
    memory.legend(loc="lower center", ncols=4, fontsize=8, frameon=False, bbox_to_anchor=(0.5, 1))
    middle = [(i + 0.5) * timeline["link"]["bin_ms"] for i in range(len(timeline["link"]["h2d"]))]
    for direction, label, color in (("d2h", "to the disk" if has_disk else "to the host", "#e08a1e"),
                                    ("h2d", "from the disk" if has_disk else "to the device", "#2f6fb7")):
        link.bar(middle, [rate / 1e9 for rate in timeline["link"][direction]], width=timeline["link"]["bin_ms"], color=color, alpha=0.8,
                 label=f"{label}, {timeline['link'][direction + '_bytes'] / MIB:.0f} MiB")
    if data["link"]:
        link.axhline(data["link"]["h2d_bytes_per_second"] / 1e9, color="#b42318", linestyle="--", linewidth=1.2)
    link.set_ylabel("disk, GB/s" if has_disk else "link, GB/s")
    link.set_xlabel(f"ms of step {step}")
    link.legend(loc="upper right", fontsize=8, frameon=False)
    for phase in timeline["phases"]:
        if phase["dur"] > 0.04 * timeline["ms"]:
            memory.text(phase["ms"] + phase["dur"] / 2, memory.get_ylim()[1] * 0.96, phase["name"], ha="center", va="top", fontsize=8,
                        color="#5b6470")
        for axes in (memory, *disk, link):
            axes.axvline(phase["ms"], color="#d9dee5", linewidth=0.8, zorder=0)
            axes.spines[["top", "right"]].set_visible(False)
    memory.set_xlim(0, timeline["ms"])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, help="what --report wrote")
    parser.add_argument("--beside", type=Path, help="the page of a run without the cap")
    parser.add_argument("--step", type=int, help="a step that was traced; default: the last one, as the first ones plan")
    parser.add_argument("-o", "--output", type=output, required=True, help=".png or .svg")
    args = parser.parse_args()
    draw(args.page, args.beside, args.step).savefig(args.output, dpi=150)


if __name__ == "__main__":
    main()
