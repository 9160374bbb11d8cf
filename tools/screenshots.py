#!/usr/bin/env python3
# ===- screenshots.py - the pictures of pages in docs/images ------------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Makes docs/images/report.png, report-dark.png and memory.png of a run of examples/under_a_cap.py.

    make screenshots        # a minute; needs chromium-headless-shell

With --page, of the pages that such a run has left (its --out).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from browser import Browser

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a folder that examples/under_a_cap.py wrote; default: it is run")
    args = parser.parse_args()
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
    print(f"{IMAGES}: report.png, report-dark.png, memory.png")


if __name__ == "__main__":
    main()
