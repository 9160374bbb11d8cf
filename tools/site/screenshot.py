#!/usr/bin/env python3
# ===- screenshot.py - the picture of the site in docs/images --------------------------=== #
#
# Licensed under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#
# ===------------------------------------------------------------------------=== #
"""Makes docs/images/site.png of the page of concepts, as `make docs` has built it: tools/site/screenshot.py [SITE]; needs chromium-headless-shell."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "site").resolve()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none
    subprocess.run(["chromium-headless-shell", *sandbox, "--hide-scrollbars", "--window-size=1280,960", f"--screenshot={ROOT / 'docs' / 'images' / 'site.png'}",
                    (site / "concepts.html").as_uri()], check=True, timeout=120)
