#!/usr/bin/env python3
# ===- screenshots.py - the pictures of pages in docs/images ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Makes the pictures of pages in docs/images.

    make docs screenshots        # two minutes; needs chromium-headless-shell

report.png, report-dark.png and memory.png are of a run of examples/under_a_cap.py, or with --page of the pages that such a run has left
(its --out); terminal.png of `segue-run train` on what the demo writes; site.png of the page of concepts, where the site is built.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from browser import Browser
from terminal import Screen

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


def terminal(build: Path, folder: Path) -> str:
    """A page of a session: a budget that is too small, a typing error, and a run that goes on."""
    demo = [sys.executable, ROOT / "examples" / "demo.py", "--steps", "2", "--no-torch", "--sample", "1", "--out", folder]
    subprocess.run(demo, check=True, timeout=600, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))
    (folder / "text.txt").write_bytes(b"".join(source.read_bytes() for source in sources))
    os.environ["PATH"] = f"{build / 'bin'}{os.pathsep}{os.environ['PATH']}"
    train = ["segue-run", "train", "first.segue", "last.segue", "--weights", "weights.safetensors", "--data", "text.txt", "--device", "sim"]
    screen = Screen(columns=118)
    screen.run([*train, "--budget", "12MiB"], folder)
    screen.run(["segue-run", "trian"], folder)
    screen.run([*train, "--budget", "24MiB", "--steps", "200", "--lr-schedule", "cosine", "--warmup", "20"], folder,
               until=lambda screen: " 12/200, " in screen.lines[-1])  # fmt: skip
    return screen.page()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a folder that examples/under_a_cap.py wrote; default: it is run")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    args = parser.parse_args()
    made = ["report.png", "report-dark.png", "memory.png", "terminal.png"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.page or Path(scratch)
        if not args.page:
            subprocess.run([sys.executable, ROOT / "examples" / "under_a_cap.py", "--percent", "60", "--out", folder], check=True, timeout=600, cwd=ROOT, env=os.environ)
        subprocess.run([sys.executable, ROOT / "bench" / "memory" / "figure.py", folder / "report.html", "--beside", folder / "free.html", "-o", IMAGES / "memory.png"],
                       check=True, timeout=120)  # fmt: skip
        with Browser() as browser:
            browser.show(folder / "report.html", width=1080)
            browser.picture(IMAGES / "report.png", height=1560)
            browser.show(folder / "report.html", width=380, dark=True)
            browser.picture(IMAGES / "report-dark.png", height=1560)
            if browser.complaints:
                raise SystemExit("the page complains: " + "; ".join(browser.complaints))
            page = Path(scratch) / "terminal.html"
            page.write_text(terminal(args.build.resolve(), Path(scratch)))
            browser.show(page, width=1120, height=560)
            browser.picture(IMAGES / "terminal.png")
            if (site := args.build.resolve() / "site" / "concepts.html").exists():
                browser.show(site, width=1280)
                browser.picture(IMAGES / "site.png", height=960)
                made.append("site.png")
    print(f"{IMAGES}: {', '.join(made)}")


if __name__ == "__main__":
    main()
